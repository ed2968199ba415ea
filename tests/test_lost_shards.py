"""Dense indexes and collections with missing, foreign, damaged or other parts are refused by every command."""

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import raises, ran
from sparse_models import write_checkpoint
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts
from hybrid_cli.collections import collection, writer
from hybrid_cli.errors import DamageError, HybridError, InputError
from hybrid_cli.indexes import construction
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search
from hybrid_cli.stages.update import indexes, update
from hybrid_cli.storage import integrity

pytestmark = pytest.mark.usefixtures("one_thread")
SHARD = "vectors/part-00001.parquet"


@pytest.fixture(scope="module")
def whole(tiny: Path, tiny_lambda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encode(tiny, model=tiny_lambda, shard_size=2, output=tmp_path_factory.mktemp("whole") / "index")


@pytest.fixture(scope="module")
def other(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encode(tiny, model=tiny_bert, shard_size=2, output=tmp_path_factory.mktemp("other") / "index")


@pytest.fixture
def broken(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(integrity, "checked", set())
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
def test_other_shards_are_not_changed_or_rebuilt(broken: Path, tiny: Path, tmp_path: Path, damage: str) -> None:
    DAMAGE[damage](broken / SHARD)
    (tmp_path / "ids.txt").write_text("salt\n")
    code, name = ("foreign-file", "99999") if damage == "foreign" else ("damaged", "00001")
    calls: list[Callable[[], Any]] = [
        lambda: encode(broken, index_type="sq8", output=tmp_path / "sq8"),
        lambda: update(broken, remove=tmp_path / "ids.txt", output=tmp_path / "deleted"),
        lambda: update(broken, add=tiny, output=tmp_path / "appended"),
    ]
    for call in calls:
        with raises(code, path=f"part-{name}.parquet"):
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
    with raises("damaged", DamageError, path=SHARD):
        search(tiny, split="test", exact=True, index=[built, bm25], output=tmp_path / "exact.parquet")
    with raises("damaged", DamageError, path=SHARD):
        fuse(runs, missing="exact", index=[bm25, built], output=tmp_path / "fused.parquet")


def test_stored_queries_need_all_shards(whole: Path, tiny: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    queries = encode(tiny, split="test", model=tiny_lambda, shard_size=2, output=tmp_path / "queries")
    assert len(search(queries=queries, index=whole, output=tmp_path / "all.parquet").read_bytes())
    (queries / SHARD).unlink()
    with raises("damaged", DamageError, path=SHARD):
        search(queries=queries, index=whole, output=tmp_path / "run.parquet")


def test_a_lost_shard_of_weights_is_missed(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_checkpoint(tmp_path / "model", "splade")
    stage: Any = importlib.import_module("hybrid_cli.stages.encode.sparse")
    written = stage.encode_weights

    def write_and_lose(folder: Path, *values: Any) -> None:
        written(folder, *values)
        stage.weight_shard(folder, 1).unlink()

    monkeypatch.setattr(stage, "encode_weights", write_and_lose)
    with raises("removed-meanwhile", HybridError, path="part-00001.parquet"):
        encode(tiny, model=model, architecture="splade", shard_size=2, output=tmp_path / "index")


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every build of a dense index loses a shard before it reads the shards."""
    build = construction.build

    def lose_and_build(folder: Path, *values: Any) -> str:
        (folder / SHARD).unlink()
        return build(folder, *values)

    for place in (construction, indexes):
        monkeypatch.setattr(place, "build", lose_and_build)


def test_a_shard_that_vanishes_before_the_index_is_built_is_missed(
    whole: Path, other: Path, tiny: Path, tiny_lambda: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("losing")
    np.save(tmp_path / "vectors.npy", np.eye(12, 4, dtype=np.float32))
    (tmp_path / "ids.txt").write_text("salt\n")
    calls: dict[str, Callable[[Path], Any]] = {
        "encode": lambda output: encode(tiny, model=tiny_lambda, shard_size=2, output=output),
        "import": lambda output: encode(tiny, from_vectors=tmp_path / "vectors.npy", shard_size=2, output=output),
        "rebuild": lambda output: encode(whole, index_type="sq8", output=output),
        "truncate": lambda output: encode(whole, truncate_dim=4, output=output),
        "combine": lambda output: encode(whole, concat_with=other, shard_size=2, output=output),
        "append": lambda output: update(whole, add=tiny, output=output),
        "delete": lambda output: update(whole, remove=tmp_path / "ids.txt", output=output),
    }
    for name, call in calls.items():
        with raises("rows-lost", HybridError, path="vectors"):
            call(tmp_path / name)
        assert not (tmp_path / name).exists()


def test_an_encode_that_lost_a_shard_is_repeated(
    whole: Path, tiny: Path, tiny_lambda: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("losing")
    with raises("rows-lost", HybridError):
        encode(tiny, model=tiny_lambda, shard_size=2, output=tmp_path / "index")
    request.getfixturevalue("monkeypatch").undo()
    again = encode(tiny, model=tiny_lambda, shard_size=2, output=tmp_path / "index")
    assert artifacts.read_manifest(again).fingerprint == artifacts.read_manifest(whole).fingerprint


@pytest.fixture
def in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection whose corpus has three parts of four documents, as large ones have."""
    monkeypatch.setattr(writer, "BATCHES_PER_PART", 1)
    monkeypatch.setattr(writer, "BATCH_ROWS", 4)
    write_tiny_source(tmp_path)
    ran("prepare", "files", tmp_path / "docs.jsonl", "--output", tmp_path / "data")
    assert len(list((tmp_path / "data" / "corpus").iterdir())) == 3
    return tmp_path / "data"


PART = "corpus/part-00001.parquet"


def test_a_corpus_without_one_of_its_parts_is_refused(in_parts: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    index = index_bm25(in_parts, output=tmp_path / "bm25", threads=1)
    (in_parts / PART).rename(tmp_path / "part.parquet")
    calls: list[Callable[[], Any]] = [
        lambda: index_bm25(in_parts, output=tmp_path / "again", threads=1),
        lambda: index_bm25(in_parts / "corpus", output=tmp_path / "again", threads=1),
        lambda: encode(in_parts, model=tiny_lambda, output=tmp_path / "again"),
        lambda: update(index, add=in_parts, output=tmp_path / "again"),
        lambda: collection.docids(in_parts),
    ]
    for call in calls:
        with raises("damaged", DamageError, path="part-00001.parquet"):
            call()
    (tmp_path / "part.parquet").rename(in_parts / PART)
    shutil.copy(in_parts / PART, in_parts / "corpus" / "part-00003.parquet")
    with raises("foreign-file", DamageError, path="part-00003.parquet"):
        collection.docids(in_parts)


@pytest.mark.parametrize("shards", [None, 2])
def test_a_part_that_vanishes_while_it_is_indexed_is_missed(
    in_parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int | None
) -> None:
    """Files without a manifest, whose number nothing but the first count tells."""
    parts = Path(shutil.copytree(in_parts / "corpus", tmp_path / "files"))
    docids = collection.docids

    def count_and_lose(path: Path) -> Any:
        found = docids(path)
        (parts / "part-00002.parquet").unlink()
        return found

    monkeypatch.setattr(collection, "docids", count_and_lose)
    with pytest.raises(HybridError) as lost:
        index_bm25(parts, output=tmp_path / "bm25", threads=1, shards=shards)
    assert lost.value.code in ("input-replaced", "removed-meanwhile", "rows-lost")
    assert not (tmp_path / "bm25").exists()


def test_a_column_that_one_part_has_more_does_not_matter(in_parts: Path, tmp_path: Path) -> None:
    parts = Path(shutil.copytree(in_parts / "corpus", tmp_path / "files"))
    wider = [parts / "part-00001.parquet", parts / "part-00000.parquet"]  # polars takes the columns of the first part
    for part in wider:
        rewritten(part, lambda table: table.append_column("url", table["docid"]))
        assert collection.docids(parts).equals(collection.docids(in_parts))


@pytest.mark.parametrize(
    "change",
    [lambda rows: rows.drop_columns(["text"]), lambda rows: rows.set_column(2, "text", pa.array(range(len(rows))))],
)
def test_another_schema_is_refused(change: Callable[[pa.Table], pa.Table], in_parts: Path, tmp_path: Path) -> None:
    parts = Path(shutil.copytree(in_parts / "corpus", tmp_path / "files"))
    rewritten(parts / "part-00001.parquet", change)
    with pytest.raises(InputError) as refused:
        index_bm25(parts, output=tmp_path / "bm25", threads=1)
    assert refused.value.code
    assert str(refused.value.fields["path"]).endswith("part-00001.parquet")
    assert not (tmp_path / "bm25").exists()
