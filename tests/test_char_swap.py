"""The attack `char-swap`: changed words and kinds of changes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from string import ascii_letters

import pytest

from hybrid_cli.draws import draw
from hybrid_cli.perturbations.edits import CHARACTER_CHANGES, edit_words, is_stop_word, swap_characters


def of(text: str, seed: int = 0) -> str:
    return edit_words(text, swap_characters, 0.1, partial(draw, seed, "char-swap", "q"))


def all_of(kind: str, word: str) -> set[str]:
    return {"".join(CHARACTER_CHANGES[kind](list(word), number)) for number in range(len(word) * 52)}


def test_the_four_kinds_of_change() -> None:
    assert all_of("neighbours", "abc") == {"bac", "acb"}
    assert all_of("deletion", "abc") == {"bc", "ac", "ab"}
    assert all_of("substitution", "abc") == {
        "abc"[:place] + letter + "abc"[place + 1 :] for place in range(3) for letter in ascii_letters
    }
    assert all_of("insertion", "abc") == {
        "abc"[:place] + letter + "abc"[place:] for place in range(3) for letter in ascii_letters
    }  # never after the last letter


def test_one_word_changes_and_everything_else_is_kept() -> None:
    for seed in range(200):
        first, second = of("heart, (lungs)?", seed).split(", ")
        assert (first == "heart") != (second == "(lungs)?")
        assert second[0] == "("
        assert second[-2:] == ")?"


@pytest.mark.parametrize("text", ["The of IT", "a 1 x", "don't You'll it's", "?"])
def test_stop_words_and_single_characters_are_kept(text: str) -> None:
    assert {of(text, seed) for seed in range(100)} == {text}


def test_words_and_changes_are_equally_likely() -> None:
    """A swap cannot change words of equal letters: six proposals remain, three for each word."""
    found = Counter(of("oo zzz", seed).split()[0] == "oo" for seed in range(6000))
    assert 2800 < found[True] < 3200
    lengths = Counter(len(of("zzz", seed)) for seed in range(6000))
    assert all(1800 < lengths[length] < 2200 for length in (2, 3, 4))


def test_contractions_are_stop_words_and_possessives_are_not() -> None:
    assert all(map(is_stop_word, ["the", "THE", "don't", "Isn't", "they've", "he'd", "won", "further"]))
    assert not any(map(is_stop_word, ["cat", "cat's", "can-can", "the-", "moon", "o'clock", ""]))
