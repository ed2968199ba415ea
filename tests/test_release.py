"""The package as it is released: its version, files and metadata, and the promises of docs/stability.md."""

import re
import subprocess
import sys
import sysconfig
import venv
from importlib import import_module
from pathlib import Path

import pytest
from test_architecture import DOCS, REPOSITORY, rows_below

import hybrid_cli
from hybrid_cli import __version__, commands, storage
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


@pytest.mark.parametrize("package", ["", ".evaluation", ".fusion", ".retrieval", ".training"])
def test_a_package_lists_its_public_names_alone(package: str) -> None:
    module = import_module(f"hybrid_cli{package}")
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in dir(module))
    with pytest.raises(AttributeError) as caught:
        _ = module.evaluates
    assert (caught.value.name, caught.value.obj) == ("evaluates", module)  # of which Python suggests a name


def test_the_settings_of_all_commands_are_exported() -> None:
    assert not {kind.__name__ for kind in commands.COMMANDS} - {*commands.__all__}
    assert all(hasattr(commands, name) for name in commands.__all__)


MISTAKES = """
import hybrid_cli
from hybrid_cli import BM25, fuse
from hybrid_cli.commands import Fuse

hybrid_cli.open_indx
BM25(k1="a")
Fuse([1], output="b")
fuse({"a": "x.trec", "b": "y.trec"}, method=3)
"""


@pytest.mark.heavy
def test_a_type_checker_knows_the_installed_package(tmp_path: Path) -> None:
    """An editable install is a path, as in pyproject.toml; a wheel has the same files."""
    venv.create(tmp_path / "env")
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "hybrid.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    for name in ("README.md", "docs/python.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
        assert blocks
        (tmp_path / f"{Path(name).stem.lower()}_page.py").write_text("\n".join(blocks))
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    python = tmp_path / "env" / "bin" / "python"
    files = [path.name for path in sorted(tmp_path.glob("*.py"))]
    words = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), *files]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line.partition(": error:")[0] for line in errors] == [f"mistakes.py:{number}" for number in range(6, 10)]


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
