"""`make COLLECTION SCALE=small`: every row of the papers on a generated sample, in one process."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from test_docs import ROOT

sys.path.insert(0, str(ROOT / "studies"))

import one_process
import tables

IN_CI = {"msmarco", "robust04"}
COLLECTIONS = ["msmarco", "dl19", "nq", "beir", "entityquestions", "robust04", "trec-covid"]


def make(target: str, folder: Path) -> None:
    """Run a target on a sample whose files are below a folder."""
    for call in one_process.planned(target, "SCALE=small", f"papers={folder}"):
        one_process.run(call)


@pytest.mark.usefixtures("few_feedbacks")
@pytest.mark.parametrize(
    "collection",
    [pytest.param(name, marks=pytest.mark.heavy if name in IN_CI else pytest.mark.exhaustive) for name in COLLECTIONS],
)
def test_every_row_runs_on_a_sample(
    collection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    make(collection, tmp_path)
    (file,) = tmp_path.glob(f"*/tables/{collection}.csv")
    with file.open() as opened:
        measured = {(row["table"], row["row"]) for row in csv.DictReader(opened)}
    printed = [table for table in tables.TABLES if table.collection == collection]
    expected = {(table.title, row.name) for table in printed for row in table.rows if row.paper}
    assert expected - measured == set()
    capsys.readouterr()
    make(f"check-{collection}", tmp_path)
    assert "not comparable" in capsys.readouterr().out
