"""Char swap: one letter of a word is wrong (TextAttack's CharSwapAugmenter, methods 11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters

from hybrid_cli.perturbations.attack import Draw
from hybrid_cli.perturbations.edits import Edits, untouched
from hybrid_cli.perturbations.function_words import is_stop_word


def swap_characters(words: Sequence[str], edits: Edits, draw: Draw) -> None:
    """Each word that is no stop word is offered one change of each of four kinds; one offer of all is taken.

    Words of one character are left alone; a change that leaves a word as it is is no offer.
    """
    offers = []
    for position in untouched(words, edits):
        word = words[position]
        if len(word) > 1 and not is_stop_word(word):
            changed = (kind(word, draw(f"{position} {name}")) for name, kind in KINDS.items())
            offers += [(position, new) for new in changed if new != word]
    if offers:
        position, new = offers[draw("offer") % len(offers)]
        edits[position] = new


def _neighbours(word: str, number: int) -> str:
    """Two neighbouring characters change places."""
    place = number % (len(word) - 1)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def _substitution(word: str, number: int) -> str:
    """A random letter of either case stands for a character."""
    rest, place = divmod(number, len(word))
    return word[:place] + ascii_letters[rest % len(ascii_letters)] + word[place + 1 :]


def _deletion(word: str, number: int) -> str:
    """A character is gone."""
    place = number % len(word)
    return word[:place] + word[place + 1 :]


def _insertion(word: str, number: int) -> str:
    """A random letter stands before a character, so never at the end."""
    rest, place = divmod(number, len(word))
    return word[:place] + ascii_letters[rest % len(ascii_letters)] + word[place:]


KINDS: dict[str, Callable[[str, int], str]] = {
    "neighbours": _neighbours,
    "substitution": _substitution,
    "deletion": _deletion,
    "insertion": _insertion,
}
