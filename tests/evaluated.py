"""Runs of the tiny collection, and their evaluation without a study."""

from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.reporting.summary import Summary
from hybrid_cli.stages import evaluate as stage
from hybrid_cli.storage import Kind

RUNS = {
    "bm25": {"001": ["void", "007"], "002": ["salt", "NA"], "003": ["órgãos"], "006": ["dense"]},
    "dense": {"001": ["moon landing", "007"], "002": ["NA", "salt"], "004": ["dense"], "005": ["void"]},
    "clear": {"001": ["007"], "002": ["salt", "NA"], "003": ["lungs", "órgãos"], "004": ["dense"], "005": ["hamlet"]},
}


def write_run(path: Path, hits: dict[str, list[str]]) -> Path:
    rows = [(qid, docid, rank, 1.0 / rank) for qid, docids in hits.items() for rank, docid in enumerate(docids, 1)]
    table = pl.DataFrame(rows, schema=["qid", "docid", "rank", "score"], orient="row").to_arrow()
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_parquet(path, [table], storage.SCHEMAS[Kind.RUN], Manifest(Kind.RUN, "search", {}, {}))
    return path


def evaluate(*inputs: Any, **options: Any) -> Summary:
    return stage.evaluate(*inputs, **options)
