// Filters over the metadata of documents: facets and a condition, joined to one condition in the syntax of SQL.
import { h } from "./dom.js";

const SHOWN = 6; // values of a facet before "more"
const DATE = /^\d{4}-\d\d-\d\d/;
const text = (value) => `'${String(value).replaceAll("'", "''")}'`;

// The columns with a facet: dates are texts of ISO 8601, and a column whose values are all different has none.
export function columnsOf(metadata) {
  const different = ({ values }) => values?.length >= 20 && values[0].count === 1;
  return metadata.map((column) => {
    const dates = column.type === "text" && column.values?.length && column.values.every(({ value }) => DATE.test(value));
    return dates ? { ...column, type: "date", timed: column.values.some(({ value }) => value.includes("T")) } : column;
  }).filter((column) => column.type === "date" || !different(column));
}

// The whole condition; null without any filter. facets: Map of name -> { is: [values], from, to }.
export function condition(metadata, facets, own) {
  const parts = metadata.flatMap((column) => clauses(column, facets.get(column.name) ?? {}));
  if (own.trim()) parts.push(parts.length ? `(${own.trim()})` : own.trim());
  return parts.join(" AND ") || null;
}

const literal = ({ type }, value) => (["number", "boolean"].includes(type) ? String(value) : text(value));

function clauses(column, { is = [], from = "", to = "" }) {
  const { name } = column, values = is.map((value) => literal(column, value)), some = [];
  if (column.type === "list") return values.length ? [`(${values.map((value) => `contains(${name}, ${value})`).join(" OR ")})`] : [];
  if (values.length === 1) some.push(`${name} = ${values[0]}`);
  if (values.length > 1) some.push(`${name} IN (${values.join(", ")})`);
  if (from !== "") some.push(`${name} >= ${literal(column, from)}`);
  if (to !== "") some.push(`${name} <= ${literal(column, column.timed ? `${to}T24` : to)}`);
  return some;
}

// Facets in the parameters of the URL: is.NAME=VALUE (repeated), from.NAME, to.NAME.
export function readFacets(params) {
  const facets = new Map();
  for (const [key, value] of params) {
    const [, part, name] = /^(is|from|to)\.(.+)$/.exec(key) ?? [];
    if (!name) continue;
    const facet = facets.get(name) ?? { is: [], from: "", to: "" };
    if (part === "is") facet.is.push(value);
    else facet[part] = value;
    facets.set(name, facet);
  }
  return facets;
}

export function writeFacets(facets) {
  return [...facets].flatMap(([name, { is, from, to }]) => [
    ...is.map((value) => [`is.${name}`, value]),
    ...(from !== "" ? [[`from.${name}`, from]] : []), ...(to !== "" ? [[`to.${name}`, to]] : []),
  ]);
}

// options: { metadata, state: { facets, filter }, change() } -> { button, chips, panel, update(), refuse(message) }
export function filters({ metadata, state, change }) {
  const panel = h("section", { id: "filters", class: "filters card", "aria-label": "Filters", hidden: true });
  const button = h("button", { type: "button", "aria-expanded": "false", "aria-controls": "filters",
    onclick: () => open(panel.hidden) }, "Filters");
  const chips = h("ul", { class: "chips", "aria-label": "Active filters" });
  const field = h("input", { id: "condition", class: "field", type: "text", spellcheck: "false", autocomplete: "off",
    placeholder: example(metadata), "aria-describedby": "condition-error",
    onkeydown: (event) => { if (event.key === "Enter") apply(); }, onchange: () => apply() });
  const error = h("p", { id: "condition-error", class: "error", role: "alert" });
  panel.append(
    h("div", { class: "facets" }, metadata.map(facet)),
    h("div", { class: "condition" }, h("label", { for: "condition" }, "Your own condition"), field, error));

  function apply() {
    if (field.value === state.filter) return;
    state.filter = field.value;
    changed();
  }

  function changed() {
    update();
    change();
  }

  function open(shown) {
    panel.hidden = !shown;
    button.setAttribute("aria-expanded", String(shown));
  }

  function own(name) {
    if (!state.facets.has(name)) state.facets.set(name, { is: [], from: "", to: "" });
    return state.facets.get(name);
  }

  function facet(column) {
    const bounds = column.type === "number" || column.type === "date";
    return h("fieldset", { "data-column": column.name }, h("legend", {}, column.name),
      bounds ? range(column) : values(column));
  }

  function range({ name, type, min, max }) {
    const input = (part, label, hint) => h("label", {}, h("span", {}, label),
      h("input", { class: "field", "data-part": part, type: type === "number" ? "number" : "date", step: "any",
        placeholder: hint ?? "", onchange: (event) => { own(name)[part] = event.target.value; changed(); } }));
    return h("div", { class: `range ${type}` }, input("from", "from", min), input("to", "to", max));
  }

  function values({ name, values: all }) {
    const boxes = (all ?? []).map(({ value, count }, at) => h("label", { hidden: at >= SHOWN },
      h("input", { type: "checkbox", value: String(value), onchange: (event) => {
        const { is } = own(name), chosen = String(value);
        own(name).is = event.target.checked ? [...is, chosen] : is.filter((each) => each !== chosen);
        changed();
      } }), h("span", { class: "value" }, String(value)), h("span", { class: "quiet" }, count.toLocaleString("en"))));
    const more = boxes.length > SHOWN && h("button", { type: "button", class: "plain",
      onclick: () => { boxes.forEach((box) => { box.hidden = false; }); more.remove(); } }, `${boxes.length - SHOWN} more`);
    return h("div", { class: "values" }, boxes, more);
  }

  function chip(words, remove) {
    return h("li", {}, h("button", { type: "button", class: "chip", "aria-label": `Remove the filter ${words}`,
      onclick: () => { remove(); changed(); button.focus(); } }, words, h("span", { "aria-hidden": "true" }, "×")));
  }

  function update() {
    refuse("");
    field.value = state.filter;
    for (const box of panel.querySelectorAll("fieldset")) {
      const { is = [], from = "", to = "" } = state.facets.get(box.dataset.column) ?? {};
      for (const input of box.querySelectorAll("input")) {
        if (input.type === "checkbox") input.checked = is.includes(input.value);
        else input.value = input.dataset.part === "from" ? from : to;
      }
    }
    chips.replaceChildren(
      ...[...state.facets].flatMap(([name, facet]) => [
        ...facet.is.map((value) => chip(`${name} = ${value}`, () => { facet.is = facet.is.filter((each) => each !== value); })),
        ...(facet.from !== "" ? [chip(`${name} ≥ ${facet.from}`, () => { facet.from = ""; })] : []),
        ...(facet.to !== "" ? [chip(`${name} ≤ ${facet.to}`, () => { facet.to = ""; })] : []),
      ]),
      ...(state.filter.trim() ? [chip(state.filter.trim(), () => { state.filter = ""; })] : []));
    chips.hidden = !chips.children.length;
  }

  function refuse(message) {
    error.textContent = message;
    field.setAttribute("aria-invalid", String(Boolean(message)));
    if (message) open(true);
  }

  update();
  return { button, chips, panel, update, refuse };
}

function example(metadata) {
  const column = metadata.find(({ type }) => type === "number");
  if (column) return `${column.name} >= ${column.min}`;
  const textual = metadata.find(({ values }) => values?.length);
  return textual ? clauses(textual, { is: [textual.values[0].value] })[0] : "";
}
