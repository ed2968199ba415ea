// Judging: one hit at a time, one key per answer. Nothing shows the system, the rank or the score of a hit.
import { count, h, marked } from "./dom.js";
import { rendered } from "./markdown.js";

const IDLE_MS = 60000; // without any movement, after which a person is away
const RETRY_MS = 2000;
const PREPARING_MS = 700;
const MEMORY = "hybrid-judging";
const FIRST_GOAL = 20; // judged queries, as long as nothing is known about how many are needed

// Actions in the order of the help, with their usual keys.
const ACTIONS = {
  grade0: ["0", "not relevant"], grade1: ["1", "partly"], grade2: ["2", "relevant"], grade3: ["3", "fully relevant"],
  skip: ["s", "skip, with a reason"], later: ["l", "judge later"], undo: ["Backspace", "undo the last answer"],
  next: ["n", "next page of the text"], previous: ["p", "previous page of the text"],
  match: ["m", "next word of the query in the text"], marks: ["h", "mark the words of the query, or not"],
  guidelines: ["g", "show or hide the guidelines"], list: ["a", "show or hide your answers"], help: ["?", "show all keys"],
};
const ALSO = { ArrowRight: "next", ArrowLeft: "previous" };
const KEY_NAMES = { Backspace: "⌫", " ": "space", ArrowUp: "↑", ArrowDown: "↓", Enter: "↵", Delete: "del" };

// What this browser remembers: name, keys, open parts, and the answer that is not yet stored.
function memory() {
  let known = {};
  try {
    known = JSON.parse(localStorage.getItem(MEMORY)) ?? {};
  } catch {
    known = {};
  }
  const remembered = { rater: "", keys: {}, single: true, marks: false, guidelines: true, list: true, unsent: null, ...known };
  return {
    ...remembered,
    keep(changes) {
      Object.assign(this, changes);
      const { keep, ...values } = this;
      try {
        localStorage.setItem(MEMORY, JSON.stringify(values));
      } catch { /* a browser without storage forgets */ }
    },
  };
}

const shown = (key) => KEY_NAMES[key] ?? key;
const isText = (element) => element?.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// Active time of a person: while the page is visible, has the focus, and anything moves within a minute.
function stopwatch() {
  let active = 0;
  let last = performance.now();
  let present = true;
  const events = ["keydown", "pointerdown", "pointermove", "wheel", "scroll", "touchmove"];
  const settle = () => {
    const now = performance.now();
    if (present) active += Math.min(now - last, IDLE_MS);
    last = now;
  };
  const changed = () => {
    settle();
    present = document.visibilityState === "visible" && document.hasFocus();
  };
  for (const name of events) addEventListener(name, settle, { passive: true, capture: true });
  for (const name of ["focus", "blur"]) addEventListener(name, changed);
  document.addEventListener("visibilitychange", changed);
  changed();
  return {
    start() {
      settle();
      active = 0;
    },
    seconds() {
      settle();
      return Math.round(active / 100) / 10;
    },
    stop() {
      for (const name of events) removeEventListener(name, settle, { capture: true });
      for (const name of ["focus", "blur"]) removeEventListener(name, changed);
      document.removeEventListener("visibilitychange", changed);
    },
  };
}

export function mount(root, { api, info, params, navigate, announce, title }) {
  const own = memory();
  const watch = stopwatch();
  const { grades, reasons, guidelines, tunes } = info.judging;
  const keys = () => Object.fromEntries(Object.entries(ACTIONS).map(([name, [key]]) => [name, own.keys[name] ?? key]));
  let rater = params.get("rater") || own.rater;
  let state = null; // the last answer of the server
  let timer = 0;
  let gone = false;
  let busy = false;

  // ------------------------------------------------------------------------------------------------------- elements
  const hit = h("article", { class: "to-judge", "aria-label": "Hit" });
  const notice = h("div", { class: "notice", role: "alert" });
  const buttons = {};
  const button = (name, label, kind = "") => {
    buttons[name] = h("button", { type: "button", class: kind, onclick: () => act(name) }, h("kbd", {}, ""), h("span", {}, label));
    return buttons[name];
  };
  const bar = h("div", { class: "answers", role: "group", "aria-label": "Answers" },
    h("div", { class: "grades" }, Object.entries(grades).map(([grade, label]) => button(`grade${grade}`, label, `grade g${grade}`))),
    h("div", { class: "others" }, button("skip", "Skip", "plain"), button("later", "Later", "plain"),
      button("undo", "Undo", "plain"), button("help", "Keys", "plain keyboard")));
  const progress = h("section", { class: "progress", "aria-label": "Progress" });
  const verdict = h("section", { class: "verdict", "aria-label": "What the judgments say" });
  const rules = guidelines && h("details", { class: "guidelines", open: own.guidelines,
    ontoggle: () => own.keep({ guidelines: rules.open }) }, h("summary", {}, "Guidelines"), rendered(guidelines));
  const listed = h("div", {});
  const list = h("details", { class: "list", open: own.list, ontoggle: () => {
    own.keep({ list: list.open });
    if (list.open) showList();
  } }, h("summary", {}, "Your answers"), listed);
  const side = h("aside", { "aria-label": "Progress and guidelines" }, progress, verdict, rules, list, queryForm(), person());
  const desk = h("div", { class: "desk" }, h("div", { class: "sheet" }, notice, hit, bar), side);

  // -------------------------------------------------------------------------------------------------------- person
  function person() {
    return h("p", { class: "note person" }, "You judge as ", h("b", { class: "name" }, rater), ". ",
      h("button", { type: "button", class: "plain", onclick: () => ask() }, "Change"), " ",
      h("a", { href: "api/judging/qrels", download: "judgments.qrels" }, "Download qrels"));
  }

  function enter(name) {
    rater = name;
    state = null;
    own.keep({ rater });
    navigate("judge", { rater }, { replace: true });
    side.querySelector(".name").textContent = rater;
    hit.replaceChildren(skeleton());
    enable(false);
    root.replaceChildren(desk);
    load();
  }

  function ask(problem = "") {
    clearTimeout(timer);
    state = null;
    const error = h("p", { class: "error", id: "name-error", role: "alert" }, problem);
    const field = h("input", { class: "field", id: "rater", name: "rater", autocomplete: "off", autocapitalize: "none",
      spellcheck: "false", maxlength: 64, value: rater, "aria-describedby": "name-error" });
    const begin = (name) => {
      if (!name || /\s/.test(name) || name.startsWith("machine:")) {
        error.textContent = "A name is one word, such as anna.";
        field.focus();
        return;
      }
      enter(name);
    };
    const known = info.judging.raters.filter((name) => name !== rater);
    root.replaceChildren(h("form", { class: "welcome", onsubmit: (event) => {
      event.preventDefault();
      begin(field.value.trim());
    } },
    h("h1", {}, "Judge hits"),
    h("p", {}, "You read a query and one text at a time, and grade it from 0 to 3. The texts are in random order; nothing ",
      "shows which system found them. Every answer is stored at once."),
    h("label", { for: "rater" }, "Your name, in one word"),
    h("div", { class: "row" }, field, h("button", { class: "primary", type: "submit" }, "Start")), error,
    known.length ? h("p", { class: "note" }, "Or continue as ", known.map((name) => [
      h("button", { type: "button", class: "plain", onclick: () => begin(name) }, name), " "])) : null));
    field.focus();
  }

  // --------------------------------------------------------------------------------------------------------- server
  async function load(pair = {}) {
    clearTimeout(timer);
    try {
      const answer = await api.get("/api/judging", { rater, ...pair });
      if (gone) return;
      if (answer.preparing) {
        const done = answer.queries ? ` ${answer.done} of ${answer.queries}` : "";
        if (!hit.querySelector(".preparing")) hit.replaceChildren(h("p", { class: "preparing note" }, ""), skeleton());
        hit.querySelector(".preparing").textContent = `Searching the queries${done} …`;
        enable(false);
        timer = setTimeout(() => load(pair), PREPARING_MS);
        return;
      }
      show(answer);
      if (own.unsent) send(own.unsent);
    } catch (error) {
      failed(error, () => load(pair));
    }
  }

  async function send(body) {
    own.keep({ unsent: body }); // kept until it is stored: also over a reload, and a server that is started again
    clearTimeout(timer);
    busy = true;
    enable(false);
    try {
      const answer = await api.post("/api/judgments", body);
      if (gone) return;
      if (answer.preparing) {
        timer = setTimeout(() => send(body), PREPARING_MS);
        return;
      }
      own.keep({ unsent: null });
      busy = false;
      notice.replaceChildren();
      if (body.rater !== rater) return load();
      show(answer);
      announce(`${said(body)}. ${answer.hit ? `Next: ${plain(answer.hit.title)}` : "No further hit"}`);
    } catch (error) {
      if (gone) return;
      if (error.status === 0 || error.status >= 500) {
        notice.replaceChildren(h("p", {}, "Your answer is kept, and is sent when the server is back."));
        timer = setTimeout(() => send(body), RETRY_MS);
        return;
      }
      busy = false;
      own.keep({ unsent: null });
      await load();
      notice.replaceChildren(h("p", {}, error.message));
    }
  }

  function failed(error, again) {
    if (gone) return;
    enable(false);
    if (error.code === "not-a-name") ask(error.message);
    else if (error.status === 0 || error.status >= 500) timer = setTimeout(again, RETRY_MS);
    else hit.replaceChildren(h("div", { class: "problem", role: "alert" }, h("p", {}, error.message)));
  }

  const plain = (parts) => parts.map(([text]) => text).join("");
  const said = ({ grade, skip, later }) =>
    grade !== undefined ? `Graded ${grade}, ${grades[grade]}` : skip ? "Skipped" : later ? "For later" : "Undone";

  // --------------------------------------------------------------------------------------------------------- answers
  function answer(changes) {
    if (busy || !state) return;
    const about = changes.undo ? {} : { qid: state.hit.qid, docid: state.hit.docid };
    send({ rater, id: newId(), ...about, ...changes, seconds: watch.seconds() });
  }

  function act(name) {
    const [, grade] = name.match(/^grade(\d)$/) ?? [];
    if (grade !== undefined && state?.hit) answer({ grade: Number(grade) });
    else if (name === "skip" && state?.hit && !busy) skip();
    else if (name === "later" && state?.hit) answer({ later: true });
    else if (name === "undo" && state) answer({ undo: true });
    else if (name === "next" || name === "previous") turn(name === "next" ? 1 : -1);
    else if (name === "match") toMatch();
    else if (name === "marks") mark(!own.marks);
    else if (name === "guidelines" && rules) own.keep({ guidelines: (rules.open = !rules.open) });
    else if (name === "list") own.keep({ list: (list.open = !list.open) });
    else if (name === "help") help();
  }

  function turn(direction) {
    const room = innerHeight - bar.offsetHeight;
    scrollBy({ top: direction * room * 0.85 });
  }

  function toMatch() {
    const words = [...hit.querySelectorAll(".text mark")];
    if (!words.length) return announce("No word of the query is in the text");
    const at = words.findIndex((word) => word.classList.contains("current"));
    const word = words[(at + 1) % words.length];
    words[at]?.classList.remove("current");
    word.classList.add("current");
    word.scrollIntoView({ block: "center" });
    announce(`${word.textContent}, ${((at + 1) % words.length) + 1} of ${words.length}`);
  }

  function toRules() {
    rules.open = true;
    rules.scrollIntoView({ block: "start" });
  }

  function mark(marks) {
    own.keep({ marks });
    root.classList.toggle("marks", marks);
    const toggle = hit.querySelector(".toggle");
    if (toggle) toggle.setAttribute("aria-pressed", marks);
  }

  function skip() {
    const close = (reason) => {
      dialog.close();
      answer(reason ? { skip: true, reason } : { skip: true });
    };
    const dialog = opened("Skip this text", h("ol", { class: "reasons" }, reasons.map((reason, place) => h("li", {},
      h("button", { type: "button", onclick: () => close(reason) }, h("kbd", {}, `${place + 1}`), h("span", {}, reason)))),
    h("li", {}, h("button", { type: "button", autofocus: true, onclick: () => close() }, h("kbd", {}, "↵"), h("span", {}, "no reason")))));
    dialog.addEventListener("keydown", (event) => {
      const reason = reasons[Number(event.key) - 1];
      if (reason && !event.ctrlKey && !event.metaKey && !event.altKey && own.single) {
        event.preventDefault();
        close(reason);
      }
    });
  }

  function opened(heading, ...content) {
    const dialog = h("dialog", { "aria-label": heading, onclose: () => dialog.remove() },
      h("div", { class: "head" }, h("h2", {}, heading),
        h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, "✕")), content);
    root.append(dialog);
    dialog.showModal();
    return dialog;
  }

  // ------------------------------------------------------------------------------------------------------------ keys
  function help() {
    const rows = h("dl", { class: "keys" });
    let waiting = null;
    const draw = () => rows.replaceChildren(...Object.entries(ACTIONS).flatMap(([name, [, meaning]]) => {
      const label = waiting === name ? "press a key" : shown(keys()[name]);
      const change = h("button", { type: "button", "aria-label": `Key for: ${meaning}. ${label}`, "data-action": name, onclick: () => {
        waiting = name;
        draw();
        rows.querySelector(`[data-action=${name}]`).focus();
      } }, h("kbd", {}, label));
      return [h("dt", {}, change), h("dd", {}, meaning)];
    }));
    const single = h("input", { type: "checkbox", id: "single", checked: own.single, onchange: () => {
      own.keep({ single: single.checked });
      label();
    } });
    const message = h("p", { class: "error", role: "alert" });
    const dialog = opened("Keys", rows, message,
      h("p", {}, single, " ", h("label", { for: "single" }, "Keys without Ctrl, Alt or ⌘ answer")),
      h("p", { class: "note" }, "Choose a key to change it. Keys are ignored in fields. ← and → turn pages too."),
      h("p", {}, h("button", { type: "button", onclick: () => {
        own.keep({ keys: {}, single: true });
        single.checked = true;
        draw();
        label();
      } }, "Usual keys")));
    dialog.addEventListener("keydown", (event) => {
      if (!waiting || ["Tab", "Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
      event.preventDefault();
      const [name, key] = [waiting, event.key.length === 1 ? event.key.toLowerCase() : event.key];
      waiting = null;
      const taken = Object.entries(keys()).find(([other, used]) => used === key && other !== name);
      message.textContent = taken ? `${shown(key)} is taken: ${ACTIONS[taken[0]][1]}.` : "";
      if (!taken && key !== "Escape") own.keep({ keys: { ...own.keys, [name]: key } });
      draw();
      label();
      rows.querySelector(`[data-action=${name}]`).focus();
    });
    draw();
  }

  function label() {
    for (const [name, element] of Object.entries(buttons)) {
      const key = element.querySelector("kbd");
      key.textContent = shown(keys()[name]);
      key.hidden = !own.single;
      if (own.single) element.setAttribute("aria-keyshortcuts", keys()[name]);
      else element.removeAttribute("aria-keyshortcuts");
    }
  }

  function pressed(event) {
    if (!own.single || event.defaultPrevented || event.repeat || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || event.altKey || isText(event.target) || root.querySelector("dialog[open]")) return;
    if (!desk.isConnected) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const name = Object.entries(keys()).find(([, used]) => used === key)?.[0] ?? ALSO[key];
    if (!name) return;
    event.preventDefault();
    act(name);
  }

  // ------------------------------------------------------------------------------------------------------------ views
  function enable(enabled) {
    for (const name of [...Object.keys(grades).map((grade) => `grade${grade}`), "skip", "later"]) {
      buttons[name].disabled = !enabled || !state?.hit;
      buttons[name].hidden = Boolean(state) && !state.hit;
    }
    const answered = state && state.progress.answers + state.progress.skipped + state.progress.later;
    buttons.undo.disabled = !enabled || !answered;
    bar.hidden = Boolean(state) && !state.hit && !answered;
  }

  function show(answer) {
    state = answer;
    watch.start();
    title("Judge");
    showHit();
    showProgress();
    showVerdict();
    enable(true);
    if (list.open) showList();
    scrollTo({ top: 0 });
  }

  function showHit() {
    const shownHit = state.hit;
    for (const element of Object.values(buttons)) element.classList.remove("chosen");
    if (!shownHit) {
      hit.replaceChildren(state.progress.queries
        ? h("div", { class: "empty" }, h("h1", {}, "All hits are judged"),
          h("p", {}, "Thank you. You can change earlier answers, or add a query of your own."))
        : h("div", { class: "empty" }, h("h1", {}, "No queries yet"),
          h("p", {}, "Type a query: its hits are shown here, one at a time."), queryForm()));
      return;
    }
    const place = shownHit.position ? `Text ${shownHit.position} of ${shownHit.pooled}` : "Text";
    const earlier = shownHit.answered ? h("p", { class: "earlier" }, before(shownHit), " ",
      h("button", { type: "button", class: "plain", onclick: () => load() }, "Back to the next text")) : null;
    if (shownHit.answered && shownHit.grade !== null) buttons[`grade${shownHit.grade}`].classList.add("chosen");
    const paragraphs = paragraphsOf(shownHit.text);
    hit.replaceChildren(...[
      h("header", {}, h("p", { class: "note place" }, place, rules && h("button", { type: "button", class: "plain to-rules", onclick: toRules }, "Guidelines"),
        h("button", { type: "button", class: "plain toggle", "aria-pressed": `${own.marks}`, onclick: () => mark(!own.marks) }, "Mark query words")),
      h("h1", { class: "query" }, shownHit.query)), earlier,
      h("h2", { class: "title" }, marked(shownHit.title)),
      h("div", { class: "text" }, paragraphs.length ? paragraphs.map((parts) => h("p", {}, marked(parts)))
        : h("p", { class: "note" }, "This document has no text."))].filter(Boolean));
  }

  const before = ({ grade, skipped }) => grade !== null && grade !== undefined ? `You graded this text ${grade}, ${grades[grade]}.`
    : skipped ? "You skipped this text." : "You put this text off.";

  function showProgress() {
    const { judged, answers, skipped, later } = state.progress;
    const more = state.verdict?.more ?? null;
    const goal = state.decided ? state.judged_by_all : more === null ? null : state.judged_by_all + more;
    const most = Math.max(goal ?? FIRST_GOAL, state.judged_by_all, 1);
    const rest = state.decided || goal !== null ? null : `${FIRST_GOAL} are a good start.`; // the verdict has the number
    const small = [count(answers, "grade"), skipped && `${skipped} skipped`, later && `${later} for later`,
      state.judged_by_all !== judged && `${count(judged, "query", "queries")} by you`].filter(Boolean).join(" · ");
    progress.replaceChildren(
      h("h3", { id: "progress-label" }, count(state.judged_by_all, "query", "queries"), " judged here"),
      h("progress", { max: most, value: state.judged_by_all, "aria-labelledby": "progress-label" }),
      ...(rest ? [h("p", { class: "note" }, rest)] : []), h("p", { class: "note" }, small));
  }

  function showVerdict() {
    const conflicts = state.conflicts ? h("p", { class: "note" }, `People differ about ${count(state.conflicts, "text")}: `,
      h("code", {}, "hybrid judge --adjudicate"), " settles them.") : null;
    verdict.replaceChildren(...[
      state.decided ? h("h3", { class: "good" }, "The evidence suffices") : null,
      state.verdict ? h("p", { class: "note" }, state.verdict.sentence) : null, conflicts,
      state.decided && tunes ? tuning() : null].filter(Boolean));
    verdict.hidden = !verdict.children.length;
  }

  function tuning() {
    const message = h("p", { class: "note", role: "status" });
    const write = h("button", { type: "button", class: "primary", onclick: async () => {
      write.disabled = true;
      message.textContent = "The retriever is tuned …";
      try {
        let answer = await api.post("/api/judging/tuned", { rater });
        while (answer.running && !gone) {
          await new Promise((resolve) => setTimeout(resolve, PREPARING_MS));
          answer = await api.get("/api/judging/tuned");
        }
        message.replaceChildren("Written: ", h("code", {}, answer.path), ". Serve it with ", h("code", {}, `hybrid serve ${answer.path}`), ".");
      } catch (error) {
        message.textContent = error.message;
      }
      write.disabled = false;
    } }, "Write the tuned retriever");
    return h("div", { class: "tuning" }, write, message);
  }

  async function showList() {
    if (!rater || !state) return;
    const answer = await api.get("/api/judging/answered", { rater }).catch(() => null);
    if (!answer || gone || !answer.queries) return;
    const badge = ({ grade, later }) => (later ? "later" : grade === null ? "skip" : `${grade}`);
    const item = (qid) => (each) => h("li", {}, h("button", { type: "button", class: "plain", "data-docid": each.docid,
      onclick: () => load({ qid, docid: each.docid }) }, h("b", { class: `badge g${each.grade ?? "s"}` }, badge(each)),
    h("span", {}, each.title, each.reason && h("small", {}, each.reason))));
    listed.replaceChildren(...(answer.queries.length ? answer.queries.map(({ qid, text, hits }) => h("section", {},
      h("h4", {}, text, " ", h("small", {}, count(hits.length, "answer"))), h("ul", {}, hits.map(item(qid))))) : [h("p", { class: "note" }, "None yet.")]),
    ...(answer.gone ? [h("p", { class: "note" }, `${count(answer.gone, "answer is", "answers are")} about documents that are gone; they are kept.`)] : []));
  }

  function queryForm() {
    const field = h("input", { class: "field", "aria-label": "Your own query", placeholder: "Your own query", maxlength: 4000, autocomplete: "off" });
    const message = h("p", { class: "error", role: "alert" });
    return h("form", { class: "own", onsubmit: async (event) => {
      event.preventDefault();
      if (!field.value.trim() || busy) return;
      message.textContent = "";
      try {
        const answer = await api.post("/api/judging/queries", { rater, text: field.value });
        field.value = "";
        field.blur();
        if (!answer.preparing) show(answer);
      } catch (error) {
        message.textContent = error.message;
      }
    } }, h("div", { class: "row" }, field, h("button", { type: "submit" }, "Judge it")), message);
  }

  addEventListener("keydown", pressed);
  root.classList.toggle("marks", own.marks);
  label();
  if (rater) enter(rater);
  else ask();

  const leave = () => {
    gone = true;
    clearTimeout(timer);
    watch.stop();
    removeEventListener("keydown", pressed);
  };
  leave.update = (changed) => {
    const name = changed.get("rater");
    if (name && name !== rater) enter(name);
  };
  return leave;
}

const skeleton = () => h("div", { "aria-hidden": "true" }, [60, 92, 88, 95, 40].map((width) =>
  h("div", { class: "skeleton line", style: { width: `${width}%` } })));

// The parts of a text, split at blank lines.
function paragraphsOf(parts) {
  const paragraphs = [[]];
  for (const [text, isTerm] of parts) {
    text.split(/\n\s*\n/).forEach((piece, place) => {
      if (place) paragraphs.push([]);
      if (piece) paragraphs.at(-1).push([piece, isTerm]);
    });
  }
  return paragraphs.filter((each) => each.some(([text]) => text.trim()));
}
