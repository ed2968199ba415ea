"""Fusion methods: a normalization per list, a rule for missing documents, and a combination rule.

Every function returns a polars expression. Rows are the candidates of a query: all documents that any list returned;
a value is null if the list does not return the document. Every rule ignores lists without hits for the query.
A new method is one entry of `METHODS`, here or in another package (docs/extending.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import reduce
from operator import add, mul
from typing import Any

import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.fusion.options import RRF_K, Missing, Normalization
from hybrid_cli.plugins import Registry

LARGEST = 2**31 - 1  # of a weight
Transform = Callable[[pl.Expr, pl.Expr], pl.Expr]
Rule = Callable[..., pl.Expr]  # of values, weights and presence, and parameters by name


# ------------------------------------------------------------------------------------------------------ normalizations
# Arguments: scores and ranks (from 1) of one list among the candidates of a query. Null values remain null, except in
# `borda`.


def of_query(statistic: pl.Expr) -> pl.Expr:
    """Compute a statistic over the candidates of each query."""
    return statistic.over("query")


def unchanged(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return the raw scores."""
    return score


def minmax(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - min) / (max - min): 1 for the first hit, 0 for the last. A single hit or equal scores: 1."""
    low, high = of_query(score.min()), of_query(score.max())
    return _where(high > low, (score - low) / (high - low), 1.0, score)


def maximum(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return s / max |s|, which keeps the order of negative scores. A single hit or equal scores: sign of s, or 0."""
    largest = of_query(score.abs().max())
    return _where(largest > 0, score / largest, 0.0, score)


def total(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - min) / sum (s - min); the values sum to 1. A single hit: 1. n equal scores: 1/n."""
    low, high, hits = of_query(score.min()), of_query(score.max()), of_query(score.count())
    return _where(high > low, (score - low) / (of_query(score.sum()) - hits * low), 1 / hits, score)


def euclidean(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return s / sqrt(sum s^2). A single hit: the sign of s. n equal scores: 1/sqrt(n) with that sign. All zero: 0."""
    length = of_query((score * score).sum()).sqrt()
    return _where(length > 0, score / length, 0.0, score)


def zscore(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - mean) / standard deviation of the population. A single hit or equal scores: 0."""
    varied = of_query(score.max()) > of_query(score.min())
    return _where(varied, (score - of_query(score.mean())) / of_query(score.std(ddof=0)), 0.0, score)


def by_rank(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (n - r + 1) / n for rank r of n hits. Equal scores differ by rank. A single hit: 1."""
    return 1 - (rank - 1) / of_query(score.count())


def borda(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (c - r + 1) / c for rank r of c candidates. Missing documents share the remaining points equally."""
    candidates, hits = of_query(pl.len()), of_query(score.count())
    return (1 - (rank - 1) / candidates).fill_null((candidates - hits + 1) / (2 * candidates))


def dbsf(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Map mean - 3 and mean + 3 sample standard deviations to 0 and 1, unclipped. A single hit or equal scores: 0.5."""
    varied = of_query(score.max()) > of_query(score.min())
    return _where(varied, 0.5 + (score - of_query(score.mean())) / (6 * of_query(score.std(ddof=1))), 0.5, score)


def reciprocal_rank(score: pl.Expr, rank: pl.Expr, k: float = RRF_K) -> pl.Expr:
    """Return 1 / (k + r) (RRF); scores are ignored."""
    return 1 / (k + rank)


def inverse_square_rank(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return 1 / r^2 (ISR); scores are ignored."""
    return 1 / (rank * rank)


def rank_bias(score: pl.Expr, rank: pl.Expr, phi: float = 0.8) -> pl.Expr:
    """Return (1 - phi) phi^(r-1), the probability that a user with persistence phi stops at rank r."""
    return (1 - phi) * pl.lit(phi).pow(rank - 1)


def log_odds(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - median) / standard deviation: log odds of a sigmoid likelihood. A single hit or equal scores: 0."""
    varied = of_query(score.max()) > of_query(score.min())
    return _where(varied, (score - of_query(score.median())) / of_query(score.std(ddof=0)), 0.0, score)


def _where(usable: pl.Expr, value: pl.Expr, otherwise: float | pl.Expr, score: pl.Expr) -> pl.Expr:
    """Return `value` if `usable` is true, else `otherwise`; null if the score is null."""
    return pl.when(score.is_not_null()).then(pl.when(usable).then(value).otherwise(otherwise))


TRANSFORMS: dict[str, Transform] = {
    "none": unchanged,
    "minmax": minmax,
    "max": maximum,
    "sum": total,
    "l2": euclidean,
    "zscore": zscore,
    "rank": by_rank,
    "borda": borda,
    "dbsf": dbsf,
    "rrf": reciprocal_rank,
    "isr": inverse_square_rank,
    "rbc": rank_bias,
    "log-odds": log_odds,
}


# --------------------------------------------------------------------------------------------------------------- rules
# Arguments: for each list, the value of the document, the weight, and whether the list contains it. Null values are
# ignored.


def weighted_sum(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return sum w v."""
    return reduce(add, (weight * value.fill_null(0.0) for value, weight in zip(values, weights, strict=True)))


def weighted_mean(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return sum w v / sum w: between 0 and 1 if all values are, for any weights."""
    return weighted_sum(values, [weight / math.fsum(weights) for weight in weights], present)


def product(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return product v^w; negative values count as 0."""
    powers = (value.clip(0.0).pow(weight).fill_null(1.0) for value, weight in zip(values, weights, strict=True))
    return reduce(mul, powers)


def times_lists(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return sum w v times the number of lists, of those with a weight, that contain the document (CombMNZ)."""
    return weighted_sum(values, weights, present) * _count(
        [here for here, w in zip(present, weights, strict=True) if w]
    )


def log_odds_conjunction(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return sigmoid(sqrt(n) sum w v / sum w) of n lists: the probability of combined log odds (Bayesian BM25)."""
    evidence = math.sqrt(len(weights)) * weighted_mean(values, weights, present)
    return 1 / (1 + (-evidence).exp())


def mean_of_known(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return sum w v / sum w over the lists with a value (CombANZ)."""
    known = [weight * value.is_not_null() for value, weight in zip(values, weights, strict=True)]
    share = reduce(add, known)
    return pl.when(share > 0).then(weighted_sum(values, weights, present) / share).otherwise(0.0)


def largest(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return the largest w v (CombMAX)."""
    return pl.max_horizontal(_weighted(values, weights)).fill_null(0.0)


def smallest(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return the smallest w v (CombMIN)."""
    return pl.min_horizontal(_weighted(values, weights)).fill_null(0.0)


def median(values: Sequence[pl.Expr], weights: Sequence[float], present: Sequence[pl.Expr]) -> pl.Expr:
    """Return the median of w v (CombMED)."""
    return pl.concat_list(_weighted(values, weights)).list.drop_nulls().list.median().fill_null(0.0)


def _weighted(values: Sequence[pl.Expr], weights: Sequence[float]) -> list[pl.Expr]:
    """Return w v of each list; a list of weight 0 would give the smallest value or the median to every document."""
    return [weight * value for value, weight in zip(values, weights, strict=True) if weight]


def _count(present: Sequence[pl.Expr]) -> pl.Expr:
    """Return the number of lists that contain the document."""
    return pl.sum_horizontal(here.cast(pl.Float64) for here in present)


# --------------------------------------------------------------------------------------------------- missing documents


def fill(value: pl.Expr, missing: Missing) -> pl.Expr:
    """Fill in the values of missing documents; they remain null if the rule ignores the list."""
    if missing == "min":
        return value.fill_null(of_query(value.min()))
    if missing == "zero":
        return value.fill_null(of_query(value.min()).clip(upper_bound=0.0))
    return value


# ------------------------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Method:
    """One fusion method: an entry of `METHODS`.

    Attributes:
        normalization: key in `TRANSFORMS`.
        rule: combination rule.
        missing: default rule for missing documents.
        fixed: the normalization defines the method, and --normalize is refused.
    """

    normalization: str
    rule: Rule
    missing: Missing
    fixed: bool = False

    @property
    def documented(self) -> Rule:
        """The function whose docstring is the help."""
        return self.rule


def as_method(name: str, added: Any) -> Method:
    """Return the method of a plugin: a `Method`, or a rule, which combines min-max scores and scores absent ones 0.

    Raises:
        ValueError: neither of them.
    """
    if not isinstance(added, Method) and not callable(added):
        raise ValueError(f"{type(added).__name__} is neither a Method nor a combination rule")
    return added if isinstance(added, Method) else Method("minmax", added, "zero")


_BUILT_IN: dict[str, Method] = {
    "minmax": Method("minmax", weighted_mean, "zero"),
    "weighted-sum": Method("none", weighted_sum, "exact"),
    "sum": Method("none", weighted_sum, "zero"),
    "product": Method("none", product, "zero"),
    "rrf": Method("rrf", weighted_sum, "zero", fixed=True),
    "zscore": Method("zscore", weighted_sum, "min", fixed=True),
    "dbsf": Method("dbsf", weighted_sum, "zero", fixed=True),
    "borda": Method("borda", weighted_sum, "ignore", fixed=True),
    "isr": Method("isr", times_lists, "zero", fixed=True),
    "rbc": Method("rbc", weighted_sum, "zero", fixed=True),
    "log-odds": Method("log-odds", log_odds_conjunction, "ignore", fixed=True),
    "combsum": Method("minmax", weighted_sum, "zero"),
    "combmnz": Method("minmax", times_lists, "zero"),
    "combanz": Method("minmax", mean_of_known, "ignore"),
    "combmax": Method("minmax", largest, "ignore"),
    "combmin": Method("minmax", smallest, "ignore"),
    "combmed": Method("minmax", median, "ignore"),
}
ALIASES: dict[str, str] = {
    "min-max": "minmax",
    "wsum": "weighted-sum",
    "interpolation": "weighted-sum",
    "mult": "product",
    "wrrf": "rrf",
    "zmuv": "zscore",
    "bordafuse": "borda",
    "w-bordafuse": "borda",
    "mnz": "combmnz",
    "wmnz": "combmnz",
    "anz": "combanz",
    "max": "combmax",
    "min": "combmin",
    "med": "combmed",
}
METHODS: Registry[Method] = Registry("fusion_methods", _BUILT_IN, as_method, ALIASES)


def method_name(name: str, option: str = "--method", more: Sequence[str] = ()) -> str:
    """Return the key in `METHODS` for a name in the spelling of hybrid, ranx or Pyserini.

    Args:
        name: the name.
        option: the option, for the message.
        more: further choices of the option, for the message.

    Raises:
        InputError: unknown name.
    """
    plain = name.strip().lower().replace("_", "-")
    for known in (plain, name.strip()):  # a plugin may use capital letters
        if known in METHODS:
            return known
    if plain in ALIASES:
        return ALIASES[plain]
    close = get_close_matches(plain, [*METHODS, *ALIASES, *more], n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    problem = f"{option} {name}: unknown; {hint}Choices: {', '.join([*METHODS, *more])}"
    raise InputError(problem, code="unknown-choice", option=option, value=name, choices=[*METHODS, *more])


@dataclass(frozen=True)
class FusionRecipe:
    """Method and parameters of a fusion.

    Attributes:
        method: key in `METHODS`.
        weights: one per run, in order.
        missing: rule for documents missing from a list.
        normalization: key in `TRANSFORMS`; overrides the normalization of the method.
        rrf_k: constant of reciprocal rank fusion (RRF).
        options: parameters of the combination rule.
    """

    method: str
    weights: tuple[float, ...]
    missing: Missing
    normalization: Normalization | None = None
    rrf_k: float = RRF_K
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.normalization is not None and METHODS[self.method].fixed:
            problem = f"--method {self.method}: has a fixed normalization; omit --normalize"
            raise InputError(problem, code="option-does-not-apply", option="normalize")
        if not self.rrf_k > -1:
            problem = f"--rrf-k {self.rrf_k}: needs a number above -1"
            raise InputError(problem, code="out-of-range", option="rrf_k", value=self.rrf_k, limit=-1)
        bad = [weight for weight in self.weights if not 0 <= weight <= LARGEST]
        if bad or not any(self.weights):
            problem = f"--weights {_listed(self.weights)}: needs numbers >= 0, at least one > 0, none over {LARGEST}"
            raise InputError(problem, code="out-of-range", option="weights", value=self.weights, limit=LARGEST)

    @property
    def sums_raw_scores(self) -> bool:
        """Return whether raw scores are added, so that differences in scale matter."""
        method = METHODS[self.method]
        return (self.normalization or method.normalization) == "none" and not self.multiplies

    @property
    def is_sum_of_scores(self) -> bool:
        """Return whether the fused score is the weighted sum of the raw scores."""
        return self.sums_raw_scores and METHODS[self.method].rule is weighted_sum

    @property
    def multiplies(self) -> bool:
        """Return whether scores are multiplied."""
        return METHODS[self.method].rule is product

    @property
    def has_faults(self) -> bool:
        """Return whether some values of a list give no ranking; see `fault`."""
        return any(self.fault(number)[1] for number in range(len(self.weights)))

    def fault(self, number: int) -> tuple[pl.Expr, str]:
        """Return a condition on the values of one list for a query under which the rule gives no ranking, and its text.

        Args:
            number: number of the list, from 0.
        """
        rule, own = METHODS[self.method].rule, pl.col(f"value_{number}")
        if self.multiplies:
            return own.max() <= 0, "no score above 0, so all products are 0"
        signed = rule is times_lists or (rule in (largest, smallest, median) and len(set(self.weights)) > 1)
        if signed:
            return own.min() < 0, "values below 0, which a larger factor makes smaller"
        if (self.normalization or METHODS[self.method].normalization) == "rbc":
            return ((own <= 0) & pl.col(f"present_{number}")).any(), "so many hits that the last ones have the value 0"
        return pl.lit(False), ""

    def normalized(self, score: pl.Expr, rank: pl.Expr) -> pl.Expr:
        """Normalize the scores (float64) and ranks of one list among the candidates of a query."""
        name = self.normalization or METHODS[self.method].normalization
        if name == "rrf":
            return reciprocal_rank(score, rank, self.rrf_k)
        return TRANSFORMS[name](score, rank)

    def combined(self, values: Sequence[pl.Expr], present: Sequence[pl.Expr]) -> pl.Expr:
        """Return the fused score of a document from its value in each list."""
        return METHODS[self.method].rule(values, self.weights, present, **self.options)


def _listed(weights: Sequence[float]) -> str:
    """Return the weights as `--weights` takes them."""
    return ",".join(f"{weight:g}" for weight in weights)
