"""The sign projection of lexical vectors (RoC, eq. 3 and 4)."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from hybrid_cli.training.roc import SignProjection

TERMS = pl.Series("term", [f"term{number}" for number in range(50)])


def rows(*vectors: dict[int, float]) -> csr_matrix:
    """Return sparse rows over TERMS."""
    dense = np.zeros((len(vectors), len(TERMS)), np.float32)
    for row, vector in zip(dense, vectors, strict=True):
        for term, weight in vector.items():
            row[term] = weight
    return csr_matrix(dense)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 32, 384, 768]))
def test_projection_equals_the_product_with_the_dense_matrix(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((6, len(TERMS))) < 0.2, rng.random((6, len(TERMS))), 0).astype(np.float32)
    projection = SignProjection(dim, seed)
    whole = projection.signs(TERMS.to_list()) / math.sqrt(dim)
    np.testing.assert_allclose(projection.project(csr_matrix(dense), TERMS), dense @ whole, atol=1e-5)


def test_vectors_with_one_common_term_keep_their_inner_product() -> None:
    query, document = SignProjection(768).project(rows({3: 2.0}, {3: 3.0}), TERMS)
    assert query @ document == pytest.approx(6.0, rel=1e-5)


def test_the_error_without_a_common_term_has_the_expected_deviation() -> None:
    errors = []
    for seed in range(400):
        query, document = SignProjection(768, seed).project(rows({1: 3.0, 2: 4.0}, {5: 1.0, 6: 2.0, 7: 2.0}), TERMS)
        errors.append(query @ document)
    deviation = 5 * 3 / math.sqrt(768)  # |q| |d| / 27.71
    assert abs(np.mean(errors)) < 4 * deviation / math.sqrt(len(errors))
    assert np.std(errors) == pytest.approx(deviation, rel=0.15)


def test_signs_depend_on_the_term_and_not_on_its_position() -> None:
    projection = SignProjection(96, 5)
    forward, backward = projection.signs(["cat", "dog", "bird"]), projection.signs(["bird", "dog", "cat"])
    np.testing.assert_array_equal(forward, backward[::-1])
    assert set(np.unique(forward)) == {-1.0, 1.0}


def test_seeds_give_independent_signs() -> None:
    one, other = SignProjection(4096, 0).signs(["cat"])[0], SignProjection(4096, 1).signs(["cat"])[0]
    assert abs(one @ other) / 4096 < 5 / math.sqrt(4096)


def test_rows_without_terms_become_zeros() -> None:
    np.testing.assert_array_equal(SignProjection(16).project(rows({}, {0: 1.0}), TERMS)[0], np.zeros(16))
    assert SignProjection(16).project(rows({}), TERMS).shape == (1, 16)


def test_the_signs_of_version_1_do_not_change() -> None:
    """Encoders trained with these signs are resumed by version number alone."""
    signs = SignProjection(16).signs(["retrieval", "日本"])
    assert ["".join("+" if sign > 0 else "-" for sign in row) for row in signs] == [
        "---+---++-+++-++",
        "++--++---+----+-",
    ]
