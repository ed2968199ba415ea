// Elements, numbers and colors. Texts become text nodes only.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name in element && !name.includes("-") && typeof value === "boolean") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

// h("button", { class: "quiet", type: "button", onclick: run, style: { "--hue": "red" } }, "Run")
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// Text as [[part, is a term], ...], with terms in <mark>.
export function marked(parts) {
  return (parts ?? []).map(([text, isTerm]) => (isTerm ? h("mark", {}, text) : text));
}

export const number = (value, digits = 3) =>
  value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");

export const signed = (value, digits = 3) => {
  const text = number(value, digits);
  return value > 0 && Number(text) !== 0 ? `+${text}` : Number(value.toFixed(digits)) === 0 ? (0).toFixed(digits) : text;
};

// Four significant digits.
export function score(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value), text = value.toPrecision(4);
  return (size >= 1e4 || (size < 1e-4 && size > 0) ? Number(text).toString() : text).replaceAll("-", "−");
}

export const count = (value, one, many = `${one}s`) => `${value.toLocaleString("en")} ${value === 1 ? one : many}`;

// The color of the n-th system, the same in all views.
export const colour = (place) => `var(--run-${place % 10})`;

export const swatch = (place) => h("i", { class: "swatch", "aria-hidden": "true", style: { background: colour(place) } });
