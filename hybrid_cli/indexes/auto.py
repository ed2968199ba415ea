"""Recall and size of a dense index; index type `auto` keeps the most compact candidate with enough recall."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli import console, draws
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.indexes.construction import build, index_bytes
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.faiss import FLOATS, code_size, factory_string
from hybrid_cli.indexes.options import FLAT, VectorIndex
from hybrid_cli.indexes.shards import read_ids, read_shard, shard_path, shards, write_shard
from hybrid_cli.storage.layout import DOCIDS, FAISS_INDEX, VECTORS

RECALL_SAMPLE = 1_000  # stored documents used as queries
CUTOFFS = (10, 100)
_STORED = "stored vectors"  # exact search of the shards, in place of a factory string


def measure_recall(
    folder: Path, factory: str, seed: int, sample: int = RECALL_SAMPLE, cutoffs: tuple[int, ...] = CUTOFFS
) -> dict[str, float]:
    """Measure the recall of an index against exact search, with a sample of its documents as queries.

    Args:
        folder: folder of the index, with or without a manifest.
        factory: factory string returned by `build`.
        seed: random seed of the sample.
        sample: maximum number of queries.
        cutoffs: numbers of hits.

    Returns:
        `recall@k` for each cutoff k: fraction of the k nearest neighbors of a document, itself excluded, among the
        first k hits of the index; empty for a flat index, which is exact.
    """
    if factory == FLAT:
        return {}
    from hybrid_cli.indexes.hybrid_search import HybridIndex  # imports numba

    docids = read_ids(folder)
    index, exact = open_unfinished(folder, docids, factory), open_unfinished(folder, docids, _STORED)
    rows = draws.sample(len(docids), sample, draws.rng(seed))
    queries, names = exact.vectors_of(rows), docids.gather(rows)
    depth = max(cutoffs) + 1
    approximate = _without_itself(index.table(index.hits(queries, depth), names))
    wanted = _without_itself(exact.table(HybridIndex((exact,), (1.0,)).hits(([queries], None), depth), names))
    return {f"recall@{cutoff}": _recall(approximate, wanted, cutoff) for cutoff in cutoffs}


def open_unfinished(folder: Path, docids: pl.Series, factory: str) -> DenseIndex:
    """Open an index without manifest."""
    dim = read_shard(shards(folder)[0]).shape[1]
    return DenseIndex(folder, IndexInfo(len(docids), dim, factory=factory), docids)


def _without_itself(run: pl.DataFrame) -> pl.DataFrame:
    """Return the hits without the query's own document, ranked from 1."""
    kept = run.filter(pl.col("qid") != pl.col("docid"))
    return kept.select("qid", "docid", position=pl.int_range(pl.len()).over("qid"))


def _recall(hits: pl.DataFrame, wanted: pl.DataFrame, cutoff: int) -> float:
    best = wanted.filter(pl.col("position") < cutoff)
    common = best.join(hits.filter(pl.col("position") < cutoff), on=["qid", "docid"], how="semi")
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
    bytes_per_vector = code_size(info.factory, info.dim)
    if bytes_per_vector is None:
        return {"index": whole, "ids": ids, "stored vectors": stored}
    rest = "graph" if "HNSW" in info.factory else "lists" if "IVF" in info.factory else "tables"
    name = "vectors" if info.factory.rsplit(",", 1)[-1] in FLOATS else "codes"
    codes = bytes_per_vector * info.vectors
    return {name: codes, rest: whole - codes, "ids": ids, "stored vectors": stored}


CANDIDATES: tuple[str, ...] = ("binary", "pq", "sq8", "fp16", "flat")
RECALL_CUTOFF = 100  # exact hits that define the recall of a candidate
TRIAL_SAMPLE = 50_000  # documents of the first trial, for larger collections
_TIMED = 64  # queries


@dataclass(frozen=True)
class Candidate:
    """Measurements of one candidate.

    Attributes:
        index_type: index type.
        factory: FAISS factory string.
        documents: number of indexed documents, of a sample or of the collection.
        size: bytes per document, everything in FAISS's file included.
        recall: fraction of the exact hits that the index finds.
        milliseconds: time per query in a batch.
    """

    index_type: str
    factory: str
    documents: int
    size: float
    recall: float
    milliseconds: float


def choose(
    folder: Path,
    recipe: VectorIndex,
    advance: Callable[[int], None] = lambda n: None,
    *,
    cutoff: int = RECALL_CUTOFF,
    sample: int = TRIAL_SAMPLE,
) -> list[Candidate]:
    """Build the smallest index of the shards in `folder` with the required recall.

    For a collection larger than `sample`, a candidate is first measured on a sample; one that passes is built of all
    vectors and measured again. Graphs are not candidates because they cost memory, rotated product codes because their
    training takes minutes.

    Args:
        folder: folder with shards of vectors; the index is written to it.
        recipe: bounds on memory and recall, and seed.
        advance: called for every index built.
        cutoff: number of exact hits that define the recall.
        sample: maximum size of the sample.

    Returns:
        All measured candidates, in order; the last one is the index in `folder`.

    Raises:
        InputError: no candidate has the required recall within the memory.
    """
    tried: list[Candidate] = []
    dim, count = read_shard(shards(folder)[0]).shape[1], len(read_ids(folder))
    with tempfile.TemporaryDirectory() as scratch:
        folders = [*([_sampled(folder, Path(scratch), recipe.seed, sample)] if count > sample else []), folder]
        for needed, candidate in _by_size(recipe, dim, count):
            if _fits_memory(needed, recipe):
                candidates = _measured(folders, candidate, cutoff, recipe.min_recall, advance)
                tried += candidates
                if len(candidates) < len(folders) or candidates[-1].recall < recipe.min_recall:
                    continue
                needed = sum((folder / part).stat().st_size for part in (FAISS_INDEX, DOCIDS))
                if _fits_memory(needed, recipe):
                    break
            problem = f"no index with recall@{cutoff} >= {recipe.min_recall:g} fits"
            problem += f"; {candidate.index_type} needs {console.size(needed)}"
            raise option_error("memory", recipe.memory, problem, code="no-index-fits")
    return tried


def _by_size(recipe: VectorIndex, dim: int, count: int) -> list[tuple[int, VectorIndex]]:
    """Return the bytes and the recipe of each candidate, the smallest first; few vectors are less than code books."""
    candidates = [VectorIndex(index_type=kind, seed=recipe.seed) for kind in CANDIDATES]
    sizes = [index_bytes(factory_string(candidate.index_type, dim, count), dim, count) for candidate in candidates]
    return sorted(zip(sizes, candidates, strict=True), key=lambda pair: pair[0])


def _fits_memory(size: int, recipe: VectorIndex) -> bool:
    return recipe.memory is None or size <= recipe.memory


def _measured(
    folders: Sequence[Path], recipe: VectorIndex, cutoff: int, least: float, advance: Callable[[int], None]
) -> list[Candidate]:
    """Measure a candidate in each folder, until a folder has too few vectors to train it or the recall is too low."""
    candidates: list[Candidate] = []
    for folder in folders:
        measured = _measure(folder, recipe, cutoff)
        if measured is None:
            break
        candidates.append(measured)
        advance(1)
        if measured.recall < least:
            break
    return candidates


def _measure(folder: Path, recipe: VectorIndex, cutoff: int) -> Candidate | None:
    """Build and measure one candidate; return None if there are too few vectors to train it."""
    try:
        factory = build(folder, recipe)
    except InputError:
        return None
    docids = read_ids(folder)
    recall = measure_recall(folder, factory, recipe.seed, cutoffs=(cutoff,)).get(f"recall@{cutoff}", 1.0)
    index = open_unfinished(folder, docids, factory)
    queries = index.vectors_of(np.arange(min(_TIMED, len(docids))))
    start = time.perf_counter()
    index.hits(queries, cutoff)
    milliseconds = 1e3 * (time.perf_counter() - start) / len(queries)
    size = (folder / FAISS_INDEX).stat().st_size / len(docids)
    return Candidate(recipe.index_type or "flat", factory, len(docids), size, recall, milliseconds)


def _sampled(folder: Path, target: Path, seed: int, sample: int) -> Path:
    """Write an evenly drawn sample of the vectors to another folder."""
    docids = read_ids(folder)
    rows = draws.sample(len(docids), sample, draws.rng(seed))
    begin = 0
    for number, path in enumerate(shards(folder)):
        matrix = read_shard(path)
        mine = rows[(rows >= begin) & (rows < begin + len(matrix))]
        if len(mine):
            write_shard(shard_path(target, number), docids.gather(mine).to_arrow(), matrix[mine - begin])
        begin += len(matrix)
    return target
