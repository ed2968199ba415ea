"""Helpers of the fusion tests: rankings as runs, fused runs as dictionaries."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import strategies as st

from hybrid_cli import runs
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.methods import METHODS, FusionRecipe, method_name

Ranking = Mapping[str, float]
A: Ranking = {"x": 10, "y": 8, "z": 5}
B: Ranking = {"y": 3, "w": 2.5, "x": 1}
SCORES = st.floats(-100, 100, width=32)
RANKINGS = st.dictionaries(st.sampled_from("abcdefghij"), SCORES, min_size=1)
APART = st.dictionaries(  # scores whose differences no normalization rounds to 0
    st.sampled_from("abcdefghij"), st.integers(-6400, 6400).map(lambda count: count / 64), min_size=1
)


def run_of(*queries: Ranking, names: Sequence[str] = "123456789") -> pl.DataFrame:
    rows = [(qid, docid, score) for qid, hits in zip(names, queries, strict=False) for docid, score in hits.items()]
    return runs.ranked(pl.DataFrame(rows, {"qid": pl.String, "docid": pl.String, "score": pl.Float32}, orient="row"))


def recipe(method: str, *weights: float, lists: int = 2, **settings: Any) -> FusionRecipe:
    name = method_name(method)
    missing = settings.pop("missing", METHODS[name].missing)
    return FusionRecipe(name, weights or (1.0,) * lists, missing, **settings)


def fused_run(
    tables: list[pl.DataFrame], fusion: FusionRecipe, hits: int = 1000, depth: int | None = None
) -> pl.DataFrame:
    side_by_side = Lists.of(tables, depth)
    return pl.concat(lists.fuse_blocks(side_by_side.blocks(), side_by_side.qids, fusion, hits))


def fuse(*rankings: Ranking, fusion: FusionRecipe) -> dict[str, float]:
    fused = fused_run([run_of(ranking) for ranking in rankings], fusion)
    assert fused["rank"].to_list() == list(range(1, len(fused) + 1))
    return dict(fused.select("docid", "score").iter_rows())


def normalized(ranking: Ranking, name: str) -> dict[str, float]:
    block = next(Lists.of([run_of(ranking)]).blocks())
    values = lists.values(block, FusionRecipe("sum", (1.0,), "ignore", normalization=name))  # type: ignore[arg-type]
    return dict(values.select("docid", "value_0").iter_rows())


def approx(expected: Mapping[str, float]) -> Any:
    return pytest.approx(dict(expected), rel=1e-6, abs=1e-7)
