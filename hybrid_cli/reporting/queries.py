"""Comparison of runs per query: scatter plots, wins and losses, and ranked lists of the queries that change most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from hybrid_cli import words
from hybrid_cli.evaluation.complementarity import changes
from hybrid_cli.reporting.charts import Figure, chart, colours, plain
from hybrid_cli.reporting.complement import contest
from hybrid_cli.reporting.data import Findings, Match
from hybrid_cli.reporting.page import Case, Hit, ListedQuery, QueryList, RankedList, Section
from hybrid_cli.reporting.snippets import snippet
from hybrid_cli.reporting.tables import Table, with_sign

_TEXT_CHARACTERS, _LISTED_CHARACTERS = 160, 240
_SPACING, _WIDEST = 0.008, 0.045  # fractions of the axis: distance of dots with equal values, and the maximum radius
_CORNERS = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
_GOLDEN_ANGLE = np.pi * (3 - np.sqrt(5))
_SNIPPET_CHARACTERS = 160
_OTHERS = 3  # relevant documents listed below the hits

Analyze = Callable[[Sequence[str]], list[list[str]]]
Parts = list[tuple[str, bool]]


def dots_section(findings: Findings, most: int) -> Section:
    """Return a scatter plot for each match, and a table of wins.

    Args:
        findings: result of `data.find`.
        most: maximum number of dots; more queries are sampled.
    """
    values, runs, measure = findings.summary.values, findings.summary.runs, findings.measure
    wide = values.filter(measure=measure).pivot(on="run", index="qid", values="value", maintain_order=True)
    drawn = wide.sample(most, seed=findings.summary.settings["seed"]) if len(wide) > most else wide
    dots = _dots(drawn, findings.matches, findings.queries, runs)
    sampled = f" A random sample of {most:,} of {len(wide):,} queries is shown." if len(wide) > most else ""
    figures = [_figure(number, match, measure, dots, runs, sampled) for number, match in enumerate(findings.matches)]
    return Section("queries", "Per query", figures=figures, tables=[_table(values, findings.matches, measure)])


def _table(values: pl.DataFrame, matches: Sequence[Match], measure: str) -> Table:
    rows = []
    for match in matches:
        *counts, mean = contest(values, match.run, match.bases, measure)
        rows.append([match.run, match.base, *(f"{count:,}" for count in counts), with_sign(mean)])
    columns = ["run", "against", "wins", "ties", "losses", "difference"]
    return Table(columns, rows, f"Queries won and lost by {measure}", left=2)


# ----------------------------------------------------------------------------------------------------------- diagrams


def _dots(
    wide: pl.DataFrame, matches: Sequence[Match], texts: Mapping[str, str], runs: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one row per query: text, values (v0, v1, ... in the order of the runs), position and winner per match."""
    columns: dict[str, Any] = {
        "q": wide["qid"].to_list(),
        "t": [words.head(texts.get(qid) or qid, _TEXT_CHARACTERS) for qid in wide["qid"]],
        **{f"v{position}": wide[run].round(4).to_list() for position, run in enumerate(runs)},
    }
    for number, match in enumerate(matches):
        names = [match.run, *match.bases, None]
        ours, others = wide[match.run].to_numpy(), wide.select(match.bases).to_numpy()
        best = others.max(axis=1)
        winner = np.where(ours > best, 0, np.where(ours == best, len(names) - 1, 1 + others.argmax(axis=1)))
        right, up = spread(best, ours)
        columns |= {
            f"x{number}": (best + right).round(4).tolist(),
            f"y{number}": (ours + up).round(4).tolist(),
            f"w{number}": [names[position] for position in winner],
        }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def spread(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets that spread dots with equal values over a disc of uniform density.

    The n-th dot is placed at n golden angles, at a distance proportional to the square root of n.
    """
    points = pl.DataFrame({"x": x, "y": y})
    number = points.select(pl.int_range(pl.len()).over("x", "y")).to_series().to_numpy()
    spacing = min(_SPACING, _WIDEST / np.sqrt(max(1, number.max(initial=0))))
    distance, angle = spacing * np.sqrt(number), number * _GOLDEN_ANGLE
    return distance * np.cos(angle), distance * np.sin(angle)


def _figure(
    number: int, match: Match, measure: str, dots: list[dict[str, Any]], runs: Sequence[str], sampled: str
) -> Figure:
    ends = alt.Scale(domain=[-0.06, 1.06], nice=False)
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2~f")
    shown = match.runs
    tooltip = [
        alt.Tooltip("t:N", title="query"),
        alt.Tooltip("q:N", title="id"),
        *(alt.Tooltip(f"v{runs.index(name)}:Q", title=name, format=".3f") for name in shown),
    ]
    base = chart("queries").encode(
        alt.X(f"x{number}:Q", title=f"{measure} of {match.base}", scale=ends, axis=axis),
        alt.Y(f"y{number}:Q", title=f"{measure} of {match.run}", scale=ends, axis=axis),
        tooltip=tooltip,
    )
    equal = base.transform_filter(f"datum.w{number} === null").mark_circle(size=14, style="quiet")
    decided = base.transform_filter(f"datum.w{number} !== null").mark_circle(size=18, opacity=0.75)
    corners = chart("corners")
    diagonal = corners.mark_line(style="guide").encode(alt.X("x:Q", scale=ends), alt.Y("y:Q", scale=ends))
    return Figure(
        f"queries-{number + 1}",
        f"{match.run} against {match.base}",
        plain(
            diagonal + equal + decided.encode(colours(runs, f"w{number}")), {"queries": dots, "corners": _CORNERS}, 440
        ),
        f"One dot per query. Above the diagonal, {match.run} is better; the color is that of the better run, gray for "
        f"ties. Dots with equal values are spread around their position.{sampled} Hover over a dot to read the query.",
        legend=[name for name in runs if name in shown],
    )


# -------------------------------------------------------------------------------------------------------- ranked lists


def lists_section(findings: Findings, analyze: Analyze) -> Section:
    """Return the queries that change most in the last match, each with the lists of all its runs.

    Args:
        findings: result of `data.find`.
        analyze: function from texts to BM25's terms.
    """
    match, marker = findings.matches[-1], Marker(analyze)
    cases = {
        heading: [_case(findings, marker, match, *row) for row in queries.select("qid", "change").iter_rows()]
        for heading, queries in (
            (f"Where {match.run} gains most", findings.helped),
            (f"Where {match.run} loses most", findings.hurt),
        )
    }
    text = (
        f"Queries whose {findings.measure} differs most between {match.run} and {match.base}. Open a query to compare "
        "the lists. Words with the stem of a query word, which BM25 matches, are highlighted."
    )
    return Section("changed", "Queries that change most", text=[text], cases=cases)


def all_section(findings: Findings, match: Match, most: int) -> Section:
    """Return the list of all judged queries with both scores, those that differ most first.

    Args:
        findings: result of `data.find`.
        match: the compared runs.
        most: maximum number of queries; those that differ least are left out.
    """
    changed = changes(findings.summary.values, match.run, match.bases, findings.measure)
    ordered = changed.sort(pl.col("change").abs(), descending=True, maintain_order=True).head(most)
    rows = [
        ListedQuery(qid, words.head(findings.queries.get(qid, ""), _LISTED_CHARACTERS), base, value, change)
        for qid, base, value, change in ordered.select("qid", "base", "value", "change").iter_rows()
    ]
    left_out = f" The {len(changed) - most:,} that differ least are left out." if len(changed) > most else ""
    text = f"{findings.measure} of {match.base} and {match.run}. Queries that differ most come first.{left_out}"
    return Section("all-queries", "All judged queries", text=[text], listed=QueryList(match.base, match.run, rows))


def _case(findings: Findings, marker: Marker, match: Match, qid: str, change: float) -> Case:
    query = findings.queries.get(qid, "")
    values = dict(findings.summary.values.filter(qid=qid, measure=findings.measure).select("run", "value").iter_rows())
    lists = [_list(findings, marker, run, qid, query, values[run]) for run in match.runs]
    return Case(qid, query or qid, change, lists)


def _list(findings: Findings, marker: Marker, run: str, qid: str, query: str, value: float) -> RankedList:
    judged = findings.kept[run].judged.filter(qid=qid)
    head = findings.kept[run].head.filter(qid=qid)
    grades = dict(judged.select("docid", "relevance").iter_rows())
    hits = []
    for docid, rank, score in head.select("docid", "rank", "score").iter_rows():
        title, text = findings.documents.get(docid, ("", ""))
        grade = grades.get(docid)
        hits.append(
            Hit(
                rank=rank,
                docid=docid,
                score=score,
                title=marker.marked(query, title or docid),
                text=marker.marked(query, marker.snippet(query, text)),
                grade=grade,
                relevant=grade is not None and grade >= findings.plan.level,
            )
        )
    relevant = judged.filter(pl.col("relevance") >= findings.plan.level).join(head, on="docid", how="anti")
    return RankedList(run, value, hits, [] if findings.by_answers else _other_ranks(relevant))


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
