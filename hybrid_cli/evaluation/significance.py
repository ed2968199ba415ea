"""Whether two runs differ by more than chance: paired tests on the values of the same queries, corrected for many.

Both tests are two-sided. Differences are matrices [queries, comparisons], so all comparisons share one set of flips.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import polars as pl
from scipy import stats

from hybrid_cli.config import Correction
from hybrid_cli.errors import InputError

CORRECTIONS: tuple[Correction, ...] = get_args(Correction)

_FLIPS_AT_ONCE = 1 << 22  # signs held in memory


def paired_t(differences: np.ndarray) -> np.ndarray:
    """p of Student's paired t-test for each column of [n, m]; 1 where all differences are 0, NaN for n < 2."""
    count = len(differences)
    if count < 2:
        return np.full(differences.shape[1], np.nan)
    mean, spread = differences.mean(0), differences.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = mean / (spread / np.sqrt(count))
    p = 2 * stats.t.sf(np.abs(t), count - 1)
    return np.asarray(np.where(differences.any(0), p, 1.0))


def sign_flip(differences: np.ndarray, permutations: int = 10_000, seed: int = 42) -> np.ndarray:
    """p of the permutation test for each column of [n, m]: (1 + as extreme) / (1 + permutations).

    Under the null hypothesis a query's difference has either sign; as extreme is a mean as far from 0 as the observed.
    """
    count, comparisons = differences.shape
    if count < 1:
        return np.full(comparisons, np.nan)
    rng = np.random.default_rng(seed)
    total = differences.sum(0)
    observed = np.abs(total) - 1e-12 * np.abs(differences).sum(0)  # sums in another order round differently
    extreme = np.zeros(comparisons, dtype=np.int64)
    rows = max(1, _FLIPS_AT_ONCE // count)
    for begin in range(0, permutations, rows):
        size = min(rows, permutations - begin)
        bits = np.unpackbits(rng.integers(0, 256, (size, (count + 7) // 8), dtype=np.uint8), axis=1, count=count)
        # sum of s*d with s = 1 - 2*bit
        extreme += (np.abs(total - 2 * (bits.astype(np.float64) @ differences)) >= observed).sum(0)
    return (extreme + 1) / (permutations + 1)


def bonferroni(p: np.ndarray) -> np.ndarray:
    """Each p times the number of comparisons, at most 1."""
    return np.asarray(np.minimum(p * len(p), 1.0))


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down: the i-th smallest of m times m - i + 1, never below the one before, at most 1."""
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return adjusted


def corrected(p: np.ndarray, correction: Correction) -> np.ndarray:
    """The p-values of one family of comparisons, corrected; what could not be tested (NaN) is none of the family."""
    if correction not in CORRECTIONS:
        raise InputError(f"correction '{correction}' is unknown; there are {', '.join(CORRECTIONS)}")
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
    correction: Correction = "holm",
    permutations: int = 10_000,
    seed: int = 42,
) -> pl.DataFrame:
    """Compare each run with each baseline, measure by measure; a family of comparisons is that of one measure.

    Args:
        values: run, measure, qid, value: for each measure the same queries in every run.
        baselines: names of runs; two baselines are compared once.

    Returns:
        measure, run, baseline, queries, difference (mean of run minus that of the baseline), wins, losses, ties,
        p_t, p_t_corrected, p_permutation, p_permutation_corrected.
    """
    pairs = _pairs(values["run"].unique(maintain_order=True).to_list(), baselines)
    frames = [
        _compare_measure(str(name), group, pairs, correction, permutations, seed)
        for (name,), group in values.group_by("measure", maintain_order=True)
    ]
    return pl.concat(frames) if frames else pl.DataFrame()


def _pairs(runs: list[str], baselines: list[str]) -> list[tuple[str, str]]:
    """(run, baseline): all but a baseline with itself, and of two baselines the later against the earlier."""
    rank = {name: position for position, name in enumerate(baselines)}
    return [(run, name) for run in runs for name in baselines if rank.get(run, len(rank)) > rank[name]]


def _compare_measure(
    measure: str,
    values: pl.DataFrame,
    pairs: list[tuple[str, str]],
    correction: Correction,
    permutations: int,
    seed: int,
) -> pl.DataFrame:
    wide = values.pivot(on="run", index="qid", values="value", maintain_order=True)
    differences = np.empty((len(wide), len(pairs)))
    for column, (run, baseline) in enumerate(pairs):
        differences[:, column] = (wide[run] - wide[baseline]).to_numpy()
    p_t, p_permutation = paired_t(differences), sign_flip(differences, permutations, seed)
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
            "p_t_corrected": corrected(p_t, correction),
            "p_permutation": p_permutation,
            "p_permutation_corrected": corrected(p_permutation, correction),
        }
    )
