"""The mirror: damaged copies, and inputs that local outputs record."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from command import hybrid
from object_stores import CHAIN, Bucket, run, with_index

from hybrid_cli import InputError, open_index, open_run
from hybrid_cli.artifacts import manifest

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


def recorded(index: Path) -> dict[str, str]:
    """Return role -> recorded path."""
    inputs = json.loads((index / "manifest.json").read_text("utf-8"))["inputs"]
    return {role: source["path"] for role, source in inputs.items()}


def test_a_local_index_of_a_collection_in_a_store_finds_its_texts(
    any_bucket: Bucket, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(any_bucket, local)
    index = tmp_path / "bm25"
    assert hybrid("index-bm25", f"{any_bucket}/data", "--threads", "1", "--output", str(index)).code == 0
    assert recorded(index) == {"corpus": f"{any_bucket}/data/corpus.parquet"}
    shutil.rmtree(any_bucket.mirror)
    done = hybrid("search", "--index", str(index), "--query", "salt", "--format", "json", "--threads", "1")
    assert done.code == 0
    assert done.err == ""
    assert json.loads(done.out)["hits"][0]["text"]
    for words in (("inspect",), ("verify",)):
        monkeypatch.chdir(tmp_path)
        assert f"{any_bucket}/data/corpus.parquet" in hybrid(*words, str(index)).out
    shutil.rmtree(any_bucket.mirror)
    monkeypatch.setattr("hybrid_cli.artifacts.store.S3_ATTEMPTS", 1)
    any_bucket.system.delete_file(f"{any_bucket.name}/data/corpus.parquet")
    lost = hybrid("search", "--index", str(index), "--query", "salt", "--threads", "1")
    assert lost.code == 0
    assert f"{any_bucket}/data/corpus.parquet is missing" in lost.err
    assert "mirror" not in lost.err


def test_a_manifest_with_a_path_in_the_mirror_is_read(bucket: Bucket, local: Path, tmp_path: Path) -> None:
    """Earlier versions recorded it; inputs in the bucket of the artifact still have relative paths."""
    with_index(bucket, local)
    index = tmp_path / "bm25"
    assert hybrid("index-bm25", f"{bucket}/data", "--threads", "1", "--output", str(index)).code == 0
    file = index / "manifest.json"
    fields = json.loads(file.read_text("utf-8"))
    fields["inputs"]["corpus"]["path"] = f"mirror/{bucket.scheme}/{bucket.name}/data/corpus.parquet"
    del fields["checksum"]
    file.write_text(json.dumps(fields), "utf-8")
    shutil.rmtree(bucket.mirror)
    assert hybrid("search", "--index", str(index), "--query", "salt", "--threads", "1").err == ""
    assert (bucket.mirror / bucket.scheme / bucket.name / "data/corpus.parquet").is_file()
    run(bucket, 1)
    made = json.loads(bucket.get("out/bm25/manifest.json"))
    assert made["inputs"]["corpus"]["path"] == "../data/corpus.parquet"


def test_inputs_are_printed_as_urls_from_the_folder_of_the_mirror(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(bucket, local)
    run(bucket, 1, 2)
    monkeypatch.chdir(bucket.mirror.parent)
    dry = CHAIN[2].replace("/bm25.parquet", "/other.parquet").format(bucket).split()
    for words in (
        ["inspect", f"{bucket}/out/bm25.parquet"],
        ["verify", f"{bucket}/out/bm25.parquet"],
        [*dry, "--dry-run"],
    ):
        done = hybrid(*words)
        assert f"{bucket}/data/queries.test.parquet" in done.out
        assert "mirror" not in done.out + done.err


def test_the_python_interface_opens_urls(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "fetch_input", manifest.fetch_input)  # set for the process
    with_index(bucket, local)
    run(bucket, 1)
    words = ["search", f"{bucket}/data", "--split", "test", "--index", f"{bucket}/out/bm25"]
    assert hybrid(*words, "--output", f"{bucket}/r.parquet").code == 0
    shutil.rmtree(bucket.mirror)
    hit = open_index(f"{bucket}/out/bm25").search("table salt", k=1)
    assert hit["title"][0] is not None
    assert len(open_run(f"{bucket}/r.parquet"))
    with pytest.raises(InputError, match="no such file or folder"):
        open_index(f"{bucket}/nothing")
