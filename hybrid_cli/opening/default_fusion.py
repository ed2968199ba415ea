"""The untuned fusion of indexes: the sum of exact scores, each in units of its deviation over the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from hybrid_cli.artifacts import Manifest
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.sentences import sampled
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.options import LEXICAL_SHARE
from hybrid_cli.opening.provenance import corpora_of, existing_paths
from hybrid_cli.retrieval.retriever import Retriever, Side
from hybrid_cli.storage import Kind

QUERIES = 200  # whose scores give the deviations
SEED = 42
_DEPTH = 200  # hits of each index whose scores count


@dataclass(frozen=True)
class DefaultFusion:
    """Weights of scores in units of their deviations.

    Attributes:
        shares: weight of each index.
        scales: standard deviation of each index's scores over the candidates of all queries; empty for one index.
        queries: the queries that the scales are of, in words.
    """

    shares: tuple[float, ...]
    scales: tuple[float, ...] = field(default=())
    queries: str = ""

    @property
    def recipe(self) -> FusionRecipe:
        """Return the sum of raw scores: weights are shares divided by scales, of six digits."""
        scales = self.scales or (1.0,) * len(self.shares)
        weights = (float(f"{share / scale:.6g}") for share, scale in zip(self.shares, scales, strict=True))
        return FusionRecipe("weighted-sum", tuple(weights), "exact")


def default_shares(manifests: Sequence[Sequence[Manifest]]) -> tuple[float, ...]:
    """Return the untuned shares: .3 for the lexical indexes together, .7 for the dense ones; equal for one kind.

    Measured on seven collections (studies/default-fusion.md).
    """
    lexical = [index[0].kind == Kind.LEXICAL_INDEX for index in manifests]
    if len(set(lexical)) == 1:
        return (1 / len(lexical),) * len(lexical)
    share = {True: LEXICAL_SHARE / sum(lexical), False: (1 - LEXICAL_SHARE) / lexical.count(False)}
    return tuple(round(share[side], 6) for side in lexical)


def default_fusion(
    sides: Mapping[str, Side],
    manifests: Sequence[Sequence[Manifest]],
    shares: tuple[float, ...] | None = None,
    queries: Path | None = None,
    seed: int = SEED,
) -> DefaultFusion:
    """Measure the scales of open indexes, and return their fusion.

    Args:
        sides: the open indexes.
        manifests: the manifests of each index, several for one of shards.
        shares: weight of each index; None for the default.
        queries: query file that the scales are of; None for pieces of sentences of the documents.
        seed: random seed of the sample.

    Raises:
        InputError: the corpora are not where the indexes record them, or have no sentence.
    """
    shares = shares or default_shares(manifests)
    if len(sides) == 1:
        return DefaultFusion(shares)
    if queries is not None:
        table = collections.read_queries(queries).select("qid", "text")
        table, origin = table.sample(min(QUERIES, len(table)), seed=seed), f"queries of {queries.name}"
    else:
        corpora = existing_paths(corpora_of(manifests))
        table = sampled(corpora, QUERIES, seed) if corpora else pl.DataFrame()
        origin = "pieces of sentences of the documents"
        if not len(table):
            reason = "the documents have no sentence" if corpora else "the corpus is not where the indexes record it"
            problem = f"{reason}, which gives the scales of the scores; use `hybrid compose` with --queries or --method"
            raise InputError(problem, code="no-queries")
    recipe = FusionRecipe("weighted-sum", (1.0,) * len(sides), "exact")
    return DefaultFusion(shares, Retriever(sides, recipe, _DEPTH).scales(table), f"{len(table)} {origin}")
