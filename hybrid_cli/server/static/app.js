// The frame of the page: API client, views by the hash of the URL, errors that concern every view.
import { count, h } from "./dom.js";

const VIEWS = {
  search: { title: "Search", load: () => import("./search.js"), styles: ["hits.css", "search.css"] },
  judge: { title: "Judge", load: () => import("./judging.js"), styles: ["judging.css"], shown: (info) => info.judging },
  compare: {
    title: "Compare", load: () => import("./comparison.js"), styles: ["hits.css", "compare.css"],
    shown: (info) => info.systems.length > 1,
  },
};
const RETRY_MS = 3000;
const main = document.getElementById("main");
const banner = document.getElementById("banner");

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { Accept: "application/json", ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    gone();
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) {
    const problem = answer?.error ?? { code: "http", message: `The server answered with status ${response.status}.` };
    throw new ApiError(response.status, problem.code, problem.message);
  }
  return answer;
}

// get("/api/search", { query: "cats" }) and post("/api/snippets", { query, docids }); `signal` cancels a request.
export const api = {
  get(path, params = {}, { signal } = {}) {
    const known = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
    const query = new URLSearchParams(known).toString();
    return request(path.replace(/^\//, "") + (query && `?${query}`), { signal });
  },
  post(path, body, { signal } = {}) {
    const headers = { "Content-Type": "application/json" };
    return request(path.replace(/^\//, ""), { method: "POST", body: JSON.stringify(body), headers, signal });
  },
};

// ------------------------------------------------------------------------------------------------ server that is gone

let waiting = 0;

function gone() {
  if (waiting) return;
  const retry = h("button", { type: "button", onclick: back }, "Retry now");
  banner.replaceChildren(h("p", {}, "The server does not answer. Start ", h("code", {}, "hybrid serve"), " again; ",
    "the page reconnects."), retry);
  waiting = setInterval(back, RETRY_MS);
}

async function back() {
  if (!(await fetch("api/info").then((response) => response.ok, () => false))) return;
  clearInterval(waiting);
  waiting = 0;
  banner.replaceChildren();
  start();
}

// -------------------------------------------------------------------------------------------------------------- views

let info = null;
let mounted = { view: null, leave: null };
const latest = {}; // view -> its last parameters, so that a tab returns to them

const isShown = ({ shown }) => !shown || shown(info);

function place() {
  const [view, params = ""] = location.hash.replace(/^#\//, "").split("?", 2);
  return { view: view in VIEWS && (!info || isShown(VIEWS[view])) ? view : "search", params: new URLSearchParams(params) };
}

// Go to a view; with `replace`, only record its state in the URL.
export function navigate(view, params = {}, { replace = false } = {}) {
  const entries = params instanceof URLSearchParams ? [...params] : Object.entries(params);
  const known = entries.filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(known).toString();
  const hash = `#/${view}${query && `?${query}`}`;
  if (replace) {
    history.replaceState(null, "", hash);
    remember();
  } else if (location.hash !== hash) location.hash = hash;
}

function remember() {
  latest[place().view] = location.hash;
  for (const link of document.querySelectorAll("#tabs a")) {
    const current = link.dataset.view === place().view;
    link.href = latest[link.dataset.view] ?? `#/${link.dataset.view}`;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

export function announce(text) {
  document.getElementById("status").textContent = text;
}

function title(text) {
  document.title = [text, info?.name, "hybrid"].filter(Boolean).join(" · ");
}

export function failure(error) {
  return h("div", { class: "problem", role: "alert" }, h("p", {}, error.message));
}

const styles = {};

function styled(name) {
  styles[name] ??= new Promise((resolve) => {
    document.head.append(h("link", {
      rel: "stylesheet", href: `static/${name}`, "data-styles": name, onload: resolve, onerror: resolve,
    }));
  });
  return styles[name];
}

// A view that returns `update` is updated with new parameters instead of mounted again.
async function show() {
  const { view, params } = place();
  if (!info) return;
  remember();
  if (mounted.view === view && mounted.leave?.update) return mounted.leave.update(params);
  const before = mounted.view;
  mounted.leave?.();
  mounted = { view, leave: null };
  title(VIEWS[view].title);
  try {
    const known = before ? api.get("/api/info") : info; // judgments may have been added in the other view
    const [module, latest] = await Promise.all([VIEWS[view].load(), known, ...VIEWS[view].styles.map(styled)]);
    if (mounted.view !== view) return;
    info = latest;
    head();
    remember();
    for (const { sheet, dataset } of document.querySelectorAll("link[data-styles]")) {
      if (sheet) sheet.disabled = !VIEWS[view].styles.includes(dataset.styles); // views use the same names of classes
    }
    main.replaceChildren();
    main.className = `view ${view}`;
    mounted.leave = module.mount(main, { api, info, params, navigate, announce, title });
  } catch (error) {
    console.error(error);
    main.replaceChildren(failure(error));
  }
}

function head() {
  const name = document.getElementById("name");
  name.textContent = info.name;
  const judged = info.judged ? [count(info.judged, "judged query", "judged queries")] : [];
  document.getElementById("facts").textContent = [count(info.documents, "document"), ...judged].join(" · ");
  const views = Object.entries(VIEWS).filter(([, view]) => isShown(view)), tabs = document.getElementById("tabs");
  if (views.length === tabs.children.length) return; // the focus stays on its tab
  tabs.replaceChildren(...views.map(([view, { title }]) => h("li", {}, h("a", { href: `#/${view}`, "data-view": view }, title))));
}

async function start() {
  try {
    info = await api.get("/api/info");
  } catch (error) {
    if (error.code !== "unreachable") main.replaceChildren(failure(error));
    return;
  }
  mounted.leave?.();
  mounted = { view: null, leave: null };
  head();
  await show();
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", show);
start();
