"""The figures as pictures for a paper."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hybrid_cli.reporting import theme
from hybrid_cli.reporting.page import Figure

_WIDTH, _WIDE = 380, 640  # pixels, before scaling
_SCALE = 3


def write(folder: Path, figures: Iterable[Figure]) -> int:
    """Write `NAME.png` of each figure, in the colours of daylight, with its legend; return how many."""
    import vl_convert

    count = 0
    for figure in figures:
        spec = dict(figure.spec)
        if spec["width"] == "container":
            spec["width"] = _WIDE if figure.wide else _WIDTH
        picture = vl_convert.vegalite_to_png(spec, scale=_SCALE, config=theme.chart_config("light", legend=True))
        (folder / f"{figure.name}.png").write_bytes(picture)
        count += 1
    return count
