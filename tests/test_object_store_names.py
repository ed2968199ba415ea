"""Names of objects that could lead out of the cache are refused, only named buckets are contacted; full disks."""

import errno
import io
import json
import os
import shutil
import socket
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from command import hybrid, ran
from object_stores import CHAIN, Bucket, contents, with_index

from hybrid_cli.artifacts import inputs
from hybrid_cli.errors import HybridError
from hybrid_cli.storage import disk

pytest_plugins = ("object_stores",)

QUERY = ("--query", "salt", "--threads", "1")


NAMES = ("../../../../profile.txt", "a//b", "./c", "c:/d", "..\\e", "x/..")
COMMANDS = (("inspect",), ("inspect", "--verify"), ("search", *QUERY, "--index"), ("index-bm25",))


@pytest.mark.parametrize(
    ("name", "command"), [*((each, COMMANDS[0]) for each in NAMES), *((NAMES[0], each) for each in COMMANDS[1:])]
)
def test_an_object_whose_name_leads_out_of_its_folder_is_refused(
    bucket: Bucket, local: Path, tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    for path, content in contents(local / "out/bm25").items():
        bucket.put(f"idx/{path}", content)
    bucket.client.put_object(Bucket=bucket.name, Key=f"idx/{name}", Body=b"hostile")
    (tmp_path / "profile.txt").write_bytes(b"mine")
    (bucket.mirror / "s3" / bucket.name / "other").mkdir(parents=True)
    before = contents(tmp_path)
    output = ("--output", tmp_path / "out") if command[0] == "index-bm25" else ()
    done = hybrid(*command, f"{bucket}/idx", *output)
    assert (done.code, done.problem, done.fields["value"]) == (2, "unsafe-name", name)
    assert contents(tmp_path) == before
    assert hybrid("index-bm25", local / "data", "--output", f"{bucket}/idx").problem == "unsafe-name"
    assert {path: content for path, content in contents(tmp_path).items() if ".upload.lock" not in path} == before


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Set the endpoints of all stores to a port of this machine; the connections to it."""
    found: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, address = listening.accept()
                except OSError:  # closed
                    return
                found.append(str(address))
                connection.close()

        Thread(target=accept, daemon=True).start()
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "CLOUD_STORAGE_EMULATOR_ENDPOINT"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{listening.getsockname()[1]}")
        yield found


@pytest.mark.parametrize("url", ["s3://evil/x", "gs://evil/x", "s3://evil/../../x"])
def test_a_url_that_a_local_artifact_records_is_never_followed(
    made: Path, tmp_path: Path, connections: list[str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("collection", "model"):
        (tmp_path / name).symlink_to(made / name)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as earlier:  # versions recorded URLs
        earlier.setattr(inputs, "stored_path", lambda path, location: f"{url}/{path.name}")
        for command in (
            "index-bm25 collection --output bm25",
            "encode collection --model model --dtype fp32 --output dense",
            "search collection --split test --index bm25 --output bm25.parquet",
            "search collection --split test --index dense --output dense.parquet --model model",
        ):
            ran(*command.split())
    codes: dict[str, set[int]] = defaultdict(set)
    for command in (
        "inspect bm25",
        "inspect dense",
        "inspect bm25.parquet",
        "inspect --verify bm25 dense bm25.parquet",
        "search --index bm25 --query salt",
        "search --index dense --query salt",
        "search collection --split test --index bm25 --output a.parquet",
        "fuse bm25.parquet dense.parquet --method rrf --output b.parquet",
        "fuse bm25.parquet dense.parquet --index bm25,dense --missing exact --output c.parquet",
        "evaluate collection --split test bm25.parquet dense.parquet",
        "mine-negatives collection --split train --index bm25 --output d.parquet",
        "update bm25 --add collection --output e",
        "encode dense --index-type flat --output f",
        "export bm25 --format opensearch --output g",
        "report collection --split test bm25.parquet --output h.html",
    ):
        done = hybrid(*command.split())
        assert "a bug in hybrid" not in done.err, done
        assert done.problem not in ("store-unreachable", "store-failed")
        codes[command.split()[0]].add(done.code)
    assert connections == []
    assert {name for name, each in codes.items() if 0 not in each} == {"export"}  # needs the texts
    missing = hybrid("search", "--index", "dense", "--query", "salt")
    assert (missing.code, missing.problem) == (2, "no-recorded-model"), missing
    assert url in hybrid("inspect", "bm25").out


def test_inputs_come_from_named_buckets_only(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Bucket("s3", bucket.system, f"{bucket.name}-2", bucket.mirror)
    with_index(other, local)
    ran("index-bm25", f"{other}/data", "--output", f"{bucket}/bm25")
    recorded = json.loads(bucket.get("bm25/manifest.json"))["inputs"]["corpus"]["path"]
    assert recorded == f"../{other.name}/data/corpus.parquet"
    corpus = bucket.mirror / "s3" / other.name / "data/corpus.parquet"
    corpus.unlink()
    done = hybrid("search", "--index", f"{bucket}/bm25", *QUERY)
    assert (done.code, done.says("corpus-changed"), corpus.exists()) == (0, True, False)
    assert hybrid("search", f"{other}/data", "--index", f"{bucket}/bm25", *QUERY).err == ""
    with_index(bucket, local)
    ran("index-bm25", f"{bucket}/data", "--output", f"{bucket}/own")
    (bucket.mirror / "s3" / bucket.name / "data/corpus.parquet").unlink()
    assert hybrid("search", "--index", f"{bucket}/own", *QUERY).err == ""


def test_a_manifest_in_a_bucket_does_not_choose_what_is_downloaded(bucket: Bucket, local: Path, tmp_path: Path) -> None:
    fields = json.loads((local / "out/bm25/manifest.json").read_text("utf-8"))
    del fields["checksum"]
    (tmp_path / "secret.parquet").write_bytes(b"mine")
    for name, content in contents(local / "out/bm25").items():
        bucket.put(f"idx/{name}", content)
    secret = f"{bucket.mirror}/../secret.parquet"
    for path in ("..", "../../..", "../../other-bucket/x", "/etc/passwd", secret, "s3://b/x"):
        inputs_ = {"corpus": {"fingerprint": "0", "kind": "corpus", "path": path}}
        bucket.put("idx/manifest.json", json.dumps({**fields, "inputs": inputs_}).encode())
        done = hybrid("search", "--index", f"{bucket}/idx", *QUERY)
        assert done.error is None or isinstance(done.error, HybridError), (path, done)
        copies = [each.relative_to(bucket.mirror).parts[:3] for each in bucket.mirror.rglob("*") if each.is_file()]
        assert {each for each in copies if len(each) > 1} == {("s3", bucket.name, "idx")}
    assert (tmp_path / "secret.parquet").read_bytes() == b"mine"


def test_names_in_a_manifest_that_lead_out_of_its_folder_are_refused(local: Path, tmp_path: Path) -> None:
    fields = json.loads((local / "out/bm25/manifest.json").read_text("utf-8"))
    source = {"fingerprint": "0", "kind": "corpus", "path": "x"}
    for key, value in (
        ("files", ["../x"]),
        ("files", ["a//b"]),
        ("checksums", {"/etc/passwd": "0"}),
        ("inputs", {"": source}),
        ("inputs", {"corpus": {**source, "path": "a\0b"}}),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({**fields, key: value}), "utf-8")
        for command in (("inspect", tmp_path), ("search", "--index", tmp_path, *QUERY)):
            done = hybrid(*command)
            assert (done.code, done.problem) == (1, "damaged-manifest")


class Full(disk.Disk):
    """A disk without space for files of one name."""

    def __init__(self, name: str):
        self.name = name

    def write(self, file: io.FileIO, data: memoryview) -> int:
        if self.name in str(file.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(file, data)


def test_a_full_disk_of_the_cache_is_named(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_index(bucket, local)
    command = CHAIN[1].format(bucket).split()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
        done = hybrid(*command)
    assert (done.code, done.err.count("\n")) == (1, 1), done
    assert done.is_problem("no-space")
    assert "HYBRID_CACHE" in done.err
    with monkeypatch.context() as patched:
        patched.setattr(disk, "device", Full("corpus.parquet"))
        done = hybrid(*command)  # while an object is written
    assert (done.code, done.problem) == (1, "unusable-file"), done
    monkeypatch.setattr(disk, "device", Full("bm25"))
    done = hybrid(*command)
    assert done.is_problem("unusable-file", role="output", folder=bucket.mirror / "s3" / bucket.name / "out")


def test_a_full_disk_of_an_output_is_named(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "device", Full("bm25"))
    done = hybrid("index-bm25", str(local / "data"), "--threads", "1", "--output", str(tmp_path / "bm25"))
    assert (done.code, done.err.splitlines()[-1].count(str(tmp_path))) == (1, 1)
    assert done.is_problem("unusable-file", role="output", folder=tmp_path)
