"""What all charts share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import altair as alt


def chart(rows: Iterable[Mapping[str, Any]]) -> alt.Chart:
    """A chart of rows that stand in its specification."""
    return alt.Chart(alt.InlineData(values=list(rows)))


def colours(names: Sequence[str], field: str = "run") -> alt.Color:
    """One colour a name, the same in every chart that is given the same names."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(names)))


def plain(sheet: alt.Chart | alt.LayerChart, height: int, width: int | Literal["container"] = "container") -> Any:
    """The specification, without the configuration that Altair adds; `container` follows the width of the page."""
    content = sheet.properties(height=height, width=width).to_dict()
    return {name: value for name, value in content.items() if name != "config"}
