"""The package as it is released: its version, files and metadata, and the promises of docs/stability.md."""

import re
from importlib import import_module

import pytest
from test_architecture import DOCS, REPOSITORY, rows_below

import hybrid_cli
from hybrid_cli import __version__, storage
from hybrid_cli.cli.removed import REMOVED
from hybrid_cli.evaluation import gate
from hybrid_cli.storage.records import newest_format
from hybrid_cli.version import is_later

STABILITY = DOCS / "stability.md"
CHANGES = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")


def test_a_state_between_releases_is_later_than_the_last_release() -> None:
    """Its changes have the heading `Unreleased`; a release has its own heading."""
    headings = re.findall(r"^## (\S+)", CHANGES, re.MULTILINE)
    assert headings[0] == ("Unreleased" if ".dev" in __version__ else __version__)
    assert is_later(__version__, headings[1])
    assert is_later("0.3.0", "0.3.0.dev0")


def test_promised_python_names_exist() -> None:
    rows = {module: re.findall(r"`(\w+)`", f"`{cell}`") for module, cell in rows_below(STABILITY, "Python names")}
    assert {*rows["hybrid_cli"]} == {*hybrid_cli.__all__}
    patterns = {"hybrid_cli.stages.NAME", "hybrid_cli.adapters.NAME", "hybrid_cli.commands"}  # of every command
    assert patterns < rows.keys()
    modules = {module: import_module(module) for module in rows.keys() - patterns}
    assert not [
        (module, name) for module, found in modules.items() for name in rows[module] if not hasattr(found, name)
    ]


def test_the_formats_of_the_page_are_those_of_the_code() -> None:
    formats = {row[0]: row[1] for row in rows_below(STABILITY, "Formats")}
    numbers = {str(kind): newest_format(kind) for kind in storage.Kind}
    listed = {name: int(number) for names, number in list(formats.items())[:1] for name in names.split(", ")}
    assert listed == {kind: number for kind, number in numbers.items() if number != storage.FORMAT}
    assert int(formats["all other kinds of artifacts"]) == storage.FORMAT
    assert int(formats["baselines (`gate`)"]) == gate.FORMAT


@pytest.mark.parametrize("words", REMOVED)
def test_a_removed_word_is_in_the_changelog(words: str) -> None:
    """As the page on stability promises; a value is named alone."""
    option, _, value = words.partition(" --")[2].partition(" ")
    assert value or (f"--{option}" if option else words) in CHANGES
