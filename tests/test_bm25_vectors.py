"""Lexical vectors: BM25 as an inner product, its random projection, static encoders."""

import math
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import raises
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from test_impacts import DOCUMENTS, GOLDEN, IDF_CAT, IDF_DOG, known
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.static import StaticEncoder
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


TERMS = pl.Series("term", [f"term{number}" for number in range(50)])


def rows(*vectors: dict[int, float]) -> csr_matrix:
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


TITLES, TEXTS = [title for _, title, _ in TINY_DOCUMENTS], [text for _, _, text in TINY_DOCUMENTS]
QUERIES = ["what does the moon do to the oceans", "oxygen oxygen blood", "to be or not to be", "", "zyzzyva"]


@pytest.fixture(scope="module")
def index(tiny_lambda: Path) -> LexicalIndex:
    return open_bm25(tiny_lambda.parent / "bm25")


def test_identity_tables_give_bm25(index: LexicalIndex) -> None:
    terms = len(index.idf)
    encoder = StaticEncoder.over(index, ("title", "text"), dim=terms + 1, vocab_size=terms, hash_buckets=1)
    for table in encoder.parameters():
        table.data = torch.eye(terms + 1)
    scores = encoder.encode_queries(QUERIES) @ encoder.encode_documents(TITLES, TEXTS).T
    docids = [docid for docid, _, _ in TINY_DOCUMENTS]
    pairs = pl.DataFrame(
        {"qid": np.repeat(np.arange(len(QUERIES)), len(docids)).astype(str), "docid": docids * len(QUERIES)}
    )
    expected = index.score(pairs, pl.DataFrame({"qid": [str(n) for n in range(len(QUERIES))], "text": QUERIES}))
    np.testing.assert_allclose(scores[:4].ravel(), expected.to_numpy()[: 4 * len(docids)], atol=1e-5)
    assert not expected.to_numpy()[4 * len(docids) :].any()


def test_a_saved_encoder_has_the_same_vectors(tiny_lambda: Path, tmp_path: Path) -> None:
    encoder = open_encoder(tiny_lambda)
    assert isinstance(encoder, StaticEncoder)
    encoder.save(tmp_path)
    again = open_encoder(tmp_path)
    assert again.dim == 6
    assert again.describe() == encoder.describe()
    assert again.fingerprint == encoder.fingerprint != ""
    np.testing.assert_array_equal(again.encode_queries(QUERIES), encoder.encode_queries(QUERIES))
    np.testing.assert_array_equal(again.encode_documents(TITLES, TEXTS), encoder.encode_documents(TITLES, TEXTS))


def test_terms_without_a_row_share_hash_buckets(tiny_lambda: Path) -> None:
    encoder = StaticEncoder.load(tiny_lambda)
    rows = encoder.rows_of(pl.Series(["zyzzyva", encoder.terms[3], "zyzzyva", "qwertz"]))
    assert rows[1] == 3
    assert rows[0] == rows[2] >= len(encoder.terms)
    assert rows.max() < len(encoder.idf)
    assert encoder.encode_queries(["zyzzyva"]).any()
    assert not encoder.encode_queries(["", "the of"]).any()


@given(st.permutations(["what", "does", "the", "moon", "do", "to", "oceans", "of", "salt", "and", "oxygen"]))
def test_the_word_order_does_not_matter(tiny_lambda: Path, words: list[str]) -> None:
    encoder = open_encoder(tiny_lambda)
    found = encoder.encode_queries([" ".join(words), "what does the moon do to oceans of salt and oxygen"])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_a_damaged_folder_is_refused(tiny_lambda: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_lambda, damaged)
    (damaged / "tables.safetensors").unlink()
    with raises("damaged", path="damaged"):
        open_encoder(damaged)
