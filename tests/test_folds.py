"""Cross-validation's parts and splits: laws of a partition, and the forms in which others give theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.collections import folds
from hybrid_cli.errors import InputError

ids = st.sets(st.text(min_size=1), min_size=2, max_size=30)


@given(ids, st.data(), st.integers())
def test_seeded_parts_are_a_partition_of_equal_sizes(qids, data, seed):
    count = data.draw(st.integers(2, len(qids)))
    parts = folds.seeded(qids, count, seed)
    assert sorted(qid for part in parts for qid in part) == sorted(qids)
    assert {len(part) for part in parts} <= {len(qids) // count, -(-len(qids) // count)}
    assert len(parts) == count


@given(st.lists(st.text(min_size=1), min_size=2, unique=True), st.randoms(), st.integers(0, 3))
def test_the_same_seed_gives_the_same_parts_in_whatever_order(qids, random, seed):
    shuffled = random.sample(qids, len(qids))
    assert folds.seeded(dict.fromkeys(qids).keys(), 2, seed) == folds.seeded(dict.fromkeys(shuffled).keys(), 2, seed)


def test_another_seed_gives_other_parts():
    qids = {str(number) for number in range(20)}
    assert len({str(folds.seeded(qids, 5, seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize(("count", "words"), [(1, "at least two"), (0, "at least two"), (4, "only 3 judged queries")])
def test_a_number_of_folds_that_cannot_be_is_refused(count, words):
    with pytest.raises(InputError, match=words):
        folds.seeded({"a", "b", "c"}, count, 0)


@given(st.integers(2, 7), st.integers(1, 4))
def test_each_fold_parts_all_queries_into_test_dev_and_train(count, size):
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


def test_two_folds_leave_no_training_split():
    assert folds.splits([["a"], ["b"]]) == {
        "all": {"a", "b"}, "test-1": {"a"}, "dev-1": {"b"}, "test-2": {"b"}, "dev-2": {"a"}
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------- given folds


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("folds.json", [["302", "301"], ["303"]], [["302", "301"], ["303"]]),
        ("folds.json", "[[301, 007e], [1e5]]".replace("007e", "7"), [["301", "7"], ["1e5"]]),  # as they are written
        ("folds.txt", "301 2\n302 1\n303 10\n304 2\n", [["302"], ["301", "304"], ["303"]]),  # 10 comes after 2
        ("folds.txt", "301 b\n\n302  a\n", [["302"], ["301"]]),
        ("folds.tsv", "moon landing\t1\nmoon\t0\n", [["moon"], ["moon landing"]]),
    ],
)
def test_given_folds_are_read_in_their_order(tmp_path, name, content, parts):
    assert folds.read(write(tmp_path, name, content)) == parts


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", {"test": ["1"]}, "needs a list of lists of query ids, such as"),
        ("a.json", ["1", "2"], "needs a list of lists"),
        ("a.json", [["1"], [None]], "needs a list of lists"),
        ("a.json", "[[", "is not readable JSON"),
        ("a.json", [["1", "2"]], "has fewer than two folds"),
        ("a.txt", "", "has fewer than two folds"),
        ("a.txt", "1 1\n2\n", r"a\.txt, line 2: 1 columns; needed: query id and fold"),
        ("a.txt", "1 0 1\n", r"a\.txt, line 1: 3 columns"),
    ],
)
def test_another_form_is_refused(tmp_path, name, content, words):
    with pytest.raises(InputError, match=words):
        folds.read(write(tmp_path, name, content))


def test_given_folds_keep_what_is_judged(tmp_path):
    file = write(tmp_path, "a.json", [["1", "2"], ["672", "3"]])
    assert folds.given(file, {"1", "2", "3"}, {"672", "9"}) == [["1", "2"], ["3"]]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([["1", "2"], ["3", "1"]], "query 1 stands in folds 1 and 2; keep it in one"),
        ([["1", "1"], ["2", "3"]], "query 1 stands in folds 1 and 1"),
        ([["1", "8"], ["2", "3"]], r"1 query \(8\): not among the queries"),
        ([["1", "2", "3"], ["5", "6", "7", "8"]], r"4 queries \(5, 6, 7, \.\.\.\): not among the queries"),
        ([["1"], ["3"]], r"1 query \(2\): judged, but in no fold"),
        ([["1", "2", "3"], ["672"]], "fold 2 has no judged query"),
    ],
)
def test_folds_that_do_not_fit_the_queries_are_refused(tmp_path, parts, words):
    with pytest.raises(InputError, match=rf"a\.json: .*{words}"):
        folds.given(write(tmp_path, "a.json", parts), {"1", "2", "3"}, {"672"})
