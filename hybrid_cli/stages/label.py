"""`label`: label queries with their top hits by BM25, by a retriever or in a run, for training a Lambda."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts, cluster, console, runs, storage
from hybrid_cli.artifacts import Output
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.indexes import shards_of
from hybrid_cli.artifacts.opening import open_lexical
from hybrid_cli.artifacts.retrievers import RetrieverFiles, is_retriever, of_auto, open_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Label, SearchOptions
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.shards import progress
from hybrid_cli.lexical.options import ENGLISH
from hybrid_cli.memory import cpu_count
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.runs import Run
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind
from hybrid_cli.training import labels
from hybrid_cli.training.labels import Queries, matrix_teacher, retriever_teacher, run_teacher

SHARDS_AT_ONCE = 2  # analysis, search and writing of one shard run one after the other
QUESTIONS = "train"  # split with the queries whose lengths cropped sentences get

Labeller: TypeAlias = Callable[[pl.DataFrame], pa.Table]  # from queries to their labels


@stage(Label)
def label(settings: Label) -> Path:
    """Label queries with the top hits of a teacher, and write them in shards.

    Memory holds two shards of sentences and their hits, and given queries whole. Labels of a run are in its order, so
    that its hits are read in place. After an interruption, the same call resumes with the first missing shard.

    Returns:
        Path of the folder with the labels.

    Raises:
        InputError: unusable inputs or options, an index or a run of another corpus, or no query has a hit.
    """
    inputs, options = _inputs(settings), settings.recorded()
    options |= {"order": "run"} if "run" in inputs else {}  # shards in the order of the queries cannot be resumed
    output = artifacts.output_of(settings, Kind.LABELS, inputs, options)
    if output.up_to_date:
        return output.path
    run = runs.open_run(inputs["run"], by_qid=False) if "run" in inputs else None
    queries = _queries(settings, inputs, run)
    with output.folder() as (work, counts):
        start = partial(_labeller, settings.of_worker(), inputs, None if settings.ray_address else run)
        counts |= queries.counts | _write(settings, output, work, queries, start)
        if not counts["labelled"]:
            raise InputError(f"{settings.collection}: the teacher has no hit for any query", code="no-hits")
    queries_labelled, hits, without = (counts[name] for name in ("labelled", "hits", "without_hits"))
    text = f"{console.counted(query=queries_labelled, hit=hits)}; {without:,} without hits dropped"
    output.note(text, queries=queries_labelled, hits=hits, without_hits=without)
    return output.path


def _inputs(settings: Label) -> dict[str, Path]:
    """Return the inputs that affect the labels, by role."""
    collection = settings.collection
    inputs = {"corpus": collections.corpus_path(collection)}
    if settings.index is not None:
        inputs["index"] = index = of_auto(settings.index)
        if is_retriever(index):
            files = RetrieverFiles.read(index)
            indexes = {files.indexes[0]: files.manifests[0]}
        else:
            indexes = {index: [artifacts.read_manifest(index, Kind.LEXICAL_INDEX)]}
        belongs_together(indexes=indexes, corpus=inputs["corpus"])
    if settings.run is not None:
        inputs["run"] = settings.run
        belongs_together([settings.run], corpus=inputs["corpus"])
    if settings.split is not None or settings.queries is not None:
        inputs["queries"] = collections.queries_path(settings.queries or collection, settings.split)
    elif settings.queries_from == "cropped" and QUESTIONS in collections.splits(collection):
        inputs["questions"] = collections.queries_path(collection, QUESTIONS)
    return inputs


def _queries(settings: Label, inputs: dict[str, Path], run: Run | None) -> Queries:
    if "queries" in inputs:
        return labels.given_queries(inputs["queries"], settings, run)
    index = inputs["index"]
    lexical = RetrieverFiles.read(index).of_kind(Kind.LEXICAL_INDEX) if is_retriever(index) else [index]
    language = next(iter(shards_of(lexical[0]).values())).options["language"] if lexical else ENGLISH
    return labels.sentence_queries(inputs["corpus"], inputs.get("questions"), language, settings)


def _labeller(settings: Label, inputs: dict[str, Path], run: Run | None) -> Labeller:
    """Open the teacher, or its run on another machine; return a function from queries to their labels."""
    if "run" in inputs:
        hits = run or runs.open_run(inputs["run"], by_qid=False)
        queries = collections.read_queries(inputs["queries"])
        teacher = run_teacher(inputs["run"], hits, queries, inputs["corpus"], settings.depth)
    elif is_retriever(inputs["index"]):
        options = SearchOptions(threads=settings.threads, group=NO_GROUPS)
        teacher = retriever_teacher(open_retriever(RetrieverFiles.read(inputs["index"]), options), settings.depth)
    else:
        teacher = matrix_teacher(open_lexical(inputs["index"], threads=settings.threads), settings.depth)
    return lambda asked: labels.labelled(asked, teacher(asked))


def _write(
    settings: Label, output: Output, work: Path, queries: Queries, start: Callable[[], Labeller]
) -> dict[str, int]:
    """Label shard after shard; shards that an interrupted call completed are kept."""
    size = labels.shard_size(settings.depth)
    counts = {"queries": queries.total, "labelled": 0, "without_hits": 0, "hits": 0, "shards": 0}
    started: deque[tuple[Path, int]] = deque()  # path and number of queries of the shards in progress

    def count(path: Path, asked: int) -> None:
        counts["labelled"] += storage.row_count(path)
        counts["without_hits"] += asked - storage.row_count(path)
        counts["hits"] += artifacts.read_manifest(path, Kind.LABELS).counts["hits"]
        counts["shards"] += 1

    def missing() -> Iterator[pl.DataFrame]:
        for number, shard in enumerate(storage.regroup((block.to_arrow() for block in queries.blocks), size)):
            path = labels.shard_path(work, number)
            if path.exists():
                count(path, len(shard))
            else:
                started.append((path, len(shard)))
                yield pl.DataFrame(pl.from_arrow(shard))

    workers = min(SHARDS_AT_ONCE, settings.threads or cpu_count())
    with progress("label", partial(labels.shard_path, work), queries.total, size, "queries") as advance:
        for table in cluster.map_blocks(settings, start, missing(), local=workers):
            path, asked = started.popleft()
            labels.write_shard(path, table, output.manifest, hits=len(table["docids"].combine_chunks().flatten()))
            count(path, asked)
            advance(asked)
    storage.refuse_lost(labels.shard_path(work, number) for number in range(counts["shards"]))
    return counts
