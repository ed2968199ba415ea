"""The smallest index that finds enough: candidates from compact to large, each built and searched."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hybrid_cli import console
from hybrid_cli.config import IndexType, RecallCheck, VectorIndex
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.build import DOCIDS, INDEX, build, factory_string
from hybrid_cli.indexes.recall import measure_recall, opened
from hybrid_cli.indexes.shards import read_ids, read_shard, shard_path, shards, write_shard
from hybrid_cli.indexes.sizes import code_size

CANDIDATES: tuple[IndexType, ...] = ("binary", "pq", "sq8", "fp16", "flat")
_TIMED = 64  # queries


@dataclass(frozen=True)
class Tried:
    """What was measured of one candidate.

    Attributes:
        documents: how many were indexed: a sample, or all.
        size: bytes of a document, with what the index holds besides codes.
        recall: share of the exact hits that it finds.
        milliseconds: of a query, in a batch.
    """

    index_type: IndexType
    factory: str
    documents: int
    size: float
    recall: float
    milliseconds: float


def choose(
    folder: Path, recipe: VectorIndex, advance: Callable[[int], None] = lambda n: None
) -> tuple[str, list[Tried]]:
    """Build the smallest index of the shards in `folder` whose recall is enough.

    Of a large collection a candidate is measured on a sample first; the one that passes is built of all vectors and
    measured again, and counts only if it passes there too. Graphs are no candidates, since they cost memory, nor are
    rotated product codes, whose training takes minutes.

    Args:
        advance: told of every index built.

    Returns:
        Its factory string, and all that was tried, in order.

    Raises:
        InputError: none is good enough within the memory.
    """
    choice, tried = recipe.choice, list[Tried]()
    dim, count = read_shard(shards(folder)[0]).shape[1], len(read_ids(folder))
    with tempfile.TemporaryDirectory() as scratch:
        places = [*([_sampled(folder, Path(scratch), recipe)] if count > choice.sample else []), folder]
        for kind in CANDIDATES:
            candidate = replace(recipe, index_type=kind)
            needed = (code_size(factory_string(candidate, dim, count), dim) or 0) * count
            if needed <= choice.ram and _passes(places, candidate, tried, advance):
                needed = sum((folder / part).stat().st_size for part in (INDEX, DOCIDS))
                if needed <= choice.ram:
                    break
            if needed > choice.ram:
                raise InputError(
                    f"no index with recall@{choice.cutoff} >= {choice.min_recall:g} fits in --ram "
                    f"{console.size(choice.ram)}: {kind} needs {console.size(needed)}; give more, or lower --min-recall"
                )
    return tried[-1].factory, tried


def _passes(places: Sequence[Path], recipe: VectorIndex, tried: list[Tried], advance: Callable[[int], None]) -> bool:
    """Whether a candidate finds enough in each of the folders, in turn."""
    for place in places:
        found = _try(place, recipe)
        if found is None:
            return False
        tried.append(found)
        advance(1)
        if found.recall < recipe.choice.min_recall:
            return False
    return True


def _try(folder: Path, recipe: VectorIndex) -> Tried | None:
    """Build one candidate and measure it; None where there are too few vectors to train it."""
    docids, dim = read_ids(folder), read_shard(shards(folder)[0]).shape[1]
    try:
        factory = build(folder, recipe)
    except InputError:
        return None
    cutoff = recipe.choice.cutoff
    check = RecallCheck(cutoffs=(cutoff,), seed=recipe.seed)
    recall = measure_recall(folder, factory, check).get(f"recall@{cutoff}", 1.0)
    index = opened(folder, docids, factory, dim)
    queries = index.vectors_of(np.arange(min(_TIMED, len(docids))))
    start = time.perf_counter()
    index.search(queries, [str(row) for row in range(len(queries))], cutoff)
    milliseconds = 1e3 * (time.perf_counter() - start) / len(queries)
    size = (folder / INDEX).stat().st_size / len(docids)
    return Tried(recipe.index_type or "flat", factory, len(docids), size, recall, milliseconds)


def _sampled(folder: Path, target: Path, recipe: VectorIndex) -> Path:
    """A folder with some of the vectors, drawn evenly."""
    docids = read_ids(folder)
    rows = np.sort(np.random.default_rng(recipe.seed).choice(len(docids), recipe.choice.sample, replace=False))
    begin = 0
    for number, path in enumerate(shards(folder)):
        matrix = read_shard(path)
        mine = rows[(rows >= begin) & (rows < begin + len(matrix))]
        if len(mine):
            write_shard(shard_path(target, number), docids.gather(mine).to_arrow(), matrix[mine - begin])
        begin += len(matrix)
    return target
