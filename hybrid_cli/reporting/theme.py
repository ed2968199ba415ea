"""The colours of page and charts by daylight and at night, and how charts are drawn with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Scheme = Literal["light", "dark"]

FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
RUN_COLOURS = 10

# paper, ink, quiet ink, lines; `mark` behind query terms; `good`, `bad` for flags; run-0.. for the runs in their order.
COLOURS: Mapping[Scheme, Mapping[str, str]] = {
    "light": {
        "paper": "#fcfbf8",
        "card": "#ffffff",
        "ink": "#22262b",
        "quiet": "#626a73",
        "line": "#dedbd3",
        "accent": "#23618f",
        "mark": "#fbe8a6",
        "good": "#2c7a4b",
        "bad": "#b3402f",
        "run-0": "#2b6ca3",
        "run-1": "#cf6a24",
        "run-2": "#2f8a5b",
        "run-3": "#8c57a8",
        "run-4": "#b83a4b",
        "run-5": "#977b12",
        "run-6": "#1f8c93",
        "run-7": "#c2578d",
        "run-8": "#5763bd",
        "run-9": "#6f7780",
    },
    "dark": {
        "paper": "#15181c",
        "card": "#1c2025",
        "ink": "#e4e4e0",
        "quiet": "#9ba3ac",
        "line": "#363c44",
        "accent": "#83bbe6",
        "mark": "#5c4f1c",
        "good": "#74c795",
        "bad": "#ef8a78",
        "run-0": "#6faee0",
        "run-1": "#f09a58",
        "run-2": "#69c793",
        "run-3": "#c39be0",
        "run-4": "#ef8390",
        "run-5": "#d6b84c",
        "run-6": "#5cc6cd",
        "run-7": "#ec98c3",
        "run-8": "#9ca7f2",
        "run-9": "#a9b1ba",
    },
}


def chart_config(scheme: Scheme, *, legend: bool) -> dict[str, Any]:
    """Vega-Lite's configuration.

    Args:
        legend: draw legends into the charts; on the page they are HTML, which wraps on a narrow screen.
    """
    colours = COLOURS[scheme]
    axis = {
        "labelColor": colours["quiet"],
        "titleColor": colours["quiet"],
        "domainColor": colours["line"],
        "tickColor": colours["line"],
        "gridColor": colours["line"],
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


def style_sheet() -> str:
    """The colours as variables of CSS, those of the night where the reader's system asks for them."""

    def variables(scheme: Scheme) -> str:
        return " ".join(f"--{name}: {value};" for name, value in COLOURS[scheme].items())

    night = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables('dark')} }} }}"
    return f":root {{ color-scheme: light dark; {variables('light')} }}\n{night}\n"
