"""The synonym adversary on single words: replaced and unchanged words."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.draws import draw
from hybrid_cli.perturbations.attack import Attacked
from hybrid_cli.perturbations.edits import FUNCTION_WORDS
from hybrid_cli.perturbations.synonyms import replace_matches

# Synonyms are in capitals, to distinguish them from the original words; each of their words is a term.
SYNONYMS = {
    "moon": ["NIGHT LAMP", "LUNE"],
    "sea": ["BRINE", "SALT FLOOD"],
    "salt": ["SODIUM"],
    "can": ["TIN"],
    "lungs": [],
}
WORDS = [*SYNONYMS, "the", "tides", "x2", "naïve", "read_csv"]
BETWEEN = [" ", "  ", ", ", "-", "\t", " (", "! ", "\n", " ... ", "'s "]


def terms(words: str) -> frozenset[str]:
    return frozenset(words.lower().split())


def attack(text: str, *relevant: str, seed: int = 0) -> Attacked:
    return replace_matches(
        text, set(relevant), terms, lambda word: SYNONYMS.get(word, []), lambda word: draw(seed, "test", "q", word)
    )


queries = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(BETWEEN)), max_size=8).map(
    lambda pieces: "".join(chain.from_iterable(pieces))
)
documents = st.sets(st.sampled_from([*WORDS, "night", "lune", "brine", "flood", "sodium", "tin"]))


def test_counts_of_words() -> None:
    found = attack("the moon, salt and lungs of the sea", "moon", "salt", "sodium", "lungs", "the", "and")
    assert found.counts == {"matched": 3, "replaced": 1, "without_synonym": 2}


@pytest.mark.parametrize(
    ("text", "attacked"),
    [
        ("the moon's salt", "the {}'s SODIUM"),
        ("the moon\u2019s", "the {}\u2019s"),
        ("moon-salt", "{}-SODIUM"),
        ("moon_salt", "moon_salt"),
        ("s moon", "s {}"),
    ],
)
def test_boundaries_of_words(text: str, attacked: str) -> None:
    assert attack(text, "moon", "salt", "lune").text == attacked.format("NIGHT LAMP")


def test_capitalization_is_copied() -> None:
    found = replace_matches("Moon moon MOON", {"moon"}, terms, lambda word: ["lune"], lambda word: 0)
    assert found.text == "Lune lune Lune"


def test_a_synonym_without_terms_is_not_used() -> None:
    def only_long(words: str) -> set[str]:
        return {word for word in words.split() if len(word) > 2}

    found = replace_matches("moon", {"moon"}, only_long, lambda word: ["it"], lambda word: 0)
    assert (found.text, found.counts["matched"], found.counts["replaced"]) == ("moon", 1, 0)


@given(queries, documents, st.integers(0, 5))
def test_only_matching_words_change_and_no_relevant_term_is_added(text: str, relevant: set[str], seed: int) -> None:
    found = attack(text, *relevant, seed=seed)
    pattern, places = "", []
    for piece in re.split(r"(\w+)", text):
        fit = [name for name in SYNONYMS.get(piece, ()) if terms(name).isdisjoint(relevant)]
        matched = piece in relevant and piece not in FUNCTION_WORDS
        pattern += f"({'|'.join(map(re.escape, fit))})" if matched and fit else re.escape(piece)
        places += [piece] if matched and fit else []
    whole = re.fullmatch(pattern, found.text)
    assert whole, (text, found.text)
    assert len(set(zip(places, whole.groups(), strict=True))) == len(set(places))  # one synonym per word
    assert found.counts["replaced"] == len(places) <= found.counts["matched"]
    assert relevant.isdisjoint(terms(" ".join(whole.groups())))


@given(st.text(), st.sets(st.text(min_size=1)))
def test_any_text_without_synonyms_is_unchanged(text: str, relevant: set[str]) -> None:
    assert replace_matches(text, relevant, terms, lambda word: [], lambda word: 0).text == text


def test_a_draw_depends_on_each_part_of_its_key() -> None:
    keys = [(0, "a", "q", "w"), (1, "a", "q", "w"), (0, "b", "q", "w"), (0, "a", "r", "w"), (0, "a", "q", "v")]
    assert len({draw(*key) for key in keys}) == len(keys)
    assert (
        draw(0, "synonym-adversary", "q1", "moon") == 7391787412327152590
    )  # published query sets must stay reproducible
