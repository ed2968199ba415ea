"""The content of a page: charts, sections, and HTML with embedded style, data and scripts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import altair as alt
import jinja2

from hybrid_cli.reporting.colours import COLOURS, RUN_COLOURS, Scheme, style_sheet
from hybrid_cli.reporting.tables import Table

Rows = Sequence[Mapping[str, Any]]

FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


@dataclass(frozen=True)
class Figure:
    """A chart with title, caption and legend.

    Attributes:
        name: element of the page, and file name; lower case, hyphens.
        title: subject of the chart.
        spec: Vega-Lite with data, without configuration.
        caption: how to read the chart.
        legend: names of the runs, or of `colour_numbers`, whose colors the chart uses.
        colour_numbers: color numbers of names that are no runs.
        wide: spans the width of the page.
    """

    name: str
    title: str
    spec: Mapping[str, Any]
    caption: str = ""
    legend: Sequence[str] = ()
    wide: bool = False
    colour_numbers: Mapping[str, int] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------ specifications


def chart(data: str) -> alt.Chart:
    """Return a chart of the rows that `plain` receives under this name; Altair does not inspect each row."""
    return alt.Chart(alt.NamedData(data))


def colours(names: Sequence[str], field: str = "run") -> alt.Color:
    """Return one color per name, the same in every chart with the same names."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(names)))


def colours_at(numbers: Mapping[str, int], field: str) -> alt.Color:
    """Return the color of the given number for each name, and a legend of these names only."""
    named = {number: name for name, number in numbers.items()}
    domain = [named.get(number, f"\u200b{number}") for number in range(max(named, default=-1) + 1)]
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=domain), legend=alt.Legend(values=list(numbers)))


def plain(
    sheet: alt.Chart | alt.LayerChart,
    data: Mapping[str, Rows],
    height: int,
    width: int | Literal["container"] = "container",
) -> dict[str, Any]:
    """Return the specification without Altair's configuration and version.

    Args:
        sheet: chart of named data.
        data: name -> rows; charts of one page share data of the same name.
        height: pixels.
        width: pixels; `container` follows the width of the page.
    """
    content = sheet.properties(height=height, width=width).to_dict(validate=False)  # a test checks it in a browser
    return {name: part for name, part in content.items() if name not in ("config", "$schema")} | {
        "datasets": dict(data)
    }


def line_chart(
    data: Mapping[str, Rows],
    x: alt.X,
    y: alt.Y,
    colour: alt.Color,
    tooltips: Sequence[alt.Tooltip],
    height: int,
    size: int = 36,
) -> dict[str, Any]:
    """Return the specification of lines with a dot at each point.

    Args:
        data: name -> rows.
        x, y, colour, tooltips: encodings.
        height: pixels.
        size: area of a dot, in pixels.
    """
    base = chart(next(iter(data))).encode(x, y, colour, tooltip=list(tooltips))
    return plain(
        base.mark_line(strokeWidth=2, interpolate="monotone") + base.mark_circle(size=size, opacity=1), data, height
    )


def interval_chart(rows: Rows) -> alt.FacetChart:
    """Return a chart with a panel per measure: the mean of each run with the ends of its interval.

    Args:
        rows: run, measure, mean, low, high.
    """
    base = alt.Chart().encode(alt.Y("run:N", title=None, sort=None), alt.Color("run:N", sort=None))
    tooltips = [alt.Tooltip("run:N"), *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("mean", "low", "high"))]
    bars = base.mark_rule(strokeWidth=2).encode(alt.X("low:Q", title=None).scale(zero=False), alt.X2("high:Q"))
    means = base.mark_circle(size=60, opacity=1).encode(alt.X("mean:Q").scale(zero=False), tooltip=tooltips)
    panels = alt.layer(bars, means, data=alt.InlineData(list(rows))).properties(width=220)
    order = alt.Facet("measure:N", title=None, sort=list(dict.fromkeys(row["measure"] for row in rows)))
    config = {**chart_config("light", legend=True), "legend": {"disable": True}}
    chart: alt.FacetChart = panels.facet(order, columns=3).resolve_scale(x="independent").configure(**config)
    return chart


# -------------------------------------------------------------------------------------------------------------- style


def chart_config(scheme: Scheme, *, legend: bool) -> dict[str, Any]:
    """Return the Vega-Lite configuration of a color scheme.

    Args:
        scheme: `light` or `dark`.
        legend: draw legends in the charts; on the page they are HTML, which wraps on narrow screens.
    """
    colours = COLOURS[scheme]
    axis = {
        **dict.fromkeys(("labelColor", "titleColor"), colours["quiet"]),
        **dict.fromkeys(("domainColor", "tickColor", "gridColor"), colours["line"]),
        "gridOpacity": 0.7,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 5,
    }
    return {
        "background": "transparent" if not legend else colours["card"],
        "font": FONT,
        "axis": axis,
        "legend": {
            "disable": not legend,
            "labelColor": colours["ink"],
            "title": None,
            "orient": "bottom",
            "columns": 4,
            "symbolType": "circle",
            "symbolOpacity": 1,
            "symbolStrokeWidth": 0,
        },
        "view": {"stroke": None},
        "range": {"category": [colours[f"run-{number}"] for number in range(RUN_COLOURS)]},
        "text": {"color": colours["ink"], "fontSize": 12},
        "style": {
            "guide": {"color": colours["quiet"], "strokeDash": [3, 4], "strokeOpacity": 0.7},
            "quiet": {"color": colours["quiet"], "fillOpacity": 0.5},
            "outline": {"color": colours["quiet"], "strokeDash": [4, 3]},
        },
    }


# --------------------------------------------------------------------------------------------------------------- page

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
        "config": {scheme: chart_config(scheme, legend=False) for scheme in COLOURS}
        | {"saved": chart_config("light", legend=True)},
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
        style=style_sheet() + "".join(map(_source, _STYLES)),
        scripts=scripts,
        allowed=[_digest(script) for script in scripts],
        content=as_data(content) if figures else None,
        comparison=as_data(comparison) if comparison else None,
    )


def _colour(number: int) -> str:
    return f"var(--run-{number % RUN_COLOURS})"


def as_data(content: Any) -> str:
    """Return JSON in which no text can end the script element around it."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script; see `vega.txt`."""
    return gzip.decompress(files(__package__).joinpath("vega.js.gz").read_bytes()).decode()


def _bundle() -> str:
    """Return the modules of the comparison as one script, since a file has no address to import them from."""
    modules = (_IMPORT_OR_EXPORT.sub("", _source(f"static/{name}")) for name in _MODULES)
    return "(() => {\n" + "\n".join(modules) + "})();"


def _digest(program: str) -> str:
    """Return the hash by which the content security policy allows a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
