"""Masking of matched tokens: tokens that are never masked, and reproducibility."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hybrid_cli.encoders.contract import Contract, OwnEncoder
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.options import Markers
from hybrid_cli.encoders.transformer import Tower
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.training.roc import MatchMasking

TOKENIZER = AutoTokenizer.from_pretrained(resolve("minilm"))
QUERY = "what is the inverse of a matrix, (3.5)?"
DOCUMENT = "The inverse: it is a matrix (3.5) of the matrix, and what else?"
WORDS = ["inverse", "matrix", "river", "the", "of", "plot", "3.5", ",", "?", "unaffable"]
words = st.lists(st.sampled_from(WORDS), max_size=20)


def pieces(contract: Contract, tower_tokenizer: Any, share: float, query: str, document: str) -> list[str]:
    masking = MatchMasking(tower_tokenizer, contract, share)
    ids = [tower_tokenizer(text)["input_ids"] for text in (contract.query(query), contract.document("", document))]
    tokens: list[str] = tower_tokenizer.convert_ids_to_tokens(masking(ids[1], ids[0], (0,)))
    return tokens


def test_with_a_share_of_1_exactly_the_matches_are_masked() -> None:
    shown = pieces(Contract(), TOKENIZER, 1.0, QUERY, DOCUMENT)
    expected = "[CLS] the [MASK] : it is a [MASK] ( [MASK] . [MASK] ) of the [MASK] , and [MASK] else ? [SEP]"
    assert shown == expected.split()


@pytest.mark.parametrize("markers", ["replace", "prepend"])
def test_markers_and_prefixes_are_not_masked(tiny_bert: Path, markers: Markers) -> None:
    contract = Contract(markers=markers, query_prefix="question: ", doc_prefix="question water ")
    tokenizer = Tower.load(OwnEncoder(tiny_bert).tower("query"), contract).tokenizer
    shown = pieces(contract, tokenizer, 1.0, "river", "question river")
    head = ["[unused2]", "question", "water"] if markers == "replace" else ["[CLS]", "[unused2]", "question", "water"]
    assert shown == [*head, "question", "[MASK]", "[SEP]"], (
        "the query's prefix matches nothing, the prefix of the document is not masked"
    )


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


MASKING = {share: MatchMasking(TOKENIZER, Contract(), float(share)) for share in (0, 1)}


def test_the_mean_share_of_masked_matches_is_the_requested_share() -> None:
    masking = MatchMasking(TOKENIZER, Contract(), 0.15)
    ids = TOKENIZER("matrix " * 100)["input_ids"]
    counts = [masking(ids, ids, [seed]).count(TOKENIZER.mask_token_id) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(15, abs=4 * np.sqrt(100 * 0.15 * 0.85 / 200))


def test_masks_depend_on_the_seed_and_not_on_earlier_draws() -> None:
    masking = MatchMasking(TOKENIZER, Contract(), 0.5)
    ids = TOKENIZER("matrix inverse " * 20)["input_ids"]
    alone = masking(ids, ids, [7, 1])
    for other in range(5):
        masking(ids, ids, [other])
    assert masking(ids, ids, [7, 1]) == alone
    assert masking(ids, ids, [7, 2]) != alone


def test_the_stop_words_are_those_of_the_analyzer() -> None:
    theirs = jvm.java_class("org.apache.lucene.analysis.en.EnglishAnalyzer").ENGLISH_STOP_WORDS_SET
    assert {bytes(chars).decode() if isinstance(chars, bytes) else "".join(chars) for chars in theirs.toArray()} == (
        STOP_WORDS
    )
