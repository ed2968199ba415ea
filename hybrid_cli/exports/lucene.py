"""What OpenSearch and Elasticsearch have in common: bulk files, Anserini's analysis, BM25 by Lucene, exact sums."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from hybrid_cli.errors import option_error
from hybrid_cli.exports.documents import Served, json_rows, write_line
from hybrid_cli.exports.engine import APPROXIMATE, Engine, Field, Formula, Fusion, Query, Translation
from hybrid_cli.exports.live import Live, Server, collection_in
from hybrid_cli.exports.nearest import Kind, Nearest
from hybrid_cli.fusion.methods import Transform
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.lexical.analysis import ENGLISH
from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.runs.groups import are_passages, documents_of
from hybrid_cli.storage import disk

CONTENTS, DOCUMENT = "contents", "document"  # fields: the indexed text, and the document of a passage
_LONGEST = 8191  # characters of a keyword; Lucene takes 32,766 bytes
DEEPEST = 10_000  # hits of a list: `index.max_result_window`


class Lucene(Engine):
    """An engine on top of Lucene: `documents.ndjson` (bulk) and `index.json` (settings and mappings).

    The engine computes BM25, from a text that its analyzer splits as Anserini's does.

    Attributes:
        name: name of the format.
    """

    lexical = CONTENTS
    name: ClassVar[str]

    def check(self, served: Served) -> None:
        """Refuse another language than English, and fields besides title and text.

        Raises:
            InputError: see above.
        """
        if others := [name for name in served.fields if name not in ("title", "text")]:
            reason = f"writes titles and texts, the index has the field '{others[0]}'; use parquet or vespa"
            raise option_error("format", self.name, reason, code="other-fields", field=others[0])
        if served.lexical.language != ENGLISH:
            reason = f"analyzes English, the index has language {served.lexical.language}; use parquet or vespa"
            raise option_error("format", self.name, reason, code="other-language")

    def write(self, served: Served, folder: Path, advance: Advance) -> int:
        """See `Engine`."""
        count, passages = 0, are_passages(served.lexical.docids)
        with disk.create_text(folder / "documents.ndjson") as file:
            for row in json_rows(served.documents(impacts=False)):
                write_line(file, {"index": {"_id": row["docid"]}})
                source = {name: row[name] for name in ("title", "text", *served.metadata)}
                source |= {CONTENTS: "\n".join(row[name] for name in served.fields)}
                source |= {DOCUMENT: documents_of(pl.Series([row["docid"]]))[0]} if passages else {}
                write_line(file, source | {name: row[name] for name in served.dense})
                count += 1
                advance(1)
        disk.write_text(folder / "index.json", json.dumps(self._index(served, passages), indent=2) + "\n")
        return count

    def _index(self, served: Served, passages: bool) -> dict[str, Any]:
        """Return settings and mappings: one shard, and the analysis chain of Anserini's DefaultEnglishAnalyzer."""
        filters = {
            "possessive": {"type": "stemmer", "language": "possessive_english"},
            "stop_words": {"type": "stop", "stopwords": sorted(STOP_WORDS)},
            "porter": {"type": "porter_stem"},
        }
        chain = {"tokenizer": "standard", "filter": ["possessive", "lowercase", "stop_words", "porter"]}
        fields: dict[str, Any] = {name: {"type": "text", "index": False} for name in ("title", "text")}
        fields[CONTENTS] = {"type": "text", "analyzer": "anserini", "similarity": "bm25"}
        fields |= {DOCUMENT: {"type": "keyword"}} if passages else {}
        fields |= {name: _metadata(kind) for name, kind in served.metadata.items()}
        settings = {
            "number_of_shards": 1,
            "similarity": {"bm25": {"type": "BM25", "k1": served.lexical.k1, "b": served.lexical.b}},
            "analysis": {"filter": filters, "analyzer": {"anserini": {"type": "custom", **chain}}},
        }
        return self._with_vectors(settings, fields, served)

    def connect(self, address: str) -> Live:
        """See `Engine`."""
        return _Index(self.name, address)

    @abstractmethod
    def _with_vectors(self, settings: dict[str, Any], fields: dict[str, Any], served: Served) -> dict[str, Any]:
        """Return settings and mappings with the fields of vectors."""

    def _exact(self, fusion: Fusion, near: Nearest, product: str, factor: float = 1.0) -> Translation:
        """Return the exact sum over all documents.

        Args:
            fusion: the fusion.
            near: weights and differences.
            product: the engine's inner product, with `{name}` for the field.
            factor: BM25 of the engine, divided by ours.
        """
        scores = [
            f"{weight / factor:.9g} * _score"
            if each.dim is None
            else f"{weight:.9g} * {product.format(name=each.name)}"
            for each, weight in zip(fusion.fields, near.weights, strict=True)
        ]
        # scores must not be negative: the map keeps the order
        source = f"double s = {' + '.join(scores)}; return s >= 0 ? s + 1 : 1 / (1 - s);"

        def request(query: Query) -> dict[str, Any]:
            every = {"bool": {"must": {"match_all": {"boost": 0}}, "should": match(query)}}
            script = {"source": source, "params": {each.name: query[each.name] for each in fusion.dense}}
            return {**body(fusion), "query": {"script_score": {"query": every, "script": script}}}

        return Translation(
            "script_score over all documents",
            request,
            Formula(near.weights),
            differences=near.differences,
            load=LOAD,
            ask=ASK.format(parameters=""),
        )


class _Index:
    """An index on a server."""

    def __init__(self, engine: str, address: str):
        self._server, self._name = Server(engine, address), collection_in(address)[1]

    def count(self) -> int:
        """See `Live`."""
        return int(self._server.ask(f"/{self._name}/_count")["count"])

    def search(self, request: Mapping[str, Any]) -> list[tuple[str, float]]:
        """See `Live`."""
        pipeline = "?search_pipeline=hybrid" if "hybrid" in request.get("query", ()) else ""
        answer = self._server.ask(f"/{self._name}/_search{pipeline}", request)
        return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]

    def close(self) -> None:
        """See `Live`."""


def _metadata(kind: pl.DataType) -> dict[str, Any]:
    """Return the type of a field that filters and aggregations read."""
    if kind == pl.String:
        return {"type": "keyword", "ignore_above": _LONGEST}
    return {"type": "boolean" if kind == pl.Boolean else "long" if kind.is_integer() else "double"}


LOAD = """\
curl -X PUT localhost:9200/documents -H 'Content-Type: application/json' --data-binary @index.json
curl -X POST localhost:9200/documents/_bulk -H 'Content-Type: application/x-ndjson' --data-binary @documents.ndjson
# a large file: split -l 2000 documents.ndjson part- (an even number of lines), and one request per part"""
ASK = """\
head -1 queries.jsonl | jq .request | curl -X POST 'localhost:9200/documents/_search{parameters}' \\
    -H 'Content-Type: application/json' --data-binary @-"""


def match(query: Query) -> dict[str, Any]:
    """Return the query of BM25."""
    return {"match": {CONTENTS: query["text"]}}


def body(fusion: Fusion) -> dict[str, Any]:
    """Return what all requests have: the number of hits, the returned fields, and one hit per document."""
    collapse = {} if fusion.group == NO_GROUPS else {"collapse": {"field": DOCUMENT}}
    return {"size": fusion.hits, "_source": ["title", "text"], **collapse}


def engine_score(field: Field) -> Transform:
    """Return the function from an inner product to the score of the engine, which is never negative."""

    def of_product(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
        if field.dim is None:
            return score
        if field.unit:
            return (1 + score) / 2
        return pl.when(score >= 0).then(score + 1).otherwise(1 / (1 - score))

    return of_product


def differences_of_vectors(fields: Sequence[Field], kind: Kind) -> list[str]:
    """Return what differs in the scores of vectors.

    Args:
        fields: fields of vectors.
        kind: kind of the fusion.
    """
    differences = [] if all(each.exact for each in fields) else [APPROXIMATE]
    if kind == "l2":
        differences.append("A vector of length 1 scores (1 + s) / 2 and another s + 1 for the inner product s, ours s.")
    if kind != "rrf" and not all(each.unit for each in fields):
        differences.append("An inner product s below 0 scores 1 / (1 - s), not s + 1.")
    return differences


def composed(normalization: Transform, score: Transform) -> Transform:
    """Return a normalization of the scores of the engine."""
    return lambda ours, rank: normalization(score(ours, rank), rank)
