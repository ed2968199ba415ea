"""The words of Lucene's StandardTokenizer as tables.

Where Lucene's StandardTokenizer begins and ends a word is a table of states over kinds of characters. The rules are the
word boundaries of Unicode 12.1 (UAX 29) with Lucene's changes: ideographs and hiragana are words of one character, runs
of Thai, Lao, Khmer and Burmese characters are words, and so are emoji sequences (UTS 51). A word is the longest match
at its first character. The file `word_kinds.txt` holds the kinds of characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybrid_cli.lexical.automaton import One, Rule, Star, compile_rule, either, optional, plus, seq

# Kinds of characters, one for each combination of properties that the rules distinguish: A letter, H Hebrew letter,
# N digit, D ASCII digit, K katakana, _ connector, J ideograph or hiragana, S South East Asian, E emoji, R regional
# indicator, B letter and emoji, # keycap base that is no digit, ' " quotes, l between letters, n between digits,
# b between letters or digits, . others. Marks belong to the character before them: s South East Asian, z zero width
# joiner, m emoji modifier, k keycap, g tag, h end of tags, x others, t text selector, e emoji selector.
_MARKS = "xszmkgh"
_CASED = "AB"
_CODES = 0x110000
LONGEST_UNITS = 255  # UTF-16 code units of a word; Lucene splits longer ones


class Rules(NamedTuple):
    """The rules of words.

    Attributes:
        letters: the kinds.
        kinds: [0x110000] position in `letters` of the kind of each character.
        steps: [states, kinds] next state, -1 where no word continues; the first state is 0.
        ends: [states] whether a word can end in a state.
        lower: lower case of the characters that have one.
    """

    letters: str
    kinds: bytes
    steps: list[list[int]]
    ends: list[bool]
    lower: dict[int, int]


@cache
def word_rules() -> Rules:
    """Return the rules of Lucene's StandardTokenizer."""
    letters, kinds = _kinds()
    steps, ends = compile_rule(_word(), letters)
    cased = np.flatnonzero(np.isin(kinds, [letters.index(letter) for letter in _CASED])).tolist()
    lower = {code: _lower(code) for code in cased}
    return Rules(letters, kinds.tobytes(), steps.tolist(), ends.tolist(), lower)


def kinds_of(text: str) -> str:
    """Return the kind of each character of a text, a letter each."""
    rules = word_rules()
    return "".join([rules.letters[rules.kinds[ord(letter)]] for letter in text])


def word_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each word of a text."""
    rules = word_rules()
    kinds, sizes = [rules.kinds[ord(letter)] for letter in text], [1 + (ord(letter) > 0xFFFF) for letter in text]
    at = 0
    while at < len(text):
        state, size, end = 0, 0, at
        for read in range(at, len(text)):
            size += sizes[read]
            state = rules.steps[state][kinds[read]]
            if state < 0 or size > LONGEST_UNITS:
                break
            if rules.ends[state]:
                end = read + 1
        if end > at:
            yield at, end
        at = max(end, at + 1)


def _lower(code: int) -> int:
    """Return the lower case of a character as Java does: one character, `i` for a capital I with a dot."""
    return ord(chr(code).lower()[0])


def _kinds() -> tuple[str, npt.NDArray[np.uint8]]:
    """Return all kinds, and for each character the position of its kind."""
    lines = (files("hybrid_cli.lexical") / "word_kinds.txt").read_text("utf-8").splitlines()
    begins, kinds = zip(*(line.split() for line in lines if not line.startswith("//")), strict=True)
    letters = "".join(sorted(set(kinds)))
    sizes = np.diff([*(int(begin, 16) for begin in begins), _CODES])
    return letters, np.repeat(np.array([letters.index(kind) for kind in kinds], np.uint8), sizes)


def _word() -> Rule:
    connectors = Star(_with("_"))
    numbers = _joined(_with("ND"), either(connectors, _with("nb'")))
    letters = _joined(_with("AHB"), either(connectors, _with("lb'")))
    hebrew = seq(_with("H"), either(_with("'"), seq(_with('"'), _with("H"))))
    part = either(_joined(_with("K"), connectors), plus(either(hebrew, numbers, letters)))
    usual = seq(connectors, _joined(part, plus(_with("_"))), connectors)
    keycap = seq(One("#D"), Star(One(_MARKS)), optional(One("e")), One("k"), Star(One(_MARKS)))
    return either(usual, keycap, _emoji(), seq(_with("R"), _with("R")), plus(_with("Ss")), _with("J"))


def _emoji() -> Rule:
    base = seq(Star(One("z")), One("EB"), Star(One(_MARKS)))
    picture = either(seq(base, optional(One("e"))), seq(optional(base), One("m"), Star(One(_MARKS))))
    tags = seq(plus(One("g")), One("h"))
    return seq(picture, either(Star(seq(One("z"), picture)), tags))


def _with(kinds: str) -> Rule:
    """Return the rule of a character with its marks."""
    return seq(One(kinds), Star(One(_MARKS + "te")))


def _joined(rule: Rule, between: Rule) -> Rule:
    """Return the rule of one or more texts of a rule, with a text of another rule between each two."""
    return seq(rule, Star(seq(between, rule)))
