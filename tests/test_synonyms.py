"""Attacks with synonyms of WordNet or a table: replacement and insertion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from hybrid_cli.draws import draw
from hybrid_cli.perturbations import synonyms
from hybrid_cli.perturbations.attack import Inputs
from hybrid_cli.perturbations.edits import Edit, edit_words
from hybrid_cli.perturbations.synonyms import SynonymTable, insertion, replacement, thesaurus
from hybrid_cli.settings import Perturb

WORDNET = {"wordnet": Path(__file__).parent / "data" / "wordnet"}


def every(start: Callable[[Inputs], Edit], text: str, files: Mapping[str, Path] = WORDNET) -> Counter[str]:
    """Return the results for 300 seeds."""
    edit = start(Inputs(pl.DataFrame(), files, Perturb(Path("queries.tsv"), attacks=["lite"], output=Path("out"))))
    return Counter(edit_words(text, edit, 0.1, partial(draw, seed, "test", "q")) for seed in range(300))


def test_a_word_is_replaced_by_a_single_word_of_any_synset() -> None:
    """`night lamp` and `railway car` are two words; `Moon` would be the word itself."""
    assert set(every(replacement, "what is the Moon?")) == {"what is the Luna?", "what is the tide?"}


def test_pairs_of_word_and_synonym_are_equally_likely() -> None:
    """The synonyms are `box` and `crate`, `ocean` and `deep`, and `sodium`."""
    found = every(replacement, "boxes oceans salt")
    boxes, oceans = {"box oceans salt", "crate oceans salt"}, {"boxes ocean salt", "boxes deep salt"}
    assert set(found) == boxes | oceans | {"boxes oceans sodium"}
    assert all(35 < count < 85 for count in found.values())


def test_a_synonym_is_inserted_before_any_word_even_of_a_stop_word() -> None:
    """WordNet knows the noun `can`; its synonym `tin` is inserted anywhere but at the end."""
    assert set(every(insertion, "Can, (can)?")) == {"tin Can, (can)?", "Can, (tin can)?"}


def test_the_number_of_words_tried_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(["moss"] * 9 + ["box"])
    unchanged = {}
    for tries in (1, 7):
        monkeypatch.setattr(synonyms, "TRIES", tries)
        unchanged[tries] = every(insertion, text)[text]
    assert 250 < unchanged[1] < 290  # .9 of 300
    assert 115 < unchanged[7] < 175  # .9 to the 7th
    assert set(every(insertion, "moss")) == {"moss"}


def test_a_table_replaces_wordnet(tmp_path: Path) -> None:
    table = tmp_path / "synonyms.tsv"
    table.write_text("Moon\tsatellite\t earth's moon \nsea\tdeep\nmoon\tLuna\n", "utf-8")
    assert SynonymTable(table).synonyms("MOON") == ["satellite", "earth's moon", "Luna"]
    assert thesaurus({"synonyms": table, **WORDNET}).lemmas("boxes") == []
    assert set(every(replacement, "the moon", {"synonyms": table})) == {"the satellite", "the Luna"}


def test_our_own_table_has_groups_of_words() -> None:
    """Each word of a group has the others as synonyms, and so have its inflected forms."""
    own = thesaurus({"groups": synonyms.OWN})
    assert {"automobile", "vehicle"} <= set(own.synonyms("Cars"))
    assert "car" in own.synonyms("automobile")
    assert "car" not in own.synonyms("cars")
    assert "car" in own.lemmas("cars")
    assert own.synonyms("tapir") == []
    groups = [line.split("\t") for line in synonyms.OWN.read_text("utf-8").splitlines()]
    assert groups == sorted(groups)
    assert all(word == word.strip().lower() for group in groups for word in group)
    assert all(len(set(group)) == len(group) > 1 for group in groups)
    assert len({frozenset(group) for group in groups}) == len(groups)
