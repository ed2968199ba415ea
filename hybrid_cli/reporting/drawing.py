"""What all charts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

Rows = Sequence[Mapping[str, Any]]


def chart(data: str) -> alt.Chart:
    """A chart of the rows that `plain` is given under that name; Altair need not look at each of them."""
    return alt.Chart(alt.NamedData(data))


def colours(names: Sequence[str], field: str = "run") -> alt.Color:
    """One colour a name, the same in every chart that is given the same names."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(names)))


def plain(
    sheet: alt.Chart | alt.LayerChart,
    data: Mapping[str, Rows],
    height: int,
    width: int | Literal["container"] = "container",
) -> dict[str, Any]:
    """The specification without Altair's configuration and version.

    Args:
        data: name -> rows; charts of one page share what has the same name.
        width: in pixels, as `height`; `container` follows the width of the page.
    """
    content = sheet.properties(height=height, width=width).to_dict(validate=False)  # the browser's test is stricter
    return {name: part for name, part in content.items() if name not in ("config", "$schema")} | {
        "datasets": dict(data)
    }
