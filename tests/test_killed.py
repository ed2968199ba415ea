"""kill -9 and Ctrl-C: the old output is kept, and the repeated command gives the output of an uninterrupted one.

The tests of `train-dense` and `encode`, which resume from checkpoints and shards, contain their own such tests.
"""

import shutil
import signal
import time
from pathlib import Path

import pytest
from command import ran
from processes import HYBRID, Started, run
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts, storage
from hybrid_cli.runs import read_run
from hybrid_cli.storage import Kind

KILLED_AT = {
    "its first rows": "tables.pq.ParquetWriter.write_table = die",
    "its last moment": "output.Output._publish = die",
}
PROGRAM = """
import os, signal
from hybrid_cli.artifacts import output
from hybrid_cli.storage import tables
from hybrid_cli.cli import main
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
{}
main()
"""
STAGES = {  # a folder, a file and a file of another program; all stages are in tests/hard/kill.py
    "prepare": "prepare trec docs.jsonl --topics test=topics.test.tsv --qrels test=qrels.test.txt --output out",
    "fuse": "fuse bm25.parquet dense.parquet --output out.parquet",
    "update": "update bm25 --remove gone.txt --threads 1 --output out",
    "export": "export bm25.parquet --format msmarco --output out.tsv",
}


def bytes_of(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    files = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    kept = {name for name in files if name.name != storage.MANIFEST and name.parts[0] != "lucene"}
    assert kept
    return {str(name): files[name].read_bytes() for name in kept}


def hidden() -> list[str]:
    return [path.name for path in Path().iterdir() if path.name.startswith(".")]


def started(*arguments: object) -> Started:
    return Started(HYBRID, *arguments)


def wait_for(path: Path, process: Started) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, f"ended before {path} existed: {process.wait().stderr}"
        assert time.monotonic() < deadline
        time.sleep(0.002)


FIRST, LAST = KILLED_AT
MOMENTS = [("prepare", FIRST), ("fuse", FIRST), *((stage, LAST) for stage in STAGES)]


@pytest.mark.parametrize(("stage", "moment"), MOMENTS)
def test_a_killed_stage_leaves_no_output_and_can_be_repeated(here: Path, stage: str, moment: str) -> None:
    write_tiny_source(here)
    Path("gone.txt").write_text("007\n")
    words = STAGES[stage].split()
    output = Path(words[-1])
    ran(*words)
    whole = bytes_of(output)
    shutil.rmtree(output) if output.is_dir() else output.unlink()
    code = PROGRAM.format(KILLED_AT[moment])
    ended = run(code, *words)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not output.exists(), "an incomplete artifact was renamed"
    assert f".{output.name}.partial" in hidden()
    ran("inspect", "--verify", "bm25")  # whose files are linked
    ran(*words)
    assert bytes_of(output) == whole
    assert hidden() == []


def test_a_killed_replacement_keeps_the_old_output(here: Path) -> None:
    words = STAGES["fuse"].split()
    ran(*words, "--method", "rrf")
    old = bytes_of(Path("out.parquet"))
    code = PROGRAM.format(KILLED_AT["its last moment"])
    run(code, *words, "--overwrite")
    assert bytes_of(Path("out.parquet")) == old
    assert artifacts.read_manifest(Path("out.parquet"), Kind.RUN).options["method"] == "rrf"
    ran(*words, "--overwrite")
    assert bytes_of(Path("out.parquet")) != old
    assert hidden() == []


def test_a_killed_index_bm25_ends_with_the_same_index(here: Path, made: Path) -> None:
    process = started("index-bm25", "collection", "--output", "out", "--threads", 1)
    wait_for(Path(".out.partial/.lucene.partial"), process)
    process.kill()
    process.wait()
    assert not Path("out").exists()
    ran("index-bm25", "collection", "--output", "out", "--threads", 1)
    assert bytes_of(Path("out")) == bytes_of(made / "bm25")
    assert storage.fingerprint(Path("out")) == storage.fingerprint(made / "bm25")
    command = "search collection --split test --index out --engine lucene --output run.parquet"
    ran(*command.split())
    assert read_run(Path("run.parquet")).equals(read_run(Path("bm25.parquet")))
    assert hidden() == []


INTERRUPTED = "hybrid: interrupted; run the same command again to resume\n"
TERMINATED = "hybrid: terminated; run the same command again to resume\n"


@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED), (signal.SIGHUP, TERMINATED)]
)
def test_a_signal_in_prepare_is_one_line_and_leaves_no_files(here: Path, number: signal.Signals, line: str) -> None:
    Path("corpus.tsv").write_text("".join(f"{row}\tpassage number {row}\n" for row in range(300_000)))
    process = started("prepare", "msmarco", "corpus.tsv", "--output", "out")
    wait_for(Path(".out.partial/corpus"), process)
    process.send_signal(number)
    assert process.wait()[::2] == (128 + number, line)
    assert not Path("out").exists()
    assert hidden() == []


@pytest.mark.parametrize(("number", "line"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
def test_a_signal_while_java_runs_is_one_line(here: Path, number: signal.Signals, line: str) -> None:
    process = started("index-bm25", "collection", "--output", "out", "--threads", 1)
    wait_for(Path(".out.partial/.lucene.partial"), process)
    process.send_signal(number)
    assert process.wait()[::2] == (128 + number, line)
    assert not Path("out").exists()
