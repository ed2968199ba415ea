"""What make would run: every line that calls hybrid is one that hybrid would take."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from test_docs import ROOT, complaint, shell_lines

if shutil.which("make") is None:
    pytest.skip("make is not installed", allow_module_level=True)


def planned(target: str, folder: Path, **variables: object) -> list[str]:
    """The calls of hybrid that `make TARGET` would make for a collection that is still to be prepared."""
    settings = {"DATA": folder / "pydocs", "OUT": folder / "out", "HYBRID": "hybrid", **variables}
    words = [f"{name}={value}" for name, value in settings.items()]
    command = ["make", "--dry-run", "--old-file=.venv/.installed", "--no-print-directory", target, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(shell_lines(done.stdout))


@pytest.mark.parametrize("target", ["clear", "ablations", "roc", "robust04", "spar", "lambda-study", "light", "lite", "drboost"])
def test_every_call_parses(target, tmp_path):
    lines = planned(target, tmp_path, SEEDS="1 2", PARTS=2)
    assert not [f"{line}: {found}" for line in lines if (found := complaint(line))]
    stages = [line.split()[1] for line in lines]
    assert stages[0] == "prepare"
    dense = {"mine-negatives", "train-dense", "fuse"} if target != "lambda-study" else {"label", "train-lambda"}
    assert {"index-bm25", "encode", "search", "evaluate"} | dense <= set(stages)


def test_every_fold_is_trained_tuned_and_tested_on_its_own_queries(tmp_path):
    lines = planned("robust04", tmp_path, PARTS=3)
    for fold in "123":
        mine = [line for line in lines if f"/fold-{fold}/" in line and not line.startswith("hybrid join")]
        splits = {line.split(" --split ")[1].split()[0] for line in mine if " --split " in line}
        assert splits == {f"{name}-{fold}" for name in ("train", "dev", "test")}
        assert len(mine) == 9
    joined = [line.split() for line in lines if line.startswith("hybrid join")]
    assert [sum("/fold-" in word for word in words) for words in joined] == [3, 3, 3]


def test_given_folds_are_handed_to_split(tmp_path):
    (tmp_path / "folds.json").write_text("[]")
    (line,) = (
        line for line in planned("robust04", tmp_path, FOLDS=tmp_path / "folds.json", PARTS=2) if " split " in line
    )
    assert f"--folds 2 --given {tmp_path / 'folds.json'} " in line
