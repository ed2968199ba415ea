"""How the hits of a retriever and of a search engine agree: `inspect --verify --engine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hybrid_cli import console
from hybrid_cli.errors import HybridError
from hybrid_cli.reporting.tables import figure

TOP, MEASURE = 10, "nDCG@10"


@dataclass(frozen=True)
class Difference:
    """A query with other documents in the top ten.

    Attributes:
        qid: id of the query.
        hybrid, engine: documents that only one of them returns.
    """

    qid: str
    hybrid: Sequence[str]
    engine: Sequence[str]


@dataclass(frozen=True)
class Agreement:
    """The top ten of a retriever and of an engine.

    Attributes:
        engine: engine and address.
        documents: number of documents in both.
        queries: number of queries.
        same: queries with the same ten documents, ties aside.
        same_order: those of them with the same order, ties aside.
        overlap: mean fraction of common documents in the top ten.
        measured: mean of `MEASURE` of the retriever and of the engine; None without judged queries.
        differences: what the engine computes differently, in sentences.
        differing: queries with other documents.
    """

    engine: str
    documents: int
    queries: int
    same: int
    same_order: int
    overlap: float
    measured: tuple[float, float] | None
    differences: Sequence[str]
    differing: Sequence[Difference]


def show_agreement(agreement: Agreement, form: str) -> None:
    """Print an agreement.

    Raises:
        HybridError: the hits differ although the engine computes the same formula.
    """
    if form == "json":
        console.result_json(asdict(agreement), indent=2)
    else:
        rows = [
            [f"queries with the same top {TOP}", f"{agreement.same:,} of {agreement.queries:,}"],
            ["  of them in the same order", f"{agreement.same_order:,}"],
            [f"overlap of the top {TOP}", f"{agreement.overlap:.3f}"],
        ]
        if agreement.measured is not None:
            ours, theirs = map(figure, agreement.measured)
            rows.append([f"{MEASURE} of hybrid, engine", f"{ours}, {theirs}"])
        title = f"{agreement.engine}: {console.counted(document=agreement.documents)}"
        console.table((title, ""), rows)
        if agreement.differing:
            shown = [[each.qid, " ".join(each.hybrid), " ".join(each.engine)] for each in agreement.differing[:_SHOWN]]
            console.table(("query", "only hybrid", "only the engine"), shown, left=("only hybrid", "only the engine"))
        for line in agreement.differences:
            console.note(f"  {line}", code="engine-difference")
    if agreement.same < agreement.queries and not agreement.differences:
        count = agreement.queries - agreement.same
        problem = f"{agreement.engine}: other documents for {console.counted(query=count)}; load the export again"
        raise HybridError(problem, code="other-hits", count=count)


_SHOWN = 5
