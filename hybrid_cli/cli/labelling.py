"""The command `label` of the panel "Training"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybrid_cli import config
from hybrid_cli.cli.common import Output, Seed, Split, Threads, option
from hybrid_cli.config import Labelling

TEACHER = "The teacher, one of two"
QUERIES = "The queries"
HITS = "What the teacher may find"


def label(
    collection: Annotated[Path, typer.Argument(help="A collection, for its corpus.")],
    output: Output,
    index: Annotated[Path | None, option(TEACHER, "BM25: a lexical index of the collection.")] = None,
    run: Annotated[Path | None, option(TEACHER, "Any other ranking of the given queries: a run.")] = None,
    queries_from: Annotated[
        config.QueriesFrom,
        option(
            QUERIES, "All sentences; SPAR's sample by title and position; that sample cropped to a question's length."
        ),
    ] = Labelling.queries_from,
    split: Split = None,
    queries: Annotated[
        Path | None, option(QUERIES, "Given queries in place of sentences, as --split.", show_default=False)
    ] = None,
    max_queries: Annotated[
        int | None, option(QUERIES, "A random part of so many; all if not given.", min=1, show_default=False)
    ] = None,
    depth: Annotated[int, option(HITS, "Documents kept for each query.", min=1)] = Labelling.depth,
    keep_own: Annotated[
        bool, option(HITS, "The passage that a sentence was taken from.", "--keep-own/--drop-own")
    ] = Labelling.keep_own,
    keep_same_text: Annotated[
        bool, option(HITS, "Passages whose whole text the query is.", "--keep-same-text/--drop-same-text")
    ] = Labelling.keep_same_text,
    seed: Seed = Labelling.seed,
    threads: Threads = None,
    overwrite: bool = False,
) -> None:
    """Label queries with what BM25, or another ranking, finds: what SPAR's Lambda learns to imitate.

    The queries are sentences of the corpus, or given ones with --split or --queries. Those without a hit are dropped
    and counted. Stopped anywhere, the same command goes on where it was.

    Example: `hybrid label data/pydocs --index out/bm25 --max-queries 100000 --output out/labels`
    """
    from hybrid_cli.stages.label import label

    how = Labelling(
        queries_from=queries_from,
        max_queries=max_queries,
        depth=depth,
        keep_own=keep_own,
        keep_same_text=keep_same_text,
        seed=seed,
    )
    label(
        collection,
        output=output,
        index=index,
        run=run,
        split=split,
        queries=queries,
        how=how,
        threads=threads,
        overwrite=overwrite,
    )
