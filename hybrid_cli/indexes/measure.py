"""Recall and size of a dense index."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from hybrid_cli import draws
from hybrid_cli.artifacts.layout import DOCIDS, FAISS_INDEX, VECTORS
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.faiss import FLAT, FLOATS, code_size
from hybrid_cli.indexes.shards import read_ids, read_shard, shards

SAMPLE = 1_000  # stored documents that are searched with
CUTOFFS = (10, 100)
_STORED = "stored vectors"  # in place of a factory string: exact search of the shards


def measure_recall(
    folder: Path, factory: str, seed: int, sample: int = SAMPLE, cutoffs: tuple[int, ...] = CUTOFFS
) -> dict[str, float]:
    """Search an index and its stored vectors with some of the stored documents.

    Args:
        folder: folder of the index, with or without a manifest.
        factory: factory string, as `build` returned it.
        seed: random seed of the sample.
        sample: maximum number of documents that are searched with.
        cutoffs: numbers of hits.

    Returns:
        `recall@k` for each cutoff k: share of the k nearest neighbors of a document, itself excluded, among the first
        k hits of the index; empty for a flat index, which is exact.
    """
    if factory == FLAT:
        return {}
    from hybrid_cli.indexes.hybrid_search import HybridIndex  # imports numba

    docids = read_ids(folder)
    index, exact = unfinished(folder, docids, factory), unfinished(folder, docids, _STORED)
    rows = draws.sample(len(docids), sample, draws.rng(seed))
    queries, names = exact.vectors_of(rows), docids.gather(rows)
    asked = pl.DataFrame({"qid": names, "text": [""] * len(names)})
    depth = max(cutoffs) + 1
    found = _without_itself(index.search(queries, names.to_list(), depth))
    wanted = _without_itself(pl.concat(HybridIndex((exact,), (1.0,)).search_blocks([queries], asked, depth)))
    return {f"recall@{cutoff}": _recall(found, wanted, cutoff) for cutoff in cutoffs}


def unfinished(folder: Path, docids: pl.Series, factory: str) -> DenseIndex:
    """Open an index that has no manifest yet."""
    dim = read_shard(shards(folder)[0]).shape[1]
    return DenseIndex(folder, IndexInfo(len(docids), dim, factory=factory), docids)


def _without_itself(run: pl.DataFrame) -> pl.DataFrame:
    """Return the hits without the document that is the query, renumbered."""
    kept = run.filter(pl.col("qid") != pl.col("docid"))
    return kept.select("qid", "docid", place=pl.int_range(pl.len()).over("qid"))


def _recall(found: pl.DataFrame, wanted: pl.DataFrame, cutoff: int) -> float:
    best = wanted.filter(pl.col("place") < cutoff)
    common = best.join(found.filter(pl.col("place") < cutoff), on=["qid", "docid"], how="semi")
    return len(common) / len(best) if len(best) else 1.0


def footprint(folder: Path, info: IndexInfo) -> dict[str, int]:
    """Return the bytes of a dense index by purpose.

    Returns:
        `vectors` or `codes` of the documents; `graph`, `lists` or `tables` for the rest of FAISS's file (links,
        inverted lists with ids, or code books); `ids`; and `stored vectors`, which a search does not read. For an
        unknown factory string, FAISS's file is `index` as a whole.
    """
    whole = (folder / FAISS_INDEX).stat().st_size
    ids = (folder / DOCIDS).stat().st_size
    stored = sum(path.stat().st_size for path in (folder / VECTORS).iterdir())
    each = code_size(info.factory, info.dim)
    if each is None:
        return {"index": whole, "ids": ids, "stored vectors": stored}
    rest = "graph" if "HNSW" in info.factory else "lists" if "IVF" in info.factory else "tables"
    name = "vectors" if info.factory.rsplit(",", 1)[-1] in FLOATS else "codes"
    codes = each * info.vectors
    return {name: codes, rest: whole - codes, "ids": ids, "stored vectors": stored}
