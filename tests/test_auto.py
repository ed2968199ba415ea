"""Index type `auto`: the smallest index with enough recall, or one line if there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command import raises
from test_vectors import random_vectors

from hybrid_cli.commands import VectorIndex
from hybrid_cli.indexes.auto import choose, open_unfinished
from hybrid_cli.indexes.shards import read_ids, shard_path, write_shard
from hybrid_cli.settings.conversion import byte_count
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.inspect import inspect

COUNT, DIM = 600, 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, COUNT, DIM)


def written(folder: Path, count: int, dim: int) -> Path:
    matrix = random_vectors(count, dim)
    for number, rows in enumerate((slice(0, 400), slice(400, count))):
        ids = pa.array([f"d{row}" for row in range(count)[rows]])
        write_shard(shard_path(folder, number), ids, matrix[rows])
    return folder


def chosen(folder: Path, min_recall: float, memory: int | None = None, sample: int = COUNT) -> tuple[str, list[str]]:
    recipe = VectorIndex(index_type="auto", min_recall=min_recall, memory=memory)
    tried = choose(folder, recipe, cutoff=10, sample=sample)
    assert all(each.recall < min_recall for each in tried[:-1] if each.documents == COUNT)
    assert tried[-1].recall >= min_recall
    return tried[-1].factory, [f"{each.index_type} {each.documents}" for each in tried]


@pytest.mark.parametrize(
    ("least", "factory", "tried"),
    [
        (0.0, "Binary", ["binary 600"]),
        (0.97, "SQ8", ["binary 600", "sq8 600"]),
        (1.0, "Flat", ["binary 600", "sq8 600", "pq 600", "fp16 600", "flat 600"]),
    ],
)
def test_the_first_candidate_with_enough_recall_is_kept(
    folder: Path, least: float, factory: str, tried: list[str]
) -> None:
    assert chosen(folder, min_recall=least) == (factory, tried)
    docids, matrix = read_ids(folder), random_vectors(COUNT, DIM)
    index = open_unfinished(folder, docids, factory)
    assert len(index.hits(matrix[:1], 1).rows) == 1  # the index in the folder is the chosen one


@pytest.mark.parametrize(
    ("count", "dim", "order"),
    [(500, 384, ["binary", "sq8", "fp16", "pq", "flat"]), (2_000, 16, ["binary", "pq", "sq8", "fp16", "flat"])],
)
def test_candidates_are_built_in_the_order_of_their_files_with_code_books(
    tmp_path: Path, count: int, dim: int, order: list[str]
) -> None:
    tried = choose(written(tmp_path, count, dim), VectorIndex(index_type="auto", min_recall=1.0), cutoff=10)
    sizes = [each.size for each in tried]
    assert [each.index_type for each in tried] == order[: len(tried)]
    assert len(tried) > order.index("pq")
    assert sizes == sorted(sizes)


def test_candidates_for_a_large_collection_are_tried_on_a_sample_first(folder: Path) -> None:
    factory, tried = chosen(folder, min_recall=0.97, sample=300)
    assert factory == "SQ8"
    assert tried == ["binary 300", "sq8 300", "sq8 600"]


def test_no_index_is_larger_than_the_memory(folder: Path) -> None:
    assert chosen(folder, min_recall=0.97, memory=16_000)[0] == "SQ8"
    with raises("no-index-fits", option="memory", value=9_000):
        chosen(folder, min_recall=0.97, memory=9_000)


def test_encode_chooses_and_stores_the_measured_recall(
    tiny: Path, tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encode(tiny, output=tmp_path / "index", model=tiny_bert, index_type="auto", min_recall=0.999)
    described = inspect(tmp_path / "index")
    shown = capsys.readouterr().out
    assert "bytes/document" in shown
    assert described["counts"]["recall@100"] >= 0.999
    assert described["options"]["min_recall"] == 0.999
    again = encode(tmp_path / "index", output=tmp_path / "again", index_type="auto", min_recall=0.999)
    assert np.array_equal((tmp_path / "index" / "index.faiss").read_bytes(), (again / "index.faiss").read_bytes())


@pytest.mark.parametrize(
    ("text", "count"), [("500M", 500_000_000), ("2G", 2 * 10**9), ("1.5GiB", 1_610_612_736), ("12k", 12_000), ("7", 7)]
)
def test_memory_has_decimal_and_binary_units(text: str, count: int) -> None:
    assert byte_count(text) == VectorIndex(index_type="auto", memory=text).memory == count  # type: ignore[arg-type]
