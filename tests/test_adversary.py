"""The synonym adversary on plain words: what it may touch, what it must leave."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.perturbations.adversary import replace_matches
from hybrid_cli.perturbations.attack import draw
from hybrid_cli.perturbations.function_words import FUNCTION_WORDS

# Synonyms in capitals, so that a test can tell them from what was there; each word of one is a term.
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


def attack(text: str, *relevant: str, seed: int = 0):
    return replace_matches(
        text, set(relevant), terms, lambda word: SYNONYMS.get(word, []), lambda word: draw(seed, "test", "q", word)
    )


queries = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(BETWEEN)), max_size=8).map(
    lambda pieces: "".join(chain.from_iterable(pieces))
)
documents = st.sets(st.sampled_from([*WORDS, "night", "lune", "brine", "flood", "sodium", "tin"]))


def test_a_matched_word_becomes_a_synonym_and_the_rest_stays():
    assert attack("Salt, the salt -- of\tthe (Earth)?", "salt", "the").text == "SODIUM, the SODIUM -- of\tthe (Earth)?"


def test_a_word_that_no_relevant_document_has_stays():
    assert attack("salt of the moon", "tides") == attack("salt of the moon") == attack("salt of the moon", "the")
    assert attack("salt of the moon", "tides").text == "salt of the moon"


def test_a_synonym_that_a_relevant_document_has_is_never_taken_not_even_in_part():
    assert {attack("moon", "moon", "night", seed=seed).text for seed in range(20)} == {"LUNE"}
    assert {attack("sea", "sea", "brine", "flood", seed=seed).text for seed in range(20)} == {"sea"}


def test_every_synonym_that_fits_is_taken_for_some_seed():
    assert {attack("moon", "moon", seed=seed).text for seed in range(20)} == {"NIGHT LAMP", "LUNE"}


def test_words_are_counted():
    found = attack("the moon, salt and lungs of the sea", "moon", "salt", "sodium", "lungs", "the", "and")
    assert found.counts == {"matched": 3, "replaced": 1, "without_synonym": 2}


def test_function_words_stay_though_they_have_synonyms():
    assert attack("can salt", "can", "salt").text == "can SODIUM"
    assert "can" in FUNCTION_WORDS


@pytest.mark.parametrize(
    ("text", "attacked"),
    [
        ("the moon's salt", "the {}'s SODIUM"),  # a possessive keeps its end
        ("the moon\u2019s", "the {}\u2019s"),
        ("'moon'", "'{}'"),
        ("moon-salt", "{}-SODIUM"),
        ("moon_salt", "moon_salt"),
        ("moons", "moons"),
        ("s moon", "s {}"),
        ("", ""),
    ],
)
def test_where_a_word_begins_and_ends(text, attacked):
    assert attack(text, "moon", "salt", "lune").text == attacked.format("NIGHT LAMP")


def test_a_capital_is_handed_on():
    found = replace_matches("Moon moon MOON", {"moon"}, terms, lambda word: ["lune"], lambda word: 0)
    assert found.text == "Lune lune Lune"


def test_a_synonym_without_terms_cannot_be_searched_for_and_is_not_taken():
    def only_long(words: str) -> set[str]:
        return {word for word in words.split() if len(word) > 2}

    found = replace_matches("moon", {"moon"}, only_long, lambda word: ["it"], lambda word: 0)
    assert (found.text, found.counts["matched"], found.counts["replaced"]) == ("moon", 1, 0)


@given(queries, documents, st.integers(0, 5))
def test_only_matched_words_change_and_nothing_of_a_relevant_document_comes_in(text, relevant, seed):
    found = attack(text, *relevant, seed=seed)
    pattern, places = "", []
    for piece in re.split(r"(\w+)", text):
        fit = [name for name in SYNONYMS.get(piece, ()) if terms(name).isdisjoint(relevant)]
        matched = piece in relevant and piece not in FUNCTION_WORDS
        pattern += f"({'|'.join(map(re.escape, fit))})" if matched and fit else re.escape(piece)
        places += [piece] if matched and fit else []
    whole = re.fullmatch(pattern, found.text)
    assert whole, (text, found.text)
    assert len(set(zip(places, whole.groups(), strict=True))) == len(set(places))  # one synonym for each word
    assert found.counts["replaced"] == len(places) <= found.counts["matched"]
    assert relevant.isdisjoint(terms(" ".join(whole.groups())))


@given(queries, documents)
def test_without_words_to_replace_the_text_is_the_same_bytes(text, relevant):
    assert replace_matches(text, relevant, terms, lambda word: [], lambda word: 0).text == text


@given(st.text(), st.sets(st.text(min_size=1)))
def test_any_text_survives(text, relevant):
    assert replace_matches(text, relevant, terms, lambda word: [], lambda word: 0).text == text


def test_a_draw_depends_on_each_part_of_its_key():
    keys = [(0, "a", "q", "w"), (1, "a", "q", "w"), (0, "b", "q", "w"), (0, "a", "r", "w"), (0, "a", "q", "v")]
    assert len({draw(*key) for key in keys}) == len(keys)
    assert draw(0, "synonym-adversary", "q1", "moon") == 7391787412327152590  # for sets made by others
