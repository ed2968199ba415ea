"""Index size against quality: the Pareto front, and the indexes behind a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from hybrid_cli.artifacts.lineage import indexes_of
from hybrid_cli.reporting.sections import pareto_front
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.search import search


def test_the_front_has_the_runs_without_a_smaller_run_of_equal_quality() -> None:
    sizes = {"bm25": 10, "codes": 2, "flat": 64, "worse": 12, "hybrid": 74, "twin": 2, "as-good-larger": 70}
    means = {"bm25": 0.5, "codes": 0.4, "flat": 0.6, "worse": 0.45, "hybrid": 0.7, "twin": 0.4, "as-good-larger": 0.6}
    assert pareto_front(sizes, means) == {"bm25", "codes", "twin", "flat", "hybrid"}


def test_a_single_run_is_the_front() -> None:
    assert pareto_front({"bm25": 10}, {"bm25": 0.0}) == {"bm25"}


def test_copies_of_an_index_count_once(tiny: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    index = encode(tiny, model=str(tiny_lambda), output=tmp_path / "index")
    copy = shutil.copytree(index, tmp_path / "copy")
    runs = [search(tiny, split="test", index=at, output=tmp_path / f"{at.name}.parquet") for at in (index, copy)]
    words = search(tiny, split="test", index=tiny_lambda.parent / "bm25", output=tmp_path / "words.parquet")
    fused = fuse([*runs, words], output=tmp_path / "fused.parquet", method="minmax")
    assert list(indexes_of(fused)) == [index, tiny_lambda.parent / "bm25"]
