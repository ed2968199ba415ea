"""Terminal tables of `fuse`: single runs against the fused run, and tuned weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_cli import console


def show_comparison(measure: str, alone: Mapping[str, float], method: str, fused: float) -> None:
    """Print the scores of the single runs and of the fused run; warn where fusion does not help."""
    rows = [[name, f"{score:.4f}"] for name, score in alone.items()]
    console.table(["run", measure], [*rows, [f"fused ({method})", f"{fused:.4f}"]])
    _warn_unless_better("fusion", fused, alone, measure)


def show_weights(tuned: Mapping[str, Any]) -> None:
    """Print tuned weights, their range within 1% of the best score, and the score of each run alone.

    Args:
        tuned: content of a weights file; see `fusion.weights.content`.
    """
    measure, alone = tuned["measure"], tuned["alone"]
    rows = [
        [name, f"{weight:g}", f"{low:g} to {high:g}", f"{alone[name]:.4f}"]
        for name, weight, (low, high) in zip(tuned["runs"], tuned["weights"], tuned["within_1_percent"], strict=True)
    ]
    held_out = tuned["held_out"] if tuned["held_out"] is not None else tuned["score"]
    rows += [["fused", "", "", f"{tuned['score']:.4f}"], ["fused, held out", "", "", f"{held_out:.4f}"]]
    console.table(["run", "weight", "range within 1% of the best", measure], rows)
    _warn_unless_better("fusion on held-out queries", held_out, alone, measure)


def _warn_unless_better(what: str, score: float, alone: Mapping[str, float], measure: str) -> None:
    best = max(alone, key=lambda name: alone[name])
    if score <= alone[best]:
        console.warn(f"{what} ({measure} {score:.4f}) does not beat {best} alone ({alone[best]:.4f})")
