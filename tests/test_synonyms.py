"""Synonyms from WordNet or a person's table, put in a word's place or beside it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from hybrid_cli.config import Perturbation
from hybrid_cli.errors import InputError
from hybrid_cli.perturbations.attack import Given, draw
from hybrid_cli.perturbations.edits import edited
from hybrid_cli.perturbations.synonyms import Table, insertion, replacement, thesaurus

WORDNET = {"wordnet": Path(__file__).parent / "data" / "wordnet"}


def every(begin, text: str, files=WORDNET, **settings) -> Counter[str]:
    """What becomes of `text` under 300 seeds."""
    edit = begin(Given(pl.DataFrame(), files, Perturbation(**settings)))
    return Counter(edited(text, edit, 0.1, partial(draw, seed, "test", "q")) for seed in range(300))


def test_a_word_becomes_a_single_word_of_any_synset():
    """`night lamp` and `railway car` are two words; `Moon` would be the word itself."""
    assert set(every(replacement, "what is the Moon?")) == {"what is the Luna?", "what is the tide?"}


def test_a_form_may_become_its_base_form():
    assert set(every(replacement, "mice")) == {"mouse", "nibbler"}


def test_pairs_of_word_and_synonym_are_as_likely_so_words_with_many_are_taken_often():
    """`boxes` has the two `box`, `crate`, `oceans` the two `ocean`, `deep`, `salt` has `sodium`."""
    found = every(replacement, "boxes oceans salt")
    boxes, oceans = {"box oceans salt", "crate oceans salt"}, {"boxes ocean salt", "boxes deep salt"}
    assert set(found) == boxes | oceans | {"boxes oceans sodium"}
    assert all(35 < count < 85 for count in found.values())


def test_stop_words_have_no_replacement_though_wordnet_has_one():
    assert set(every(replacement, "Can you have moss")) == {"Can you have moss"}


def test_a_synonym_is_put_before_any_word_even_of_a_stop_word():
    """`can` is of metal here: insertion may hit it, and puts `tin` anywhere but at the end."""
    assert set(every(insertion, "Can, (can)?")) == {"tin Can, (can)?", "Can, (tin can)?"}


def test_words_are_tried_a_few_times_only():
    text = " ".join(["moss"] * 9 + ["box"])
    unchanged = {tries: every(insertion, text, tries=tries)[text] for tries in (1, 7)}
    assert 250 < unchanged[1] < 290  # .9 of 300
    assert 115 < unchanged[7] < 175  # .9 to the 7th
    assert set(every(insertion, "moss")) == {"moss"}


def test_a_table_stands_in_wordnets_place(tmp_path):
    table = tmp_path / "synonyms.tsv"
    table.write_text("Moon\tsatellite\t earth's moon \nsea\tdeep\nmoon\tLuna\n", "utf-8")
    assert Table(table).synonyms("MOON") == ["satellite", "earth's moon", "Luna"]
    assert thesaurus({"synonyms": table, **WORDNET}).lemmas("boxes") == []
    assert set(every(replacement, "the moon", {"synonyms": table})) == {"the satellite", "the Luna"}


def test_a_bad_table_is_refused(tmp_path):
    table = tmp_path / "synonyms.tsv"
    table.write_text("moon\tLuna\nsea, ocean\n", "utf-8")
    with pytest.raises(InputError, match=r"synonyms.tsv, line 2: 1 columns between tabs; needed: a word, then its syn"):
        Table(table)
    table.write_text("\n", "utf-8")
    with pytest.raises(InputError, match="has no synonyms; each line needs a word"):
        Table(table)
