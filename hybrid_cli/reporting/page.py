"""What stands on a page, and the page itself: HTML that holds its own style, figures and program."""

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

from hybrid_cli.evaluation import layout
from hybrid_cli.reporting import theme


@dataclass(frozen=True)
class Figure:
    """A chart with what a person needs to read it.

    Attributes:
        name: of its file and of its place on the page; lower case, hyphens.
        title: what is shown.
        caption: how to read it.
        spec: Vega-Lite with its data, without configuration.
        legend: names of runs whose colours the chart uses.
        wide: takes the whole width of the page.
    """

    name: str
    title: str
    spec: Mapping[str, Any]
    caption: str = ""
    legend: Sequence[str] = ()
    wide: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, a smaller line below it, and whether it stands out."""

    text: str
    below: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first column is a heading of its row, and gets the run's colour where it names one.

    Attributes:
        title: for those who hear it, and where it is `folded`, of the line that opens it.
        notes: lines below it.
        left: how many columns hold words, which begin on one line; the others hold figures.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    left: int = 1
    folded: bool = False


@dataclass(frozen=True)
class Hit:
    """One line of a ranked list: its texts in parts, each with whether it is a term of the query."""

    rank: int
    docid: str
    score: float
    title: Sequence[tuple[str, bool]]
    text: Sequence[tuple[str, bool]]
    grade: int | None
    relevant: bool


@dataclass(frozen=True)
class RankedList:
    """The first hits of a run for a query, its value, and where the other relevant documents are."""

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
class Section:
    """A part of the page; its fields are shown in this order, folded tables at the end.

    Attributes:
        cases: heading -> queries.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    cases: Mapping[str, Sequence[Case]] = field(default_factory=dict)


def render(title: str, subtitle: str, summary: Sequence[str], sections: Sequence[Section], runs: Sequence[str]) -> str:
    """The page.

    Args:
        summary: sentences that stand first.
        runs: names of the runs in the order of their colours.
    """
    figures = [figure for section in sections for figure in section.figures]
    content = {
        "specs": {each.name: {**each.spec, "datasets": {}, "description": each.title} for each in figures},
        "datasets": {name: rows for each in figures for name, rows in each.spec["datasets"].items()},  # some share them
        "config": {scheme: theme.chart_config(scheme, legend=False) for scheme in theme.COLOURS},
    }
    scripts = [_in_script(program) for program in (_vega(), _source("page.js"))] if figures else []
    return _template().render(
        title=title,
        subtitle=subtitle,
        summary=summary,
        sections=sections,
        colours={run: f"var(--run-{place % theme.RUN_COLOURS})" for place, run in enumerate(runs)},
        style=Markup(theme.style_sheet() + _source("page.css")),
        scripts=[Markup(script) for script in scripts],
        allowed=[_digest(script) for script in scripts],
        content=Markup(as_data(content)),
        figure=layout.figure,
        signed=layout.signed,
    )


def as_data(content: Any) -> str:
    """JSON that no text in it can end as a block of a page."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and what embeds them, as one program."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _in_script(program: str) -> str:
    """A program as it may stand between the tags: in JavaScript `<\\/` in a string or pattern is `</`."""
    return program.replace("</script", "<\\/script")


def _digest(program: str) -> str:
    """How the page's policy names a program that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_source("page.html"))
