"""Some of the kills of `make hard`, over the stages that start fast, and a full disk."""

from pathlib import Path

import pytest
from processes import Ended, run

FAST = "fuse,split,perturb,export msmarco,export dpr,evaluate"
SCRIPT = f"import runpy; runpy.run_path({str(Path(__file__).parent / 'kill.py')!r}, run_name='__main__')"
SEED = 7
MOUNTED = """
import ctypes, subprocess, sys
if ctypes.CDLL(None).unshare(0x20000):  # CLONE_NEWNS: mounts of this process and its children
    sys.exit("mounting is not allowed here")
for words in ["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=48m", "none", sys.argv[-1]]:
    if subprocess.run(["mount", *words]).returncode:
        sys.exit("mounting is not allowed here")
"""


def killed(code: str, kills: int, *options: object) -> Ended:
    return run(code, "--stages", FAST, "--kills", kills, *options)


@pytest.mark.parametrize("kills", [8, pytest.param(24, marks=pytest.mark.exhaustive)])
def test_killed_and_failed_commands_leave_nothing_incomplete(tmp_path: Path, kills: int) -> None:
    """On a small disk of its own, in a namespace of mounts that ends with the process, where that is allowed."""
    done = killed(MOUNTED + SCRIPT, kills, "--seed", SEED, "--modes", "all", "--folder", tmp_path)
    if "mounting is not allowed here" in done.stderr:
        done = killed(SCRIPT, kills, "--seed", SEED)
    assert done.returncode == 0, done.stdout + done.stderr
