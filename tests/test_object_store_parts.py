"""Outputs that commands upload in parts: the artifacts of `auto`, and the judgments of `judge` after each answer."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from command import Done, hybrid
from judging import FIRST, SECOND, write_runs
from object_stores import Bucket, with_index

from hybrid_cli.artifacts import store
from hybrid_cli.errors import HybridError
from hybrid_cli.training import recommended

pytest_plugins = ("object_stores",)


def test_auto_uploads_each_artifact_and_continues_on_another_machine(
    any_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("auto", f"{any_bucket}/docs.jsonl", "--layers", 1, "--minutes", 1, "--output", f"{any_bucket}/mine")
    monkeypatch.setattr(recommended, "FEWEST_QUERIES", 11)
    put = store.put

    def stop(path: Path, url: str) -> None:
        if url.endswith("bm25/manifest.json"):
            raise HybridError(f"{url}: the object store does not answer; repeat the command")
        put(path, url)

    monkeypatch.setattr(store, "put", stop)
    assert hybrid(*words).code == 1
    assert "mine/collection/manifest.json" in any_bucket.names("mine")
    monkeypatch.setattr(store, "put", put)
    first = hybrid(*words)
    assert first.code == 0, first.err
    shutil.rmtree(any_bucket.mirror)
    again = hybrid(*words)
    assert again.code == 0, again.err
    names = {name.removeprefix("mine/").split("/")[0] for name in any_bucket.names("mine")}
    assert {"collection", "pseudo", "bm25", "dense", "hybrid.dev.parquet", "report.html", "steps.json"} <= names
    assert "speed" not in names
    assert "training steps, as chosen by an earlier call" in again.err
    called, _, _ = again.err.partition("judge twenty:")
    written = [line for line in called.splitlines() if line.startswith("hybrid ") and " --output " in line]
    assert written
    for line in written:
        output = line.split(" --output ")[1].split()[0]
        assert output.startswith(f"{any_bucket}/mine/")
        assert f"{output} is up to date" in again.err, line
    assert "mirror" not in first.err + first.out
    line = next(line for line in again.err.splitlines() if " --query " in line)
    assert line.startswith(f"hybrid search {any_bucket}/mine/collection --index {any_bucket}/mine/bm25,")


# --------------------------------------------------------------------------------------------------------------- judge


def judged(bucket: Bucket, answers: str, monkeypatch: pytest.MonkeyPatch) -> Done:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{answer}\n" for answer in answers)))
    runs = [f"{bucket}/{name}.trec" for name in (FIRST, SECOND)]
    return hybrid("judge", f"{bucket}/data", "--split", "test", *runs, "--output", f"{bucket}/mine.tsv")


@pytest.fixture
def filled(any_bucket: Bucket, local: Path, tmp_path: Path) -> Bucket:
    with_index(any_bucket, local)
    for path in write_runs(tmp_path):
        any_bucket.put(path.name, path.read_bytes())
    return any_bucket


def test_each_answer_is_in_the_store_and_judging_continues_on_another_machine(
    filled: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, put = [], store.put

    def noted(path: Path, url: str) -> None:
        put(path, url)
        seen.append(filled.get(url.removeprefix(f"{filled}/")).count(b"\n"))

    monkeypatch.setattr(store, "put", noted)
    done = judged(filled, "120us", monkeypatch)
    assert done.code == 0, done.err
    assert seen == [0, 0, 1, 2, 3, 2, 1]
    assert f"judge: {filled}/mine.tsv: 2 judgments, 1 hit skipped" in done.err
    before = filled.get("mine.tsv")
    shutil.rmtree(filled.mirror)
    assert judged(filled, "3", monkeypatch).code == 0
    assert filled.get("mine.tsv").startswith(before)
    assert filled.get("mine.tsv").count(b"\n") == 3
    assert filled.get("mine.tsv.skipped").count(b"\n") == 1


def test_an_answer_that_the_store_does_not_take_is_named(filled: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    put, answers = store.put, 0

    def stop(path: Path, url: str) -> None:
        nonlocal answers
        answers += path.stat().st_size > 0
        if answers == 3:
            raise HybridError(f"{url}: the object store does not answer; check the network, and repeat the command")
        put(path, url)

    monkeypatch.setattr(store, "put", stop)
    done = judged(filled, "1230", monkeypatch)
    assert done.code == 1
    assert done.err.endswith("and repeat the command; the last answer was not stored\n")
    assert filled.get("mine.tsv").count(b"\n") == 2
    assert (filled.mirror / filled.scheme / filled.name / "mine.tsv").read_bytes() == filled.get("mine.tsv")
    monkeypatch.setattr(store, "put", put)
    assert judged(filled, "0", monkeypatch).code == 0
    assert filled.get("mine.tsv").count(b"\n") == 3


def test_judgments_that_another_person_changed_meanwhile_are_kept(
    filled: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judged(filled, "1", monkeypatch).code == 0
    put, other = store.put, b"q9\t0\td1\t1\n"

    def meddle(path: Path, url: str) -> None:
        put(path, url)
        filled.put("mine.tsv", other)

    monkeypatch.setattr(store, "put", meddle)
    done = judged(filled, "12", monkeypatch)
    assert (done.code, done.err.splitlines()[-1]) == (
        1, f"hybrid: {filled}/mine.tsv: another process changed it; repeat the command to continue with its content"
    )  # fmt: skip
    assert filled.get("mine.tsv") == other
    monkeypatch.setattr(store, "put", put)
    assert judged(filled, "2", monkeypatch).code == 0
    assert filled.get("mine.tsv").startswith(other)
    assert filled.get("mine.tsv").count(b"\n") == 2
