"""Venn diagrams in pixels: two overlapping circles and, beside them, one for the queries that neither run finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from hybrid_cli.evaluation.complementarity import Sets
from hybrid_cli.reporting.drawing import chart, colours, plain
from hybrid_cli.reporting.venn import Circle, circles, radius

WIDTH = 300  # pixels, as all numbers here
_MARGIN, _GAP = 6, 16
_LABEL_ROOM = 22  # above and below the circles
_CHARACTER, _PADDING, _HALF_A_LINE = 7.5, 6, 8
_NEITHER = "neither"


def scale(drawn: Sequence[Sets]) -> float:
    """How long a unit is, in which a circle of area 1 is one query, so that the widest of some diagrams fits."""
    widest = max(max(circle.right for circle in circles(*_pair(sets))) + 2 * radius(sets.fail) for sets in drawn)
    return (WIDTH - 2 * _MARGIN - _GAP) / max(widest, 1.0)


def diagram(name: str, sets: Sets, pair: tuple[str, str], runs: Sequence[str], scale: float) -> Any:
    """The specification of one diagram; the pair has the colours that it has among all runs.

    Args:
        name: with which the names of its data begin.
        scale: pixels to a unit, as `scale` returns them.
    """
    layout = _Layout.of(sets, scale)
    shapes = zip(layout.circles, (*pair, _NEITHER), (sets.dense, sets.sparse, sets.fail), strict=True)
    drawn = [
        {
            "x": circle.x,
            "y": layout.middle,
            "size": (2 * circle.radius) ** 2,  # Vega's size of a circle is the square of its diameter
            "run": name,
            "queries": f"{count:,} of {sets.queries:,}",
        }
        for circle, name, count in shapes
        if count
    ]
    found, beside = (drawn[:-1], drawn[-1:]) if sets.fail else (drawn, [])
    return _spec(name, found, beside, list(layout.labels(sets)), runs, layout)


def _pair(sets: Sets) -> tuple[int, int, int]:
    return sets.dense, sets.sparse, sets.both


@dataclass(frozen=True)
class _Layout:
    """Where the circles stand, from the left; all on one line."""

    first: Circle
    second: Circle
    neither: Circle

    @classmethod
    def of(cls, sets: Sets, scale: float) -> _Layout:
        first, second = (circle.drawn(scale, 0) for circle in circles(*_pair(sets)))
        size = radius(sets.fail) * scale
        neither = Circle(max(first.right, second.right) + _GAP + size, size)
        shift = (WIDTH - neither.right) / 2
        return cls(*(circle.drawn(1, shift) for circle in (first, second, neither)))

    @property
    def circles(self) -> tuple[Circle, Circle, Circle]:
        return self.first, self.second, self.neither

    @property
    def middle(self) -> float:
        """The height of the line."""
        return max(circle.radius for circle in self.circles) + _LABEL_ROOM

    def labels(self, sets: Sets) -> Iterator[dict[str, Any]]:
        """The count of each region in its middle; where that is too narrow, above (both) or below it with a line."""
        first, second = self.first, self.second
        beyond = max(first.radius, second.radius) + _LABEL_ROOM / 2
        for count, begin, end, side in (
            (sets.dense_only, first.left, min(first.right, second.left), -1),
            (sets.both, max(first.left, second.left), min(first.right, second.right), 1),
            (sets.sparse_only, max(first.right, second.left), second.right, -1),
        ):
            if count:
                yield self._label(f"{count:,}", (begin + end) / 2, 0 if _fits(count, end - begin) else side * beyond)
        if sets.fail:
            inside = _fits(sets.fail, 2 * self.neither.radius)
            if inside:
                yield self._label(f"{sets.fail:,}", self.neither.x, 0)
            text = _NEITHER if inside else f"{sets.fail:,} {_NEITHER}"
            yield self._label(text, self.neither.x, -self.neither.radius - _LABEL_ROOM / 2, led=False)

    def _label(self, text: str, x: float, off: float, led: bool = True) -> dict[str, Any]:
        """A text off the line, and where the line that leads to it ends: just before it, or where it begins."""
        end = off - _HALF_A_LINE * (1 if off > 0 else -1) if off and led else 0
        return {"text": text, "x": x, "y": self.middle + off, "from": self.middle, "to": self.middle + end}


def _fits(count: int, room: float) -> bool:
    return len(f"{count:,}") * _CHARACTER + _PADDING <= room


def _spec(
    name: str,
    found: list[dict[str, Any]],
    beside: list[dict[str, Any]],
    labels: list[dict[str, Any]],
    runs: Sequence[str],
    layout: _Layout,
) -> Any:
    height = 2 * layout.middle
    ends = {"x": alt.Scale(domain=[0, WIDTH], nice=False), "y": alt.Scale(domain=[0, height], nice=False)}
    x, y = alt.X("x:Q", scale=ends["x"], axis=None), alt.Y("y:Q", scale=ends["y"], axis=None)
    tooltip = [alt.Tooltip("run:N", title="found by"), alt.Tooltip("queries:N")]
    size = alt.Size("size:Q", scale=None)
    sets = chart(f"{name}-sets").mark_point(
        shape="circle", filled=True, fillOpacity=0.4, strokeWidth=1.5, strokeOpacity=1
    )
    others = chart(f"{name}-neither").mark_point(shape="circle", filled=False, style="outline", opacity=1)
    written = chart(f"{name}-counts").encode(x, y)
    lines = written.mark_rule(style="guide").encode(alt.Y("from:Q", scale=ends["y"], axis=None), alt.Y2("to:Q"))
    texts = written.mark_text(fontSize=13, baseline="middle").encode(alt.Text("text:N"))
    circles = sets.encode(x, y, size, colours(runs), tooltip=tooltip) + others.encode(x, y, size, tooltip=tooltip)
    data = {f"{name}-sets": found, f"{name}-neither": beside, f"{name}-counts": labels}
    return plain(circles + lines + texts, data, height=round(height), width=WIDTH)
