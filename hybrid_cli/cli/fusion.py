"""The commands of the panel "Fusion"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from hybrid_cli import config
from hybrid_cli.cli.common import Device, Hits, Output, Seed, Split, comma_separated, command, option
from hybrid_cli.config import Fusion, Tuning

PANEL = "Fusion"


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
    command(app, PANEL)(fuse)
    command(app, PANEL)(concat_runs)


ABSENT, COMPARED, TUNED = "Documents that a list lacks", "Comparison", "Tuning"


def fuse(
    runs: Annotated[list[str], typer.Argument(help="Two or more runs (Parquet or TREC; `name=path` names one).")],
    *,
    output: Output,
    method: Annotated[
        str, typer.Option(help=f"{', '.join(get_args(config.FusionMethod))}; ranx's names are understood.")
    ] = Fusion.method,
    weights: Annotated[
        str | None,
        typer.Option(help="One for each run, in order: `0.5,1`; or `@FILE` that --tune wrote.", show_default="equal"),
    ] = None,
    normalize: Annotated[
        config.Normalization | None,
        typer.Option(help="Of each list, instead of the method's own.", show_default="the method's"),
    ] = None,
    rrf_k: Annotated[float, typer.Option("--rrf-k", help="`rrf`: the constant added to ranks.")] = Fusion.rrf_k,
    depth: Annotated[int, typer.Option(min=1, help="Hits taken from each run.")] = Fusion.depth,
    hits: Hits = Fusion.hits,
    missing: Annotated[
        config.Missing | None,
        option(
            ABSENT,
            "`exact`: computed from --index. `min`: the list's lowest score. `zero`: 0, never above that. `ignore`: "
            "the list is left out. `drop`: the document is.",
            show_default="the method's",
        ),
    ] = None,
    index: Annotated[
        str | None, option(ABSENT, "`exact`: the index of each run, in order: `a,b`.", show_default=False)
    ] = None,
    queries: Annotated[
        Path | None,
        option(ABSENT, "`exact`: queries or a collection, if not as the runs recorded.", show_default=False),
    ] = None,
    qrels: Annotated[
        Path | None, option(COMPARED, "Judgements or a collection: prints each run's score.", show_default=False)
    ] = None,
    split: Split = None,
    measure: Annotated[str, option(COMPARED, "What is compared, and what --tune raises.")] = Fusion.measure,
    tune: Annotated[bool, option(TUNED, "Find the weights on --qrels and write them as JSON.", "--tune")] = False,
    grid: Annotated[
        config.Grid, option(TUNED, "Weights that add up to 1; or .001 to 1000 beside 1 for the last run.")
    ] = Tuning.grid,
    step: Annotated[float, option(TUNED, "Between two weights of the linear grid.")] = Tuning.step,
    folds: Annotated[int, option(TUNED, "Parts of the queries for the held-out score.", min=2)] = Tuning.folds,
    seed: Seed = Tuning.seed,
    device: Device = "auto",
    overwrite: bool = False,
) -> None:
    """Fuse runs into one, or find the weights to fuse them with.

    A method normalises each list, combines the lists, and says what a list gives to a document that it lacks:
    `minmax` gives 0, `weighted-sum` the exact score. With --qrels the single runs' scores stand beside the fused one.

    Examples:

    `hybrid fuse out/bm25.parquet out/dense.parquet --method minmax --output out/minmax.parquet`

    `hybrid fuse out/bm25.parquet out/dense.parquet --method weighted-sum --weights 0.5,1 --missing exact
    --index out/bm25,out/clear-index --output out/clear.parquet`

    `hybrid fuse dev/bm25.parquet dev/dense.parquet --tune --qrels data/pydocs --split dev --output out/weights.json`
    """
    from hybrid_cli.stages import fuse as stage

    stage.fuse(
        runs,
        output=output,
        method=method,
        weights=weights,
        missing=missing,
        normalization=normalize,
        rrf_k=rrf_k,
        depth=depth,
        hits=hits,
        indexes=[Path(path) for path in comma_separated(index)],
        queries=queries,
        qrels=qrels,
        split=split,
        measure=measure,
        tune=Tuning(grid, step, folds, seed) if tune else None,
        device=device,
        overwrite=overwrite,
    )


def concat_runs(
    runs: Annotated[list[Path], typer.Argument(help="Two or more runs, no query in two of them.")],
    output: Output,
    overwrite: bool = False,
) -> None:
    """Put runs of different queries together, as they are.

    For cross-validation: the test runs of all folds become one run, which is measured once.

    Example:

    `hybrid concat-runs out/test-1.parquet out/test-2.parquet out/test-3.parquet --output out/all.parquet`
    """
    from hybrid_cli.stages import concat_runs as stage

    stage.concat_runs(runs, output=output, overwrite=overwrite)
