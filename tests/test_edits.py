"""Word deletion and word order swap, and what all attacks on a share of the words have in common."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import get_args

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli import config
from hybrid_cli.config import Perturbation
from hybrid_cli.perturbations.attack import Given, draw
from hybrid_cli.perturbations.attacks import ATTACKS, SETS
from hybrid_cli.perturbations.edits import WORD, delete_word, edited, swap_words

SYNONYMS = "cat\tfeline\nsalt\tsodium\tsea salt\nthe\tthis\n"
LOCAL = [name for name in SETS["lite"] if name != "back-translation"]


def of(edit, text: str, share: float = 0.1, seed: int = 0, qid: str = "q") -> str:
    return edited(text, edit, share, partial(draw, seed, "test", qid))


def every(edit, text: str, share: float = 0.1) -> set[str]:
    """What becomes of `text` under 300 seeds."""
    return {of(edit, text, share, seed) for seed in range(300)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("what's a 1-D array?", ["what's", "a", "1-D", "array"]),
        ("'numpy' and e.g. read_csv, x*y @me a@b.c", ["numpy", "and", "e", "g", "read_csv", "x*y", "me", "a@b", "c"]),
        ("-- _ ' ...", []),
        ("Émile, naïve: 3rd", ["Émile", "naïve", "3rd"]),
    ],
)
def test_words_are_letters_and_digits_with_some_marks_inside(text, words):
    assert WORD.findall(text) == words


def test_any_one_word_is_deleted_with_one_white_space_and_no_punctuation():
    assert every(delete_word, "The cat, it sat.") == {"cat, it sat.", "The, it sat.", "The cat, sat.", "The cat, it."}


def test_any_word_changes_places_with_any_other_and_the_rest_stays():
    assert every(swap_words, "(one)  two, three") == {"(two)  one, three", "(three)  two, one", "(one)  three, two"}


@pytest.mark.parametrize("edit", [delete_word, swap_words])
@pytest.mark.parametrize("text", ["", "   ", "?!", "one", " one?"])
def test_a_query_of_one_word_stays(edit, text):
    assert every(edit, text) == {text}


def test_equal_words_may_change_places_and_leave_the_query_as_it_is():
    assert "to be or not to be" in every(swap_words, "to be or not to be")


@pytest.mark.parametrize(
    ("words", "share", "deleted"), [(19, 0.1, 1), (20, 0.1, 2), (39, 0.1, 3), (8, 0.5, 4), (5, 1.0, 4), (3, 0.0, 1)]
)
def test_a_share_of_the_words_is_changed_rounded_down_and_one_at_least(words, share, deleted):
    text = " ".join(f"w{number}" for number in range(words))
    assert len(of(delete_word, text, share).split()) == words - deleted


def test_one_swap_changes_two_words():
    """Of 20 words two are to be changed, which one swap does; of 30 words three, which takes a second."""
    for words, moved in ((20, {2}), (30, {3, 4})):
        text = [f"w{number}" for number in range(words)]
        found = [of(swap_words, " ".join(text), seed=seed).split() for seed in range(100)]
        assert {sum(old != new for old, new in zip(text, each, strict=True)) for each in found} == moved
        assert all(Counter(each) == Counter(text) for each in found)


def test_the_attacks_are_those_that_may_be_chosen():
    assert tuple(ATTACKS) == get_args(config.Attack)
    assert SETS["lite"] == tuple(ATTACKS)[:6]


@pytest.fixture(scope="module")
def rewrites(tmp_path_factory):
    table = tmp_path_factory.mktemp("synonyms") / "synonyms.tsv"
    table.write_text(SYNONYMS, "utf-8")
    files = {"synonyms": table}
    return {name: ATTACKS[name].begin(Given(pl.DataFrame(), files, Perturbation(share=0.4))) for name in LOCAL}


texts = st.lists(
    st.sampled_from(["the", "Cat", "salt", "x", "sat", "don't", "1-D", "?", ",", "-", "\n", "é"]), max_size=9
)


@pytest.mark.parametrize("name", LOCAL)
@given(parts=texts, seed=st.integers(0, 5), glue=st.sampled_from([" ", "  ", ", "]))
def test_no_attack_leaves_a_query_without_words_or_adds_anything_else(rewrites, name, parts, seed, glue):
    text = glue.join(parts)
    found = rewrites[name]("q", text, partial(draw, seed, name, "q")).text
    before, after = WORD.findall(text), WORD.findall(found)
    assert bool(before) == bool(after)
    assert bool(text.strip()) == bool(found.strip())
    if name == "word-deletion":
        assert Counter(after) <= Counter(before)
    elif name == "word-order-swap":
        assert Counter(after) == Counter(before)
    if name in ("synonym-replacement", "word-order-swap"):  # what stands between words stays there
        assert WORD.split(text) == WORD.split(found)
    assert found == rewrites[name]("q", text, partial(draw, seed, name, "q")).text


@pytest.mark.parametrize("name", LOCAL)
def test_chance_comes_from_seed_attack_and_id(rewrites, name):
    text = "the salt cat sat on the salt cat of the sea with salt, cat, salt and cat"

    def under(seed: int = 0, attack: str = name, qid: str = "q") -> str:
        return rewrites[name]("q", text, partial(draw, seed, attack, qid)).text

    assert len({under(seed=seed) for seed in range(20)}) > 3
    assert len({under(qid=f"q{number}") for number in range(20)}) > 3
    assert len({under(attack=attack) for attack in map(str, range(20))}) > 3
