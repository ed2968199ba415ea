"""Forty of the kills of `make hard`, over the stages that start fast, and a full disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAST = "fuse,split,perturb,export msmarco,export dpr,evaluate"


def test_killed_and_failed_commands_leave_nothing_incomplete() -> None:
    command = [sys.executable, str(Path(__file__).parent / "kill.py"), "--kills", "40", "--seed", "7", "--stages", FAST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_full_disk_is_one_line_and_the_same_command_succeeds_with_space(tmp_path: Path) -> None:
    """A small disk of its own, in a namespace of mounts that ends with the process."""
    mounted = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=48m none "$0" && exec "$@"', str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here; test_kill limits the size of files instead")
    kill = [sys.executable, str(Path(__file__).parent / "kill.py"), "--kills", "8", "--seed", "5", "--stages", FAST]
    done = subprocess.run(
        [*mounted, *kill, "--modes", "full disk", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " error" in done.stdout, "no command met the full disk"
