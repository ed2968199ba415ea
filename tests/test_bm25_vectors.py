"""BM25 vectors of a batch: factors of the score (RoC), their projection, and cosines with random encoders."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import torch
from command import raises
from test_impacts import DOCUMENTS, GOLDEN, IDF_CAT, IDF_DOG, known

from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.training.losses import squared_cosine
from hybrid_cli.training.roc import Bm25Vectors, SignProjection
from hybrid_cli.training.teachers import row_finder

DIM = 768


def side(*docids: str, dim: int = DIM, index: LexicalIndex | None = None) -> Bm25Vectors:
    return Bm25Vectors(index or known(DOCUMENTS), SignProjection(dim), pl.Series("docid", docids))


def test_a_query_vector_has_the_idf_of_each_distinct_term() -> None:
    lexical = side("d1")
    (vector,) = lexical.queries(["cat dog cat"])
    signs = lexical.projection.signs(["cat", "dog"]) / math.sqrt(DIM)
    np.testing.assert_allclose(vector, IDF_CAT * signs[0] + IDF_DOG * signs[1], atol=1e-5)


def test_document_vectors_have_no_idf_so_that_the_product_is_bm25() -> None:
    lexical = side("d1", "d2", "d4")
    (query,), documents = lexical.queries(["cat"]), lexical.documents(["d2", "d4"])
    signs = lexical.projection.signs(["cat"])[0] / math.sqrt(DIM)
    own = documents[0] @ signs  # d2 also contains the term dog, whose signs are almost orthogonal
    assert own == pytest.approx(GOLDEN["d2"] / IDF_CAT, abs=0.1)
    np.testing.assert_allclose(query @ signs, IDF_CAT, atol=1e-5)


def test_projected_products_are_bm25_on_average() -> None:
    found = []
    for seed in range(300):
        lexical = Bm25Vectors(known(DOCUMENTS), SignProjection(64, seed), pl.Series(["d2"]))
        found.append((lexical.queries(["cat"]) @ lexical.documents(["d2"]).T).item())
    assert np.mean(found) == pytest.approx(GOLDEN["d2"], abs=float(4 * np.std(found) / math.sqrt(len(found))))


def test_scores_are_bm25_itself() -> None:
    lexical = side("d4", "d1", "d3")
    scores = lexical.scores(["cat", "cat cat"], ["d1", "d3", "d4"])
    expected = np.array([[GOLDEN["d1"], 0, GOLDEN["d4"]]])
    np.testing.assert_allclose(scores, np.concatenate([expected, 2 * expected]), atol=1e-6)


def test_the_expected_squared_cosine_is_one_over_the_dimension_for_any_encoder() -> None:
    rng = np.random.default_rng(0)
    documents = [[f"w{word}" for word in rng.integers(0, 400, 40)] for _ in range(300)]
    lexical = side(*[f"d{number}" for number in range(1, 301)], index=known(documents))
    constants = torch.from_numpy(lexical.documents([f"d{number}" for number in range(1, 301)]))
    encoder = torch.randn(1, DIM, generator=torch.Generator().manual_seed(1)) + 0.1 * torch.randn(300, DIM)
    one, many = squared_cosine(torch.randn(300, DIM), constants), squared_cosine(encoder, constants)
    assert one.mean().item() == pytest.approx(1 / DIM, rel=0.4)
    assert many.mean().item() < 0.05, "also if all vectors of the encoder have nearly one direction"


def test_an_unknown_document_is_refused_with_a_fix() -> None:
    with raises("other-index"):
        side("d1", "zz")


def test_empty_texts_are_zero_vectors() -> None:
    lexical = side("d5")
    assert not lexical.queries(["", "unknown"]).any()
    assert not lexical.documents(["d5"]).any()


def test_rows_of_docids_are_found_in_any_order() -> None:
    find = row_finder(pl.Series(["d3", "d1", "d2", "d10"]))
    assert find(["d10", "d3", "d10"]).tolist() == [3, 0, 3]
    for unknown in ("d0", "d4"):
        with raises("unknown-id", id=unknown):
            find(["d1", unknown])
