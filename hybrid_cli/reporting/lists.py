"""The queries that changed most: ranked lists side by side, query terms marked, relevant documents flagged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import polars as pl

from hybrid_cli.collections.snippets import snippet
from hybrid_cli.reporting.data import Findings, Match
from hybrid_cli.reporting.page import Case, Hit, RankedList, Section

_NOTHING: frozenset[str] = frozenset()
_WORD = re.compile(r"(\w+)")
_SNIPPET_CHARACTERS = 160
_OTHERS = 3  # relevant documents beyond the hits shown that are mentioned

Analyse = Callable[[Sequence[str]], list[list[str]]]
Parts = list[tuple[str, bool]]


def section(found: Findings, analyse: Analyse) -> Section:
    """The queries in which the last match's run differs most, each with the lists of all runs of the match.

    Args:
        analyse: the terms of each text, as BM25 counts them.
    """
    match, marker = found.matches[-1], _Marker(analyse)
    cases = {
        heading: [_case(found, marker, match, *row) for row in queries.select("qid", "change").iter_rows()]
        for heading, queries in (
            (f"Where {match.run} gains most", found.helped),
            (f"Where {match.run} loses most", found.hurt),
        )
    }
    text = (
        f"Queries whose {found.measure} differs most between {match.run} and {match.base}. Open one to see the lists "
        "side by side. Marked are the words that BM25 would match: those of the query, in any form with the same stem."
    )
    return Section("changed", "The queries that change most", text=[text], cases=cases)


def _case(found: Findings, marker: _Marker, match: Match, qid: str, change: float) -> Case:
    query = found.queries.get(qid, "")
    values = dict(found.summary.values.filter(qid=qid, measure=found.measure).select("run", "value").iter_rows())
    lists = [_list(found, marker, run, qid, query, values[run]) for run in match.runs]
    return Case(qid, query or qid, change, lists)


def _list(found: Findings, marker: _Marker, run: str, qid: str, query: str, value: float) -> RankedList:
    judged = found.kept[run].judged.filter(qid=qid)
    head = found.kept[run].head.filter(qid=qid)
    grades = dict(judged.select("docid", "relevance").iter_rows())
    hits = []
    for docid, rank, score in head.select("docid", "rank", "score").iter_rows():
        title, text = found.documents.get(docid, ("", ""))
        grade = grades.get(docid)
        hits.append(
            Hit(
                rank=rank,
                docid=docid,
                score=score,
                title=marker.marked(query, title or docid),
                text=marker.marked(query, marker.snippet(query, text)),
                grade=grade,
                relevant=grade is not None and grade >= found.plan.level,
            )
        )
    relevant = judged.filter(pl.col("relevance") >= found.plan.level).join(head, on="docid", how="anti")
    return RankedList(run, value, hits, [] if found.by_answers else _elsewhere(relevant))


def _elsewhere(relevant: pl.DataFrame) -> list[str]:
    """Where the relevant documents are that are not among the hits shown."""
    places = relevant.sort("position", nulls_last=True).select("docid", "position").rows()
    others = [
        f"Relevant document {docid} stands at rank {place:,}." if place else f"Relevant document {docid} was not found."
        for docid, place in places[:_OTHERS]
    ]
    return others + ([f"{len(places) - _OTHERS:,} more relevant documents are not shown."] if places[_OTHERS:] else [])


class _Marker:
    """Finds the words of a text whose terms are terms of the query."""

    def __init__(self, analyse: Analyse):
        self._analyse = analyse
        self._terms: dict[str, frozenset[str]] = {}

    def marked(self, query: str, text: str) -> Parts:
        """The text in parts, each with whether it is such a word."""
        asked = self._terms_of([query])[query]
        terms = self._terms_of(_WORD.findall(text))
        parts = [part for part in _WORD.split(text) if part]
        return [(part, bool(terms.get(part, _NOTHING) & asked)) for part in parts]

    def snippet(self, query: str, text: str) -> str:
        """The part of the text where most such words stand together."""
        words = [part for part, matches in self.marked(query, text) if matches]
        return snippet(text, " ".join(words), _SNIPPET_CHARACTERS)

    def _terms_of(self, texts: Sequence[str]) -> Mapping[str, frozenset[str]]:
        new = [text for text in dict.fromkeys(texts) if text not in self._terms]
        self._terms |= dict(zip(new, map(frozenset, self._analyse(new)), strict=True))
        return self._terms
