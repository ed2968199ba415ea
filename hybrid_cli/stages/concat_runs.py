"""`join`: runs of different queries become one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError


def concat_runs(inputs: Sequence[Path], *, output: Path, overwrite: bool = False) -> Path:
    """Put runs one after the other as they are: their ranks, their scores, in the order of `inputs`.

    Raises:
        InputError: fewer than two runs, or two that answer the same query.
    """
    if len(inputs) < 2:
        raise InputError("concat-runs: needs two or more runs, got 1")
    claim = artifacts.claim(
        output,
        Kind.RUN,
        "concat-runs",
        inputs={f"run {number}": path for number, path in enumerate(inputs, 1)},
        options={},
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return output
    parts = [runs.read_run(path) for path in inputs]
    home: dict[str, Path] = {}
    for path, part in zip(inputs, parts, strict=True):
        qids = part["qid"].unique(maintain_order=True).to_list()
        if again := [qid for qid in qids if qid in home]:
            raise InputError(
                f"{path}: answers query {again[0]}, as {home[again[0]]} does ({len(again):,} such queries); "
                "a query belongs to one run, and `hybrid fuse` makes one of two"
            )
        home |= dict.fromkeys(qids, path)
    whole = pl.concat(parts)
    claim.write([whole.to_arrow()], queries=len(home))
    console.note(f"concat-runs: {output}: {len(home):,} queries, {len(whole):,} hits of {len(inputs)} runs")
    return output
