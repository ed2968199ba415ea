"""A random sample of a source that keeps its judgments valid: every relevant document of a kept query is included."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from functools import cache
from heapq import nsmallest

from hybrid_cli.collections.source import Document, Judgment, Query, Source
from hybrid_cli.draws import draw
from hybrid_cli.errors import InputError
from hybrid_cli.settings.data import Prepare


@dataclass(frozen=True)
class _Drawn:
    """Ids of the source, and the ids drawn from them.

    Attributes:
        queries: split -> ids of all queries.
        kept_queries: split -> ids of the queries in the sample.
        docids: ids of all documents; empty if documents are not sampled.
        kept_docids: ids of the documents in the sample.
    """

    queries: dict[str, set[str]]
    kept_queries: dict[str, set[str]]
    docids: Set[str]
    kept_docids: Set[str]

    def keeps(self, row: Judgment) -> bool:
        """Test whether a judgment belongs to the sample; dangling judgments do, so that they are reported."""
        if row.qid not in self.queries.get(row.split, ()):
            return True
        known = row.docid in self.docids
        return row.qid in self.kept_queries[row.split] and (row.docid in self.kept_docids or not known)


def sampled(source: Source, settings: Prepare) -> Source:
    """Return a source over a sample of the documents and queries; the same source if no sample is wanted.

    A draw depends on the seed and the id only, so a larger sample contains a smaller one of the same queries.

    Args:
        source: collection to sample from.
        settings: `sample` documents, `sample_queries` of a split, and `seed`.

    Raises:
        InputError: when a stream is started: the relevant documents exceed the sample, or a split is unknown.
    """
    if settings.sample is None and not settings.sample_queries:
        return source

    @cache
    def drawn() -> _Drawn:
        queries, kept_queries = _draw_queries(source, settings)
        docids, kept_docids = _draw_documents(source, kept_queries, settings)
        total = {"queries": {split: len(qids) for split, qids in queries.items()}}
        source.facts["sampled_from"] = total if settings.sample is None else {"documents": len(docids), **total}
        return _Drawn(queries, kept_queries, docids, kept_docids)

    def documents() -> Iterator[Document]:
        sample = drawn()
        return (row for row in source.documents() if settings.sample is None or row.docid in sample.kept_docids)

    def queries() -> Iterator[Query]:
        return (row for row in source.queries() if row.qid in drawn().kept_queries[row.split])

    def judgments() -> Iterator[Judgment]:
        return (row for row in source.judgments() if drawn().keeps(row))

    return replace(source, documents=documents, queries=queries, judgments=judgments)


def _draw_queries(source: Source, settings: Prepare) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the query ids of each split, and those that are kept."""
    found: dict[str, set[str]] = {}
    for row in source.queries():
        found.setdefault(row.split, set()).add(row.qid)
    if unknown := sorted(set(settings.sample_queries) - set(found)):
        raise InputError(
            f"--sample-queries: the collection has no queries of split '{unknown[0]}'; "
            f"splits: {', '.join(sorted(found)) or 'none'}"
        )
    kept = {
        split: _smallest(qids, settings.sample_queries.get(split, len(qids)), settings.seed)
        for split, qids in found.items()
    }
    return found, kept


def _draw_documents(source: Source, queries: dict[str, set[str]], settings: Prepare) -> tuple[set[str], set[str]]:
    """Return all document ids, and those that are kept; both are empty if documents are not sampled."""
    if settings.sample is None:
        return set(), set()
    judged = {row.docid for row in source.judgments() if row.relevance >= 1 and row.qid in queries.get(row.split, ())}
    docids = {row.docid for row in source.documents()}
    relevant = judged & docids
    if len(relevant) > settings.sample:
        raise InputError(
            f"--sample {settings.sample}: the queries have {len(relevant):,} relevant documents; use a larger sample, "
            "or fewer queries with --sample-queries SPLIT=N"
        )
    return docids, relevant | _smallest(docids - relevant, settings.sample - len(relevant), settings.seed)


def _smallest(ids: Set[str], count: int, seed: int) -> set[str]:
    """Return the ids with the `count` smallest draws."""
    return set(nsmallest(count, ids, key=lambda name: (draw(seed, name), name)))
