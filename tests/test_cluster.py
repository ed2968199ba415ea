"""Stages on a Ray cluster: the bytes of one process, also when a machine ends."""

import gzip
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import cases, raises, refused
from processes import run

from hybrid_cli import artifacts, cluster, interrupts, storage
from hybrid_cli.cluster import Workers
from hybrid_cli.collections import source as sources
from hybrid_cli.commands.data import PrepareFiles, PrepareTrec
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.label import label
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """A cluster of two machines with one core each, on this machine."""
    from ray.cluster_utils import Cluster

    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    add_machine(made)
    yield made
    made.shutdown()


def add_machine(machines: Any) -> None:
    machines.add_node(num_cpus=1)
    machines.wait_for_nodes()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.name != storage.MANIFEST}


def failing(fail: Callable[[int], int]) -> Callable[[], Callable[[int], int]]:
    """Return a local function, which Ray sends by value: its processes cannot import the tests."""
    return lambda: fail


STAGES: dict[str, tuple[Any, dict[str, Any]]] = {  # {made} is the folder of the artifacts
    "search, BM25": (search, {"index": "{made}/bm25", "split": "test", "output": "run.parquet"}),
    "label": (label, {"index": "{made}/bm25", "queries_from": "all", "depth": 5, "output": "labels"}),
    "mine-negatives": (
        mine_negatives,
        {"index": "{made}/bm25", "sources": "bm25:2,random:1", "split": "train", "output": "train.parquet"},
    ),
    "search, dense": (search, {"index": "{made}/dense", "split": "test", "output": "run.parquet"}),
    "search --exact": (
        search,
        {"index": ["{made}/bm25", "{made}/dense"], "exact": True, "split": "test", "output": "run.parquet"},
    ),
    "label --run": (label, {"run": "{made}/dense.parquet", "split": "test", "depth": 3, "output": "labels"}),
    "mine-negatives run": (
        mine_negatives,
        {"sources": "run:{made}/dense.parquet:2,random:1", "split": "test", "output": "train.parquet"},
    ),
}


def filled(value: Any, made: Path) -> Any:
    if isinstance(value, list):
        return [filled(each, made) for each in value]
    return value.format(made=made) if isinstance(value, str) else value


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_cli.stages.search.QUERIES_AT_ONCE", 1)
    monkeypatch.setattr("hybrid_cli.training.labels.QUERIES_IN_A_SHARD", 3)
    monkeypatch.setattr("hybrid_cli.training.mining.EXAMPLES_AT_ONCE", 1)


@pytest.mark.parametrize("work", cases(STAGES, "search, dense"))
def test_outputs_of_a_cluster_have_the_bytes_of_one_process(
    work: str, machines: Any, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch)
    stage, options = STAGES[work]
    given = {name: filled(value, made) for name, value in options.items()} | {"threads": 1}
    name = given.pop("output")
    local = stage(made / "collection", **given, output=tmp_path / name)
    given |= {"ray_address": machines.address, "ray_workers": 2}
    found = stage(made / "collection", **given, output=tmp_path / f"ray-{name}")
    assert contents(found) == contents(local)
    assert len(contents(found)) == (1 if found.is_file() else len(list(local.rglob("*.parquet"))))


def test_no_more_blocks_than_workers_are_in_progress(machines: Any) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(6):
            taken.append(number)
            yield -number

    settings = Workers(ray_address=machines.address, ray_workers=2)
    for done, result in enumerate(cluster.map_blocks(settings, lambda: abs, items()), 1):
        assert result == done - 1
        assert len(taken) - done <= 2


def test_a_block_has_a_gpu_of_its_own(machines: Any, tmp_path: Path) -> None:
    """The first block waits until two processes have opened their model, so that both GPUs get blocks."""
    node = machines.add_node(num_cpus=2, num_gpus=2)
    machines.wait_for_nodes()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def opened() -> Any:
        first = os.environ["CUDA_VISIBLE_DEVICES"]
        (tmp_path / str(os.getpid())).touch()

        def compute(number: int) -> tuple[int, str, str]:
            for _ in range(1200):  # a minute
                if len(list(tmp_path.iterdir())) >= 2:
                    break
                time.sleep(0.05)
            time.sleep(0.05 * (number * 7 % 5))
            return os.getpid(), first, os.environ["CUDA_VISIBLE_DEVICES"]

        return compute

    try:
        settings = Workers(ray_address=machines.address, ray_workers=2)
        found = list(cluster.map_blocks(settings, opened, range(12), gpu=True))
        assert all(first == now for _, first, now in found)
        assert len({first for _, first, _ in found}) == 2
    finally:
        machines.remove_node(node)


def test_more_blocks_in_progress_than_the_cluster_has_room_for(machines: Any) -> None:
    settings = Workers(ray_address=machines.address, ray_workers=50)
    assert list(cluster.map_blocks(settings, lambda: abs, range(-60, 0))) == list(range(60, 0, -1))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Files of documents in several formats; fields are not empty in every file."""
    (tmp_path / "a.tsv").write_text("docid\ttext\turl\n1\tone\tx\n2\ttwo\ty\n", "utf-8")
    rows = [{"docid": str(number), "title": "t", "text": f"text {number}", "url": ""} for number in range(3, 6)]
    with gzip.open(tmp_path / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    pl.DataFrame({"docid": [6, 7], "text": ["six", "seven"], "url": ["", "z"]}).write_parquet(tmp_path / "c.parquet")
    (tmp_path / "d.csv").write_text('docid,text,url\n8,"eight, or so",\n', "utf-8")
    return sorted(tmp_path.glob("[a-d].*"))


def test_files_are_read_on_a_cluster(
    machines: Any, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ROWS", 2)
    columns = {"url": "url"}
    local = prepare(PrepareFiles(files, document_columns=columns, output=tmp_path / "here"))
    there = {"ray_address": machines.address, "ray_workers": 2}
    found = prepare(PrepareFiles(files, document_columns=columns, output=tmp_path / "ray", **there))
    assert contents(found) == contents(local)
    assert artifacts.read_manifest(found).counts["documents"] == 8

    folder = tmp_path / "trec"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.sgml").write_text(f"<DOC>\n<DOCNO>{number}</DOCNO>\n<TEXT>word</TEXT>\n</DOC>\n", "utf-8")
    local = prepare(PrepareTrec(folder, output=tmp_path / "trec-here"))
    assert contents(prepare(PrepareTrec(folder, output=tmp_path / "trec-ray", **there))) == contents(local)


@pytest.mark.parametrize("line", ["docid,text\n7,again\n", 'docid,text\n9,"open\n'], ids=["duplicate", "open quote"])
def test_a_row_that_a_cluster_refuses_is_named(line: str, machines: Any, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(line, "utf-8")
    messages = []
    for address in (None, machines.address):
        with pytest.raises(InputError) as error:
            prepare(PrepareFiles([*files, tmp_path / "e.csv"], output=tmp_path / "out", ray_address=address))
        assert (error.value.code != "", error.value.fields["line"]) == (True, 2)
        messages.append(str(error.value))
        assert not list(tmp_path.glob("out*"))
    assert messages[0] == messages[1]


JAVA_AND_RAY = """
import sys
from hybrid_cli import cluster
from hybrid_cli.lexical import jvm
from hybrid_cli.cluster import Workers

jvm.start()
import jnius

assert list(cluster.map_blocks(Workers(ray_address=sys.argv[1]), lambda: abs, [-1])) == [1]
for _ in range(3):
    try:
        jnius.autoclass("java.util.ArrayList")(None)
    except jnius.JavaException as error:
        assert "null" in str(error)
        print("null")
"""


def test_java_goes_on_after_a_cluster(machines: Any) -> None:
    """Java finds null references by SIGSEGV, which Ray would handle as a crash and end the process."""
    done = run(JAVA_AND_RAY, machines.address)
    assert (done.returncode, done.stdout.split()) == (0, ["null"] * 3), done.stderr


def test_a_signal_ends_a_command_on_a_cluster_as_elsewhere(machines: Any) -> None:
    def run() -> None:
        with interrupts.raise_on_signals():
            for _ in cluster.map_blocks(Workers(ray_address=machines.address), lambda: abs, [-1, -2]):
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(interrupts.Ended):
        run()


def test_memory_that_a_machine_lacks_ends_processes(machines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends a process with an error of its own."""
    import ray

    monkeypatch.setattr(cluster, "RETRIES", 1)
    lacks = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory")  # type: ignore[no-untyped-call]

    def fail(*_: Any) -> Any:
        raise lacks

    blocks = cluster.map_blocks(Workers(ray_address=machines.address), lambda: abs, [1])
    monkeypatch.setattr(ray, "get", fail)
    with raises("worker-ended", HybridError, count=2):
        list(blocks)


def test_memory_that_a_block_lacks_is_an_error_of_one_line(machines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "RETRIES", 1)

    def fail(number: int) -> int:
        if number < 0:
            raise InputError(f"{number} is negative")
        if number:
            raise MemoryError
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    settings = Workers(ray_address=machines.address)
    with pytest.raises(InputError, match=r"^-3 is negative$"):  # the words of this test
        list(cluster.map_blocks(settings, failing(fail), [-3]))
    with raises("no-memory", HybridError):
        list(cluster.map_blocks(settings, failing(fail), [1]))
    with raises("worker-ended", HybridError, count=2):
        list(cluster.map_blocks(settings, failing(fail), [0]))


def import_files(collection: Path, *, files: list[Path], threads: int, **options: Any) -> Path:
    return prepare(PrepareFiles(files, **options))


@pytest.mark.parametrize("work", cases(["encode", "mine-negatives", "prepare"], "prepare"))
def test_blocks_of_a_machine_that_ends_are_computed_by_the_others(
    work: str,
    machines: Any,
    made: Path,
    tiny_lambda: Path,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The output has the bytes of one process: no block is missing or written twice."""
    small_blocks(monkeypatch)
    stages: dict[str, tuple[Any, dict[str, Any]]] = {
        "encode": (encode, {"model": tiny_lambda, "shard_size": 1}),
        "prepare": (import_files, {"files": files}),
        **STAGES,
    }
    stage, options = stages[work]
    options = {option: filled(value, made) for option, value in options.items()}
    name = options.get("output", "index")
    (tmp_path / "here").mkdir()
    (tmp_path / "ray").mkdir()
    given = {**options, "threads": 1}
    local = stage(made / "collection", **{**given, "output": tmp_path / "here" / name})
    ordered, blocks = cluster.map_blocks, []

    def ending(*values: Any, **more: Any) -> Iterator[Any]:
        for block in ordered(*values, **more):
            blocks.append(block)
            if len(blocks) == 2:
                machines.remove_node(machines.list_all_nodes()[-1], allow_graceful=False)
            yield block

    monkeypatch.setattr(cluster, "map_blocks", ending)
    given |= {"output": tmp_path / "ray" / name, "ray_address": machines.address, "ray_workers": 2}
    try:
        found = stage(made / "collection", **given)
    finally:
        add_machine(machines)
    assert len(blocks) > 3, "blocks are left when the machine ends"
    assert contents(found) == contents(local)


def test_a_lost_cluster_loses_no_work(
    made: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted command keeps its shards, and resumes with them when the cluster is there again."""
    shards: Any = import_module("hybrid_cli.indexes.shards")
    write = shards.write_shard
    written: list[Path] = []

    def write_two(path: Path, *values: Any, **facts: int) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        write(path, *values, **facts)
        written.append(path)

    options: dict[str, Any] = {"model": str(tiny_bert), "dtype": "fp32", "shard_size": 1, "output": tmp_path / "index"}
    monkeypatch.setattr(shards, "write_shard", write_two)
    with pytest.raises(KeyboardInterrupt):
        encode(made / "collection", **options)
    monkeypatch.setattr(shards, "write_shard", write)
    for address in ("127.0.0.1:1", ""):
        with pytest.raises(InputError) as refused_address:
            encode(made / "collection", **options, ray_address=address)
        assert refused_address.value.fields["option"] == "ray_address"
    assert all(path.exists() for path in written)
    before = [path.stat().st_ino for path in written]
    found = encode(made / "collection", **options)
    assert [(found / "vectors" / path.name).stat().st_ino for path in written] == before


def test_a_search_that_does_not_use_the_cluster_refuses_its_address(made: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"index": made / "bm25", "rm3": True, "tune": True, "folds": 2, "split": "test"}
    with raises("option-does-not-apply", option="ray_address"):
        search(made / "collection", **options, ray_address="auto", output=tmp_path / "run.parquet")


def test_an_address_where_nothing_listens_is_refused(here: Path) -> None:
    address = "127.0.0.1:1"
    words = ("search", "collection", "--split", "test", "--index", "bm25", "--output", "run.parquet")
    refused(*words, "--ray-address", address, problem="unreachable", option="ray_address", value=address)
