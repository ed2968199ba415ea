"""Inputs and outputs in an object store: the bytes of local files, no incomplete artifact, and no work done twice."""

import gzip
import io
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import processes
import pyarrow.fs as pa_fs
import pytest
from command import Done, hybrid, ran
from judging import FIRST, SECOND, write_runs
from object_stores import CHAIN, Bucket, contents, run, with_index
from test_train_dense import write_examples

from hybrid_cli import InputError, open_encoder, open_index, open_run
from hybrid_cli.artifacts import remote
from hybrid_cli.cluster import inputs_on_machine
from hybrid_cli.commands import Search

pytest_plugins = ("object_stores",)

QUERY = ("--query", "salt", "--threads", "1")
KILLED = """
import os, signal, sys
from hybrid_cli.artifacts import remote
from hybrid_cli.cli import main
name, end, after = {0}
call = getattr(remote, name)
def die(*given):
    if after and given[-1].endswith(end):
        call(*given)
    if given[-1].endswith(end):
        os.kill(os.getpid(), signal.SIGKILL)
    return call(*given)
setattr(remote, name, die)
main()
"""


def killed(command: str, name: str, end: str, after: bool = False) -> None:
    ended = processes.run(KILLED.format((name, end, after)), *command.split())
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def stored(bucket: Bucket, local: Path) -> Bucket:
    with_index(bucket, local)
    for name, content in contents(local / "out").items():
        bucket.put(f"out/{name}", content)
    return bucket


def times(bucket: Bucket, folder: str) -> dict[str, int]:
    found = bucket.system.get_file_info(pa_fs.FileSelector(f"{bucket.name}/{folder}", recursive=True))
    return {each.path: each.mtime_ns for each in found if each.type == pa_fs.FileType.File}


def inodes(bucket: Bucket) -> dict[str, int]:
    return {str(path): path.stat().st_ino for path in bucket.mirror.rglob("[!.]*") if path.is_file()}


def test_a_chain_of_stages_writes_the_bytes_of_local_files(any_bucket: Bucket, local: Path) -> None:
    done = run(any_bucket, 0, 1, 2, 3)
    wanted = contents(local)
    assert any_bucket.names() == set(wanted)
    repeatable = {name for name in wanted if not name.endswith("manifest.json")}
    assert not [name for name in repeatable if any_bucket.get(name) != wanted[name]]
    made = json.loads(any_bucket.get("out/bm25/manifest.json"))
    assert made["inputs"]["corpus"]["path"] == "../data/corpus.parquet"
    assert done[1].says("uploaded", url=f"{any_bucket}/out/bm25", count=len(contents(local / "out/bm25")))
    before = times(any_bucket, "out")
    shutil.rmtree(any_bucket.mirror)  # another machine
    assert run(any_bucket, 2)[0].says("up-to-date")
    ran("inspect", "--verify", f"{any_bucket}/out/bm25", f"{any_bucket}/data")
    hit = json.loads(hybrid("search", "--index", f"{any_bucket}/out/bm25", *QUERY, "--format", "json").out)["hits"][0]
    assert hit["text"]  # from the corpus that the index records
    copies = inodes(any_bucket)
    run(any_bucket, 1, 2)
    assert inodes(any_bucket) == copies  # nothing was downloaded
    assert times(any_bucket, "out") == before  # nor uploaded


def test_only_changed_objects_are_downloaded(bucket: Bucket, local: Path) -> None:
    stored(bucket, local)
    remote.fetch(f"{bucket}/data")
    before = inodes(bucket)
    bucket.put("data/queries.test.parquet", (local / "data/qrels.test.parquet").read_bytes())
    bucket.system.delete_file(f"{bucket.name}/data/qrels.test.parquet")
    with ExitStack() as held:
        for name in before:
            held.enter_context(Path(name).open("rb"))  # no later file has its inode
        remote.fetch(f"{bucket}/data")
        after = inodes(bucket)
    changed = {Path(name).name for name in before if after.get(name) != before[name]}
    assert changed == {"queries.test.parquet", "qrels.test.parquet", "manifest.json"}
    assert not list(bucket.mirror.rglob("qrels.test.parquet"))


def test_versions_of_the_same_second_and_size_are_told_apart(bucket: Bucket) -> None:
    for content in (b"0.25", b"0.75"):
        bucket.put("weights.json", content)
        assert remote.local_copies([f"{bucket}/weights.json"])[0].read_bytes() == content


def test_a_compressed_object_keeps_its_bytes(bucket: Bucket) -> None:
    content = gzip.compress(b'{"docid": "a", "title": "", "text": "a text"}\n')
    bucket.client.put_object(Bucket=bucket.name, Key="docs.jsonl.gz", Body=content)
    assert remote.local_copies([f"{bucket}/docs.jsonl.gz"])[0].read_bytes() == content
    command = ("prepare", "files", f"{bucket}/docs.jsonl.gz", "--output", f"{bucket}/gz")
    ran(*command)
    assert hybrid(*command).says("up-to-date")


def test_patterns_counts_and_names_in_options(bucket: Bucket, local: Path, tmp_path: Path) -> None:
    ran("index-bm25", local / "data", "--shards", "2", "--output", tmp_path / "idx")
    for name, content in contents(tmp_path / "idx").items():
        bucket.put(f"idx/{name}", content)
    stored(bucket, local)
    found = hybrid("search", f"{bucket}/data", "--index", f"{bucket}/idx/shard-*", *QUERY)
    assert found.out == hybrid("search", local / "data", "--index", local / "out/bm25", *QUERY).out
    for name in bucket.names("idx/shard-00001"):
        bucket.system.delete_file(f"{bucket.name}/{name}")
    assert hybrid("search", "--index", f"{bucket}/idx/shard-*", *QUERY).code == 2  # the copy is gone too
    assert hybrid("search", "--index", f"{bucket}/none-*", *QUERY).problem == "no-such-object"
    mined = ("--sources", f"run:{bucket}/out/bm25.parquet:3", "--output", f"{bucket}/train.parquet")
    ran("mine-negatives", f"{bucket}/data", "--split", "test", *mined)
    bucket.put("again.parquet", bucket.get("out/bm25.parquet"))
    fused = [f"a={bucket}/out/bm25.parquet", f"b={bucket}/again.parquet"]
    ran("fuse", *fused, "--method", "rrf", "--output", f"{bucket}/fused.parquet")
    assert {"train.parquet", "fused.parquet"} <= bucket.names()


def test_a_config_file_is_read_from_the_store_and_a_log_file_is_refused(bucket: Bucket, local: Path) -> None:
    with_index(bucket, local)
    bucket.put("bm25.yaml", f"k1: 1.5\nthreads: 1\noutput: {bucket}/out/bm25\n".encode())
    ran("index-bm25", f"{bucket}/data", "--config", f"{bucket}/bm25.yaml")
    assert json.loads(bucket.get("out/bm25/manifest.json"))["options"]["k1"] == 1.5
    assert hybrid("index-bm25", f"{bucket}/data", "--config", f"{bucket}/none.yaml").problem == "no-such-object"
    done = hybrid("index-bm25", f"{bucket}/data", "--output", f"{bucket}/x", "--log-file", f"{bucket}/log.txt")
    assert (done.code, done.problem) == (2, "not-writable")


def test_the_python_interface_opens_urls(bucket: Bucket, local: Path, tiny_bert: Path) -> None:
    stored(bucket, local)
    for name, content in contents(tiny_bert).items():
        bucket.put(f"bert/{name}", content)
    assert open_index(f"{bucket}/out/bm25").search("table salt", k=1)["title"][0] is not None
    assert len(open_run(f"{bucket}/out/bm25.parquet"))
    assert open_encoder(f"{bucket}/bert").encode_queries(["salt"]).shape[0] == 1
    with pytest.raises(InputError) as caught:
        open_index(f"{bucket}/nothing")
    assert (caught.value.code, caught.value.fields) == ("no-such-object", {"path": f"{bucket}/nothing"})


def test_exports_are_files_and_folders_without_manifest(bucket: Bucket, local: Path) -> None:
    stored(bucket, local)
    trec = ("export", f"{bucket}/out/bm25.parquet", "--format", "msmarco", "--output", f"{bucket}/run.tsv")
    folder = ("export", f"{bucket}/out/bm25", "--format", "opensearch", "--output", f"{bucket}/es")
    for words in (trec, folder):
        ran(*words)
        before = times(bucket, "")
        assert hybrid(*words).says("up-to-date")
        assert times(bucket, "") == before
    assert bucket.get("run.tsv").startswith(b"001\t")
    assert bucket.names("es")
    table = ("--memory-table", f"{bucket}/data", "--split", "test", "--output", f"{bucket}/memory.json")
    assert hybrid("inspect", f"{bucket}/out/bm25.parquet", *table).code == 0, "the index was read by another command"
    assert bucket.get("memory.json")


@pytest.mark.parametrize(
    ("end", "after"), [("/docids.parquet", True), ("manifest.json", False), ("manifest.json", True)]
)
@pytest.mark.parametrize("any_bucket", ["s3", pytest.param("gs", marks=pytest.mark.exhaustive)], indirect=True)
def test_a_killed_upload_is_finished_next_time(any_bucket: Bucket, local: Path, end: str, after: bool) -> None:
    with_index(any_bucket, local)
    command = CHAIN[1].format(any_bucket)
    killed(command, "put", end.removeprefix("/"), after)
    complete = (end, after) == ("manifest.json", True)
    assert ("out/bm25/manifest.json" in any_bucket.names("out")) == complete
    done = hybrid("inspect", "--verify", f"{any_bucket}/out/bm25")
    assert (done.code, done.problem) == (2, "unfinished-upload")
    assert hybrid("inspect", f"{any_bucket}/out").problem == "unfinished-upload"  # which is in that folder
    copy = remote.copy_of(f"{any_bucket}/out/bm25")
    made, before = contents(copy), times(any_bucket, "out")
    again = run(any_bucket, 1)[0]
    assert again.says("up-to-date")
    now = times(any_bucket, "out")
    assert {name: now[name] for name in before} == before  # not sent again
    assert {f"out/bm25/{name}": content for name, content in made.items()} == {
        name: any_bucket.get(name) for name in any_bucket.names("out")
    }
    ran("inspect", "--verify", f"{any_bucket}/out")


def test_an_unfinished_upload_is_none(
    bucket: Bucket, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(bucket, local)
    killed(CHAIN[1].format(bucket), "put", "manifest.json")
    with monkeypatch.context() as other:
        other.setenv("HYBRID_CACHE", str(tmp_path / "other"))
        assert hybrid("search", "--index", f"{bucket}/out/bm25", *QUERY).code == 2
        assert hybrid(*CHAIN[1].format(bucket).split(), "--overwrite").problem == "foreign-folder"
    run(bucket, 1)


def test_a_replacement_that_was_killed_is_finished(bucket: Bucket, local: Path) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    command = f"{CHAIN[1].format(bucket)} --fields text --overwrite"
    killed(command, "put", "terms.parquet")
    assert "out/bm25/manifest.json" not in bucket.names("out")
    again = hybrid(*CHAIN[1].format(bucket).split(), "--fields", "text")
    assert (again.code, again.says("up-to-date")) == (0, True)
    assert json.loads(bucket.get("out/bm25/manifest.json"))["options"]["fields"] == ["text"]
    other = hybrid(*CHAIN[1].format(bucket).split())
    assert (other.code, other.problem) == (2, "output-differs")
    assert not list(bucket.mirror.rglob(".*.upload"))
    bucket.put("out/bm25/notes.txt", b"mine")
    assert hybrid(*command.split()).code == 2
    assert bucket.get("out/bm25/notes.txt") == b"mine"


@pytest.mark.parametrize("after", [False, True])
def test_a_file_whose_upload_was_killed_is_finished(bucket: Bucket, local: Path, after: bool) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    killed(CHAIN[2].format(bucket), "put", "", after)
    assert hybrid("inspect", f"{bucket}/out/bm25.parquet").problem == "unfinished-upload"
    assert run(bucket, 2)[0].says("up-to-date")
    assert bucket.get("out/bm25.parquet") == (local / "out/bm25.parquet").read_bytes()
    ran("inspect", f"{bucket}/out/bm25.parquet")


def test_a_download_that_was_killed_is_resumed(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(bucket, local)
    monkeypatch.setenv("POLARS_MAX_THREADS", "1")
    words = ("search", "--index", f"{bucket}/out/bm25", *QUERY)
    killed(" ".join(words), "get_object", "manifest.json")
    before = inodes(bucket)
    assert before
    assert not remote.copy_of(f"{bucket}/out/bm25/manifest.json").exists()
    assert hybrid(*words).out == hybrid("search", "--index", str(local / "out/bm25"), *QUERY).out
    after = inodes(bucket)
    assert {name: after[name] for name in before} == before


def test_an_input_that_changes_is_refused(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(bucket, local)
    get = remote.get_object

    def meddle(url: str, states: remote.States, name: str) -> None:
        get(url, states, name)
        bucket.put("out/bm25/bm25.json", b"{}")

    words = ("search", "--index", f"{bucket}/out/bm25", *QUERY)
    with monkeypatch.context() as patched:
        patched.setattr(remote, "get_object", meddle)
        done = hybrid(*words)
    assert (done.code, done.problem) == (1, "input-changed")
    assert not remote.copy_of(f"{bucket}/out/bm25/manifest.json").exists()
    bucket.put("out/bm25/bm25.json", (local / "out/bm25/bm25.json").read_bytes())
    ran(*words)


def test_a_damaged_copy_is_named_and_downloaded_again(bucket: Bucket, local: Path) -> None:
    stored(bucket, local)
    words = ("search", "--index", f"{bucket}/out/bm25", *QUERY)
    remote.fetch(f"{bucket}/out/bm25")
    copy = remote.copy_of(f"{bucket}/out/bm25/impacts/lengths.npy")
    status, content = copy.stat(), bytearray(copy.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    copy.write_bytes(content)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = hybrid(*words)
    assert (done.code, str(copy) in done.err) == (1, True)
    copy.unlink()
    ran(*words)


def test_an_output_that_a_process_of_this_machine_writes_is_refused(bucket: Bucket, local: Path) -> None:
    stored(bucket, local)
    with remote.uploading(f"{bucket}/out/bm25.parquet", Search(index=local, query="x")):
        done = hybrid(*CHAIN[2].format(bucket).split())
    assert (done.code, done.problem, done.fields["path"]) == (1, "output-in-use", f"{bucket}/out/bm25.parquet")
    run(bucket, 2)


@pytest.mark.parametrize("moment", ["before its upload", "during its upload"])
def test_of_two_machines_that_write_an_output_one_succeeds(
    bucket: Bucket, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with_index(bucket, local)
    upload, put, codes = remote.publish, remote.put, list[int]()
    command = CHAIN[1].format(bucket).split()

    def other_machine() -> None:
        if not codes:
            codes.append(0)
            cache = str(tmp_path / "other")
            codes[0] = processes.run(processes.HYBRID, *command, "--fields", "text", HYBRID_CACHE=cache).returncode

    def upload_late(*given: Any) -> None:
        other_machine()
        upload(*given)

    def put_late(url: str, name: str) -> None:
        put(url, name)
        other_machine()

    early = moment == "before its upload"
    with monkeypatch.context() as patched:
        patched.setattr(remote, "publish" if early else "put", upload_late if early else put_late)
        done = hybrid(*command)
    assert (done.code, codes) == ((1, [0]) if early else (0, [2]))  # its folder without manifest is no artifact
    assert done.problem == ("output-changed" if early else "")
    if early:
        fields = json.loads(bucket.get("out/bm25/manifest.json"))["options"]["fields"]
        assert fields == ["text"]
        assert hybrid(*command).problem == "output-changed"
        ran(*command, "--overwrite")
    assert json.loads(bucket.get("out/bm25/manifest.json"))["options"]["fields"] == ["title", "text"]
    shutil.rmtree(bucket.mirror)
    ran("inspect", "--verify", f"{bucket}/out/bm25")


def test_replaced_files_are_not_published(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_index(bucket, local)
    put = remote.put

    def meddle(url: str, name: str) -> None:
        put(url, name)
        if name == "docids.parquet":
            bucket.put(f"out/bm25/{name}", b"of another")

    with monkeypatch.context() as patched:
        patched.setattr(remote, "put", meddle)
        done = hybrid(*CHAIN[1].format(bucket).split())
    assert (done.code, done.problem) == (1, "output-changed")
    assert "out/bm25/manifest.json" not in bucket.names("out")


def test_versions_of_another_machine_are_read_after_a_command_that_failed(
    bucket: Bucket, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    command = CHAIN[1].format(bucket).split()
    assert hybrid(*command, "--fields", "text").code == 2  # other options
    with monkeypatch.context() as other:
        other.setenv("HYBRID_CACHE", str(tmp_path / "other"))
        ran(*command, "--fields", "text", "--overwrite")
    assert hybrid("inspect", "--verify", f"{bucket}/out").err == ""
    assert remote.copy_of(f"{bucket}/out/bm25/manifest.json").read_bytes() == bucket.get("out/bm25/manifest.json")
    for name in bucket.names("out/bm25"):
        bucket.system.delete_file(f"{bucket.name}/{name}")
    run(bucket, 1)  # what its owner has deleted is not there
    assert "out/bm25/manifest.json" in bucket.names("out/bm25")


@pytest.mark.parametrize(
    ("url", "problem", "code"),
    [
        ("{0.scheme}://no-such-bucket/bm25", "no-such-bucket", 2),
        ("{0}/none", "no-such-object", 2),
        ("{0}/../bm25", "unsafe-name", 2),
    ],
)
def test_a_path_that_the_store_lacks(any_bucket: Bucket, url: str, problem: str, code: int) -> None:
    done = hybrid("search", "--index", url.format(any_bucket), "--query", "the")
    assert (done.code, done.problem, done.fields["path"]) == (code, problem, url.format(any_bucket))
    assert done.err.count("\n") == 1


def test_a_folder_that_hybrid_did_not_write_is_no_output(bucket: Bucket, local: Path) -> None:
    bucket.put("folder/mine.txt", b"text")
    for url in (str(bucket), f"{bucket}/folder"):
        assert hybrid("index-bm25", local / "data", "--output", url, "--overwrite").problem == "foreign-folder"
    assert not list(bucket.mirror.rglob("*.txt"))  # refused from the listing


def test_a_store_that_denies_access_is_one_line(bucket: Bucket, server: str) -> None:
    def actions_without_check(number: int) -> None:
        url, kind = f"http://{server}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, str(number).encode(), kind)).close()

    actions_without_check(0)
    try:
        done = hybrid("inspect", f"{bucket}/docs.jsonl")
        assert (done.code, done.problem, done.err.count("\n")) == (2, "access-denied", 1)
    finally:
        actions_without_check(1 << 60)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_store_that_does_not_answer_is_one_line(scheme: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "S3_ATTEMPTS", 1)
    monkeypatch.setattr(remote, "PATIENCE", timedelta(seconds=1))
    for variable in ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    done = hybrid("search", "--index", f"{scheme}://bucket/bm25", "--query", "the")
    assert (done.code, done.problem, done.err.count("\n")) == (1, "store-unreachable", 1), done


def test_a_training_on_several_machines_needs_a_shared_output(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    done = hybrid("train-dense", "examples.parquet", "--model", "minilm", "--output", f"{bucket}/out/dense")
    assert (done.code, done.problem) == (2, "output-not-shared")


def test_a_training_of_two_processes_uploads_once(bucket: Bucket, tiny_bert: Path, tmp_path: Path) -> None:
    for name, content in contents(tiny_bert).items():
        bucket.put(f"bert/{name}", content)
    bucket.put("examples.parquet", write_examples(tmp_path / "examples.parquet").read_bytes())
    words = ["train-dense", f"{bucket}/examples.parquet", "--model", f"{bucket}/bert", "--max-steps", "2"]
    words += ["--device", "cpu", "--output", f"{bucket}/out/dense"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks = [processes.Started(processes.HYBRID, *words, **shared, RANK=rank, LOCAL_RANK=rank) for rank in "01"]
    ended = [each.wait() for each in ranks]
    assert [each.returncode for each in ended] == [0, 0], ended
    assert ["uploaded to" in each.stderr for each in ended] == [True, False]
    assert "out/dense/manifest.json" in bucket.names("out")
    shutil.rmtree(bucket.mirror)
    ran("inspect", "--verify", f"{bucket}/out/dense")


def test_a_process_of_a_cluster_downloads_the_inputs_to_its_machine(bucket: Bucket, local: Path) -> None:
    stored(bucket, local)
    with remote.local_paths(Search(index=Path(f"{bucket}/out/bm25"), query="salt")):
        sent = pickle.dumps(inputs_on_machine.get())
    assert inputs_on_machine.get()() == {}
    shutil.rmtree(bucket.mirror)
    code = "import pickle, sys; pickle.load(sys.stdin.buffer)()"
    subprocess.run([sys.executable, "-c", code], input=sent, check=True)
    copies = bucket.mirror / "s3" / bucket.name
    assert set(contents(copies / "out/bm25")) == set(contents(local / "out/bm25"))
    assert (copies / "data/corpus.parquet").is_file()  # recorded by the index


def test_auto_uploads_its_folder_and_continues_after_a_kill(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_cli.stages.auto.FEWEST_QUERIES", 11)
    words = f"auto {bucket}/docs.jsonl --max-steps 0 --output {bucket}/mine"
    killed(words, "put", "docids.parquet", after=True)
    assert "mine/bm25/manifest.json" not in bucket.names("mine")
    assert ran(*words.split()).says("up-to-date", stage="index-bm25")
    names = {name.removeprefix("mine/").split("/")[0] for name in bucket.names("mine")}
    assert {"collection", "bm25", "dense"} <= names
    before = times(bucket, "mine")
    shutil.rmtree(bucket.mirror)
    again = hybrid(*words.split())
    assert (again.code, again.notices.count("up-to-date"), again.says("uploaded")) == (0, 4, False), again.err
    assert times(bucket, "mine") == before


def judged(bucket: Bucket, answers: str, monkeypatch: pytest.MonkeyPatch) -> Done:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{answer}\n" for answer in answers)))
    runs = [f"{bucket}/{name}.trec" for name in (FIRST, SECOND)]
    return hybrid("judge", f"{bucket}/data", "--split", "test", *runs, "--output", f"{bucket}/mine.tsv")


@pytest.fixture
def with_runs(bucket: Bucket, local: Path, tmp_path: Path) -> Bucket:
    with_index(bucket, local)
    for path in write_runs(tmp_path):
        bucket.put(path.name, path.read_bytes())
    return bucket


def test_judgments_are_uploaded_at_the_end(with_runs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(with_runs, "120us", monkeypatch).code == 0
    before = with_runs.get("mine.tsv")
    shutil.rmtree(with_runs.mirror)  # another machine
    assert judged(with_runs, "3x", monkeypatch).code == 2  # an answer that is none: those before it are stored
    assert with_runs.get("mine.tsv").startswith(before)
    assert with_runs.get("mine.tsv").count(b"\n") == 3
    assert with_runs.get("mine.tsv.skipped").count(b"\n") == 1


def test_judgments_are_uploaded_after_ctrl_c(with_runs: Bucket) -> None:
    runs = [f"{with_runs}/{name}.trec" for name in (FIRST, SECOND)]
    words = ["judge", f"{with_runs}/data", "--split", "test", *runs, "--output", f"{with_runs}/mine.tsv"]
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-m", "hybrid_cli", *words], **streams, text=True, bufsize=1)
    assert process.stdin is not None
    process.stdin.write("1\n2\n")
    process.stdin.flush()
    copy = remote.copy_of(f"{with_runs}/mine.tsv")
    while not (copy.is_file() and copy.read_bytes().count(b"\n") == 2):
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1].count("uploaded to") == 2
    assert process.returncode == 130
    assert with_runs.get("mine.tsv") == copy.read_bytes()


def test_judgments_that_changed_meanwhile_are_kept(with_runs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(with_runs, "1", monkeypatch).code == 0
    upload, other = remote.publish, b"q9\t0\td1\t1\n"

    def meddle(*given: Any) -> None:
        with_runs.put("mine.tsv", other)
        upload(*given)

    with monkeypatch.context() as patched:
        patched.setattr(remote, "publish", meddle)
        done = judged(with_runs, "12", monkeypatch)
    copy = remote.copy_of(f"{with_runs}/mine.tsv")
    assert (done.code, done.problem, str(copy) in done.err) == (1, "output-changed", True)
    assert with_runs.get("mine.tsv") == other
    assert copy.read_bytes().count(b"\n") == 3
    assert judged(with_runs, "2", monkeypatch).problem == "output-changed"
    copy.unlink()  # as the message says
    assert judged(with_runs, "2", monkeypatch).code == 0
    assert with_runs.get("mine.tsv").startswith(other)
