"""Selection of a fusion from the values of judged queries: prior, plateau, held-out score.

A choice is a method with its parameters and weights. All rules work on a table of values, one row per choice and one
column per judged query, so folds and repeats cost no further fusion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybrid_cli import console, draws
from hybrid_cli.errors import InputError

Values = NDArray[np.float64]
_TIE = 1e-12
_NORMAL = 1.645  # 95% of a normal distribution is below it
_CAUTION = 0.3  # standard deviations: no collection loses .005 on average, for .0002 of the mean gain
_NOISE_QUERIES = 50  # that the noise of other collections counts for
_REPEATS = 20  # partitions into folds
FEWEST = 10  # judged queries, of which fewer change nothing
FIRST_JUDGED = 20  # queries, which people judge in an hour
CONFIDENCE = 0.95


def check_folds(folds: int, judged: Path, queries: int) -> None:
    """Refuse more folds than judged queries.

    Args:
        folds: value of --folds.
        judged: file of the judgments, for the message.
        queries: number of judged queries.

    Raises:
        InputError: more folds than queries.
    """
    if folds > queries:
        problem = (
            f"--folds {folds}: {judged} has {console.counted(**{'judged query': queries})}; pass at most {queries}"
        )
        raise InputError(problem, code="out-of-range", option="folds", value=folds, limit=queries, path=judged)


@dataclass(frozen=True)
class Choice:
    """A method with its parameters and weights.

    Attributes:
        method: key in `METHODS`.
        weights: one per run, in order.
        rrf_k: constant of RRF; None for other methods.
        shares: the weights in units of the runs' standard deviations, where a sum of raw scores is tuned; by default
            the weights.
    """

    method: str
    weights: tuple[float, ...]
    rrf_k: float | None = None
    shares: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """Return the method with its parameter: choices of one family differ only in the weights."""
        return self.method if self.rrf_k is None else f"{self.method} k={self.rrf_k:g}"

    @property
    def single(self) -> int | None:
        """Return the number of the only run with a weight above 0; None if several have one."""
        used = [number for number, weight in enumerate(self.weights) if weight > 0]
        return used[0] if len(used) == 1 else None

    @property
    def proportions(self) -> Values:
        """Return the shares, which sum to 1, [runs]."""
        shares = np.array(self.shares or self.weights)
        return np.asarray(shares / math.fsum(shares))


def row_of(choices: Sequence[Choice], shares: Sequence[float]) -> int | None:
    """Return the row of the choice with some shares; None if there is none."""
    near = (len(each.weights) == len(shares) and np.allclose(each.proportions, shares, atol=1e-5) for each in choices)
    return next((row for row, same in enumerate(near) if same), None)


@dataclass(frozen=True)
class Gains:
    """Gains of choices over the untuned one on a new collection: a normal distribution (empirical Bayes).

    Attributes:
        mean: [choices] expected gains.
        covariance: [choices, choices] of the gains over collections.
        noise: [choices, choices] covariance of the gains of one query over the queries of a collection.
        rows: choices that judged queries are compared on; the gains of the others are interpolated between them;
            empty for all.
    """

    mean: Values
    covariance: Values
    noise: Values
    rows: Sequence[int] = ()

    @property
    def _compared(self) -> list[int]:
        return list(self.rows) or list(range(len(self.mean)))

    def given(self, gains: Values, often: Values) -> Gains:
        """Return the distribution after judged queries.

        Args:
            gains: [choices, queries] gain of every choice on each query.
            often: [queries] occurrences of each query, two or more together.
        """
        queries = often.sum()
        mean = gains @ often / queries
        centered = (gains - mean[:, None]) * np.sqrt(often)
        noise = (centered @ centered.T + _NOISE_QUERIES * self.noise) / (queries - 1 + _NOISE_QUERIES)
        kept = self._learned(noise / queries)
        covariance = self.covariance - kept @ self.covariance[self._compared]
        return replace(
            self, mean=self.mean + kept @ (mean - self.mean)[self._compared], covariance=covariance, noise=noise
        )

    def of_values(self, people: Values, corrected: Values) -> Gains:
        """Return the distribution for values that a machine corrects, whose noise is smaller.

        Args:
            people, corrected: [choices, queries] values before and after the correction.
        """
        before, after = (np.var(values - values.mean(0), axis=1, ddof=1).sum() for values in (people, corrected))
        return replace(self, noise=self.noise * min(1.0, after / before) if before else self.noise)

    def _learned(self, error: Values) -> Values:
        """Return the share of observed gains that counts, [choices, rows], by the covariance of their errors."""
        total = (self.covariance + error)[self._compared][:, self._compared]
        total += 1e-9 * np.eye(len(total))  # the untuned choice has none
        return np.asarray(np.linalg.solve(total, self.covariance[self._compared]).T)

    def errors(self, row: int) -> Values:
        """Return the standard deviation of the difference of each choice from that of `row`, [choices]."""
        own = np.diag(self.covariance)
        return np.asarray(np.sqrt(np.maximum(own + own[row] - 2 * self.covariance[row], 0)))

    def worth(self, queries: int, row: int) -> float:
        """Return the most that further judged queries add to the choice `row`, with a probability of 95%."""
        changes = replace(self, covariance=self._learned(self.noise / queries) @ self.covariance[self._compared])
        return float(np.max(self.mean - self.mean[row] + _NORMAL * changes.errors(row)))


@dataclass(frozen=True)
class Plateau:
    """Choices of the best method that judged queries cannot distinguish from the best choice.

    Attributes:
        best: row of the highest mean.
        chosen: the chosen row.
        rows: rows of the plateau, in the order of the weights.
    """

    best: int
    chosen: int
    rows: list[int]


@dataclass(frozen=True)
class Trials:
    """Values of all choices of some methods for all judged queries.

    Attributes:
        choices: the choices; with two runs, those of one family are in the order of the weights.
        values: [choices, queries].
        untuned: row of the default fusion; None if it is no choice.
        prior: gains over the untuned choice on other collections, for the choices of one family of two runs; None
            without a prior.
    """

    choices: Sequence[Choice]
    values: Values
    untuned: int | None = None
    prior: Gains | None = None
    _squares: Values = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_squares", self.values**2)

    @property
    def queries(self) -> int:
        """Return the number of judged queries."""
        return int(self.values.shape[1])

    def gains(self, counts: NDArray[np.int64] | None = None) -> Gains | None:
        """Return the gains over the untuned choice by the prior and the judged queries; None without a prior.

        Fewer than `FEWEST` judged queries say nothing.

        Args:
            counts: occurrences of each query, [queries]; None for one each.
        """
        often = self._often(counts)
        if self.prior is None or self.untuned is None or self.queries < FEWEST:
            return self.prior
        return self.prior.given(self.values - self.values[self.untuned], often)

    def means(self, counts: NDArray[np.int64] | None = None) -> Values:
        """Return the mean of each choice over the judged queries, [choices]; `counts` as for `gains`."""
        often = self._often(counts)
        return np.asarray(self.values @ often / often.sum())

    def gaps(self, row: int, counts: NDArray[np.int64] | None = None) -> tuple[Values, Values]:
        """Return by how much the mean of each choice is below that of `row`, and the standard error, [choices] each.

        The error is that of the paired differences; with one query, it is infinite.
        """
        often = self._often(counts)
        judged, means = often.sum(), self.means(counts)
        gap = means[row] - means
        if judged < 2:
            return gap, np.full(len(gap), np.inf)
        total = (self.values[row] - self.values) @ often
        products = self.values @ (self.values[row] * often)
        squares = self._squares @ often - 2 * products + self._squares[row] @ often
        variance = np.maximum(squares - total**2 / judged, 0) / (judged - 1)
        return gap, np.sqrt(variance / judged)

    def plateau(self, counts: NDArray[np.int64] | None = None) -> Plateau:
        """Choose among the choices of the best method.

        With a prior, the highest expected gain is chosen, less a part of its standard deviation; of fewer than
        `FEWEST` judged queries, the untuned choice. Without, the middle of the plateau is chosen, or of two middle
        choices that with the higher mean (the one-standard-error rule of Breiman et al. 1984). The plateau has the
        choices of one method that are within one standard error of the best; with two runs, without a gap in the
        weights.
        """
        gains = self.gains(counts)
        if gains is not None and self.untuned is not None:
            careful = gains.mean - _CAUTION * gains.errors(self.untuned)
            best = int(np.argmax(careful)) if self.queries >= FEWEST else self.untuned
            near = gains.mean[best] - gains.mean <= gains.errors(best) + _TIE
            return Plateau(best, best, _connected(list(range(len(near))), near, best))
        means = self.means(counts)
        best = self._best(means)
        gap, error = self.gaps(best, counts)
        near = gap <= error + _TIE
        family = [row for row, choice in enumerate(self.choices) if choice.family == self.choices[best].family]
        rows = (
            _connected(family, near, best) if len(self.choices[best].weights) == 2 else [r for r in family if near[r]]
        )
        return Plateau(best, self._middle(rows, means), rows)

    def _best(self, means: Values) -> int:
        """Return the highest mean; ties go to the shares closest to equal, then to the first choice."""
        equals = np.flatnonzero(means >= means.max() - _TIE).tolist()
        return int(min(equals, key=lambda row: (_inequality(self.choices[row].proportions), row)))

    def _middle(self, rows: list[int], means: Values) -> int:
        if len(self.choices[rows[0]].weights) == 2:
            half = (len(rows) - 1) / 2
            return max(rows[math.floor(half)], rows[math.ceil(half)], key=lambda row: means[row])
        coordinates = np.array([self.choices[row].proportions for row in rows])
        distance = ((coordinates - coordinates.mean(0)) ** 2).sum(1).round(12)
        return min(zip(distance.tolist(), (-means[rows]).tolist(), rows, strict=True))[2]

    def _often(self, counts: NDArray[np.int64] | None) -> Values:
        return np.ones(self.queries) if counts is None else counts.astype(np.float64)

    def held_out(self, folds: int, seed: int, best: bool = False, values: Values | None = None) -> Values | None:
        """Return the value of each query under the choices of the other folds, the mean over 20 partitions, [queries].

        Args:
            folds: number of folds; at most the number of queries.
            seed: random seed of the partitions.
            best: take the choice with the highest mean instead of the middle of the plateau.
            values: other values [choices, queries] of the choices, which are returned but choose nothing.

        Returns:
            None for a single query.
        """
        folds = min(folds, self.queries)
        if folds < 2:
            return None
        rng = draws.rng(seed)
        total = np.zeros(self.queries)
        for _ in range(_REPEATS):
            rows = self._crossed(folds, rng.permutation(self.queries), best)
            total += (self.values if values is None else values)[rows, np.arange(self.queries)]
        return total / _REPEATS

    def crossed(self, folds: int, seed: int) -> NDArray[np.int64]:
        """Return for each query the row with the highest mean over the other folds of one partition, [queries].

        Args:
            folds: number of folds; at most the number of queries, of which two are needed.
            seed: random seed of the partition.
        """
        order = draws.rng(seed).permutation(self.queries)
        return self._crossed(min(folds, self.queries), order, True)

    def _crossed(self, folds: int, order: NDArray[np.int64], best: bool) -> NDArray[np.int64]:
        fold = np.empty(self.queries, dtype=np.int64)
        fold[order] = np.arange(self.queries) % folds
        rows = np.empty(self.queries, dtype=np.int64)
        for number in range(folds):
            plateau = self.plateau(np.bincount(order[fold[order] != number], minlength=self.queries))
            rows[fold == number] = plateau.best if best else plateau.chosen
        return rows


def _connected(family: list[int], near: NDArray[np.bool_], best: int) -> list[int]:
    """Return the rows of `family` around `best` without a gap."""
    low = high = family.index(best)
    while low > 0 and near[family[low - 1]]:
        low -= 1
    while high < len(family) - 1 and near[family[high + 1]]:
        high += 1
    return family[low : high + 1]


def _inequality(shares: Values) -> float:
    """Return the distance of shares from equal ones."""
    return round(math.fsum((shares - 1 / len(shares)) ** 2), 12)


# ------------------------------------------------------------------------------------------------------------ selection


@dataclass(frozen=True)
class Selected:
    """Result of the selection.

    Attributes:
        table: values of the choices of the selected method.
        plateau: the plateau.
        held_out: value of each query under the choice of the other folds; None for a single query.
        keeps_untuned: the untuned choice is selected.
    """

    table: Trials
    plateau: Plateau
    held_out: Values | None
    keeps_untuned: bool = False

    @property
    def row(self) -> int:
        """Return the row of the chosen choice."""
        return self.table.untuned if self.keeps_untuned and self.table.untuned is not None else self.plateau.chosen

    @property
    def fair(self) -> Values:
        """Return the value of each query under the choice of the other folds, or under the untuned choice if kept."""
        return self.table.values[self.row] if self.held_out is None or self.keeps_untuned else self.held_out


def select(tables: Sequence[Trials], folds: int, seed: int) -> Selected:
    """Select a choice of the first method, or of another one that is better on held-out queries.

    Another method must be better by a paired t-test, at a level of 95%. Without a prior, the untuned choice is kept for
    fewer than `FEWEST` judged queries, or if its mean is not below that of the held-out values. A single run is an
    ordinary choice: a rule that preferred it if the fusion was worse on held-out queries lost more than it gained
    (studies/few-labels.md).

    Args:
        tables: values of the choices of each method, of the same queries.
        folds, seed: see `Trials.held_out`.
    """
    first, *others = tables
    values = first.held_out(folds, seed)
    plateau = first.plateau()
    keeps = plateau.chosen == first.untuned
    if first.prior is None and first.untuned is not None:
        worse = values is not None and bool(first.values[first.untuned].mean() >= values.mean())
        keeps = keeps or worse or first.queries < FEWEST
    selected = Selected(first, plateau, values, keeps)
    for other in others:
        more = other.held_out(folds, seed)
        ends = None if more is None else interval(more - selected.fair)
        if ends is not None and ends[0] > _TIE and first.queries >= FEWEST:
            selected = Selected(other, other.plateau(), more)
    return selected


def interval(differences: Values) -> tuple[float, float] | None:
    """Return the 95% interval of a mean by Student's t, cut to possible means; None for fewer than two differences."""
    if len(differences) < 2:
        return None
    from scipy.special import stdtrit  # takes longer to import than a fusion of small runs

    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
    half = float(stdtrit(len(differences) - 1, (1 + CONFIDENCE) / 2)) * error
    bound = max(1.0, float(np.abs(differences).max()))
    return max(-bound, mean - half), min(bound, mean + half)
