// Comparison of two systems on all judged queries: differences, values, and both lists of a query.
import { colour, count, h, number, s, signed, swatch } from "./dom.js";
import { grade, hit, list } from "./hits.js";

const ROWS = 100; // of the list, before "show all"
const COLUMNS = 400; // of the heat map; more queries share a column
const WIDE = 1000, HIGH = 150;
const EQUAL = 1e-9;
const OTHERS = 3; // relevant documents below the hits
const OUTCOMES = { all: () => true, won: (row) => row.change > EQUAL, lost: (row) => row.change < -EQUAL,
  equal: (row) => Math.abs(row.change) <= EQUAL };

// data: { measure, systems, level, queries: [{ qid, text, values: [by system] or null, groups: [labels],
//   grades: { docid: grade }, ranks: { docid of a relevant document: [rank or null by system] } }],
//   groups: [{ name, labels }], depth of the searched lists, overlaps: { "0,1": [by query] } where there are no values }
// state: { a, b (places of systems), find, outcome, groups: [labels], point, q (qid) }, changed by the view
// lists(query): a promise of { lists: [[{ docid, rank }] by system], documents: { docid: { title, snippet } } }, or of a text
// link(query): an address that searches the query, if there is one
// changed(): is called after each change of the state
export function compare(root, { data, state, lists, link, changed = () => {}, announce = () => {} }) {
  const judged = !data.overlaps;
  const wide = matchMedia("(min-width: 64rem)");
  const charts = h("div", { class: "charts" }), listed = h("ol", { class: "queries" });
  const summary = h("p", { class: "summary" });
  const more = h("button", { type: "button", class: "more", onclick: () => { whole = true; draw(); } });
  const shown = h("p", { class: "note", role: "status" });
  const detail = h("div", { class: "detail", role: "region", "aria-label": "Lists of a query", tabindex: "0" });
  let whole = false, rows = [], asked = null;

  const select = (id, label, options, value, onchange) => h("label", { class: "choice", for: id }, h("span", {}, label),
    h("select", { id, onchange: (event) => onchange(event.target.value) },
      options.map(([key, name]) => h("option", { value: key, selected: String(key) === String(value) }, name))));
  const named = data.systems.map((name, place) => [place, name]);
  const set = (changes) => { Object.assign(state, changes); whole = false; draw(); changed(); };

  const find = h("input", { id: "find", class: "field", type: "search", autocomplete: "off", spellcheck: "false",
    placeholder: "words of a query, or an id", oninput: () => set({ find: find.value }) });
  const outcomes = Object.keys(OUTCOMES).map((outcome) => h("button", { type: "button", "data-outcome": outcome,
    onclick: () => set({ outcome }) }));
  const chosen = h("div", { class: "pair" });
  const point = h("button", { type: "button", class: "chip", onclick: () => { set({ point: null }); find.focus(); } });
  root.append(
    h("div", { class: "toolbar" }, chosen, summary), charts,
    h("div", { class: "narrow" },
      h("label", { class: "choice grow", for: "find" }, h("span", {}, "Find"), find),
      judged ? h("div", { class: "outcomes", role: "group", "aria-label": "Outcome" }, outcomes) : null,
      data.groups.map(({ name, labels }, at) => select(`group-${at}`, name, [["", "all"], ...labels.map((label) => [label, label])],
        state.groups[at] ?? "", (label) => set({ groups: data.groups.map((_, each) => each === at ? label : state.groups[each] ?? "") }))),
      point),
    shown, h("div", { class: "table" }, h("div", { class: "listing" }, listed, more), detail));

  // ---------------------------------------------------------------------------------------------------------- rows
  function overlap(at) {
    const key = [state.a, state.b].sort((x, y) => x - y).join(",");
    return state.a === state.b ? 1 : data.overlaps[key][at];
  }

  function table() {
    const all = data.queries.map((query, at) => judged
      ? { ...query, before: query.values[state.b], after: query.values[state.a], change: query.values[state.a] - query.values[state.b] }
      : { ...query, change: overlap(at) });
    return judged ? all.sort((x, y) => y.change - x.change) : all.sort((x, y) => x.change - y.change);
  }

  function kept(all) {
    const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter((row) => words.every((word) => `${row.text} ${row.qid}`.toLowerCase().includes(word))
      && state.groups.every((label, at) => !label || row.groups[at] === label)
      && (!state.point || key(row) === state.point));
  }

  const key = (row) => `${row.before.toFixed(2)},${row.after.toFixed(2)}`;
  const mean = (values) => values.reduce((a, b) => a + b, 0) / (values.length || 1);

  function draw() {
    const [a, b] = [data.systems[state.a], data.systems[state.b]];
    const all = table(), some = kept(all);
    rows = judged ? some.filter(OUTCOMES[state.outcome]) : some;
    chosen.replaceChildren(select("system-a", "", named, state.a, (place) => set({ a: Number(place), point: null })),
      h("span", { class: "quiet" }, judged ? "against" : "and"),
      select("system-b", "", named, state.b, (place) => set({ b: Number(place), point: null })));
    chosen.querySelector("#system-a").setAttribute("aria-label", "System");
    chosen.querySelector("#system-b").setAttribute("aria-label", "Compared with");
    summary.replaceChildren(...(judged ? words(some, a, b) : ["Mean rank-biased overlap ",
      h("strong", {}, number(mean(some.map(({ change }) => change)))), " (1: equal lists)"]));
    for (const button of outcomes) {
      const outcome = button.dataset.outcome;
      button.textContent = `${outcome} ${some.filter(OUTCOMES[outcome]).length.toLocaleString("en")}`;
      button.setAttribute("aria-pressed", String(outcome === state.outcome));
    }
    point.hidden = !state.point;
    point.replaceChildren(state.point ? `${b} ${state.point.replace(",", `, ${a} `)}` : "", h("span", { "aria-hidden": "true" }, "×"));
    if (find.value !== state.find) find.value = state.find;
    charts.replaceChildren(bars(rows, a, b), ...(judged ? [scatter(some, a, b)] : []));
    shown.textContent = `${count(rows.length, "query", "queries")}, ${judged ? `${a} gains most first` : "lists that differ most first"}`;
    listed.replaceChildren(...(whole ? rows : rows.slice(0, ROWS)).map(line));
    more.hidden = whole || rows.length <= ROWS;
    more.textContent = `Show all ${rows.length.toLocaleString("en")}`;
    mark();
  }

  function words(some, a, b) {
    const change = mean(some.map((row) => row.change));
    return [swatch(state.a), `${a} `, h("strong", {}, number(mean(some.map(({ after }) => after)))), "  ", swatch(state.b), `${b} `,
      h("strong", {}, number(mean(some.map(({ before }) => before)))), "  ",
      h("span", { class: change > 0 ? "good" : change < 0 ? "bad" : "" }, signed(change)), ` mean ${data.measure}`];
  }

  function line(row) {
    const size = Math.min(1, Math.abs(row.change)) * 50;
    const sign = row.change > EQUAL ? "good" : row.change < -EQUAL ? "bad" : "quiet";
    return h("li", { "data-qid": row.qid }, h("button", { type: "button", class: "query", "aria-expanded": "false", onclick: () => open(row.qid) },
      h("span", { class: `change ${judged ? sign : ""}` }, judged ? signed(row.change) : number(row.change)),
      h("span", { class: "delta", "aria-hidden": "true" }, judged
        ? h("i", { class: sign, style: { width: `${size}%`, left: `${row.change < 0 ? 50 - size : 50}%` } })
        : h("i", { style: { width: `${100 * row.change}%`, left: "0" } })),
      h("span", { class: "words" }, row.text || row.qid, " ", h("small", {}, row.text ? row.qid : "")),
      judged ? h("span", { class: "values" }, `${number(row.before, 2)} → ${number(row.after, 2)}`) : null));
  }

  // -------------------------------------------------------------------------------------------------------- charts
  function bars(some, a, b) {
    const caption = h("p", { class: "note caption", "aria-hidden": "true" });
    const rest = judged ? "One bar per query: point to a bar to read it, click to open its lists."
      : "Rank-biased overlap of the two lists, per query.";
    const low = judged ? Math.min(0, ...some.map(({ change }) => change)) : 0;
    const high = Math.max(judged ? 0 : 1, ...some.map(({ change }) => change));
    const y = (value) => 2 + ((high - value) / (high - low || 1)) * (HIGH - 4);
    const step = WIDE / (some.length || 1);
    const area = (of) => some.length ? `M0,${y(0)}` + some.map((row, at) =>
      `L${(at * step).toFixed(2)},${y(of(row.change)).toFixed(2)}H${((at + 1) * step).toFixed(2)}`).join("") + `L${WIDE},${y(0)}Z` : "";
    const cursor = s("rect", { class: "cursor", y: 0, height: HIGH, width: Math.max(2, step), x: -WIDE });
    const drawing = s("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", class: "differences",
      "aria-label": judged ? `Differences of ${count(some.length, "query", "queries")}, from ${number(high)} to ${number(low)}` : "Rank-biased overlap by query" },
    s("path", { class: judged ? "up" : "flat", d: area((value) => Math.max(0, value)) }),
    judged ? s("path", { class: "down", d: area((value) => Math.min(0, value)) }) : null,
    s("line", { class: "axis", x1: 0, x2: WIDE, y1: y(0), y2: y(0) }), cursor);
    const strips = judged && data.systems.length > 2 ? heat(some) : [];
    const figure = h("figure", { class: "card" },
      h("figcaption", {}, h("h3", {}, judged ? `${data.measure}: ${a} minus ${b}` : `Overlap of ${a} and ${b}`)),
      h("div", { class: strips.length ? "heat" : "" }, strips.length ? h("span", {}, "difference") : null, drawing, strips), caption);
    caption.textContent = rest;
    const at = (event) => {
      const box = drawing.getBoundingClientRect();
      return some[Math.min(some.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * some.length)))];
    };
    for (const each of figure.querySelectorAll("svg")) {
      each.addEventListener("pointermove", (event) => {
        const row = at(event);
        if (!row) return;
        cursor.setAttribute("x", some.indexOf(row) * step);
        caption.textContent = `${judged ? signed(row.change) : number(row.change)}  ${row.text || row.qid}`;
      });
      each.addEventListener("pointerleave", () => { cursor.setAttribute("x", -WIDE); caption.textContent = rest; });
      each.addEventListener("click", (event) => { const row = at(event); if (row) open(row.qid); });
    }
    return figure;
  }

  // Values of every system, one column per query in the order of the bars.
  function heat(some) {
    const columns = Math.min(COLUMNS, some.length), width = WIDE / (columns || 1);
    return data.systems.map((name, place) => [
      h("span", {}, swatch(place), name),
      s("svg", { viewBox: `0 0 ${WIDE} 10`, preserveAspectRatio: "none", role: "img", "aria-label": `${data.measure} of ${name} by query` },
        [...Array(columns).keys()].map((column) => {
          const part = some.slice(Math.floor((column * some.length) / columns), Math.floor(((column + 1) * some.length) / columns));
          return s("rect", { x: (column * width).toFixed(2), width: (width + 0.2).toFixed(2), height: 10,
            style: { fill: colour(place), "fill-opacity": (0.06 + 0.94 * mean(part.map(({ values }) => values[place]))).toFixed(3) } });
        })),
    ]);
  }

  function scatter(some, a, b) {
    const places = new Map();
    for (const row of some) places.set(key(row), [...(places.get(key(row)) ?? []), row]);
    const dots = [...places].map(([name, [row, ...others]]) => {
      const radius = Math.min(0.035, 0.009 * Math.sqrt(1 + others.length));
      const class_ = row.change > EQUAL ? "a" : row.change < -EQUAL ? "b" : "equal";
      const text = others.length ? count(others.length + 1, "query", "queries") : row.text || row.qid;
      return s("circle", { class: `${class_}${name === state.point ? " picked" : ""}`, cx: row.before.toFixed(4), cy: (1 - row.after).toFixed(4), r: radius.toFixed(4),
        style: { "--hue": colour(class_ === "a" ? state.a : state.b) },
        onclick: () => (others.length ? set({ point: name === state.point ? null : name }) : open(row.qid)) },
      s("title", {}, `${text}: ${b} ${number(row.before, 2)}, ${a} ${number(row.after, 2)}`));
    });
    const ticks = [0, 0.5, 1];
    return h("figure", { class: "card scatter" },
      h("figcaption", {}, h("h3", {}, `${data.measure} per query`)),
      s("svg", { viewBox: "-0.1 -0.12 1.15 1.25", role: "img", "aria-label": `${data.measure} of ${a} and ${b}, one dot per pair of values` },
        ticks.flatMap((tick) => [
          s("line", { class: "grid", x1: 0, x2: 1, y1: 1 - tick, y2: 1 - tick }), s("line", { class: "grid", x1: tick, x2: tick, y1: 0, y2: 1 }),
          s("text", { x: -0.035, y: 1 - tick + 0.014, "text-anchor": "end" }, String(tick)), s("text", { x: tick, y: 1.06, "text-anchor": "middle" }, String(tick)),
        ]),
        s("line", { class: "diagonal", x1: 0, y1: 1, x2: 1, y2: 0 }),
        s("text", { x: 0.5, y: 1.115, "text-anchor": "middle" }, `${b} →`), s("text", { x: -0.08, y: -0.07 }, `↑ ${a}`), dots));
  }

  // --------------------------------------------------------------------------------------------------------- lists
  function open(qid) {
    const closing = state.q === qid && detail.isConnected && !wide.matches;
    state.q = closing ? null : qid;
    mark();
    changed();
    if (state.q && !wide.matches) detail.scrollIntoView({ block: "nearest" });
  }

  // Show the lists of the chosen query: next to the list of queries, or below its row on a narrow page.
  function mark() {
    const row = data.queries.find(({ qid }) => qid === state.q);
    for (const each of listed.children) {
      const own = each.dataset.qid === state.q;
      each.classList.toggle("chosen", own);
      each.firstChild.setAttribute("aria-expanded", String(own));
    }
    const place = wide.matches ? root.querySelector(".table") : listed.querySelector(".chosen");
    detail.hidden = !row && !wide.matches;
    if (place && detail.parentElement !== place) place.append(detail);
    else if (!place) root.querySelector(".table").append(detail);
    if (row) fill(row);
    else {
      asked = null;
      detail.replaceChildren(h("p", { class: "empty" }, "Select a query to compare the lists."));
    }
  }

  async function fill(row) {
    const own = `${row.qid} ${state.a} ${state.b}`;
    if (asked === own) return;
    asked = own;
    detail.replaceChildren(heading(row), h("div", { class: "skeleton", style: { height: "12rem" } }));
    const answer = await lists(row).catch((error) => error.message);
    if (asked !== own) return;
    if (typeof answer === "string") {
      detail.replaceChildren(heading(row), h("p", { class: "empty" }, answer));
      return;
    }
    const places = [...new Set([state.a, state.b])];
    const [first, ...rest] = places.map((place) => answer.lists[place].map(({ docid }) => docid));
    const shared = first.filter((docid) => rest.some((other) => other.includes(docid)));
    detail.replaceChildren(heading(row), h("div", { class: "lists" }, places.map((place) => ranking(place, answer, row, shared))));
    announce(`Lists of ${row.text || row.qid}`);
  }

  const heading = (row) => h("h3", { class: "asked" }, row.text || row.qid, " ", h("small", {}, row.text ? row.qid : ""),
    link ? [" ", h("a", { href: link(row) }, "Search")] : null);

  // Ranks of the first relevant documents that are not among the hits shown.
  function others({ ranks = {} }, place, hits) {
    const rest = Object.entries(ranks).filter(([docid]) => !hits.some((each) => each.docid === docid)).map(([docid, all]) => [docid, all[place]]);
    rest.sort(([, x], [, y]) => (x ?? Infinity) - (y ?? Infinity));
    const missing = data.depth ? `is not among the first ${data.depth} hits` : "was not retrieved";
    const texts = rest.slice(0, OTHERS).map(([docid, rank]) =>
      `Relevant document ${docid} ${rank === null ? missing : `is at rank ${rank.toLocaleString("en")}`}.`);
    const left = rest.length - OTHERS;
    return left > 0 ? [...texts, `${left.toLocaleString("en")} more relevant documents are not shown.`] : texts;
  }

  function ranking(place, { lists, documents }, row, shared) {
    const name = data.systems[place], hits = lists[place];
    return h("div", { class: "list" },
      h("h4", {}, swatch(place), name, judged ? h("span", { class: "value" }, number(row.values[place])) : null),
      hits.length ? list(hits.map((each) => hit({ ...each, title: documents[each.docid]?.title, snippet: documents[each.docid]?.snippet,
        badge: grade(row.grades?.[each.docid], data.level), tint: shared.includes(each.docid) && colour(shared.indexOf(each.docid)) })), `Hits of ${name}`) : h("p", { class: "note" }, "No hits."),
      others(row, place, hits).map((text) => h("p", { class: "note other" }, text)));
  }

  const pointed = (event) => {
    const docid = event.target.closest?.(".hit")?.dataset.docid;
    for (const each of detail.querySelectorAll(".hit")) each.classList.toggle("chosen", each.dataset.docid === docid);
  };
  detail.addEventListener("pointerover", pointed);
  detail.addEventListener("pointerleave", pointed);

  const arrows = (event) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = step && event.target.closest(".queries > li")?.[step]?.querySelector(".query");
    if (!next || event.target.closest(".detail")) return;
    event.preventDefault();
    next.focus();
  };
  listed.addEventListener("keydown", arrows);
  const moved = () => mark();
  wide.addEventListener("change", moved);
  draw();
  if (state.q && !wide.matches) listed.querySelector(".chosen")?.scrollIntoView();
  const printed = () => { whole = true; draw(); };
  addEventListener("beforeprint", printed);
  return { update() { whole = false; draw(); }, leave() {
    wide.removeEventListener("change", moved);
    removeEventListener("beforeprint", printed);
  } };
}
