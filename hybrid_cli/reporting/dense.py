"""Terminal tables of `encode` and `combine`: candidates of index type `auto`, and the tuned weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_cli import console


def show_candidates(tried: Sequence[Mapping[str, Any]]) -> None:
    """Print the measurements of the candidates; see `indexes.auto.Candidate`."""
    rows = [
        [
            each["index_type"],
            each["factory"],
            f"{each['documents']:,}",
            f"{each['size']:,.0f}",
            f"{each['recall']:.4f}",
            f"{each['milliseconds']:.2f}",
        ]
        for each in tried
    ]
    headings = ["index type", "factory", "documents", "bytes/document", "recall@100", "ms/query"]
    console.table(headings, rows, left=["factory"])


def show_tuned_weight(measure: str, weight: float, flat: tuple[float, float], score: float, held_out: float) -> None:
    """Print the best weight of a combination, its range within 1% of the best score, and both scores."""
    low, high = flat
    console.table(
        ["weight", "range within 1% of the best", measure, "held out"],
        [[f"{weight:g}", f"{low:g} to {high:g}", f"{score:.4f}", f"{held_out:.4f}"]],
    )
