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


@pytest.mark.parametrize(
    "target", ["clear", "ablations", "roc", "robust04", "spar", "lambda-study", "light", "lite", "drboost"]
)
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
        mine = [line for line in lines if f"/fold-{fold}/" in line and not line.startswith("hybrid concat-runs")]
        splits = {line.split(" --split ")[1].split()[0] for line in mine if " --split " in line}
        assert splits == {f"{name}-{fold}" for name in ("train", "dev", "test")}
        assert len(mine) == 9
    joined = [line.split() for line in lines if line.startswith("hybrid concat-runs")]
    assert [sum("/fold-" in word for word in words) for words in joined] == [3, 3, 3]


def test_given_folds_are_handed_to_split(tmp_path):
    (tmp_path / "folds.json").write_text("[]")
    (line,) = (
        line for line in planned("robust04", tmp_path, FOLDS=tmp_path / "folds.json", PARTS=2) if " split " in line
    )
    assert f"--folds 2 --folds-file {tmp_path / 'folds.json'} " in line


def test_the_memory_table_has_every_kind_alone_and_with_bm25(tmp_path):
    (tmp_path / "dense").mkdir()
    (tmp_path / "dense" / "manifest.json").touch()
    lines = planned("memory-table", tmp_path, KINDS="sq8 binary", DENSE=tmp_path / "dense")
    assert not [f"{line}: {found}" for line in lines if (found := complaint(line))]
    memory = tmp_path / "out" / "memory"
    for kind in ("sq8", "binary"):
        made = f"encode {tmp_path}/dense --index-type {kind} --output {memory}/{kind}-index --overwrite"
        assert [line for line in lines if made in line]
        assert [line for line in lines if f"--index {memory}/{kind}-index" in line]
        fused = f"fuse {tmp_path}/out/runs/bm25.test.parquet {memory}/{kind}.test.parquet --method minmax"
        assert [line for line in lines if fused in line]


def test_every_attack_is_searched_by_every_system_and_fused_with_its_like(tmp_path):
    systems = {"SYSTEMS": "bm25 dense-1 clear-1", "HYBRIDS": "bm25+clear-1", "FROM": tmp_path / "out" / "roc"}
    lines = planned("robustness", tmp_path, ATTACKS="char-swap shuffle", **systems)
    assert not [f"{line}: {found}" for line in lines if (found := complaint(line))]
    robust = tmp_path / "out" / "robustness"
    calls = {line.split("--output ")[1].split()[0]: line for line in lines if "--output " in line}
    for row in ("bm25", "dense-1", "clear-1", "bm25+clear-1"):
        assert f"{robust}/{row}.parquet" in calls
        for attack in ("char-swap", "shuffle"):
            call = calls[f"{robust}/{row}@{attack}.parquet"]
            if "+" in row:
                assert f"fuse {robust}/bm25@{attack}.parquet {robust}/clear-1@{attack}.parquet --method minmax" in call
            else:
                index = tmp_path / "out" / ("bm25" if row == "bm25" else f"roc/{row}-index")
                assert f"--queries {robust}/queries/{attack}.parquet --index {index} " in call
    assert [call.split()[1] for call in calls.values()].count("perturb") == 2
    (table,) = (line for line in lines if "--robustness" in line)
    assert table.count(".parquet") == 4 * 3 + 1  # rows, the original and two attacks each; the values


def test_back_translation_gets_its_models_or_what_others_made(tmp_path):
    lines = planned("robustness", tmp_path, TRANSLATION="out/there out/back", PREFIX=">>es<<", READY="char-swap=a.tsv")
    calls = {line.split("--attack ")[1].split()[0]: line for line in lines if " perturb " in line}
    assert "--translation out/there out/back --translation-prefix '>>es<<'" in calls.pop("back-translation")
    assert "--attacked-queries char-swap=a.tsv" in calls.pop("char-swap")
    assert not [line for line in calls.values() if "--translation" in line or "--attacked-queries" in line]
    assert len(calls) == 4


def test_models_meet_a_collection_that_they_never_saw(tmp_path):
    (tmp_path / "models" / "lite-1").mkdir(parents=True)
    (tmp_path / "models" / "lite-1" / "manifest.json").touch()
    lines = planned("zero-shot", tmp_path, FROM=tmp_path / "models", MODELS="lite-1")
    assert not [f"{line}: {found}" for line in lines if (found := complaint(line))]
    assert not [line for line in lines if " train-" in line]
    assert [line for line in lines if f"encode {tmp_path}/pydocs --model {tmp_path}/models/lite-1 " in line]
    (table,) = (line for line in lines if " evaluate " in line)
    assert "bm25+lite-1=" in table
