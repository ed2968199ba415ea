"""Full disks: that of the copies of objects, that of a local output, and standard output."""

from __future__ import annotations

import errno
import io
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import hybrid
from object_stores import CHAIN, Bucket, with_index

from hybrid_cli.storage import disk

pytest_plugins = ("object_stores",)


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
