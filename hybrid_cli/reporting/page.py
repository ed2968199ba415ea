"""The content of a page, and its HTML with embedded style, data and scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from hybrid_cli.reporting import charts
from hybrid_cli.reporting.charts import Figure
from hybrid_cli.reporting.colours import COLOURS, RUN_COLOURS, style_sheet
from hybrid_cli.reporting.tables import Table

_STYLES = ("static/common.css", "static/hits.css", "static/compare.css", "page.css")
_MODULES = ("dom.js", "hits.js", "compare.js", "report.js")  # each imports from earlier ones
_IMPORT_OR_EXPORT = re.compile(r"^(?:import .*\n|export )", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """A section of the page, shown in the order of its fields.

    In a table, the first column has row headings, in the color of the named run. The second line of a cell is smaller.

    Attributes:
        tables: the title is a label for screen readers.
        comparison: data of `static/compare.js`.
        folded: tables that are hidden until their title is opened.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    comparison: Mapping[str, Any] | None = None
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
    comparison = next((section.comparison for section in sections if section.comparison), None)
    sources = [*([_vega(), _source("page.js")] if figures else []), *([_bundle()] if comparison else [])]
    # in JavaScript, `<\/` in a string or pattern is `</`, which would end the script element
    scripts = [text.replace("</script", "<\\/script") for text in sources]
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
        style=Markup(style_sheet() + "".join(map(_source, _STYLES))),
        scripts=[Markup(script) for script in scripts],
        allowed=[_digest(script) for script in scripts],
        content=Markup(as_data(content)) if figures else None,
        comparison=Markup(as_data(comparison)) if comparison else None,
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


def _bundle() -> str:
    """Return the modules of the comparison as one script, since a file has no address to import them from."""
    modules = (_IMPORT_OR_EXPORT.sub("", _source(f"static/{name}")) for name in _MODULES)
    return "(() => {\n" + "\n".join(modules) + "})();"


def _digest(program: str) -> str:
    """Return the hash by which the content security policy allows a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
