"""The comparison on the page: values of all judged queries, and the lists of the queries that change most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from hybrid_cli import words
from hybrid_cli.evaluation.complementarity import changes
from hybrid_cli.reporting.data import Findings, Match
from hybrid_cli.reporting.page import Section
from hybrid_cli.reporting.snippets import snippet

_LISTED = 10_000  # queries of the comparison
_QUERY_CHARACTERS, _SNIPPET_CHARACTERS = 240, 160
_OTHERS = 3  # relevant documents listed below the hits

Analyze = Callable[[Sequence[str]], list[list[str]]]
Parts = list[tuple[str, bool]]


def section(findings: Findings, match: Match, analyze: Analyze) -> Section:
    """Return the comparison of all runs.

    Args:
        findings: result of `data.find`.
        match: the two runs that are compared at first.
        analyze: function from texts to BM25's terms.
    """
    changed = changes(findings.summary.values, match.run, match.bases, findings.measure)
    listed = changed.sort(pl.col("change").abs(), descending=True, maintain_order=True).head(_LISTED)["qid"]
    omitted, shown = len(changed) - len(listed), len(findings.helped) + len(findings.hurt)
    left_out = f" The {omitted:,} queries that differ least are left out." if omitted else ""
    text = (
        f"{findings.measure} of all judged queries.{left_out} The page has the lists of the {shown} queries that "
        f"change most between {match.run} and {match.base}. Words with the stem of a query word are marked."
    )
    return Section("compare", "Compare queries", text=[text], comparison=_content(findings, match, listed, analyze))


def _content(findings: Findings, match: Match, listed: pl.Series, analyze: Analyze) -> dict[str, Any]:
    """Return what `static/compare.js` reads, with the `lists` of some queries."""
    runs, marker = findings.summary.runs, Marker(analyze)
    values = findings.summary.values.filter(measure=findings.measure)
    wide = values.pivot(on="run", index="qid", values="value", maintain_order=True)
    wide = listed.to_frame("qid").join(wide, on="qid", how="left", maintain_order="left")
    labels = [dict(buckets.queries.iter_rows()) for buckets, _ in findings.groups]
    with_lists = {*findings.helped["qid"], *findings.hurt["qid"]}
    queries = []
    for qid, *values_of_runs in wide.select("qid", *runs).iter_rows():
        queries.append(
            {
                "qid": qid,
                "text": words.head(findings.queries.get(qid, ""), _QUERY_CHARACTERS),
                "values": [round(value, 6) for value in values_of_runs],
                "groups": [labels_of_queries.get(qid) for labels_of_queries in labels],
                **(_lists(findings, marker, qid) if qid in with_lists else {}),
            }
        )
    groups = [
        {"name": buckets.name, "labels": [label for label in buckets.labels if label in named.values()]}
        for (buckets, _), named in zip(findings.groups, labels, strict=True)
    ]
    return {
        "measure": findings.measure, "systems": list(runs), "level": findings.plan.level, "groups": groups,
        "queries": queries, "first": [runs.index(match.run), runs.index(match.bases[0])],
    }  # fmt: skip


def _lists(findings: Findings, marker: Marker, qid: str) -> dict[str, Any]:
    """Return the hits (docid, rank) of each run, ranks of further relevant documents, and the documents."""
    query, lists, others, documents = findings.queries.get(qid, ""), [], [], {}
    for run in findings.summary.runs:
        judged = findings.kept[run].judged.filter(qid=qid)
        head = findings.kept[run].head.filter(qid=qid)
        grades = dict(judged.select("docid", "relevance").iter_rows())
        lists.append(head.select("docid", "rank").rows())
        relevant = judged.filter(pl.col("relevance") >= findings.plan.level).join(head, on="docid", how="anti")
        others.append([] if findings.by_answers else _other_ranks(relevant))
        for docid in head["docid"]:
            title, text = findings.documents.get(docid, ("", ""))
            documents[docid] = {
                "title": marker.marked(query, title or docid),
                "snippet": marker.marked(query, marker.snippet(query, text)),
                "grade": grades.get(docid),
            }
    return {"lists": lists, "others": others, "documents": documents}


def _other_ranks(relevant: pl.DataFrame) -> list[str]:
    """Return the ranks of relevant documents that are not among the hits shown."""
    hits = relevant.sort("position", nulls_last=True).select("docid", "position").rows()
    others = [
        f"Relevant document {docid} is at rank {position:,}."
        if position
        else f"Relevant document {docid} was not retrieved."
        for docid, position in hits[:_OTHERS]
    ]
    return others + ([f"{len(hits) - _OTHERS:,} more relevant documents are not shown."] if hits[_OTHERS:] else [])


class Marker:
    """Finds the words of a text whose terms are query terms."""

    def __init__(self, analyze: Analyze):
        self._analyze = analyze
        self._terms: dict[str, frozenset[str]] = {}

    def marked(self, query: str, text: str) -> Parts:
        """Split a text into (part, part is a query term); in scripts without spaces, see `words.common`."""
        asked = self._terms_of([query])[query]
        terms = self._terms_of(words.plain_words(text))
        spans = [(span, bool(terms[text[slice(*span)]] & asked)) for span in words.plain_spans(text)]
        spans += [(span, True) for span in words.common(query)(text)]
        parts, last = [], 0
        for (begin, end), matched in sorted(spans):
            parts += [(text[last:begin], False), (text[begin:end], matched)]
            last = end
        return [(part, matched) for part, matched in [*parts, (text[last:], False)] if part]

    def snippet(self, query: str, text: str) -> str:
        """Return the part of the text with most query terms."""
        matched = [part for part, matches in self.marked(query, text) if matches]
        return snippet(text, " ".join(matched), _SNIPPET_CHARACTERS)

    def _terms_of(self, texts: Sequence[str]) -> Mapping[str, frozenset[str]]:
        new = [text for text in dict.fromkeys(texts) if text not in self._terms]
        self._terms |= dict(zip(new, map(frozenset, self._analyze(new)), strict=True))
        return self._terms
