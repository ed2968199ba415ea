"""A file or folder under its final name is always complete, with several writers and after failures."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from command import Notices, listing, raises
from small_artifacts import HITS, Rows, interrupted, open_output, run_table, scratch_in, write_folder, write_run

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts import DryRun
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.storage import MANIFEST, Kind, files, layout


def test_an_equal_call_is_up_to_date_and_keeps_the_bytes(tmp_path: Path, notices: Notices) -> None:
    path = write_run(tmp_path / "run.parquet", hits=10)
    before = path.read_bytes()
    again = open_output(path, hits=10)
    assert again.up_to_date
    assert path.read_bytes() == before
    assert notices.says("up-to-date", stage="search", path=path)


def test_an_up_to_date_output_gets_a_new_time_stamp_for_make(tmp_path: Path) -> None:
    for path in (write_run(tmp_path / "run.parquet"), write_folder(tmp_path / "index")):
        os.utime(path, (1, 1))
        open_output(path, kind=artifacts.read_manifest(path).kind)
        assert path.stat().st_mtime > 1


def test_other_options_are_refused_and_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.parquet", hits=10, k1=0.9)
    with raises("output-differs", path="run.parquet", options=["hits"], inputs=[]):
        open_output(path, hits=20, k1=0.9)


def test_a_changed_input_is_refused_and_named(tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("1\twords\n")
    path = write_run(tmp_path / "run.parquet", inputs={"queries": queries})
    assert open_output(path, inputs={"queries": queries}).up_to_date
    queries.write_text("1\tother words\n")
    with raises("output-differs", path="run.parquet", options=[], inputs=["queries"]):
        open_output(path, inputs={"queries": queries})


def test_a_moved_input_has_not_changed(tmp_path: Path) -> None:
    first = tmp_path / "queries.tsv"
    first.write_text("1\twords\n")
    path = write_run(tmp_path / "run.parquet", inputs={"queries": first})
    assert open_output(path, inputs={"queries": first.rename(tmp_path / "moved.tsv")}).up_to_date


def test_overwrite_repeats_the_work_even_without_a_change(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.parquet", hits=10)
    assert not open_output(path, hits=10, overwrite=True).up_to_date
    write_run(path, HITS[:1], hits=20, overwrite=True)
    assert artifacts.read_manifest(path).counts == {"rows": 1}


def test_a_file_of_another_program_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    path.write_text("my thesis")
    with raises("output-exists"):
        open_output(path)
    write_run(path, overwrite=True)
    assert runs.read_run(path).height == 3


def foreign_folder(path: Path) -> None:
    path.mkdir()
    open_output(path, kind=Kind.DENSE_INDEX, overwrite=True)  # an empty one is replaced
    (path / "thesis.tex").write_text("words")


def damaged_folder(path: Path) -> None:
    manifest = write_folder(path) / MANIFEST
    manifest.write_text(manifest.read_text()[:-20])


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.write_text("my thesis"), "foreign-output"),
        (foreign_folder, "foreign-output"),
        (damaged_folder, "damaged-manifest"),
    ],
)
def test_what_hybrid_did_not_write_is_never_replaced(
    workdir: Path, make: Callable[[Path], object], problem: str
) -> None:
    make(Path("index"))
    before = listing()
    for overwrite in (False, True):
        with raises(problem, path="index"):
            write_folder(Path("index"), overwrite=overwrite)
    assert listing() == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs the file system /proc")
def test_a_folder_in_which_no_file_can_be_created_is_not_called_in_use(tmp_path: Path) -> None:
    for place in ("/proc/x.parquet", "/proc/new/x.parquet"):
        with raises("not-writable", path="x.parquet"):
            open_output(Path(place))


def test_an_output_that_contains_an_input_is_refused_even_with_overwrite(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    (tmp_path / "x").mkdir()
    for output, source in (
        (folder, folder / "vectors.bin"),
        (folder, folder),
        (tmp_path / "x" / ".." / "data", folder),
    ):
        with raises("replaces-input", role="corpus"):
            open_output(output, kind=Kind.LEXICAL_INDEX, inputs={"corpus": source}, overwrite=True)
    assert (folder / "vectors.bin").exists()


def test_an_output_inside_the_folder_of_an_input_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "index")
    (tmp_path / "link").symlink_to(folder)
    for output in (folder / "run.parquet", tmp_path / "link" / "run.parquet"):
        with raises("inside-input", role="index", input="index"):
            open_output(output, inputs={"index": folder})


def test_an_output_inside_a_finished_artifact_is_refused(tmp_path: Path) -> None:
    """A foreign file in the folder would keep the artifact from being replaced."""
    index = write_folder(tmp_path / "index")
    (tmp_path / "link").symlink_to(index)
    (index / "runs").mkdir()
    for output in (index / "run.parquet", index / "runs" / "run.parquet", tmp_path / "link" / "run.parquet"):
        for overwrite in (False, True):
            with raises("inside-artifact", path="run.parquet", artifact="index"):
                open_output(output, overwrite=overwrite)
    (index / "runs").rmdir()
    write_run(tmp_path / "run.parquet")
    write_folder(index, other=1, overwrite=True)  # the artifact itself


def test_a_name_with_another_extension_is_refused(tmp_path: Path) -> None:
    with raises("other-suffix", path="run", expected=".parquet"):
        open_output(tmp_path / "run")
    with raises("other-suffix", path="w.parquet", expected=".json"):
        open_output(tmp_path / "w.parquet", kind=Kind.WEIGHTS)
    with raises("other-suffix", path="r", expected=".html"):
        open_output(tmp_path / "r", kind=Kind.REPORT)
    open_output(tmp_path / "run.trec", foreign=True)


def test_an_output_below_a_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises("not-a-folder", path="file"):
        open_output(tmp_path / "file" / "deep" / "run.parquet")


def test_a_dry_run_checks_everything_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.parquet"
    with artifacts.dry_run():
        with pytest.raises(DryRun) as stopped:
            open_output(path, hits=10)
        assert not stopped.value.output.up_to_date
        with raises("other-suffix"):
            open_output(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    write_run(path, hits=10)
    with artifacts.dry_run():
        with pytest.raises(DryRun) as stopped:
            open_output(path, hits=10)
        assert stopped.value.output.up_to_date
        with raises("output-differs"):
            open_output(path, hits=20)


class Trouble(Exception):
    pass


def failing(rows: Rows) -> Iterator[pa.Table]:
    yield run_table(rows)
    raise Trouble


@pytest.mark.parametrize("before", [None, HITS])
def test_a_failure_keeps_the_old_file_and_removes_the_scratch(tmp_path: Path, before: Rows | None) -> None:
    path = tmp_path / "run.parquet"
    if before:
        write_run(path, before)
    old = path.read_bytes() if before else None
    with pytest.raises(Trouble):
        open_output(path, overwrite=True).write(failing(HITS[:1]))
    assert (path.read_bytes() if before else None) == old
    assert scratch_in(tmp_path) == []
    assert path.exists() is bool(before)


def test_rows_of_another_schema_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        open_output(tmp_path / "run.parquet").write([pa.table({"qid": ["q"]})])
    assert not list(tmp_path.iterdir())


def test_a_failure_inside_a_folder_keeps_the_old_one_and_the_files_to_resume_from(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "index", "old")
    for attempt in (1, 2):
        found = interrupted(path, Trouble(), overwrite=True, hits=2)
        assert found is (attempt == 2), "the second attempt finds the shard of the first"
        assert (path / "vectors.bin").read_text() == "old"
    with open_output(path, kind=Kind.DENSE_INDEX, overwrite=True, hits=2).folder():
        pass
    assert sorted(file.name for file in path.iterdir()) == [MANIFEST, "shard"]
    assert scratch_in(tmp_path) == []


@pytest.mark.parametrize("part", ["", "{"])
def test_a_manifest_that_was_written_in_part_is_not_resumed_from(tmp_path: Path, part: str) -> None:
    """As after an error of the disk."""
    interrupted(tmp_path / "x", Trouble(), hits=2)
    (tmp_path / ".x.partial" / MANIFEST).write_text(part)
    with open_output(tmp_path / "x", kind=Kind.DENSE_INDEX, hits=2).folder() as (work, _):
        assert (work / "shard").exists()
        assert artifacts.find_manifest(work) is None


def test_an_unusable_input_leaves_no_scratch_folder(tmp_path: Path) -> None:
    interrupted(tmp_path / "index", InputError("row 7: has no docid"))
    assert not list(tmp_path.iterdir())


def test_files_of_a_run_with_other_options_are_not_resumed_from(tmp_path: Path) -> None:
    interrupted(tmp_path / "x", Trouble(), dim=8)
    with open_output(tmp_path / "x", kind=Kind.DENSE_INDEX, dim=16).folder() as (work, _):
        assert not (work / "shard").exists()


def test_hidden_files_are_removed_before_the_folder_is_renamed(tmp_path: Path) -> None:
    with open_output(tmp_path / "x", kind=Kind.ENCODER).folder(steps=3) as (work, counts):
        (work / ".checkpoint-7").mkdir()
        (work / ".checkpoint-7" / "state").write_text("x")
        (work / "model").write_text("x")
        counts["examples"] = 4
    assert sorted(file.name for file in (tmp_path / "x").iterdir()) == [MANIFEST, "model"]
    assert artifacts.read_manifest(tmp_path / "x").counts == {"steps": 3, "examples": 4}


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("write", [write_run, write_folder])
def test_an_artifact_is_replaced_and_a_link_to_it_stays(tmp_path: Path, link: bool, write: Callable[..., Path]) -> None:
    path = tmp_path / "x.parquet"
    write(tmp_path / "elsewhere.parquet" if link else path)
    if link:
        path.symlink_to(tmp_path / "elsewhere.parquet")
    write(path, overwrite=True, hits=2)
    assert artifacts.read_manifest(path).options == {"hits": 2}
    assert path.is_symlink() is link, "the target is replaced"
    assert scratch_in(tmp_path) == []


def test_an_artifact_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    run, index = write_run(tmp_path / "run.parquet"), write_folder(tmp_path / "index")
    for overwrite in (False, True):
        with raises("other-kind", path="run.parquet", kind="run", expected="dense index"):
            open_output(run, kind=Kind.DENSE_INDEX, overwrite=overwrite)
        with raises("other-kind", path="index", kind="dense index", expected="encoder"):
            open_output(index, kind=Kind.ENCODER, overwrite=overwrite)
    with raises("other-kind", path="run.parquet", expected="run"):
        open_output(run, foreign=True, overwrite=True)  # by `export`


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "thesis.tex").write_text("words")
    before = (folder / "thesis.tex").stat().st_mtime_ns
    yield folder / "thesis.tex"
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    assert (folder / "thesis.tex").read_text() == "words"
    assert (folder / "thesis.tex").stat().st_mtime_ns == before


def refused_as_planted(folder: Path, name: str) -> None:
    with pytest.raises(HybridError) as caught:
        write_folder(folder / "index")
    assert (caught.value.code, caught.value.exit_code) == ("planted-scratch-file", 1)
    assert caught.value.fields == {"path": folder / name}
    assert not (folder / "index").exists()


@pytest.mark.parametrize("name", [".index.partial", ".index.partial.lock", ".index.old"])
def test_a_link_under_the_name_of_a_scratch_file_is_refused(tmp_path: Path, victim: Path, name: str) -> None:
    for target in (victim, victim.parent, victim.parent / "new"):
        (tmp_path / name).symlink_to(target)
        refused_as_planted(tmp_path, name)
        (tmp_path / name).unlink()
    write_folder(tmp_path / "index")


def test_a_link_in_the_folder_of_an_interrupted_call_is_refused(tmp_path: Path, victim: Path) -> None:
    assert not interrupted(tmp_path / "index", OSError())
    for target in (victim, victim.parent):
        (tmp_path / ".index.partial" / "vectors.bin").symlink_to(target)
        refused_as_planted(tmp_path, ".index.partial/vectors.bin")
        (tmp_path / ".index.partial" / "vectors.bin").unlink()
    assert interrupted(tmp_path / "index", OSError())


def test_a_lock_that_is_no_plain_file_is_refused(tmp_path: Path, victim: Path) -> None:
    lock = tmp_path / ".index.partial.lock"
    os.link(victim, lock)
    refused_as_planted(tmp_path, lock.name)
    lock.unlink()
    lock.mkdir()
    refused_as_planted(tmp_path, lock.name)
    lock.rmdir()
    os.mkfifo(lock)
    refused_as_planted(tmp_path, lock.name)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".index.partial", ".index.partial/shard", ".index.partial.lock", ".index.old"])
def test_a_scratch_file_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    interrupted(tmp_path / "index", OSError())
    (tmp_path / ".index.old").mkdir()
    (tmp_path / ".index.partial.lock").touch()
    os.chown(tmp_path / name, 12345, -1)
    refused_as_planted(tmp_path, name)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(("owner", "linked"), [(0, True), (12345, False)])
def test_a_file_of_another_user_is_copied_and_never_linked(tmp_path: Path, owner: int, linked: bool) -> None:
    """Otherwise the scratch folder of a killed `append` or `delete` would be refused, and the owner could change it."""
    (tmp_path / "index").mkdir()
    file, target = tmp_path / "index" / "ids.bin", tmp_path / "shorter" / "ids.bin"
    file.write_bytes(b"ids")
    os.chown(file, owner, -1)
    files.hard_link(tmp_path / "index", tmp_path / "shorter")
    assert target.read_bytes() == b"ids"
    assert target.samefile(file) == linked
    assert target.stat().st_uid == 0


def test_an_output_that_is_up_to_date_stays_so_next_to_planted_files(tmp_path: Path, victim: Path) -> None:
    path = write_folder(tmp_path / "index")
    (tmp_path / ".index.partial.lock").symlink_to(victim)
    assert open_output(path, kind=Kind.DENSE_INDEX).up_to_date


def test_an_output_whose_input_was_replaced_meanwhile_is_refused(tmp_path: Path) -> None:
    queries, run, index = tmp_path / "queries.tsv", tmp_path / "run.parquet", tmp_path / "index"
    queries.write_text("1\twords\n")
    output = open_output(run, inputs={"queries": queries})
    queries.write_text("1\twords\n")  # the same content
    output.write([run_table()])
    output = open_output(run, inputs={"queries": queries}, overwrite=True, hits=2)
    queries.write_text("1\tother words\n")
    with pytest.raises(HybridError) as caught:
        output.write([run_table()])
    assert (caught.value.code, caught.value.exit_code) == ("input-replaced", 1)
    assert caught.value.fields == {"path": queries}
    assert artifacts.read_manifest(run).options == {}, "the old output is kept"
    folder = open_output(index, kind=Kind.DENSE_INDEX, inputs={"queries": queries}).folder()
    (folder.__enter__()[0] / "shard").write_text("of the first version")
    queries.write_text("1\twords\n")
    with raises("input-replaced", HybridError):
        folder.__exit__(None, None, None)
    assert scratch_in(tmp_path) == [], "no call may resume from shards of two versions"


def test_a_folder_input_is_compared_by_its_manifest(tmp_path: Path) -> None:
    index = write_folder(tmp_path / "index", "old")
    output = open_output(tmp_path / "run.parquet", inputs={"index": index})
    write_folder(index, "new", overwrite=True)
    with raises("input-replaced", HybridError):
        output.write([run_table()])


def test_inputs_may_be_replaced_after_they_were_read(tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("1\twords\n")
    output = open_output(tmp_path / "index", kind=Kind.DENSE_INDEX, inputs={"queries": queries})
    with output.folder() as (work, _):
        output.inputs_are_read()
        queries.write_text("1\tother words\n")
        (work / "vectors.bin").write_text("of the first version")
    output = open_output(tmp_path / "x", kind=Kind.ENCODER, inputs={"queries": queries})
    folder = output.folder()
    work = folder.__enter__()[0]
    (work / layout.CHECKPOINT).mkdir()
    queries.write_text("1\twords\n")
    with raises("input-replaced", HybridError):
        output.inputs_are_read()
    assert (work / layout.CHECKPOINT).is_dir(), "the checkpoint of an interrupted call is kept"


def test_an_output_is_never_older_than_its_inputs(tmp_path: Path) -> None:
    """For make, after the clock went back."""
    queries = tmp_path / "queries.tsv"
    queries.write_text("1\twords\n")
    os.utime(queries, (1 << 32, 1 << 32))
    for _ in range(2):  # written, then up to date
        for path, kind in ((tmp_path / "run.parquet", Kind.RUN), (tmp_path / "index", Kind.DENSE_INDEX)):
            output = open_output(path, inputs={"queries": queries}, kind=kind)
            if not output.up_to_date and kind == Kind.RUN:
                output.write([run_table()])
            elif not output.up_to_date:
                with output.folder():
                    pass
            assert path.stat().st_mtime >= queries.stat().st_mtime
            os.utime(path, (1, 1))
