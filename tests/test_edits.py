"""Word deletion and word order swap, and common properties of all attacks that edit words."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.draws import draw
from hybrid_cli.perturbations.attack import Inputs, Rewrite
from hybrid_cli.perturbations.attacks import ATTACKS, SETS
from hybrid_cli.perturbations.edits import WORD, Edit, delete_word, edit_words, swap_words
from hybrid_cli.settings import Perturb

SYNONYMS = "cat\tfeline\nsalt\tsodium\tsea salt\nthe\tthis\n"
LOCAL = [name for name in SETS["lite"] if name != "back-translation"]


def of(edit: Edit, text: str, fraction: float = 0.1, seed: int = 0, qid: str = "q") -> str:
    return edit_words(text, edit, fraction, partial(draw, seed, "test", qid))


def every(edit: Edit, text: str, fraction: float = 0.1) -> set[str]:
    """Return the results for 300 seeds."""
    return {of(edit, text, fraction, seed) for seed in range(300)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("what's a 1-D array?", ["what's", "a", "1-D", "array"]),
        ("'numpy' and e.g. read_csv, x*y @me a@b.c", ["numpy", "and", "e", "g", "read_csv", "x*y", "me", "a@b", "c"]),
        ("-- _ ' ...", []),
        ("Émile, naïve: 3rd", ["Émile", "naïve", "3rd"]),
    ],
)
def test_words_are_letters_and_digits_with_some_marks_inside(text: str, found: list[str]) -> None:
    assert WORD.findall(text) == found


def test_a_word_is_deleted_with_one_white_space_and_no_punctuation() -> None:
    assert every(delete_word, "The cat, it sat.") == {"cat, it sat.", "The, it sat.", "The cat, sat.", "The cat, it."}


def test_any_two_words_are_swapped_and_everything_else_is_kept() -> None:
    assert every(swap_words, "(one)  two, three") == {"(two)  one, three", "(three)  two, one", "(one)  three, two"}


@pytest.mark.parametrize("edit", [delete_word, swap_words])
@pytest.mark.parametrize("text", ["", "   ", "?!", "one", " one?"])
def test_a_query_of_one_word_is_kept(edit: Edit, text: str) -> None:
    assert every(edit, text) == {text}


@pytest.mark.parametrize(
    ("words", "fraction", "deleted"), [(19, 0.1, 1), (20, 0.1, 2), (39, 0.1, 3), (8, 0.5, 4), (5, 1.0, 4), (3, 0.0, 1)]
)
def test_a_fraction_of_the_words_is_changed_rounded_down_but_at_least_one(
    words: int, fraction: float, deleted: int
) -> None:
    text = " ".join(f"w{number}" for number in range(words))
    assert len(of(delete_word, text, fraction).split()) == words - deleted


def test_one_swap_changes_two_words() -> None:
    """One swap changes 2 of 20 words; 3 of 30 words need a second swap."""
    for words, moved in ((20, {2}), (30, {3, 4})):
        text = [f"w{number}" for number in range(words)]
        found = [of(swap_words, " ".join(text), seed=seed).split() for seed in range(100)]
        assert {sum(old != new for old, new in zip(text, each, strict=True)) for each in found} == moved
        assert all(Counter(each) == Counter(text) for each in found)


@pytest.fixture(scope="module")
def rewrites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rewrite]:
    table = tmp_path_factory.mktemp("synonyms") / "synonyms.tsv"
    table.write_text(SYNONYMS, "utf-8")
    settings = Perturb(Path("queries.tsv"), attacks=["lite"], word_fraction=0.4, output=Path("out"))
    inputs = Inputs(pl.DataFrame(), {"synonyms": table}, settings)
    return {name: ATTACKS[name].start(inputs) for name in LOCAL}


texts = st.lists(
    st.sampled_from(["the", "Cat", "salt", "x", "sat", "don't", "1-D", "?", ",", "-", "\n", "é"]), max_size=9
)


@pytest.mark.parametrize("name", LOCAL)
@given(parts=texts, seed=st.integers(0, 5), glue=st.sampled_from([" ", "  ", ", "]))
def test_no_attack_empties_a_query(
    rewrites: dict[str, Rewrite], name: str, parts: list[str], seed: int, glue: str
) -> None:
    text = glue.join(parts)
    found = rewrites[name]("q", text, partial(draw, seed, name, "q")).text
    before, after = WORD.findall(text), WORD.findall(found)
    assert bool(before) == bool(after)
    assert bool(text.strip()) == bool(found.strip())
    if name == "word-deletion":
        assert Counter(after) <= Counter(before)
    elif name == "word-order-swap":
        assert Counter(after) == Counter(before)
    if name in ("synonym-replacement", "word-order-swap"):  # the text between words is kept
        assert WORD.split(text) == WORD.split(found)
    assert found == rewrites[name]("q", text, partial(draw, seed, name, "q")).text


@pytest.mark.parametrize("name", LOCAL)
def test_draws_depend_on_seed_attack_and_id(rewrites: dict[str, Rewrite], name: str) -> None:
    text = "the salt cat sat on the salt cat of the sea with salt, cat, salt and cat"

    def under(seed: int = 0, attack: str = name, qid: str = "q") -> str:
        return rewrites[name]("q", text, partial(draw, seed, attack, qid)).text

    assert len({under(seed=seed) for seed in range(20)}) > 3
    assert len({under(qid=f"q{number}") for number in range(20)}) > 3
    assert len({under(attack=attack) for attack in map(str, range(20))}) > 3
