"""How far the probabilities of a retriever are right, as a table with bars for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_cli import console
from hybrid_cli.reporting.tables import figure, prose

_WIDTH = 40  # characters of a probability of 1


def show_calibration(stored: Mapping[str, Any]) -> None:
    """Print the calibration error and the reliability of a calibration; see `retrieval.calibration.Calibration`.

    A bar is the share of relevant hits, a mark the mean probability: both end at the same place if it is right.
    """
    rows = [
        [figure(likely, 3), figure(share, 3), f"{hits:,}", _bar(likely, share)]
        for likely, share, hits in stored["bins"]
    ]
    console.table(
        ["probability", "relevant", "hits", "reliability (bar: relevant, |: probability)"],
        rows,
        left=["reliability (bar: relevant, |: probability)"],
    )
    prose(
        [
            f"Expected calibration error: {figure(stored['error'])} for the first ten hits of left-out queries, a "
            f"fifth of them without their relevant documents ({stored['queries']:,} judged queries, "
            f"{stored['relevant']:,} relevant hits). Unjudged documents count as not relevant."
        ]
    )


def _bar(probability: float, relevant: float) -> str:
    bar = ("=" * round(relevant * _WIDTH)).ljust(_WIDTH + 1)
    mark = round(probability * _WIDTH)
    return f"{bar[:mark]}|{bar[mark + 1 :]}".rstrip()
