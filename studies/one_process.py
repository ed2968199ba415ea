"""Run the plan of a make target in one process: a sample takes a minute; to start Python for each call takes ten.

    python studies/one_process.py TARGET [NAME=VALUE ...]

Calls of `hybrid` and of scripts in studies/ are run in the order of `make --dry-run`, each once; the first failure ends
the run. Repeat the command to resume: finished outputs are not in the plan.
"""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hybrid_cli.cli import main as run_hybrid

ROOT = Path(__file__).parents[1]
_NAMES = {"HYBRID": "hybrid", "TABLES_PAGE": "tables.py", "SAMPLE": "sample.py"}


def planned(target: str, *settings: str) -> list[tuple[str, ...]]:
    """Return the calls of a target: `hybrid` or a script, and the arguments."""
    names = [f"{variable}={name}" for variable, name in _NAMES.items()]
    command = ["make", "--dry-run", "--no-print-directory", "--old-file=.venv/.installed", target, *settings, *names]
    done = subprocess.run([*command, "IN_ONE_PROCESS=1"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    lines = re.sub(r"\\\n\s*", " ", done.stdout).splitlines()
    return list(dict.fromkeys(tuple(shlex.split(line)) for line in lines if line.split(" ")[0] in _NAMES.values()))


def run(call: Sequence[str]) -> None:
    """Run a call of a plan.

    `|| test $? -eq 3` at its end accepts the exit code 3, as of a resource that is missing.

    Raises:
        SystemExit: the call failed.
    """
    accepted = {0, None} | ({3} if "||" in call else set())
    name, *_ = sys.argv = [*call[: call.index("||")]] if "||" in call else [*call]
    try:
        if name == "hybrid":
            run_hybrid()
        else:
            runpy.run_path(str(ROOT / "studies" / name), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in accepted:
            raise


if __name__ == "__main__":
    for each in planned(*sys.argv[1:]):
        run(each)
