"""Answers in passages, matched as in DPR's evaluation."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.evaluation.accuracy import matcher, passage_form
from hybrid_cli.evaluation.options import AnswerMatch


def has_answer(answers: list[str], text: str, mode: AnswerMatch = "string") -> bool:
    return matcher(answers, mode)(passage_form(text, mode))


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("Beyonc\u00e9", "beyonce\u0301", True),  # NFD on both
        ("Beyonce", "Beyonc\u00e9", False),  # accents are kept
        ("U.S.", "in the U.S. army", True),  # tokens u . s .
        ("U.S", "in the U.S. army", True),
        ("US", "in the U.S. army", False),
        ("art", "he started an article", False),  # whole tokens
        ("3,000", "about 3,000 men", True),
        ("3000", "about 3,000 men", False),
        ("O'Brien", "with o'brien there", True),
        ("", "anything", False),  # true in DPR's code
        (" \t\n", "anything", False),
        ("the army", "the\u00a0army", True),  # any separator
        ("the army", "army the", False),
    ],
)
def test_golden_answers(answer: str, text: str, expected: bool) -> None:
    assert has_answer([answer], text) is expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"19\d\d", "born in 1950", True),
        (r"blue|red", "a RED sky", True),
        (r"^second", "first line\nSecond line", True),
        (r"(unclosed", "(unclosed", False),  # an invalid pattern matches nothing
        ("", "anything", False),
        ("Beyonc\u00e9", "beyonce\u0301", True),
        (r"\bart\b", "an article", False),
    ],
)
def test_patterns(pattern: str, text: str, expected: bool) -> None:
    assert has_answer([pattern], text, "regex") is expected


@given(st.text(), st.text(), st.text())
def test_a_text_contains_its_own_words_in_any_unicode_form(before: str, answer: str, after: str) -> None:
    text = f"{before} {answer} {after}"
    # a combining mark joins the token before it only without a space between them
    assert has_answer([answer], text) or not passage_form(answer).strip()
    composed = unicodedata.normalize("NFC", text)
    assert has_answer([answer], composed) == has_answer([answer], text)


def test_one_answer_is_enough() -> None:
    assert has_answer(["nothing", "", "blue"], "a blue sky")
    assert not has_answer([], "a blue sky")


def test_one_passage_form_serves_all_questions() -> None:
    passage = passage_form("Paris, the capital of France")
    assert matcher(["capital of france"])(passage)
    assert not matcher(["capital france"])(passage)
