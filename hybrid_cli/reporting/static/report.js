// The comparison of a report, from the data in its page.
import { compare } from "./compare.js";

const data = JSON.parse(document.getElementById("comparison").textContent);
const [a, b] = data.first;

// The lists of a query; only those that change most are in the page.
const lists = async (query) => query.lists ? query
  : "The page does not have the lists of this query. Pass a larger --show-queries to include more.";

const state = { a, b, find: "", outcome: "all", groups: [], point: null, q: null };
compare(document.querySelector(".comparison"), { data, state, lists });
