"""An index of passages whose hits are documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import polars as pl

from hybrid_cli import runs
from hybrid_cli.passages import MAX, GroupRule
from hybrid_cli.retrieval.filters import Allowed
from hybrid_cli.retrieval.in_memory import Answers
from hybrid_cli.retrieval.numbered import NumberedSide
from hybrid_cli.runs import groups

_FIRST = 4  # passages that are searched for each document at first
_HITS_AT_ONCE = 1 << 20


class Passages(Protocol):
    """An index of passages; see `retriever.Side`."""

    def answer(self, queries: pl.DataFrame) -> Answers:
        """Return the answers to queries."""

    def within(self, allowed: Allowed) -> Passages:
        """Return the same index whose hits are passages that a filter keeps."""


@dataclass(frozen=True)
class Grouped:
    """An index of passages whose hits are documents.

    The documents of a list are those of the first passages, as many as asked for. Their scores are those of their best
    passages (`max`), or by `mean` and `sum2` of the exact scores of all their passages.

    Attributes:
        index: the index of passages.
        docids: returns the ids [N] of all passages.
        rule: how passages score a document.
    """

    index: Passages
    docids: Callable[[], pl.Series]
    rule: GroupRule

    @property
    def numbered(self) -> NumberedSide | None:
        """See `retriever.Side`."""
        return None

    def search(self, queries: pl.DataFrame, hits: int) -> Iterator[pl.DataFrame]:
        """Yield the runs of documents of some queries at a time, with the best passage of each (column `passage`)."""
        size = max(1, _HITS_AT_ONCE // hits)
        for some in queries.iter_slices(size):
            yield self._hits(self.index.answer(some), hits)

    def answer(self, queries: pl.DataFrame) -> Answers:
        """See `retriever.Side`; pairs have documents."""
        answers = self.index.answer(queries)
        return Answers(
            lambda depth: self._hits(answers, depth),
            lambda pairs: document_scores(pairs, self._passages, answers.score, self.rule).cast(pl.Float32),
        )

    def within(self, allowed: Allowed) -> Grouped:
        """See `retriever.Side`; passages have the metadata of their documents."""
        return replace(self, index=self.index.within(allowed))

    @cached_property
    def _passages(self) -> groups.Passages:
        return groups.Passages(self.docids())

    def _hits(self, answers: Answers, depth: int) -> pl.DataFrame:
        searched = _FIRST * depth
        while True:
            found = answers.hits(searched)
            whole = found.group_by("qid").agg(
                documents=groups.documents_of(pl.col("docid")).n_unique(), passages=pl.len()
            )
            if not len(whole.filter((pl.col("documents") < depth) & (pl.col("passages") >= searched))):
                break
            searched *= _FIRST
        run = groups.by_document(found, MAX, depth)
        if self.rule == MAX:
            return run
        scores = document_scores(run, self._passages, answers.score, self.rule)
        named = run.select("qid", "docid", "passage")
        ranked = runs.ranked(run.select("qid", "docid", score=scores))
        return ranked.join(named, on=["qid", "docid"], how="left", maintain_order="left")


def document_scores(
    pairs: pl.DataFrame, passages: groups.Passages, score: Callable[[pl.DataFrame], pl.Series], rule: GroupRule
) -> pl.Series:
    """Return the exact scores of documents, float64.

    Args:
        pairs: qid, docid of documents.
        passages: the passages of the documents.
        score: from pairs (qid, docid) of passages to their exact scores.
        rule: how passages score a document.
    """
    number, docids = passages.of(pairs["docid"])
    each = pl.DataFrame({"pair": number, "qid": pairs["qid"].gather(number), "docid": docids})
    each = each.with_columns(score=score(each.select("qid", "docid")).cast(pl.Float64))
    return each.group_by("pair", maintain_order=True).agg(groups.SCORES[rule].alias("score"))["score"]
