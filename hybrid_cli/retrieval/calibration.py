"""Probabilities that hits are relevant: a logistic regression on scores, ranks and margins, fitted to judged queries.

All judged queries have an answer, and some queries of users have none. Each judged query is therefore also used without
its relevant documents, with a weight that makes it a fifth of the queries: our own choice. Coefficients have a normal
prior, whose mean and deviation are those of other collections (`calibration.json`). An unjudged document counts as not
relevant, so probabilities are too low where judgments are incomplete.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hybrid_cli import draws
from hybrid_cli.errors import InputError

Values = NDArray[np.float64]

FILE = Path(__file__).with_name("calibration.json")
FIRST = 10  # hits whose mean score is compared with that of a hit, and whose probabilities are measured
SEARCHED = 100  # hits of a judged query, from which its relevant documents may be removed
WITHOUT_ANSWER = 0.2  # share of queries
FOLDS = 5  # of the judged queries, and the least number of them
_FITTED = 20  # hits of a query that the regression is fitted to
_LEAST_DEVIATION = 0.1  # of a coefficient over collections
_OF_HIT = ("score", "log_rank", "top", "gap")
_OF_SIDE = ("score", "log_rank")
_INTERCEPT = "intercept"


class Bin(NamedTuple):
    """Hits of similar probability: their mean probability, the share of relevant ones, and their number."""

    probability: float
    relevant: float
    hits: int


def reliability(probabilities: Values, relevant: Values, bins: int = 10) -> list[Bin]:
    """Return bins of equal counts, from the lowest to the highest probability.

    Args:
        probabilities: [n] probability of each hit.
        relevant: [n] 1 for a relevant hit, else 0.
        bins: number of bins; fewer hits than bins give one bin each.
    """
    order = np.argsort(probabilities, kind="stable")
    parts = np.array_split(order, min(bins, len(order))) if len(order) else []
    return [Bin(float(probabilities[part].mean()), float(relevant[part].mean()), len(part)) for part in parts]


def calibration_error(bins: list[Bin]) -> float:
    """Return the expected calibration error: the mean distance of probability and share, weighted by hits."""
    hits = sum(each.hits for each in bins)
    return sum(each.hits * abs(each.probability - each.relevant) for each in bins) / max(1, hits)


@dataclass(frozen=True)
class Calibration:
    """A fitted regression.

    Attributes:
        coefficients: one per feature (`feature_names`), in units of the deviations, and the intercept.
        means, deviations: of each feature over the hits of the judged queries.
        lowest: lowest score of each side, for hits without a score.
        depth: hits of each side; hits beyond it have the next rank.
        queries: number of judged queries.
        relevant: number of relevant documents among their hits.
        error: expected calibration error of the first ten hits of left-out queries, a fifth of them without answer.
        bins: mean probability, share of relevant hits and number of hits; see `reliability`.
    """

    coefficients: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    lowest: tuple[float, ...]
    depth: int
    queries: int
    relevant: int
    error: float
    bins: Sequence[Sequence[float]]

    def probabilities(self, hits: pl.DataFrame, sides: Sequence[str]) -> Values:
        """Return the probability that each hit is relevant, [hits].

        Args:
            hits: qid, rank, score, and `SIDE_score` and `SIDE_rank` of every side, with at least the first ten hits of
                each query.
            sides: names of the sides, in the order of the retriever.
        """
        features = _features(hits, sides, self.lowest, self.depth)
        return _predicted((features - self.means) / self.deviations, np.array(self.coefficients))


class Prior(NamedTuple):
    """A normal prior of the coefficients: means [features + 1] and deviations [features + 1]."""

    means: Values
    deviations: Values


def feature_names(kinds: Sequence[str]) -> list[str]:
    """Return the names of the coefficients: score, log rank, score of the first hit, distance to the mean of the first.

    Args:
        kinds: `lexical` or `dense` for each side, whose scores and log ranks follow.
    """
    return [*_OF_HIT, *(f"{kind}_{name}" for kind in kinds for name in _OF_SIDE), _INTERCEPT]


def prior_of(kinds: Sequence[str], leave_out: Collection[str] = ()) -> Prior:
    """Return the prior of other collections for a lexical and a dense side; else a weak one around 0.

    Args:
        kinds: see `feature_names`.
        leave_out: names of collections that are not used.
    """
    names = feature_names(kinds)
    known = [stored["coefficients"] for stored in _stored()["collections"] if stored["name"] not in leave_out]
    if sorted(kinds) != ["dense", "lexical"] or len(known) < 2:
        return Prior(np.zeros(len(names)), np.array([1.0] * (len(names) - 1) + [10.0]))
    values = np.array([[coefficients[name] for name in names] for coefficients in known])
    return Prior(values.mean(0), np.maximum(values.std(0, ddof=1), _LEAST_DEVIATION))


@cache
def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return stored


class Fold(NamedTuple):
    """Queries that are left out together, and the hits of all judged queries by a fusion that was not tuned on them."""

    qids: Sequence[str]
    hits: pl.DataFrame


def calibrate(
    hits: pl.DataFrame,
    qrels: pl.DataFrame,
    folds: Sequence[Fold],
    sides: Sequence[str],
    depth: int,
    prior: Prior,
    seed: int,
) -> Calibration:
    """Fit probabilities to the hits of judged queries.

    Args:
        hits: the first `SEARCHED` hits of the judged queries; see `Calibration.probabilities`.
        qrels: qid, docid, relevance.
        folds: folds of the queries, whose hits the regression is fitted to.
        sides: names of the sides.
        depth: hits of each side that are fused.
        prior: prior of the coefficients.
        seed: random seed of the left-out queries without answer.

    Raises:
        InputError: fewer than five judged queries with hits, or no relevant document among the hits.
    """
    whole = _Sample.of(hits, qrels, sides, depth)
    queries, relevant = whole.hits["qid"].n_unique(), int(whole.relevant[whole.complete].sum())
    if queries < FOLDS:
        problem = f"calibration needs {FOLDS} judged queries with hits, got {queries}; judge more"
        raise InputError(problem, code="too-few-queries", value=queries, limit=FOLDS)
    if not relevant:
        problem = "no judged query has a relevant document among its hits, so no probability can be learned; check that"
        raise InputError(f"{problem} the judgments have grades above 0", code="no-relevant-hits", value=queries)
    parts = [_Sample.of(fold.hits, qrels, sides, depth).of_queries(fold.qids) for fold in folds]
    bins = _left_out(parts, prior, seed)
    return Calibration(
        tuple(map(float, _fitted(parts, prior))),
        *whole.units,
        whole.lowest,
        depth,
        queries,
        relevant,
        calibration_error(bins),
        bins,
    )


@dataclass(frozen=True)
class _Sample:
    """Hits of judged queries, with and without their relevant documents.

    Attributes:
        hits: qid and rank.
        features: [hits, features] in units of their deviations.
        relevant: [hits] 1 for relevant ones.
        complete: [hits] the list has its relevant documents.
        units: means and deviations of the features.
        lowest: see `Calibration`.
    """

    hits: pl.DataFrame
    features: Values
    relevant: Values
    complete: NDArray[np.bool_]
    units: tuple[tuple[float, ...], tuple[float, ...]]
    lowest: tuple[float, ...]

    @classmethod
    def of(cls, hits: pl.DataFrame, qrels: pl.DataFrame, sides: Sequence[str], depth: int) -> _Sample:
        """Return the hits of judged queries, of which one that has relevant documents is there twice."""
        positive = qrels.filter(pl.col("relevance") > 0).select("qid", "docid", relevant=pl.lit(1.0))
        judged = hits.join(qrels.select("qid").unique(), on="qid", how="semi", maintain_order="left")
        judged = judged.join(positive, on=["qid", "docid"], how="left", maintain_order="left")
        judged = judged.with_columns(pl.col("relevant").fill_null(0.0))
        emptied = judged.filter(relevant=0.0).join(
            positive.select("qid").unique(), on="qid", how="semi", maintain_order="left"
        )
        emptied = emptied.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid"))
        lists = [part.filter(pl.col("rank") <= _FITTED) for part in (judged, emptied)]
        lowest = tuple(float(judged[f"{side}_score"].min() or 0.0) for side in sides)  # type: ignore[arg-type]
        features = np.concatenate([_features(part, sides, lowest, depth) for part in lists])
        both = pl.concat(lists)
        complete = np.arange(len(both)) < len(lists[0])
        if not len(lists[0]):
            return cls(both.select("qid", "rank"), features, both["relevant"].to_numpy(), complete, ((), ()), lowest)
        means, deviations = features[complete].mean(0), features[complete].std(0)
        deviations[deviations == 0] = 1.0
        units = (tuple(means.tolist()), tuple(deviations.tolist()))
        return cls(
            both.select("qid", "rank"),
            (features - means) / deviations,
            both["relevant"].to_numpy(),
            complete,
            units,
            lowest,
        )

    def of_queries(self, qids: Sequence[str]) -> _Sample:
        """Return the hits of some queries."""
        inside = self.hits["qid"].is_in(pl.Series(qids, dtype=pl.String).implode()).to_numpy()
        return replace(
            self,
            hits=self.hits.filter(inside),
            features=self.features[inside],
            relevant=self.relevant[inside],
            complete=self.complete[inside],
        )


def _fitted(samples: Sequence[_Sample], prior: Prior) -> Values:
    """Return the coefficients fitted to some hits."""
    complete = np.concatenate([sample.complete for sample in samples])
    weights = np.where(complete, 1.0, WITHOUT_ANSWER / (1 - WITHOUT_ANSWER))
    features = np.concatenate([sample.features for sample in samples])
    return _regression(features, np.concatenate([sample.relevant for sample in samples]), weights, prior)


def _left_out(parts: Sequence[_Sample], prior: Prior, seed: int) -> list[Bin]:
    """Return the reliability of the first hits of queries that the regression was not fitted to."""
    share = WITHOUT_ANSWER * 2**64
    probabilities, relevant = [], []
    for number, part in enumerate(parts):
        lost = [qid for qid in part.hits["qid"].unique() if draws.draw(seed, "without answer", qid) < share]
        emptied = part.hits["qid"].is_in(pl.Series(lost, dtype=pl.String).implode()).to_numpy()
        shown = (part.complete != emptied) & (part.hits["rank"] <= FIRST).to_numpy()
        coefficients = _fitted([*parts[:number], *parts[number + 1 :]], prior)
        probabilities.append(_predicted(part.features[shown], coefficients))
        relevant.append(part.relevant[shown])
    return reliability(np.concatenate(probabilities), np.concatenate(relevant))


def _features(hits: pl.DataFrame, sides: Sequence[str], lowest: Sequence[float], depth: int) -> Values:
    """Return the features of hits, [hits, features]."""
    score, rank = pl.col("score").cast(pl.Float64), pl.col("rank")
    columns = [
        score.alias("score"),
        rank.cast(pl.Float64).log().alias("log_rank"),
        score.filter(rank == 1).first().over("qid").alias("top"),
        (score - score.filter(rank <= FIRST).mean().over("qid")).alias("gap"),
    ]
    for side, least in zip(sides, lowest, strict=True):
        columns.append(pl.col(f"{side}_score").cast(pl.Float64).fill_null(least).alias(f"{side} score"))
        columns.append(pl.col(f"{side}_rank").cast(pl.Float64).fill_null(depth + 1).log().alias(f"{side} rank"))
    return hits.select(columns).to_numpy()


def _predicted(features: Values, coefficients: Values) -> Values:
    from scipy.special import expit

    probabilities: Values = expit(features @ coefficients[:-1] + coefficients[-1])
    return probabilities


def _regression(features: Values, relevant: Values, weights: Values, prior: Prior) -> Values:
    """Return the coefficients of largest posterior density, and the intercept.

    Args:
        features: [n, m] standardized features.
        relevant: [n] 0 or 1.
        weights: [n] weight of each hit.
        prior: prior of the m + 1 coefficients.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    table = np.column_stack([features, np.ones(len(features))])

    def loss(coefficients: Values) -> tuple[float, Values]:
        logits, distance = table @ coefficients, (coefficients - prior.means) / prior.deviations
        value = weights @ (np.logaddexp(0, logits) - relevant * logits) + distance @ distance / 2
        slope = table.T @ (weights * (expit(logits) - relevant)) + distance / prior.deviations
        return float(value), slope

    def curvature(coefficients: Values) -> Values:
        shares = expit(table @ coefficients)
        second: Values = (table * (weights * shares * (1 - shares))[:, None]).T @ table
        return second + np.diag(prior.deviations**-2)

    best: Values = minimize(loss, prior.means, jac=True, hess=curvature, method="trust-exact").x
    return best
