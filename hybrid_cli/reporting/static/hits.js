// Hits of a ranked list, as the search and the comparison show them.
import { h, marked } from "./dom.js";

// One hit. `parts` are [[text, is a query term], ...]; `below` are small texts; `open` makes the title a button.
export function hit({ rank, docid, title, snippet, below = [], badge, tint, open }) {
  const heading = marked(title?.length ? title : [[docid, false]]);
  return h("li", { class: "hit", "data-docid": docid, style: tint ? { "--tint": tint } : {} },
    h("span", { class: tint ? "rank shared" : "rank" }, String(rank)),
    h("div", { class: "words" },
      h("p", { class: "title" }, badge, open
        ? h("button", { type: "button", class: "open", "aria-haspopup": "dialog", onclick: open }, heading) : heading),
      snippet?.length ? h("p", { class: "text" }, marked(snippet)) : null,
      h("p", { class: "below" }, h("span", { class: "docid" }, docid), below)));
}

// The grade of a judged document.
export function grade(value, level = 1) {
  if (value === undefined || value === null) return null;
  const relevant = value >= level;
  return h("span", { class: relevant ? "grade relevant" : "grade" }, relevant ? `grade ${value}` : `judged ${value}`);
}

export function list(hits, label) {
  return h("ol", { class: "hits", "aria-label": label }, hits);
}
