"""Index type `auto`: build candidates from compact to large and keep the first with enough recall."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybrid_cli import console, draws
from hybrid_cli.artifacts.layout import DOCIDS, FAISS_INDEX
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.build import build
from hybrid_cli.indexes.faiss import code_size, factory_string
from hybrid_cli.indexes.measure import measure_recall, unfinished
from hybrid_cli.indexes.shards import read_ids, read_shard, shard_path, shards, write_shard
from hybrid_cli.settings import VectorIndex
from hybrid_cli.settings.dense import IndexType

CANDIDATES: tuple[IndexType, ...] = ("binary", "pq", "sq8", "fp16", "flat")
CUTOFF = 100  # hits of which a candidate must find enough
SAMPLE = 50_000  # documents on which the candidates for a larger collection are tried first
_TIMED = 64  # queries


@dataclass(frozen=True)
class Candidate:
    """Measurements of one candidate.

    Attributes:
        index_type: index type.
        factory: FAISS factory string.
        documents: number of indexed documents: a sample, or all.
        size: bytes per document, everything in FAISS's file included.
        recall: share of the exact hits that the index finds.
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
    cutoff: int = CUTOFF,
    sample: int = SAMPLE,
) -> list[Candidate]:
    """Build the smallest index of the shards in `folder` that has enough recall.

    For a collection larger than `sample`, a candidate is first measured on a sample; one that passes is built of all
    vectors and measured again. Graphs are not candidates because they cost memory, rotated product codes because their
    training takes minutes.

    Args:
        folder: folder with shards of vectors; the index is written to it.
        recipe: bounds on memory and recall, seed, and bytes of product codes.
        advance: called for every index built.
        cutoff: hits of which `recipe.min_recall` must be found.
        sample: maximum size of the sample.

    Returns:
        All candidates in the order of their trial; the last one is the index in `folder`.

    Raises:
        InputError: no candidate has enough recall within the memory.
    """
    tried: list[Candidate] = []
    dim, count = read_shard(shards(folder)[0]).shape[1], len(read_ids(folder))
    with tempfile.TemporaryDirectory() as scratch:
        places = [*([_sampled(folder, Path(scratch), recipe.seed, sample)] if count > sample else []), folder]
        for kind in CANDIDATES:
            candidate = VectorIndex(
                index_type=kind, seed=recipe.seed, pq_bytes=recipe.pq_bytes if kind == "pq" else None
            )
            needed = (code_size(factory_string(candidate, dim, count), dim) or 0) * count
            if _fits(needed, recipe):
                found = _measured(places, candidate, cutoff, recipe.min_recall, advance)
                tried += found
                if len(found) < len(places) or found[-1].recall < recipe.min_recall:
                    continue
                needed = sum((folder / part).stat().st_size for part in (FAISS_INDEX, DOCIDS))
                if _fits(needed, recipe):
                    break
            raise InputError(
                f"no index with recall@{cutoff} >= {recipe.min_recall:g} fits in --ram "
                f"{console.size(recipe.ram or 0)}: {kind} needs {console.size(needed)}; raise --ram, or lower "
                "--min-recall"
            )
    return tried


def _fits(size: int, recipe: VectorIndex) -> bool:
    return recipe.ram is None or size <= recipe.ram


def _measured(
    places: Sequence[Path], recipe: VectorIndex, cutoff: int, least: float, advance: Callable[[int], None]
) -> list[Candidate]:
    """Measure a candidate in each folder in turn, until one lacks vectors to train it or has too little recall."""
    found: list[Candidate] = []
    for place in places:
        measured = _measure(place, recipe, cutoff)
        if measured is None:
            break
        found.append(measured)
        advance(1)
        if measured.recall < least:
            break
    return found


def _measure(folder: Path, recipe: VectorIndex, cutoff: int) -> Candidate | None:
    """Build and measure one candidate; None where there are too few vectors to train it."""
    try:
        factory = build(folder, recipe)
    except InputError:
        return None
    docids = read_ids(folder)
    recall = measure_recall(folder, factory, recipe.seed, cutoffs=(cutoff,)).get(f"recall@{cutoff}", 1.0)
    index = unfinished(folder, docids, factory)
    queries = index.vectors_of(np.arange(min(_TIMED, len(docids))))
    start = time.perf_counter()
    index.search(queries, [str(row) for row in range(len(queries))], cutoff)
    milliseconds = 1e3 * (time.perf_counter() - start) / len(queries)
    size = (folder / FAISS_INDEX).stat().st_size / len(docids)
    return Candidate(recipe.index_type or "flat", factory, len(docids), size, recall, milliseconds)


def _sampled(folder: Path, target: Path, seed: int, sample: int) -> Path:
    """Write some of the vectors, drawn evenly, to a folder of their own."""
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
