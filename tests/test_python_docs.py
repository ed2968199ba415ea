"""`prepare python-docs`: queries and documents from docstrings, and the docstrings left out."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import polars as pl
import pytest
from tiny_collection import (
    corpus_of,
    counts_of,
    write_lines,
)

from hybrid_cli import artifacts
from hybrid_cli.collections import collection
from hybrid_cli.collections.readers import python_docs
from hybrid_cli.settings import PreparePythonDocs
from hybrid_cli.stages.prepare import prepare

MODULE = '''
"""A module."""
def plain(x):
    """Return the plain value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def copied(x):
    """Return the plain value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def other(x):
    """Return the plain
    value of the argument.

    Another text of words: three four five six seven eight nine ten eleven.
    """
def signed(x):
    """signed(x, out=None) -> array

    Sign the argument with a key.

    One two three four five six seven eight nine ten eleven.
    """
def _private(x):
    """Return the private value of the argument.

    One two three four five six seven eight nine ten eleven.
    """
def short(x):
    """Too short.

    One two three four five six seven eight nine ten eleven.
    """
def bare(x):
    """Return something without saying more."""
class Thing:
    """Hold a thing of some kind.

    One two three four five six seven eight nine ten eleven.
    """
    if True:
        def method(self):
            """Do something to the thing.

            One two three four five six seven eight nine ten eleven.
            """
raise RuntimeError("this module must not be run")
'''


def docs_of(package: str, output: Path) -> PreparePythonDocs:
    return PreparePythonDocs(package=[package], only=True, output=output)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a package whose import fails."""
    root = tmp_path / "sources" / "documented_package"
    write_lines(root / "__init__.py", "raise RuntimeError")
    write_lines(root / "_inner.py", MODULE)
    write_lines(root / "tests" / "test_inner.py", MODULE)
    write_lines(root / "broken.py", "def (:")
    monkeypatch.syspath_prepend(root.parent)
    return root.name


def test_first_paragraphs_become_queries_and_the_rest_documents(tmp_path: Path, package: str) -> None:
    made = prepare(docs_of(package, tmp_path / "made"))
    prefix = f"{package}._inner"
    names = [row[0].removeprefix(prefix + ".") for row in corpus_of(made)]
    assert names == ["Thing", "Thing.method", "copied", "other", "signed"]
    assert all(docid == title for docid, title, _ in corpus_of(made))
    assert corpus_of(made)[0][2] == "One two three four five six seven eight nine ten eleven."
    queries, qrels = (
        pl.concat([read(path) for path in sorted(made.glob(pattern))])
        for read, pattern in ((collection.read_queries, "queries.*"), (collection.read_qrels, "qrels.*"))
    )
    assert set(queries["text"]) == {
        "Hold a thing of some kind.", "Do something to the thing.", "Return the plain value of the argument.",
        "Sign the argument with a key.",
    }  # fmt: skip
    shared = qrels.filter(pl.col("qid") == f"q:{prefix}.copied")["docid"].to_list()
    assert shared == [f"{prefix}.copied", f"{prefix}.other"]
    assert not set(queries["qid"]) & set(names)


def test_docstrings_left_out_are_counted(tmp_path: Path, package: str) -> None:
    counts = counts_of(prepare(docs_of(package, tmp_path / "made")))
    assert counts["left_out"] == {"first paragraph too short": 1, "nothing after the first paragraph": 1}
    assert counts["copies_merged"]["count"] == 1
    assert counts["queries_with_several_documents"] == 1


def test_reading_a_package_is_deterministic(tmp_path: Path) -> None:
    made = [prepare(docs_of("rich", tmp_path / name)) for name in ("one", "two")]
    one, two = (artifacts.read_manifest(path) for path in made)
    assert one.fingerprint == two.fingerprint
    assert one.counts["documents"] > 100
    assert one.options["packages"] == {"rich": version("rich")}


def test_the_split_is_seventy_ten_twenty_and_depends_on_the_seed() -> None:
    splits = [python_docs.split_of(f"q{number}", 42) for number in range(10_000)]
    for split, fraction in (("train", 0.7), ("dev", 0.1), ("test", 0.2)):
        assert splits.count(split) / len(splits) == pytest.approx(fraction, abs=0.02)
    assert splits != [python_docs.split_of(f"q{number}", 43) for number in range(10_000)]
