"""FAISS on GPUs, with the FAISS of this machine in the place of the GPUs."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import faiss
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from command import Notices, Refusal, raises, refusal, refused
from small_artifacts import vector_hits

from hybrid_cli.commands import VectorIndex
from hybrid_cli.indexes.construction import build
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.faiss import pick_gpus
from hybrid_cli.indexes.shards import shard_path, shards, write_shard

Calls = list[tuple[list[int], bool]]
DIM, COUNT = 8, 700


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    values = np.random.default_rng(0).standard_normal((COUNT, DIM), np.float32)
    for number, rows in enumerate(np.array_split(np.arange(COUNT), 2)):
        write_shard(shard_path(folder, number), pa.array([f"d{row}" for row in rows]), values[rows])
    return folder


class Gpus(ModuleType):
    """The module `faiss` as on a machine with GPUs; copies to a GPU are copies in memory."""

    def __init__(self, count: int, room: int = COUNT):
        super().__init__("faiss")
        self.count, self.room, self.calls = count, room, Calls()
        self.StandardGpuResources = self.GpuMultipleClonerOptions = SimpleNamespace

    def __getattr__(self, name: str) -> Any:
        return getattr(faiss, name)

    def get_num_gpus(self) -> int:
        return self.count

    def index_cpu_to_gpus_list(self, index: Any, options: Any, gpus: list[int]) -> Any:
        index = faiss.downcast_index(index)
        assert isinstance(index, faiss.IndexFlat)
        self.calls.append((gpus, options.shard))
        if index.ntotal > self.room:
            raise RuntimeError("Error in StandardGpuResources.cpp:530: Error: CUDA malloc error out of memory")
        return faiss.clone_index(index)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    def report(count: int, room: int = COUNT) -> Gpus:
        machine = Gpus(count, room)
        monkeypatch.setitem(sys.modules, "faiss", machine)
        return machine

    return report


def built(vectors: Path, folder: Path, **options: Any) -> Path:
    (folder / "vectors").mkdir(parents=True)
    for path in shards(vectors):
        (folder / "vectors" / path.name).hardlink_to(path)
    build(folder, VectorIndex(**options))
    return folder


def opened(folder: Path, factory: str, gpus: tuple[int, ...] = ()) -> DenseIndex:
    docids = pl.Series("docid", [f"d{row}" for row in range(COUNT)])
    return DenseIndex(folder, IndexInfo(COUNT, DIM, factory=factory), docids, gpus=gpus)


@pytest.mark.parametrize("options", [{"index_type": "IVF4,Flat"}, {"index_type": "PCA4,IVF5,Flat"}])
def test_inverted_lists_are_made_on_all_gpus(vectors: Path, tmp_path: Path, gpus: Any, options: dict[str, Any]) -> None:
    on_cpu = built(vectors, tmp_path / "cpu", **options)
    machine = gpus(2)
    found = built(vectors, tmp_path / "gpu", **options)
    assert machine.calls == [([0, 1], False)] * 2  # centroids in training, then in adding
    assert (found / "index.faiss").read_bytes() == (on_cpu / "index.faiss").read_bytes()
    machine.calls.clear()
    built(vectors, tmp_path / "without", **options, faiss_device="cpu")
    assert not machine.calls


def test_many_queries_search_a_flat_index_in_shards(vectors: Path, tmp_path: Path, gpus: Any) -> None:
    folder = built(vectors, tmp_path / "flat", index_type="flat")
    queries = np.random.default_rng(1).standard_normal((300, DIM), np.float32)
    qids = [f"q{number}" for number in range(300)]
    expected = vector_hits(opened(folder, "Flat"), queries, qids, 5)
    machine = gpus(3)
    index = opened(folder, "Flat", gpus=(0, 2))
    vector_hits(index, queries[:10], qids[:10], 5)
    assert not machine.calls, "a copy of the index takes longer than a few queries"
    assert vector_hits(index, queries, qids, 5).equals(expected)
    assert vector_hits(index, queries, qids, 5).equals(expected)
    assert machine.calls == [([0, 2], True)]


def test_an_index_that_does_not_fit_uses_the_cpu(vectors: Path, tmp_path: Path, gpus: Any, notices: Notices) -> None:
    folder = built(vectors, tmp_path / "flat", index_type="flat")
    queries = np.random.default_rng(1).standard_normal((300, DIM), np.float32)
    qids = [f"q{number}" for number in range(300)]
    expected = vector_hits(opened(folder, "Flat"), queries, qids, 5)
    machine = gpus(1, room=COUNT - 1)
    assert vector_hits(opened(folder, "Flat", gpus=(0,)), queries, qids, 5).equals(expected)
    assert len(machine.calls) == 1
    assert notices.says("gpu-unusable", option="faiss_device")


@pytest.mark.parametrize(
    ("device", "count", "found"),
    [("auto", 0, []), ("auto", 2, [0, 1]), ("cpu", 2, []), ("gpu", 2, [0, 1]), ("1", 2, [1]), ("1,0", 2, [0, 1])],
)
def test_gpus_are_named_by_number(gpus: Any, device: str, count: int, found: list[int]) -> None:
    gpus(count)
    assert pick_gpus(device) == found


@pytest.mark.parametrize(
    ("device", "message"),
    [("2", refusal("no-gpu", option="faiss_device")), ("cuda", refusal("unknown-choice", option="faiss_device"))],
)
def test_gpus_that_do_not_exist_are_refused(gpus: Any, device: str, message: str | Refusal) -> None:
    gpus(2)
    with raises(message):
        pick_gpus(device)


def test_a_build_without_gpus_refuses_them_before_work(here: Path) -> None:
    for words in (
        ("encode", "dense", "--index-type", "IVF2,Flat", "--output", "out"),
        ("search", "collection", "--split", "test", "--index", "dense", "--output", "out.parquet"),
    ):
        refused(*words, "--faiss-device", "gpu", problem="no-gpu", option="faiss_device")
