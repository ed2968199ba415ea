"""Settings of fusing runs, and of tuning a fusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

from hybrid_cli.fusion.options import METHOD, RRF_K, Grid, Missing, Normalization, Tuning
from hybrid_cli.settings.common import HITS, MEASURE, NameOrPath, OnDevice, Seeded, Threaded, Writes
from hybrid_cli.settings.options import GIVEN, REQUIRED, argument, inherited, option, parsed_by, registered, scope, when
from hybrid_cli.settings.retrieval import TUNING

FUSION = "Fusion"
ABSENT, COMPARED = "Documents missing from a list", "Comparison"
MOST_K = 1_000_000  # the scores of further ranks would be equal in 32 bits
EXACT = "--missing exact"  # fact: the rule for missing documents, by --missing or by the method
_EXACT = when(rule=EXACT)
RRF = "the method rrf"  # fact: among the methods that --tune tries
_NO_METHOD = "no --method"  # fact


@dataclass(frozen=True, kw_only=True)
class WeightTuning(Seeded):
    """Options of tuning a fusion, with `--tune`.

    Attributes:
        methods: Methods to try. `auto`: minmax, zscore and rrf, and with `--index` weighted-sum; `--method` tries one.
        grid: Weights that are tried: `linear`, `scaled` by the deviations of the scores, `log`, `reciprocal`, or those
            of a paper: `clear`, `roc`, `spar`.
        step: Distance between weights of the grids `linear` and `scaled`.
        folds: Folds of the queries for the held-out score.
        prior_queries: Weight of the stored tuning curves of other collections, as a number of judged queries; 0 ignores
            these curves.
        machine: Qrels of a machine (`judge --llm`) for these and more queries, which the judgments of people correct.
        seed: Random seed of the folds.
    """

    option_panel = TUNING

    scopes = (
        scope(when(tune=GIVEN, named=_NO_METHOD), "methods")
        + scope(when(tune=GIVEN), "grid", "folds", "prior_queries", "machine", "seed")
        + scope(when(tune=GIVEN, grid=("auto", "linear", "scaled")), "step")
    )

    methods: Sequence[str] = option(Tuning.methods)
    grid: Grid | Literal["auto"] = option(Tuning.grid)
    step: float = option(Tuning.step, above=0, maximum=1)
    folds: int = option(Tuning.folds, minimum=2)
    prior_queries: float = option(Tuning.prior_queries, minimum=0)
    machine: Path | None = option(None)
    seed: int = inherited()


@dataclass(frozen=True)
class Fuse(OnDevice, Threaded, WeightTuning, Writes):
    """Fuse runs into one, or tune method and weights of a fusion.

    A method normalizes each list, combines the lists, and has a rule for documents missing from a list: `minmax` scores
    them 0, `weighted-sum` computes their exact scores. With `--qrels`, the scores of the single runs and of the fused
    run are printed.

    Attributes:
        runs: Two or more runs (Parquet, TREC or MS MARCO; `name=path` names one).
        method: Fusion method; names of ranx are also accepted.
        weights: One weight per run, in order: `0.5,1`; by name: `bm25=0.5,dense=1`; or `@FILE` written by `--tune`,
            with the method and its parameters.
        normalize: Normalization of each list; overrides the method's.
        rrf_k: Constant k in 1 / (k + rank).
        depth: Hits read from each run.
        hits: Hits kept per query.
        missing: A document that a list lacks: `exact` score of `--index`, `min` of the list, `zero`, `ignore` the list,
            or `drop` the document.
        index: Index of each run, in order: `a,b`. `--tune` then tries the exact sum too.
        queries: Queries or collection; overrides the paths recorded in the runs.
        qrels: Qrels or collection; prints the score of each run.
        split: Split of the collection in `--qrels` or `--queries`.
        measure: Measure of the comparison and tuning.
        tune: Tune method and weights on `--qrels` and write them as JSON.
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

    runs: Sequence[NameOrPath] = argument(REQUIRED)
    _: KW_ONLY
    scopes = (
        scope(when(tune=False), "weights")
        + scope((when(method="rrf"), when(tune=GIVEN, tried=RRF)), "rrf_k")
        + scope(_EXACT, "index", "queries", "device")
        + scope((when(qrels=GIVEN), when(queries=GIVEN), when(tune=True)), "split")
        + scope((when(qrels=GIVEN), when(tune=True)), "measure")
    )

    method: str = option(
        METHOD,
        choices=registered("hybrid_cli.fusion.methods", "METHODS"),
        parse=parsed_by("hybrid_cli.fusion.methods", "method_name"),
    )
    weights: str | Sequence[float] | None = option(None, parse=str, shown="equal")
    normalize: Normalization | None = option(None, shown="the method's")
    rrf_k: float = option(RRF_K, above=-1, maximum=MOST_K)
    depth: int = option(HITS, minimum=1)
    hits: int = option(HITS, "--hits", "-k", minimum=1)
    missing: Missing | None = option(None, panel=ABSENT, shown="the method's")
    index: Sequence[Path] = option((), panel=ABSENT)
    queries: Path | None = option(None, panel=ABSENT)
    qrels: Path | None = option(
        None, panel=COMPARED, shown="with --tune, those of the split that the runs were searched on"
    )
    split: str | None = option(None, panel=COMPARED)
    measure: str = option("MRR@10", panel=COMPARED, parse=MEASURE)
    tune: bool = option(False, panel=TUNING)

    def values(self) -> dict[str, Any]:
        """Return every field by name, and whether `method` was set."""
        return {**super().values(), "named": "--method" if "method" in self.given else _NO_METHOD}


@dataclass(frozen=True)
class ConcatRuns(Writes):
    """Concatenate runs of different queries, or aggregate a run of passages.

    For cross-validation: the test runs of all folds become one run, which is evaluated once. With `--group max`, a
    document has the score of its best passage, of a collection made with `prepare --split-passages`.

    Attributes:
        runs: Two or more runs without a common query; with `--group`, one or more.
        group: Replace the passages DOCID#NUMBER of a document by the document, with the highest score (`max`).
    """

    command = "concat-runs"
    panel = FUSION
    examples = (
        "hybrid concat-runs out/test-1.parquet out/test-2.parquet out/test-3.parquet --output out/all.parquet",
        "hybrid concat-runs out/passages.parquet --group max --output out/documents.parquet",
    )

    runs: Sequence[Path] = argument(REQUIRED)
    _: KW_ONLY
    group: Literal["max"] | None = option(None)
