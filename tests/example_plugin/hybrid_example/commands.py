"""A command."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts, runs
from hybrid_cli.settings import Writes
from hybrid_cli.settings.options import REQUIRED, argument, option
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind


@dataclass(frozen=True)
class CutRun(Writes):
    """Keep the first hits of every query of a run.

    Attributes:
        run: Run.
        keep: Hits per query.
    """

    command = "cut-run"
    panel = "Example"
    examples = ("hybrid cut-run out/bm25.parquet --keep 10 --output out/cut.parquet",)

    run: Path = argument(REQUIRED)
    _: KW_ONLY
    keep: int = option(10, minimum=1)


@stage(CutRun)
def cut_run(settings: CutRun) -> Path:
    """Keep the first hits of every query of a run."""
    output = artifacts.output_of(settings, Kind.RUN, {"run": settings.run})
    if not output.up_to_date:
        output.write([runs.read_run(settings.run).filter(pl.col("rank") <= settings.keep).to_arrow()])
    return output.path
