// The explanation of one hit: ranks and scores of each side, the fused sum, the terms, the text.
import { colour, h, marked, number, score, swatch } from "./dom.js";

const NARROW = matchMedia("(max-width: 44rem)");
const SUMS = { sum: true, mean: true, times: true };

// options: { api, close() } -> { element, show(explanation, context), wait(), leave() }
export function panel({ close }) {
  const body = h("div", { class: "body", tabindex: "0", role: "group", "aria-label": "Explanation" });
  const shut = h("button", { type: "button", class: "close", "aria-label": "Close the explanation", onclick: () => close() }, "×");
  const element = h("dialog", { class: "explanation", "aria-label": "Explanation of a hit" }, shut, body);
  element.addEventListener("cancel", (event) => { event.preventDefault(); close(); });
  element.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.preventDefault(); close(); } });

  function open() {
    if (element.open) return;
    if (NARROW.matches) element.showModal();
    else element.show();
    shut.focus();
  }

  return {
    element,
    wait() {
      body.replaceChildren(...[70, 100, 100, 45].map((width) =>
        h("div", { class: "skeleton", style: { width: `${width}%`, height: "1.2rem", margin: ".7rem 0" } })));
      open();
    },
    show(content) {
      body.replaceChildren(...content);
      body.scrollTop = 0;
      open();
    },
    shut() { if (element.open) element.close(); },
  };
}

// explanation: the answer of /api/explain; parts: [{ value, weight, contribution }] by side, or null;
// fused: { rank, score, rule, label } of the shown fusion, or null for one index.
export function explained(explanation, { info, parts, fused }) {
  const { doc, docid, sides, metadata } = explanation;
  return [
    h("h2", {}, marked(doc.title?.length ? doc.title : [[docid, false]])),
    h("p", { class: "note" }, docid),
    ranks(sides, parts, fused, info),
    fused && parts && SUMS[fused.rule] ? sum(sides, parts, fused, info) : null,
    ...sides.filter(({ terms }) => terms?.length).map((side) => terms(side, info)),
    facts(metadata),
    doc.text?.length ? h("section", {}, h("h3", {}, "Text"), h("p", { class: "full" }, marked(doc.text))) : null,
  ].filter(Boolean);
}

const at = (rank) => (rank === null || rank === undefined ? "–" : String(rank));

function ranks(sides, parts, fused, info) {
  const row = (name, place, cells) => h("tr", {},
    h("th", { scope: "row" }, swatch(place), name), cells.map((cell) => h("td", {}, cell)));
  const detail = fused && parts;
  const head = ["", "rank", "score", ...(detail ? ["normalized", "weight"] : [])];
  return h("table", {}, h("thead", {}, h("tr", {}, head.map((name) => name ? h("th", { scope: "col" }, name) : h("td", {})))),
    h("tbody", {},
      sides.map((side, place) => row(side.name, place, [at(side.rank), score(side.score),
        ...(detail ? [score(parts[place].value), number(parts[place].weight, 2)] : [])])),
      fused ? row(info.main ?? "hybrid", sides.length, [at(fused.rank), score(fused.score), ...(detail ? ["", ""] : [])]) : null));
}

// A bar whose parts are the contributions; parts below zero go to the left of the axis.
function sum(sides, parts, { rule, label, score: whole }, info) {
  const values = parts.map(({ contribution }) => contribution ?? 0);
  const positive = values.filter((value) => value > 0).reduce((a, b) => a + b, 0);
  const negative = -values.filter((value) => value < 0).reduce((a, b) => a + b, 0);
  const extent = positive + negative || 1;
  const bar = (value, place) => value ? h("i", { style: { width: `${(100 * Math.abs(value)) / extent}%`, background: colour(place) } }) : null;
  const below = values.map((value, place) => (value < 0 ? bar(value, place) : null));
  const above = values.map((value, place) => (value > 0 ? bar(value, place) : null));
  const terms = parts.flatMap(({ value, weight }, place) => [
    place ? " + " : "", h("b", {}, `${number(weight, 2)}`), " × ", score(value), " ", h("span", { class: "side" }, swatch(place), info.sides[place]),
  ]);
  return h("section", {},
    h("h3", {}, "Fused score"),
    h("div", { class: "stack", role: "img", "aria-label": values.map((value, place) => `${sides[place].name} ${score(value)}`).join(", ") },
      below, negative ? h("i", { class: "zero" }) : null, above),
    h("p", { class: "formula" }, rule === "times" ? ["(", terms, `) × lists`] : terms, " = ", h("b", {}, score(whole))),
    h("p", { class: "note" }, label));
}

function terms(side, info) {
  const weight = (term) => term.score ?? term.weight;
  const sorted = [...side.terms].sort((a, b) => weight(b) - weight(a));
  const largest = Math.max(...sorted.map(weight));
  const place = info.sides.indexOf(side.name);
  return h("section", {}, h("h3", {}, `Terms of ${side.name}`),
    h("ul", { class: "terms" }, sorted.map((term) => h("li", {},
      h("span", { class: "term" }, term.term),
      h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { width: `${(100 * weight(term)) / largest}%`, background: colour(place) } })),
      h("span", { class: "number" }, number(weight(term), 2))))));
}

function facts(metadata) {
  const entries = Object.entries(metadata ?? {});
  return entries.length ? h("section", {}, h("h3", {}, "Metadata"),
    h("dl", {}, entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]))) : null;
}
