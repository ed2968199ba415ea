"""OpenSearch 3: exact sums in a script, and hybrid queries with a pipeline that normalizes and combines scores."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import polars as pl

from hybrid_cli.errors import option_error
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import Formula, Fusion, Query, Translation
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
from hybrid_cli.passages import NO_GROUPS

PIPELINE = "pipeline.json"
_QUERIES = 5  # of a hybrid query, at most
_SMALLEST = 0.001  # the value of a hit whose normalized score is 0
_TECHNIQUES = {"minmax": "min_max", "l2": "l2", "zscore": "z_score"}
_DIFFERENCES = {
    "minmax": f"The last hit of a list has the value {_SMALLEST}; ours has 0.",
    "zscore": f"Values below the mean become {_SMALLEST}, a score equal to the mean (as of a single hit) becomes the "
    "highest score, and deviations are those of a sample.",
}


class OpenSearch(Lucene):
    """OpenSearch."""

    name = "opensearch"

    def _with_vectors(self, settings: dict[str, Any], fields: dict[str, Any], served: Served) -> dict[str, Any]:
        for name, dim in served.dims.items():
            space = "cosinesimil" if served.unit(name) else "innerproduct"
            method = {"name": "hnsw", "engine": "faiss", "space_type": space}
            fields[name] = {"type": "knn_vector", "dimension": dim, "method": method}
        index: dict[str, Any] = {"knn": True} if served.dims else {}
        if served.dims and all(map(served.exact, served.dims)):  # without a graph, the search is exact
            index["knn.advanced.approximate_threshold"] = -1
        return {"settings": {**settings, **({"index": index} if index else {})}, "mappings": {"properties": fields}}

    def translate(self, fusion: Fusion) -> Translation:
        """See `Engine`."""
        near = nearest(fusion, ("sum", "minmax", "l2", "zscore", "rrf"), self.name, deepest=DEEPEST)
        if near.kind == "sum":
            return self._exact(fusion, near, "innerProduct(params.{name}, doc['{name}'])")
        if len(fusion.fields) > _QUERIES:
            reason = f"a hybrid query has at most {_QUERIES} queries, the retriever has {len(fusion.fields)} indexes"
            raise option_error("format", self.name, reason, code="too-many-indexes", limit=_QUERIES)
        return _hybrid(fusion, near)


def _hybrid(fusion: Fusion, near: Nearest) -> Translation:
    """Return a hybrid query, and the pipeline that fuses its lists."""

    def request(query: Query) -> dict[str, Any]:
        queries = [
            match(query) if each.dim is None else {"knn": {each.name: {"vector": query[each.name], "k": near.depth}}}
            for each in fusion.fields
        ]
        return {**body(fusion), "query": {"hybrid": {"queries": queries, "pagination_depth": near.depth}}}

    name, processor = _processor(near)
    pipeline = {"phase_results_processors": [processor]}
    differences = [*near.differences, *filter(None, [_DIFFERENCES.get(near.kind)])]
    differences += differences_of_vectors(fusion.dense, near.kind)
    if fusion.group != NO_GROUPS:
        differences.append("A request may return fewer documents than `size`, since passages are collapsed after it.")
    create = "curl -X PUT localhost:9200/_search/pipeline/hybrid -H 'Content-Type: application/json' --data-binary "
    return Translation(
        f"hybrid query, {name}",
        request,
        Formula(near.weights, tuple(composed(_value(near), engine_score(each)) for each in fusion.fields), near.depth),
        {PIPELINE: json.dumps(pipeline, indent=2) + "\n"},
        differences,
        f"{create}@{PIPELINE}\n{LOAD}",
        ASK.format(parameters="?search_pipeline=hybrid"),
    )


def _processor(near: Nearest) -> tuple[str, dict[str, Any]]:
    """Return name and definition of the processor of the pipeline."""
    weights = {"parameters": {"weights": list(near.weights)}}
    if near.kind == "rrf":
        combination = {"technique": "rrf", "rank_constant": near.constant, **weights}
        return "score-ranker-processor rrf", {"score-ranker-processor": {"combination": combination}}
    technique = _TECHNIQUES[near.kind]
    definition = {
        "normalization": {"technique": technique},
        "combination": {"technique": "arithmetic_mean", **weights},
    }
    return f"normalization-processor {technique}", {"normalization-processor": definition}


def _value(near: Nearest) -> Transform:
    """Return the normalization of a list, from the scores of the engine."""
    values: dict[str, Transform] = {"minmax": min_max, "zscore": z_score, "l2": euclidean}
    return values.get(near.kind, partial(reciprocal_rank, k=near.constant))


def min_max(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
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
