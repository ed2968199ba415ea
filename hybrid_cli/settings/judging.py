"""Settings of judging hits by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

from hybrid_cli.settings.common import MEASURE, Budgeted, NameOrPath, ReadsFiles, Seeded, as_names
from hybrid_cli.settings.fusion import FUSION
from hybrid_cli.settings.options import REQUIRED, argument, option, redeclare, when

TWO_RUNS = "two runs"  # fact


@dataclass(frozen=True)
class Judge(ReadsFiles, Budgeted, Seeded):
    """Judge the pooled hits of runs in the terminal, one key per hit.

    The first hits of all runs are shown in random order, without their run, rank or score. Grades: 0 not relevant,
    1 partly relevant, 2 relevant, 3 fully relevant; measures count grades from 1 as relevant. Queries on which the runs
    disagree come first. Each answer is saved at once; the same command continues after an interruption. With two runs,
    the screen also shows the fusion weights within one standard error of the best.

    If standard input or output is not a terminal, answers are read from the lines of standard input.
    """

    command = "judge"
    panel = FUSION
    examples = (
        "hybrid judge data/mine --split dev out/bm25.parquet out/dense.parquet --output judgments.tsv",
        "hybrid judge data/mine --split dev out/bm25.parquet --stop-after 50 --order random --output judgments.tsv",
    )

    collection: Path = argument(REQUIRED, "Collection with the texts of queries and documents.")
    runs: Sequence[NameOrPath] = argument(
        REQUIRED, "One or more runs (Parquet, TREC or MS MARCO; `name=path` names one)."
    )
    _: KW_ONLY
    output: Path = option(
        REQUIRED,
        "Qrels file (.tsv or .txt), extended by each answer; skipped hits go to OUTPUT.skipped.",
        "--output",
        "-o",
        recorded=False,
    )
    split: str | None = option(None, "Split of the collection.")
    stop_after: int = option(20, "Number of judged queries at which the command ends.", minimum=1)
    depth: int = option(5, "Hits pooled from each run.", minimum=1)
    order: Literal["disagreement", "random"] = option(
        "disagreement",
        "Order of the queries; `random` gives an unbiased sample for the scores of `hybrid evaluate`.",
    )
    measure: str = option(
        "nDCG@10",
        "Measure that chooses the weight shown with two runs.",
        parse=MEASURE,
        applies=when(compared=TWO_RUNS),
    )
    seed: int = redeclare(Seeded, "seed", help="Random seed of the order of queries and hits.")

    def values(self) -> dict[str, Any]:
        """Return every field by name, and whether there are two runs, to which a weight belongs."""
        return {**super().values(), "compared": TWO_RUNS if len(as_names(self.runs)) == 2 else ""}
