"""Two writers of one output, files of users in artifacts, and writers killed before the last rename."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from command import raises
from small_artifacts import open_output, run_table, scratch_in, write_folder, write_run

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Output
from hybrid_cli.artifacts.output import stage_scope
from hybrid_cli.errors import HybridError
from hybrid_cli.storage import Kind


class Trouble(Exception):
    pass


def hold(path: Path, folder: bool, ready: Event, release: Event) -> None:
    """Write in another process, and stop in the middle."""

    def rows() -> Iterator[pa.Table]:
        ready.set()
        release.wait(60)
        yield run_table()

    if not folder:
        open_output(path).write(rows())
        return
    with open_output(path, kind=Kind.DENSE_INDEX).folder():
        next(rows())


def holding(path: Path, folder: bool) -> tuple[Any, Event, Event]:
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=hold, args=(path, folder, ready, release))
    process.start()
    return process, ready, release


@pytest.mark.parametrize("folder", [True, False])
def test_a_second_writer_is_refused_while_the_first_one_writes(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / ("index" if folder else "run.parquet")
    first, ready, release = holding(path, folder)
    try:
        assert ready.wait(60)
        with raises("locked", HybridError):
            (write_folder if folder else write_run)(path)
        assert not path.exists()
    finally:
        release.set()
        first.join()
    assert first.exitcode == 0
    assert artifacts.find_manifest(path) is not None
    assert scratch_in(tmp_path) == []


@pytest.mark.parametrize("folder", [True, False])
def test_the_lock_of_a_killed_writer_does_not_block_others(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / ("index" if folder else "run.parquet")
    first, ready, _ = holding(path, folder)
    assert ready.wait(60)
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    assert scratch_in(tmp_path)
    (write_folder if folder else write_run)(path)
    assert scratch_in(tmp_path) == []


def test_a_dropped_output_releases_its_lock(tmp_path: Path) -> None:
    output = open_output(tmp_path / "run.parquet")
    with raises("locked", HybridError, path="run.parquet"):  # before the work
        open_output(tmp_path / "run.parquet")
    assert scratch_in(tmp_path)
    del output
    assert not scratch_in(tmp_path)


def test_a_stage_that_fails_releases_its_locks(tmp_path: Path) -> None:
    """Also while a traceback, such as the last one of a notebook, still refers to the outputs."""
    opened = []

    def work() -> None:
        with stage_scope():
            opened.append(open_output(tmp_path / "run.parquet"))
            raise Trouble

    with pytest.raises(Trouble):
        work()
    assert not scratch_in(tmp_path)
    write_run(tmp_path / "run.parquet")


def test_an_output_completed_meanwhile_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lock = tmp_path / "run.parquet", Output.lock

    def lock_later(output: Output) -> None:
        monkeypatch.setattr(Output, "lock", lock)
        write_run(path, hits=10)
        output.lock()

    monkeypatch.setattr(Output, "lock", lock_later)
    assert open_output(path, hits=10).up_to_date
    assert not scratch_in(tmp_path)


def test_the_other_processes_of_torchrun_do_not_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_output(tmp_path / "encoder", kind=Kind.ENCODER)
    monkeypatch.setenv("RANK", "1")
    assert not open_output(tmp_path / "encoder", kind=Kind.ENCODER).up_to_date
    assert scratch_in(tmp_path)
    first.release()


def test_a_file_of_a_user_in_an_artifact_is_never_removed(tmp_path: Path) -> None:
    index = write_folder(tmp_path / "index")
    (index / "notes.txt").write_text("mine")
    for options in ({"hits": 2}, {"overwrite": True}):
        with raises("foreign-file", path="index"):
            write_folder(index, "new", **options)  # type: ignore[arg-type]
    assert (index / "notes.txt").read_text() == "mine"
    (index / "notes.txt").unlink()
    write_folder(index, "new", overwrite=True)
    assert (index / "vectors.bin").read_text() == "new"


def test_a_file_added_while_a_stage_works_is_not_removed_and_the_work_is_kept(tmp_path: Path) -> None:
    index = write_folder(tmp_path / "index")
    output = open_output(index, kind=Kind.DENSE_INDEX, overwrite=True)

    def work_for_hours() -> None:
        with output.folder() as (work, _):
            (work / "shard").write_text("hours of work")
            (index / "late.txt").write_text("mine")

    with raises("foreign-file", path="index"):
        work_for_hours()
    assert (index / "late.txt").read_text() == "mine"
    assert (output.partial / "shard").read_text() == "hours of work"


class Killed(BaseException):
    """Ends a call as a kill does: nothing is cleaned up."""


def killed_before_its_name(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Write a folder and stop before it gets its name."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("hybrid_cli.storage.files.rename", die)
        with pytest.raises(Killed):
            write_folder(path, **options)


def test_a_folder_that_was_killed_before_its_name_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index"
    killed_before_its_name(path, monkeypatch, hits=1)
    assert not path.exists()
    assert open_output(path, kind=Kind.DENSE_INDEX, hits=1).up_to_date
    assert (path / "vectors.bin").read_text() == "complete"
    assert scratch_in(tmp_path) == []
    killed_before_its_name(path, monkeypatch, hits=2, overwrite=True)
    assert artifacts.read_manifest(path).options == {"hits": 1}
    assert open_output(path, kind=Kind.DENSE_INDEX, hits=2, overwrite=True).up_to_date
    assert artifacts.read_manifest(path).options == {"hits": 2}
    assert scratch_in(tmp_path) == []


def test_a_folder_of_another_call_or_with_damage_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index"
    killed_before_its_name(path, monkeypatch, hits=1)
    assert not open_output(path, kind=Kind.DENSE_INDEX, hits=2).up_to_date
    assert scratch_in(tmp_path) == []
    killed_before_its_name(path, monkeypatch, hits=1)
    (tmp_path / ".index.partial" / "vectors.bin").write_text("c0mplete")
    assert not open_output(path, kind=Kind.DENSE_INDEX, hits=1).up_to_date
    assert not path.exists()
