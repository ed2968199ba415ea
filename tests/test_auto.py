"""The smallest index that finds enough, or a line that says that there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_vectors import random_vectors

from hybrid_cli import indexes
from hybrid_cli.cli.common import byte_count
from hybrid_cli.config import IndexChoice, VectorIndex
from hybrid_cli.errors import InputError
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.inspect import inspect

COUNT, DIM = 600, 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    matrix = random_vectors(COUNT, DIM)
    for number, rows in enumerate((slice(0, 400), slice(400, 600))):
        ids = pa.array([f"d{row}" for row in range(COUNT)[rows]])
        indexes.write_shard(indexes.shard_path(tmp_path, number), ids, matrix[rows])
    return tmp_path


def chosen(folder: Path, **how: float) -> tuple[str, list[str]]:
    choice = IndexChoice(**{"cutoff": 10, **how})  # type: ignore[arg-type]
    factory, tried = indexes.choose(folder, VectorIndex("auto", pq_bytes=8, choice=choice))
    assert all(each.recall < choice.min_recall for each in tried[:-1] if each.documents == COUNT)
    assert tried[-1].recall >= choice.min_recall
    return factory, [f"{each.index_type} {each.documents}" for each in tried]


@pytest.mark.parametrize(
    ("least", "factory", "tried"),
    [
        (0.0, "Binary", ["binary 600"]),
        (0.97, "SQ8", ["binary 600", "pq 600", "sq8 600"]),
        (1.0, "Flat", ["binary 600", "pq 600", "sq8 600", "fp16 600", "flat 600"]),
    ],
)
def test_the_first_that_finds_enough_is_taken(folder: Path, least: float, factory: str, tried: list[str]):
    assert chosen(folder, min_recall=least) == (factory, tried)
    docids, matrix = indexes.read_ids(folder), random_vectors(COUNT, DIM)
    index = indexes.recall.opened(folder, docids, factory, DIM)
    assert index.search(matrix[:1], ["q"], 1)["docid"].len() == 1  # what stands there is the one that was chosen


def test_a_large_collection_is_tried_on_a_sample_and_verified_whole(folder: Path):
    factory, tried = chosen(folder, min_recall=0.97, sample=300)
    assert factory == "SQ8"
    assert tried == ["binary 300", "pq 300", "sq8 300", "sq8 600"]


def test_memory_that_is_too_small_is_said_in_one_line(folder: Path):
    words = r"no index with recall@10 >= 0.97 fits in --ram 9.0 kB: sq8 needs 9.6 kB; give more, or lower --min-recall"
    with pytest.raises(InputError, match=words):
        chosen(folder, min_recall=0.97, ram=9_000)


def test_encode_chooses_and_keeps_what_it_measured(tiny: Path, tiny_bert: Path, tmp_path: Path, capsys):
    index = VectorIndex("auto", choice=IndexChoice(min_recall=0.999))
    described = inspect(encode(tiny, output=tmp_path / "index", model=str(tiny_bert), index=index))
    shown = capsys.readouterr().out
    assert "bytes/document" in shown
    assert described["counts"]["recall@100"] >= 0.999
    assert described["options"]["min_recall"] == 0.999
    again = encode(tmp_path / "index", output=tmp_path / "again", index=index)
    assert np.array_equal((tmp_path / "index" / "index.faiss").read_bytes(), (again / "index.faiss").read_bytes())


@pytest.mark.parametrize(
    ("text", "count"), [("500M", 500_000_000), ("2G", 2 * 10**9), ("1.5GiB", 1_610_612_736), ("12k", 12_000), ("7", 7)]
)
def test_memory_is_written_as_people_do(text: str, count: int):
    assert byte_count("--ram", text) == count


@pytest.mark.parametrize("text", ["much", "2X", "1.2.3G", "-1G", ""])
def test_what_is_no_memory_is_refused(text: str):
    with pytest.raises(InputError, match="write bytes as 500M"):
        byte_count("--ram", text)
