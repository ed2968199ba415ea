"""`make COLLECTION SCALE=small`: every row of the papers on a generated sample, in one process."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command import hybrid
from test_docs import ROOT

sys.path.insert(0, str(ROOT / "studies"))

import tables

IN_CI = {"msmarco", "robust04"}
COLLECTIONS = ["msmarco", "dl19", "nq", "beir", "entityquestions", "robust04", "trec-covid"]


def plan(target: str, folder: Path) -> list[list[str]]:
    """Return the calls of a target: the arguments of `hybrid`, or of a script of studies."""
    settings = ["HYBRID=hybrid", "TABLES_PAGE=tables.py", "SAMPLE=sample.py", "SCALE=small", f"papers={folder}"]
    command = ["make", "--dry-run", "--no-print-directory", "--old-file=.venv/.installed", target, *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = re.sub(r"\\\n\s*", " ", done.stdout).splitlines()
    return [shlex.split(line) for line in lines if line.startswith(("hybrid ", "tables.py ", "sample.py "))]


def execute(calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the calls in this process, each once."""
    for name, *arguments in dict.fromkeys(map(tuple, calls)):
        if name == "hybrid":
            done = hybrid(*arguments)
            assert done.code == 0, (arguments, done.err)
        else:
            monkeypatch.setattr(sys, "argv", [name, *arguments])
            runpy.run_path(str(ROOT / "studies" / name), run_name="__main__")


@pytest.mark.parametrize(
    "collection",
    [
        pytest.param(name, marks=pytest.mark.heavy if name in IN_CI else pytest.mark.exhaustive)
        for name in COLLECTIONS
    ],
)
def test_every_row_runs_on_a_sample(
    collection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(plan(collection, tmp_path), monkeypatch)
    (file,) = tmp_path.glob(f"*/tables/{collection}.csv")
    with file.open() as opened:
        measured = {(row["table"], row["row"]) for row in csv.DictReader(opened)}
    printed = [table for table in tables.TABLES if table.collection == collection]
    expected = {(table.title, row.name) for table in printed for row in table.rows if row.paper}
    assert expected - measured == set()
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        execute(plan(f"check-{collection}", tmp_path), monkeypatch)
    assert ended.value.code == 0
    assert "not comparable" in capsys.readouterr().out
