// Lines between the hits of one document in neighboring columns, in the gaps between the columns.
import { s } from "./dom.js";

export function lines(columns) {
  const layer = s("svg", { class: "lines", "aria-hidden": "true" });
  let chosen = null, drawing = 0;

  function draw() {
    cancelAnimationFrame(drawing);
    drawing = requestAnimationFrame(() => {
      const lists = [...columns.querySelectorAll(".column")].filter((column) => column.offsetParent !== null);
      const frame = columns.getBoundingClientRect();
      layer.replaceChildren();
      if (lists.length < 2) return;
      for (let left = 0; left + 1 < lists.length; left++) {
        const right = new Map([...lists[left + 1].querySelectorAll(".hit")].map((hit) => [hit.dataset.docid, hit]));
        for (const hit of lists[left].querySelectorAll(".hit")) {
          const other = right.get(hit.dataset.docid);
          if (other) layer.append(line(hit, other, frame));
        }
      }
      mark();
    });
  }

  function line(hit, other, frame) {
    const from = hit.getBoundingClientRect(), to = other.querySelector(".rank").getBoundingClientRect();
    const rank = hit.querySelector(".rank").getBoundingClientRect();
    const x1 = from.right - frame.left + 2, x2 = to.left - frame.left - 3;
    const y1 = rank.top + rank.height / 2 - frame.top, y2 = to.top + to.height / 2 - frame.top;
    const middle = (x1 + x2) / 2;
    const path = s("path", { d: `M${x1},${y1}C${middle},${y1} ${middle},${y2} ${x2},${y2}`, "data-docid": hit.dataset.docid });
    path.style.setProperty("--tint", hit.style.getPropertyValue("--tint"));
    return path;
  }

  function mark() {
    for (const element of columns.querySelectorAll("[data-docid]")) {
      element.classList.toggle("chosen", element.dataset.docid === chosen);
    }
    columns.classList.toggle("choosing", chosen !== null);
  }

  const resized = new ResizeObserver(draw);
  resized.observe(columns);
  return {
    layer,
    draw,
    choose(docid) { if (docid !== chosen) { chosen = docid; mark(); } },
    leave() { resized.disconnect(); cancelAnimationFrame(drawing); },
  };
}
