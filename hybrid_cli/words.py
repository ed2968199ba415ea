"""Words of a text in any script: counted, located, and as places where a text may be cut.

In scripts with spaces, a word is the text between two spaces. Scripts without spaces do not mark words, so their number
is estimated, without a dictionary (our choice): each Chinese character and each kana is a word, three characters of
Thai, Lao, Khmer, Burmese and similar scripts are a word, and each Tibetan syllable is a word. A character is a grapheme
cluster: a letter with its marks, which is never cut. Punctuation belongs to the word before it, an opening bracket to
the word after it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
    import regex

Span = tuple[int, int]

_IDEOGRAPHS = (
    r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Nushu}\p{Tangut}\p{Khitan_Small_Script}"
    r"\u30FC\uFF70]--\p{M}]"
)
_ALPHABETIC = (
    r"[[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}\p{Javanese}\p{Balinese}]"
    r"&&[\p{L}\p{N}]--[\u0E33\u0EB3]]"  # without the two vowels that never begin a character
)
_TIBETAN = r"[\p{Tibetan}&&[\p{L}\p{N}]]"
UNSPACED = rf"[{_IDEOGRAPHS}{_ALPHABETIC}{_TIBETAN}]"  # letters of scripts without spaces; needs `regex.V1`
_SPACE = r"\s\x1C-\x1F"  # as `str.isspace`
_OPENING = r"[\p{Ps}\p{Pi}\p{Grapheme_Cluster_Break=Prepend}]"
_CLOSING = rf"[[\p{{Po}}\p{{Pe}}\p{{Pf}}\p{{Pd}}\p{{Pc}}\p{{M}}\u200B-\u200F\u2060\uFEFF]--{_OPENING}]"
_LETTER = r"[\p{L}\p{N}]"
_PAIR, _TRIPLE = 2, 3  # characters of a term: of Chinese and kana, and of an alphabetic script

# Any text in a script without spaces has a character of these blocks. The standard library finds them fastest.
_BLOCKS = re.compile(
    "[\u0e01-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\u2e80-\u2fdf\u3005-\u312f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\ua980-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f"
    "\U00016fe0-\U0003ffff]"
)
_SPACED_WORD = re.compile(r"\S+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")  # of program code
_NAME_PART = re.compile(r"[A-Z][A-Z0-9]*(?![a-z])|[A-Z]?[a-z0-9]+")


def _cluster(letters: str) -> str:
    """Return a pattern of one character of some letters, with all marks after it."""
    return rf"(?:(?={letters})\X(?:(?=\p{{M}})\X)*+)"


def _units(ideographs: int) -> str:
    """Return a pattern of one word in a script without spaces."""
    sizes = {_IDEOGRAPHS: f"{{1,{ideographs}}}+", _ALPHABETIC: f"{{1,{_TRIPLE}}}+", _TIBETAN: "++"}
    return f"(?:{'|'.join(_cluster(letters) + size for letters, size in sizes.items())})"


def _mixed_words(ideographs: int) -> str:
    """Return a pattern of the words of a text in scripts with and without spaces; it matches all but white space."""
    before = rf"[{_OPENING}[^{_SPACE}{UNSPACED}\p{{L}}\p{{N}}]]"
    spaced = rf"(?:[^{_SPACE}{UNSPACED}{_OPENING}]++|{_OPENING}++(?!{UNSPACED}))++"
    return rf"{before}*+{_units(ideographs)}{_CLOSING}*+|{spaced}|[^{_SPACE}]"


@cache
def _compiled(pattern: str) -> regex.Pattern[str]:
    """Return a pattern, compiled on first use: most texts need none of them."""
    import regex

    return regex.compile(pattern, regex.V1)


# A term in a script without spaces. Chinese words have one or two characters, and one alone has many meanings: texts
# are compared and changed by two.
TERM = _units(_PAIR)
_MIXED_WORDS, _MIXED_TERMS = _mixed_words(1), _mixed_words(_PAIR)
_RUNS = (  # the groups are numbered as in `_SIZES`
    rf"({_cluster(_IDEOGRAPHS)}++)|({_cluster(_ALPHABETIC)}++)|({_cluster(_TIBETAN)}++)"
)
_SIZES = (_PAIR, _TRIPLE, 1)
_CHARACTER = r"\X(?:(?=\p{M})\X)*+"
_ASCII_WORD = re.compile(r"\w+")
_PLAIN_WORD = rf"[[\p{{L}}\p{{N}}\p{{M}}_]--{UNSPACED}]+"
_HIRAGANA = r"[\p{Hiragana}\u30FC\p{M}]+"


def has_unspaced(text: str) -> bool:
    """Test whether a text may contain a script without spaces."""
    return not text.isascii() and _BLOCKS.search(text) is not None


def spans(text: str, *, letters: bool = False, pairs: bool = False) -> list[Span]:
    """Return start and end of each word.

    Args:
        text: any text.
        letters: leave out words without a letter or digit.
        pairs: two Chinese characters or kana are one word.
    """
    matcher = _compiled(_MIXED_TERMS if pairs else _MIXED_WORDS) if has_unspaced(text) else _SPACED_WORD
    matches = [match.span() for match in matcher.finditer(text)]
    return [span for span in matches if _compiled(_LETTER).search(text, *span)] if letters else matches


def plain_spans(text: str) -> list[Span]:
    """Return start and end of each word in scripts with spaces, without punctuation: letters, digits, marks and `_`."""
    return [match.span() for match in (_ASCII_WORD if text.isascii() else _compiled(_PLAIN_WORD)).finditer(text)]


def plain_words(text: str) -> list[str]:
    """Return the words of `plain_spans`."""
    return [text[begin:end] for begin, end in plain_spans(text)]


def compound_names(text: str) -> Iterator[tuple[re.Match[str], list[str]]]:
    """Yield the names of program code that have parts, such as `getUserById` and `foo.bar_baz`, with their parts.

    The parts of a dotted name are the names between the dots and their parts; a part has two characters or more.
    """
    for name in _NAME.finditer(text):
        between = name[0].split(".")
        pieces = [(each, _NAME_PART.findall(each)) for each in between]
        parts = [part for each, own in pieces for part in ([each] * (len(between) > 1) + own * (len(own) > 1))]
        if parts := [part for part in parts if len(part) > 1 and part != name[0]]:
            yield name, parts


def with_name_parts(text: str) -> str:
    """Return a text with the parts of each name of `compound_names` after it."""
    pieces, end = [], 0
    for name, parts in compound_names(text):
        pieces += [text[end : name.end()], f" {' '.join(parts)} "]
        end = name.end()
    return "".join([*pieces, text[end:]]) if pieces else text


def count(text: str) -> int:
    """Return the number of words."""
    return len(spans(text)) if has_unspaced(text) else len(text.split())


def counts(texts: pl.Series, *, letters: bool = False) -> pl.Series:
    """Return the number of words of each text; see `spans`."""
    import polars as pl

    numbers = texts.str.count_matches(r"\S*[\p{L}\p{N}]\S*" if letters else r"\S+")
    rare = texts.str.contains(_BLOCKS.pattern).fill_null(value=False).arg_true()
    if not len(rare):
        return numbers
    own = [len(spans(text, letters=letters)) for text in texts.gather(rare)]
    return numbers.scatter(rare, pl.Series(own, dtype=numbers.dtype))


# --------------------------------------------------------------------------------------------------------- short texts


def characters(text: str) -> list[str]:
    """Return the characters of a text as readers see them: letters with their marks."""
    return list(text) if text.isascii() else _compiled(_CHARACTER).findall(text)


def word_start(text: str, latest: int) -> int:
    """Return the last start of a word at or before `latest`; 0 if there is none. White space must be folded."""
    if not has_unspaced(text):
        return text.rfind(" ", 0, max(0, latest)) + 1
    starts = [begin for begin, _ in spans(text)]
    return starts[number - 1] if (number := bisect_right(starts, latest)) else 0


def word_end(text: str, begin: int, most: int) -> int:
    """Return the last end of a word within `most` letters after `begin`; of a longer word, the end of a character."""
    if len(text) <= begin + most:
        return len(text)
    if has_unspaced(text):
        ends = [end for _, end in spans(text)]
        end = ends[number - 1] if (number := bisect_right(ends, begin + most)) else 0
    else:
        end = text.rfind(" ", begin, begin + most)
    return end if end > begin else begin + len(character_head(text[begin : begin + most + 1], most))


def character_head(text: str, most: int) -> str:
    """Return the whole characters of a text within `most` letters, at least a part of the first one."""
    if len(text) <= most or text.isascii():
        return text[:most]
    end = 0
    for match in _compiled(_CHARACTER).finditer(text):
        if match.end() > most:
            break
        end = match.end()
    return text[: end or most]


def head(text: str, most: int, mark: str = " ...") -> str:
    """Return a text of at most `most` letters, or its first words and a mark."""
    return text if len(text) <= most else text[: word_end(text, 0, most)] + mark


# -------------------------------------------------------------------------------------------------------- common words


def common(query: str) -> Callable[[str], list[Span]]:
    """Return a function that finds the parts of a text that a query contains too, in scripts without spaces.

    Such a part has at least two characters of Chinese or kana, three of an alphabetic script, or one Tibetan syllable;
    a shorter query, as a whole. Hiragana alone, mostly endings of words, count only if the query has nothing else.
    """
    terms = {query[begin:end] for begin, end in _terms(query)} if has_unspaced(query) else set()
    terms = {term for term in terms if not _compiled(_HIRAGANA).fullmatch(term)} or terms
    sizes = {len(characters(term)) for term in terms}

    def find(text: str) -> list[Span]:
        if not terms or not has_unspaced(text):
            return []
        return _joined(span for span in _terms(text, sizes) if text[span[0] : span[1]] in terms)

    return find


def _terms(text: str, sizes: Iterable[int] = ()) -> Iterator[Span]:
    """Yield overlapping terms of `sizes` characters, by default of the usual size of their script, by their start."""
    for run in _compiled(_RUNS).finditer(text):
        number = run.lastindex or 1
        ends = [run.start(), *(match.end() for match in _compiled(_CHARACTER).finditer(text, *run.span()))]
        whole = len(ends) - 1
        own = [whole] if number == len(_SIZES) else (sizes or [min(_SIZES[number - 1], whole)])
        for position, begin in enumerate(ends):
            for size in own:
                if position + size <= whole:
                    yield begin, ends[position + size]


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return spans, ordered by their start, without overlaps."""
    joined: list[Span] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def distinct(text: str) -> int:
    """Return about the number of terms in an index: different words, or overlapping terms in scripts without spaces."""
    if not has_unspaced(text):
        return len(set(text.split()))
    return len({text[begin:end] for begin, end in (*spans(text), *_terms(text))})
