"""`concat-runs`: concatenate runs of different queries."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections.searched import refuse_other_corpora
from hybrid_cli.errors import InputError
from hybrid_cli.settings import ConcatRuns, stage


@stage(ConcatRuns)
def concat_runs(settings: ConcatRuns) -> Path:
    """Concatenate runs without changing ranks, scores or order.

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
    parts = [runs.read_run(path) for path in settings.runs]
    home: dict[str, Path] = {}
    for path, part in zip(settings.runs, parts, strict=True):
        qids = part["qid"].unique(maintain_order=True).to_list()
        if again := [qid for qid in qids if qid in home]:
            raise InputError(
                f"{path}: query {again[0]} is also in {home[again[0]]} ({len(again):,} such queries); "
                "use `hybrid fuse` for runs of the same queries"
            )
        home |= dict.fromkeys(qids, path)
    whole = pl.concat(parts)
    output.write([whole.to_arrow()], queries=len(home))
    console.note(f"concat-runs: {output.path}: {len(home):,} queries, {len(whole):,} hits of {len(parts)} runs")
    return output.path
