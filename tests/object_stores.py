"""Object stores on this machine: servers, buckets with the tiny collection, and the stages that fill them."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs
import pytest
from command import hybrid, ran
from gcp_storage_emulator.server import create_server
from moto.server import ThreadedMotoServer
from tiny_collection import write_tiny_source

CHAIN = (
    "prepare trec {0}/docs.jsonl --topics test={0}/topics.test.tsv --qrels test={0}/qrels.test.txt --output {0}/data",
    "index-bm25 {0}/data --no-lucene --threads 1 --output {0}/out/bm25",
    "search {0}/data --split test --index {0}/out/bm25 --threads 1 --output {0}/out/bm25.parquet",
    "evaluate {0}/data --split test {0}/out/bm25.parquet --output {0}/out/values.parquet",
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server; the variables that name it are those of the module."""
    made = ThreadedMotoServer(port=0, verbose=False)
    made.start()
    _, port = made.get_host_and_port()
    before = dict(os.environ)
    os.environ.update(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_REGION="us-east-1")
    os.environ.update(AWS_ACCESS_KEY_ID="someone", AWS_SECRET_ACCESS_KEY="secret", AWS_EC2_METADATA_DISABLED="true")
    yield f"127.0.0.1:{port}"
    os.environ.clear()
    os.environ.update(before)
    made.stop()


@pytest.fixture(scope="module")
def google(server: str) -> Iterator[str]:
    """A server with the interface of Google Cloud Storage; `server` restores the variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = create_server("127.0.0.1", port, in_memory=True)
    made.start()
    os.environ["CLOUD_STORAGE_EMULATOR_ENDPOINT"] = f"http://127.0.0.1:{port}"
    yield f"127.0.0.1:{port}"
    made.stop()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    write_tiny_source(folder)
    for command in CHAIN:
        ran(*command.format(folder).split())
    return folder


class Bucket:
    """A bucket with the source files, the folder of the mirror, and the variable that names the server."""

    def __init__(self, scheme: str, system: pa_fs.FileSystem, name: str, mirror: Path):
        self.endpoint = {"s3": "AWS_ENDPOINT_URL", "gs": "CLOUD_STORAGE_EMULATOR_ENDPOINT"}[scheme]
        self.scheme, self.system, self.name, self.mirror = scheme, system, name, mirror
        self.system.create_dir(name)

    @property
    def client(self) -> Any:
        """Another client of S3, for names that pyarrow refuses to write."""
        import boto3

        return boto3.client("s3", endpoint_url=os.environ[self.endpoint])

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
        return f"{self.scheme}://{self.name}"


def filled(scheme: str, system: pa_fs.FileSystem, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return a new bucket with the source files; its mirror is in `folder`."""
    monkeypatch.setenv("HYBRID_CACHE", str(folder / "mirror"))
    name = re.sub("[^a-z0-9]+", "-", folder.name.lower())[:40].rstrip("-")
    made = Bucket(scheme, system, f"{name}-bucket", folder / "mirror")
    (folder / "source").mkdir()
    write_tiny_source(folder / "source")
    for file in (folder / "source").iterdir():
        made.put(file.name, file.read_bytes())
    return made


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    system = pa_fs.S3FileSystem(endpoint_override=server, scheme="http", region="us-east-1", allow_bucket_creation=True)
    return filled("s3", system, tmp_path, monkeypatch)


@pytest.fixture(params=["s3", "gs"])
def any_bucket(
    request: pytest.FixtureRequest, server: str, google: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    if request.param == "s3":
        made: Bucket = request.getfixturevalue("bucket")
        return made
    system = pa_fs.GcsFileSystem(anonymous=True, endpoint_override=google, scheme="http", project_id="tests")
    return filled("gs", system, tmp_path, monkeypatch)


def run(bucket: object, *steps: int) -> list[Any]:
    done = [hybrid(*CHAIN[step].format(bucket).split()) for step in steps]
    assert [each.code for each in done] == [0] * len(steps), done
    return done


def with_index(bucket: Bucket, local: Path) -> None:
    for file in (local / "data").iterdir():
        bucket.put(f"data/{file.name}", file.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
