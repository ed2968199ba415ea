"""Standard input that is closed or unreadable, inputs on a failing disk, and outputs that are damaged."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, hybrid, raises
from judging import write_runs
from safetensors import SafetensorError
from small_artifacts import open_output, write_folder, write_run
from terminal import Terminal

from hybrid_cli import cli, console
from hybrid_cli.errors import DamageError, InputError
from hybrid_cli.inputs import files as input_files
from hybrid_cli.storage import MANIFEST, Kind, disk, integrity

MEMORY = Path("/proc/self/mem")  # a regular file; the first read is an input/output error


class Unreadable(io.StringIO):
    def __init__(self, error: Exception):
        super().__init__()
        self.error = error

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        raise self.error


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (None, "stdin-closed"),
        (closed(), "stdin-closed"),
        (Unreadable(OSError(errno.EIO, "Input/output error")), "stdin-unreadable"),
        (Unreadable(io.UnsupportedOperation("not readable")), "stdin-unreadable"),
        (Unreadable(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")), "not-utf-8"),
    ],
)
@pytest.mark.parametrize("command", ["judge", "search"])
def test_standard_input_that_cannot_be_read_ends_in_one_line(
    command: str, stream: Any, problem: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = write_runs(tmp_path)
    words: dict[str, list[object]] = {
        "judge": ["judge", "collection", "--split", "test", *runs, "--output", tmp_path / "mine.tsv"],
        "search": ["search", "--index", "bm25", "--interactive"],
    }
    monkeypatch.setattr("sys.stdin", stream)
    done = hybrid(*words[command])
    assert (done.code, done.problem) == (2, problem), done
    assert [notice.level for notice in done.notices.heard].count("error") == 1


@pytest.mark.parametrize("redirection", ["<&-", "0> unreadable"])
def test_a_shell_without_standard_input_gets_one_line(redirection: str, here: Path) -> None:
    line = f"{sys.executable} -m hybrid_cli search --index bm25 --interactive {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0, done
    assert "a bug in hybrid" not in done.stderr
    assert done.stderr.rstrip().count("\n") == 0, done.stderr


def test_the_end_of_standard_input_is_no_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = hybrid("search", "--index", "bm25", "--interactive")
    assert (done.code, done.out) == (0, "")
    session = Terminal("search", "--index", here / "bm25", "--interactive")
    session.wait_for(b"query> ")
    session.press(b"\x04")
    session.end()
    assert session.code == 0


def test_answers_with_invalid_bytes_are_refused(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = write_runs(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("\udc9b1\n"))
    done = hybrid("judge", "collection", "--split", "test", *runs, "--output", tmp_path / "mine.tsv")
    assert (done.code, done.problem) == (2, "not-an-answer")
    assert "\udc9b" not in done.err


@pytest.mark.skipif(not MEMORY.exists(), reason="needs a file whose reads fail")
@pytest.mark.parametrize("read", [input_files.read_bytes, lambda path: next(iter(input_files.opened(path)))])
def test_an_input_error_of_the_disk_names_the_file(read: Callable[[Path], bytes]) -> None:
    with raises("unreadable-file", path=MEMORY):
        read(MEMORY)


@pytest.mark.skipif(not MEMORY.exists(), reason="needs a file whose reads fail")
@pytest.mark.parametrize("name", ["bad.trec", "bad.tsv", "bad.json", "bad.jsonl", "bad.yaml"])
def test_an_input_on_a_bad_disk_is_named(name: str, here: Path) -> None:
    Path(name).symlink_to(MEMORY)
    command: dict[str, list[object]] = {
        "bad.trec": ["evaluate", "collection", "--split", "test", name],
        "bad.tsv": ["evaluate", "--qrels", name, "bm25.parquet"],
        "bad.json": ["inspect", name],
        "bad.jsonl": ["prepare", "files", name, "--output", "new"],
        "bad.yaml": ["fuse", "bm25.parquet", "bm25.parquet", "--output", "new.parquet", "--config", name],
    }
    done = hybrid(*command[name])
    assert (done.code, done.problem, str(done.fields.get("path"))) == (2, "unreadable-file", name), done


def explained(error: BaseException) -> tuple[str, int, dict[str, object]]:
    """Return code, exit code and fields of the error that a command prints for an error of a file."""
    assert isinstance(error, Exception)
    problem = cli.file_problem(error)
    assert problem is not None
    return problem.code, problem.exit_code, problem.fields


def test_a_failed_read_of_a_library_is_not_called_the_output() -> None:
    """Libraries name no file; a file that is written carries a note."""
    error = OSError(errno.EIO, "Input/output error")
    assert explained(error) == ("unusable-file", 2, {"role": "input", "path": None})
    with pytest.raises(OSError, match="Input/output") as caught, disk.note_path(Path("out/x.parquet")):
        raise error
    assert explained(caught.value) == ("unusable-file", 1, {"role": "output", "path": None, "folder": Path("out")})


class Failing(disk.Disk):
    """A disk whose first operations of one name fail; the error names no file."""

    def __init__(self, name: str, times: int = 1000):
        self.name, self.times = name, times

    def _fail(self, name: str) -> None:
        if name == self.name and self.times:
            self.times -= 1
            raise OSError(errno.EIO, "Input/output error")

    def write(self, file: io.FileIO, data: memoryview) -> int:
        self._fail("write")
        return super().write(file, data)

    def sync(self, descriptor: int) -> None:
        self._fail("sync")
        super().sync(descriptor)

    def remove(self, path: Path) -> None:
        self._fail("remove")
        super().remove(path)


@pytest.mark.parametrize(
    ("name", "fields"), [("sync", {"path": None, "folder": "."}), ("remove", {"removed": "x.parquet"})]
)
def test_an_error_of_an_output_is_not_called_one_of_an_input(
    name: str, fields: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "device", Failing(name))
    with pytest.raises(OSError, match="Input/output") as caught, disk.create(tmp_path / "x.parquet"):
        disk.sync(tmp_path)
    expected = {name: value and tmp_path / value for name, value in fields.items()}
    assert explained(caught.value) == ("unusable-file", 1, {"role": "output", **expected})


def write_into(path: Path, write: Callable[[pl.DataFrame, Any], None]) -> None:
    with disk.create(path) as file:
        write(pl.DataFrame({"qid": ["q"] * 10}), file)


@pytest.mark.parametrize("write", [pl.DataFrame.write_csv, pl.DataFrame.write_parquet])
def test_an_error_of_a_library_that_writes_an_output_is_one_of_the_output(
    write: Callable[[pl.DataFrame, Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polars replaces the error of a file by one of its own, perhaps after it wrote again."""
    monkeypatch.setattr(disk, "device", Failing("write", 1))
    with pytest.raises((OSError, pl.exceptions.ComputeError), match="Input/output") as caught:
        write_into(tmp_path / "x", write)
    assert explained(caught.value)[2]["role"] == "output"


def test_an_error_of_a_library_that_opens_an_output_by_name_is_one_of_the_output(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError) as caught, disk.by_name(tmp_path / "x"):
        raise SafetensorError("I/O error: Input/output error (os error 5)")
    assert explained(caught.value)[2]["role"] == "output"


def test_an_unwritable_lock_is_an_error_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="Input/output") as caught:
        open_output(tmp_path / "x.parquet").lock()
    assert explained(caught.value)[2]["role"] == "output"


def test_a_lock_that_cannot_be_removed_is_named_and_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = open_output(tmp_path / "x.parquet")
    output.lock()
    with monkeypatch.context() as patched:
        patched.setattr(disk, "device", Failing("remove"))
        with pytest.raises(OSError, match="Input/output") as caught:
            output.release()
    lock = tmp_path / ".x.parquet.partial.lock"
    assert explained(caught.value) == ("unusable-file", 1, {"role": "output", "removed": lock})
    again = open_output(tmp_path / "x.parquet")
    again.lock()
    again.release()


def test_a_log_file_on_a_full_disk_ends_the_log_and_not_the_command(tmp_path: Path, notices: Notices) -> None:
    log = tmp_path / "run.log"
    console.log_to(log)
    try:
        log.unlink(missing_ok=True)
        log.symlink_to("/dev/full")
        console.note("first")
        console.note("second")
    finally:
        console.log_to(None)
    assert [notice.code or notice.message for notice in notices.heard] == ["log-not-written", "first", "second"]


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2] if how == "cut" else content[:-2] + b"!" + content[-1:])


@pytest.mark.parametrize("how", ["missing", "cut", "changed"])
@pytest.mark.parametrize("large", [False, True])
def test_damage_is_not_up_to_date(how: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_folder(tmp_path / "index", "content of the vectors")
    assert open_output(path, kind=Kind.DENSE_INDEX).up_to_date
    damage(path / "vectors.bin", how)
    if large:
        monkeypatch.setattr(integrity, "QUICK_BYTES", 4)
    if large and how == "changed":  # found by `inspect --verify`, and by a stage that reads the file
        assert open_output(path, kind=Kind.DENSE_INDEX).up_to_date
        return
    with raises("damaged-output", DamageError, path=path) as caught:
        open_output(path, kind=Kind.DENSE_INDEX)
    assert str(path / "vectors.bin") in str(caught.value)
    assert not open_output(path, kind=Kind.DENSE_INDEX, overwrite=True).up_to_date
    write_folder(path, "content of the vectors", overwrite=True)
    assert open_output(path, kind=Kind.DENSE_INDEX).up_to_date


@pytest.mark.parametrize("how", ["cut", "changed"])
def test_a_damaged_file_is_not_up_to_date(how: str, workdir: Path) -> None:
    path = write_run(Path("x.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-20] if how == "cut" else content[:10] + b"!" + content[11:])
    with pytest.raises(InputError) as caught:
        open_output(path)
    assert caught.value.code == ("output-exists" if how == "cut" else "damaged-output")
    write_run(path, overwrite=True)
    assert open_output(path).up_to_date


def test_the_manifest_of_an_earlier_version_has_no_sizes(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "index", "content")
    stored = json.loads((path / MANIFEST).read_text())
    assert stored["sizes"] == {"vectors.bin": os.path.getsize(path / "vectors.bin")}


@pytest.mark.skipif(not MEMORY.exists(), reason="needs a file whose reads fail")
@pytest.mark.parametrize("name", ["bad.parquet", "artifact"])
@pytest.mark.parametrize("words", [("inspect",), ("inspect", "--verify")])
def test_an_artifact_on_a_failing_disk_is_named(words: tuple[str, ...], name: str, workdir: Path) -> None:
    Path("artifact").mkdir()
    place = Path(name) / MANIFEST if name == "artifact" else Path(name)
    place.symlink_to(MEMORY)
    done = hybrid(*words, name)
    assert (done.code, done.problem, str(done.fields.get("path"))) == (2, "unreadable-file", str(place)), done
