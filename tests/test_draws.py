"""Seeded draws: keys, reproducibility, uniformity."""

from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli import draws


def test_hashed_draws_never_change() -> None:
    """Outputs of earlier versions depend on these numbers."""
    assert draws.draw(42, "char-swap", "q1", "which") == 9033894672824034077
    assert draws.generator(42, "d1").sample(range(100), 4) == [52, 69, 2, 67]
    seeds = np.array([draws.draw(42, "bm25", "q1", "d1")] * 2, np.uint64)
    assert draws.keys(seeds, np.array([0, 1])).tolist() == [11247584183919606152, 4108598288264792136]


def test_positional_draws_never_change() -> None:
    assert draws.rng(42).integers(1000, size=3).tolist() == np.random.default_rng(42).integers(1000, size=3).tolist()
    assert draws.rng(42, 7).integers(1000) == np.random.default_rng([42, 7]).integers(1000)
    assert draws.sample(1000, 4, draws.rng(42)).tolist() == [88, 438, 653, 772]
    assert list(draws.shuffle_tables([3, 2], 42, 0)) == [(1, [1, 0]), (0, [2, 1, 0])]


def test_a_sample_of_all_rows_draws_nothing() -> None:
    chance = draws.rng(1)
    assert draws.sample(3, 5, chance).tolist() == [0, 1, 2]
    assert chance.random() == draws.rng(1).random()


def test_keys_are_different_for_each_seed_and_place() -> None:
    seeds, places = np.repeat(np.arange(100, dtype=np.uint64), 100), np.tile(np.arange(100), 100)
    found = draws.keys(seeds, places)
    assert len(set(found.tolist())) == 10_000
    assert (found / 2**64).mean() == pytest.approx(0.5, abs=0.02)


@given(sizes=st.lists(st.integers(0, 5), max_size=6), seed=st.integers(0, 99), pieces=st.integers(1, 4), data=st.data())
def test_a_shuffled_order_resumes_anywhere(sizes: list[int], seed: int, pieces: int, data: st.DataObject) -> None:
    whole = [(part, row) for part, rows in draws.shuffle_tables(sizes, seed, 1, pieces=pieces) for row in rows]
    assert sorted(whole) == [(part, row) for part, size in enumerate(sizes) for row in range(size)]
    skip = data.draw(st.integers(0, len(whole)))
    rest = draws.shuffle_tables(sizes, seed, 1, skip=skip, pieces=pieces)
    assert [(part, row) for part, rows in rest for row in rows] == whole[skip:]


def test_the_first_rows_of_a_shuffled_order_come_from_many_parts() -> None:
    def parts(pieces: int) -> float:
        """Return the mean number of parts among the first 2,000 of 7,000 rows in 7 parts."""
        orders = (
            [part for part, rows in draws.shuffle_tables([1000] * 7, seed, pieces=pieces) for _ in rows]
            for seed in range(20)
        )
        return sum(len(set(order[:2000])) for order in orders) / 20

    assert parts(1) == 2
    assert parts(8) > 6


@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=9), data=st.data(), seed=st.integers(0, 99))
def test_a_stream_sample_has_the_wanted_size_for_any_blocks(sizes: list[int], data: st.DataObject, seed: int) -> None:
    rows = pl.DataFrame({"row": range(sum(sizes))}, schema={"row": pl.Int64})
    expected = data.draw(st.integers(0, len(rows)))
    ends = np.cumsum(sizes).tolist()
    blocks = [rows[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    part = pl.concat([rows.clear(), *draws.stream_sample(blocks, len(rows), expected, seed)])["row"].to_list()
    assert len(set(part)) == len(part) == expected
    assert part == sorted(part)
    assert part == pl.concat(draws.stream_sample([rows], len(rows), expected, seed))["row"].to_list()


def test_every_row_is_equally_likely_in_a_stream_sample() -> None:
    rows = pl.DataFrame({"row": range(10)})
    taken = Counter(
        row for seed in range(2000) for part in draws.stream_sample([rows], 10, 3, seed) for row in part["row"]
    )
    assert all(abs(taken[row] - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5 for row in range(10))
