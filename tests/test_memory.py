"""Low limits of the address space, and the budget `--memory`: the work is done, or refused in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import raises

from hybrid_cli import memory, storage
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.errors import HybridError
from hybrid_cli.settings import COMMANDS, Combine, Encode, Export
from hybrid_cli.settings.common import Budgeted
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.export import export
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.label import label
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.rerank import rerank
from hybrid_cli.stages.search import search

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


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_a_low_limit_limits_the_threads_of_all_libraries() -> None:
    """Eight threads of FAISS, each with a buffer of OpenBLAS, ended a dense search under 2.4 GB with a signal."""
    script = (
        "import os, resource; os.sched_getaffinity = lambda _: set(range(8)); "
        "resource.setrlimit(resource.RLIMIT_AS, (5 << 29,) * 2); from hybrid_cli import memory; "
        "found = {'POLARS_MAX_THREADS': '5', 'OPENBLAS_NUM_THREADS': '1'}; memory.economize(found); "
        "print(*sorted(f'{name}={value}' for name, value in found.items() if 'THREADS' in name))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["OMP_NUM_THREADS=2", "OPENBLAS_NUM_THREADS=1", "POLARS_MAX_THREADS=2"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_more_threads_than_the_address_space_holds_are_refused(made: Path) -> None:
    """FAISS ended a search with a segmentation fault."""
    search = ["search", "collection", "--split", "test", "--index", "dense", "--output", "run.parquet", "--threads"]
    done = limited(2100, made, *search, "8")
    assert done.returncode == 2
    assert done.stderr.endswith(
        "--threads 8: `ulimit -v` leaves addresses for 2; use --threads 2, or raise the limit\n"
    )


@pytest.mark.parametrize("megabytes", [1024])
def test_long_runs_are_fused_and_measured_under_a_low_limit(folder: Path, megabytes: int) -> None:
    output = f"fused.{megabytes}.parquet"
    fused = limited(megabytes, folder, "fuse", "a.trec", "b.trec", "--method", "rrf", "-o", output, "--quiet")
    assert (fused.returncode, fused.stderr) == (0, ""), fused.stderr
    measured = limited(megabytes, folder, "evaluate", "b.trec", output, "--qrels", "qrels.tsv", "--quiet")
    assert (measured.returncode, measured.stderr) == (0, ""), measured.stderr


@pytest.mark.parametrize(
    ("megabytes", "command"),
    [(400, ("fuse", "a.trec", "b.trec", "--method", "rrf", "-o", "x.parquet")),
     (600, ("evaluate", "a.trec", "b.trec", "--qrels", "qrels.tsv"))],
)  # fmt: skip
def test_a_limit_that_is_too_low_is_named_in_one_line(folder: Path, megabytes: int, command: tuple[str, ...]) -> None:
    done = limited(megabytes, folder, *command)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert re.fullmatch(r"hybrid: not enough memory: .*ulimit -v.*; raise it\n", done.stderr), done
    assert not (folder / "x.parquet").exists()


@pytest.mark.parametrize(("megabytes", "code"), [(800, 1), (2048, 0)])
def test_java_starts_under_a_low_limit_or_is_refused_in_one_line(
    tiny: Path, tmp_path: Path, megabytes: int, code: int
) -> None:
    done = limited(megabytes, tmp_path, "index-bm25", str(tiny), "--threads", "1", "-o", "bm25", "--quiet")
    assert (done.returncode, done.stdout) == (code, ""), done
    assert re.fullmatch(
        r"hybrid: not enough memory: Java needs about 448 MiB more, and.*\n" if code else "", done.stderr
    )
    assert (tmp_path / "bm25").exists() == (code == 0)


def test_pytorch_is_not_loaded_where_its_libraries_do_not_fit(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    done = limited(1024, tmp_path, "encode", str(tiny), "--model", str(tiny_bert), "-o", "dense", "--quiet")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert done.stderr.startswith("hybrid: not enough memory: PyTorch needs about 1,024 MiB more, and the limit of the")


def test_the_limit_of_a_container_leaves_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a cgroup of 1 GiB with 900 MiB in use, 200 MiB of them cached files."""
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{1 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{900 << 20}\n")
    (tmp_path / "memory.stat").write_text(f"anon {700 << 20}\nfile {200 << 20}\n")
    memory.require(323 << 20, "this test")
    with raises("no-memory", HybridError, free=324 << 20):
        memory.require(325 << 20, "this test")
    (tmp_path / "memory.max").write_text("max\n")
    memory.require(325 << 20, "this test")


def test_the_need_is_compared_with_the_free_memory() -> None:
    memory.require(1, "this test")
    with raises("no-memory", HybridError):
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


# -------------------------------------------------------------------------------------------------------------- budget

_MEASURED = (  # runs the command line in a child process, and prints its peak of memory without pages of files
    "import os, pathlib, sys, time\n"
    "child = os.fork()\n"
    "if child == 0:\n"
    "    os.execv(sys.executable, [sys.executable, '-m', 'hybrid_cli', *sys.argv[1:]])\n"
    "peak, status = 0, pathlib.Path(f'/proc/{child}/status')\n"
    "while not (done := os.waitpid(child, os.WNOHANG))[0]:\n"
    "    rows = [line.split() for line in status.read_text().splitlines()]\n"
    "    peak = max([peak, *(1024 * int(row[1]) for row in rows if row[0] == 'RssAnon:')])\n"
    "    time.sleep(0.005)\n"
    "print(peak)\n"
    "sys.exit(os.waitstatus_to_exitcode(done[1]))\n"
)


@pytest.fixture(scope="module")
def stored(folder: Path) -> Path:
    """Return the same folder, with the runs as Parquet files."""
    columns = ["qid", "q0", "docid", "rank", "score", "tag"]
    for name in ("a", "b"):
        table = pl.read_csv(folder / f"{name}.trec", separator=" ", has_header=False, new_columns=columns)
        table.select("qid", "docid", "rank", "score").sort("qid", "rank").write_parquet(folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize(
    ("budget", "command"),
    [
        (150, "fuse a.parquet b.parquet --threads 1 -o f.parquet"),
        (150, "fuse a.parquet b.parquet --tune --method rrf --grid linear --step 0.5 --measure R@1000 "
              "--qrels qrels.tsv --threads 1 -o w.json"),
        (200, "evaluate a.parquet b.parquet --qrels qrels.tsv"),
        (150, "export a.parquet --format trec -o a.txt"),
    ],
    ids=["fuse", "tune", "evaluate", "export"],
)  # fmt: skip
def test_a_stage_stays_within_its_budget(stored: Path, budget: int, command: str) -> None:
    words = [sys.executable, "-c", _MEASURED, *command.split(), "--memory", f"{budget}M"]
    done = subprocess.run(words, cwd=stored, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout.splitlines()[-1]) < budget * 1_000_000


def test_a_budget_below_the_need_is_refused_in_one_line(stored: Path) -> None:
    words = [sys.executable, "-m", "hybrid_cli", "fuse", "a.trec", "b.parquet", "--memory", "30M", "-o", "none.parquet"]
    done = subprocess.run(words, cwd=stored, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    message = "hybrid: not enough memory: a.trec needs about .* and --memory 29 MiB leaves 0 MiB; raise it, or use .*\n"
    assert re.fullmatch(message, done.stderr), done
    assert not (stored / "none.parquet").exists()


def test_a_budget_holds_for_one_stage(stored: Path) -> None:
    with memory.limit_budget(memory.used_bytes() + (1 << 30)):
        assert 0.9 < memory.rows_that_fit(1024, 1 << 30) / (1 << 18) < 1.1, "a quarter of the free memory"
        assert memory.rows_that_fit(1 << 40, 1000, min_rows=7) == 7
        with memory.limit_budget(None), raises("no-memory", HybridError):
            memory.require(1 << 31, "this test")
    assert memory.rows_that_fit(1 << 40, 1000, min_rows=7) == 1000


def test_an_index_that_does_not_fit_is_refused_before_it_is_built(made: Path, tmp_path: Path) -> None:
    with raises("no-memory", HybridError):
        encode(made / "dense", index_type="hnsw", memory=1_000_000, output=tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


SMALL_BLOCKS: dict[str, Callable[[Path, Path, Path], Any]] = {
    "search": lambda tiny, made, out: search(tiny, split="test", index=made / "bm25", output=out),
    "search (dense)": lambda tiny, made, out: search(tiny, split="test", index=made / "dense", output=out),
    "search --exact": lambda tiny, made, out: search(
        tiny, split="test", exact=True, index=[made / "dense", made / "bm25"], output=out
    ),
    "fuse --missing exact": lambda tiny, made, out: fuse(
        [made / "run.parquet", made / "dense-run.parquet"], missing="exact", index=[made / "bm25", made / "dense"],
        output=out,
    ),
    "mine-negatives": lambda tiny, made, out: mine_negatives(
        tiny, split="train", sources=[f"run:{made / 'train.parquet'}:2", "random:2"], index=made / "bm25", output=out
    ),
    "export dpr": lambda tiny, made, out: export(
        made / "run.parquet", form="dpr", collection=tiny, split="test", output=out
    ),
    "label": lambda tiny, made, out: label(
        tiny, run=made / "run.parquet", split="test", output=out
    ),
    "rerank": lambda tiny, made, out: rerank(
        made / "run.parquet", model=str(made / "reranker"), top_k=5, shard_size=4, dtype="fp32", device="cpu",
        output=out,
    ),
}  # fmt: skip


@pytest.mark.parametrize("stage", SMALL_BLOCKS)
def test_blocks_of_any_size_give_the_same_result(
    stage: str, tiny: Path, searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def least(each: int, most: int, least: int = 1) -> int:
        return 1

    results = []
    for name in ("whole", "blocks"):
        output = SMALL_BLOCKS[stage](tiny, searched, tmp_path / f"{name}{'.json' if 'dpr' in stage else '.parquet'}")
        results.append(storage.fingerprint(output))
        monkeypatch.setattr(memory, "rows_that_fit", least)
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def searched(tiny: Path, made: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the indexes of `made`, runs of both splits, and a reranker with random weights."""
    folder = tmp_path_factory.mktemp("searched")
    for name in ("bm25", "dense"):
        (folder / name).symlink_to(made / name)
    search(tiny, split="test", index=folder / "bm25", output=folder / "run.parquet")
    search(tiny, split="train", index=folder / "bm25", output=folder / "train.parquet")
    search(tiny, split="test", index=folder / "dense", hits=4, output=folder / "dense-run.parquet")
    (folder / "reranker").mkdir()
    CrossEncoder.load(tiny_bert, device="cpu", train=True, max_length=64, query_max_len=24).save(folder / "reranker")
    return folder


def test_the_option_is_refused_where_it_has_no_effect(tmp_path: Path) -> None:
    with raises("option-does-not-apply", option="memory"):
        Combine(["a", "b"], memory=1 << 30, output=tmp_path)
    with raises("option-does-not-apply", option="memory"):
        Export(tmp_path, form="pyserini", memory=1 << 30, output=tmp_path)
    flat = Encode(tmp_path, index_type="flat", memory=1 << 30, output=tmp_path)
    assert "memory" not in flat.recorded(), "a budget does not change the index"
    assert flat.changed(index_type="auto").recorded()["memory"] == 1 << 30


UNBOUNDED = {  # commands without --memory
    "prepare": "reads documents one by one, and writes parts of a fixed size",
    "split": "holds one column of ids and judgments",
    "perturb": "holds the queries of one split",
    "pretrain": "--batch-size and --chunk-size set the memory of the model",
    "train-dense": "--batch-size and --chunk-size set the memory of the model",
    "train-lambda": "--batch-size and --chunk-size set the memory of the model",
    "distill-lite": "--batch-size and --chunk-size set the memory of the model",
    "train-sparse": "--batch-size and --chunk-size set the memory of the model",
    "train-reranker": "--batch-size and --chunk-size set the memory of the model",
    "convert-checkpoint": "holds the weights of one model",
    "presets": "prints a list",
    "compose": "searches some hundred queries; the tuning is that of fuse",
    "update": "holds ids and digests of the documents; reads the new ones, and links the files of the others",
    "serve": "holds the open indexes; requests have limits of hits, bytes and number",
    "doctor": "reads no data",
}


def test_every_command_has_a_budget_or_a_reason_for_none() -> None:
    budgeted = {kind.command for kind in COMMANDS if "memory" in kind.declared()}
    assert budgeted == {kind.command for kind in COMMANDS if issubclass(kind, Budgeted)}, "one declaration"
    assert {kind.command.split()[0] for kind in COMMANDS} - budgeted == UNBOUNDED.keys()
