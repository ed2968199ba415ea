"""Search for answers in passages, as in DPR's evaluation (dpr/data/qa_validation.py, tokenizers.py)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from typing import get_args

import regex

from hybrid_cli.errors import InputError
from hybrid_cli.settings.analysis import AnswerMatch

MODES: tuple[AnswerMatch, ...] = get_args(AnswerMatch)

# Runs of letters, digits and combining marks, or one character that is neither a separator nor a control.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def passage_form(text: str, mode: AnswerMatch = "string") -> str:
    """Return the form of a passage that the matchers of the same mode read; one form serves all questions.

    For strings: NFD, split into tokens, each between two spaces, in lower case. For patterns: NFD only.
    """
    decomposed = unicodedata.normalize("NFD", text)
    if mode == "regex":
        return decomposed
    # No token contains a space, so a sequence of tokens is a substring between spaces.
    return f" {' '.join(_TOKEN.findall(decomposed))} ".lower()


def matcher(answers: Iterable[str], mode: AnswerMatch = "string") -> Callable[[str], bool]:
    """Return a test of passages in their `passage_form`: does any of the answers occur?

    Our choice: an answer without tokens matches nothing (in DPR's code it matches every passage). Neither does an
    invalid pattern.
    """
    if mode == "string":
        needles = [form for form in map(passage_form, answers) if form.strip()]
        return lambda passage: any(needle in passage for needle in needles)
    if mode == "regex":
        patterns = [pattern for pattern in map(_compiled, answers) if pattern is not None]
        return lambda passage: any(pattern.search(passage) for pattern in patterns)
    raise InputError(f"answer match '{mode}': unknown; choices: {' or '.join(MODES)}")


def _compiled(answer: str) -> regex.Pattern[str] | None:
    if not answer.strip():
        return None
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)
    except regex.error:
        return None
