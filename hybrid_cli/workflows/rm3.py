"""Tuning of RM3 by cross-validation, with the selection of `fuse --tune`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import polars as pl

from hybrid_cli import runs
from hybrid_cli.errors import option_error
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.fusion.selection import Choice, Trials
from hybrid_cli.lexical.index import LexicalIndex

SIZES = tuple(range(5, 55, 5))  # feedback documents and terms (DualRM, section 4)
SHARES = tuple(tenth / 10 for tenth in range(1, 10))
GRID = list(product(SIZES, SIZES, SHARES))
_FAMILY = "{} documents, {} terms"


class TunedFeedback:
    """Search with RM3, with parameters for each query that other judged queries select.

    Args:
        index: index of BM25.
        queries: qid, text.
        qrels: qid, docid, relevance.
        measure: measure to maximize.
        hits: documents per query.
        advance: called after every point of the grid.
        remove_query: remove hits whose docid is the qid before a run is measured.

    Raises:
        InputError: fewer than two judged queries.
    """

    def __init__(
        self,
        index: LexicalIndex,
        queries: pl.DataFrame,
        qrels: pl.DataFrame,
        measure: str,
        hits: int,
        advance: Callable[[int], None],
        remove_query: bool = False,
    ):
        self.judged = queries.join(qrels, on="qid", how="semi", maintain_order="left")["qid"]
        if len(self.judged) < 2:
            raise option_error("tune", None, "needs two or more judged queries", code="too-few-queries")
        self._index, self._queries, self._hits = index, queries, hits
        weighted = index.weighted(queries["text"].to_list())
        self._first = index.feedback(weighted, len(queries), max(SIZES))
        known = qrels.join(self.judged.to_frame(), on="qid", how="semi")
        values = []
        for documents, terms in product(SIZES, SIZES):
            models = self._first.models(documents, terms)
            for share in SHARES:
                results = evaluate_run(self._run(models, share), known, [measure], remove_query=remove_query)
                results = results.select("qid", "value")
                ordered = self.judged.to_frame().join(results, on="qid", how="left", maintain_order="left")
                values.append(ordered["value"].fill_null(0.0).to_numpy())
                advance(1)
        choices = [Choice(_FAMILY.format(docs, terms), (share, 1 - share)) for docs, terms, share in GRID]
        self.table = Trials(choices, np.stack(values))

    def _run(self, models: list[dict[str, float]], share: float) -> pl.DataFrame:
        bags = self._index.bags_of(self._first.interpolated(models, share), len(self._queries))
        return self._index.table(self._index.hits(bags, self._hits), self._queries["qid"])

    def crossed(self, folds: int, seed: int) -> tuple[pl.DataFrame, float, list[dict[str, float]]]:
        """Return the run, its score, and the selected parameters with their numbers of judged queries.

        Queries without judgments have the parameters that are best on all judged ones.

        Args:
            folds: number of folds; at most the number of judged queries.
            seed: random seed of the folds.
        """
        rows = self.table.crossed(folds, seed)
        score = float(self.table.values[rows, np.arange(len(rows))].mean())
        row_of = dict(zip(self.judged, rows.tolist(), strict=True))
        best = self.table.plateau().best
        wanted = [row_of.get(qid, best) for qid in self._queries["qid"]]
        parts = [runs.empty()]
        selected: list[dict[str, float]] = []
        for row in dict.fromkeys(wanted):
            documents, terms, share = GRID[row]
            qids = [qid for qid, own in zip(self._queries["qid"], wanted, strict=True) if own == row]
            run = self._run(self._first.models(documents, terms), share)
            parts.append(run.filter(pl.col("qid").is_in(qids)))
            count = int((rows == row).sum())
            selected.append({"fb_docs": documents, "fb_terms": terms, "fb_weight": share, "queries": count})
        order = self._queries.select("qid")
        return order.join(pl.concat(parts), on="qid", maintain_order="left_right"), score, selected
