// The view of /api/comparison: all judged queries of two systems, with both lists from /api/columns.
import { compare } from "./compare.js";
import { h } from "./dom.js";

const SHOWN = 10;

export function mount(root, { api, info, params, navigate, announce, title }) {
  const state = { a: 0, b: 0, find: "", outcome: "all", groups: [], point: null, q: null };
  let data = null, view = null, stopped = false;
  title("Compare");

  function read(from) {
    const place = (name, otherwise) => {
      const at = data.systems.indexOf(from.get(name));
      return at < 0 ? otherwise : at;
    };
    const main = Math.max(0, data.systems.indexOf(info.main ?? "hybrid"));
    Object.assign(state, {
      a: place("a", main), b: place("b", main === 0 ? data.systems.length - 1 : 0), find: from.get("find") ?? "",
      outcome: ["won", "lost", "equal"].includes(from.get("only")) ? from.get("only") : "all",
      groups: data.groups.map((_, at) => from.get(`group${at}`) ?? ""), point: from.get("at"), q: from.get("q"),
    });
  }

  function changed() {
    const groups = Object.fromEntries(state.groups.map((label, at) => [`group${at}`, label]));
    navigate("compare", { a: data.systems[state.a], b: data.systems[state.b], measure: params.get("measure"), find: state.find,
      only: state.outcome === "all" ? "" : state.outcome, ...groups, at: state.point, q: state.q }, { replace: true });
  }

  // Lists of all systems for one query.
  async function lists({ text }) {
    const { documents, columns } = await api.get("/api/columns", { query: text, depth: 100 });
    return { lists: data.systems.map((system) => (columns[system] ?? []).slice(0, SHOWN)),
      documents: Object.fromEntries(documents.map((each) => [each.docid, each])) };
  }

  async function start() {
    root.replaceChildren(h("div", { class: "skeleton", style: { height: "14rem" } }));
    announce("Measuring the queries");
    try {
      data = await api.get("/api/comparison", { measure: params.get("measure") });
    } catch (error) {
      if (!stopped) root.replaceChildren(h("div", { class: "problem", role: "alert" }, h("p", {}, error.message)));
      return;
    }
    if (stopped) return;
    if (!data.queries.length) {
      root.replaceChildren(h("p", { class: "empty" }, "There are no queries to compare. Start the server with --queries FILE, or judge a query that you type."));
      return;
    }
    read(params);
    const body = h("div", { class: "comparison" });
    root.replaceChildren(h("h2", { class: "unseen" }, "Compare"), body);
    announce("");
    const link = ({ text }) => `#/search?${new URLSearchParams({ q: text })}`;
    view = compare(body, { data, state, lists, link, changed, announce });
  }

  function leave() {
    stopped = true;
    view?.leave();
  }
  leave.update = (from) => {
    if (!view) return;
    read(from);
    view.update();
  };
  start();
  return leave;
}
