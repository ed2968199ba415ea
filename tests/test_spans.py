"""Spans: cut between words, without loss."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hybrid_cli.encoders.models import resolve
from hybrid_cli.training.pretraining import Pieces, consecutive, pieces, two

WORD_SIZES = st.lists(st.integers(1, 4), max_size=40)
ROOM = st.integers(4, 12)


def text_of(sizes: list[int]) -> Pieces:
    """Return a text of words with these numbers of tokens and the ids 0, 1, 2, ..."""
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=int)])
    return Pieces(np.arange(starts[-1], dtype=np.int32), starts)


def is_cut_between_words(span: Pieces, whole: Pieces) -> bool:
    """Test whether the words of a span are words of the text."""
    begin = int(span.ids[0])
    return set(span.starts + begin) <= set(whole.starts.tolist())


def test_words_of_bert_continue_with_double_hashes() -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    texts = ["Numpy's broadcasting(rules), naïvely unsqueezed. [SEP] 3.14", "", "tokenization"]
    for text, found in zip(texts, pieces(tokenizer, texts), strict=True):
        words = tokenizer.tokenize(text)
        assert tokenizer.convert_ids_to_tokens(found.ids.tolist()) == words
        begins = [place for place, piece in enumerate(words) if not piece.startswith("##")]
        assert found.starts.tolist() == [*begins, len(words)]


@given(WORD_SIZES, ROOM)
def test_consecutive_spans_are_the_text(sizes: list[int], room: int) -> None:
    text = text_of(sizes)
    spans = list(consecutive(text, room))
    assert [piece for span in spans for piece in span.ids] == text.ids.tolist()
    assert all(len(span.ids) <= room and is_cut_between_words(span, text) for span in spans)
    for span, after in pairwise(spans):
        assert len(span.ids) + after.starts[1] > room, "the next word would fit"


@given(WORD_SIZES.filter(lambda sizes: len(sizes) > 1), ROOM, st.integers(0, 99))
def test_two_spans_are_disjoint(sizes: list[int], room: int, seed: int) -> None:
    text = text_of(sizes)
    first, second = two(text, room, np.random.default_rng(seed))
    assert 0 < len(first.ids) <= room
    assert 0 < len(second.ids) <= room
    assert first.ids[-1] < second.ids[0]
    assert is_cut_between_words(first, text)
    assert is_cut_between_words(second, text)


def test_two_spans_of_a_long_text_fill_their_room_at_random_positions() -> None:
    text = text_of([1] * 1000)
    draws = [two(text, 50, np.random.default_rng(seed)) for seed in range(40)]
    assert {len(span.ids) for pair in draws for span in pair} == {50}
    assert len({int(first.ids[0]) for first, _ in draws}) > 30
    again = two(text, 50, np.random.default_rng(7))
    assert [span.ids.tolist() for span in again] == [span.ids.tolist() for span in draws[7]]


@pytest.mark.parametrize("sizes", [[], [3]])
def test_a_text_of_fewer_than_two_words_has_no_two_spans(sizes: list[int]) -> None:
    assert two(text_of(sizes), 10, np.random.default_rng(0)) == []
