"""The static encoder: equal to BM25 with identity tables, saving and loading, unknown terms."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import raises
from hypothesis import given
from hypothesis import strategies as st
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.lexical.index import LexicalIndex

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
