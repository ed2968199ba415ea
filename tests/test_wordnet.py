"""WordNet: synonyms, inflected forms, and the search for its files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command import raises

from hybrid_cli.perturbations import wordnet
from hybrid_cli.perturbations.wordnet import WordNet, find

DATA = Path(__file__).parent / "data" / "wordnet"


@pytest.fixture(scope="module")
def small() -> WordNet:
    """Read a few synsets written for these tests, in the format of WordNet."""
    return WordNet(DATA)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide an installed WordNet, and return the data folder of nltk."""
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path / "nowhere")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "nltk"))
    if (path := find()) is not None:
        pytest.skip(f"nltk's data are at {path}")
    return tmp_path / "nltk"


@pytest.mark.parametrize(
    ("word", "synonyms"),
    [
        ("moon", ["Luna", "night lamp", "tide"]),  # of two synsets, with the spelling of WordNet
        ("Moon", ["Luna", "night lamp", "tide"]),
        ("luna", ["moon"]),
        ("near", ["adjacent", "close", "nigh"]),  # adjective and adverb; the marker of `close(p)` is removed
        ("close", ["adjacent", "near"]),
        ("aplenty", ["galore"]),
        ("tapir", []),
        ("", []),
    ],
)
def test_synonyms_are_the_lemmas_of_all_synsets(small: WordNet, word: str, synonyms: list[str]) -> None:
    assert small.synonyms(word) == synonyms


@pytest.mark.parametrize(
    ("form", "synonyms"),
    [
("moons", ["Luna", "night lamp", "tide"]),
("boxes", ["crate"]),
("ladies", ["woman"]),
("queries", ["ask"]),
("hurries", ["run"]),
("ran", ["hurry"]),
("runs", ["hurry"]),
("baked", ["roast"]),
("baking", ["roast"]),
("finer", ["nice"]),
("nicest", ["fine"]),
],
)  # fmt: skip
def test_a_form_has_the_synonyms_of_its_base_form(small: WordNet, form: str, synonyms: list[str]) -> None:
    assert small.synonyms(form) == synonyms


def test_synonyms_are_symmetric(small: WordNet) -> None:
    words = {line.split()[0] for file in DATA.glob("index.*") for line in file.read_text().splitlines()[2:]}
    assert len(words) > 30
    for word in words:
        for synonym in small.synonyms(word.replace("_", " ")):
            if " " not in synonym and "_" not in word:
                assert word in [back.lower() for back in small.synonyms(synonym)]


@pytest.mark.parametrize("inside", ["", "wordnet"])
def test_zip_files_are_read(small: WordNet, tmp_path: Path, inside: str) -> None:
    shutil.copytree(DATA, tmp_path / "tree" / inside, dirs_exist_ok=True)
    path = Path(shutil.make_archive(str(tmp_path / "wordnet"), "zip", tmp_path / "tree"))
    assert find(path) == path
    assert WordNet(path).synonyms("mice") == small.synonyms("mice")


def test_the_data_of_nltk_are_found_unpacked_or_zipped(places: Path) -> None:
    (places / "corpora").mkdir(parents=True)
    archive = shutil.make_archive(str(places / "corpora" / "wordnet"), "zip", DATA.parent, "wordnet")
    assert find() == Path(archive)
    shutil.copytree(DATA, places / "corpora" / "wordnet")
    assert find() == places / "corpora" / "wordnet"


@pytest.mark.parametrize("name", ["nothing", "folder", "file.zip"])
def test_other_folders_and_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.zip").write_text("no zip file")
    with raises("no-wordnet", path=name):
        find(tmp_path / name)
