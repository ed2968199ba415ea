"""Figures of a report: areas of circles, and the front of memory and quality."""

import shutil
from math import pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.artifacts.lineage import indexes_of
from hybrid_cli.reporting.sections import pareto_front
from hybrid_cli.reporting.venn import Circle, circles, lens, radius
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.search import search


def measured(one: Circle, other: Circle, strips: int = 20_000) -> float:
    """Integrate the common area over thin strips, each as high as the lower of the two circles."""
    begin, end = max(one.left, other.left), min(one.right, other.right)
    if begin >= end:
        return 0.0
    # denser nodes at both ends, where the height of a circle rises steeply
    angles = (np.arange(strips) + 0.5) * pi / strips
    x = (begin + end) / 2 - (end - begin) / 2 * np.cos(angles)
    widths = (end - begin) / 2 * np.sin(angles) * pi / strips
    heights = [np.sqrt(np.maximum(circle.radius**2 - (x - circle.x) ** 2, 0)) for circle in (one, other)]
    return float(2 * (np.minimum(*heights) * widths).sum())


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int, int]:
    one, other = draw(st.integers(0, 10_000)), draw(st.integers(0, 10_000))
    return one, other, draw(st.integers(0, min(one, other)))


@given(counts())
def test_areas_and_overlap_are_the_counts(given_counts: tuple[int, int, int]) -> None:
    one, other, both = given_counts
    first, second = circles(one, other, both)
    assert pi * first.radius**2 == pytest.approx(one)
    assert pi * second.radius**2 == pytest.approx(other)
    assert measured(first, second) == pytest.approx(both, rel=1e-5, abs=1e-3)
    assert min(first.left, second.left) == pytest.approx(0, abs=1e-9)


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0, 1))
def test_the_formula_of_the_lens_agrees_with_the_integral(one: float, other: float, share: float) -> None:
    distance = share * (one + other)
    area = lens(one, other, distance)
    assert area == pytest.approx(measured(Circle(0, one), Circle(distance, other)), rel=1e-5, abs=1e-5)
    assert area == pytest.approx(lens(other, one, distance))


def test_a_lens_of_two_unit_circles_at_distance_one() -> None:
    assert lens(1, 1, 1) == pytest.approx(2 * pi / 3 - sqrt(3) / 2)


@pytest.mark.parametrize(("one", "other"), [(9, 4), (4, 9), (5, 5), (1, 0), (0, 3)])
def test_disjoint_sets_touch_from_outside(one: int, other: int) -> None:
    first, second = circles(one, other, 0)
    assert second.left == pytest.approx(first.right)


def test_a_subset_touches_from_inside() -> None:
    outer, inner = circles(9, 4, 4)
    assert inner.right == pytest.approx(outer.right)
    assert inner.left > outer.left
    inner, outer = circles(4, 9, 4)
    assert (outer.left, inner.left) == (0, 0)
    assert outer.right > inner.right


def test_equal_sets_are_one_circle() -> None:
    first, second = circles(7, 7, 7)
    assert (first.x, first.radius) == (second.x, second.radius) == (radius(7), radius(7))


def test_the_front_has_the_runs_without_a_smaller_run_of_equal_quality() -> None:
    sizes = {"bm25": 10, "codes": 2, "flat": 64, "worse": 12, "hybrid": 74, "twin": 2, "as-good-larger": 70}
    means = {"bm25": 0.5, "codes": 0.4, "flat": 0.6, "worse": 0.45, "hybrid": 0.7, "twin": 0.4, "as-good-larger": 0.6}
    assert pareto_front(sizes, means) == {"bm25", "codes", "twin", "flat", "hybrid"}


def test_a_single_run_is_the_front() -> None:
    assert pareto_front({"bm25": 10}, {"bm25": 0.0}) == {"bm25"}


def test_copies_of_an_index_count_once(tiny: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    index = encode(tiny, model=str(tiny_lambda), output=tmp_path / "index")
    copy = shutil.copytree(index, tmp_path / "copy")
    runs = [search(tiny, split="test", index=at, output=tmp_path / f"{at.name}.parquet") for at in (index, copy)]
    words = search(tiny, split="test", index=tiny_lambda.parent / "bm25", output=tmp_path / "words.parquet")
    fused = fuse([*runs, words], output=tmp_path / "fused.parquet", method="minmax")
    assert list(indexes_of(fused)) == [index, tiny_lambda.parent / "bm25"]
