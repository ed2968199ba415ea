"""Comparison of runs per query: scatter plots, wins and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from hybrid_cli import words
from hybrid_cli.reporting.charts import Figure, chart, colours, plain
from hybrid_cli.reporting.complement import contest
from hybrid_cli.reporting.data import Findings, Match
from hybrid_cli.reporting.page import Section
from hybrid_cli.reporting.tables import Table, with_sign

_TEXT_CHARACTERS = 160
_SPACING, _WIDEST = 0.008, 0.045  # fractions of the axis: distance of dots with equal values, and the maximum radius
_CORNERS = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
_GOLDEN_ANGLE = np.pi * (3 - np.sqrt(5))


def dots_section(findings: Findings, most: int) -> Section:
    """Return a scatter plot for each match, and a table of wins.

    Args:
        findings: result of `data.find`.
        most: maximum number of dots; more queries are sampled.
    """
    values, runs, measure = findings.summary.values, findings.summary.runs, findings.measure
    wide = values.filter(measure=measure).pivot(on="run", index="qid", values="value", maintain_order=True)
    drawn = wide.sample(most, seed=findings.summary.settings["seed"]) if len(wide) > most else wide
    dots = _dots(drawn, findings.matches, findings.queries, runs)
    sampled = f" A random sample of {most:,} of {len(wide):,} queries is shown." if len(wide) > most else ""
    figures = [_figure(number, match, measure, dots, runs, sampled) for number, match in enumerate(findings.matches)]
    return Section("queries", "Per query", figures=figures, tables=[_table(values, findings.matches, measure)])


def _table(values: pl.DataFrame, matches: Sequence[Match], measure: str) -> Table:
    rows = []
    for match in matches:
        *counts, mean = contest(values, match.run, match.bases, measure)
        rows.append([match.run, match.base, *(f"{count:,}" for count in counts), with_sign(mean)])
    columns = ["run", "against", "wins", "ties", "losses", "difference"]
    return Table(columns, rows, f"Queries won and lost by {measure}", left=2)


# ----------------------------------------------------------------------------------------------------------- diagrams


def _dots(
    wide: pl.DataFrame, matches: Sequence[Match], texts: Mapping[str, str], runs: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one row per query: text, values (v0, v1, ... in the order of the runs), position and winner per match."""
    columns: dict[str, Any] = {
        "q": wide["qid"].to_list(),
        "t": [words.head(texts.get(qid) or qid, _TEXT_CHARACTERS) for qid in wide["qid"]],
        **{f"v{position}": wide[run].round(4).to_list() for position, run in enumerate(runs)},
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
            f"w{number}": [names[position] for position in winner],
        }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def spread(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets that spread dots with equal values over a disc of uniform density.

    The n-th dot is placed at n golden angles, at a distance proportional to the square root of n.
    """
    points = pl.DataFrame({"x": x, "y": y})
    number = points.select(pl.int_range(pl.len()).over("x", "y")).to_series().to_numpy()
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
        f"One dot per query. Above the diagonal, {match.run} is better; the color is that of the better run, gray for "
        f"ties. Dots with equal values are spread around their position.{sampled} Hover over a dot to read the query.",
        legend=[name for name in runs if name in shown],
    )
