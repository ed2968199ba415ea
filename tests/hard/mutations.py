"""Break twenty lines of the package, one at a time, in a copy: the test files next to each line must fail.

`python tests/hard/mutations.py [NUMBER ...]` runs all, or some by their numbers. `make hard` runs all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """A line of the package, another in its place, and the names of test files of which one must fail."""

    line: str
    broken: str
    tests: str


MUTATIONS = (
    # kernels
    Mutation(
        "return weight - weight / (_ONE + np.float32(tf) * scale[row])",
        "return weight - weight / (_ONE + np.float32(tf))",
        "impacts",
    ),
    Mutation(
        "total += share(weights[at], matrix.tfs[posting], matrix.scale, row)",
        "total = share(weights[at], matrix.tfs[posting], matrix.scale, row)",
        "impacts",
    ),
    Mutation(
        "scores[query, number] += share(weights[at], matrix.tfs[posting], matrix.scale, row)",
        "scores[query, number] = share(weights[at], matrix.tfs[posting], matrix.scale, row)",
        "impacts",
    ),
    Mutation("if score >= floor:", "if score > floor:", "kernels"),
    Mutation("np.partition(keys[:number], number - hits)[number - hits :]", "keys[:hits].copy()", "kernels"),
    # fusion
    Mutation("return 1 / (k + rank)", "return 1 / (k + rank + 1)", "fusion_methods"),
    Mutation("(candidates - hits + 1) / (2 * candidates)", "(candidates - hits) / (2 * candidates)", "fusion_methods"),
    Mutation("of_query(value.min()).clip(upper_bound=0.0)", "0.0", "fusion_methods"),
    Mutation("math.sqrt(len(weights)) * weighted_mean(", "weighted_mean(", "fusion_methods"),
    Mutation(
        '(-pl.col(f"score_{number}")).rank("ordinal")', 'pl.col(f"score_{number}").rank("ordinal")', "fusion_methods"
    ),
    # losses
    Mutation("scores.masked_fill(~vectors.allowed, -torch.inf)", "scores * 1", "losses"),
    Mutation("(1 + gamma * step) ** 0.5)", "(1 + gamma * step))", "losses"),
    Mutation("queries.mean() + documents.mean()", "queries.mean() + documents.sum()", "losses"),
    Mutation("self.scorer.view(size, size, group)[own, own]", "self.scorer[:, :group]", "losses"),
    Mutation("1:]) - (teacher[:, :1] - teacher[:, 1:])", "1:]) + (teacher[:, :1] - teacher[:, 1:])", "taught"),
    # outputs
    Mutation(
        "thread_local=False)\n    try:\n        lock.acquire()",
        "thread_local=False)\n    try:\n        pass",
        "output two_writers",
    ),
    Mutation("self.sources.refuse_replaced()", "None", "output"),
    Mutation("_interrupted_call(work) != self.manifest.call()", "_interrupted_call(work) is None", "output"),
    # filters
    Mutation("frame).fill_null(False)", "frame).fill_null(True)", "filters"),
    Mutation("self.docids.filter(self.kept)", "self.docids.filter(~self.kept)", "filters"),
)


def survives(mutation: Mutation, folder: Path) -> str:
    """Return why no test notices a mutation of a copy of the package; empty if one does."""
    copy = folder / "hybrid_cli"
    shutil.copytree(ROOT / "hybrid_cli", copy)
    files = [file for file in copy.rglob("*.py") if mutation.line in file.read_text("utf-8")]
    if len(files) != 1:
        return f"is in {len(files)} files of the package: name another line"
    files[0].write_text(files[0].read_text("utf-8").replace(mutation.line, mutation.broken), "utf-8")
    tests = [str(ROOT / "tests" / f"test_{name}.py") for name in mutation.tests.split()]
    options = ["-c", str(ROOT / "pyproject.toml"), "-x", "-q", "-p", "no:cacheprovider", "-m", "not heavy"]
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
