"""WordNet's files: what is a synonym, which forms a word may have, where the files are looked for."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.perturbations import wordnet
from hybrid_cli.perturbations.wordnet import WordNet, find

DATA = Path(__file__).parent / "data" / "wordnet"


@pytest.fixture(scope="module")
def small() -> WordNet:
    """A few synsets made up for these tests, in the form of the real files."""
    return WordNet(DATA)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without WordNet, whose one folder for nltk's data is returned."""
    monkeypatch.setattr(wordnet, "_DEBIAN", tmp_path / "nowhere")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "nltk"))
    try:
        pytest.skip(f"nltk's data are at {find()}")
    except HybridError:
        return tmp_path / "nltk"


@pytest.mark.parametrize(
    ("word", "synonyms"),
    [
        ("moon", ["Luna", "night lamp", "tide"]),  # of two synsets, spelt as there, spaces for underscores
        ("Moon", ["Luna", "night lamp", "tide"]),
        ("luna", ["moon"]),
        ("near", ["adjacent", "close", "nigh"]),  # adjective and adverb; the marker of `close(p)` is cut
        ("close", ["adjacent", "near"]),
        ("aplenty", ["galore"]),
        ("tapir", []),
        ("", []),
    ],
)
def test_synonyms_are_the_lemmas_of_all_synsets(small, word, synonyms):
    assert small.synonyms(word) == synonyms


@pytest.mark.parametrize(
    ("form", "synonyms"),
    [
        ("moons", ["Luna", "night lamp", "tide"]), ("boxes", ["crate"]), ("ladies", ["woman"]), ("women", ["lady"]),
        ("mice", ["nibbler"]), ("queries", ["ask"]), ("hurries", ["run"]), ("ran", ["hurry"]), ("runs", ["hurry"]),
        ("bakes", ["roast"]), ("baked", ["roast"]), ("baking", ["roast"]), ("roasted", ["bake"]),
        ("finer", ["nice"]), ("nicer", ["fine"]), ("nicest", ["fine"]), ("nearest", ["adjacent", "close"]),
    ],
)  # fmt: skip
def test_a_form_has_the_synonyms_of_its_base_and_the_base_is_none(small, form, synonyms):
    assert small.synonyms(form) == synonyms


def test_to_be_a_synonym_is_mutual(small):
    words = {line.split()[0] for file in DATA.glob("index.*") for line in file.read_text().splitlines()[2:]}
    assert len(words) > 30
    for word in words:
        for synonym in small.synonyms(word.replace("_", " ")):
            if " " not in synonym and "_" not in word:
                assert word in [back.lower() for back in small.synonyms(synonym)]


@pytest.mark.parametrize("inside", ["", "wordnet"])
def test_a_zip_file_is_read_as_the_folder_is(small, tmp_path, inside):
    shutil.copytree(DATA, tmp_path / "tree" / inside, dirs_exist_ok=True)
    path = Path(shutil.make_archive(str(tmp_path / "wordnet"), "zip", tmp_path / "tree"))
    assert WordNet(find(path)).synonyms("mice") == small.synonyms("mice")


def test_nltks_data_are_found_unpacked_or_not(places):
    (places / "corpora").mkdir(parents=True)
    archive = shutil.make_archive(str(places / "corpora" / "wordnet"), "zip", DATA.parent, "wordnet")
    assert find() == Path(archive)
    shutil.copytree(DATA, places / "corpora" / "wordnet")
    assert find() == places / "corpora" / "wordnet"


def test_without_wordnet_the_message_says_how_to_get_it(places):
    with pytest.raises(HybridError, match=r"is not on this machine: `apt-get install wordnet-base`.*--wordnet PATH"):
        find()


@pytest.mark.parametrize("name", ["nothing", "folder", "file.zip"])
def test_what_is_no_wordnet_is_refused(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.zip").write_text("no zip file")
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / name}: holds no WordNet")):
        find(tmp_path / name)


def test_the_wordnet_of_this_machine_is_read():
    try:
        real = WordNet(find())
    except HybridError as missing:
        pytest.skip(str(missing))
    assert {"automobile", "motorcar", "railway car"} <= set(real.synonyms("cars"))
    assert "nigh" in real.synonyms("near")
    assert "abounding" in real.synonyms("galore")
    assert "computer mouse" in real.synonyms("mice")
    assert "depart" in real.synonyms("went")
    assert not [word for word in real.synonyms("near") if "(" in word or "_" in word]
