"""The memory that is free, the small need of stages that stream, and blocks of any size: equal results."""

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
from hybrid_cli.stages.export import export
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.label import label
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.rerank import rerank
from hybrid_cli.stages.search import search

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited on Linux only")

_QUERIES, _HITS = 500, 1000


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
    columns = ["qid", "q0", "docid", "rank", "score", "tag"]
    for name in ("a", "b"):
        table = pl.read_csv(folder / f"{name}.trec", separator=" ", has_header=False, new_columns=columns)
        table.select("qid", "docid", "rank", "score").sort("qid", "rank").write_parquet(folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize(
    ("most", "command"),
    [
        (150, "fuse a.parquet b.parquet --threads 1 -o f.parquet"),
        (200, "evaluate a.parquet b.parquet --qrels qrels.tsv"),
        (150, "export a.parquet --format trec -o a.txt"),
    ],
    ids=["fuse", "evaluate", "export"],
)
def test_a_stage_that_streams_needs_little_memory(stored: Path, most: int, command: str) -> None:
    """Two runs of 500,000 hits, in blocks."""
    words = [sys.executable, "-c", _MEASURED, *command.split()]
    done = subprocess.run(words, cwd=stored, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout.splitlines()[-1]) < most * 1_000_000


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
        made / "run.parquet", model=str(made / "reranker"), depth=[5], shard_size=4, dtype="fp32", device="cpu",
        output=out,
    ),
}  # fmt: skip # a stage per line


BLOCKS = ["runs.run.BLOCK_ROWS", "runs.files.BLOCK_ROWS", "fusion.lists.BLOCK_HITS", "fusion.lists.SCORED_AT_ONCE"]
BLOCKS += ["indexes.dense._HITS_AT_ONCE", "indexes.hybrid_search.BLOCK_QUERIES", "runs.index.Index.hits_at_once"]
BLOCKS += ["retrieval.retriever._HITS_AT_ONCE", "training.mining.EXAMPLES_AT_ONCE", "stages.export.QUERIES_AT_ONCE"]
BLOCKS += ["encoders.cross_encoder._PAIRS_AT_ONCE"]


@pytest.mark.parametrize("stage", SMALL_BLOCKS)
def test_blocks_of_any_size_give_the_same_result(
    stage: str, tiny: Path, searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name in ("whole", "blocks"):
        output = SMALL_BLOCKS[stage](tiny, searched, tmp_path / f"{name}{'.json' if 'dpr' in stage else '.parquet'}")
        results.append(storage.fingerprint(output))
        for constant in BLOCKS:
            monkeypatch.setattr(f"hybrid_cli.{constant}", 1)
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def searched(tiny: Path, made: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    for name in ("bm25", "dense"):
        (folder / name).symlink_to(made / name)
    search(tiny, split="test", index=folder / "bm25", output=folder / "run.parquet")
    search(tiny, split="train", index=folder / "bm25", output=folder / "train.parquet")
    search(tiny, split="test", index=folder / "dense", hits=4, output=folder / "dense-run.parquet")
    (folder / "reranker").mkdir()
    CrossEncoder.load(tiny_bert, device="cpu", train=True, max_length=64, query_max_len=24).save(folder / "reranker")
    return folder
