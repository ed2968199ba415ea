"""Dense indexes with missing, foreign, damaged or other shards are refused by every command that reads them."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sparse_models import write_checkpoint

from hybrid_cli import artifacts
from hybrid_cli.errors import DamageError, HybridError
from hybrid_cli.stages.append import append
from hybrid_cli.stages.delete import delete
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search

pytestmark = pytest.mark.usefixtures("one_thread")
SHARD = "vectors/part-00001.parquet"


@pytest.fixture(scope="module")
def whole(tiny: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encode(tiny, model=tiny_lambda, shard_size=2, output=tmp_path_factory.mktemp("whole") / "index")


@pytest.fixture
def broken(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the index, to be damaged; its files are checked again, as in a new process."""
    monkeypatch.setattr(artifacts.integrity, "checked", set())
    return Path(shutil.copytree(whole, tmp_path / "broken"))


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def shorter(table: pa.Table) -> pa.Table:
    values = pa.array([0.5] * (3 * len(table)), pa.float32())
    return table.set_column(1, "vector", pa.FixedSizeListArray.from_arrays(values, 3))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "foreign": lambda path: shutil.copyfile(path, path.with_name("part-99999.parquet")),
    "bit": lambda path: path.write_bytes(path.read_bytes()[:200] + b"?" + path.read_bytes()[201:]),
    "other length": lambda path: rewritten(path, shorter),
    "other column": lambda path: rewritten(path, lambda table: table.rename_columns(["id", "values"])),
    "other type": lambda path: rewritten(path, lambda table: table.set_column(1, "vector", table["id"])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_index_with_other_shards_is_not_changed_or_rebuilt(
    broken: Path, tiny: Path, tmp_path: Path, damage: str
) -> None:
    DAMAGE[damage](broken / SHARD)
    (tmp_path / "ids.txt").write_text("salt\n")
    file = "part-99999" if damage == "foreign" else "part-00001"
    calls: list[Callable[[], Any]] = [
        lambda: encode(broken, index_type="sq8", output=tmp_path / "sq8"),
        lambda: delete(broken, ids=tmp_path / "ids.txt", output=tmp_path / "deleted"),
        lambda: append(broken, tiny, replace=True, output=tmp_path / "appended"),
    ]
    for call in calls:
        with pytest.raises(DamageError, match=file):
            call()
    assert not list(tmp_path.glob("sq8")) + list(tmp_path.glob("deleted")) + list(tmp_path.glob("appended"))


def test_exact_scores_need_all_shards(broken: Path, whole: Path, tiny: Path, tmp_path: Path) -> None:
    bm25 = index_bm25(tiny, output=tmp_path / "bm25", threads=1)
    built = encode(broken, index_type="sq8", output=tmp_path / "sq8")
    runs = [
        search(tiny, split="test", index=each, hits=2, output=tmp_path / f"{each.name}.parquet")
        for each in (bm25, built)
    ]
    (built / SHARD).unlink()
    with pytest.raises(DamageError, match="part-00001"):
        search(tiny, split="test", exact=True, index=[built, bm25], output=tmp_path / "exact.parquet")
    with pytest.raises(DamageError, match="part-00001"):
        fuse(runs, missing="exact", index=[bm25, built], output=tmp_path / "fused.parquet")


def test_stored_queries_need_all_shards(whole: Path, tiny: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    queries = encode(tiny, split="test", model=tiny_lambda, shard_size=2, output=tmp_path / "queries")
    assert len(search(queries=queries, index=whole, output=tmp_path / "all.parquet").read_bytes())
    (queries / SHARD).unlink()
    with pytest.raises(DamageError, match="part-00001"):
        search(queries=queries, index=whole, output=tmp_path / "run.parquet")


def test_a_shard_of_weights_that_vanishes_is_missed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_checkpoint(tmp_path / "model", "splade")
    stage: Any = importlib.import_module("hybrid_cli.stages.encode")
    written = stage.encode_weights

    def write_and_lose(folder: Path, *values: Any) -> None:
        written(folder, *values)
        stage.weight_shard(folder, 1).unlink()

    monkeypatch.setattr(stage, "encode_weights", write_and_lose)
    with pytest.raises(HybridError, match=r"part-00001\.parquet: was removed while the command ran; repeat"):
        encode(tiny, model=model, architecture="splade", shard_size=2, output=tmp_path / "index")
