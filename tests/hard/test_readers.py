"""A reader during a replacement: reads all of the old version, all of the new one, or stops with one line."""

import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from cases import OTHER, bytes_of, clear, exchange, write_bert, write_inputs
from command import Done, hybrid, raises, ran
from kill_stages import STAGES, inputs_of
from small_artifacts import vector_hits, write_corpus

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Output
from hybrid_cli.artifacts.inputs import Sources
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.errors import HybridError
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.storage import Kind, disk, integrity

TEXTS = ("the tides of the sea", "salt in the sea", "oxygen in the blood", "a set without members")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """Return a folder with two versions of a lexical and of a dense index, of as many documents in another order."""
    folder = tmp_path_factory.mktemp("versions")
    for name, texts in (("old", TEXTS), ("new", TEXTS[::-1])):
        corpus = write_corpus(folder / f"{name}.parquet", texts)
        index_bm25(corpus, output=folder / f"{name}-bm25", threads=1)
        encode(corpus, output=folder / f"{name}-dense", model=str(tiny_bert), threads=1, dtype="fp32")
    (folder / "queries.tsv").write_text("q\tsalt of the sea\n")
    return folder


def search(folder: Path, index: Path) -> tuple[Done, list[tuple[Any, ...]] | None]:
    (folder / "run.parquet").unlink(missing_ok=True)
    done = hybrid("search", "--queries", folder / "queries.tsv", "--index", index, "--output", folder / "run.parquet")
    hits = pl.read_parquet(folder / "run.parquet").rows() if done.code == 0 else None
    return done, hits


@pytest.mark.parametrize("kind", ["bm25", "dense"])
@pytest.mark.parametrize("moment", range(1, 6))
def test_search_mixes_no_versions(
    versions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, moment: int
) -> None:
    shutil.copy(versions / "queries.tsv", tmp_path)
    whole = [search(tmp_path, versions / f"{name}-{kind}")[1] for name in ("old", "new")]
    assert whole[0] != whole[1]
    index = shutil.copytree(versions / f"old-{kind}", tmp_path / "index")
    shutil.copytree(versions / f"new-{kind}", tmp_path / "replacement")
    monkeypatch.setattr(integrity, "checked", set())
    steps = 0

    def replacing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == moment:
                assert disk.device.exchange(tmp_path / "replacement", index)
            return function(*given, **named)

        return call

    for home, name in ((storage, "check_parts"), (storage, "validate_parquet"), (artifacts, "read_manifest")):
        monkeypatch.setattr(home, name, replacing(getattr(home, name)))  # between the reads of an index
    done, hits = search(tmp_path, index)
    if done.code == 0:
        assert hits in whole
    else:
        lines = [line for line in done.err.splitlines() if line.startswith("hybrid: ")]
        assert (done.code, done.problem, len(lines)) == (1, "input-replaced", 1), done


def test_an_index_that_is_replaced_between_open_and_search(versions: Path, tmp_path: Path) -> None:

    index = shutil.copytree(versions / "old-dense", tmp_path / "index")
    shutil.copytree(versions / "new-dense", tmp_path / "replacement")
    opened = open_dense(index)
    assert disk.device.exchange(tmp_path / "replacement", index)
    assert artifacts.read_manifest(index, Kind.DENSE_INDEX).counts == opened.record.counts  # type: ignore[union-attr]
    with raises("input-replaced", HybridError, path="index"):
        vector_hits(opened, np.zeros((1, opened.info.dim), np.float32), ["q"], 1)


REPLACED = {  # kind of the input -> stage, input
    "run": ("fuse", "two.parquet"),
    "run, blocks": ("export msmarco", "one.parquet"),
    "collection": ("split", "tiny"),
    "collection of a run": ("export dpr", "tiny"),
    "judgments": ("fuse --tune", "tiny"),
    "weights": ("fuse --weights", "weights.json"),
    "lexical index": ("search", "bm25"),
    "sharded index": ("search (shards)", "shards"),
    "learned sparse index": ("search (sparse)", "splade-index"),
    "reranker": ("rerank", "reranker"),
    "encoder": ("encode", "bert"),
    "ensemble": ("encode (ensemble)", "ensemble"),
    "composite encoder": ("encode (composite)", "pair"),
    "static encoder": ("encode (static)", "static"),
    "query vectors": ("search (vectors)", "vectors"),
    "composite index": ("search (composite)", "pair-index"),
    "dense index": ("update --remove", "dense"),
    "ids": ("update --remove", "gone.txt"),
    "training examples": ("train-dense", "train.parquet"),
    "labels": ("train-lambda", "labels"),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    for version, place in enumerate([folder, folder / OTHER]):
        place.mkdir(exist_ok=True)
        with chdir(place):
            write_bert(Path("bert"), version)
            write_inputs(place, inputs_of(stage for stage, _ in REPLACED.values()), version, succeeds)
    return folder


def succeeds(words: list[str]) -> None:
    ran(*words)


@pytest.fixture(scope="module")
def results() -> dict[str, list[dict[str, bytes] | None]]:
    """Kind -> the outputs from both versions of the input, filled by the tests."""
    return {}


MOMENTS = ("before it is described", "after it is described")
CASES = [  # each moment with every second input; `make hard` has both with all
    pytest.param(kind, moment, marks=pytest.mark.exhaustive if (number + late) % 2 else ())
    for number, kind in enumerate(REPLACED)
    for late, moment in enumerate(MOMENTS)
]


@pytest.mark.parametrize(("kind", "moment"), CASES)
def test_a_stage_uses_one_version_of_an_input_or_stops(
    worlds: Path,
    results: dict[str, list[dict[str, bytes] | None]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    moment: str,
) -> None:
    stage, name = REPLACED[kind]
    words = STAGES[stage][0].split()
    output = Path(words[-1])
    monkeypatch.chdir(worlds)
    monkeypatch.setattr(integrity, "checked", set())

    def result(given: list[str]) -> tuple[Any, dict[str, bytes] | None]:
        clear(output)
        done = hybrid(*given)
        return done, bytes_of(output)

    if kind not in results:
        results[kind] = [result(words)[1]]
        exchange(name)
        results[kind].append(result(words)[1])
        exchange(name)
    place = (Sources, "describe") if moment.startswith("before") else (Output, "lock")
    function = getattr(*place)
    swapped: list[str] = []

    def replacing(*given: Any) -> Any:
        if not swapped:
            swapped.append(name)
            exchange(name)
        return function(*given)

    monkeypatch.setattr(place[0], place[1], replacing)
    done, found = result(words)
    exchange(name)
    clear(output)
    assert swapped
    if done.code == 0:
        assert found in results[kind]
    else:
        assert isinstance(done.error, HybridError), done.err
        assert found is None
