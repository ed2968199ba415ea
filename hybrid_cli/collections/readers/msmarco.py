"""MS MARCO's tab-separated files: passages or documents, queries, judgements, and triples of ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hybrid_cli.collections.collection import judgement_rows, query_rows
from hybrid_cli.collections.readers.lines import checked_id, columns
from hybrid_cli.collections.source import Document, Judgement, Query, Source, roles

_NONE: Mapping[str, Path] = {}


def source(
    corpus: Path,
    *,
    queries: Mapping[str, Path],
    qrels: Mapping[str, Path] = _NONE,
    triples: Mapping[str, Path] = _NONE,
) -> Source:
    """The collection of `collection.tsv` (id, text) or `msmarco-docs.tsv` (id, url, title, body).

    Args:
        corpus: the passages or documents.
        queries: split -> file of query id and text.
        qrels: split -> file of judgements.
        triples: split -> file of query id, relevant id, other id. The relevant ids become judgements of relevance 1;
            the other ids are not taken over: `mine-negatives` draws negatives from the errors of a first stage.
    """

    def documents() -> Iterator[Document]:
        for place, fields in columns(corpus, 2, "id and text, or id, url, title and body"):
            title = fields[2] if len(fields) == 4 else ""
            yield Document(checked_id(fields[0], place), title, fields[-1], place)

    def split_queries() -> Iterator[Query]:
        for split, path in queries.items():
            for place, qid, text, answers in query_rows(path):
                yield Query(split, qid, text, answers, place)

    def judgements() -> Iterator[Judgement]:
        for split, path in qrels.items():
            for place, qid, docid, relevance in judgement_rows(path):
                yield Judgement(split, qid, docid, relevance, place)
        for split, path in triples.items():
            yield from positives(split, path)

    def positives(split: str, path: Path) -> Iterator[Judgement]:
        triples_read = 0
        for place, fields in columns(path, 3, "query id, relevant id and other id"):
            triples_read += 1
            yield Judgement(split, checked_id(fields[0], place), checked_id(fields[1], place), 1, place)
        result.facts.setdefault("triples", {})[split] = triples_read

    files = {
        "corpus": corpus, **roles("queries", queries), **roles("qrels", qrels), **roles("triples", triples)
    }  # fmt: skip
    result = Source("msmarco", documents, split_queries, judgements, files)
    return result
