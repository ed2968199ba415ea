"""Vespa, as a plugin: an application of a schema and a rank profile, and a feed of documents with impacts and vectors.

hybrid export out/retriever --plugin vespa.py --format vespa --collection data/mine --split test --output out/vespa
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import plugins
from hybrid_cli.exports.documents import Served, write_line
from hybrid_cli.exports.engine import (
    APPROXIMATE,
    Engine,
    Formula,
    Fusion,
    Limits,
    Nearest,
    OpenCollection,
    Query,
    Server,
    Translation,
    nearest,
)
from hybrid_cli.fusion.methods import of_query, reciprocal_rank
from hybrid_cli.indexes.shards import Advance
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.storage import disk

APPLICATION = "application"  # folder that `vespa deploy` takes
IMPACTS, TERMS = "impacts", "terms"  # fields: the impacts, and rounded ones that find candidates
_REFUSED = "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\ufdd0-\ufddf\ufffe\uffff]"  # Vespa takes tabs and line breaks
_STEPS = 1000  # of an impact of 1, in the field of terms
_SERVICES = """\
<services version="1.0">
  <container id="default" version="1.0"><search/><document-api/></container>
  <content id="documents" version="1.0">
    <min-redundancy>1</min-redundancy>
    <documents><document type="document" mode="index"/></documents>
    <nodes><node distribution-key="0" hostalias="node1"/></nodes>
  </content>
</services>
"""
_LOAD = "vespa deploy application\nvespa feed documents.jsonl"
_ASK = """\
head -1 queries.jsonl | jq .request | curl -X POST localhost:8080/search/ \\
    -H 'Content-Type: application/json' --data-binary @-"""
_UNION = (
    "Minimum, maximum and ranks of a list are those among the candidates of all lists; ours are those of its own hits."
)
_MORE = "Vespa may return more candidates than asked for, and finds those of BM25 by impacts rounded to 1/1000."


@plugins.register("engines", "vespa")
class Vespa(Engine):
    """Vespa: `documents.jsonl` (feed) and `application` (schema, rank profile, services)."""

    name = "vespa"
    lexical = IMPACTS
    limits = Limits(refused_text=_REFUSED, json=True)

    def write(self, served: Served, folder: Path, advance: Advance) -> None:
        """See `Engine`."""
        terms = served.terms.to_list()
        with disk.create_text(folder / "documents.jsonl") as file:
            for row in served.rows():
                impacts = {terms[at]: value for at, value in zip(row["indices"], row["values"], strict=True)}
                fields = {name: row[name] for name in ("docid", "title", "text")} | {IMPACTS: impacts}
                fields[TERMS] = {term: round(_STEPS * value) for term, value in impacts.items()}
                fields |= {name: row[name] for name in served.metadata if row[name] is not None}
                fields |= {name: row[name] for name in served.dense}
                write_line(file, {"put": f"id:hybrid:document::{row['docid']}", "fields": fields})
                advance(1)
        schemas = folder / APPLICATION / "schemas"
        schemas.mkdir(parents=True)
        disk.write_text(schemas / "document.sd", _schema(served))
        disk.write_text(folder / APPLICATION / "services.xml", _SERVICES)

    def connect(self, address: str) -> OpenCollection:
        """See `Engine`."""
        return _Container(address)

    def translate(self, fusion: Fusion) -> Translation:
        """See `Engine`."""
        near = nearest(fusion, ("sum", "minmax", "rrf"), self.name, missing="exact")
        return _exact(fusion, near) if near.kind == "sum" else _fused(fusion, near)


class _Container:
    """The search API of a container."""

    def __init__(self, address: str):
        self._server = Server("vespa", address)

    def count(self) -> int:
        """See `OpenCollection`."""
        everything = {"yql": "select * from document where true limit 0"}
        return int(self._server.ask("/search/", everything)["root"]["fields"]["totalCount"])

    def search(self, request: Mapping[str, Any]) -> list[tuple[str, float]]:
        """See `OpenCollection`."""
        hits = self._server.ask("/search/", request)["root"].get("children", [])
        return [(hit["fields"]["docid"], hit["relevance"]) for hit in hits]

    def close(self) -> None:
        """See `OpenCollection`."""


def _schema(served: Served) -> str:
    """Return the schema of a document."""
    fields = {
        "docid": ("string", "summary | attribute"),
        "title": ("string", "summary"),
        "text": ("string", "summary"),
        **{name: (_type(kind), "summary | attribute") for name, kind in served.metadata.items()},
        IMPACTS: ("tensor<float>(term{})", "attribute"),
        TERMS: ("weightedset<string>", "attribute"),
        **{name: (f"tensor<float>(x[{dim}])", "attribute") for name, dim in served.dims.items()},
    }
    more = {TERMS: ["attribute: fast-search"]}
    for name in served.dims:
        metric = "prenormalized-angular" if served.unit(name) else "dotproduct"
        more[name] = ["attribute {", f"    distance-metric: {metric}", "}"]
        if not served.exact(name):
            fields[name] = (fields[name][0], "attribute | index")
    lines = [
        line
        for name, (kind, how) in fields.items()
        for line in (
            f"field {name} type {kind} {{",
            *(f"    {inner}" for inner in (f"indexing: {how}", *more.get(name, ()))),
            "}",
        )
    ]
    indented = [f"        {line}" for line in lines]
    return "\n".join(["schema document {", "    document document {", *indented, "    }", "}", ""])


def _type(kind: pl.DataType) -> str:
    """Return the type of a field of metadata."""
    if kind == pl.List:
        return "array<string>"
    if kind in (pl.String, pl.Boolean):
        return "string" if kind == pl.String else "bool"
    return "long" if kind.is_integer() else "double"


def _profile(fusion: Fusion, first: str, last: Sequence[str] = ()) -> dict[str, str]:
    """Return the file of the rank profile.

    Args:
        fusion: the fusion.
        first: expression of the first phase.
        last: lines of the global phase.
    """
    inputs = ["query(terms) tensor<float>(term{})"]
    inputs += [f"query({each.name}) tensor<float>(x[{each.dim}])" for each in fusion.dense]
    products = {each.name: f"sum(query({each.name}) * attribute({each.name}))" for each in fusion.dense}
    products[IMPACTS] = f"sum(query(terms) * attribute({IMPACTS}))"
    lines = [
        "rank-profile hybrid {",
        "    inputs {",
        *(f"        {line}" for line in inputs),
        "    }",
        *(
            f"    {line}"
            for name in _names(fusion)
            for line in (f"function score_{name}() {{", f"    expression: {products[name]}", "}")
        ),
        "    first-phase {",
        f"        expression: {first}",
        "    }",
        *last,
        "    match-features {",
        *(f"        score_{name}" for name in _names(fusion)),
        "    }",
        "}",
    ]
    return {f"{APPLICATION}/schemas/document/hybrid.profile": "\n".join(lines) + "\n"}


def _names(fusion: Fusion) -> list[str]:
    return [each.name for each in fusion.fields]


def _sum(near: Nearest, values: Sequence[str]) -> str:
    return " + ".join(f"{weight:.9g} * {value}" for weight, value in zip(near.weights, values, strict=True))


def _exact(fusion: Fusion, near: Nearest) -> Translation:
    """Return the sum in the first phase, over all documents."""
    scores = _sum(near, [f"score_{name}" for name in _names(fusion)])
    return Translation(
        "first phase over all documents",
        lambda query: _request(fusion, query, "true"),
        Formula(near.weights),
        _profile(fusion, scores),
        _differences(fusion, near),
        _LOAD,
        _ASK,
    )


def _fused(fusion: Fusion, near: Nearest) -> Translation:
    """Return the fusion of the candidates of all lists in the global phase."""
    function, value = "normalize_linear({})", normalize_linear
    if near.kind == "rrf":
        function, value = f"reciprocal_rank({{}}, {near.constant}.0)", partial(reciprocal_rank, k=near.constant)
    scores = [f"score_{name}" for name in _names(fusion)]
    last = [
        "    global-phase {",
        f"        rerank-count: {near.depth * len(fusion.fields)}",
        f"        expression: {_sum(near, [function.format(score) for score in scores])}",
        "    }",
    ]

    def request(query: Query) -> dict[str, Any]:
        hits = f"{{targetHits: {near.depth}}}"
        lists = [f"({hits}nearestNeighbor({each.name}, {each.name}))" for each in fusion.dense]
        if query["terms"]:
            weights = ", ".join(f"{json.dumps(term)}: {number:.0f}" for term, number in query["terms"].items())
            lists.append(f"({hits}wand({TERMS}, {{{weights}}}))")
        return _request(fusion, query, " or ".join(lists))

    return Translation(
        f"global phase, {function.format('...')}",
        request,
        Formula(near.weights, (value,) * len(scores), near.depth, complete=True),
        _profile(fusion, _sum(near, scores), last),
        [*_differences(fusion, near), _UNION, _MORE],
        _LOAD,
        _ASK,
    )


def _request(fusion: Fusion, query: Query, where: str) -> dict[str, Any]:
    inputs = {"input.query(terms)": json.dumps(query["terms"], ensure_ascii=False)}
    inputs |= {f"input.query({each.name})": query[each.name] for each in fusion.dense}
    yql = f"select docid, title, text from document where {where}"
    return {"yql": yql, "ranking": "hybrid", "hits": fusion.hits, **inputs}


def _differences(fusion: Fusion, near: Nearest) -> list[str]:
    passages = ["Hits are passages: keep the first of each document."] if fusion.group != NO_GROUPS else []
    graphs = [] if all(each.exact for each in fusion.dense) or near.kind == "sum" else [APPROXIMATE]
    return [*near.differences, *passages, *graphs]


def normalize_linear(score: pl.Expr, rank: pl.Expr) -> pl.Expr:
    """Return (s - min) / (max - min); .5 for equal scores."""
    low, high = of_query(score.min()), of_query(score.max())
    return pl.when(high > low).then((score - low) / (high - low)).otherwise(0.5)
