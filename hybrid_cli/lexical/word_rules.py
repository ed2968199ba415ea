"""The English analyzer as tables for `word_kernels`.

Where Lucene's StandardTokenizer begins and ends a word is a table of states over kinds of characters. The rules are the
word boundaries of Unicode 12.1 (UAX 29) with Lucene's changes: ideographs and hiragana are words of one character, runs
of Thai, Lao, Khmer and Burmese characters are words, and so are emoji sequences (UTS 51). A word is the longest match
at its first character. The file `word_kinds.txt` holds the kinds of characters.
"""

from __future__ import annotations

import string
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hybrid_cli.lexical import english
from hybrid_cli.lexical.automaton import One, Rule, Star, compile_rule, either, optional, plus, seq

# Kinds of characters, one for each combination of properties that the rules distinguish: A letter, H Hebrew letter,
# N digit, D ASCII digit, K katakana, _ connector, J ideograph or hiragana, S South East Asian, E emoji, R regional
# indicator, B letter and emoji, # keycap base that is no digit, ' " quotes, l between letters, n between digits,
# b between letters or digits, . others. Marks belong to the character before them: s South East Asian, z zero width
# joiner, m emoji modifier, k keycap, g tag, h end of tags, x others, t text selector, e emoji selector.
_MARKS = "xszmkgh"
_CASED = "AB"
_CODES = 0x110000


class Table(NamedTuple):
    """A set of texts in UTF-8 with a value each, in the form of the kernels.

    Attributes:
        slots: [a power of 2] row of a text at the slot of its key or after it; -1 where empty.
        ends: [rows + 1] start of each text.
        letters: the texts.
        values: [rows] values.
        size: [1] number of texts.
    """

    slots: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    letters: npt.NDArray[np.uint8]
    values: npt.NDArray[np.int32]
    size: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, rows: int = 1 << 12) -> Table:
        """Return an empty table, at first with space for a number of rows."""
        slots, ends = np.full(2 * rows, -1, np.int32), np.zeros(rows + 1, np.int64)
        return cls(slots, ends, np.empty(8 * rows, np.uint8), np.empty(rows, np.int32), np.zeros(1, np.int64))

    def texts(self) -> pa.LargeStringArray:
        """Return the texts by row, without a copy."""
        size = int(self.size[0])
        return pa.LargeStringArray.from_buffers(size, pa.py_buffer(self.ends), pa.py_buffer(self.letters))


class Rules(NamedTuple):
    """The rules in the form of the kernels.

    Attributes:
        kinds: [0x110000] kind of each character.
        steps: [states, kinds] next state, -1 where no word continues; the first state is 0.
        ends: [states] whether a word can end in a state.
        upper, lower: characters above ASCII that have a lower case, ascending, and their lower case.
        stop_words: [words, letters] words that are no terms, from their last letter, padded with zeros.
        double_suffixes, single_suffixes, last_suffixes: [suffixes, letters] suffixes of three steps of the stemmer, as
            `stop_words`.
        double_replacements, single_replacements, last_replacements: [suffixes, letters] what replaces a suffix, padded
            with zeros.
    """

    kinds: npt.NDArray[np.uint8]
    steps: npt.NDArray[np.int16]
    ends: npt.NDArray[np.bool_]
    upper: npt.NDArray[np.int32]
    lower: npt.NDArray[np.int32]
    stop_words: npt.NDArray[np.uint8]
    double_suffixes: npt.NDArray[np.uint8]
    double_replacements: npt.NDArray[np.uint8]
    single_suffixes: npt.NDArray[np.uint8]
    single_replacements: npt.NDArray[np.uint8]
    last_suffixes: npt.NDArray[np.uint8]
    last_replacements: npt.NDArray[np.uint8]


@cache
def english_rules() -> Rules:
    """Return the rules of Lucene's English analyzer."""
    letters, kinds = _kinds()
    steps, ends = compile_rule(_word(), letters)
    cased = np.flatnonzero(np.isin(kinds, [letters.index(letter) for letter in _CASED])).tolist()
    pairs = [(code, _lower(code)) for code in cased if code > 0x7F]
    upper, lower = np.array([pair for pair in pairs if pair[0] != pair[1]], np.int32).T.copy()
    double, single = english.DOUBLE_SUFFIXES, english.SINGLE_SUFFIXES
    return Rules(
        kinds,
        steps,
        ends,
        upper,
        lower,
        _letters([word[::-1] for word in sorted(english.STOP_WORDS)]),
        _letters([suffix[::-1] for suffix, _ in double]),
        _letters([text for _, text in double]),
        _letters([suffix[::-1] for suffix, _ in single]),
        _letters([text for _, text in single]),
        _letters([suffix[::-1] for suffix in english.LAST_SUFFIXES]),
        _letters([""] * len(english.LAST_SUFFIXES)),
    )


@cache
def english_lists() -> tuple[bytes, list[list[int]], list[bool], dict[int, int]]:
    """Return kinds, steps and ends of the rules, and the lower case of characters, for loops of Python."""
    rules = english_rules()
    lower = dict(zip(rules.upper.tolist(), rules.lower.tolist(), strict=True))
    lower |= {ord(letter): ord(letter.lower()) for letter in string.ascii_uppercase}
    return rules.kinds.tobytes(), rules.steps.tolist(), rules.ends.tolist(), lower


def _letters(texts: list[str]) -> npt.NDArray[np.uint8]:
    """Return texts of up to 8 letters, [n, 8], padded with zeros."""
    return np.array(texts, "S8").view(np.uint8).reshape(-1, 8)


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
