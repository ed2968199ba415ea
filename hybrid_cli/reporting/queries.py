"""Run against run, query by query: a dot a query, and who wins how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from hybrid_cli.evaluation.complementarity import changes, tally
from hybrid_cli.evaluation.layout import signed
from hybrid_cli.reporting.data import Findings, Match
from hybrid_cli.reporting.drawing import chart, colours, plain
from hybrid_cli.reporting.page import Cell, Figure, Section, Table

_TEXT_CHARACTERS = 160
_SPACING, _WIDEST = 0.008, 0.045  # of the axis: between the dots of one place, and the radius of the fullest place
_CORNERS = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
_GOLDEN_ANGLE = np.pi * (3 - np.sqrt(5))


def section(found: Findings, most: int) -> Section:
    """A diagram for each match, and a table of wins.

    Args:
        most: dots that are drawn; of more queries a seeded sample is taken.
    """
    values, runs, measure = found.summary.values, found.summary.runs, found.measure
    wide = values.filter(measure=measure).pivot(on="run", index="qid", values="value", maintain_order=True)
    drawn = wide.sample(most, seed=found.summary.settings["seed"]) if len(wide) > most else wide
    dots = _dots(drawn, found.matches, found.queries, runs)
    sampled = f" Drawn are {most:,} of {len(wide):,} queries, chosen at random." if len(wide) > most else ""
    figures = [_figure(number, match, measure, dots, runs, sampled) for number, match in enumerate(found.matches)]
    return Section("queries", "Query by query", figures=figures, tables=[_table(values, found.matches, measure)])


def _table(values: pl.DataFrame, matches: Sequence[Match], measure: str) -> Table:
    rows = []
    for match in matches:
        changed = changes(values, match.run, match.bases, measure)
        wins, ties, losses = tally(changed)
        mean = float(changed["change"].to_numpy().mean())
        rows.append(
            [
                Cell(match.run),
                Cell(match.base),
                *(Cell(f"{count:,}") for count in (wins, ties, losses)),
                Cell(signed(mean)),
            ]
        )
    columns = ["run", "against", "wins", "ties", "losses", "difference"]
    return Table(f"Queries won and lost by {measure}", columns, rows, left=2)


# ----------------------------------------------------------------------------------------------------------- diagrams


def _dots(
    wide: pl.DataFrame, matches: Sequence[Match], texts: Mapping[str, str], runs: Sequence[str]
) -> list[dict[str, Any]]:
    """A row a query: its text, its values (v0, v1, ... in the order of the runs), a place and a winner a match."""
    columns: dict[str, Any] = {
        "q": wide["qid"].to_list(),
        "t": [_shortened(texts.get(qid) or qid) for qid in wide["qid"]],
        **{f"v{place}": wide[run].round(4).to_list() for place, run in enumerate(runs)},
    }
    for number, match in enumerate(matches):
        names = [match.run, *match.bases, None]
        ours, others = wide[match.run].to_numpy(), wide.select(match.bases).to_numpy()
        best = others.max(axis=1)
        winner = np.where(ours > best, 0, np.where(ours == best, len(names) - 1, 1 + others.argmax(axis=1)))
        right, up = spread(best, ours)
        columns |= {
            f"x{number}": (best + right).round(4).tolist(),
            f"y{number}": (ours + up).round(4).tolist(),
            f"w{number}": [names[place] for place in winner],
        }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_CHARACTERS else text[:_TEXT_CHARACTERS].rsplit(" ", 1)[0] + " ..."


def spread(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far to move each dot, so that those of one place form a round of even density, its area true to their number.

    The n-th dot of a place stands at n golden angles and a distance that grows with the root of n (Vogel 1979).
    """
    places = pl.DataFrame({"x": x, "y": y})
    number = places.select(pl.int_range(pl.len()).over("x", "y")).to_series().to_numpy()
    spacing = min(_SPACING, _WIDEST / np.sqrt(max(1, number.max(initial=0))))
    distance, angle = spacing * np.sqrt(number), number * _GOLDEN_ANGLE
    return distance * np.cos(angle), distance * np.sin(angle)


def _figure(
    number: int, match: Match, measure: str, dots: list[dict[str, Any]], runs: Sequence[str], sampled: str
) -> Figure:
    ends = alt.Scale(domain=[-0.06, 1.06], nice=False)
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2~f")
    shown = match.runs
    tooltip = [
        alt.Tooltip("t:N", title="query"),
        alt.Tooltip("q:N", title="id"),
        *(alt.Tooltip(f"v{runs.index(name)}:Q", title=name, format=".3f") for name in shown),
    ]
    base = chart("queries").encode(
        alt.X(f"x{number}:Q", title=f"{measure} of {match.base}", scale=ends, axis=axis),
        alt.Y(f"y{number}:Q", title=f"{measure} of {match.run}", scale=ends, axis=axis),
        tooltip=tooltip,
    )
    equal = base.transform_filter(f"datum.w{number} === null").mark_circle(size=14, style="quiet")
    decided = base.transform_filter(f"datum.w{number} !== null").mark_circle(size=18, opacity=0.75)
    corners = chart("corners")
    diagonal = corners.mark_line(style="guide").encode(alt.X("x:Q", scale=ends), alt.Y("y:Q", scale=ends))
    return Figure(
        f"queries-{number + 1}",
        f"{match.run} against {match.base}",
        plain(
            diagonal + equal + decided.encode(colours(runs, f"w{number}")), {"queries": dots, "corners": _CORNERS}, 440
        ),
        f"A dot is a query. Above the diagonal {match.run} is better; the colour is that of the better run, grey where "
        f"both are equal. Dots of equal values are spread round their place.{sampled} Hover to read the query.",
        legend=[name for name in runs if name in shown],
    )
