"""Mining of a collection, by `mine-negatives` and in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from hybrid_cli.commands import MineNegatives
from hybrid_cli.errors import path_error
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.training.mining import Miner, pairs


@dataclass(frozen=True)
class MinedCollection:
    """The examples of one collection.

    Attributes:
        skipped: number of queries without a relevant document.
    """

    examples: pl.DataFrame
    chosen: pl.DataFrame
    miner: Miner
    skipped: int

    @classmethod
    def of(
        cls,
        settings: MineNegatives,
        queries: pl.DataFrame,
        qrels: pl.DataFrame,
        open_index: Callable[[], LexicalIndex] | None,
        own: bool,
    ) -> MinedCollection:
        """Choose the negatives of all examples.

        Args:
            settings: sources, draws and filters.
            queries: qid, text, answers.
            qrels: qid, docid, relevance.
            open_index: opens the lexical index.
            own: the document with the id of a query is the query itself.

        Raises:
            InputError: no query has a relevant document.
        """
        judged = pairs(queries, qrels)
        if not len(judged):
            problem = "has no relevant document for any query"
            raise path_error(settings.qrels or settings.collections[0], problem, code="no-judgments")
        miner = Miner(
            collection=settings.collections[0],
            plan=settings.plan(),
            open_index=open_index,
            depth=settings.depth or 0,  # None without a source that ranks
            where=settings,
            remedy=settings.fewer,
            scores=settings.scores,
            how=settings,
            queries=queries,
        )
        positives = pairs(queries, qrels, True) if settings.positives == "first" else judged
        examples = miner.forbid(positives, judged, own)
        return cls(examples, miner.mine(examples), miner, len(queries) - judged["qid"].n_unique())

    def counts(self) -> dict[str, int]:
        """Return counts for the manifest."""
        return {
            "queries": self.examples["qid"].n_unique(),
            "queries_without_positive": self.skipped,
            "negatives": len(self.chosen),
        }
