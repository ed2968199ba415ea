"""Whether a passage bears an answer, as DPR's evaluation decides it (dpr/data/qa_validation.py, tokenizers.py)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from typing import get_args

import regex

from hybrid_cli.config import AnswerMatch
from hybrid_cli.errors import InputError

MODES: tuple[AnswerMatch, ...] = get_args(AnswerMatch)

# Runs of letters, digits and combining marks, or one character that is neither a separator nor a control.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def passage_form(text: str, mode: AnswerMatch = "string") -> str:
    """A passage as the matchers of the same mode read it: made once, however many questions ask.

    For strings: NFD, cut into tokens, each between two spaces, in lower case. For patterns: NFD only.
    """
    decomposed = unicodedata.normalize("NFD", text)
    if mode == "regex":
        return decomposed
    # No token holds a space, so a sequence of tokens is a substring between spaces.
    return f" {' '.join(_TOKEN.findall(decomposed))} ".lower()


def matcher(answers: Iterable[str], mode: AnswerMatch = "string") -> Callable[[str], bool]:
    """A test of passages in their `passage_form`: does any of the answers occur there?

    An answer without tokens matches nothing (in DPR's code it matches every passage), nor does an invalid pattern.
    """
    if mode == "string":
        needles = [form for form in map(passage_form, answers) if form.strip()]
        return lambda passage: any(needle in passage for needle in needles)
    if mode == "regex":
        patterns = [pattern for pattern in map(_compiled, answers) if pattern is not None]
        return lambda passage: any(pattern.search(passage) for pattern in patterns)
    raise InputError(f"answers are matched by {' or '.join(MODES)}, not by '{mode}'")


def _compiled(answer: str) -> regex.Pattern[str] | None:
    if not answer.strip():
        return None
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)
    except regex.error:
        return None


def has_answer(answers: Iterable[str], text: str, mode: AnswerMatch = "string") -> bool:
    """Whether the text (not the title) of a passage bears one of the answers."""
    return matcher(answers, mode)(passage_form(text, mode))
