"""Two writers of one output in an object store: the second is refused, and no mix of their files is published."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command import hybrid
from object_stores import CHAIN, Bucket, run, with_index

from hybrid_cli.artifacts import download, remote, store, upload_marker
from hybrid_cli.artifacts.upload_marker import MARKER

pytest_plugins = ("object_stores",)


def put_marker(bucket: Bucket, host: str, process: int) -> None:
    """Store the marker of a process that uploads an index."""
    writer = {"process": process, "host": host, "token": "another"}
    bucket.put(f"out/bm25/{MARKER}", json.dumps({"files": ["docids.parquet"], "writer": writer}).encode())


def sound(bucket: Bucket) -> bool:
    """Return whether the index in the store has the files that its manifest lists, without damage."""
    shutil.rmtree(bucket.mirror)
    return hybrid("verify", f"{bucket}/out/bm25").code == 0


def test_an_output_that_a_process_is_uploading_is_refused(any_bucket: Bucket, local: Path) -> None:
    with_index(any_bucket, local)
    command = CHAIN[1].format(any_bucket).split()
    put_marker(any_bucket, "elsewhere", 7)
    done = hybrid(*command)
    assert (done.code, done.err.count("\n")) == (1, 1), done
    assert f"{any_bucket}/out/bm25: process 7 on elsewhere is uploading to it; repeat the command" in done.err
    assert "pass --overwrite if that upload was interrupted" in done.err
    assert any_bucket.names("out") == {f"out/bm25/{MARKER}"}
    put_marker(any_bucket, socket.gethostname(), os.getppid())
    assert f"process {os.getppid()} on {socket.gethostname()} is uploading to it" in hybrid(*command, "--overwrite").err
    put_marker(any_bucket, "elsewhere", 7)
    assert hybrid(*command, "--overwrite").code == 0
    assert f"out/bm25/{MARKER}" not in any_bucket.names("out")
    assert sound(any_bucket)


@pytest.mark.parametrize("ended", ["process", "day"])
def test_an_upload_that_has_ended_is_taken_over(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    with_index(bucket, local)
    if ended == "process":
        with subprocess.Popen([sys.executable, "-c", ""]) as process:
            process.wait()
        put_marker(bucket, socket.gethostname(), process.pid)
    else:
        put_marker(bucket, "elsewhere", 7)
        monkeypatch.setattr(upload_marker, "HOURS", -1)
    run(bucket, 1)
    assert sound(bucket)


def test_an_upload_stops_when_another_process_takes_over(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(bucket, local)
    put = store.put

    def interfere(path: Path, url: str) -> None:
        put(path, url)
        if url.endswith("/docids.parquet"):
            put_marker(bucket, "elsewhere", 7)

    monkeypatch.setattr(store, "put", interfere)
    done = hybrid(*CHAIN[1].format(bucket).split())
    assert (done.code, done.out) == (1, "")
    assert f"{bucket}/out/bm25: process 7 on elsewhere took over this output during the upload" in done.err
    assert len([line for line in done.err.splitlines() if line.startswith("hybrid: ")]) == 1
    assert "out/bm25/manifest.json" not in bucket.names("out")
    assert b"elsewhere" in bucket.get(f"out/bm25/{MARKER}")


def test_files_that_another_process_replaced_are_not_published(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(bucket, local)
    put, first = store.put, list[str]()

    def interfere(path: Path, url: str) -> None:
        put(path, url)
        if first:
            bucket.put(first[0].removeprefix(f"{bucket}/"), b"of another")
        first.append(url)

    monkeypatch.setattr(store, "put", interfere)
    monkeypatch.setattr(download, "AT_ONCE", 1)
    done = hybrid(*CHAIN[1].format(bucket).split())
    assert done.code == 1
    assert "another process replaced" in done.err
    assert "nothing was published; repeat the command" in done.err
    assert "out/bm25/manifest.json" not in bucket.names("out")
    monkeypatch.setattr(store, "put", put)
    run(bucket, 1)
    assert sound(bucket)


@pytest.mark.parametrize("moment", ["before its upload", "during its upload"])
def test_of_two_hosts_that_write_an_output_one_succeeds(
    bucket: Bucket, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with_index(bucket, local)
    finish, put, ended = remote.Upload.finish, store.put, list[int]()
    command = CHAIN[1].format(bucket).split()

    def other_host() -> None:
        if not ended:
            ended.append(0)
            other = [sys.executable, "-m", "hybrid_cli", *command, "--fields", "text"]
            variables = {**os.environ, "HYBRID_CACHE": str(tmp_path / "other")}
            ended[0] = subprocess.run(other, env=variables, capture_output=True, check=False).returncode

    def finish_late(upload: remote.Upload) -> None:
        other_host()
        finish(upload)

    def put_late(path: Path, url: str) -> None:
        other_host()
        put(path, url)

    if moment == "before its upload":
        monkeypatch.setattr(remote.Upload, "finish", finish_late)
    else:
        monkeypatch.setattr(store, "put", put_late)
    done = hybrid(*command)
    assert (done.code, ended) == ((1, [0]) if moment == "before its upload" else (0, [1]))
    if done.code:
        assert f"{bucket}/out/bm25: another process wrote this output while this command ran" in done.err
    assert sound(bucket)
