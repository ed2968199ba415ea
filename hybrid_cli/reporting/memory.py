"""What quality costs: bytes of the indexes behind each run against its first measure (methods 10.10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt

from hybrid_cli import console
from hybrid_cli.evaluation.layout import figure
from hybrid_cli.reporting.drawing import chart, colours, plain
from hybrid_cli.reporting.page import Cell, Figure, Section, Table

_ROOM = 2.5  # beyond the smallest and the largest index, for names


@dataclass(frozen=True)
class Held:
    """What a search of one index holds.

    Attributes:
        index: where it stands.
        parts: name -> bytes of everything in the folder.
        needed: names of the parts that the search reads.
        documents: how many the index has.
    """

    index: Path
    parts: Mapping[str, int]
    needed: Sequence[str]
    documents: int

    @property
    def size(self) -> int:
        """Bytes of what the search reads."""
        return sum(self.parts[name] for name in self.needed)


def section(
    held: Mapping[str, Sequence[Held]], means: Mapping[str, float], measure: str, runs: Sequence[str]
) -> Section:
    """A dot for each run whose indexes are known.

    Args:
        held: run -> its indexes.
        means: run -> its mean of `measure`.
    """
    return Section(
        "memory",
        "Index size against quality",
        figures=[_figure(held, means, measure, runs)],
        tables=[_table(held)],
    )


def _figure(
    held: Mapping[str, Sequence[Held]], means: Mapping[str, float], measure: str, runs: Sequence[str]
) -> Figure:
    sizes = {run: sum(index.size for index in indexes) for run, indexes in held.items()}
    best = front(sizes, means)
    rows = [
        {"run": run, "bytes": size, "size": console.size(size), "mean": means[run], "shown": figure(means[run])}
        | {"front": run in best}
        for run, size in sizes.items()
    ]
    across = alt.Scale(type="log", domain=[min(sizes.values()) / _ROOM, max(sizes.values()) * _ROOM], nice=False)
    base = chart("memory").encode(
        alt.X("bytes:Q", title="bytes that a search reads", scale=across).axis(format="~s", tickCount=5, grid=False),
        alt.Y("mean:Q", title=measure).scale(zero=False, padding=24).axis(tickCount=5, format=".2~f"),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("size:N"), alt.Tooltip("shown:N", title=measure)],
    )
    dots = base.mark_circle(size=130, opacity=1).encode(colours(runs))
    names = base.mark_text(dy=-13, align="center").encode(text="run:N")
    steps = base.transform_filter("datum.front").mark_line(style="guide", interpolate="step-after")
    return Figure(
        "memory",
        f"{measure} and bytes",
        plain(steps + dots + names, {"memory": rows}, height=300),
        "The bytes on disk of what a search of these indexes reads; of a fused run those of both sides. "
        "The encoder of the queries is not counted. Up and to the left is better: the line joins the runs that no "
        "other one beats with as few bytes.",
        wide=True,
    )


def front(sizes: Mapping[str, int], means: Mapping[str, float]) -> set[str]:
    """The runs that no other one equals with fewer bytes, or beats with as many (Pareto)."""

    def beaten(run: str, by: str) -> bool:
        no_worse = sizes[by] <= sizes[run] and means[by] >= means[run]
        return no_worse and (sizes[by], means[by]) != (sizes[run], means[run])

    return {run for run in sizes if not any(beaten(run, other) for other in sizes)}


def _table(held: Mapping[str, Sequence[Held]]) -> Table:
    rows = []
    for run, indexes in held.items():
        for index in indexes:
            parts = ", ".join(
                f"{name} {console.size(size)}{'' if name in index.needed else ' (not read)'}"
                for name, size in index.parts.items()
            )
            each = index.size / index.documents if index.documents else 0
            rows.append(
                [
                    Cell(run),
                    Cell(str(index.index)),
                    Cell(parts),
                    Cell(console.size(index.size), f"{index.size / 2**30:.3f} GiB"),
                    Cell(f"{each:,.0f}"),
                ]
            )
    return Table(
        "What each index holds", ["run", "index", "parts", "read", "bytes a document"], rows, left=3, folded=True
    )
