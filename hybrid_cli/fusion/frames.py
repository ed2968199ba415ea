"""Fuse runs in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import polars as pl

from hybrid_cli.errors import InputError, keyword_error
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import METHODS, FusionRecipe, method_name
from hybrid_cli.fusion.options import HITS, METHOD, RRF_K, Missing, Normalization
from hybrid_cli.runs import Run, RunLike, empty, run_table


def fuse(
    runs: Mapping[str, RunLike],
    method: str = METHOD,
    weights: Sequence[float] | Mapping[str, float] | None = None,
    *,
    normalize: Normalization | None = None,
    missing: Missing | None = None,
    rrf_k: float = RRF_K,
    depth: int | None = HITS,
    hits: int = HITS,
    **options: Any,
) -> pl.DataFrame:
    """Fuse runs of the same queries.

    Args:
        runs: name -> run: a data frame (polars or pandas: qid, docid, score or rank), a dictionary
            `{qid: {docid: score}}`, or the path of a run file.
        method: fusion method, minmax by default, or its name in ranx.
        weights: one per run, in order or by name; equal if None.
        normalize: normalization of each list; None for that of the method.
        missing: rule for documents that a list lacks, except `exact`; None for that of the method.
        rrf_k: constant k in 1 / (k + rank), for `rrf`; 60 by default.
        depth: hits read from each run, 1000 by default; None for all.
        hits: hits kept per query; 1000 by default.
        options: parameters of the combination rule, such as those of a plugin.

    Returns:
        qid, docid, rank (from 1), score; as `hybrid fuse` writes it.

    Raises:
        InputError: fewer than two runs, an unknown method, a weight too few, or something that is no run.

    Example:
        >>> from hybrid_cli import fuse
        >>> first, second = {"q": {"a": 12.0, "b": 9.5}}, {"q": {"b": 0.8, "c": 0.6}}
        >>> fuse({"bm25": first, "dense": second}, method="rrf", hits=2).select("docid", "rank").rows()
        [('b', 1), ('a', 2)]
    """
    if not isinstance(runs, Mapping) or len(runs) < 2:
        raise InputError("fuse: needs two or more runs by name, such as {'bm25': a, 'dense': b}", code="too-few-runs")
    recipe = recipe_of(list(runs), method, weights, normalize, missing, rrf_k, options)
    if recipe.missing == "exact":
        problem = (
            f"{recipe.method}: needs the exact scores of indexes, as a `Retriever` has them; pass another `missing`"
        )
        raise InputError(problem, code="needs-indexes")
    joined = lists.Lists.of([Run.of(run_table(run, name)) for name, run in runs.items()], depth)
    return pl.concat([empty(), *lists.fuse_blocks(joined.blocks(), joined.qids, recipe, hits)])


def recipe_of(
    names: Sequence[str],
    method: str = METHOD,
    weights: Sequence[float] | Mapping[str, float] | None = None,
    normalize: Normalization | None = None,
    missing: Missing | None = None,
    rrf_k: float = RRF_K,
    options: Mapping[str, Any] | None = None,
) -> FusionRecipe:
    """Return the recipe of a fusion of named lists; see `fuse`."""
    chosen = method_name(method)
    missing = missing or METHODS[chosen].missing
    known = [*signature(METHODS[chosen].rule).parameters][3:]
    if unknown := [name for name in options or () if name not in known]:
        raise keyword_error(chosen, unknown[0], [*known, *signature(recipe_of).parameters], "unknown-parameter")
    return FusionRecipe(chosen, _weights(weights, names), missing, normalize, rrf_k, dict(options or {}))


def _weights(given: Sequence[float] | Mapping[str, float] | None, names: Sequence[str]) -> tuple[float, ...]:
    if given is None:
        return (1.0,) * len(names)
    if isinstance(given, Mapping):
        if given.keys() != set(names):
            problem = f"weights of {', '.join(given)} for the runs {', '.join(names)}; pass one per run"
            raise InputError(problem, code="weights-of-others")
        given = [given[name] for name in names]
    if len(given) != len(names):
        raise InputError(f"{len(given)} weights for {len(names)} runs; pass one per run", code="number-of-weights")
    return tuple(map(float, given))
