"""Words of all scripts: nothing is lost, no character is cut, and scripts with spaces are counted by their spaces."""

# ruff: noqa: RUF001 - punctuation of other scripts

from __future__ import annotations

import re
from itertools import pairwise

import polars as pl
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli import words
from hybrid_cli.collections.source import passages

MIXED = st.text(
    alphabet=st.one_of(
        st.sampled_from("abé1 \n\t.,!()$#'\u3000\u200b\u200d\ufeff\u0301"),
        st.sampled_from("中国人々〇。「」（）、ひらカナーﾊﾞ\u3099㍿𠮷"),
        st.sampled_from("กขที่ำเๆ๑฿ຂຳ\u17d2កខាំ។ကျွန်တော်၊\u1039བོད་ཡིག།ꦲ꦳\ua9c0"),
        st.sampled_from("👨👩\u200d👧🇩🇪\u0600\u0d4e\u1100\u1161한हिन्दी"),
        st.characters(exclude_categories=["Cs"]),
    )
)


def parts(text: str) -> list[str]:
    return [text[begin:end] for begin, end in words.spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop, e.g. here (now) -- ok", ["Don't", "stop,", "e.g.", "here", "(now)", "--", "ok"]),
        ("他说：「你好。」然后(走)了。", ["他", "说：", "「你", "好。」", "然", "后", "(走)", "了。"]),
        ("我用Python编程（很好）$100的", ["我", "用", "Python", "编", "程", "（很", "好）", "$100", "的"]),
        ("データは", ["デ", "ー", "タ", "は"]),
        ("ฉันรักภาษาไทยที่สุด 123", ["ฉันรั", "กภา", "ษาไ", "ทยที่", "สุด", "123"]),
        ("ខ្ញុំស្រលាញ់ភាសាខ្មែរ។", ["ខ្ញុំស្រលា", "ញ់ភាសា", "ខ្មែរ។"]),
        ("ខ្ញុំ\u200bស្រលាញ់", ["ខ្ញុំ\u200b", "ស្រលាញ់"]),
        ("ကျွန်တော်က မြန်မာစာ။", ["ကျွန်တော်", "က", "မြန်မာ", "စာ။"]),
        ("བོད་ཡིག་ནི།", ["བོད་", "ཡིག་", "ནི།"]),
        ("한국어 텍스트입니다", ["한국어", "텍스트입니다"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


@given(MIXED)
def test_words_are_all_that_is_not_white_space(text: str) -> None:
    assert "".join(parts(text)) == "".join(text.split())
    assert all(begin < end <= after for (begin, end), (after, _) in pairwise([*words.spans(text), (len(text), 0)]))
    assert words.count(text) == len(words.spans(text))
    for letters in (False, True):
        texts = pl.Series([text.replace("\x1c", ""), "one", None])
        expected = [len(words.spans(each, letters=letters)) for each in (texts[0], texts[1])]
        if not set(text) & set("\x1c\x1d\x1e\x1f"):  # white space for Python only
            assert words.counts(texts, letters=letters).to_list() == [*expected, None]


@given(MIXED)
def test_no_character_is_cut(text: str) -> None:
    """Graphemes of white space with a mark are the exception: a space always ends a word."""
    inside = {place for match in regex.finditer(r"\X", text) for place in range(match.start() + 1, match.end())}
    for begin, end in words.spans(text):
        assert begin not in inside or text[begin - 1].isspace()
        assert end not in inside or text[end].isspace()


@given(st.text(alphabet=st.characters(max_codepoint=0xDFF)))
def test_scripts_with_spaces_are_counted_by_their_spaces(text: str) -> None:
    assert words.spans(text) == [match.span() for match in re.finditer(r"\S+", text)]
    assert words.count(text) == len(text.split())


@given(MIXED, st.integers(1, 5))
def test_joined_passages_are_the_text(text: str, size: int) -> None:
    found = passages(text, size, size)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(words.count(passage) <= size + 1 for passage in found)  # a mark after a space may join the word before
    assert found == [text] or all(passage in text for passage in found)


@given(MIXED, st.integers(1, 20))
def test_a_head_is_short_and_whole_characters(text: str, most: int) -> None:
    head = words.head(text, most, "")
    assert text.startswith(head)
    assert len(head) <= most
    assert head == text or text.isspace() or head or not text[: most + 1].strip()


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("データベースの検索した", "これはデータを検索しました。", ["データ", "検索し"]),
        ("水", "海水は水です", ["水", "水"]),
        ("した", "検索した", ["した"]),
        ("ภาษาไทย", "ฉันรักภาษาไทยมาก", ["ภาษาไทย"]),
        ("བོད་ཡིག", "བོད་ཀྱི་ཡིག་", ["བོད", "ཡིག"]),
        ("english only", "english 中文", []),
        ("中文", "english only", []),
    ],
)
def test_parts_of_a_query_are_found(query: str, text: str, expected: list[str]) -> None:
    assert [text[begin:end] for begin, end in words.common(query)(text)] == expected


@given(MIXED, MIXED)
def test_common_parts_are_in_both_texts_and_apart(query: str, text: str) -> None:
    found = words.common(query)(text)
    assert all(end < begin for (_, end), (begin, _) in pairwise(found))
    assert all(0 <= begin < end <= len(text) for begin, end in found)


@pytest.mark.parametrize(
    "text", ["（" * 200_000, "中" * 200_000, "ก" * 200_000, "\u0301" * 200_000 + "中", "་" * 200_000]
)
def test_long_texts_of_one_character_take_linear_time(text: str) -> None:
    assert "".join(parts(text + "中")) == text + "中"
