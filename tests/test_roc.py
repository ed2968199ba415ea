"""Both parts of RoC's orthogonality: BM25's vectors of a batch, and masks of matched tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_impacts import DOCUMENTS, GOLDEN, IDF_CAT, IDF_DOG, Known, known
from transformers import AutoTokenizer

from hybrid_cli.encoders.contract import Contract
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.tower import Tower
from hybrid_cli.errors import InputError
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.analysis import STOP_WORDS
from hybrid_cli.lexical.projection import SignProjection
from hybrid_cli.training.losses import squared_cosine
from hybrid_cli.training.roc import BM25Vectors, MatchMasking

DIM = 768

# ------------------------------------------------------------------------------------------------------ BM25's vectors


def vectors(*docids: str, dim: int = DIM, index: Known | None = None) -> BM25Vectors:
    return BM25Vectors(index or known(DOCUMENTS), SignProjection(dim), pl.Series("docid", docids))


def test_a_query_is_the_idf_of_its_terms_each_counted_once() -> None:
    bm25 = vectors("d1")
    (vector,) = bm25.queries(["cat dog cat"])
    signs = bm25.projection.signs(["cat", "dog"]) / math.sqrt(DIM)
    np.testing.assert_allclose(vector, IDF_CAT * signs[0] + IDF_DOG * signs[1], atol=1e-5)


def test_documents_have_no_idf_so_that_a_product_of_one_term_is_bm25() -> None:
    bm25 = vectors("d1", "d2", "d4")
    (query,), documents = bm25.queries(["cat"]), bm25.documents(["d2", "d4"])
    signs = bm25.projection.signs(["cat"])[0] / math.sqrt(DIM)
    own = documents[0] @ signs  # d2 also has the term dog, whose signs are almost orthogonal
    assert own == pytest.approx(GOLDEN["d2"] / IDF_CAT, abs=0.1)
    np.testing.assert_allclose(query @ signs, IDF_CAT, atol=1e-5)


def test_projected_products_are_bm25_on_average() -> None:
    found = []
    for seed in range(300):
        bm25 = BM25Vectors(known(DOCUMENTS), SignProjection(64, seed), pl.Series(["d2"]))
        found.append((bm25.queries(["cat"]) @ bm25.documents(["d2"]).T).item())
    assert np.mean(found) == pytest.approx(GOLDEN["d2"], abs=4 * float(np.std(found)) / math.sqrt(len(found)))


def test_scores_are_those_of_bm25() -> None:
    bm25 = vectors("d4", "d1", "d3")
    scores = bm25.scores(["cat", "cat cat"], ["d1", "d3", "d4"])
    expected = np.array([[GOLDEN["d1"], 0, GOLDEN["d4"]]])
    np.testing.assert_allclose(scores, np.concatenate([expected, 2 * expected]), atol=1e-6)


def test_squared_cosines_with_any_encoder_start_near_1_over_the_dimension() -> None:
    rng = np.random.default_rng(0)
    documents = [[f"w{word}" for word in rng.integers(0, 400, 40)] for _ in range(300)]
    bm25 = vectors(*[f"d{number}" for number in range(1, 301)], index=known(documents))
    constants = torch.from_numpy(bm25.documents([f"d{number}" for number in range(1, 301)]))
    encoder = torch.randn(1, DIM, generator=torch.Generator().manual_seed(1)) + 0.1 * torch.randn(300, DIM)
    one, many = squared_cosine(torch.randn(300, DIM), constants), squared_cosine(encoder, constants)
    assert one.mean().item() == pytest.approx(1 / DIM, rel=0.4)
    assert many.mean().item() < 0.05, "also if all vectors of the encoder have nearly one direction"


def test_a_document_outside_the_index_is_refused() -> None:
    with pytest.raises(InputError, match="has no document zz; pass the --index that the examples were mined with"):
        vectors("d1", "zz")


def test_empty_texts_have_zero_vectors() -> None:
    bm25 = vectors("d5")
    assert not bm25.queries(["", "unknown"]).any()
    assert not bm25.documents(["d5"]).any()


# ---------------------------------------------------------------------------------------------- masks of matched tokens

TOKENIZER = AutoTokenizer.from_pretrained(resolve("minilm"))
QUERY = "what is the inverse of a matrix, (3.5)?"
DOCUMENT = "The inverse: it is a matrix (3.5) of the matrix, and what else?"
WORDS = ["inverse", "matrix", "river", "the", "of", "plot", "3.5", ",", "?", "unaffable"]
MASKING = {share: MatchMasking(TOKENIZER, Contract(), float(share)) for share in (0, 1)}
words = st.lists(st.sampled_from(WORDS), max_size=20)


def pieces(
    contract: Contract, tokenizer: Any, share: float, query: str, document: str, seed: Sequence[int] = (0,)
) -> list[str]:
    masking = MatchMasking(tokenizer, contract, share)
    ids = [tokenizer(text)["input_ids"] for text in (contract.query(query), contract.document("", document))]
    shown: list[str] = tokenizer.convert_ids_to_tokens(masking(ids[1], ids[0], seed))
    return shown


def test_a_share_of_1_masks_every_match_and_nothing_else() -> None:
    shown = pieces(Contract(), TOKENIZER, 1.0, QUERY, DOCUMENT)
    expected = "[CLS] the [MASK] : it is a [MASK] ( [MASK] . [MASK] ) of the [MASK] , and [MASK] else ? [SEP]"
    assert shown == expected.split()


@pytest.mark.parametrize("markers", ["replace", "prepend"])
def test_markers_and_prefixes_are_never_masked(tiny_bert: Path, markers: Literal["replace", "prepend"]) -> None:
    contract = Contract(markers=markers, query_prefix="inverse: ", doc_prefix="inverse matrix ")
    tokenizer = Tower.load(tiny_bert, contract).tokenizer
    shown = pieces(contract, tokenizer, 1.0, "river", "inverse river")
    head = ["[unused2]", "inverse", "matrix"] if markers == "replace" else ["[CLS]", "[unused2]", "inverse", "matrix"]
    assert shown == [*head, "inverse", "[MASK]", "[SEP]"], "the prefix of the query matches no token"


@given(words, words, st.integers(0, 10**6), st.floats(0, 1))
def test_only_matched_words_change(query: list[str], document: list[str], seed: int, share: float) -> None:
    query_ids, ids = (TOKENIZER(" ".join(text))["input_ids"] for text in (query, document))
    masked = MASKING[round(share)](ids, query_ids, [seed])
    assert len(masked) == len(ids)
    for before, after in zip(ids, masked, strict=True):
        if after != before:
            piece = TOKENIZER.convert_ids_to_tokens(before)
            assert after == TOKENIZER.mask_token_id
            assert before in query_ids
            assert before not in TOKENIZER.all_special_ids
            assert piece not in STOP_WORDS
            assert any(character.isalnum() for character in piece)


def test_the_share_holds_on_average() -> None:
    masking = MatchMasking(TOKENIZER, Contract(), 0.15)
    ids = TOKENIZER("matrix " * 100)["input_ids"]
    counts = [masking(ids, ids, [seed]).count(TOKENIZER.mask_token_id) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(15, abs=4 * np.sqrt(100 * 0.15 * 0.85 / 200))


def test_masks_depend_on_the_seed_alone() -> None:
    masking = MatchMasking(TOKENIZER, Contract(), 0.5)
    ids = TOKENIZER("matrix inverse " * 20)["input_ids"]
    alone = masking(ids, ids, [7, 1])
    for other in range(5):
        masking(ids, ids, [other])
    assert masking(ids, ids, [7, 1]) == alone
    assert masking(ids, ids, [7, 2]) != alone


def test_a_tokenizer_without_a_mask_token_is_refused() -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    tokenizer.mask_token = None
    with pytest.raises(InputError, match="has no mask token"):
        MatchMasking(tokenizer, Contract(), 0.15)


def test_the_stop_words_are_those_of_the_analyzer() -> None:
    theirs = jvm.java_class("org.apache.lucene.analysis.en.EnglishAnalyzer").ENGLISH_STOP_WORDS_SET
    assert {bytes(chars).decode() if isinstance(chars, bytes) else "".join(chars) for chars in theirs.toArray()} == (
        STOP_WORDS
    )
