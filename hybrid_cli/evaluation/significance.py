"""Paired tests with correction for multiple comparisons, and bootstrap intervals of means.

The t-test is ours because the import of `scipy.stats` takes longer than all tests, the corrections because scipy has
no Holm or Bonferroni. The permutation test and the bootstrap are ours because scipy's draw again for every statistic;
here, all runs and measures of the same queries share the draws, so that their results are comparable.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import draws
from hybrid_cli.evaluation.options import Correction, Significance

ALPHA, PERMUTATIONS = 0.05, 10_000
RESAMPLES, CONFIDENCE = 1_000, 0.95
DRAWS_AT_ONCE = 1 << 22  # entries of a matrix of random draws held in memory


def paired_t(differences: np.ndarray) -> np.ndarray:
    """Return the two-sided p-values of Student's paired t-test.

    Args:
        differences: [queries, comparisons].

    Returns:
        [comparisons]; 1 where all differences are 0, NaN for fewer than two queries.
    """
    count = len(differences)
    if count < 2:
        return np.full(differences.shape[1], np.nan)
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):  # of differences that are all equal, for which p is 0
        statistic = differences.mean(0) / np.sqrt(differences.var(0, ddof=1) / count)
    return np.asarray(np.where(differences.any(0), 2 * stdtr(count - 1, -np.abs(statistic)), 1.0))


def sign_flip(
    differences: np.ndarray, permutations: int = PERMUTATIONS, seed: int = Significance.seed, greater: bool = False
) -> np.ndarray:
    """Return the p-values of the sign-flip permutation test: (1 + as extreme) / (1 + permutations).

    Under the null hypothesis, the difference of each query is equally likely to have either sign.

    Args:
        differences: [queries, comparisons]; all comparisons share the flips.
        permutations: number of random flips.
        seed: random seed.
        greater: one-sided: sums as high as that of the differences are extreme; by default two-sided.
    """
    count, comparisons = differences.shape
    if count < 1:
        return np.full(comparisons, np.nan)
    rng = draws.rng(seed)
    total = differences.sum(0)
    one_sided = np.asarray if greater else np.abs
    observed = one_sided(total) - 1e-12 * np.abs(differences).sum(0)  # tolerance for the order of the summation
    extreme = np.zeros(comparisons, dtype=np.int64)
    rows = max(1, DRAWS_AT_ONCE // count)
    for begin in range(0, permutations, rows):
        size = min(rows, permutations - begin)
        bits = np.unpackbits(rng.integers(0, 256, (size, (count + 7) // 8), dtype=np.uint8), axis=1, count=count)
        # sum of s*d with s = 1 - 2*bit
        extreme += (one_sided(total - 2 * (bits.astype(np.float64) @ differences)) >= observed).sum(0)
    return (extreme + 1) / (permutations + 1)


def bonferroni(p: np.ndarray) -> np.ndarray:
    """Multiply each p by the number of comparisons, at most 1."""
    return np.asarray(np.minimum(p * len(p), 1.0))


def holm(p: np.ndarray) -> np.ndarray:
    """Adjust p by Holm's step-down method (Holm): the i-th smallest of m times m - i + 1, ascending, at most 1."""
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return adjusted


def correct_p_values(p: np.ndarray, correction: Correction) -> np.ndarray:
    """Correct the p-values of one family of comparisons; NaN is ignored."""
    if correction == "none":
        return p
    adjust = holm if correction == "holm" else bonferroni
    tested = ~np.isnan(p)
    result = np.full_like(p, np.nan)
    result[tested] = adjust(p[tested])
    return result


def compare(
    values: pl.DataFrame,
    baselines: list[str],
    *,
    correction: Correction = Significance.correction,
    seed: int = Significance.seed,
) -> pl.DataFrame:
    """Compare each run with each baseline. The comparisons of one measure are one family.

    Args:
        values: run, measure, qid, value; within a measure, all runs have the same queries.
        baselines: names of runs; two baselines are compared once.
        correction: correction of each family.
        seed: see `sign_flip`.

    Returns:
        measure, run, baseline, queries, difference (mean of run minus that of the baseline), wins, losses, ties,
        p_t, p_t_corrected, p_permutation, p_permutation_corrected.
    """
    pairs = _pairs(values["run"].unique(maintain_order=True).to_list(), baselines)
    frames = [
        _compare_measure(str(name), group, pairs, correction, seed)
        for (name,), group in values.group_by("measure", maintain_order=True)
    ]
    return pl.concat(frames) if frames else pl.DataFrame()


def _pairs(runs: list[str], baselines: list[str]) -> list[tuple[str, str]]:
    """Return (run, baseline) pairs; two baselines form one pair, the later with the earlier."""
    rank = {name: position for position, name in enumerate(baselines)}
    return [(run, name) for run in runs for name in baselines if rank.get(run, len(rank)) > rank[name]]


def _compare_measure(
    measure: str, values: pl.DataFrame, pairs: list[tuple[str, str]], correction: Correction, seed: int
) -> pl.DataFrame:
    wide = values.pivot(on="run", index="qid", values="value", maintain_order=True)
    differences = np.empty((len(wide), len(pairs)))
    for column, (run, baseline) in enumerate(pairs):
        differences[:, column] = (wide[run] - wide[baseline]).to_numpy()
    p_t, p_permutation = paired_t(differences), sign_flip(differences, seed=seed)
    return pl.DataFrame(
        {
            "measure": pl.Series([measure] * len(pairs), dtype=pl.String),
            "run": pl.Series([run for run, _ in pairs], dtype=pl.String),
            "baseline": pl.Series([baseline for _, baseline in pairs], dtype=pl.String),
            "queries": pl.Series([len(wide)] * len(pairs), dtype=pl.Int64),
            "difference": differences.mean(0),
            "wins": (differences > 0).sum(0),
            "losses": (differences < 0).sum(0),
            "ties": (differences == 0).sum(0),
            "p_t": p_t,
            "p_t_corrected": correct_p_values(p_t, correction),
            "p_permutation": p_permutation,
            "p_permutation_corrected": correct_p_values(p_permutation, correction),
        }
    )


# ---------------------------------------------------------------------------------------------------------- intervals


def bootstrap(
    values: npt.NDArray[np.float64], resamples: int, confidence: float, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return percentile bootstrap intervals of column means (Bootstrap).

    Args:
        values: [queries, columns]; all columns share the draws of queries.
        resamples: number of draws.
        confidence: fraction of the resampled means inside the interval, such as .95.
        seed: random seed.

    Returns:
        Lower and upper ends, [columns] each.
    """
    count, columns = values.shape
    rng = draws.rng(seed)
    means = np.empty((resamples, columns))
    rows = max(1, DRAWS_AT_ONCE // count)
    for begin in range(0, resamples, rows):
        size = min(rows, resamples - begin)
        drawn = rng.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        often = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        means[begin : begin + size] = often.astype(np.float64) @ values / count
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def intervals(
    values: pl.DataFrame, *, seed: int, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> pl.DataFrame:
    """Return the confidence interval of every mean.

    Args:
        values: run, measure, qid, value; within a measure, all runs have the same queries.
        resamples, confidence, seed: see `bootstrap`.

    Returns:
        run, measure, mean, low, high: in the order of `values`.
    """
    frames = []
    for group in _over_the_same_queries(values):
        columns = group.select("run", "measure").unique(maintain_order=True)
        matrix = np.column_stack(
            [part["value"].to_numpy() for part in group.partition_by("run", "measure", maintain_order=True)]
        )
        low, high = bootstrap(matrix, resamples, confidence, seed)
        frames.append(columns.with_columns(mean=pl.Series(matrix.mean(0)), low=pl.Series(low), high=pl.Series(high)))
    order = values.select("run", "measure").unique(maintain_order=True)
    return order.join(pl.concat(frames), on=["run", "measure"], how="left", maintain_order="left")


def _over_the_same_queries(values: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the values of measures that have the same queries in the same order."""
    groups: list[tuple[pl.Series, list[str]]] = []
    for (name,), rows in values.group_by("measure", maintain_order=True):
        qids = rows.filter(run=rows["run"][0])["qid"]
        same = next((names for known, names in groups if known.equals(qids)), None)
        if same is None:
            groups.append((qids, [str(name)]))
        else:
            same.append(str(name))
    for _, names in groups:
        yield values.filter(pl.col("measure").is_in(names))
