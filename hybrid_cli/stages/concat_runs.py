"""`concat-runs`: concatenate runs of different queries."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections.searched import refuse_other_corpora
from hybrid_cli.errors import InputError
from hybrid_cli.settings import ConcatRuns, stage


@stage(ConcatRuns)
def concat_runs(settings: ConcatRuns) -> Path:
    """Concatenate runs without changing ranks, scores or order. Memory holds a block of queries.

    Returns:
        Path of the new run.

    Raises:
        InputError: fewer than two runs, two runs that answer the same query, or runs of other corpora.
    """
    if len(settings.runs) < 2:
        raise InputError("concat-runs: needs two or more runs, got 1")
    refuse_other_corpora({str(path): path for path in settings.runs})
    output = artifacts.output_of(
        settings, Kind.RUN, {f"run {number}": path for number, path in enumerate(settings.runs, 1)}
    )
    if output.up_to_date:
        return output.path
    parts = [runs.open_run(path) for path in settings.runs]
    home: dict[str, Path] = {}
    for path, part in zip(settings.runs, parts, strict=True):
        qids = part.qids.to_list()
        if again := [qid for qid in qids if qid in home]:
            raise InputError(
                f"{path}: query {again[0]} is also in {home[again[0]]} ({len(again):,} such queries); "
                "use `hybrid fuse` for runs of the same queries"
            )
        home |= dict.fromkeys(qids, path)
    written = output.write((block.to_arrow() for part in parts for block in part.blocks()), queries=len(home))
    hits = written.counts["rows"]
    console.note(f"concat-runs: {output.path}: {len(home):,} queries, {hits:,} hits of {len(parts)} runs")
    return output.path
