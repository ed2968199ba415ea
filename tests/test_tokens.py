"""Cut token ids equal those of the whole text, for every kind of tokenizer."""

import argparse
import asyncio
import json
import textwrap
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hybrid_cli.encoders.loading import CHARACTERS, cut_tokens, head_of

TEXTS = [
    each.__doc__ or "" for module in (argparse, asyncio, json, textwrap) for each in [module, *vars(module).values()]
]
KINDS = ("wordpiece", "byte-level", "unigram", "no pre-tokenizer")


@cache
def trained(kind: str) -> Any:
    if kind == "wordpiece":
        return tiny_tokenizer()
    tokenizer = Tokenizer(models.Unigram() if kind == "unigram" else models.BPE(byte_fallback=True))
    trainer: Any = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>"], show_progress=False)
    if kind == "byte-level":  # GPT-2, ModernBERT
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "unigram":  # XLM-RoBERTa, E5
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=2000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
    else:  # Llama: white space is a character of the tokens
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Replace("▁", " ")
        tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training; removed below
    tokenizer.train_from_iterator(TEXTS, trainer)
    if kind == "no pre-tokenizer":
        tokenizer.pre_tokenizer = None  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<unk>")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return trained(request.param)


def whole(tokenizer: Any, texts: list[str], length: int) -> tuple[list[list[int]], list[bool]]:
    encoded = tokenizer(texts, truncation=True, max_length=length)
    return encoded["input_ids"], [bool(each.overflowing) for each in encoded.encodings]


@pytest.mark.parametrize("length", [1, 4, 32, 64])
def test_the_beginning_of_real_texts_gives_their_ids(tokenizer: Any, length: int) -> None:
    length += tokenizer.num_special_tokens_to_add()
    texts = TEXTS + [text * 5 for text in TEXTS]
    assert sum(len(text) > CHARACTERS * length for text in texts) > 100
    assert cut_tokens(tokenizer, texts, length) == whole(tokenizer, texts, length)


words = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "[SEP]", "▁", "a" * 300, "日本語の文書", "İ", "ﬁ", "e\u0301", "\u200b"])
)
spaces = st.sampled_from([" ", "  ", "\n", "\n\n", " \n ", "\t", "\r\n", "\u00a0", "\u3000", "", "-", "."])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(words, spaces), max_size=40), st.integers(3, 12), st.sampled_from(KINDS))
def test_any_text_has_the_ids_of_the_whole(parts: list[tuple[str, str]], length: int, kind: str) -> None:
    tokenizer, text = trained(kind), "".join(word + space for word, space in parts)
    assert cut_tokens(tokenizer, [text, text + "."], length) == whole(tokenizer, [text, text + "."], length)


@pytest.mark.parametrize(
    ("text", "most", "head"),
    [("one two three", 13, "one two three"), ("one two three", 12, "one two"), ("one two three", 7, "one two"),
     ("one\n\n two", 5, "one"), ("oneword", 3, "oneword"), ("    word", 2, "    word")],
)  # fmt: skip # several texts per line
def test_a_beginning_ends_with_a_word(text: str, most: int, head: str) -> None:
    assert head_of(text, most) == head


def test_a_tokenizer_that_keeps_the_end_reads_the_whole_text(tokenizer: Any) -> None:
    text = " ".join(TEXTS[:20])
    tokenizer.truncation_side = "left"
    try:
        assert cut_tokens(tokenizer, [text], 16) == whole(tokenizer, [text], 16)
    finally:
        tokenizer.truncation_side = "right"
