"""Inputs and outputs in an object store: the bytes of local files, and no incomplete artifact."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs
import pytest
from command import hybrid
from moto.server import ThreadedMotoServer
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts
from hybrid_cli.artifacts import manifest, remote, store
from hybrid_cli.errors import InputError
from hybrid_cli.stages.search import search

CHAIN = (
    "prepare trec {0}/docs.jsonl --topics test={0}/topics.test.tsv --qrels test={0}/qrels.test.txt --output {0}/data",
    "index-bm25 {0}/data --threads 1 --output {0}/out/bm25",
    "search {0}/data --split test --index {0}/out/bm25 --threads 1 --output {0}/out/bm25.parquet",
    "evaluate {0}/data --split test {0}/out/bm25.parquet --output {0}/out/values.parquet",
)
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


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server; the variables that name it are those of the module."""
    made = ThreadedMotoServer(port=0, verbose=False)
    made.start()
    _, port = made.get_host_and_port()
    before = dict(os.environ)
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_REGION="us-east-1", AWS_ACCESS_KEY_ID="someone",
        AWS_SECRET_ACCESS_KEY="secret", AWS_EC2_METADATA_DISABLED="true",
    )  # fmt: skip
    yield f"127.0.0.1:{port}"
    os.environ.clear()
    os.environ.update(before)
    made.stop()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of the chain in a local folder."""
    folder = tmp_path_factory.mktemp("local")
    write_tiny_source(folder)
    for command in CHAIN:
        assert hybrid(*command.format(folder).split()).code == 0
    return folder


class Bucket:
    """A bucket with the source files, and the folder of the mirror."""

    def __init__(self, server: str, name: str, mirror: Path):
        self.name, self.mirror = name, mirror
        self.system = pa_fs.S3FileSystem(
            endpoint_override=server, scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        self.system.create_dir(name)

    def put(self, key: str, content: bytes) -> None:
        with self.system.open_output_stream(f"{self.name}/{key}") as file:
            file.write(content)

    def get(self, key: str) -> bytes:
        with self.system.open_input_stream(f"{self.name}/{key}") as file:
            return bytes(file.read())

    def names(self, folder: str = "") -> set[str]:
        found = self.system.get_file_info(pa_fs.FileSelector(f"{self.name}/{folder}".rstrip("/"), recursive=True))
        return {each.path.removeprefix(f"{self.name}/") for each in found if each.type == pa_fs.FileType.File}

    def __str__(self) -> str:
        return f"s3://{self.name}"


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path / "mirror"))
    made = Bucket(server, tmp_path.name.replace("_", "-")[:40].lower().rstrip("-") + "-bucket", tmp_path / "mirror")
    (tmp_path / "source").mkdir()
    write_tiny_source(tmp_path / "source")
    for file in (tmp_path / "source").iterdir():
        made.put(file.name, file.read_bytes())
    return made


def run(bucket: object, *steps: int) -> list[Any]:
    done = [hybrid(*CHAIN[step].format(bucket).split()) for step in steps]
    assert [each.code for each in done] == [0] * len(steps), done
    return done


def with_index(bucket: Bucket, local: Path) -> None:
    """Put the collection into the bucket."""
    for file in (local / "data").iterdir():
        bucket.put(f"data/{file.name}", file.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_chain_of_stages_writes_the_bytes_of_local_files(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(bucket, 0, 1, 2, 3)
    wanted = contents(local)
    assert bucket.names() == set(wanted)
    repeatable = {name for name in wanted if "/lucene/" not in name and not name.endswith("manifest.json")}
    assert not [name for name in repeatable if bucket.get(name) != wanted[name]]
    assert f"index-bm25: {bucket}/out/bm25: 12 documents" in done[1].err
    assert "mirror" not in "".join(each.out + each.err for each in done)
    shutil.rmtree(bucket.mirror)  # another machine
    with monkeypatch.context() as worker:  # of a cluster
        worker.setattr(manifest, "fetch_input", str)
        remote.fetch_all(str(bucket.mirror), [f"{bucket}/out/bm25"])
    assert set(contents(bucket.mirror / "s3" / bucket.name / "out/bm25")) == set(contents(local / "out/bm25"))
    assert f"search: {bucket}/out/bm25.parquet is up to date" in run(bucket, 2)[0].err
    found = search(index=Path(f"{bucket}/out/bm25"), query="oxygen", hits=1)
    assert found["text"].is_not_null().to_list() == [True]  # from the corpus that the manifest of the index names


def test_unchanged_inputs_are_downloaded_once(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    read, blocks = [], store.blocks

    def noted(url: str) -> Iterator[bytes]:
        read.append(url)
        return blocks(url)

    monkeypatch.setattr(store, "blocks", noted)
    run(bucket, 2)
    assert read == []
    bucket.put("data/queries.test.parquet", (local / "data/queries.test.parquet").read_bytes() + b" ")
    assert hybrid(*CHAIN[2].format(bucket).replace("bm25.parquet", "other.parquet").split()).code == 1  # damaged
    assert read == [f"{bucket}/data/queries.test.parquet"]


def test_an_upload_that_was_killed_is_no_artifact_and_is_resumed(bucket: Bucket, local: Path) -> None:
    with_index(bucket, local)
    command = CHAIN[1].format(bucket).split()
    ended = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert f"out/bm25/{remote.MARKER}" in bucket.names("out")
    assert "out/bm25/manifest.json" not in bucket.names("out")
    refused = hybrid(*CHAIN[2].format(bucket).split())
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"{bucket}/out/bm25: an upload to it has not finished; repeat the command" in refused.err
    times = {each.path: each.mtime_ns for each in bucket.system.get_file_info(
        pa_fs.FileSelector(f"{bucket.name}/out", recursive=True)) if each.type == pa_fs.FileType.File}  # fmt: skip
    again = run(bucket, 1)[0]
    assert "is up to date" in again.err
    assert bucket.names("out") == {f"out/bm25/{name}" for name in contents(local / "out/bm25")}
    for path, time in times.items():
        if not path.endswith(remote.MARKER):
            assert bucket.system.get_file_info(path).mtime_ns == time
    run(bucket, 2)
    assert bucket.get("out/bm25.parquet") == (local / "out/bm25.parquet").read_bytes()


def test_a_store_that_stops_answering_loses_no_work(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(bucket, local)
    put, endpoint = store.put, os.environ["AWS_ENDPOINT_URL"]

    def stop(path: Path, url: str) -> None:
        if url.endswith("/docids.parquet"):
            monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        put(path, url)

    monkeypatch.setattr(store, "S3_ATTEMPTS", 1)
    monkeypatch.setattr(store, "put", stop)
    done = hybrid(*CHAIN[1].format(bucket).split())
    assert done.code == 1
    assert "the object store does not answer; check AWS_ENDPOINT_URL, and repeat the command" in done.err
    assert done.err.splitlines()[-1].startswith(f"hybrid: {bucket}/out/bm25")
    assert "out/bm25/manifest.json" not in bucket.names("out")
    monkeypatch.setattr(store, "put", put)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert "is up to date" in run(bucket, 1)[0].err
    assert "out/bm25/manifest.json" in bucket.names("out")


def test_an_output_in_the_store_is_replaced_as_a_local_one(bucket: Bucket, local: Path) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    other = [*CHAIN[1].format(bucket).split(), "--fields", "text"]
    assert (
        "already exists with other options or inputs: fields=['title', 'text'], now ['text']; pass --overwrite"
        in hybrid(*other).err
    )
    shutil.rmtree(bucket.mirror)
    bucket.put("out/bm25/notes.txt", b"mine")
    done = hybrid(*other, "--overwrite")
    assert f"{bucket}/out/bm25: notes.txt is not part of the lexical index; move it" in done.err
    bucket.system.delete_file(f"{bucket.name}/out/bm25/notes.txt")
    assert hybrid(*other, "--overwrite").code == 0
    assert f"out/bm25/{remote.MARKER}" not in bucket.names("out")
    shutil.rmtree(bucket.mirror)
    assert "is up to date" in hybrid(*other).err
    assert artifacts.read_manifest(remote.place_of(f"{bucket}/out/bm25")).options["fields"] == ["text"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            "s3://no-such-bucket/bm25",
            "s3://no-such-bucket/bm25: no such bucket; create it, or check its name and region",
        ),
        ("{0}/none", "{0}/none: no such file or folder"),
        ("{0}/../bm25", "has '..' in its path"),
    ],
)
def test_a_path_that_the_store_lacks_is_refused_in_one_line(bucket: Bucket, index: str, message: str) -> None:
    done = hybrid("search", "--index", index.format(bucket), "--query", "the")
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert message.format(bucket) in done.err


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


def test_a_command_with_several_outputs_needs_a_local_folder(bucket: Bucket) -> None:
    done = hybrid("auto", "docs.jsonl", "--output", f"{bucket}/auto")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"--output {bucket}/auto: auto writes several artifacts; name a local folder" in done.err
