"""`prepare`: a source becomes a collection."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections.source import Source
from hybrid_cli.collections.writer import Intake, clear
from hybrid_cli.config import OnDangling, OnDuplicate, Preparation


def prepare(
    source: Source,
    *,
    output: Path,
    on_duplicate: OnDuplicate = Preparation.on_duplicate,
    on_dangling: OnDangling = Preparation.on_dangling,
    overwrite: bool = False,
) -> Path:
    """Write the collection that `source` reads into the folder `output`.

    Args:
        source: made by the module of its form, such as `beir.source(folder)`.
        output: the folder of the collection.
        on_duplicate: what becomes of an id that comes twice: an error, or the first or last row is kept.
        on_dangling: what becomes of a judgement about an unknown document or query: an error, or it is dropped, or kept
            (a relevant document that cannot be found then counts against every run, as in trec_eval).
        overwrite: replace what stands at `output`.
    """
    options = {**source.options, "on_duplicate": on_duplicate, "on_dangling": on_dangling}
    stage = f"prepare {source.name}"
    claim = artifacts.open_output(
        output, Kind.COLLECTION, stage, inputs=source.files, options=options, overwrite=overwrite
    )
    if claim.up_to_date:
        return output
    with claim.folder() as (work, counts):
        clear(work)
        try:
            with console.progress("prepare", unit="documents") as advance:
                intake = Intake(source, work, claim.manifest, on_duplicate, on_dangling, advance)
                counts.update(intake.write())
        except BaseException:  # half a collection serves nobody, and it is large
            shutil.rmtree(work)
            raise
    _tell(stage, output, counts, intake.findings.lines())
    return output


def _tell(stage: str, output: Path, counts: dict[str, Any], findings: list[str]) -> None:
    queries, judgements = counts["queries"], counts["judgements"]
    splits = [f"{split} {number:,} ({judgements.get(split, 0):,} judgements)" for split, number in queries.items()]
    console.note(f"{stage}: {counts['documents']:,} documents; queries: {', '.join(splits) or 'none'} -> {output}")
    for line in findings:
        console.note(f"  {line}")
