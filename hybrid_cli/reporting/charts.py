"""Chart specifications and style, and PNG files of charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import altair as alt

from hybrid_cli.reporting.colours import COLOURS, RUN_COLOURS, Scheme
from hybrid_cli.storage import disk

Rows = Sequence[Mapping[str, Any]]

FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
_PNG_WIDTH, _PNG_WIDE = 380, 640  # pixels, before scaling
_PNG_SCALE = 3


@dataclass(frozen=True)
class Figure:
    """A chart with title, caption and legend.

    Attributes:
        name: file name and element of the page; lower case, hyphens.
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


# ---------------------------------------------------------------------------------------------------------------- PNG


def write_png(folder: Path, figures: Iterable[Figure]) -> None:
    """Write `NAME.png` of each figure, in light colors with a legend."""
    import vl_convert

    for figure in figures:
        spec = dict(figure.spec)
        if spec["width"] == "container":
            spec["width"] = _PNG_WIDE if figure.wide else _PNG_WIDTH
        picture = vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE, config=chart_config("light", legend=True))
        with disk.create(folder / f"{figure.name}.png") as file:
            file.write(picture)
