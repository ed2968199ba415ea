"""What `doctor` finds on this machine, and what it says when something is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hybrid_cli.errors import HybridError
from hybrid_cli.stages import doctor as stage
from hybrid_cli.stages.doctor import Check, doctor


def test_a_machine_that_runs_this_suite_lacks_nothing(capsys):
    checks = {check.name: check for check in doctor()}
    assert all(check.present or not check.needed for check in checks.values())
    assert checks["encoder minilm"].found.split()[1] == "MB,"
    printed = capsys.readouterr().out
    assert all(name in printed for name in checks)


def test_what_is_missing_says_what_to_type():
    for check in (
        *stage._python(),
        stage._faiss(),
        *stage._torch(),
        *stage._models(),
        stage._wordnet(),
        *stage._extras(),
    ):
        assert check.present or check.advice


def test_something_needed_and_missing_stops_with_status_1(monkeypatch):
    absent = Check("FAISS", False, "not installed", advice="pip install 'hybrid_cli[cpu]'")
    monkeypatch.setattr(stage, "_faiss", lambda: absent)
    with pytest.raises(HybridError, match="missing: FAISS") as caught:
        doctor()
    assert caught.value.exit_code == 1


def test_requirements_are_read_with_the_extra_that_adds_them():
    found = dict(stage._requirements())
    assert found["polars"] == ""
    assert found["ir_datasets"] == "irds"


@pytest.mark.parametrize(
    ("gpu", "native"), [("NVIDIA A100, 40960 MiB, 8.0", True), ("Tesla V100, 16384 MiB, 7.0", False)]
)
def test_bf16_needs_compute_capability_8(gpu, native):
    assert stage._bf16([gpu]) is native


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from hybrid_cli.stages.doctor import doctor; doctor()\n"
        "print({'torch', 'faiss', 'jnius', 'transformers', 'polars'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
