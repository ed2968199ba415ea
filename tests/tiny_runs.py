"""Two indexes of the tiny collection and a run of each, for the tests of `fuse`."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search

HITS = 4  # few enough that documents are missing from lists


def write_tiny_runs(folder: Path, tiny: Path, tiny_bert: Path) -> Path:
    """Write `bm25` and `dense`, and a run of each for the test queries of the tiny collection."""
    index_bm25(tiny, output=folder / "bm25")
    encode(tiny, model=str(tiny_bert), dtype="fp32", output=folder / "dense")
    for name in ("bm25", "dense"):
        search(tiny, split="test", index=folder / name, hits=HITS, output=folder / f"{name}.parquet")
    return folder


def both(made: Path) -> list[Path]:
    return [made / "bm25.parquet", made / "dense.parquet"]


def indexes(made: Path) -> list[Path]:
    return [made / "bm25", made / "dense"]
