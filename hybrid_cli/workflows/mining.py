"""The inputs of one collection of `mine-negatives`, and its examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import polars as pl

from hybrid_cli.artifacts import read_manifest
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.judged import warn_raters
from hybrid_cli.artifacts.opening import open_lexical
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.settings import MineNegatives
from hybrid_cli.storage import Kind
from hybrid_cli.training.mining import Miner, Sources, pairs


@dataclass
class MinedCollection:
    """The examples of one collection."""

    settings: MineNegatives
    inputs: dict[str, Path]
    queries: pl.DataFrame = field(init=False)
    examples: pl.DataFrame = field(init=False)
    chosen: pl.DataFrame = field(init=False)
    miner: Miner = field(init=False)
    skipped: int = 0

    @classmethod
    def of(cls, settings: MineNegatives) -> MinedCollection:
        """Check the runs, and find the inputs of one collection."""
        inputs = _inputs(settings)
        ranked = [source.run for source in settings.plan() if source.run]
        belongs_together([*ranked, *([settings.scores] if settings.scores else [])], corpus=inputs["corpus"])
        return cls(settings, inputs)

    def mine(self) -> None:
        """Choose the negatives of all examples."""
        settings, inputs = self.settings, self.inputs
        indexes = {index: [read_manifest(index, Kind.LEXICAL_INDEX)] for index in settings.indexes}
        belongs_together(indexes=indexes, corpus=inputs["corpus"])
        self.queries = collections.read_queries(inputs["queries"])
        if settings.answer_filter and not self.queries["answers"].list.len().sum():
            raise option_error(
                "answer_filter", None, f"no query of {inputs['queries']} has answers", code="needs-answers"
            )
        warn_raters(inputs["qrels"])
        qrels = collections.read_qrels(inputs["qrels"])
        judged = pairs(self.queries, qrels)
        if not len(judged):
            none = f"has no relevant document for any of the {len(self.queries):,} queries"
            raise path_error(inputs["qrels"], f"{none}", code="no-judgments")
        sources = Sources(
            collection=settings.collections[0],
            plan=settings.plan(),
            open_index=partial(open_lexical, settings.indexes[0], threads=settings.of_worker().threads)
            if settings.indexes
            else None,
            depth=settings.depth or 0,  # None without a source that ranks
            where=settings,
            remedy=settings.fewer,
            scores=settings.scores,
        )
        self.miner = Miner(sources, settings, self.queries)
        first = settings.positives == "first"
        self.examples = self.miner.forbid(
            pairs(self.queries, qrels, first) if first else judged, judged, self.queries_in_corpus
        )
        self.chosen = self.miner.mine(self.examples)
        self.skipped = len(self.queries) - judged["qid"].n_unique()

    @property
    def queries_in_corpus(self) -> bool:
        """Whether the queries are documents of the corpus."""
        return collections.queries_in_corpus(self.inputs["queries"]) > 0

    def counts(self) -> dict[str, int]:
        """Return counts for the manifest."""
        return {
            "queries": self.examples["qid"].n_unique(),
            "queries_without_positive": self.skipped,
            "negatives": len(self.chosen),
        }


def _inputs(settings: MineNegatives) -> dict[str, Path]:
    """Return the inputs that affect the examples of one collection, by role."""
    (collection,), split = settings.collections, settings.split
    return {
        "corpus": collections.corpus_path(collection),
        "queries": settings.queries or collections.queries_path(collection, split),
        "qrels": settings.qrels or collections.qrels_path(collection, split),
        **({"index": settings.indexes[0]} if settings.indexes else {}),
        **{f"run {source.name}": source.run for source in settings.plan() if source.run},
        **({"scores": settings.scores} if settings.scores else {}),
        **{f"{source.name} negatives": source.given for source in settings.plan() if source.given},
    }
