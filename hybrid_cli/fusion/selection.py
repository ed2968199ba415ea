"""Selection of a fusion from the values of judged queries: plateau, one-standard-error rule, held-out score, power.

A choice is a method with its parameters and weights. All rules work on a table of values, one row per choice and one
column per judged query, so folds and repeats cost no further fusion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybrid_cli import console, draws
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.options import LEXICAL_SHARE

Values = NDArray[np.float64]
_TIE = 1e-12
_REPEATS = 20  # partitions into folds
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


@dataclass(frozen=True)
class Plateau:
    """Choices of the best method that judged queries cannot distinguish from the best choice.

    Attributes:
        best: row of the highest mean.
        chosen: row in the middle of the plateau.
        rows: rows of the plateau, in the order of the weights.
    """

    best: int
    chosen: int
    rows: list[int]


@dataclass(frozen=True)
class Trials:
    """Values of all choices for all judged queries.

    Attributes:
        choices: the choices; with two runs, those of one family are in the order of the weights.
        values: [choices, queries].
        prior: mean value of each choice on other collections, [choices]; None without a prior.
        prior_queries: number of judged queries that the prior counts for.
    """

    choices: Sequence[Choice]
    values: Values
    prior: Values | None = None
    prior_queries: float = 0.0
    _squares: Values = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_squares", self.values**2)

    @property
    def queries(self) -> int:
        """Return the number of judged queries."""
        return int(self.values.shape[1])

    @property
    def share_of_prior(self) -> float:
        """Return the fraction of the evidence that comes from the prior."""
        return 0.0 if self.prior is None else self.prior_queries / (self.prior_queries + self.queries)

    def untuned(self, dense: int | None = None) -> int | None:
        """Return the row of the default of `fuse`; None if it is no choice.

        Args:
            dense: number of the dense run among two, of which the other is lexical; None for other runs.

        Returns:
            The row of the sum of exact scores with a share of .7 for the dense run, if this sum is a choice, else of
            `minmax` with equal weights.
        """
        rows = list(enumerate(self.choices))
        if dense is not None:
            share = 1 - LEXICAL_SHARE
            sums = (row for row, choice in rows if choice.method == "weighted-sum" and choice.shares)
            shared = [row for row in sums if math.isclose(self.choices[row].shares[dense], share)]
            if shared:
                return shared[0]
        even = (row for row, choice in rows if choice.method == "minmax" and _inequality(choice.proportions) == 0)
        return next(even, None)

    def means(self, counts: NDArray[np.int64] | None = None) -> Values:
        """Return the mean of each choice over the judged queries and the pseudo-queries of the prior, [choices].

        Args:
            counts: occurrences of each query, [queries]; None for one each.
        """
        often = self._often(counts)
        if self.prior is None:
            return np.asarray(self.values @ often / often.sum())
        total = self.values @ often + self.prior_queries * self.prior
        return np.asarray(total / (often.sum() + self.prior_queries))

    def gaps(self, row: int, counts: NDArray[np.int64] | None = None) -> tuple[Values, Values]:
        """Return by how much the mean of each choice is below that of `row`, and the standard error, [choices] each.

        The error is that of the paired differences, shrunk by the share of the prior, whose mean counts as known. With
        one query, it is infinite without a prior and 0 with one.
        """
        often = self._often(counts)
        judged, means = often.sum(), self.means(counts)
        known = 0.0 if self.prior is None else self.prior_queries
        gap = means[row] - means
        if judged < 2:
            return gap, np.full(len(gap), 0.0 if known else np.inf)
        total = (self.values[row] - self.values) @ often
        products = self.values @ (self.values[row] * often)
        squares = self._squares @ often - 2 * products + self._squares[row] @ often
        variance = np.maximum(squares - total**2 / judged, 0) / (judged - 1)
        return gap, np.sqrt(variance / judged) * judged / (judged + known)

    def plateau(self, counts: NDArray[np.int64] | None = None) -> Plateau:
        """Apply the one-standard-error rule (Breiman et al. 1984), towards the middle of the plateau.

        Choices of the best method whose mean is within one standard error of the best form the plateau; with two runs,
        without a gap in the weights. The choice closest to the center is chosen; of two, that with the higher mean.
        """
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
        plateau: the plateau.
        held_out: value of each query under the choice of the other folds; None for a single query.
        untuned: row of the untuned choice; None if there is none.
        keeps_untuned: the untuned choice is selected, since the held-out values have no higher mean.
    """

    plateau: Plateau
    held_out: Values | None
    untuned: int | None = None
    keeps_untuned: bool = False

    @property
    def row(self) -> int:
        """Return the row of the chosen choice."""
        return self.untuned if self.keeps_untuned and self.untuned is not None else self.plateau.chosen


def select(table: Trials, folds: int, seed: int, dense: int | None = None) -> Selected:
    """Select the middle of the plateau, or the untuned choice if its mean is not below that of the held-out values.

    A single run is an ordinary choice. A rule that preferred it if the fusion was worse on held-out queries lost more
    than it gained (studies/few-labels.md).

    Args:
        table: values of all choices.
        folds, seed: see `Trials.held_out`.
        dense: see `Trials.untuned`.
    """
    held_out, untuned = table.held_out(folds, seed), table.untuned(dense)
    keeps = held_out is not None and untuned is not None and bool(table.values[untuned].mean() >= held_out.mean())
    return Selected(table.plateau(), held_out, untuned, keeps)


def interval(differences: Values) -> tuple[float, float] | None:
    """Return the 95% interval of a mean by Student's t, cut to possible means; None for fewer than two differences."""
    if len(differences) < 2:
        return None
    from scipy.special import stdtrit  # takes longer to import than a fusion of small runs

    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
    half = float(stdtrit(len(differences) - 1, (1 + CONFIDENCE) / 2)) * error
    bound = max(1.0, float(np.abs(differences).max()))
    return max(-bound, mean - half), min(bound, mean + half)
