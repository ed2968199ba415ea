"""What trainings write."""

from pathlib import Path

import polars as pl

from hybrid_cli.storage import layout


def weights(folder: Path) -> bytes:
    return (folder / layout.WEIGHTS).read_bytes()


def curve(folder: Path, name: str) -> list[float]:
    found: list[float] = pl.read_parquet(folder / layout.CURVE).filter(name=name)["value"].to_list()
    return found
