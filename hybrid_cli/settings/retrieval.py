"""Settings of indexing, encoding, searching and fusing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from hybrid_cli.settings.common import OnDevice, Seeded, Writes
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, option, parsed_by, redeclare, registered, when

Missing = Literal["exact", "min", "zero", "ignore", "drop"]
Normalization = Literal["none", "minmax", "max", "sum", "l2", "zscore", "rank", "borda", "dbsf"]
Grid = Literal["linear", "log", "reciprocal"]

FUSION = "Fusion"
ABSENT, COMPARED, TUNING = "Documents missing from a list", "Comparison", "Tuning"


@dataclass(frozen=True, kw_only=True)
class WeightTuning(Seeded):
    """How fusion weights are searched for, with `--tune`."""

    grid: Grid = option(
        "linear",
        "`linear`: weights that sum to 1; `log`: .001 to 1000 against 1 for the last run; `reciprocal`: .1 to 1 and "
        "their reciprocals. The last two grow where an end point is best.",
        panel=TUNING,
        applies=when(tune=GIVEN),
    )
    step: float = option(
        0.05,
        "Distance between weights of the linear grid.",
        panel=TUNING,
        above=0,
        maximum=1,
        applies=when(tune=GIVEN, grid="linear"),
    )
    folds: int = option(
        5, "Folds of the queries for the held-out score.", panel=TUNING, minimum=2, applies=when(tune=GIVEN)
    )
    seed: int = redeclare(Seeded, "seed", 42, help="Random seed of the folds.", applies=(when(tune=GIVEN),))


@dataclass(frozen=True)
class Fuse(OnDevice, WeightTuning, Writes):
    """Fuse runs into one, or tune the weights of a fusion.

    A method normalizes each list, combines the lists, and has a rule for documents that a list does not return:
    `minmax` scores them 0, `weighted-sum` computes the exact score. With `--qrels`, the scores of the single runs are
    printed with that of the fused run.
    """

    command = "fuse"
    panel = FUSION
    examples = (
        "hybrid fuse out/bm25.parquet out/dense.parquet --method minmax --output out/minmax.parquet",
        "hybrid fuse out/bm25.parquet out/dense.parquet --method weighted-sum --weights 0.5,1 --missing exact "
        "--index out/bm25,out/clear-index --output out/clear.parquet",
        "hybrid fuse dev/bm25.parquet dev/dense.parquet --tune --qrels data/pydocs --split dev "
        "--output out/weights.json",
    )

    runs: Sequence[str] = argument(REQUIRED, "Two or more runs (Parquet or TREC; `name=path` names one).")
    _: KW_ONLY
    method: str = option(
        "minmax",
        "Fusion method; the names that ranx uses are accepted too.",
        choices=registered("hybrid_cli.fusion.methods", "METHODS"),
        parse=parsed_by("hybrid_cli.fusion.methods", "method_name"),
    )
    weights: str | Sequence[float] | None = option(
        None,
        "One weight per run, in order: `0.5,1`; or `@FILE` written by `--tune`.",
        parse=str,
        shown="equal",
        applies=when(tune=False),
    )
    normalize: Normalization | None = option(
        None, "Normalization of each list; overrides the method's.", shown="the method's"
    )
    rrf_k: float = option(60.0, "Constant k in 1 / (k + rank).", above=-1, applies=when(method="rrf"))
    depth: int = option(1000, "Hits read from each run.", minimum=1)
    hits: int = option(1000, "Hits kept per query.", "--hits", "-k", minimum=1)
    missing: Missing | None = option(
        None,
        "`exact`: score computed from `--index`; `min`: the list's lowest score; `zero`: 0, or the lowest score if it "
        "is lower; `ignore`: leave the list out; `drop`: drop the document.",
        panel=ABSENT,
        shown="the method's",
    )
    index: Sequence[Path] = option(
        (), "`--missing exact`: the index of each run, in order: `a,b`.", panel=ABSENT, recorded=False
    )
    queries: Path | None = option(
        None, "`--missing exact`: queries or collection; overrides the paths in the runs.", panel=ABSENT, recorded=False
    )
    qrels: Path | None = option(
        None, "Qrels or collection; prints the score of each run.", panel=COMPARED, recorded=False
    )
    split: str | None = option(None, "Split of the collection in `--qrels` or `--queries`.", panel=COMPARED)
    measure: str = option("MRR@10", "Measure to compare with, and to tune for.", panel=COMPARED)
    tune: bool = option(False, "Tune the weights on `--qrels` and write them as JSON.", panel=TUNING)


@dataclass(frozen=True)
class ConcatRuns(Writes):
    """Concatenate runs of different queries.

    For cross-validation: the test runs of all folds become one run, which is evaluated once.
    """

    command = "concat-runs"
    panel = FUSION
    examples = ("hybrid concat-runs out/test-1.parquet out/test-2.parquet out/test-3.parquet --output out/all.parquet",)

    runs: Sequence[Path] = argument(REQUIRED, "Two or more runs without a common query.")
