// The controls of the fusion: method, weight, and the measure of the judged queries under them.
import { colour, h, number, s, signed, swatch } from "./dom.js";
import { METHODS } from "./fusion.js";

const WIDE = 300, HIGH = 46; // of the curve, in units of its viewBox
const OFFERED = ["weighted-sum", "minmax", "zscore", "rrf", "dbsf", "combmnz", "borda", "isr"];
const STEPS = 50;
const SLICE_MS = 12; // of work between two frames

// What the server stores: the share of each side, and the recipe.
export class Stored {
  constructor(info) {
    const { method, weights, scales, missing, normalize, rrf_k } = info.fusion;
    Object.assign(this, { method, weights, missing, normalize, k: rrf_k ?? 60, sides: info.sides });
    this.scales = scales ?? info.sides.map(() => 1);
    const sizes = method === "weighted-sum" ? weights.map((weight, side) => weight * this.scales[side]) : weights;
    this.shares = shared(info.fusion.shares ?? sizes);
  }

  // The fusion for a state of the page: { w, method, k }, in which null is the stored value.
  fusion({ w, method, k }) {
    const name = method ?? this.method;
    const own = name === this.method;
    const shares = w ?? this.shares;
    const stored = own && w === null && (name !== "rrf" || (k ?? this.k) === this.k);
    const weights = stored ? this.weights
      : name === "weighted-sum" ? shares.map((share, side) => share / this.scales[side]) : shares;
    const recipe = own ? { method: name, missing: this.missing, normalize: this.normalize } : { method: name };
    if (name === "rrf") recipe.k = k ?? this.k;
    return { name, stored, shares, weights, recipe, known: name in METHODS };
  }
}

const percent = (share) => `${Math.round(100 * share)}%`;
const shared = (sizes) => {
  const whole = sizes.reduce((a, b) => a + b);
  return sizes.map((size) => size / whole);
};

// options: { info, stored, state, change() } -> { element, update(), judged(Judged), waiting(), unmeasured(), leave() }
export function strip({ info, stored, state, change }) {
  const two = info.sides.length === 2;
  const hues = two ? { "--from": colour(0), "--to": colour(1) } : {}; // between two sides, no end is the filled one
  const offered = [...new Set([stored.method, ...OFFERED.filter((name) => name !== "weighted-sum" || info.exact !== false)])];
  const method = h("select", { id: "method", onchange: () => set({ method: named(method.value) }) },
    offered.map((name) => h("option", { value: name },
      (METHODS[name]?.label ?? name) + (name === stored.method ? " · stored" : ""))));
  const k = h("input", { id: "rrf-k", class: "field", type: "number", min: 1, max: 1000, step: 1,
    onchange: () => set({ k: k.valueAsNumber > 0 && k.valueAsNumber !== stored.k ? k.valueAsNumber : null }) });
  const constant = h("label", { class: "constant", for: "rrf-k" }, h("span", {}, "k"), k);
  const sliders = (two ? [1] : info.sides.map((_, side) => side)).map(slider);
  const reset = h("button", { type: "button", class: "plain", onclick: () => set({ w: null, method: null, k: null }) },
    "Back to stored");
  const curve = h("div", { class: "curve" });
  const value = h("div", { class: "measure" });
  const element = h("section", { class: "strip card", "aria-label": "Fusion" },
    h("div", { class: "method" }, h("label", { for: "method" }, "Fusion"), method, constant),
    h("div", { class: "weights" }, curve, sliders.map(({ element }) => element)),
    h("div", { class: "result" }, value, reset));
  let judged = null, points = null, task = 0;

  const named = (name) => (name === stored.method ? null : name);

  function set(changes) {
    Object.assign(state, changes);
    update();
    change();
  }

  function slider(side) {
    const id = `weight-${side}`;
    const input = h("input", { id, class: two ? "between" : "", style: hues, type: "range", min: 0, max: 1, step: 0.01, "aria-describedby": `${id}-note`,
      oninput: () => set({ w: moved(side, input.valueAsNumber) }) });
    const output = h("output", { for: id });
    const mark = h("span", { class: "stored", "aria-hidden": "true", style: { "--at": stored.shares[side] } });
    const ends = two
      ? [h("span", {}, swatch(0), info.sides[0]), h("span", { class: "last" }, info.sides[1], swatch(1))]
      : [h("span", {}, swatch(side), info.sides[side])];
    const element = h("div", { class: "slider" },
      h("label", { for: id, class: "unseen" }, `Weight of ${info.sides[side]}`),
      h("div", { class: "track" }, mark, input),
      h("div", { class: "ends" }, ends[0], output, ends[1]),
      h("span", { id: `${id}-note`, class: "unseen" }, `Stored: ${percent(stored.shares[side])}`));
    return { element, input, output, side };
  }

  function moved(side, share) {
    const before = stored.fusion(state).shares;
    const rest = 1 - before[side];
    const shares = before.map((other, at) =>
      at === side ? share : rest > 0 ? (other / rest) * (1 - share) : (1 - share) / (before.length - 1));
    const same = state.method === null && shares.every((each, at) => Math.abs(each - stored.shares[at]) < 0.004);
    return same ? null : shares.map((each) => Number(each.toFixed(4)));
  }

  function update() {
    const fusion = stored.fusion(state);
    method.value = fusion.name;
    constant.hidden = fusion.name !== "rrf";
    k.value = state.k ?? stored.k;
    for (const { input, output, side } of sliders) {
      input.disabled = !fusion.known;
      input.value = fusion.shares[side];
      input.setAttribute("aria-valuetext", percent(fusion.shares[side]));
      output.value = two ? `${percent(fusion.shares[0])} : ${percent(fusion.shares[1])}` : percent(fusion.shares[side]);
    }
    reset.disabled = fusion.stored;
    measure(fusion);
  }

  // ------------------------------------------------------------------------------------------------ judged queries

  let storedValue = null, drawn = "";

  function measure(fusion) {
    if (!judged || !fusion.known) return;
    const now = judged.mean(fusion.recipe, fusion.weights);
    const change = fusion.stored || storedValue === null ? null : now - storedValue;
    value.replaceChildren(
      h("span", { class: "name" }, `${judged.measure} of ${judged.queries.length} judged queries`),
      h("span", { class: "number" }, number(now)),
      change === null ? (fusion.stored ? h("span", { class: "quiet" }, "stored") : null)
        : h("span", { class: change > 0 ? "good" : change < 0 ? "bad" : "quiet" }, `${signed(change)} `,
          h("span", { class: "quiet" }, `from ${number(storedValue)}`)));
    if (!two) return;
    const key = JSON.stringify(fusion.recipe);
    if (key !== drawn) { drawn = key; points = null; trace(fusion); }
    draw(fusion, now);
  }

  function trace(fusion) {
    const todo = [...Array(STEPS + 1).keys()].map((step) => step / STEPS);
    const found = [], own = ++task;
    const work = () => {
      if (own !== task) return;
      const end = performance.now() + SLICE_MS;
      while (todo.length && performance.now() < end) {
        const share = todo.shift();
        const { recipe, weights } = stored.fusion({ ...state, w: [1 - share, share] });
        found.push([share, judged.mean(recipe, weights)]);
      }
      if (todo.length) return setTimeout(work);
      points = found;
      const now = stored.fusion(state);
      draw(now, judged.mean(now.recipe, now.weights));
    };
    setTimeout(work);
  }

  function draw({ shares }, now) {
    if (!points) return curve.replaceChildren(h("div", { class: "skeleton" }));
    const values = [...points.map(([, value]) => value), now];
    const low = Math.min(...values), high = Math.max(...values);
    const y = (value) => HIGH - 5 - (high > low ? (value - low) / (high - low) : 0.5) * (HIGH - 10);
    const path = points.map(([share, value]) => `${(share * WIDE).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    const best = points.reduce((a, b) => (b[1] > a[1] ? b : a));
    curve.replaceChildren(
      s("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img",
        "aria-label": `${judged.measure} by weight of ${info.sides[1]}: from ${number(points[0][1])} at 0 to ` +
          `${number(points.at(-1)[1])} at 1, at most ${number(best[1])} at ${number(best[0], 2)}` },
      s("polyline", { class: "area", points: `0,${HIGH} ${path} ${WIDE},${HIGH}` }),
      s("polyline", { class: "line", points: path })),
      h("i", { class: "dot", style: { left: `${100 * shares[1]}%`, top: `${(100 * y(now)) / HIGH}%` } }));
  }

  update();
  return {
    element,
    update,
    judged(all) {
      element.classList.add("measured");
      judged = all;
      drawn = "";
      const fusion = stored.fusion({ w: null, method: null, k: null });
      storedValue = fusion.known ? judged.mean(fusion.recipe, fusion.weights) : null;
      update();
    },
    waiting() {
      element.classList.add("measured");
      value.replaceChildren(h("span", { class: "name" }, "Measuring the judged queries…"));
      if (two) curve.replaceChildren(h("div", { class: "skeleton" }));
    },
    unmeasured() {
      element.classList.remove("measured");
      value.replaceChildren();
      curve.replaceChildren();
    },
    leave() { task++; },
  };
}
