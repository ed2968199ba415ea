// Fusion of the candidates of a query, as hybrid_cli/fusion/methods.py and lists.py define it.
// A missing value is NaN. Candidates are in the order of their ids, so that a stable sort breaks ties by id.

const NONE = Number.NaN;
const known = (values) => values.filter((value) => !Number.isNaN(value));
const least = (values) => known(values).reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => known(values).reduce((a, b) => Math.max(a, b), -Infinity);
const total = (values) => known(values).reduce((a, b) => a + b, 0);
const mean = (values) => total(values) / known(values).length;

function deviation(values, degrees) {
  const some = known(values), center = mean(values);
  return Math.sqrt(some.reduce((sum, value) => sum + (value - center) ** 2, 0) / (some.length - degrees));
}

function median(values) {
  const sorted = known(values).sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

const each = (values, change) => values.map((value) => (Number.isNaN(value) ? NONE : change(value)));
const spread = (values, change, otherwise) => {
  const varied = most(values) > least(values);
  return each(values, (value) => (varied ? change(value) : otherwise));
};

// From scores and ranks of one list to its values.
const TRANSFORMS = {
  none: (scores) => scores,
  minmax(scores) {
    const low = least(scores), high = most(scores);
    return spread(scores, (score) => (score - low) / (high - low), 1);
  },
  max(scores) {
    const largest = most(scores.map(Math.abs));
    return each(scores, (score) => (largest > 0 ? score / largest : 0));
  },
  sum(scores) {
    const low = least(scores), hits = known(scores).length, whole = total(scores) - hits * low;
    return spread(scores, (score) => (score - low) / whole, 1 / hits);
  },
  l2(scores) {
    const length = Math.sqrt(total(scores.map((score) => score * score)));
    return each(scores, (score) => (length > 0 ? score / length : 0));
  },
  zscore(scores) {
    const center = mean(scores), scale = deviation(scores, 0);
    return spread(scores, (score) => (score - center) / scale, 0);
  },
  rank: (scores, ranks) => ranks.map((rank) => 1 - (rank - 1) / known(scores).length),
  borda(scores, ranks) {
    const candidates = scores.length, hits = known(scores).length;
    const absent = (candidates - hits + 1) / (2 * candidates);
    return ranks.map((rank) => (Number.isNaN(rank) ? absent : 1 - (rank - 1) / candidates));
  },
  dbsf(scores) {
    const center = mean(scores), scale = 6 * deviation(scores, 1);
    return spread(scores, (score) => 0.5 + (score - center) / scale, 0.5);
  },
  rrf: (scores, ranks, k) => ranks.map((rank) => 1 / (k + rank)),
  isr: (scores, ranks) => ranks.map((rank) => 1 / (rank * rank)),
  rbc: (scores, ranks) => ranks.map((rank) => (1 - 0.8) * 0.8 ** (rank - 1)),
  "log-odds"(scores) {
    const center = median(scores), scale = deviation(scores, 0);
    return spread(scores, (score) => (score - center) / scale, 0);
  },
};

const filled = (value, otherwise) => (Number.isNaN(value) ? otherwise : value);

function weightedSum(values, weights) {
  return values.map((value, list) => weights[list] * filled(value, 0)).reduce((a, b) => a + b);
}

function shares(weights) {
  const whole = weights.reduce((a, b) => a + b);
  return weights.map((weight) => weight / whole);
}

const weightedMean = (values, weights) => weightedSum(values, shares(weights));

const weighted = (values, weights) =>
  known(values.map((value, list) => (weights[list] ? weights[list] * value : NONE)));

// From the values of one document, the weights, and whether each list contains it, to the fused score.
const RULES = {
  sum: weightedSum,
  mean: weightedMean,
  product: (values, weights) =>
    values.map((value, list) => filled(Math.max(0, value) ** weights[list], 1)).reduce((a, b) => a * b),
  times: (values, weights, present) =>
    weightedSum(values, weights) * present.filter((here, list) => here && weights[list]).length,
  odds: (values, weights) => 1 / (1 + Math.exp(-Math.sqrt(weights.length) * weightedMean(values, weights))),
  known(values, weights) {
    const share = weights.reduce((sum, weight, list) => sum + (Number.isNaN(values[list]) ? 0 : weight), 0);
    return share > 0 ? weightedSum(values, weights) / share : 0;
  },
  largest: (values, weights) => { const some = weighted(values, weights); return some.length ? most(some) : 0; },
  smallest: (values, weights) => { const some = weighted(values, weights); return some.length ? least(some) : 0; },
  median: (values, weights) => { const some = weighted(values, weights); return some.length ? median(some) : 0; },
};

const method = (normalize, rule, missing, label) => ({ normalize, rule, missing, label });
export const METHODS = {
  "weighted-sum": method("none", "sum", "exact", "exact sum"),
  minmax: method("minmax", "mean", "zero", "min-max scores"),
  zscore: method("zscore", "sum", "min", "z-scores"),
  rrf: method("rrf", "sum", "zero", "RRF"),
  dbsf: method("dbsf", "sum", "zero", "DBSF"),
  combmnz: method("minmax", "times", "zero", "CombMNZ"),
  borda: method("borda", "sum", "ignore", "Borda"),
  isr: method("isr", "times", "zero", "ISR"),
  rbc: method("rbc", "sum", "zero", "RBC"),
  "log-odds": method("log-odds", "odds", "ignore", "log odds"),
  sum: method("none", "sum", "zero", "sum of raw scores"),
  product: method("none", "product", "zero", "product of raw scores"),
  combsum: method("minmax", "sum", "zero", "CombSUM"),
  combanz: method("minmax", "known", "ignore", "CombANZ"),
  combmax: method("minmax", "largest", "ignore", "CombMAX"),
  combmin: method("minmax", "smallest", "ignore", "CombMIN"),
  combmed: method("minmax", "median", "ignore", "CombMED"),
};

// Order of ids as Python and polars have it: by code point, not by UTF-16 unit.
export function compareIds(a, b) {
  const length = Math.min(a.length, b.length);
  for (let at = 0; at < length; at++) {
    const x = a.charCodeAt(at), y = b.charCodeAt(at);
    if (x !== y) {
      const [high, low] = [x, y].map((unit) => unit >= 0xd800 && unit <= 0xdfff);
      return high === low ? x - y : high ? 1 : -1;
    }
  }
  return a.length - b.length;
}

// Candidates of a query: documents that a list returns, in the order of their ids.
// From docids, and for each list the scores and ranks by document; a rank is null if the list does not return it.
export function candidates(docids, scores, ranks) {
  const rows = docids.map((_, row) => row).filter((row) => ranks.some((list) => list[row] !== null));
  rows.sort((a, b) => compareIds(docids[a], docids[b]));
  const column = (list) => rows.map((row) => list[row] ?? NONE);
  return { docids: rows.map((row) => docids[row]), scores: scores.map(column), ranks: ranks.map(column) };
}

// Values of every list, which do not depend on the weights.
// recipe: { method, missing, normalize, k }; missing and normalize are those of the method if undefined.
export function valued({ docids, scores, ranks }, recipe) {
  const { normalize, missing } = { ...METHODS[recipe.method], ...defined(recipe) };
  const exact = missing === "exact";
  const lists = scores.map((list, number) => {
    const own = exact ? list : list.map((score, row) => (Number.isNaN(ranks[number][row]) ? NONE : score));
    const places = exact ? ordinal(own) : ranks[number];
    const values = TRANSFORMS[normalize](own, places, recipe.k ?? 60);
    return { present: own.map((score) => !Number.isNaN(score)), values: absent(values, missing) };
  });
  let rows = docids.map((_, row) => row);
  if (missing === "drop") {
    const answered = lists.filter(({ present }) => present.includes(true));
    rows = rows.filter((row) => answered.every(({ present }) => present[row]));
  }
  return {
    docids: rows.map((row) => docids[row]),
    values: lists.map(({ values }) => rows.map((row) => values[row])),
    present: lists.map(({ present }) => rows.map((row) => present[row])),
  };
}

const defined = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined && value !== null));

function absent(values, missing) {
  const low = least(values);
  if (low === Infinity || !["min", "zero"].includes(missing)) return values;
  return values.map((value) => filled(value, missing === "min" ? low : Math.min(low, 0)));
}

function ordinal(scores) {
  const order = scores.map((_, row) => row).sort((a, b) => scores[b] - scores[a]);
  const ranks = Array(scores.length);
  order.forEach((row, place) => { ranks[row] = place + 1; });
  return ranks;
}

// Fused scores of the result of `valued`, in the same order.
export function fusedScores({ docids, values, present }, name, weights) {
  const { rule: key } = METHODS[name];
  if (key === "sum") return sums(values, weights, docids.length);
  if (key === "mean") return sums(values, shares(weights), docids.length);
  const rule = RULES[key];
  return docids.map((_, row) => rule(values.map((list) => list[row]), weights, present.map((list) => list[row])));
}

// As RULES.sum, a list at a time: the slider sums thousands of candidates.
function sums(values, weights, rows) {
  const scores = Array(rows).fill(0);
  values.forEach((list, number) => {
    const weight = weights[number];
    for (let row = 0; row < rows; row++) {
      const value = list[row] === list[row] ? weight * list[row] : 0; // NaN differs from itself
      scores[row] = number ? scores[row] + value : value;
    }
  });
  return scores;
}

// The best rows by score; equal scores keep their order.
export function top(scores, hits) {
  if (hits >= scores.length) return scores.map((_, row) => row).sort((a, b) => scores[b] - scores[a]);
  const best = [];
  for (let row = 0; row < scores.length; row++) {
    if (best.length === hits && scores[row] <= scores[best[hits - 1]]) continue;
    let at = best.length;
    while (at && scores[best[at - 1]] < scores[row]) at--;
    best.splice(at, 0, row);
    if (best.length > hits) best.pop();
  }
  return best;
}

// Ranked documents: [{ docid, score, rank }].
export function fuse(some, recipe, weights, hits = Infinity) {
  const table = valued(some, recipe);
  const scores = fusedScores(table, recipe.method, weights);
  return top(scores, hits).map((row, place) => ({ docid: table.docids[row], score: scores[row], rank: place + 1 }));
}

// nDCG at a cutoff of ranked docids, with grades (a Map by docid) as gains.
export function ndcg(ranked, grades, cutoff) {
  const gains = (list) => list.slice(0, cutoff).reduce((sum, grade, at) => sum + Math.max(0, grade) / Math.log2(at + 2), 0);
  const best = gains([...grades.values()].sort((a, b) => b - a));
  return best > 0 ? gains(ranked.map((docid) => grades.get(docid) ?? 0)) / best : 0;
}

// The mean nDCG of judged queries under any weights; values of the lists are computed once per recipe.
export class Judged {
  constructor({ measure, queries }) {
    this.cutoff = Number(/^nDCG@(\d+)$/.exec(measure)?.[1] ?? 10);
    this.measure = `nDCG@${this.cutoff}`; // other measures are those of the comparison
    this.queries = queries.map((query) => ({
      ...query, grades: new Map(Object.entries(query.grades)), some: candidates(query.docids, query.scores, query.ranks),
    }));
    this.key = null;
  }

  // Values per query, for a recipe and weights.
  values(recipe, weights) {
    const key = JSON.stringify(recipe);
    if (key !== this.key) {
      this.tables = this.queries.map(({ some }) => valued(some, recipe));
      this.key = key;
    }
    return this.queries.map(({ grades }, at) => {
      const table = this.tables[at];
      const best = top(fusedScores(table, recipe.method, weights), this.cutoff);
      return ndcg(best.map((row) => table.docids[row]), grades, this.cutoff);
    });
  }

  mean(recipe, weights) {
    const values = this.values(recipe, weights);
    return values.reduce((a, b) => a + b, 0) / values.length;
  }
}
