"""split: folds that are a partition, and a collection of them that every command reads."""

import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from command import Notices, Refusal, raises, refusal
from hypothesis import given
from hypothesis import strategies as st
from tiny_collection import counts_of

from hybrid_cli import artifacts, runs, storage
from hybrid_cli.collections import collection, folds
from hybrid_cli.stages.search import search
from hybrid_cli.stages.split import split
from hybrid_cli.storage import Kind

JUDGED = ["001", "002", "003", "004", "005"]  # 006 has no judgments


def qids(folder: Path, name: str) -> list[str]:
    queries = collection.read_queries(collection.queries_path(folder, name))["qid"]
    judged = collection.read_qrels(collection.qrels_path(folder, name))["qid"]
    assert set(queries) == set(judged)
    return queries.to_list()


def parts_of(folder: Path) -> list[list[str]]:
    names = [name for name in collection.splits(folder) if name.startswith("test-")]
    return [qids(folder, f"test-{number}") for number in range(1, len(names) + 1)]


def test_folds_contain_all_judged_queries(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    folder = split(tiny, split=["test"], folds=3, output=tmp_path / "folds")
    assert sorted(qid for part in parts_of(folder) for qid in part) == qids(folder, "all") == JUDGED
    qrels = collection.read_qrels(tiny / "qrels.test.parquet")
    parts = [collection.read_qrels(folder / f"qrels.test-{number}.parquet") for number in (1, 2, 3)]
    assert pl.concat(parts).sort(qrels.columns).equals(qrels.sort(qrels.columns))
    assert collection.read_qrels(folder / "qrels.all.parquet").equals(qrels)
    texts = collection.read_queries(tiny / "queries.test.parquet")
    assert collection.read_queries(folder / "queries.all.parquet").equals(texts.head(5))
    assert notices.says("written", path=folder, folds=[2, 2, 1], unjudged=1)


def test_the_manifest_records_inputs_and_options(tiny: Path, tmp_path: Path) -> None:
    folder = split(tiny, split=["test"], folds=5, seed=7, output=tmp_path / "folds")
    manifest = artifacts.read_manifest(folder, Kind.COLLECTION)
    assert (manifest.stage, manifest.options) == ("split", {"dev": True, "folds": 5, "seed": 7})
    assert set(manifest.inputs) == {"corpus", "queries test", "qrels test"}
    counts = counts_of(folder)
    assert counts["documents"] == 12
    assert counts["queries"] == {"all": 5} | {
        f"{name}-{number}": size for number in range(1, 6) for name, size in (("train", 3), ("dev", 1), ("test", 1))
    }
    assert counts["judgments"]["all"] == 8


def test_the_corpus_is_a_hard_link(tiny: Path, tmp_path: Path) -> None:
    folder = split(tiny, split=["test"], output=tmp_path / "folds")
    assert os.path.samefile(tiny / "corpus.parquet", folder / "corpus.parquet")
    source, part = Path(shutil.copytree(tiny, tmp_path / "collection")), Path("corpus/part-00000.parquet")
    (source / "corpus").mkdir()
    (source / "corpus.parquet").rename(source / part)
    assert os.path.samefile(source / part, split(source, split=["test"], output=tmp_path / "parts") / part)
    assert storage.fingerprint(folder / "corpus.parquet") == storage.fingerprint(tiny / "corpus.parquet")


def test_one_index_serves_every_fold(tiny: Path, tiny_bm25: Path, tmp_path: Path) -> None:
    folder = split(tiny, split=["test"], folds=2, output=tmp_path / "folds")
    for number, part in enumerate(parts_of(folder), 1):
        run = search(folder, split=f"test-{number}", index=tiny_bm25, output=tmp_path / f"{number}.parquet")
        assert set(runs.read_run(run)["qid"]) == set(part) - {"005"}  # 005 has stop words only


def test_two_folds_with_a_dev_split_leave_none_for_training(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    cases: list[tuple[dict[str, Any], bool]] = [({}, True), ({"dev": False}, False), ({"folds": 3}, False)]
    for options, noted in cases:
        folder = split(tiny, **{"split": ["test"], "folds": 2, "output": tmp_path / f"{options}", **options})
        assert (folder / "queries.train-1.parquet").is_file() is not noted
        assert notices.says("written", path=folder, trains=not noted)


def test_several_splits_are_divided_together(tiny: Path, tmp_path: Path) -> None:
    folder = split(tiny, split=["all"], folds=3, output=tmp_path / "all")
    assert qids(folder, "all") == [*JUDGED, "t1", "t2", "t3", "t4", "t5", "t6"]
    named = split(tiny, split=["test", "train", "test"], folds=3, output=tmp_path / "named")
    again = split(folder, split=["all"], folds=3, output=tmp_path / "again")  # a split of this name
    assert parts_of(folder) == parts_of(named) == parts_of(again)


def test_predefined_folds_are_kept(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "folds.json"
    file.write_text(json.dumps([["003", "001"], ["006", "005", "002"], ["004"]]))
    folder = split(tiny, split=["test"], folds_file=file, folds=3, output=tmp_path / "folds")
    assert parts_of(folder) == [["001", "003"], ["002", "005"], ["004"]]
    assert qids(folder, "train-1") == qids(folder, "test-3") == qids(folder, "dev-2") == ["004"]
    manifest = artifacts.read_manifest(folder, Kind.COLLECTION)
    assert manifest.options == {}
    assert manifest.input_path("folds") == file


def test_a_query_in_two_splits_is_refused(tiny: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(tiny, tmp_path / "collection"))
    pl.read_parquet(tiny / "queries.test.parquet").head(1).write_parquet(source / "queries.train.parquet")
    with raises("duplicate-query", option="split", id="001"):
        split(source, split=["all"], output=tmp_path / "folds")


ids = st.sets(st.text(min_size=1), min_size=2, max_size=30)


@given(ids, st.data(), st.integers())
def test_random_folds_are_a_partition_of_equal_sizes(qids: set[str], data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(2, len(qids)))
    parts = folds.random_folds(qids, count, seed)
    assert sorted(qid for part in parts for qid in part) == sorted(qids)
    assert {len(part) for part in parts} <= {len(qids) // count, -(-len(qids) // count)}
    assert len(parts) == count


@given(st.lists(st.text(min_size=1), min_size=2, unique=True), st.randoms(), st.integers(0, 3))
def test_folds_depend_on_the_seed_and_not_on_the_order(qids: list[str], random: Random, seed: int) -> None:
    shuffled = random.sample(qids, len(qids))
    first, second = (folds.random_folds(dict.fromkeys(each).keys(), 2, seed) for each in (qids, shuffled))
    assert first == second
    assert len(qids) < 12 or len({str(folds.random_folds(set(qids), 2, other)) for other in range(9)}) > 1


@given(st.integers(2, 7), st.integers(1, 4))
def test_each_fold_divides_all_queries_into_test_dev_and_train(count: int, size: int) -> None:
    parts = [[f"{part}/{number}" for number in range(size)] for part in range(count)]
    splits = folds.splits(parts)
    whole = {qid for part in parts for qid in part}
    assert splits.pop("all") == whole
    assert len(splits) == (3 if count > 2 else 2) * count
    for fold in range(1, count + 1):
        test, dev, train = (splits.get(f"{name}-{fold}", set()) for name in ("test", "dev", "train"))
        assert test == set(parts[fold - 1])
        assert dev == set(parts[fold % count])
        assert len(test) + len(dev) + len(train) == len(whole)
        assert test | dev | train == whole
        without = folds.splits(parts, with_dev=False)
        assert (without[f"train-{fold}"], without.get(f"dev-{fold}")) == (whole - test, None)


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("folds.json", [["302", "301"], ["303"]], [["302", "301"], ["303"]]),
        ("folds.json", "[[301, 007e], [1e5]]".replace("007e", "7"), [["301", "7"], ["1e5"]]),  # with the same spelling
        ("folds.txt", "301 2\n302 1\n303 10\n304 2\n", [["302"], ["301", "304"], ["303"]]),  # numeric order
        ("folds.txt", "301 b\n\n302  a\n", [["302"], ["301"]]),
        ("folds.tsv", "moon landing\t1\nmoon\t0\n", [["moon"], ["moon landing"]]),
    ],
)
def test_predefined_folds_are_read_in_order(tmp_path: Path, name: str, content: object, parts: list[list[str]]) -> None:
    assert folds.read(write(tmp_path, name, content)) == parts


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", "[[", "not-json"),
        ("a.json", [["1", "2"]], "too-few-folds"),
        ("a.txt", "", "too-few-folds"),
        ("a.txt", "1 1\n2\n", refusal("other-width", path="a.txt", line=2, found=1, expected=2)),
        ("a.txt", "1 0 1\n", refusal("other-width", path="a.txt", line=1, found=3)),
    ],
)
def test_another_format_is_refused(tmp_path: Path, name: str, content: object, problem: str | Refusal) -> None:
    with raises(problem):
        folds.read(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([["1", "2"], ["3", "1"]], refusal("duplicate-id", id="1", folds=(1, 2))),
        ([["1", "8"], ["2", "3"]], refusal("unknown-id", id="8", count=1)),
        ([["1"], ["3"]], refusal("missing-id", id="2", count=1)),
        ([["1", "2", "3"], ["672"]], refusal("empty-fold", fold=2)),
    ],
)
def test_folds_of_other_queries_are_refused(tmp_path: Path, parts: list[list[str]], problem: Refusal) -> None:
    with raises(problem, path="a.json"):
        folds.predefined_folds(write(tmp_path, "a.json", parts), {"1", "2", "3"}, {"672"})
