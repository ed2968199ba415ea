"""Area-proportional Venn diagrams of the queries answered by two runs, and their section in the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import acos, pi, sqrt
from typing import Any

import altair as alt
from scipy.optimize import brentq

from hybrid_cli.evaluation.complementarity import Sets
from hybrid_cli.reporting.complement import Complement, ratio_text, sets_table
from hybrid_cli.reporting.page import Figure, Section, chart, chart_config, colours, plain

WIDTH = 300  # all sizes in pixels
_MARGIN, _GAP = 6, 16
_LABEL_ROOM = 22  # space above and below the circles
_CHARACTER, _PADDING, _HALF_A_LINE = 7.5, 6, 8
_NEITHER = "neither"


def section(complement: Complement, runs: Sequence[str], cutoffs: Sequence[int]) -> Section:
    """Return diagrams at some cutoffs, and a table of all cutoffs."""
    drawn = [sets for sets in complement.sets if sets.cutoff in cutoffs]
    pair = (complement.dense, complement.sparse)
    text = (
        f"D are the queries that {complement.dense} answers with a relevant document in its top k hits, S those that "
        f"{complement.sparse} answers. The ratio of complementarity RoC(D;S) is the fraction of D that is not in S. "
        "All areas are proportional to the numbers of queries, on one scale."
    )
    figures = [_figure(sets, pair, runs, scale(drawn)) for sets in drawn]
    return Section("complement", "Complementarity", text=[text], figures=figures, tables=[sets_table(complement)])


def _figure(sets: Sets, pair: tuple[str, str], runs: Sequence[str], scale: float) -> Figure:
    name, hits = f"venn-at-{sets.cutoff}", f"Top {sets.cutoff} hits" if sets.cutoff > 1 else "Top hit"
    answered = f"{pair[0]} only {sets.dense_only:,} · both {sets.both:,} · {pair[1]} only {sets.sparse_only:,}"
    caption = f"{answered} · neither {sets.fail:,} · of {sets.queries:,} queries"
    spec = diagram(name, sets, pair, runs, scale)
    return Figure(name, f"{hits}: RoC {ratio_text(sets.roc)}", spec, caption, legend=pair)


# ------------------------------------------------------------------------------------------------------------ diagrams


def scale(drawn: Sequence[Sets]) -> float:
    """Return the pixels per unit at which the widest diagram fits; one query is a circle of area 1."""
    widest = max(
        max(circle.right for circle in circles(sets.dense, sets.sparse, sets.both)) + 2 * radius(sets.fail)
        for sets in drawn
    )
    return (WIDTH - 2 * _MARGIN - _GAP) / max(widest, 1.0)


def chart_of(sets: Sets, pair: tuple[str, str]) -> alt.LayerChart:
    """Return the diagram of two runs as a chart, which shows itself in a notebook."""
    chart = alt.LayerChart.from_dict(diagram("venn", sets, pair, pair, scale([sets])))
    drawn: alt.LayerChart = chart.configure(**chart_config("light", legend=True))
    return drawn


def diagram(name: str, sets: Sets, pair: tuple[str, str], runs: Sequence[str], scale: float) -> Any:
    """Return the specification of one diagram.

    Args:
        name: prefix of the names of its data.
        sets: sizes of the sets.
        pair: names of the two runs.
        runs: all runs, in the order of their colors.
        scale: pixels per unit; see `scale`.
    """
    layout = _Layout.of(sets, scale)
    shapes = zip(layout.circles, (*pair, _NEITHER), (sets.dense, sets.sparse, sets.fail), strict=True)
    drawn = [
        {
            "x": circle.x,
            "y": layout.middle,
            "size": (2 * circle.radius) ** 2,  # Vega's size of a circle is the square of its diameter
            "run": run,
            "queries": f"{count:,} of {sets.queries:,}",
        }
        for circle, run, count in shapes
        if count
    ]
    answered, outside = (drawn[:-1], drawn[-1:]) if sets.fail else (drawn, [])
    data = {f"{name}-sets": answered, f"{name}-neither": outside, f"{name}-counts": list(layout.labels(sets))}
    height = 2 * layout.middle
    ends = {"x": alt.Scale(domain=[0, WIDTH], nice=False), "y": alt.Scale(domain=[0, height], nice=False)}
    x, y = alt.X("x:Q", scale=ends["x"], axis=None), alt.Y("y:Q", scale=ends["y"], axis=None)
    tooltip = [alt.Tooltip("run:N", title="found by"), alt.Tooltip("queries:N")]
    size = alt.Size("size:Q", scale=None)
    points = chart(f"{name}-sets").mark_point(
        shape="circle", filled=True, fillOpacity=0.4, strokeWidth=1.5, strokeOpacity=1
    )
    others = chart(f"{name}-neither").mark_point(shape="circle", filled=False, style="outline", opacity=1)
    written = chart(f"{name}-counts").encode(x, y)
    lines = written.mark_rule(style="guide").encode(alt.Y("from:Q", scale=ends["y"], axis=None), alt.Y2("to:Q"))
    texts = written.mark_text(fontSize=13, baseline="middle").encode(alt.Text("text:N"))
    circles = points.encode(x, y, size, colours(runs), tooltip=tooltip) + others.encode(x, y, size, tooltip=tooltip)
    return plain(circles + lines + texts, data, height=round(height), width=WIDTH)


@dataclass(frozen=True)
class _Layout:
    """Return the positions of the circles, on one line from the left."""

    first: Circle
    second: Circle
    neither: Circle

    @classmethod
    def of(cls, sets: Sets, scale: float) -> _Layout:
        first, second = (circle.drawn(scale, 0) for circle in circles(sets.dense, sets.sparse, sets.both))
        size = radius(sets.fail) * scale
        neither = Circle(max(first.right, second.right) + _GAP + size, size)
        shift = (WIDTH - neither.right) / 2
        return cls(*(circle.drawn(1, shift) for circle in (first, second, neither)))

    @property
    def circles(self) -> tuple[Circle, Circle, Circle]:
        return self.first, self.second, self.neither

    @property
    def middle(self) -> float:
        """Return the height of the line."""
        return max(circle.radius for circle in self.circles) + _LABEL_ROOM

    def labels(self, sets: Sets) -> Iterator[dict[str, Any]]:
        """Yield the count of each region: in its middle, or for a narrow region outside with a line."""
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
        """Return a label and the end of the line that leads to it."""
        end = off - _HALF_A_LINE * (1 if off > 0 else -1) if off and led else 0
        return {"text": text, "x": x, "y": self.middle + off, "from": self.middle, "to": self.middle + end}


def _fits(count: int, room: float) -> bool:
    return len(f"{count:,}") * _CHARACTER + _PADDING <= room


# ------------------------------------------------------------------------------------------------------------ geometry


@dataclass(frozen=True)
class Circle:
    """A circle with center on the line y = 0; an area of 1 is one query."""

    x: float
    radius: float

    @property
    def left(self) -> float:
        """Return the left end on the line of the centers."""
        return self.x - self.radius

    @property
    def right(self) -> float:
        """Return the right end."""
        return self.x + self.radius

    def drawn(self, scale: float, shift: float) -> Circle:
        """Scale the circle and move it to the right."""
        return Circle(self.x * scale + shift, self.radius * scale)


def radius(count: float) -> float:
    """Return the radius of a circle with that area."""
    return sqrt(count / pi)


def lens(one: float, other: float, distance: float) -> float:
    """Return the common area of two circles.

    Args:
        one, other: radii.
        distance: distance of the centers.
    """
    small, large = sorted((one, other))
    if distance >= small + large:
        return 0.0
    if distance <= large - small:
        return pi * small**2
    # Two segments, cut off by the common chord at distance `near` from the small center (negative if behind it).
    near = (distance**2 + small**2 - large**2) / (2 * distance)
    return _segment(small, near) + _segment(large, distance - near)


def _segment(size: float, at: float) -> float:
    """Return the area of a circle of radius `size` beyond a chord at distance `at` from its center."""
    at = max(-size, min(size, at))
    return size**2 * acos(at / size) - at * sqrt(size**2 - at**2)


def circles(one: int, other: int, both: int) -> tuple[Circle, Circle]:
    """Return the circles of two sets; the first starts at 0, the second is to its right.

    Disjoint sets touch from outside; a subset touches from inside.

    Args:
        one, other: sizes of the sets.
        both: size of the intersection.
    """
    first, second = radius(one), radius(other)
    nearest, farthest = abs(first - second), first + second
    if both == 0 or both == min(one, other):
        distance = nearest if both else farthest
    else:
        distance = float(brentq(lambda d: lens(first, second, d) - both, nearest, farthest, xtol=1e-12 * farthest))
    left = min(0.0, first + distance - second)  # a second circle around the first starts before it
    return Circle(first - left, first), Circle(first + distance - left, second)
