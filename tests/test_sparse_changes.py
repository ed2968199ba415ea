"""`update` of learned sparse indexes: the bytes of an index that is built at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from command import raises
from small_artifacts import write_corpus
from sparse_models import ARCHITECTURES, write_checkpoints

from hybrid_cli import artifacts, storage
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.inspect import inspect
from hybrid_cli.stages.search import search
from hybrid_cli.stages.update import update
from hybrid_cli.storage import Kind

TEXTS = ["salt in sea water", "", "the moon moves the tides", "salt", "blood carries oxygen", "sea water and the moon"]
EVERY = pytest.mark.parametrize("architecture", ARCHITECTURES)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    return write_checkpoints(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All documents, the first four, the last two, and the first with another text."""
    folder = tmp_path_factory.mktemp("corpora")
    return {
        "whole": write_corpus(folder / "whole.parquet", TEXTS),
        "first": write_corpus(folder / "first.parquet", TEXTS[:4]),
        "last": write_corpus(folder / "last.parquet", TEXTS[4:], first=4),
        "changed": write_corpus(folder / "changed.parquet", ["moon moon"]),
    }


def encoded(models: dict[Any, Path], corpus: Path, architecture: Any, output: Path) -> Path:
    return encode(
        corpus, model=str(models[architecture]), architecture=architecture, output=output, dtype="fp32", shard_size=2
    )


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file but the manifest, which records inputs and duration."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != storage.MANIFEST]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def counts(folder: Path) -> dict[str, Any]:
    return artifacts.read_manifest(folder, Kind.LEXICAL_INDEX).counts


@EVERY
def test_appended_documents_give_the_index_of_all(
    models: dict[Any, Path], corpora: dict[str, Path], tmp_path: Path, architecture: Any
) -> None:
    whole = encoded(models, corpora["whole"], architecture, tmp_path / "whole")
    first = encoded(models, corpora["first"], architecture, tmp_path / "first")
    before = content(first)
    both = update(first, add=corpora["last"], output=tmp_path / "both")
    assert content(both) == content(whole)
    assert counts(both) == counts(whole)
    assert content(first) == before
    assert inspect([both], verify=True) is not None
    hits = [search(corpora["whole"], index=each, query="salt water of the moon") for each in (both, whole)]
    assert hits[0].equals(hits[1])
    assert len(hits[0])


@EVERY
def test_an_index_without_deleted_documents_is_that_of_the_others(
    models: dict[Any, Path], corpora: dict[str, Path], tmp_path: Path, architecture: Any
) -> None:
    whole = encoded(models, corpora["whole"], architecture, tmp_path / "whole")
    (ids := tmp_path / "ids.txt").write_text("d4\nd5\n")
    less = update(whole, remove=ids, output=tmp_path / "less")
    assert content(less) == content(encoded(models, corpora["first"], architecture, tmp_path / "first"))
    assert "truncated" not in counts(less), "not known for each document"
    again = update(less, add=corpora["last"], output=tmp_path / "again")
    assert content(again) == content(whole)


def test_a_replaced_document_has_the_weights_of_its_new_text(
    models: dict[Any, Path], corpora: dict[str, Path], tmp_path: Path
) -> None:
    first = encoded(models, corpora["first"], "splade", tmp_path / "first")
    new = update(first, add=corpora["changed"], output=tmp_path / "new")
    alone = encoded(models, corpora["changed"], "splade", tmp_path / "alone")
    found, expected = (search(corpora["whole"], index=each, query="moon").filter(docid="d0") for each in (new, alone))
    assert found["score"].to_list() == expected["score"].to_list()
    assert counts(new)["documents"] == 4


def test_another_encoder_is_refused_and_a_moved_one_is_named(
    models: dict[Any, Path], corpora: dict[str, Path], tmp_path: Path
) -> None:
    model = shutil.copytree(models["unicoil"], tmp_path / "model")
    first = encoded({"unicoil": model}, corpora["first"], "unicoil", tmp_path / "first")
    other = write_checkpoints(tmp_path / "others")["deepct"]
    with raises("unknown-weights"):
        update(first, add=corpora["last"], model=str(other), output=tmp_path / "both")
    moved = model.rename(tmp_path / "moved")
    with raises("recorded-model-missing"):
        update(first, add=corpora["last"], output=tmp_path / "both")
    assert counts(update(first, add=corpora["last"], model=str(moved), output=tmp_path / "both"))["documents"] == 6
