"""The comparison of queries, in a report and on the served page: one form of data, which `static/compare.js` draws.

`content` has the values of all queries. A query may also have `judgments`: `grades`, by document, and `ranks`, of each
relevant document in every system. In a report the queries that change most have `lists` and `documents` too; the served
page asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from hybrid_cli import words
from hybrid_cli.evaluation.buckets import Buckets
from hybrid_cli.evaluation.complementarity import changes
from hybrid_cli.reporting.snippets import snippet

if TYPE_CHECKING:
    from hybrid_cli.reporting.data import Findings, Match

_LISTED = 10_000  # queries of the comparison
_QUERY_CHARACTERS, _SNIPPET_CHARACTERS = 240, 160

Analyze = Callable[[Sequence[str]], list[list[str]]]
Parts = list[tuple[str, bool]]


def content(
    queries: pl.DataFrame,
    systems: Sequence[str],
    measure: str,
    level: int,
    buckets: Sequence[Buckets],
    values: Sequence[Mapping[str, float]] = (),
) -> dict[str, Any]:
    """Return what the page shows of all queries.

    Args:
        queries: qid, text, in order.
        systems: names.
        measure: name of the measure.
        level: lowest relevant grade.
        buckets: groups of the queries.
        values: qid -> value, for each system; empty without judgments.
    """
    labels = [dict(bucket.queries.iter_rows()) for bucket in buckets]
    rows = [
        {
            "qid": qid,
            "text": text,
            "groups": [of_query.get(qid) for of_query in labels],
            **({"values": [of_system.get(qid, 0.0) for of_system in values]} if values else {}),
        }
        for qid, text in queries.iter_rows()
    ]
    groups = [
        {"name": bucket.name, "labels": [label for label in bucket.labels if label in of_query.values()]}
        for bucket, of_query in zip(buckets, labels, strict=True)
    ]
    return {"measure": measure, "systems": list(systems), "level": level, "groups": groups, "queries": rows}


def judgments(judged: Sequence[pl.DataFrame], level: int) -> dict[str, dict[str, Any]]:
    """Return by query the grade of each judged document, and the rank of each relevant one in every system.

    Args:
        judged: qid, docid, relevance and position (null if not retrieved) of the judged documents, for each system.
        level: lowest relevant grade.
    """
    found: dict[str, dict[str, Any]] = {}
    for frame in judged:
        for qid, docid, grade, position in frame.select("qid", "docid", "relevance", "position").iter_rows():
            of_query = found.setdefault(qid, {"grades": {}, "ranks": {}})
            of_query["grades"][docid] = grade
            if grade >= level:
                of_query["ranks"].setdefault(docid, []).append(position)
    return found


# --------------------------------------------------------------------------------------------------------------- report


def of_report(findings: Findings, match: Match, analyze: Analyze) -> tuple[str, dict[str, Any]]:
    """Return a text on the comparison of all runs of a report, and its content.

    Args:
        findings: result of `data.find`.
        match: the two runs that are compared at first.
        analyze: function from texts to BM25's terms.
    """
    measure, runs, level = findings.measure, findings.summary.runs, findings.plan.level
    changed = changes(findings.summary.values, match.run, match.bases, measure)
    listed = changed.sort(pl.col("change").abs(), descending=True, maintain_order=True).head(_LISTED)["qid"]
    omitted, with_lists = len(changed) - len(listed), {*findings.helped["qid"], *findings.hurt["qid"]}
    left_out = f" The {omitted:,} queries that differ least are left out." if omitted else ""
    lists = f"{len(with_lists)} queries that change most between {match.run} and {match.base}"
    text = f"{measure} of all judged queries.{left_out} The page has the lists of the {lists}."
    text += " Words with the stem of a query word are marked."
    texts = [words.head(findings.queries.get(qid, ""), _QUERY_CHARACTERS) for qid in listed]
    values = findings.summary.values.filter(measure=measure).with_columns(pl.col("value").round(6))
    by_run = [dict(values.filter(run=run).select("qid", "value").iter_rows()) for run in runs]
    buckets, queries = [group for group, _ in findings.groups], pl.DataFrame({"qid": listed, "text": texts})
    compared = content(queries, runs, measure, level, buckets, by_run)
    shown = pl.Series([*with_lists], dtype=pl.String)
    judged = [findings.kept[run].judged.filter(pl.col("qid").is_in(shown.implode())) for run in runs]
    of_query, marker = judgments(judged, level), Marker(analyze)
    for row in compared["queries"]:
        if row["qid"] in with_lists:
            row |= of_query.get(row["qid"], {}) | ({"ranks": {}} if findings.by_answers else {})
            row |= _lists(findings, marker, row["qid"])
    return text, compared | {"first": [runs.index(match.run), runs.index(match.bases[0])]}


def _lists(findings: Findings, marker: Marker, qid: str) -> dict[str, Any]:
    """Return the hits (docid, rank) of each run, and the documents."""
    query, lists, documents = findings.queries.get(qid, ""), [], {}
    for run in findings.summary.runs:
        head = findings.kept[run].head.filter(qid=qid)
        lists.append([{"docid": docid, "rank": rank} for docid, rank in head.select("docid", "rank").iter_rows()])
        for docid in head["docid"]:
            title, text = findings.documents.get(docid, ("", ""))
            documents[docid] = {
                "title": marker.marked(query, title or docid),
                "snippet": marker.marked(query, marker.snippet(query, text)),
            }
    return {"lists": lists, "documents": documents}


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
