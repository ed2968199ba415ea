"""The file of fusion weights: what `fuse --tune` writes and a later `fuse --weights @FILE` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import Recipe
from hybrid_cli.fusion.tuning import Tuned


def content(tuned: Tuned, alone: Mapping[str, float], measure: str) -> dict[str, Any]:
    """Return the content of the file: weights in the order of `runs`, scores, and all trials.

    Args:
        tuned: result of tuning.
        alone: run -> its own score, in the order of the weights.
        measure: measure that was tuned for.
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


def chosen_weights(given: str | Sequence[float] | None, recipe: Recipe, names: Sequence[str]) -> Recipe:
    """Return the recipe with the given weights: numbers, the text `0.5,1`, or `@FILE`; None keeps its own.

    Args:
        given: value of --weights.
        recipe: method and its settings.
        names: names of the weighted runs, in order.

    Raises:
        InputError: not numbers, a wrong number of them, or a file for other runs or another recipe.
    """
    weights = recipe.weights if given is None else _parsed(given, recipe, names)
    if len(weights) != len(names):
        raise InputError(
            f"--weights {','.join(f'{weight:g}' for weight in weights)}: pass one weight for each of "
            f"{', '.join(names)}, in this order; got {len(weights)}"
        )
    return replace(recipe, weights=weights)


def _parsed(given: str | Sequence[float], recipe: Recipe, names: Sequence[str]) -> tuple[float, ...]:
    if not isinstance(given, str):
        return tuple(float(weight) for weight in given)
    if given.startswith("@"):
        return read_weights(Path(given[1:]), recipe, names)
    try:
        return tuple(float(weight) for weight in given.split(","))
    except ValueError:
        raise InputError(f"--weights {given}: needs numbers such as 0.5,1, or @FILE written by --tune") from None


def weights_file(given: object) -> dict[str, Path]:
    """Return the weights file as an input of a stage, if weights are given as `@FILE`."""
    return {"weights": Path(given[1:])} if isinstance(given, str) and given.startswith("@") else {}


def read_weights(path: Path, recipe: Recipe, names: Sequence[str]) -> tuple[float, ...]:
    """Read the weights of a file for the runs `names`, fused by `recipe`.

    Raises:
        InputError: they were tuned for another method, another number of runs, or the same runs in another order.
    """
    tuned = artifacts.read_manifest(path, Kind.WEIGHTS).options
    found = json.loads(path.read_text("utf-8"))
    here: dict[str, Any] = {"method": recipe.method, "missing": recipe.missing, "normalize": recipe.normalization}
    here |= {"rrf_k": recipe.rrf_k} if recipe.method == "rrf" else {}
    for name, value in here.items():
        if tuned[name] != value:
            option = "--" + name.replace("_", "-")
            raise InputError(f"{path}: tuned with {option} {tuned[name]}, not {value}; tune again")
    if len(found["runs"]) != len(names):
        raise InputError(f"{path}: was tuned for {len(found['runs'])} runs, not {len(names)}; tune again")
    if found["runs"] != list(names) and sorted(found["runs"]) == sorted(names):
        raise InputError(
            f"{path}: was tuned for the runs in the order {', '.join(found['runs'])}; pass them in this order"
        )
    return tuple(found["weights"])
