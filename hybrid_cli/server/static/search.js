// Search: one query in every column, the fusion under the slider, and the explanation of a hit.
import { colour, count, h, score, swatch } from "./dom.js";
import { Judged, METHODS, candidates, fuse, fusedScores, valued } from "./fusion.js";
import { columnsOf, condition, filters, readFacets, writeFacets } from "./filters.js";
import { hit, list } from "./hits.js";
import { lines } from "./lines.js";
import { explained, panel } from "./panel.js";
import { Stored, strip } from "./strip.js";

const SHOWN = 10, MORE = 20; // hits of a column
const SLOW_MS = 180; // without an answer, before the skeleton
const SETTLED_MS = 160; // without a change, before the URL and the snippets follow
const HIGHLIGHT = "hybrid.highlight";
const still = matchMedia("(prefers-reduced-motion: reduce)");
let judgedQueries = null; // of /api/judged, kept between the views

export function mount(root, { api, info, params, navigate, announce, title }) {
  const main = info.main ?? (info.systems.includes("hybrid") ? "hybrid" : info.systems[0]);
  const fusable = info.sides.length > 1;
  const stored = fusable ? new Stored(info) : null;
  const metadata = columnsOf(info.metadata ?? []);
  const state = { query: "", w: null, method: null, k: null, filter: "", facets: new Map(), doc: null, from: main, n: SHOWN,
    column: main, highlight: true };
  let data = null, texts = new Map(), tints = new Map(), some = null, asking = null, settling = 0, opener = null, explaining = null;

  // ------------------------------------------------------------------------------------------------------ elements
  const box = h("input", { id: "query", class: "field", type: "search", autocomplete: "off", spellcheck: "false",
    placeholder: "Search", "aria-label": "Query", maxlength: info.limits?.query });
  const bar = filters({ metadata, state, change: () => ask(true) });
  const highlight = h("input", { type: "checkbox", onchange: () => {
    state.highlight = highlight.checked;
    localStorage.setItem(HIGHLIGHT, highlight.checked ? "1" : "0");
    marks();
    record();
  } });
  const form = h("form", { class: "ask", role: "search", onsubmit: (event) => { event.preventDefault(); submit(); } },
    h("div", { class: "box" }, box, h("kbd", { "aria-hidden": "true" }, "/")),
    h("button", { type: "submit", class: "primary" }, "Search"),
    metadata.length ? bar.button : null,
    h("label", { class: "toggle" }, highlight, "Highlight"));
  const controls = fusable ? strip({ info, stored, state, change: () => { fused(); settle(); } }) : null;
  const picker = h("div", { class: "picker", role: "group", "aria-label": "Column" }, info.systems.map((name, place) =>
    h("button", { type: "button", "data-system": name, onclick: () => { state.column = name; pick(); record(); } }, swatch(place), name)));
  const columns = h("div", { class: "columns" });
  const links = lines(columns);
  const results = h("div", { class: "results" });
  const side = panel({ close: () => { closed(); record(true); } });
  root.append(form, bar.chips, bar.panel, controls?.element ?? "", results, side.element);

  // --------------------------------------------------------------------------------------------------------- state
  function read(from) {
    const share = from.get("w");
    const shares = share?.split(",").map(Number) ?? [];
    const whole = shares.length === 1 ? [1 - shares[0], shares[0]] : shares;
    const sound = whole.length === info.sides.length && whole.every((each) => each >= 0) && whole.some((each) => each > 0);
    Object.assign(state, {
      query: from.get("q") ?? "", w: sound ? whole : null,
      method: from.get("method") in METHODS && from.get("method") !== stored?.method ? from.get("method") : null,
      k: Number(from.get("k")) > 0 ? Number(from.get("k")) : null, filter: from.get("filter") ?? "", facets: readFacets(from),
      doc: from.get("doc"), from: from.get("in") ?? main, n: from.get("n") === String(MORE) ? MORE : SHOWN,
      column: info.systems.includes(from.get("column")) ? from.get("column") : main,
      highlight: from.has("hl") ? from.get("hl") !== "0" : localStorage.getItem(HIGHLIGHT) !== "0",
    });
    box.value = state.query;
    highlight.checked = state.highlight;
  }

  function written() {
    const share = state.w && (state.w.length === 2 ? String(state.w[1]) : state.w.join(","));
    const pairs = [["q", state.query], ["w", share], ["method", state.method], ["k", state.k], ["filter", state.filter],
      ...writeFacets(state.facets), ["doc", state.doc], ["in", state.doc && state.from !== main ? state.from : null],
      ["n", state.n === MORE ? MORE : null], ["column", state.column === main ? null : state.column],
      ["hl", state.highlight ? null : "0"]];
    return new URLSearchParams(pairs.filter(([, value]) => value !== null && value !== undefined && value !== ""));
  }

  // A new entry in the history, or a change of the current one.
  function record(entry = false) {
    clearTimeout(settling);
    const next = written();
    if (!entry) return navigate("search", next, { replace: true });
    quiet = location.hash;
    navigate("search", next);
    if (location.hash === quiet) quiet = null;
  }
  let quiet = null; // set while our own entry causes a change of the hash

  function settle() {
    clearTimeout(settling);
    settling = setTimeout(() => { record(); lift(); }, SETTLED_MS);
  }

  function submit() {
    state.query = box.value.trim();
    state.doc = null;
    closed();
    ask(true);
  }

  // -------------------------------------------------------------------------------------------------------- answer
  async function ask(entry) {
    asking?.abort();
    asking = new AbortController();
    const { signal } = asking;
    if (entry) record(true);
    title(state.query || "Search");
    if (!state.query) return empty();
    const slow = setTimeout(skeleton, data ? 2 * SLOW_MS : SLOW_MS);
    try {
      const filter = condition(metadata, state.facets, state.filter);
      const answer = await api.get("/api/columns", { query: state.query, depth: 100, filter }, { signal });
      data = answer;
      bar.refuse("");
      received();
    } catch (error) {
      if (error.name === "AbortError") return;
      refused(error);
    } finally {
      clearTimeout(slow);
    }
  }

  function received() {
    const { documents } = data;
    tints = new Map();
    texts = new Map(documents.filter(({ title }) => title).map((each) => [each.docid, each]));
    some = fusable ? candidates(documents.map(({ docid }) => docid),
      info.sides.map((_, list) => documents.map(({ scores }) => scores[list])),
      info.sides.map((_, list) => documents.map(({ ranks }) => ranks[list]))) : null;
    render();
    const hits = data.columns[main]?.length ?? 0;
    announce(hits ? `${count(documents.length, "candidate")} for ${state.query}` : `No hits for ${state.query}`);
    if (state.doc) explain(state.doc);
    else closed();
  }

  function refused(error) {
    data = null;
    if (error.code === "unreachable") return results.replaceChildren(); // the banner of the page says it
    const inFilter = error.code?.startsWith("filter") || ["no-such-column", "other-type"].includes(error.code);
    if (inFilter && (state.filter || state.facets.size)) bar.refuse(error.message.replace(/^--filter:? ?/, ""));
    results.replaceChildren(inFilter ? h("p", { class: "empty" }, "The filter was not understood.")
      : h("div", { class: "problem" }, h("p", {}, error.message)));
    announce(error.message);
  }

  function empty() {
    data = null;
    const judged = (judgedQueries?.queries ?? []).slice(0, 6).map(({ text }) => text);
    const examples = judged.length ? judged : info.examples;
    results.replaceChildren(h("div", { class: "empty" },
      examples.length ? h("h2", { class: "label" }, judged.length ? "Judged queries" : "Try") : null,
      h("ul", { class: "examples" }, examples.map((text) => h("li", {},
        h("button", { type: "button", class: "plain", onclick: () => { box.value = text; submit(); } }, text)))),
      h("p", {}, `${info.systems.join(", ")} answer next to each other.`)));
  }

  function skeleton() {
    const bone = (width) => h("div", { class: "skeleton", style: { width, height: ".8rem", "margin-top": ".6rem" } });
    results.replaceChildren(h("div", { class: "columns", "aria-hidden": "true" }, info.systems.map((name, place) =>
      h("div", { class: "column" }, h("h2", { class: "head" }, swatch(place), name),
        [...Array(6)].map(() => h("div", { class: "bones" }, bone("70%"), bone("100%"), bone("45%")))))));
    announce("Searching");
  }

  // ------------------------------------------------------------------------------------------------------- columns
  const fusion = () => stored?.fusion(state);

  // Ranked documents of a column.
  function ranked(system) {
    const now = fusion();
    if (system !== main || !fusable || now.stored || !now.known) return data.columns[system] ?? [];
    return fuse(some, now.recipe, now.weights, MORE);
  }

  function render() {
    const total = Math.max(...info.systems.map((system) => data.columns[system]?.length ?? 0));
    if (!total) return nothing();
    columns.replaceChildren(links.layer, ...info.systems.map(column));
    columns.style.setProperty("--columns", info.systems.length);
    const more = total > SHOWN && h("button", { type: "button", class: "more", onclick: () => {
      state.n = state.n === SHOWN ? MORE : SHOWN;
      render();
      record();
    } }, state.n === SHOWN ? `Show ${MORE} hits` : `Show ${SHOWN} hits`);
    const took = data.took?.total ?? data.took;
    results.replaceChildren(picker, columns, h("p", { class: "foot" }, more || null,
      h("span", { class: "note" }, notes().join(" ")),
      Number.isFinite(took) ? h("span", { class: "note" }, `${Math.round(took)} ms`) : null));
    pick();
    marks();
    tint();
    links.draw();
    lift();
  }

  function nothing() {
    const filtered = state.filter || [...state.facets.values()].some(({ is, from, to }) => is.length || from || to);
    results.replaceChildren(h("div", { class: "empty" },
      h("p", {}, filtered ? "No document passes the filter and matches the query." : "No hits."),
      filtered ? h("button", { type: "button", onclick: () => {
        state.filter = "";
        state.facets = new Map();
        bar.update();
        ask(true);
      } }, "Remove the filters") : null));
  }

  function notes() {
    const now = fusion();
    if (!now || now.stored) return data.fusion?.formula ? [`${main} = ${data.fusion.formula}`] : [];
    return [`${main} is fused here from the first 100 hits of each side${info.reranker ? ", without the reranker" : ""}.`];
  }

  function column(system, place) {
    return h("section", { class: "column", "data-system": system, "aria-label": system },
      h("h2", { class: "head" }, swatch(place), system, system === main && fusable ? h("span", { class: "detail" }, detail()) : null),
      h("div", { class: "slot" }, hits(system)));
  }

  function detail() {
    const now = fusion();
    return now.stored ? (info.reranker ? `stored, reranked by ${info.reranker}` : "stored") : METHODS[now.name]?.label ?? now.name;
  }

  function hits(system) {
    const rows = ranked(system).slice(0, state.n);
    if (!rows.length) return h("p", { class: "empty" }, "No hits.");
    const before = system === main && fusable && !fusion().stored
      ? new Map((data.columns[main] ?? []).map(({ docid, rank }) => [docid, rank])) : null;
    const component = new Map(data.documents.map((each) => [each.docid, each]));
    return list(rows.map(({ docid, rank, score: value, probability }) => {
      const { title, snippet } = texts.get(docid) ?? {};
      const own = component.get(docid);
      const below = info.sides.includes(system)
        ? [h("span", {}, score(value))]
        : (own?.scores ?? []).map((each, list) => h("span", { class: "component", title: `${info.sides[list]}: rank and score` },
          swatch(list), own.ranks[list] === null ? "–" : `#${own.ranks[list]}`, " ", score(each)));
      if (probability !== undefined && probability !== null) below.push(h("span", {}, `p ${probability.toFixed(2)}`));
      if (before) below.push(movement(before.get(docid), rank));
      return hit({ rank, docid, title, snippet: snippet ?? (title ? [] : null), below, open: (event) => opened(docid, system, event) });
    }), `Hits of ${system}`);
  }

  function movement(before, now) {
    if (before === undefined) return h("span", { class: "move good" }, "▲ new");
    if (before === now) return null;
    return h("span", { class: before > now ? "move good" : "move bad", title: `stored rank ${before}` },
      `${before > now ? "▲" : "▼"} ${Math.abs(before - now)}`);
  }

  // The hybrid column after a change of the fusion; hits move to their new places.
  function fused() {
    if (!data?.columns[main]?.length) return;
    const slot = columns.querySelector(`.column[data-system="${CSS.escape(main)}"]`);
    const focus = slot.contains(document.activeElement) ? document.activeElement.closest(".hit")?.dataset.docid : null;
    const before = new Map([...slot.querySelectorAll(".hit")].map((each) => [each.dataset.docid, each.getBoundingClientRect().top]));
    slot.querySelector(".detail").textContent = detail();
    slot.querySelector(".slot").replaceChildren(hits(main));
    results.querySelector(".foot .note").textContent = notes().join(" ");
    tint();
    if (focus) slot.querySelector(`.hit[data-docid="${CSS.escape(focus)}"] .open`)?.focus();
    if (!still.matches) {
      for (const each of slot.querySelectorAll(".hit")) {
        const way = (before.get(each.dataset.docid) ?? NaN) - each.getBoundingClientRect().top;
        if (way) each.animate([{ transform: `translateY(${way}px)` }, { transform: "none" }], { duration: 160, easing: "ease-out" });
        else if (Number.isNaN(way)) each.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 160 });
      }
    }
    links.draw();
    if (state.doc) detailed();
  }

  // Documents of several columns get one color each, which they keep while the weight moves.
  function tint() {
    const hits = [...columns.querySelectorAll(".hit")], seen = new Map();
    for (const { dataset } of hits) seen.set(dataset.docid, (seen.get(dataset.docid) ?? 0) + 1);
    for (const { docid } of [...(data.columns[main] ?? []), ...hits.map(({ dataset }) => dataset)]) {
      if (seen.get(docid) > 1 && !tints.has(docid)) tints.set(docid, colour(tints.size));
    }
    for (const each of hits) {
      const shared = seen.get(each.dataset.docid) > 1;
      each.style.setProperty("--tint", shared ? tints.get(each.dataset.docid) : "transparent");
      each.querySelector(".rank").classList.toggle("shared", shared);
    }
  }

  // Title and snippet of documents that a new weight brings into view.
  async function lift() {
    if (!data) return;
    const docids = ranked(main).slice(0, state.n).map(({ docid }) => docid).filter((docid) => !texts.has(docid));
    if (!docids.length) return;
    const asked = data;
    const { documents } = await api.post("/api/snippets", { query: state.query, docids }).catch(() => ({ documents: [] }));
    if (asked !== data || !documents.length) return;
    for (const each of documents) texts.set(each.docid, each);
    fused();
  }

  function pick() {
    for (const each of columns.querySelectorAll(".column")) each.classList.toggle("picked", each.dataset.system === state.column);
    for (const each of picker.children) each.setAttribute("aria-pressed", String(each.dataset.system === state.column));
    links.draw();
  }

  function marks() {
    root.classList.toggle("unmarked", !state.highlight);
  }

  // --------------------------------------------------------------------------------------------------- explanation
  function opened(docid, system, event) {
    opener = { docid, system };
    Object.assign(state, { doc: docid, from: system });
    record(true);
    explain(docid);
    event?.stopPropagation();
  }

  async function explain(docid) {
    explaining = null;
    const slow = setTimeout(() => side.wait(), SLOW_MS);
    try {
      const answer = await api.get("/api/explain", { query: state.query, docid, filter: condition(metadata, state.facets, state.filter) });
      if (state.doc !== docid) return;
      explaining = answer;
      root.classList.add("explaining");
      detailed();
    } catch (error) {
      if (state.doc === docid) side.show([h("div", { class: "problem", role: "alert" }, h("p", {}, error.message))]);
    } finally {
      clearTimeout(slow);
    }
  }

  function detailed() {
    if (!explaining) return;
    side.show(explained(explaining, { info, ...shownFusion(explaining) }));
    links.choose(state.doc);
  }

  // The parts of the fused score under the shown fusion; those of the server for other documents.
  function shownFusion({ docid, rank, score: whole, sides }) {
    const now = fusion();
    if (!now) return { parts: null, fused: null };
    const scale = now.name === "weighted-sum" ? stored.scales : info.sides.map(() => 1);
    const rule = METHODS[now.name]?.rule;
    const known = some?.docids.includes(docid) && now.known;
    const table = known ? valued(some, now.recipe) : null;
    const row = known ? table.docids.indexOf(docid) : -1;
    const weights = rule === "mean" ? now.shares : now.weights;
    const parts = sides.map((each, list) => {
      const value = known ? table.values[list][row] : each.value ?? NaN;
      const missing = value === null || Number.isNaN(value);
      return { value: missing ? null : value / scale[list], weight: weights[list] * scale[list],
        contribution: missing ? 0 : weights[list] * value };
    });
    const scores = known ? fusedScores(table, now.name, now.weights) : null;
    const place = known && !now.stored ? 1 + scores.filter((each) => each > scores[row]).length : rank;
    const unit = now.name === "rrf" ? `: 1 / (${now.recipe.k} + rank)` : scale.some((each) => each !== 1)
      ? ", in deviations of each side's scores" : "";
    const label = (METHODS[now.name]?.label ?? now.name) + unit + (now.stored ? "" : `; stored: rank ${rank ?? "–"}`);
    return { parts, fused: { rank: place, score: known ? scores[row] : whole, rule, label } };
  }

  function closed() {
    state.doc = null;
    explaining = null;
    root.classList.remove("explaining");
    if (!side.element.open) return;
    side.shut();
    links.choose(null);
    if (opener) find(opener)?.focus();
  }

  const find = ({ docid, system }) => columns.querySelector(
    `.column[data-system="${CSS.escape(system)}"] .hit[data-docid="${CSS.escape(docid)}"] .open`);

  // ---------------------------------------------------------------------------------------------- pointer and keys
  const hitOf = (event) => event.target.closest?.(".hit")?.dataset.docid ?? null;
  columns.addEventListener("pointerover", (event) => links.choose(hitOf(event) ?? state.doc));
  columns.addEventListener("pointerleave", () => links.choose(state.doc));
  columns.addEventListener("focusin", (event) => links.choose(hitOf(event)));
  columns.addEventListener("focusout", () => links.choose(state.doc));
  columns.addEventListener("click", (event) => {
    if (getSelection().isCollapsed) event.target.closest(".hit")?.querySelector(".open")?.click();
  });
  columns.addEventListener("keydown", (event) => {
    const here = event.target.closest(".hit");
    if (!here || !["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"].includes(event.key) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    next(here, event.key)?.querySelector(".open").focus();
  });

  function next(here, key) {
    if (key === "ArrowUp") return here.previousElementSibling;
    if (key === "ArrowDown") return here.nextElementSibling;
    const column = here.closest(".column");
    const other = key === "ArrowLeft" ? column.previousElementSibling : column.nextElementSibling;
    const hits = [...(other?.querySelectorAll(".hit") ?? [])];
    return hits.find((each) => each.dataset.docid === here.dataset.docid)
      ?? hits[[...here.parentElement.children].indexOf(here)] ?? hits.at(-1);
  }

  function typed(event) {
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    const writing = event.target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select");
    if (event.key === "/" && !writing) {
      event.preventDefault();
      box.focus();
      box.select();
    } else if (event.key === "Escape" && state.doc && !writing) {
      closed();
      record(true);
    }
  }
  addEventListener("keydown", typed);

  // --------------------------------------------------------------------------------------------------------- start
  async function judge() {
    if (!info.judged) return;
    if (judgedQueries) controls?.judged(new Judged(judgedQueries));
    else controls?.waiting();
    try {
      judgedQueries = await api.get("/api/judged");
      if (judgedQueries.queries.length) controls?.judged(new Judged(judgedQueries));
      if (!state.query) empty();
    } catch {
      controls?.unmeasured();
    }
  }

  read(params);
  bar.update();
  controls?.update();
  marks();
  ask(false).then(judge);
  if (!state.query) box.focus();

  function leave() {
    asking?.abort();
    clearTimeout(settling);
    removeEventListener("keydown", typed);
    links.leave();
    controls?.leave();
  }

  // Back and forward: only the parts that differ are asked for again.
  leave.update = (from) => {
    if (quiet !== null) { quiet = null; return; }
    const before = { ...state, condition: condition(metadata, state.facets, state.filter) };
    read(from);
    bar.update();
    controls?.update();
    marks();
    const same = before.query === state.query && before.condition === condition(metadata, state.facets, state.filter);
    if (!same || !data) { ask(false); return; }
    if (before.n !== state.n) render();
    else { fused(); pick(); }
    if (!state.doc) closed();
    else if (state.doc !== before.doc) explain(state.doc);
  };
  return leave;
}
