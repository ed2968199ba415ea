"""The file of fusion weights: what `fuse --tune` writes and a later `fuse --weights @FILE` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import Recipe
from hybrid_cli.fusion.tuning import Tuned


def content(tuned: Tuned, alone: Mapping[str, float], measure: str) -> dict[str, Any]:
    """What the file says: weights by the order of `runs`, the scores, and every set of weights that was tried.

    Args:
        alone: each run's own score, in the order of the weights.
    """
    return {
        "runs": list(alone),
        "weights": list(tuned.weights),
        "measure": measure,
        "score": tuned.score,
        "held_out": tuned.held_out,
        "alone": dict(alone),
        "within_1_percent": [list(span) for span in tuned.flat],
        "trials": [{"weights": list(weights), "score": score} for weights, score in tuned.trials],
    }


def read_weights(path: Path, recipe: Recipe, names: Sequence[str]) -> tuple[float, ...]:
    """The weights of a file, for runs called `names` that are fused by `recipe`.

    Raises:
        InputError: they were tuned for another method, another number of runs, or the same runs in another order.
    """
    tuned = artifacts.read_manifest(path, Kind.WEIGHTS).options
    found = json.loads(path.read_text("utf-8"))
    for setting in ("method", "missing", "normalization", "rrf_k"):
        here = getattr(recipe, setting)
        if tuned[setting] != here:
            option = "normalize" if setting == "normalization" else setting.replace("_", "-")
            raise InputError(f"{path}: was tuned with --{option} {tuned[setting]}, here it is {here}; tune again")
    if len(found["runs"]) != len(names):
        raise InputError(f"{path}: was tuned for {len(found['runs'])} runs, here are {len(names)}; tune again")
    if found["runs"] != list(names) and sorted(found["runs"]) == sorted(names):
        raise InputError(f"{path}: was tuned for the runs in the order {', '.join(found['runs'])}; name them so")
    return tuple(found["weights"])
