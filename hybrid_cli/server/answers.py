"""The JSON of the API: hits, columns of the page, and explanations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from hybrid_cli.collections.collection import values_of
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import METHODS, weighted_mean, weighted_sum
from hybrid_cli.reporting.snippets import match_words, snippet
from hybrid_cli.runs.context import context as parts_of
from hybrid_cli.server.live import Live

Json = dict[str, Any]
EXPLAINED = 100  # hits that are explained
SHOWN = 20  # hits of a column with title and snippet
_QID = "0"


def fusion(live: Live) -> Json:
    """Return the fusion of a retriever."""
    stored = live.files.stored
    return {
        "method": stored.method,
        "weights": list(stored.weights),
        "missing": stored.missing,
        "normalize": stored.normalize or METHODS[stored.method].normalization,
        "rrf_k": stored.rrf_k if stored.method == "rrf" else None,
        "depth": stored.depth,
        "shares": list(stored.shares) if stored.shares else None,
        "scales": list(live.scales),
        "formula": formula(live),
    }


def formula(live: Live) -> str:
    """Return the formula of the fused score, such as `0.3 bm25 / 2.41 + 0.7 dense / 0.094`."""
    stored, sides = live.files.stored, live.sides
    if len(sides) == 1:
        return sides[0]
    if stored.shares and stored.scales:
        parts = zip(stored.shares, sides, stored.scales, strict=True)
        return " + ".join(f"{share:g} {side} / {scale:.4g}" for share, side, scale in parts)
    terms = [(f"{weight:g}", side) for weight, side in zip(stored.weights, sides, strict=True)]
    if stored.method == "rrf":
        return " + ".join(f"{weight} / ({stored.rrf_k:g} + rank in {side})" for weight, side in terms)
    if stored.method == "weighted-sum":
        return " + ".join(f"{weight} {side}" for weight, side in terms)
    return f"{stored.method}(" + ", ".join(f"{weight} {side}" for weight, side in terms) + ")"


def table_of(texts: Sequence[str]) -> pl.DataFrame:
    """Return queries with numbers as ids: qid, text."""
    return pl.DataFrame({"qid": [str(number) for number in range(len(texts))], "text": list(texts)})


def hits(
    live: Live, texts: Sequence[str], k: int, system: str, condition: str | None, explain: bool
) -> list[list[Json]]:
    """Return the hits of queries as the API answers them."""
    run = live.search(table_of(texts), k, system, condition)
    known = documents(live, run["passage" if "passage" in run.columns else "docid"])
    sides = [name for name in live.sides if f"{name}_rank" in run.columns]
    candidates: list[list[Json]] = [[] for _ in texts]
    for row, document in zip(run.iter_rows(named=True), known, strict=True):
        candidate: Json = {name: row[name] for name in ("docid", "score", "rank")}
        candidate["doc"] = {name: document[name] for name in ("title", "text", "metadata")}
        candidate["scores"] = {name: row[f"{name}_score"] for name in sides}
        candidate["ranks"] = {name: row[f"{name}_rank"] for name in sides}
        candidate |= {name: row[name] for name in ("probability", "passage") if name in row}
        candidates[int(row["qid"])].append(candidate)
    if explain and system in (live.main, *live.sides):
        for text, hits_of_query in zip(texts, candidates, strict=True):
            _explain(live, text, hits_of_query, system, condition)
    return candidates


def _explain(live: Live, query: str, candidates: list[Json], system: str, condition: str | None) -> None:
    """Add the explanation of each hit of a column."""
    tables = _tables(live, query, condition)
    for candidate in candidates:
        whole = _explanation(live, query, *tables, candidate["docid"])
        candidate["explanation"] = whole["explanation"]
        if system != live.main:
            number = live.sides.index(system)
            value = whole["sides"][number]["score"]
            candidate["explanation"] = whole["explanation"]["details"][number] | {"value": value}


def documents(live: Live, docids: pl.Series) -> list[Json]:
    """Return docid, title, text and metadata of documents; title and text are null where they are not known."""
    if live.texts is None:
        return [{"docid": docid, "title": None, "text": None, "metadata": {}} for docid in docids]
    rows = live.texts.documents(docids).to_dicts()
    for row in rows:
        row["metadata"] = values_of(row.get("metadata", {}))
    return rows


def context(live: Live, query: str, k: int, condition: str | None, tokens: int) -> list[Json]:
    """Return the best parts of the hits of a query for a prompt; see `runs.context`.

    Raises:
        InputError: the texts of the documents are not where the indexes record them.
    """
    if (store := live.texts) is None:
        raise InputError("the texts of the documents are not where the indexes record them", code="no-texts")
    hits = live.search(table_of([query]), k, live.main, condition)
    texts = store.documents(hits["passage" if "passage" in hits.columns else "docid"]).drop("docid")
    rows = parts_of(hits.hstack(texts), query, tokens, store.texts).to_dicts()
    return [row | {"metadata": values_of(row.get("metadata", {}))} for row in rows]


def document(live: Live, docid: str) -> Json:
    """Return title, text and metadata of a document.

    Raises:
        InputError: no such document.
    """
    known = documents(live, pl.Series([docid]))[0]
    if known["text"] is None:
        raise InputError(f"no document {docid}", code="no-such-document", id=docid)
    return known


# ------------------------------------------------------------------------------------------------------------- columns


def columns(live: Live, query: str, condition: str | None, depth: int | None) -> Json:
    """Return everything that the page shows for one query."""
    queries = table_of([query])
    table = live.candidates(queries, condition, depth)
    lists = {}
    for system in live.systems:
        run = live.search(queries, SHOWN, system, condition)
        names = [name for name in ("docid", "rank", "score", "probability", "passage") if name in run.columns]
        lists[system] = run.select(names).to_dicts()
    shown = list(dict.fromkeys(hit["docid"] for hits in lists.values() for hit in hits))
    outside = pl.DataFrame({"docid": [docid for docid in shown if docid not in set(table["docid"])]})
    if len(outside):  # of another retriever
        pairs = outside.select(pl.lit(_QID).alias("qid"), "docid")
        table = pl.concat([table, live.scores(queries, pairs)], how="diagonal")
    passages = {hit["docid"]: hit["passage"] for hits in lists.values() for hit in hits if hit.get("passage")}
    texts = {row["docid"]: row for row in snippets(live, query, shown, passages)}
    sides = live.sides
    rows = [
        {
            "docid": row["docid"],
            "scores": [row[f"{name}_score"] for name in sides],
            "ranks": [row[f"{name}_rank"] for name in sides],
            **{name: texts[row["docid"]][name] if row["docid"] in texts else None for name in ("title", "snippet")},
        }
        for row in table.iter_rows(named=True)
    ]
    return {"query": {"text": query}, "fusion": fusion(live), "documents": rows, "columns": lists}


def snippets(live: Live, query: str, docids: Sequence[str], passages: Mapping[str, str] | None = None) -> list[Json]:
    """Return title and snippet of documents, with the words of the query marked.

    Args:
        query: text of the query.
        docids: the documents.
        passages: document -> passage that is shown for it.
    """
    shown = pl.Series([(passages or {}).get(docid, docid) for docid in docids], dtype=pl.String)
    return [
        {
            "docid": docid,
            "title": marked(row["title"] or docid, query),
            "snippet": marked(snippet(row["text"] or "", query), query),
        }
        for docid, row in zip(docids, documents(live, shown), strict=True)
    ]


def marked(text: str, query: str) -> list[tuple[str, bool]]:
    """Return a text in parts, each with whether it is a word of the query."""
    parts, last = [], 0
    for begin, end in match_words(query).spans(text):
        if begin >= last:
            parts += [(text[last:begin], False), (text[begin:end], True)]
            last = end
    return [(part, is_term) for part, is_term in [*parts, (text[last:], False)] if part]


# --------------------------------------------------------------------------------------------------------- explanation


def explained(live: Live, query: str, docid: str, condition: str | None = None) -> Json:
    """Explain the score of any document for a query.

    Args:
        live: the retriever.
        query: text of the query.
        docid: id of the document.
        condition: filter of the hits among which the document has its rank.

    Raises:
        InputError: no such document.
    """
    explanation = _explanation(live, query, *_tables(live, query, condition), docid)
    if live.retriever.reranker is not None:
        run = live.search(table_of([query]), live.retriever.depth, live.main, condition)
        explanation["rank"] = dict(run.select("docid", "rank").iter_rows()).get(docid)
    known = documents(live, pl.Series([explanation.pop("passage") or docid]))[0]
    explanation["doc"] = {"title": marked(known["title"] or "", query), "text": marked(known["text"] or "", query)}
    return explanation | {"metadata": known["metadata"]}


def _tables(live: Live, query: str, condition: str | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the candidates of the fusion, and those with the ranks of longer lists of the sides."""
    queries = table_of([query])
    table = live.candidates(queries, condition)
    return table, table if live.retriever.depth >= EXPLAINED else live.candidates(queries, condition, EXPLAINED)


def _explanation(live: Live, query: str, table: pl.DataFrame, longer: pl.DataFrame, docid: str) -> Json:
    rows = table.filter(pl.col("docid") == docid)
    if not len(rows):
        rows = live.scores(table_of([query]), pl.DataFrame({"qid": [_QID], "docid": [docid]}))
        table = pl.concat([table, rows], how="diagonal")
        rows = table.tail(1)
    row = rows.row(0, named=True)
    hit = next(longer.filter(pl.col("docid") == docid).iter_rows(named=True), row)
    passage = row.get("passage")
    value = live.values(table, [docid]).row(0, named=True)
    recipe = live.retriever.recipe
    divisors: dict[Any, float] = {weighted_sum: 1.0, weighted_mean: math.fsum(recipe.weights)}
    whole = divisors.get(METHODS[recipe.method].rule)
    sides, details = [], []
    for number, (name, kind, weight) in enumerate(zip(live.sides, live.kinds, recipe.weights, strict=True)):
        score, rank, normal = row[f"{name}_score"], hit[f"{name}_rank"], value[f"value_{number}"]
        share = None if whole is None or normal is None else weight / whole * normal
        terms = live.terms(name, query, passage or docid)
        listed = (
            None if terms is None else terms.select("term", "boost", "score").filter(pl.col("score") != 0).to_dicts()
        )
        side = {"name": name, "kind": kind, "score": score, "rank": rank, "value": normal, "weight": weight}
        sides.append(side | {"contribution": share, "terms": listed})
        details.append(_side_detail(sides[-1], max(live.retriever.depth, EXPLAINED)))
    total = value["score"] if len(sides) > 1 else row[f"{live.sides[0]}_score"]
    explanation = {"value": total, "description": f"{recipe.method}: {formula(live)}", "details": details}
    if len(sides) == 1:
        explanation = details[0]
    answer = {"docid": docid, "rank": row["rank"], "score": total, "explanation": explanation}
    return answer | {"sides": sides, "passage": passage}


def _side_detail(side: Json, depth: int) -> Json:
    """Return the part of an explanation that is about one side, in the form of Elasticsearch."""
    rank = f"rank {side['rank']}" if side["rank"] else f"not among the first {depth:,} hits"
    score = "no score" if side["score"] is None else f"score {side['score']:.6g}"
    terms = [
        {"value": part["score"], "description": f"term {part['term']}", "details": []} for part in side["terms"] or ()
    ]
    value = side["score"] if side["contribution"] is None else side["contribution"]
    normal = "" if side["value"] in (None, side["score"]) else f", normalized {side['value']:.6g}"
    return {
        "value": value,
        "description": f"{side['name']}: {score}{normal}, weight {side['weight']:g}, {rank}",
        "details": terms,
    }


def information(live: Live) -> Json:
    """Return what the page needs to know about the retriever."""
    stored = live.files.stored
    return {
        "name": live.name,
        "sides": live.sides,
        "kinds": live.kinds,
        "systems": live.systems,
        "main": live.main,
        "fusion": fusion(live),
        "calibrated": stored.calibration is not None,
        "reranker": None if stored.reranker is None else str(stored.reranker["model"]).rstrip("/").rpartition("/")[2],
        "generation": stored.generation,
        "documents": live.documents,
        "metadata": live.facets,
        "exact": live.has_exact_scores,
    }
