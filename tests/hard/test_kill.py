"""Forty of the kills of `make hard`, over the stages that start fast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAST = "fuse,split,perturb,export msmarco,export dpr,evaluate"


def test_killed_and_failed_commands_leave_nothing_incomplete() -> None:
    command = [sys.executable, str(Path(__file__).parent / "kill.py"), "--kills", "40", "--seed", "7", "--stages", FAST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
