"""Forty of the kills of `make hard`, over the stages that start fast, and a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Ended, run

FAST = "fuse,split,perturb,export msmarco,export dpr,evaluate"
SCRIPT = f"import runpy; runpy.run_path({str(Path(__file__).parent / 'kill.py')!r}, run_name='__main__')"
MOUNTED = """
import ctypes, subprocess, sys
if ctypes.CDLL(None).unshare(0x20000):  # CLONE_NEWNS: mounts of this process and its children
    sys.exit("mounting is not allowed here")
for words in ["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=48m", "none", sys.argv[-1]]:
    if subprocess.run(["mount", *words]).returncode:
        sys.exit("mounting is not allowed here")
"""


def killed(code: str, *options: object) -> Ended:
    return run(code, "--stages", FAST, *options)


def test_killed_and_failed_commands_leave_nothing_incomplete() -> None:
    done = killed(SCRIPT, "--kills", 40, "--seed", 7)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_full_disk_is_one_line_and_the_same_command_succeeds_with_space(tmp_path: Path) -> None:
    """A small disk of its own, in a namespace of mounts that ends with the process."""
    done = killed(MOUNTED + SCRIPT, "--kills", 8, "--seed", 5, "--modes", "full disk", "--folder", tmp_path)
    if "mounting is not allowed here" in done.stderr:
        pytest.skip("mounting is not allowed here; the test above limits the size of files instead")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " error" in done.stdout, "no command met the full disk"
