"""The mirror: damaged copies, and inputs that local outputs record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import hybrid
from object_stores import Bucket, run, with_index

pytest_plugins = ("object_stores",)


def flip(path: Path) -> None:
    """Change a byte in the last quarter of a file, and keep its time."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", ["bm25/docids.parquet", "bm25/impacts/postings.npy", "bm25/manifest.json"])
def test_the_message_about_a_damaged_copy_names_the_file_to_remove(bucket: Bucket, local: Path, name: str) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    key = f"{bucket.scheme}/{bucket.name}/out/{name}"
    damaged = next(iter((bucket.mirror / key).parent.glob("*.npy"))) if name.endswith(".npy") else bucket.mirror / key
    key = damaged.relative_to(bucket.mirror).as_posix()
    flip(damaged)
    for words in (("search", "--query", "salt", "--threads", "1", "--index"), ("verify",)):
        done = hybrid(*words, f"{bucket}/out/bm25")
        line = next(line for line in done.err.splitlines() if "remove its copy" in line)
        assert line.endswith(f"to download it again, remove its copy on this machine, {key} in {bucket.mirror}")
        assert f"{bucket}/out/bm25" in line
    damaged.unlink()
    assert hybrid("verify", f"{bucket}/out/bm25").code == 0
