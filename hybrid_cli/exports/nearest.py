"""The fusion of an engine that is nearest to one of ours, and what it does differently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hybrid_cli.errors import option_error
from hybrid_cli.exports.engine import Fusion
from hybrid_cli.fusion.methods import METHODS, weighted_mean, weighted_sum
from hybrid_cli.fusion.options import Missing
from hybrid_cli.passages import MAX, NO_GROUPS

Kind = Literal["sum", "minmax", "l2", "zscore", "dbsf", "rrf"]  # of a fusion: weighted sums of what
_NEAR: Mapping[str, Sequence[Kind]] = {  # normalization -> kinds, the nearest first
    "none": ("sum", "minmax", "rrf"),
    "minmax": ("minmax", "dbsf", "rrf"),
    "max": ("minmax", "dbsf", "rrf"),
    "sum": ("minmax", "dbsf", "rrf"),
    "l2": ("l2", "minmax", "dbsf", "rrf"),
    "zscore": ("zscore", "minmax", "dbsf", "rrf"),
    "dbsf": ("dbsf", "zscore", "minmax", "rrf"),
    "log-odds": ("minmax", "dbsf", "rrf"),
    "rrf": ("rrf",),
    "rank": ("rrf",),
    "borda": ("rrf",),
    "isr": ("rrf",),
    "rbc": ("rrf",),
}
_RULES = {  # other rules than the weighted sum
    "combmnz": "multiplies the sum by the number of lists with the document",
    "isr": "multiplies the sum by the number of lists with the document",
    "combanz": "divides the sum by the weights of the lists with the document",
    "combmax": "takes the largest value",
    "combmin": "takes the smallest value",
    "combmed": "takes the median",
    "log-odds": "adds the log-odds of probabilities",
}


@dataclass(frozen=True)
class Nearest:
    """A kind of fusion that an engine has.

    Attributes:
        kind: weighted sum of what.
        weights: one per field; they sum to 1 unless `kind` is `sum`.
        constant: constant of reciprocal rank fusion.
        depth: hits of each field that are fused.
        differences: what the kind does differently from the fusion, one sentence each.
    """

    kind: Kind
    weights: tuple[float, ...]
    constant: int
    depth: int
    differences: tuple[str, ...]


def nearest(
    fusion: Fusion, kinds: Sequence[Kind], engine: str, missing: Missing = "zero", deepest: int | None = None
) -> Nearest:
    """Return the kind of fusion of an engine that is nearest to a fusion.

    Args:
        fusion: fusion of a retriever.
        kinds: kinds that the engine has.
        engine: name of the engine, for messages.
        missing: rule of the engine for documents that a field does not return; sums are exact.
        deepest: most hits of a field that the engine fuses; None for no limit.

    Raises:
        InputError: products, and methods of plugins, have nothing near them.
    """
    recipe, method = fusion.recipe, METHODS[fusion.recipe.method]
    normalization = recipe.normalization or method.normalization
    known = recipe.method in _RULES or method.rule in (weighted_sum, weighted_mean)
    kind = next((near for near in _NEAR.get(normalization, ()) if known and near in kinds), None)
    if kind is None:
        near = [name for name in METHODS if name in _RULES or METHODS[name].rule in (weighted_sum, weighted_mean)]
        reason = f"{engine} has nothing near the fusion method {recipe.method}; tune one of {', '.join(near)}"
        raise option_error("format", engine, reason, code="no-near-fusion", method=recipe.method, choices=near)
    differences = []
    if kind != ("sum" if normalization == "none" else normalization):
        ours = "are raw" if normalization == "none" else f"by {normalization}"
        differences.append(f"Scores are normalized by {_words(kind)}; ours {ours}.")
    if recipe.method in _RULES:
        differences.append(f"Values are added; {recipe.method} {_RULES[recipe.method]}.")
    rule: Missing = "exact" if kind == "sum" else missing
    if recipe.missing not in (("zero", "ignore") if rule == "zero" else (rule,)):
        value = "its exact score" if rule == "exact" else "the value 0"
        differences.append(f"A document that a list lacks has {value} there; ours follow the rule `{recipe.missing}`.")
    constant = max(1, round(recipe.rrf_k))
    if kind == "rrf" and normalization == "rrf" and constant != recipe.rrf_k:
        differences.append(f"The constant of the ranks is {constant}; ours is {recipe.rrf_k:g}.")
    depth = fusion.depth if deepest is None else min(fusion.depth, deepest)
    if depth < fusion.depth and kind != "sum":
        differences.append(f"At most {depth:,} hits of each list are fused; ours are {fusion.depth:,}.")
    if fusion.group != NO_GROUPS:
        best = "" if fusion.group == MAX else f", scored by `{fusion.group}` of their passages"
        differences.append(f"Passages are fused, and the best one gives the document; ours fuse documents{best}.")
    total = math.fsum(recipe.weights)
    weights = recipe.weights if kind == "sum" else tuple(weight / total for weight in recipe.weights)
    return Nearest(kind, weights, constant, depth, tuple(differences))


def _words(kind: Kind) -> str:
    return {"rrf": "reciprocal ranks", "sum": "nothing"}.get(kind, kind)
