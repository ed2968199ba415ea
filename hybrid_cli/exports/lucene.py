"""OpenSearch 3 and Elasticsearch 9: bulk files, Anserini's analysis, BM25 by Lucene, exact sums, and their fusions."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from hybrid_cli.errors import option_error
from hybrid_cli.exports import engine
from hybrid_cli.exports.documents import Served, write_line
from hybrid_cli.fusion.methods import Transform, euclidean, of_query, reciprocal_rank
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.lexical.options import ENGLISH
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.runs.groups import are_passages, documents_of
from hybrid_cli.storage import disk

_Values = Mapping[engine.Kind, Transform]
_CONTENTS, _DOCUMENT = "contents", "document"  # fields: the indexed text, and the document of a passage
_LONGEST = 8191  # characters of a keyword; Lucene takes 32,766 bytes
_REFUSED_NAMES = r"^\s*$|^\.|\.$|\.\.|^_(id|index|type|source|routing|ignored|field_names|doc_count|seq_no|version)$"
_DEEPEST = 10_000  # hits of a list: `index.max_result_window`
_MOST_QUERIES = 5  # of a hybrid query of OpenSearch
_SMALLEST = 0.001  # OpenSearch: the value of a hit whose normalized score is 0
_PIPELINE = "pipeline.json"
_LOAD = """\
curl -X PUT localhost:9200/documents -H 'Content-Type: application/json' --data-binary @index.json
curl -X POST localhost:9200/documents/_bulk -H 'Content-Type: application/x-ndjson' --data-binary @documents.ndjson
# a large file: split -l 2000 documents.ndjson part- (an even number of lines), and one request per part"""
_LOAD_PIPELINE = f"""\
curl -X PUT localhost:9200/_search/pipeline/hybrid -H 'Content-Type: application/json' --data-binary @{_PIPELINE}
{_LOAD}"""
_ASK = """\
head -1 queries.jsonl | jq .request | curl -X POST 'localhost:9200/documents/_search{parameters}' \\
    -H 'Content-Type: application/json' --data-binary @-"""


class _Lucene(engine.Engine):
    """An engine on top of Lucene: `documents.ndjson` (bulk) and `index.json` (settings and mappings).

    The engine computes BM25, from a text that its analyzer splits as Anserini's does.

    Attributes:
        kinds: kinds of fusion that the engine has, in the words of `nearest`.
        values: kind -> normalization of the scores of the engine.
        differences: kind -> what the normalization does differently.
        product: inner product of a query and the field `{name}` in a script.
    """

    lexical = _CONTENTS
    limits = engine.Limits(512, document_bytes=50_000_000, dimensions=4096, refused_names=_REFUSED_NAMES, json=True)
    request: ClassVar[Mapping[str, Any]] = {"query": {"multi_match": {"query": "{query}"}}}  # over all fields
    envelope: ClassVar[Mapping[str, Any]] = {"size": "{hits}", "_source": ["docid"]}
    kinds: ClassVar[Sequence[engine.Kind]]
    values: ClassVar[_Values]
    differences: ClassVar[Mapping[engine.Kind, str]]
    product: ClassVar[str]

    def check(self, served: Served) -> None:
        """Refuse another language than English, and fields besides title and text; see `Engine`."""
        super().check(served)
        if inner := [name for name in served.metadata for outer in served.metadata if name.startswith(f"{outer}.")]:
            reason = f"takes {inner[0]!r} for a part of the column before its dot, which has values; rename it"
            raise option_error("format", self.name, reason, code="unsafe-name", column=inner[0])
        if others := [name for name in served.fields if name not in ("title", "text")]:
            reason = f"writes titles and texts, the index has the field '{others[0]}'; use parquet or qdrant"
            raise option_error("format", self.name, reason, code="other-fields", field=others[0])
        if served.lexical.language != ENGLISH:
            reason = f"analyzes English, the index has language {served.lexical.language}; use parquet or qdrant"
            raise option_error("format", self.name, reason, code="other-language")

    def write(self, served: Served, folder: Path, advance: Advance) -> None:
        """See `Engine`."""
        passages = are_passages(served.lexical.docids)
        with disk.create_text(folder / "documents.ndjson") as file:
            for row in served.rows(impacts=False):
                write_line(file, {"index": {"_id": row["docid"]}})
                source = {name: row[name] for name in ("title", "text", *served.metadata)}
                source |= {_CONTENTS: "\n".join(row[name] for name in served.fields)}
                source |= {_DOCUMENT: documents_of(pl.Series([row["docid"]]))[0]} if passages else {}
                write_line(file, source | {name: row[name] for name in served.dense})
                advance(1)
        disk.write_text(folder / "index.json", json.dumps(self._index(served, passages), indent=2) + "\n")

    def _index(self, served: Served, passages: bool) -> dict[str, Any]:
        """Return settings and mappings: one shard, and the analysis chain of Anserini's DefaultEnglishAnalyzer."""
        filters = {
            "possessive": {"type": "stemmer", "language": "possessive_english"},
            "stop_words": {"type": "stop", "stopwords": sorted(STOP_WORDS)},
            "porter": {"type": "porter_stem"},
        }
        chain = {"tokenizer": "standard", "filter": ["possessive", "lowercase", "stop_words", "porter"]}
        fields: dict[str, Any] = {name: {"type": "text", "index": False} for name in ("title", "text")}
        fields[_CONTENTS] = {"type": "text", "analyzer": "anserini", "similarity": "bm25"}
        fields |= {_DOCUMENT: {"type": "keyword"}} if passages else {}
        fields |= {name: _metadata(kind) for name, kind in served.metadata.items()}
        fields |= {name: self._vector(served, name) for name in served.dims}
        settings = {
            "number_of_shards": 1,
            "similarity": {"bm25": {"type": "BM25", "k1": served.lexical.k1, "b": served.lexical.b}},
            "analysis": {"filter": filters, "analyzer": {"anserini": {"type": "custom", **chain}}},
        }
        return {"settings": {**settings, **self._settings(served)}, "mappings": {"properties": fields}}

    @abstractmethod
    def _vector(self, served: Served, name: str) -> dict[str, Any]:
        """Return the mapping of a field of vectors."""

    def _settings(self, served: Served) -> dict[str, Any]:
        """Return further settings."""
        return {}

    def translate(self, fusion: engine.Fusion) -> engine.Translation:
        """See `Engine`."""
        near = engine.nearest(fusion, self.kinds, self.name, deepest=_DEEPEST)
        return self._exact(fusion, near) if near.kind == "sum" else self._fused(fusion, near)

    def _exact(self, fusion: engine.Fusion, near: engine.Nearest) -> engine.Translation:
        """Return the exact sum over all documents."""
        scores = [
            f"{weight / self._bm25_factor(fusion):.9g} * _score"
            if each.dim is None
            else f"{weight:.9g} * {self.product.format(name=each.name)}"
            for each, weight in zip(fusion.fields, near.weights, strict=True)
        ]
        # scores must not be negative: the map keeps the order
        source = f"double s = {' + '.join(scores)}; return s >= 0 ? s + 1 : 1 / (1 - s);"

        def request(query: engine.Query) -> dict[str, Any]:
            every = {"bool": {"must": {"match_all": {"boost": 0}}, "should": _match(query)}}
            script = {"source": source, "params": {each.name: query[each.name] for each in fusion.dense}}
            return {**_body(fusion), "query": {"script_score": {"query": every, "script": script}}}

        return engine.Translation(
            "script_score over all documents",
            request,
            engine.Formula(near.weights),
            differences=near.differences,
            load=_LOAD,
            ask=_ASK.format(parameters=""),
        )

    def _bm25_factor(self, fusion: engine.Fusion) -> float:
        """Return BM25 of the engine, divided by ours."""
        return 1.0

    @abstractmethod
    def _fused(self, fusion: engine.Fusion, near: engine.Nearest) -> engine.Translation:
        """Return the fusion of the lists of all fields."""

    def _formula(self, fusion: engine.Fusion, near: engine.Nearest) -> engine.Formula:
        normalization = self.values.get(near.kind, partial(reciprocal_rank, k=near.constant))
        values = tuple(_composed(normalization, _engine_score(each)) for each in fusion.fields)
        return engine.Formula(near.weights, values, near.depth)

    def _differences(self, fusion: engine.Fusion, near: engine.Nearest) -> list[str]:
        """Return what the fusion does differently, in the scores of vectors too."""
        own = self.differences.get(near.kind)
        differences = [*near.differences, *([own] if own else [])]
        if not all(each.exact for each in fusion.dense):
            differences.append(engine.APPROXIMATE)
        if near.kind == "l2":
            differences.append(
                "A vector of length 1 scores (1 + s) / 2 and another s + 1 for the inner product s, ours s."
            )
        if near.kind != "rrf" and not all(each.unit for each in fusion.dense):
            differences.append("An inner product s below 0 scores 1 / (1 - s), not s + 1.")
        return differences

    def connect(self, address: str) -> engine.OpenCollection:
        """See `Engine`."""
        return _Index(self.name, address, self.timeout)


def _match(query: engine.Query) -> dict[str, Any]:
    """Return the query of BM25."""
    return {"match": {_CONTENTS: query["text"]}}


def _body(fusion: engine.Fusion) -> dict[str, Any]:
    """Return what all requests have: the number of hits, the returned fields, and one hit per document."""
    collapse = {} if fusion.group == NO_GROUPS else {"collapse": {"field": _DOCUMENT}}
    return {"size": fusion.hits, "_source": ["title", "text"], **collapse}


def _metadata(kind: pl.DataType) -> dict[str, Any]:
    """Return the type of a field that filters and aggregations read."""
    if kind in (pl.String, pl.List):
        return {"type": "keyword", "ignore_above": _LONGEST}
    return {"type": "boolean" if kind == pl.Boolean else "long" if kind.is_integer() else "double"}


def _engine_score(field: engine.Field) -> Transform:
    """Return the function from an inner product to the score of the engine, which is never negative."""

    def of_product(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
        if field.dim is None:
            return score
        if field.unit:
            return (1 + score) / 2
        return pl.when(score >= 0).then(score + 1).otherwise(1 / (1 - score))

    return of_product


def _composed(normalization: Transform, score: Transform) -> Transform:
    """Return a normalization of the scores of the engine."""
    return lambda ours, rank: normalization(score(ours, rank), rank)


class _Index(engine.Server):
    """An index on a server."""

    def count(self) -> int:
        """See `OpenCollection`."""
        return int(self.ask(f"/{self.name}/_count")["count"])

    def search(self, request: Mapping[str, Any]) -> list[tuple[str, float]]:
        """See `OpenCollection`; an id is the field `docid`, else `_id`."""
        pipeline = "?search_pipeline=hybrid" if "hybrid" in request.get("query", ()) else ""
        answer = self.ask(f"/{self.name}/_search{pipeline}", request)
        hits = answer["hits"]["hits"]
        return [(hit.get("_source", {}).get("docid", hit["_id"]), hit["_score"]) for hit in hits]

    def close(self) -> None:
        """See `OpenCollection`."""


# ----------------------------------------------------------------------------------------------------------- OpenSearch


def min_max_of_opensearch(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - min) / (max - min), .001 instead of 0; 1 for a single hit or equal scores."""
    low, high = of_query(score.min()), of_query(score.max())
    value = pl.when(score > low).then((score - low) / (high - low)).otherwise(_SMALLEST)
    return pl.when(score.is_not_null()).then(pl.when(high > low).then(value).otherwise(1.0))


def z_score(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - mean) / standard deviation of the sample: .001 below the mean, the highest score at the mean."""
    low, high, mean = of_query(score.min()), of_query(score.max()), of_query(score.mean())
    value = (score - mean) / of_query(score.std(ddof=1))
    above = pl.when(value > 0).then(value).otherwise(_SMALLEST)
    return pl.when(score.is_not_null()).then(pl.when((high > low) & (score != mean)).then(above).otherwise(high))


class OpenSearch(_Lucene):
    """OpenSearch: hybrid queries with a pipeline that normalizes and combines scores."""

    name = "opensearch"
    limits = replace(_Lucene.limits, dimensions=16_000)
    kinds = ("sum", "minmax", "l2", "zscore", "rrf")
    values: ClassVar[_Values] = {"minmax": min_max_of_opensearch, "zscore": z_score, "l2": euclidean}
    differences: ClassVar[Mapping[engine.Kind, str]] = {
        "minmax": f"The last hit of a list has the value {_SMALLEST}; ours has 0.",
        "zscore": f"Values below the mean become {_SMALLEST}, a score equal to the mean (as of a single hit) becomes "
        "the highest score, and deviations are those of a sample.",
    }
    product = "innerProduct(params.{name}, doc['{name}'])"

    def _vector(self, served: Served, name: str) -> dict[str, Any]:
        space = "cosinesimil" if served.unit(name) else "innerproduct"
        method = {"name": "hnsw", "engine": "faiss", "space_type": space}
        return {"type": "knn_vector", "dimension": served.dims[name], "method": method}

    def _settings(self, served: Served) -> dict[str, Any]:
        if not served.dims:
            return {}
        exact = all(map(served.exact, served.dims))  # without a graph, the search is exact
        return {"index": {"knn": True, **({"knn.advanced.approximate_threshold": -1} if exact else {})}}

    def _fused(self, fusion: engine.Fusion, near: engine.Nearest) -> engine.Translation:
        """Return a hybrid query, and the pipeline that fuses its lists."""
        if len(fusion.fields) > _MOST_QUERIES:
            reason = (
                f"a hybrid query has at most {_MOST_QUERIES} queries, the retriever has {len(fusion.fields)} indexes"
            )
            raise option_error("format", self.name, reason, code="too-many-indexes", limit=_MOST_QUERIES)

        def list_of(query: engine.Query, each: engine.Field) -> dict[str, Any]:
            if each.dim is None:
                return _match(query)
            return {"knn": {each.name: {"vector": query[each.name], "k": near.depth}}}

        def request(query: engine.Query) -> dict[str, Any]:
            queries = [list_of(query, each) for each in fusion.fields]
            return {**_body(fusion), "query": {"hybrid": {"queries": queries, "pagination_depth": near.depth}}}

        name, processor = _processor(near)
        differences = self._differences(fusion, near)
        if fusion.group != NO_GROUPS:
            differences.append(
                "A request may return fewer documents than `size`, since passages are collapsed after it."
            )
        return engine.Translation(
            f"hybrid query, {name}",
            request,
            self._formula(fusion, near),
            {_PIPELINE: json.dumps({"phase_results_processors": [processor]}, indent=2) + "\n"},
            differences,
            _LOAD_PIPELINE,
            _ASK.format(parameters="?search_pipeline=hybrid"),
        )


def _processor(near: engine.Nearest) -> tuple[str, dict[str, Any]]:
    """Return name and definition of the processor of the pipeline."""
    weights = {"parameters": {"weights": list(near.weights)}}
    if near.kind == "rrf":
        combination = {"technique": "rrf", "rank_constant": near.constant, **weights}
        return "score-ranker-processor rrf", {"score-ranker-processor": {"combination": combination}}
    technique = {"minmax": "min_max", "l2": "l2", "zscore": "z_score"}[near.kind]
    definition = {"normalization": {"technique": technique}, "combination": {"technique": "arithmetic_mean", **weights}}
    return f"normalization-processor {technique}", {"normalization-processor": definition}


# -------------------------------------------------------------------------------------------------------- Elasticsearch


def min_max_of_elasticsearch(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - min) / (max - min); equal scores remain."""
    low, high = of_query(score.min()), of_query(score.max())
    value = pl.when(high - low >= 1e-6).then((score - low) / (high - low)).otherwise(low)
    return pl.when(score.is_not_null()).then(value)


class Elasticsearch(_Lucene):
    """Elasticsearch, whose BM25 has the factor k1 + 1: the retrievers `linear` and `rrf`."""

    name = "elasticsearch"
    kinds = ("sum", "minmax", "l2", "rrf")
    values: ClassVar[_Values] = {"minmax": min_max_of_elasticsearch, "l2": euclidean}
    differences: ClassVar[Mapping[engine.Kind, str]] = {
        "minmax": "A single hit, or hits with equal scores, keep their score; ours have the value 1."
    }
    product = "dotProduct(params.{name}, '{name}')"

    def _vector(self, served: Served, name: str) -> dict[str, Any]:
        return {
            "type": "dense_vector",
            "dims": served.dims[name],
            "similarity": "dot_product" if served.unit(name) else "max_inner_product",
            "index_options": {"type": "flat" if served.exact(name) else "hnsw"},
        }

    def _bm25_factor(self, fusion: engine.Fusion) -> float:
        return 1 + fusion.k1

    def _fused(self, fusion: engine.Fusion, near: engine.Nearest) -> engine.Translation:
        """Return one weighted retriever per field, in a retriever that fuses them."""
        normalizer = {"minmax": "minmax", "l2": "l2_norm"}.get(near.kind)
        name, title = "linear", f"linear retriever, {normalizer}"
        needs = "the retriever linear needs Elasticsearch 8.18 or 9"
        of_list, of_all = {"normalizer": normalizer}, {}
        if near.kind == "rrf":
            name, title, needs = "rrf", "rrf retriever", "weights of the retriever rrf need Elasticsearch 9.2"
            of_list, of_all = {}, {"rank_constant": near.constant}

        def retriever(query: engine.Query, each: engine.Field) -> dict[str, Any]:
            if each.dim is None:
                return {"standard": {"query": _match(query)}}
            depth = {"k": near.depth, "num_candidates": near.depth}
            return {"knn": {"field": each.name, "query_vector": query[each.name], **depth}}

        def request(query: engine.Query) -> dict[str, Any]:
            lists = [
                {"retriever": retriever(query, each), "weight": weight, **of_list}
                for each, weight in zip(fusion.fields, near.weights, strict=True)
            ]
            fused = {"retrievers": lists, "rank_window_size": near.depth, **of_all}
            return {**_body(fusion), "retriever": {name: fused}}

        return engine.Translation(
            title,
            request,
            self._formula(fusion, near),
            differences=self._differences(fusion, near),
            load=f"# {needs}, and a licence that includes it\n{_LOAD}",
            ask=_ASK.format(parameters=""),
        )
