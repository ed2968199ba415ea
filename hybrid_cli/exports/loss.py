"""What a fusion loses in an engine: both formulas on judged queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from hybrid_cli import runs
from hybrid_cli.evaluation.complementarity import overlap
from hybrid_cli.evaluation.measures import evaluate_run, without_query
from hybrid_cli.evaluation.options import Significance
from hybrid_cli.evaluation.significance import bootstrap
from hybrid_cli.exports.engine import Formula
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.opening.searcher import RetrieverSearcher, open_hybrid, open_sides
from hybrid_cli.opening.sharded import docids_of
from hybrid_cli.opening.stored_retriever import RetrieverFiles
from hybrid_cli.passages import MAX, NO_GROUPS
from hybrid_cli.retrieval.grouped import Grouped
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs.groups import by_document
from hybrid_cli.settings import SearchOptions

MEASURE, TOP = "nDCG@10", 10
_HITS, _RESAMPLES, _CONFIDENCE = 100, 10_000, 0.95


@dataclass(frozen=True)
class Loss:
    """The formulas of hybrid and of an engine, measured on judged queries.

    Attributes:
        measure: name of the measure.
        queries: number of judged queries.
        hybrid, engine: means of both formulas.
        difference: engine minus hybrid.
        interval: 95% bootstrap interval of the difference.
        overlap: mean fraction of common documents in the top 10.
    """

    measure: str
    queries: int
    hybrid: float
    engine: float
    difference: float
    interval: tuple[float, float]
    overlap: float

    def in_words(self, engine: str) -> str:
        """Return one line."""
        low, high = self.interval
        return (
            f"{self.measure} of {self.queries:,} judged queries: hybrid {self.hybrid:.4f}, formula of {engine} "
            f"{self.engine:.4f}, difference {self.difference:+.4f} [{low:+.4f}, {high:+.4f}]; "
            f"{TOP * self.overlap:.2f} of the top {TOP} documents in common"
        )


def measure_loss(
    files: RetrieverFiles, formula: Formula, queries: pl.DataFrame, qrels: pl.DataFrame, remove_query: bool = False
) -> Loss:
    """Compare the fusion of a retriever, without its reranker, with the formula of an engine.

    Args:
        files: the retriever.
        formula: formula of the engine.
        queries: qid, text.
        qrels: qid, docid, relevance; of documents if the retriever has a rule for passages.
        remove_query: hits whose docid is the qid do not count.
    """
    asked = queries.join(qrels, on="qid", how="semi", maintain_order="left")
    plain = replace(files, stored=replace(files.stored, reranker=None))
    found = RetrieverSearcher.open(plain).search(asked, _HITS)
    hybrid, engine = (
        pl.concat([runs.empty(), *(block.select(runs.SCHEMA.names()) for block in run)])
        for run in (found, simulate(files, formula, asked, _HITS))
    )
    if remove_query:
        hybrid, engine = without_query(hybrid), without_query(engine)
    ours, theirs = (evaluate_run(run, qrels, [MEASURE])["value"].to_numpy() for run in (hybrid, engine))
    low, high = bootstrap((theirs - ours)[:, None], _RESAMPLES, _CONFIDENCE, Significance.seed)
    common = overlap(hybrid, engine, TOP)["value"].mean()
    assert isinstance(common, float)
    return Loss(
        MEASURE, len(ours), float(ours.mean()), float(theirs.mean()), float((theirs - ours).mean()),
        (float(low[0]), float(high[0])), common,
    )  # fmt: skip


def simulate(files: RetrieverFiles, formula: Formula, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
    """Yield the run that the formula of an engine gives for some queries at a time.

    Args:
        files: the retriever.
        formula: formula of the engine.
        queries: qid, text.
        hits: documents per query.
    """
    grouped, exact = files.stored.group != NO_GROUPS, formula.depth is None
    docids = [docids_of(index) for index in files.indexes]
    if exact and all(ids.equals(docids[0]) for ids in docids[1:]):
        searcher = open_hybrid(files.indexes, formula.weights)
        found = (Grouped(searcher, lambda: docids[0], MAX) if grouped else searcher).search(queries, hits)
        yield from (run.select(runs.SCHEMA.names()) for run in found)
        return
    depth = formula.depth or len(docids[0])
    recipe = FusionRecipe("sum", formula.weights, "exact" if exact or formula.complete else "zero")
    retriever = Retriever(open_sides(files.indexes, SearchOptions(group=NO_GROUPS)), recipe, depth)
    for candidates, qids in retriever.candidates(queries):
        for run in formula.run(candidates, qids, depth if grouped else hits):
            yield by_document(run, MAX, hits).select(runs.SCHEMA.names()) if grouped else run
