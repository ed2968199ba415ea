"""The content of a page, and its HTML with embedded style, data and scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from hybrid_cli.reporting import charts
from hybrid_cli.reporting.charts import Figure
from hybrid_cli.reporting.colours import COLOURS, RUN_COLOURS, style_sheet
from hybrid_cli.reporting.tables import Table, figure, with_sign


@dataclass(frozen=True)
class Hit:
    """One hit of a ranked list; texts are lists of (part, part is a query term)."""

    rank: int
    docid: str
    score: float
    title: Sequence[tuple[str, bool]]
    text: Sequence[tuple[str, bool]]
    grade: int | None
    relevant: bool


@dataclass(frozen=True)
class RankedList:
    """A ranked list: value, top hits, and ranks of other relevant documents, of one run on one query."""

    run: str
    value: float
    hits: Sequence[Hit]
    others: Sequence[str]


@dataclass(frozen=True)
class Case:
    """A query with the lists of several runs side by side."""

    qid: str
    query: str
    change: float
    lists: Sequence[RankedList]


@dataclass(frozen=True)
class ListedQuery:
    """A query with the values of a baseline and of a run; the text is empty if unknown."""

    qid: str
    query: str
    before: float
    after: float
    change: float


@dataclass(frozen=True)
class QueryList:
    """Queries with the values of a baseline and of a run, below a search box."""

    baseline: str
    run: str
    queries: Sequence[ListedQuery]


@dataclass(frozen=True)
class Section:
    """A section of the page, shown in the order of its fields.

    In a table, the first column has row headings, in the color of the named run. The second line of a cell is smaller.

    Attributes:
        tables: the title is a label for screen readers.
        cases: heading -> queries.
        listed: a list of queries to search in.
        folded: tables that are hidden until their title is opened.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    cases: Mapping[str, Sequence[Case]] = field(default_factory=dict)
    listed: QueryList | None = None
    folded: Sequence[Table] = ()


def render(title: str, subtitle: str, summary: Sequence[str], sections: Sequence[Section], runs: Sequence[str]) -> str:
    """Return the HTML of the page.

    Args:
        title: title of the page.
        subtitle: line below the title.
        summary: paragraphs at the top.
        sections: in order.
        runs: names of the runs, in the order of their colors.
    """
    figures = [figure for section in sections for figure in section.figures]
    content = {
        "specs": {figure.name: {**figure.spec, "datasets": {}, "description": figure.title} for figure in figures},
        "datasets": {name: rows for figure in figures for name, rows in figure.spec["datasets"].items()},
        "config": {scheme: charts.chart_config(scheme, legend=False) for scheme in COLOURS},
    }
    # in JavaScript, `<\/` in a string or pattern is `</`, which would end the script element
    scripts = [text.replace("</script", "<\\/script") for text in (_vega(), _source("page.js"))] if figures else []
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_source("page.html")).render(
        title=title,
        subtitle=subtitle,
        summary=summary,
        sections=sections,
        colours={run: _colour(number) for number, run in enumerate(runs)},
        colour=_colour,
        style=Markup(style_sheet() + _source("static/common.css") + _source("page.css")),
        scripts=[Markup(script) for script in scripts],
        allowed=[_digest(script) for script in scripts],
        content=Markup(as_data(content)),
        figure=figure,
        signed=with_sign,
    )


def _colour(number: int) -> str:
    return f"var(--run-{number % RUN_COLOURS})"


def as_data(content: Any) -> str:
    """Return JSON in which no text can end the script element around it."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _digest(program: str) -> str:
    """Return the hash by which the content security policy allows a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
