"""Folds of cross-validation: properties of a partition, and the formats of predefined folds."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from command import Refusal, raises, refusal
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.collections import folds

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


def test_more_folds_than_queries_are_refused() -> None:
    with raises("out-of-range", option="folds", value=4, maximum=3):
        folds.random_folds({"a", "b", "c"}, 4, 0)


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


def test_two_folds_have_no_training_split() -> None:
    assert folds.splits([["a"], ["b"], ["c"]], with_dev=False)["train-1"] == {"b", "c"}  # RoC: 200 and 50 of 250
    assert not any(name.startswith("dev-") for name in folds.splits([["a"], ["b"], ["c"]], with_dev=False))
    assert folds.splits([["a"], ["b"]]) == {
        "all": {"a", "b"}, "test-1": {"a"}, "dev-1": {"b"}, "test-2": {"b"}, "dev-2": {"a"}
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- predefined folds


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
