"""First hits of queries with and without an answer: the result of `evaluate --study answerable`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console, runs
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.reliability import area_under_roc, false_hits, risk_at_coverage
from hybrid_cli.reporting.plan import EvaluationPlan
from hybrid_cli.reporting.tables import Table, figure
from hybrid_cli.storage import PROBABILITY

COVERAGES = (25, 50, 75, 90, 95, 100)  # percent of the queries
KEPT = 0.95  # of the queries with an answer


@dataclass(frozen=True)
class FirstHits:
    """How far the confidence in the first hits of a run can be trusted; None where no query defines a figure.

    Attributes:
        confidence: what it is: `probability`, or `score` for a run without probabilities.
        risks: share of wrong first hits among the most confident queries, for each of `COVERAGES`; None where fewer
            queries have hits.
        risk_area: mean of the risks at every coverage: the area under the risk-coverage curve.
        area_under_roc: see `evaluation.reliability`.
        false_hits_at_kept: see `evaluation.reliability.false_hits`; `KEPT` of the queries with an answer are kept.
        answered: share of queries with an answer that have hits.
        false_hits: share of queries without an answer that have hits.
    """

    run: str
    confidence: str
    risks: Sequence[float | None]
    risk_area: float | None
    area_under_roc: float | None
    false_hits_at_kept: float | None
    answered: float
    false_hits: float | None


@dataclass(frozen=True)
class Answerable:
    """First hits of several runs.

    Attributes:
        answerable, unanswerable: numbers of queries with a relevant document, and without one.
        unjudged: queries without any judgment, among the unanswerable ones.
    """

    runs: Sequence[FirstHits]
    answerable: int
    unanswerable: int
    unjudged: int

    def tables(self, form: str) -> list[Table]:
        """Return the risks at each coverage, then how well queries without an answer are found."""
        risks = [[found.run, found.confidence, *map(_cell, (*found.risks, found.risk_area))] for found in self.runs]
        shares = [
            [found.run, *map(_cell, (found.area_under_roc, found.false_hits_at_kept, found.answered, found.false_hits))]
            for found in self.runs
        ]
        columns = ["run", "confidence", *(f"{coverage}%" for coverage in COVERAGES), "area"]
        names = ["run", "AUROC", f"false hits at {KEPT:.0%}", "answered", "false hits"]
        return [Table(columns, risks, title="Risk at coverage", left=2), Table(names, shares, title="False hits")]

    def legend(self) -> list[str]:
        """Return the numbers of queries, and the meaning of the figures."""
        unjudged = f" ({self.unjudged:,} without any judgment)" if self.unjudged else ""
        return [
            f"{console.counted(query=self.answerable)} with a relevant document, {self.unanswerable:,} without "
            f"one{unjudged}. Risk: share of wrong first hits among the most confident queries. False hits: share of "
            f"queries without a relevant document that have hits; at {KEPT:.0%}: with the threshold that keeps "
            f"{KEPT:.0%} of the others; the last two columns: of the lists as they are."
        ]

    def content(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        return {
            "answerable": self.answerable,
            "unanswerable": self.unanswerable,
            "unjudged": self.unjudged,
            "runs": [asdict(found) | {"risks": _by_coverage(found)} for found in self.runs],
        }

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return one row per run."""
        counts = {"answerable": self.answerable, "unanswerable": self.unanswerable}
        return [
            {name: value for name, value in asdict(found).items() if name != "risks"}
            | {f"risk_{coverage}": risk for coverage, risk in _by_coverage(found).items()}
            | counts
            for found in self.runs
        ]


def _by_coverage(found: FirstHits) -> dict[str, float | None]:
    return dict(zip(map(str, COVERAGES), found.risks, strict=True))


def _cell(value: float | None) -> str:
    return "-" if value is None else figure(value, 3)


def answerable(plan: EvaluationPlan, queries: Path | None) -> Answerable:
    """Measure the first hits of runs.

    Args:
        plan: runs and judgments; a query with a document of at least its level is answerable.
        queries: file of the queries; None if it is not known. A query without judgments and hits is then unknown.

    Raises:
        InputError: no measure needs judgments, or no query has a relevant document.
    """
    qrels = plan.judged()
    if qrels is None:
        raise InputError("--study answerable: needs judgments", code="needs-judgments", option="study")
    relevant = qrels.filter(pl.col("relevance") >= plan.level).select("qid", "docid")
    if not len(relevant):
        problem = f"{plan.qrels}: no query has a relevant document"
        raise InputError(problem, code="nothing-relevant", path=plan.qrels)
    heads = {name: plan.read(name, 1).head for name in plan.runs}
    asked = [frame["qid"] for frame in (qrels, *heads.values())]
    asked += [] if queries is None else [collections.read_queries(queries)["qid"]]
    qids = pl.concat(asked).unique(maintain_order=True).to_frame()
    has_answer = qids["qid"].is_in(relevant["qid"].implode())
    measured = [
        _first_hits(
            name,
            qids.join(runs.with_probability(plan.runs[name], head), on="qid", how="left", maintain_order="left"),
            relevant,
            has_answer.to_numpy(),
        )
        for name, head in heads.items()
    ]
    count = int(has_answer.sum())
    return Answerable(measured, count, len(qids) - count, len(qids) - qrels["qid"].n_unique())


def _first_hits(name: str, first: pl.DataFrame, relevant: pl.DataFrame, answerable: np.ndarray) -> FirstHits:
    """Measure the first hits of a run.

    Args:
        name: name of the run.
        first: qid, docid, score and, if known, probability of all queries; null without hits.
        relevant: qid, docid of the relevant documents.
        answerable: [queries] the query has one.
    """
    by = PROBABILITY.name if PROBABILITY.name in first.columns else "score"
    correct = first.join(relevant.with_columns(correct=1.0), on=["qid", "docid"], how="left", maintain_order="left")
    confidence = first[by].cast(pl.Float64).fill_null(-math.inf).to_numpy()
    answers = np.isfinite(confidence)
    risks = risk_at_coverage(confidence[answers], correct["correct"].fill_null(0.0).to_numpy()[answers])
    ranks = [math.ceil(coverage * len(first) / 100) for coverage in COVERAGES]
    return FirstHits(
        name,
        by,
        [float(risks[rank - 1]) if rank <= len(risks) else None for rank in ranks],
        float(risks.mean()) if len(risks) else None,
        area_under_roc(confidence, answerable),
        false_hits(confidence, answerable, KEPT),
        float(answers[answerable].mean()),
        None if answerable.all() else float(answers[~answerable].mean()),
    )
