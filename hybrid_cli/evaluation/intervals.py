"""How far the mean of a measure could lie elsewhere with other queries: percentile bootstrap intervals.

The queries are drawn anew, with replacement. Runs and measures over the same queries share the draws, so that their
intervals belong together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

_COUNTS_AT_ONCE = 1 << 22  # how often each query was drawn, held in memory


def bootstrap(
    values: npt.NDArray[np.float64], resamples: int, confidence: float, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The percentile interval of the mean of each column (Efron 1979).

    Args:
        values: [queries, columns].
        resamples: how often the queries are drawn.
        confidence: share of the resampled means inside, such as .95.

    Returns:
        Low and high ends, [columns] each.
    """
    count, columns = values.shape
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, columns))
    rows = max(1, _COUNTS_AT_ONCE // count)
    for begin in range(0, resamples, rows):
        size = min(rows, resamples - begin)
        drawn = rng.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        often = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        means[begin : begin + size] = often.astype(np.float64) @ values / count
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def intervals(values: pl.DataFrame, *, resamples: int, confidence: float, seed: int) -> pl.DataFrame:
    """The interval of every mean.

    Args:
        values: run, measure, qid, value: for each measure the same queries in every run.

    Returns:
        run, measure, mean, low, high: runs and measures in the order of `values`.
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
    """The measures in groups: those that go over the same queries, in the same order."""
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
