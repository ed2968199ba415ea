"""Where synonyms come from, and the two attacks that put single ones into a query (methods 11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from hybrid_cli.collections.readers import lines
from hybrid_cli.errors import InputError
from hybrid_cli.perturbations.attack import Draw, Given
from hybrid_cli.perturbations.edits import WORD, Edit, Edits, untouched
from hybrid_cli.perturbations.function_words import is_stop_word
from hybrid_cli.perturbations.wordnet import WordNet


class Thesaurus(Protocol):
    """What has synonyms; words come in any case of letters."""

    def synonyms(self, word: str) -> Sequence[str]:
        """Other words for `word`, or several words; no form of the word itself."""

    def lemmas(self, word: str) -> Sequence[str]:
        """The same with the base forms of the word."""


class Table:
    """Synonyms that a person gave: a word, then its synonyms, between tabs; a word may have several lines."""

    def __init__(self, path: Path):
        self._synonyms: dict[str, list[str]] = {}
        for _, (word, *others) in lines.columns(path, 2, "a word, then its synonyms"):
            given = (other.strip() for other in others)
            self._synonyms.setdefault(word.strip().lower(), []).extend(other for other in given if other)
        if not self._synonyms:
            raise InputError(f"{path}: has no synonyms; each line needs a word, then its synonyms, between tabs")

    def synonyms(self, word: str) -> Sequence[str]:
        """What the person gave, in that order."""
        return self._synonyms.get(word.lower(), [])

    lemmas = synonyms


def thesaurus(files: Mapping[str, Path]) -> Thesaurus:
    """The table `synonyms`, or else `wordnet`."""
    return Table(files["synonyms"]) if "synonyms" in files else WordNet(files["wordnet"])


def _single_words(given: Given) -> Callable[[str], Sequence[str]]:
    """The lemmas of a word in lower case that are one word, and another word."""
    lemmas = thesaurus(given.files).lemmas
    return cache(lambda word: [each for each in lemmas(word) if each.lower() != word and WORD.fullmatch(each)])


def replacement(given: Given) -> Edit:
    """Of all pairs of a word, no stop word, and a synonym of it, take one: words with many synonyms are taken often."""
    find = _single_words(given)

    def replace(words: Sequence[str], edits: Edits, draw: Draw) -> None:
        places = [place for place in untouched(words, edits) if not is_stop_word(words[place])]
        pairs = [(place, synonym) for place in places for synonym in find(words[place].lower())]
        if pairs:
            place, synonym = pairs[draw("pair") % len(pairs)]
            edits[place] = synonym

    return replace


def insertion(given: Given) -> Edit:
    """Put a synonym of a random word, a stop word perhaps, before a random word; words are tried a few times."""
    find = _single_words(given)

    def insert(words: Sequence[str], edits: Edits, draw: Draw) -> None:
        places = untouched(words, edits)
        if not places:
            return
        tried = (find(words[draw(f"word {number}") % len(words)].lower()) for number in range(given.how.tries))
        found = next((synonyms for synonyms in tried if synonyms), None)
        if found:
            place = places[draw("place") % len(places)]
            edits[place] = f"{found[draw('synonym') % len(found)]} {words[place]}"

    return insert
