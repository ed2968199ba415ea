"""Break lines of the package, one at a time, in a copy: the test files next to each line must fail.

`python tests/hard/mutations.py [NUMBER ...]` runs all, or some by their numbers. `make hard` runs all.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """A line of the package, another in its place, names of test files of which one must fail, and their marks."""

    line: str
    broken: str
    tests: str
    marks: str = "not heavy"


MUTATIONS = [Mutation(*row) for row in yaml.safe_load((Path(__file__).parent / "mutations.yaml").read_text("utf-8"))]


def survives(mutation: Mutation, folder: Path) -> str:
    """Return why no test notices a mutation of a copy of the package; empty if one does."""
    copy = folder / "hybrid_cli"
    shutil.copytree(ROOT / "hybrid_cli", copy)
    files = [file for file in copy.rglob("*.py") if mutation.line in file.read_text("utf-8")]
    if len(files) != 1:
        return f"is in {len(files)} files of the package: name another line"
    files[0].write_text(files[0].read_text("utf-8").replace(mutation.line, mutation.broken), "utf-8")
    tests = [str(ROOT / "tests" / f"test_{name}.py") for name in mutation.tests.split()]
    options = ["-c", str(ROOT / "pyproject.toml"), "-x", "-q", "-p", "no:cacheprovider", "-m", mutation.marks]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True)
    return "" if done.returncode == 1 else f"ends with {done.returncode} in {' '.join(tests)}"


def main(numbers: list[str]) -> int:
    survivors = 0
    for number, mutation in enumerate(MUTATIONS, 1):
        if numbers and str(number) not in numbers:
            continue
        with tempfile.TemporaryDirectory() as folder:
            reason = survives(mutation, Path(folder))
        sys.stdout.write(f"{number} {mutation.broken}: {reason or 'noticed'}\n")
        sys.stdout.flush()
        survivors += bool(reason)
    return survivors


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
