"""Artifacts and the file system: hard links, permissions, full disks; and invalid runs."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from command import Refusal, hybrid, raises, refusal
from small_artifacts import HITS, foreign, open_output, run_table, scratch_in, write_run

from hybrid_cli import artifacts, runs


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("links", [True, False])
def test_files_are_hard_linked_or_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def refuse(*_: object) -> None:
        raise OSError("this file system has no links")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    source, place = tmp_path / "source", tmp_path / "place"
    (source / "parts").mkdir(parents=True)
    (source / "parts" / "one").write_text("1")
    (source / "two").write_text("2")
    artifacts.hard_link(source, place)
    artifacts.hard_link(source / "two", tmp_path / "alone")
    assert tree(place) == tree(source) == {"parts/one": "1", "two": "2"}
    assert (
        os.path.samefile(source / "two", place / "two") is os.path.samefile(source / "two", tmp_path / "alone") is links
    )


def test_existing_files_are_kept(tmp_path: Path) -> None:
    for name in ("source", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    artifacts.hard_link(tmp_path / "source", tmp_path / "place")
    assert tree(tmp_path / "place") == {"file": "place"}


@contextmanager
def without_privileges() -> Iterator[None]:
    """Make permissions apply to root too."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("needs Linux to drop the privileges of root")
    libc, header, held = (
        ctypes.CDLL(None, use_errno=True),
        (ctypes.c_uint32 * 2)(0x20080522, 0),
        (ctypes.c_uint32 * 6)(),
    )
    assert libc.capget(header, held) == 0
    fewer = (ctypes.c_uint32 * 6)(*held)
    fewer[0] &= ~0b1110  # effective: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, read-only, with a run."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    write_run(folder / "run.parquet", hits=10)
    pq.write_table(run_table(), folder / "foreign.parquet")
    (folder / "run.parquet").chmod(0o444)
    if os.geteuid() == 0:  # the owner may always touch a file
        os.chown(folder / "run.parquet", 65534, 65534)
    folder.chmod(0o555)
    monkeypatch.chdir(folder)
    yield folder
    folder.chmod(0o755)


def test_an_output_in_a_read_only_folder_is_refused_at_once(read_only: Path) -> None:
    with without_privileges(), raises("not-writable", path="read-only"):
        open_output(Path("deep/new.parquet"))


def test_an_up_to_date_output_may_be_read_only(read_only: Path) -> None:
    with without_privileges():
        assert open_output(Path("run.parquet"), hits=10).up_to_date


def test_an_unreadable_file_is_one_line(read_only: Path) -> None:
    Path("foreign.parquet").chmod(0)
    with without_privileges():
        done = hybrid("inspect", "foreign.parquet")
    assert (done.code, done.is_problem("permission-denied", path="foreign.parquet")) == (2, True), done


def test_a_full_disk_is_one_line_and_keeps_the_old_output(tmp_path: Path) -> None:
    """A limit on the size of files replaces a full disk."""
    table = pl.DataFrame({"qid": [f"query {i * 7919 % 100_003}" for i in range(20_000)]})
    table = table.with_columns(docid=pl.col("qid").hash().cast(pl.String), rank=pl.lit(1, pl.Int32), score=pl.lit(1.0))
    table.write_parquet(tmp_path / "run.parquet")
    output = tmp_path / "out.trec"
    output.write_text("old")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))

    command = [sys.executable, "-m", "hybrid_cli", "export", "run.parquet", "--format", "msmarco"]
    done = subprocess.run(
        [*command, "--output", output.name, "--overwrite"],
        cwd=tmp_path,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "file too large" in done.stderr
    assert output.read_text() == "old"
    assert scratch_in(tmp_path) == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_scores_that_are_not_finite_are_refused_with_row_and_ids(tmp_path: Path, bad: float | None) -> None:
    frame = pl.DataFrame(pl.from_arrow(run_table()))
    frame = frame.with_columns(score=pl.Series([3.0, bad, 1.0], dtype=pl.Float32))
    with raises("score-not-finite", path="x.parquet"):
        runs.read_run(foreign(tmp_path / "x.parquet", frame))


def test_a_duplicate_document_is_refused_with_row_and_ids(tmp_path: Path) -> None:
    frame = pl.DataFrame(pl.from_arrow(run_table([*HITS, ("q1", "b", 3, 0.5)])))
    with raises("duplicate-id", path="x.parquet"):
        runs.read_run(foreign(tmp_path / "x.parquet", frame))


@pytest.mark.parametrize("column", ["qid", "docid"])
def test_a_hit_without_an_id_is_refused(tmp_path: Path, column: str) -> None:
    frame = pl.DataFrame(pl.from_arrow(run_table())).with_columns(
        pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise(column).alias(column)
    )
    with raises("missing-value", path="x.parquet"):
        runs.read_run(foreign(tmp_path / "x.parquet", frame))


def test_ranks_are_renumbered_from_1(tmp_path: Path) -> None:
    lines = ["q1 Q0 a 0 5 t", "", "q1 Q0 b 1 4 t", "q2 Q0 c 7 3 t", "q2 Q0 a 9 9 t"]
    (tmp_path / "run.trec").write_text("\n".join(lines) + "\n")
    found = runs.read_run(tmp_path / "run.trec")
    assert found.rows() == [("q1", "a", 1, 5.0), ("q1", "b", 2, 4.0), ("q2", "c", 1, 3.0), ("q2", "a", 2, 9.0)]
    assert found.schema["rank"] == pl.Int32


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"q1 Q0 a 1 5 t\n\nq1 Q0 b 2\n", refusal("other-width", path="run.trec", line=3)),
        (b"q1 Q0 \xff 1 5 t\n", refusal("not-utf-8", path="run.trec", line=1)),
        (b"PAR1\x00\x01\x01\xfe\n", refusal("not-parquet", path="run.trec")),
        (b"q1 Q0 a 1 high t\n", refusal("score-not-finite", path="run.trec")),
        (b"\n \n", refusal("empty-run", path="run.trec")),
    ],
)
def test_a_file_that_is_no_trec_run_is_refused_with_its_line(
    tmp_path: Path, content: bytes, words: str | Refusal
) -> None:
    (tmp_path / "run.trec").write_bytes(content)
    with raises(words):
        runs.read_run(tmp_path / "run.trec")
