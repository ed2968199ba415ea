"""Names of outputs, links, permissions, and the order of the operations on the disk."""

import ctypes
import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command import Notices, hybrid, raises
from small_artifacts import HITS, open_output, run_table, scratch_in, write_folder, write_run

from hybrid_cli import artifacts, runs
from hybrid_cli.errors import HybridError
from hybrid_cli.stages.encode import encode
from hybrid_cli.storage import Kind, disk, files


def test_an_output_behind_a_link_replaces_the_target_and_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link = tmp_path / "run.parquet"
    link.symlink_to(Path("far") / "real.parquet")
    queries = tmp_path / "queries.tsv"
    queries.write_text("q1\twords\n")
    for rows in (HITS, HITS[:1]):
        write_run(link, rows, inputs={"queries": queries}, overwrite=True)
        assert os.readlink(link) == "far/real.parquet"
        assert runs.read_run(tmp_path / "far" / "real.parquet").height == len(rows)
    for name in (link, tmp_path / "far" / "real.parquet"):
        assert artifacts.read_manifest(name).input_path("queries") == queries
        assert open_output(name, inputs={"queries": queries}).up_to_date
    assert scratch_in(tmp_path) == scratch_in(tmp_path / "far") == []


def test_two_writers_through_different_links_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "link.parquet").symlink_to("run.parquet")
    first = open_output(tmp_path / "link.parquet")
    with raises("locked", HybridError):
        open_output(tmp_path / "run.parquet")
    first.release()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *((name, "invalid-name") for name in (".", "..", "/", "x" * 300, "x" * 245, "loop/x", "loop")),
        ("\udcff", "not-utf-8"),
    ],
)
def test_a_path_that_names_no_output_is_refused(workdir: Path, name: str, problem: str) -> None:
    Path("loop").symlink_to("pool")
    Path("pool").symlink_to("loop")
    for other in (True, False):
        with raises(problem, path=name):
            open_output(Path(name), kind=Kind.DENSE_INDEX, foreign=other, overwrite=True)


def test_a_part_of_an_artifact_is_never_replaced(tmp_path: Path) -> None:
    whole = write_folder(tmp_path / "index")
    (tmp_path / "link.bin").symlink_to("index/vectors.bin")
    for name in (whole / "vectors.bin", tmp_path / "link.bin"):
        with raises("inside-artifact", artifact="index"):
            open_output(name, foreign=True, overwrite=True)
    manifest = whole / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])
    with raises("inside-artifact"):
        open_output(whole / "vectors.bin", foreign=True, overwrite=True)
    manifest.write_text('{"name": "a page that can be installed", "icons": []}')
    open_output(whole / "vectors.bin", foreign=True, overwrite=True)


def test_a_new_file_never_writes_into_a_hard_link(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    disk.write_text(tmp_path / "two", "two")
    assert (tmp_path / "one").read_text() == "one"


class Recorder(disk.Disk):
    """A disk that records its operations and writes at most three bytes per call."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def write(self, file: io.FileIO, data: memoryview) -> int:
        self.done.append("write")
        return super().write(file, data[:3])

    def rename(self, source: Path, target: Path) -> None:
        self.done.append(f"rename {target.name}")
        super().rename(source, target)

    def exchange(self, first: Path, second: Path) -> bool:
        self.done.append(f"exchange {second.name}")
        return super().exchange(first, second)

    def sync(self, descriptor: int) -> None:
        self.done.append("sync")
        super().sync(descriptor)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(disk, "device", found)
    return found


def test_content_is_synced_before_it_gets_its_name_and_the_name_after(tmp_path: Path, recorder: Recorder) -> None:
    with files.replacing(tmp_path / "x") as scratch:
        disk.write_text(scratch, "seven b")
    assert recorder.done == ["write", "write", "write", "sync", "rename x", "sync"]
    assert (tmp_path / "x").read_text() == "seven b"


def test_every_part_of_a_file_survives_short_writes(tmp_path: Path, recorder: Recorder) -> None:
    """The checksum in the footer of a Parquet file is written last, into its place."""
    run = write_run(tmp_path / "run.parquet")
    assert runs.read_run(run).height == len(HITS)
    disk.patch(run, 0, b"seven b")
    assert run.read_bytes()[:7] == b"seven b"
    growing = disk.Growing(tmp_path / "lines.tsv")
    growing.add("a whole line\n")
    growing.close()
    assert (tmp_path / "lines.tsv").read_text() == "a whole line\n"


def test_an_addition_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = disk.Growing(tmp_path / "lines.tsv")
    growing.add("a whole line\n")

    class FullAfterSevenBytes(disk.Disk):
        def write(self, file: io.FileIO, data: memoryview) -> int:
            if file.tell() > len("a whole line\n"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(file, data[:7])

    monkeypatch.setattr(disk, "device", FullAfterSevenBytes())
    with pytest.raises(OSError) as full:  # noqa: PT011
        growing.add("another line\n")
    growing.close()
    assert full.value.errno == errno.ENOSPC
    assert (tmp_path / "lines.tsv").read_text() == "a whole line\n"


def test_a_folder_is_synced_with_every_file(tmp_path: Path, recorder: Recorder) -> None:
    with files.replacing(tmp_path / "x") as scratch:
        (scratch / "deep").mkdir(parents=True)
        for name in ("one", "deep/two"):
            disk.write_text(scratch / name, "abc")
    assert recorder.done == ["write", "write", *["sync"] * 4, "rename x", "sync"]


def test_a_folder_is_replaced_in_one_step_if_the_system_supports_it(tmp_path: Path, recorder: Recorder) -> None:
    write_folder(tmp_path / "x", "old")
    recorder.done.clear()
    write_folder(tmp_path / "x", "new", overwrite=True)
    assert [step for step in recorder.done if "x" in step] == ["exchange x"]
    assert (tmp_path / "x" / "vectors.bin").read_text() == "new"


class Fails(disk.Disk):
    """A disk without atomic exchange that fails at one rename."""

    def __init__(self, target: str):
        self.target = target

    def exchange(self, first: Path, second: Path) -> bool:
        return False

    def rename(self, source: Path, target: Path) -> None:
        if target.name == self.target:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        super().rename(source, target)


def test_a_failed_replacement_in_two_steps_is_undone_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_folder(tmp_path / "index", "old")
    monkeypatch.setattr(disk, "device", Fails("index"))
    with pytest.raises(OSError, match="Input/output error"):
        write_folder(path, "new", overwrite=True)
    assert not path.exists()
    monkeypatch.setattr(disk, "device", disk.Disk())
    assert open_output(path, kind=Kind.DENSE_INDEX).up_to_date
    assert (path / "vectors.bin").read_text() == "old"
    assert scratch_in(tmp_path) == []


class Full(disk.Disk):
    def write(self, file: io.FileIO, data: memoryview) -> int:
        if Path(str(file.name)).name == "index.faiss" or "out.tsv" in str(file.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(file, data)


@pytest.mark.parametrize("kind", ["hnsw", "binary"])
def test_no_index_is_cut_on_a_full_disk(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """FAISS prints an error when it closes a file, and returns as if it were complete."""
    monkeypatch.setattr(disk, "device", Full())
    with pytest.raises(OSError, match="No space left"):
        encode(made / "dense", index_type=kind, output=tmp_path / "index")
    assert not (tmp_path / "index").exists()
    (tmp_path / "out.tsv").write_text("old")
    words = ("--format", "msmarco", "--output", tmp_path / "out.tsv", "--overwrite")
    done = hybrid("export", made / "bm25.parquet", *words)
    assert (done.code, done.err.count("\n"), (tmp_path / "out.tsv").read_text()) == (1, 1, "old"), done.err
    assert scratch_in(tmp_path) == [".index.partial"]


def test_leftovers_are_removed_only_by_the_holder_of_the_lock(tmp_path: Path) -> None:
    """The scratch files of a replacement in progress are the same as those of an interrupted replacement."""
    path = write_folder(tmp_path / "index", "old")
    first = open_output(path, kind=Kind.DENSE_INDEX, overwrite=True)
    (tmp_path / ".index.old").mkdir()
    assert open_output(path, kind=Kind.DENSE_INDEX).up_to_date
    assert (tmp_path / ".index.old").exists()
    first.release()
    assert open_output(path, kind=Kind.DENSE_INDEX).up_to_date
    assert scratch_in(tmp_path) == []


def export(path: Path, content: str, overwrite: bool = False) -> None:
    output = artifacts.open_output(
        path, Kind.RUN, "export trec", inputs={}, options={}, overwrite=overwrite, foreign=True, compare=True
    )
    with output.scratch() as scratch:
        disk.write_text(scratch, content)


def test_an_equal_export_is_up_to_date_and_another_one_is_refused(tmp_path: Path, notices: Notices) -> None:
    path = tmp_path / "run.trec"
    export(path, "one")
    made = path.stat().st_ino
    export(path, "one")
    assert notices.says("up-to-date")
    assert path.stat().st_ino == made
    with raises("output-differs", path="run.trec"):
        export(path, "two")
    assert path.read_text() == "one"
    export(path, "two", overwrite=True)
    assert path.read_text() == "two"
    assert scratch_in(tmp_path) == []


def test_files_of_libraries_have_the_mode_of_new_files(tmp_path: Path) -> None:
    """Some libraries write files that only their owner can read."""
    code = (
        "import os; os.umask(0o027); masks = []; change = os.umask\n"
        "os.umask = lambda mask: (masks.append(mask), change(mask))[1]\n"
        "from hybrid_cli.storage import disk\n"
        "assert not masks, 'an import changed the process'\n"
        "from pathlib import Path\n"
        "with disk.by_name(Path('file')) as name:\n"
        "    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))\n"
        "print(oct(os.stat('file').st_mode & 0o777))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0o640"


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
    assert [os.path.samefile(source / "two", two) for two in (place / "two", tmp_path / "alone")] == [links] * 2


def test_existing_files_are_kept(tmp_path: Path) -> None:
    for name in ("source", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    artifacts.hard_link(tmp_path / "source", tmp_path / "place")
    assert tree(tmp_path / "place") == {"file": "place"}


@contextmanager
def without_privileges() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("needs Linux to drop the privileges of root")
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()
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
