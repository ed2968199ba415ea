"""How much of the exact hits an approximate index finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.config import RecallCheck
from hybrid_cli.indexes.build import FLAT
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.shards import read_ids, read_shard, shards

_STORED = "stored vectors"  # in place of a factory string: nothing but the shards


def measure_recall(folder: Path, factory: str, how: RecallCheck) -> dict[str, float]:
    """Search the index in `folder`, finished or not, and its stored vectors with some of these.

    Args:
        factory: as `build` returned it.

    Returns:
        `recall@k` for each cutoff: of the k documents nearest to a stored document, itself left out, the share among
        the first k of the index; nothing for a flat index, which is exact.
    """
    if factory == FLAT:
        return {}
    from hybrid_cli.indexes.hybrid_search import HybridIndex  # brings numba

    docids, dim = read_ids(folder), read_shard(shards(folder)[0]).shape[1]
    index, exact = (opened(folder, docids, kind, dim) for kind in (factory, _STORED))
    rows = np.arange(len(docids))
    if len(rows) > how.sample:
        rows = np.sort(np.random.default_rng(how.seed).choice(len(rows), how.sample, replace=False))
    queries, names = exact.vectors_of(rows), docids.gather(rows)
    asked = pl.DataFrame({"qid": names, "text": [""] * len(names)})
    depth = max(how.cutoffs) + 1
    found = _without_itself(index.search(queries, names.to_list(), depth))
    wanted = _without_itself(pl.concat(HybridIndex((exact,), (1.0,)).search_blocks([queries], asked, depth)))
    return {f"recall@{cutoff}": _recall(found, wanted, cutoff) for cutoff in how.cutoffs}


def opened(folder: Path, docids: pl.Series, factory: str, dim: int) -> DenseIndex:
    """The index in a folder that has no manifest yet."""
    counts = {"factory": factory, "dim": dim}
    return DenseIndex(folder, Manifest(Kind.DENSE_INDEX, "encode", {}, {}, counts), docids)


def _without_itself(run: pl.DataFrame) -> pl.DataFrame:
    """The hits numbered anew without the document that asked."""
    kept = run.filter(pl.col("qid") != pl.col("docid"))
    return kept.select("qid", "docid", place=pl.int_range(pl.len()).over("qid"))


def _recall(found: pl.DataFrame, wanted: pl.DataFrame, cutoff: int) -> float:
    best = wanted.filter(pl.col("place") < cutoff)
    common = best.join(found.filter(pl.col("place") < cutoff), on=["qid", "docid"], how="semi")
    return len(common) / len(best) if len(best) else 1.0
