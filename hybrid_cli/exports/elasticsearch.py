"""Elasticsearch 9: exact sums in a script, and the retrievers `linear` and `rrf`."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import Field, Formula, Fusion, Query, Translation
from hybrid_cli.exports.lucene import (
    ASK,
    DEEPEST,
    LOAD,
    Lucene,
    body,
    composed,
    differences_of_vectors,
    engine_score,
    match,
)
from hybrid_cli.exports.nearest import Nearest, nearest
from hybrid_cli.fusion.methods import Transform, euclidean, of_query, reciprocal_rank

_NORMALIZERS = {"minmax": "minmax", "l2": "l2_norm"}
_EQUAL = "A single hit, or hits with equal scores, keep their score; ours have the value 1."


class Elasticsearch(Lucene):
    """Elasticsearch, whose BM25 has the factor k1 + 1."""

    name = "elasticsearch"

    def _with_vectors(self, settings: dict[str, Any], fields: dict[str, Any], served: Served) -> dict[str, Any]:
        for name, dim in served.dims.items():
            fields[name] = {
                "type": "dense_vector",
                "dims": dim,
                "similarity": "dot_product" if served.unit(name) else "max_inner_product",
                "index_options": {"type": "flat" if served.exact(name) else "hnsw"},
            }
        return {"settings": settings, "mappings": {"properties": fields}}

    def translate(self, fusion: Fusion) -> Translation:
        """See `Engine`."""
        near = nearest(fusion, ("sum", "minmax", "l2", "rrf"), self.name, deepest=DEEPEST)
        if near.kind == "sum":
            return self._exact(fusion, near, "dotProduct(params.{name}, '{name}')", 1 + fusion.k1)
        return _rrf(fusion, near) if near.kind == "rrf" else _linear(fusion, near)


def _lists(fusion: Fusion, near: Nearest, query: Query, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one weighted retriever per field."""

    def retriever(field: Field) -> dict[str, Any]:
        if field.dim is None:
            return {"standard": {"query": match(query)}}
        depth = {"k": near.depth, "num_candidates": near.depth}
        return {"knn": {"field": field.name, "query_vector": query[field.name], **depth}}

    return [
        {"retriever": retriever(each), "weight": weight, **options}
        for each, weight in zip(fusion.fields, near.weights, strict=True)
    ]


def _linear(fusion: Fusion, near: Nearest) -> Translation:
    normalizer = _NORMALIZERS[near.kind]

    def request(query: Query) -> dict[str, Any]:
        lists = _lists(fusion, near, query, {"normalizer": normalizer})
        linear = {"retrievers": lists, "rank_window_size": near.depth}
        return {**body(fusion), "retriever": {"linear": linear}}

    normalization: Transform = min_max if near.kind == "minmax" else euclidean
    values = tuple(composed(normalization, engine_score(each)) for each in fusion.fields)
    differences = [*near.differences, *([_EQUAL] if near.kind == "minmax" else [])]
    return Translation(
        f"linear retriever, {normalizer}",
        request,
        Formula(near.weights, values, near.depth),
        differences=[*differences, *differences_of_vectors(fusion.dense, near.kind)],
        load=f"# the retriever linear needs Elasticsearch 8.18 or 9, and a licence that includes it\n{LOAD}",
        ask=ASK.format(parameters=""),
    )


def _rrf(fusion: Fusion, near: Nearest) -> Translation:
    def request(query: Query) -> dict[str, Any]:
        lists = {"retrievers": _lists(fusion, near, query, {}), "rank_window_size": near.depth}
        return {**body(fusion), "retriever": {"rrf": {**lists, "rank_constant": near.constant}}}

    values = (partial(reciprocal_rank, k=near.constant),) * len(fusion.fields)
    return Translation(
        "rrf retriever",
        request,
        Formula(near.weights, values, near.depth),
        differences=[*near.differences, *differences_of_vectors(fusion.dense, near.kind)],
        load=f"# weights of the retriever rrf need Elasticsearch 9.2, and a licence that includes it\n{LOAD}",
        ask=ASK.format(parameters=""),
    )


def min_max(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - min) / (max - min); equal scores remain."""
    low, high = of_query(score.min()), of_query(score.max())
    value = pl.when(high - low >= 1e-6).then((score - low) / (high - low)).otherwise(low)
    return pl.when(score.is_not_null()).then(value)
