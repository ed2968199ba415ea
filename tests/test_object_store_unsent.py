"""Finished outputs that are not uploaded yet: commands that read the store keep them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from command import Done, hybrid
from object_stores import CHAIN, Bucket, contents, run, with_index

from hybrid_cli.artifacts import store
from hybrid_cli.artifacts.upload_marker import MARKER
from hybrid_cli.errors import HybridError

pytest_plugins = ("object_stores",)


def stopped(command: list[str], moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command whose upload fails at the objects with this end of the name."""
    put, write = store.put, store.write

    def stop(what: object, url: str) -> None:
        if url.endswith(moment):
            raise HybridError(f"{url}: the object store does not answer; repeat the command")
        put(what, url) if isinstance(what, Path) else write(what, url)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(store, "put", stop)
        patched.setattr(store, "write", stop)
        assert hybrid(*command).code == 1


def place(bucket: Bucket, name: str) -> Path:
    return bucket.mirror / bucket.scheme / bucket.name / name


def refused(words: tuple[str, ...], message: str) -> Done:
    done = hybrid(*words)
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert message in done.err
    return done


@pytest.mark.parametrize("moment", [MARKER, "/docids.parquet", "/manifest.json"])
@pytest.mark.parametrize("words", [("verify",), ("inspect",)])
def test_reading_a_parent_folder_keeps_an_output_that_is_not_uploaded(
    any_bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch, moment: str, words: tuple[str, ...]
) -> None:
    with_index(any_bucket, local)
    command = CHAIN[1].format(any_bucket).split()
    stopped(command, moment, monkeypatch)
    made = contents(place(any_bucket, "out/bm25"))
    assert "manifest.json" in made
    for parent in ("out", ""):
        done = hybrid(*words, f"{any_bucket}/{parent}".rstrip("/"))
        warning = f"warning: {any_bucket}/out/bm25: the finished output in HYBRID_CACHE is not uploaded"
        assert warning in done.err
        assert contents(place(any_bucket, "out/bm25")) == made
    upload = "not uploaded" if moment == MARKER else "an upload to it has not finished"
    refused((*words, f"{any_bucket}/out/bm25"), upload)
    refused((*words, f"{any_bucket}/out/bm25/docids.parquet"), f"{any_bucket}/out/bm25: the finished output")
    assert contents(place(any_bucket, "out/bm25")) == made
    again = hybrid(*command).err.splitlines()
    assert "is up to date" in again[-2]
    assert again[-1].startswith(f"uploaded to {any_bucket}/out/bm25: {len(made)} files")
    if moment != "/docids.parquet":  # some files may have arrived
        assert again[-1].endswith(" of them by an interrupted call") == (moment == "/manifest.json")
    assert any_bucket.names("out") == {f"out/bm25/{name}" for name in made}
    assert hybrid("verify", f"{any_bucket}/out").err == ""


@pytest.mark.parametrize("moment", [MARKER, "/docids.parquet"])
def test_a_replacement_that_is_not_uploaded_is_kept_next_to_the_old_version(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    command = [*CHAIN[1].format(bucket).split(), "--fields", "text", "--overwrite"]
    time.sleep(1.1)  # times of objects are in seconds
    stopped(command, moment, monkeypatch)
    made = contents(place(bucket, "out/bm25"))
    hybrid("verify", f"{bucket}/out")
    refused(("inspect", f"{bucket}/out/bm25/docids.parquet"), "not uploaded")
    assert contents(place(bucket, "out/bm25")) == made
    assert "is up to date" in hybrid(*command).err
    assert bucket.get("out/bm25/manifest.json") == made["manifest.json"]
    shutil.rmtree(bucket.mirror)
    assert hybrid("verify", f"{bucket}/out").code == 0


def test_a_file_that_is_not_uploaded_is_kept(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    command = CHAIN[2].format(bucket).split()
    stopped(command, "/bm25.parquet", monkeypatch)
    for folder in (f"{bucket}/out", str(bucket)):
        assert f"{bucket}/out/bm25.parquet: the finished output" in hybrid("verify", folder).err
    refused(("inspect", f"{bucket}/out/bm25.parquet"), "not uploaded")
    refused((*command, "--hits", "3"), "pass --overwrite to replace it")
    again = hybrid(*command).err.splitlines()
    assert "is up to date" in again[0]
    assert again[1:] == [f"uploaded to {bucket}/out/bm25.parquet"]
    assert bucket.get("out/bm25.parquet") == (local / "out/bm25.parquet").read_bytes()
    assert "uploaded" not in hybrid(*command).err


def test_an_output_that_its_owner_deleted_in_the_store_is_removed(bucket: Bucket, local: Path) -> None:
    with_index(bucket, local)
    run(bucket, 1, 2)
    for name in bucket.names("out/bm25"):
        bucket.system.delete_file(f"{bucket.name}/{name}")
    assert hybrid("inspect", f"{bucket}/out/bm25.parquet").code == 0
    hybrid("inspect", f"{bucket}/out")
    assert not [path for path in place(bucket, "out/bm25").rglob("*") if path.is_file()]
    run(bucket, 1)
    assert "out/bm25/manifest.json" in bucket.names("out/bm25")


@pytest.mark.parametrize("folder", ["out", "out/bm25"])
def test_versions_of_another_machine_are_read_after_a_command_that_failed(
    bucket: Bucket, local: Path, tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(bucket, local)
    run(bucket, 1)
    command = CHAIN[1].format(bucket).split()
    assert hybrid(*command, "--fields", "text").code == 2  # other options
    time.sleep(1.1)  # times of objects are in seconds
    for fields in ("text", "title", "title,text"):
        with monkeypatch.context() as other:
            other.setenv("HYBRID_CACHE", str(tmp_path / "other"))
            assert hybrid(*command, "--fields", fields, "--overwrite").code == 0
        done = hybrid("verify", f"{bucket}/{folder}")
        assert (done.code, done.err) == (0, "")
        assert place(bucket, "out/bm25/manifest.json").read_bytes() == bucket.get("out/bm25/manifest.json")


def test_an_upload_whose_command_was_killed_at_its_end_is_read(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_index(bucket, local)

    def stop(*given: object) -> None:
        raise HybridError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", stop)  # of the marker
        assert hybrid(*CHAIN[1].format(bucket).split()).code == 1
    for folder in ("out", "out/bm25"):
        assert hybrid("verify", f"{bucket}/{folder}").err == ""
