"""Low limits of the address space: the work is done, or refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hybrid_cli import memory
from hybrid_cli.errors import HybridError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited on Linux only")

_QUERIES, _HITS = 500, 1000
_START = (
    "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20,) * 2); "
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); del sys.argv[1]; "
    "runpy.run_module('hybrid_cli', run_name='__main__')"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two TREC runs of 500,000 rows, and judgments."""
    made, rng = tmp_path_factory.mktemp("memory"), np.random.default_rng(0)
    for name in ("a", "b"):
        with (made / f"{name}.trec").open("w") as file:
            for query in range(_QUERIES):
                hits = zip(rng.choice(200_000, _HITS, replace=False), np.linspace(20, 1, _HITS), strict=True)
                file.writelines(f"q{query} Q0 d{d} {n} {score:.6f} {name}\n" for n, (d, score) in enumerate(hits, 1))
    lines = (f"q{query}\td{doc}\t1\n" for query in range(_QUERIES) for doc in rng.choice(200_000, 5, replace=False))
    (made / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return made


def limited(megabytes: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line under a limit of the address space."""
    unset = ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_DEFAULT_MEMORY_POOL", "_RJEM_MALLOC_CONF")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", _START, str(megabytes), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("megabytes", [1024, 2048, 3072])
def test_long_runs_are_fused_and_measured_under_a_low_limit(folder: Path, megabytes: int) -> None:
    output = f"fused.{megabytes}.parquet"
    fused = limited(megabytes, folder, "fuse", "a.trec", "b.trec", "--method", "rrf", "-o", output, "--quiet")
    assert (fused.returncode, fused.stderr) == (0, ""), fused.stderr
    for runs in (("a.trec", "b.trec"), ("a.trec", output)):
        measured = limited(megabytes, folder, "evaluate", *runs, "--qrels", "qrels.tsv", "--quiet")
        assert (measured.returncode, measured.stderr) == (0, ""), measured.stderr


@pytest.mark.parametrize("megabytes", [400, 600, 760])
@pytest.mark.parametrize(
    "command",
    [("fuse", "a.trec", "b.trec", "--method", "rrf", "-o", "x.parquet"),
     ("evaluate", "a.trec", "b.trec", "--qrels", "qrels.tsv")],
)  # fmt: skip
def test_a_limit_that_is_too_low_is_named_in_one_line(folder: Path, megabytes: int, command: tuple[str, ...]) -> None:
    done = limited(megabytes, folder, *command)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("hybrid: not enough memory: ")
    assert done.stderr.endswith("; raise it\n")
    assert "ulimit -v" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "x.parquet").exists()


def test_the_need_is_compared_with_what_is_free() -> None:
    memory.require(1, "this test")
    with pytest.raises(HybridError, match=r"not enough memory: this test needs about .* more, and the machine leaves"):
        memory.require(1 << 60, "this test")
    memory.require(1 << 60, "this test", mapped=True)  # this process has no limit of the address space


def test_variables_that_are_set_stay(folder: Path) -> None:
    code = (
        "import os, resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); import hybrid_cli.cli; "
        "print(os.environ['ARROW_DEFAULT_MEMORY_POOL'], os.environ['MALLOC_ARENA_MAX'])"
    )
    given = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    given["ARROW_DEFAULT_MEMORY_POOL"] = "mimalloc"
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert done.stdout == "mimalloc 1\n"
