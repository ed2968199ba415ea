"""`concat-runs`: concatenate runs of different queries."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.commands import ConcatRuns
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.passages import MAX, PASSAGE
from hybrid_cli.runs.groups import by_document
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind


@stage(ConcatRuns)
def concat_runs(settings: ConcatRuns) -> Path:
    """Concatenate runs without changing ranks, scores or order; with `group`, aggregate passages to documents.

    Memory holds a block of queries.

    Returns:
        Path of the new run.

    Raises:
        InputError: fewer than two runs, two runs that answer the same query, runs of other corpora, or a document that
            is no passage.
    """
    if len(settings.runs) < 2 and settings.group is None:
        raise InputError("concat-runs: needs two or more runs, got 1", code="too-few-runs", option="runs")
    belongs_together(settings.runs)
    inputs = {f"run {number}": path for number, path in enumerate(settings.runs, 1)}
    output = artifacts.output_of(settings, Kind.RUN, inputs)
    if output.up_to_date:
        return output.path
    parts = [runs.open_run(path) for path in settings.runs]
    home: dict[str, Path] = {}
    for path, part in zip(settings.runs, parts, strict=True):
        qids = part.qids.to_list()
        if again := [qid for qid in qids if qid in home]:
            problem = f"query {again[0]} is also in {home[again[0]]} ({len(again):,} in all); use `hybrid fuse`"
            raise path_error(path, problem, code="duplicate-query", id=again[0], other=home[again[0]], count=len(again))
        home |= dict.fromkeys(qids, path)
    blocks = (_aggregate(block, settings) for part in parts for block in part.blocks())
    written = output.write((block.to_arrow() for block in blocks), queries=len(home))
    hits = written.counts["rows"]
    counted = f"{console.counted(query=len(home), hit=hits)} of {console.counted(run=len(parts))}"
    output.note(counted, queries=len(home), hits=hits, runs=len(parts))
    return output.path


def _aggregate(block: pl.DataFrame, settings: ConcatRuns) -> pl.DataFrame:
    """Return the hits of whole queries, with documents in place of their passages."""
    if settings.group is None:
        return block
    other = block.filter(~pl.col("docid").str.contains(PASSAGE))
    if len(other):
        problem = f"document {other['docid'][0]} is no passage DOCID#NUMBER of `prepare --split-passages`"
        raise option_error("group", settings.group, problem, code="not-a-passage")
    return by_document(block, MAX).select(runs.SCHEMA.names())
