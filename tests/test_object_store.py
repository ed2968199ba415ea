"""Inputs and outputs in an object store: the bytes of local files, and no incomplete artifact."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow.fs as pa_fs
import pytest
from command import hybrid
from object_stores import CHAIN, Bucket, contents, run, with_index

from hybrid_cli import artifacts
from hybrid_cli.artifacts import download, manifest, mirror, remote, store
from hybrid_cli.artifacts.upload_marker import MARKER
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.stages.search import search

pytest_plugins = ("object_stores",)

CHECKED = {"s3": "AWS_ENDPOINT_URL", "gs": "the network"}  # scheme -> advice
KILLED = """
import os, signal, sys
from hybrid_cli.artifacts import store
from hybrid_cli.cli import main
put = store.put
def die(path, url):
    if url.endswith("/manifest.json"): os.kill(os.getpid(), signal.SIGKILL)
    put(path, url)
store.put = die
main()
"""


def test_a_chain_of_stages_writes_the_bytes_of_local_files(
    any_bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(any_bucket, 0, 1, 2, 3)
    wanted = contents(local)
    assert any_bucket.names() == set(wanted)
    repeatable = {name for name in wanted if "/lucene/" not in name and not name.endswith("manifest.json")}
    assert not [name for name in repeatable if any_bucket.get(name) != wanted[name]]
    assert f"index-bm25: {any_bucket}/out/bm25: 12 documents" in done[1].err
    assert "mirror" not in "".join(each.out + each.err for each in done)
    shutil.rmtree(any_bucket.mirror)  # another machine
    with monkeypatch.context() as worker:  # of a cluster
        worker.setattr(manifest, "fetch_input", str)
        remote.fetch_all(str(any_bucket.mirror), [f"{any_bucket}/out/bm25"])
    assert set(contents(any_bucket.mirror / any_bucket.scheme / any_bucket.name / "out/bm25")) == set(
        contents(local / "out/bm25")
    )
    assert f"search: {any_bucket}/out/bm25.parquet is up to date" in run(any_bucket, 2)[0].err
    found = search(index=Path(f"{any_bucket}/out/bm25"), query="oxygen", hits=1)
    assert found["text"].is_not_null().to_list() == [True]  # from the corpus that the manifest of the index names


def test_a_shard_that_was_deleted_in_the_store_is_not_searched(any_bucket: Bucket, local: Path) -> None:
    for name in ("shard-0", "shard-1"):
        for path, content in contents(local / "out/bm25").items():
            any_bucket.put(f"shards/{name}/{path}", content)
    download.fetch(f"{any_bucket}/shards/shard-*")
    mirror = any_bucket.mirror / any_bucket.scheme / any_bucket.name / "shards"
    assert {path.name for path in mirror.iterdir()} == {"shard-0", "shard-1"}
    for name in any_bucket.names("shards/shard-1"):
        any_bucket.system.delete_file(f"{any_bucket.name}/{name}")
    download.fetch(f"{any_bucket}/shards/shard-*")
    assert [path.name for path in mirror.iterdir() if not path.name.startswith(".")] == ["shard-0"]


def test_unchanged_inputs_are_downloaded_once(any_bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_index(any_bucket, local)
    run(any_bucket, 1)
    read, blocks = [], store.blocks

    def noted(url: str) -> Iterator[bytes]:
        read.append(url)
        return blocks(url)

    monkeypatch.setattr(store, "blocks", noted)
    run(any_bucket, 2)
    assert read == []
    any_bucket.put("data/queries.test.parquet", (local / "data/queries.test.parquet").read_bytes() + b" ")
    assert hybrid(*CHAIN[2].format(any_bucket).replace("bm25.parquet", "other.parquet").split()).code == 1  # damaged
    assert read == [f"{any_bucket}/data/queries.test.parquet"]


def test_versions_of_the_same_second_and_size_are_told_apart(bucket: Bucket) -> None:
    url = f"{bucket}/weights.json"
    time.sleep(1 - time.time() % 1)  # times of objects are in seconds
    for content in (b"0.25", b"0.75"):
        store.write(content, url)
        assert download.local_file(url).read_bytes() == content


def test_an_upload_that_was_killed_is_no_artifact_and_is_resumed(any_bucket: Bucket, local: Path) -> None:
    with_index(any_bucket, local)
    command = CHAIN[1].format(any_bucket).split()
    ended = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert f"out/bm25/{MARKER}" in any_bucket.names("out")
    assert "out/bm25/manifest.json" not in any_bucket.names("out")
    refused = hybrid(*CHAIN[2].format(any_bucket).split())
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"{any_bucket}/out/bm25: an upload to it has not finished; repeat the command" in refused.err
    times = {each.path: each.mtime_ns for each in any_bucket.system.get_file_info(
        pa_fs.FileSelector(f"{any_bucket.name}/out", recursive=True)) if each.type == pa_fs.FileType.File}  # fmt: skip
    again = run(any_bucket, 1)[0]
    assert "is up to date" in again.err
    assert any_bucket.names("out") == {f"out/bm25/{name}" for name in contents(local / "out/bm25")}
    for path, written in times.items():
        if not path.endswith(MARKER):
            assert any_bucket.system.get_file_info(path).mtime_ns == written
    run(any_bucket, 2)
    assert any_bucket.get("out/bm25.parquet") == (local / "out/bm25.parquet").read_bytes()


def test_a_store_that_stops_answering_loses_no_work(
    any_bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(any_bucket, local)
    put, variable, nobody = store.put, any_bucket.endpoint, "http://127.0.0.1:1"
    endpoint = os.environ[variable]

    def stop(path: Path, url: str) -> None:
        if url.endswith("/docids.parquet"):
            monkeypatch.setenv(variable, nobody)
        put(path, url)

    monkeypatch.setattr(store, "S3_ATTEMPTS", 1)
    monkeypatch.setattr(store, "GOOGLE_PATIENCE", timedelta(seconds=1))
    monkeypatch.setattr(store, "put", stop)
    done = hybrid(*CHAIN[1].format(any_bucket).split())
    assert done.code == 1
    assert f"the object store does not answer; check {CHECKED[any_bucket.scheme]}, and repeat the command" in done.err
    assert done.err.splitlines()[-1].startswith(f"hybrid: {any_bucket}/out/bm25")
    assert "out/bm25/manifest.json" not in any_bucket.names("out")
    monkeypatch.setattr(store, "put", put)
    monkeypatch.setenv(variable, endpoint)
    assert "is up to date" in run(any_bucket, 1)[0].err
    assert "out/bm25/manifest.json" in any_bucket.names("out")


def test_a_download_that_stops_half_way_is_resumed(
    any_bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that arrived are kept; a part of a file is never read."""
    with_index(any_bucket, local)
    for name, content in contents(local / "out/bm25").items():
        any_bucket.put(f"out/bm25/{name}", content)
    blocks, whole = store.blocks, list[str]()

    def stop(url: str) -> Iterator[bytes]:
        content = b"".join(blocks(url))
        if url.endswith("/docids.parquet"):
            yield content[:10]
            raise HybridError(f"{url}: the object store does not answer; repeat the command")
        whole.append(url)
        yield content

    monkeypatch.setattr(store, "blocks", stop)
    words = ("search", "--index", f"{any_bucket}/out/bm25", "--query", "salt")
    done = hybrid(*words)
    assert (done.code, done.err.splitlines()[-1]) == (
        1, f"hybrid: {any_bucket}/out/bm25/docids.parquet: the object store does not answer; repeat the command",
    )  # fmt: skip
    assert not list(any_bucket.mirror.rglob("docids.parquet"))
    first, again = set(whole), set[str]()

    def noted(url: str) -> Iterator[bytes]:
        again.add(url)
        yield from blocks(url)

    monkeypatch.setattr(store, "blocks", noted)
    assert hybrid(*words).out == hybrid("search", "--index", str(local / "out/bm25"), "--query", "salt").out
    assert again
    assert not first & again


def test_an_output_in_the_store_is_replaced_as_a_local_one(any_bucket: Bucket, local: Path) -> None:
    with_index(any_bucket, local)
    run(any_bucket, 1)
    other = [*CHAIN[1].format(any_bucket).split(), "--fields", "text"]
    assert (
        "already exists with other options or inputs: fields=['title', 'text'], now ['text']; pass --overwrite"
        in hybrid(*other).err
    )
    shutil.rmtree(any_bucket.mirror)
    any_bucket.put("out/bm25/notes.txt", b"mine")
    done = hybrid(*other, "--overwrite")
    assert f"{any_bucket}/out/bm25: notes.txt is not part of the lexical index; move it" in done.err
    any_bucket.system.delete_file(f"{any_bucket.name}/out/bm25/notes.txt")
    assert hybrid(*other, "--overwrite").code == 0
    assert f"out/bm25/{MARKER}" not in any_bucket.names("out")
    shutil.rmtree(any_bucket.mirror)
    assert "is up to date" in hybrid(*other).err
    assert artifacts.read_manifest(mirror.place_of(f"{any_bucket}/out/bm25")).options["fields"] == ["text"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            "{0.scheme}://no-such-bucket/bm25",
            "{0.scheme}://no-such-bucket/bm25: no such bucket; create it, or check its name and region",
        ),
        ("{0}/none", "{0}/none: no such file or folder"),
        ("{0}/../bm25", "has '..' in its path"),
    ],
)
def test_a_path_that_the_store_lacks_is_refused_in_one_line(any_bucket: Bucket, index: str, message: str) -> None:
    done = hybrid("search", "--index", index.format(any_bucket), "--query", "the")
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert message.format(any_bucket) in done.err


def test_a_store_that_denies_access_is_one_line(bucket: Bucket, server: str) -> None:
    def actions_without_check(number: int) -> None:
        url, kind = f"http://{server}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, str(number).encode(), kind)).close()

    actions_without_check(0)
    try:
        with pytest.raises(InputError, match="access denied; check the credentials, such as AWS_ACCESS_KEY_ID"):
            store.objects(f"{bucket}/data")
    finally:
        actions_without_check(1 << 60)


def test_google_cloud_without_a_network_is_one_line_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "GOOGLE_PATIENCE", timedelta(seconds=1))
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", "http://127.0.0.1:1")
    done = hybrid("search", "--index", "gs://bucket/bm25", "--query", "the")
    assert (done.code, done.err.count("\n")) == (1, 1), done
    assert "gs://bucket/bm25: " in done.err
    assert "and repeat the command" in done.err


def test_an_output_that_shares_files_with_its_input_leaves_it_unchanged(
    any_bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(any_bucket, local)
    run(any_bucket, 1)
    command = [*CHAIN[1].format(any_bucket).split(), "--k1", "1.5"]  # the index is linked, with another k1
    any_bucket.put("new.jsonl", b'{"docid": "new", "title": "", "text": "a new text"}\n')
    assert hybrid("prepare", "files", f"{any_bucket}/new.jsonl", "--output", f"{any_bucket}/new").code == 0
    words = (f"{any_bucket}/out/bm25", f"{any_bucket}/new", "--threads", "1", "--output", f"{any_bucket}/out/longer")
    assert hybrid("append", *words).code == 0
    read, blocks = [], store.blocks

    def noted(url: str) -> Iterator[bytes]:
        read.append(url)
        return blocks(url)

    monkeypatch.setattr(store, "blocks", noted)
    for index in ("bm25", "longer"):
        assert hybrid("search", "--index", f"{any_bucket}/out/{index}", "--query", "salt").code == 0
    assert read == []
    assert hybrid(*command).code == 0
    assert json.loads(any_bucket.get("out/bm25/manifest.json"))["options"]["k1"] == 1.5


def test_a_training_on_several_machines_needs_a_shared_output(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    done = hybrid("train-dense", "examples.parquet", "--model", "minilm", "--output", f"{bucket}/out/dense")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"--output {bucket}/out/dense: the processes of several machines share the unfinished output" in done.err


def test_paths_are_printed_as_urls(any_bucket: Bucket, local: Path) -> None:
    with_index(any_bucket, local)
    run(any_bucket, 1)
    dry = (*CHAIN[2].format(any_bucket).split(), "--dry-run")
    for words in (("verify", f"{any_bucket}/out/bm25"), ("inspect", f"{any_bucket}/out/bm25"), dry):
        done = hybrid(*words)
        assert done.code == 0
        assert f"{any_bucket}/out/bm25" in done.out
        assert str(any_bucket.mirror) not in done.out + done.err


def test_a_config_file_is_read_from_the_store_and_a_log_file_is_refused(bucket: Bucket, local: Path) -> None:
    with_index(bucket, local)
    bucket.put("bm25.yaml", b"k1: 1.5\nthreads: 1\n")
    index = ("index-bm25", f"{bucket}/data", "--output", f"{bucket}/out/bm25")
    assert hybrid(*index, "--config", f"{bucket}/bm25.yaml").code == 0
    assert json.loads(bucket.get("out/bm25/manifest.json"))["options"]["k1"] == 1.5
    for words, message in (
        (("--config", f"{bucket}/none.yaml"), f"{bucket}/none.yaml: no such file"),
        (("--log-file", f"{bucket}/log.txt"), f"--log-file {bucket}/log.txt: object stores cannot append to an object"),
    ):
        done = hybrid(*index, *words)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert message in done.err


def test_an_index_that_was_copied_to_a_bucket_asks_no_other_bucket(bucket: Bucket, local: Path) -> None:
    """Its manifest records paths relative to its old place, which lead out of the bucket here."""
    index = local / "out" / "bm25"
    for file in filter(Path.is_file, index.rglob("*")):
        bucket.put(f"copied/{file.relative_to(index)}", file.read_bytes())
        bucket.put(f"{file.relative_to(index)}", file.read_bytes())
    query = ("--query", "salt", "--threads", "1")
    for place in (f"{bucket}/copied", str(bucket)):
        for command in (("verify", place), ("inspect", place), ("search", "--index", place, *query)):
            done = hybrid(*command)
            assert "no such bucket" not in done.err
            assert "a bug in hybrid" not in done.err
            assert done.code == 0 or command[0] == "verify", done  # inputs are missing, and the bucket has other files
        assert done.out.split()[:4] == ["1.", "salt", "[1.2508]", "2."]
