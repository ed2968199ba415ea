"""What is on disk: manifests, checks, content hashes; and that a name which exists is a whole artifact."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import hybrid

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts import FORMAT, MANIFEST, SCHEMAS, DryRun, Kind, claims
from hybrid_cli.errors import HybridError, InputError

HITS = [("q1", "a", 1, 3.0), ("q1", "b", 2, 2.0), ("q2", "a", 1, 1.0)]


def run_table(rows=HITS) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.table(columns, schema=SCHEMAS[Kind.RUN])


def claim(path: Path, *, inputs=None, overwrite=False, foreign=False, kind=Kind.RUN, **options) -> artifacts.Claim:
    return artifacts.claim(
        path, kind, "search", inputs=inputs or {}, options=options, overwrite=overwrite, foreign=foreign
    )


def write_run(path: Path, rows=HITS, **settings) -> Path:
    claim(path, **settings).write([run_table(rows)])
    return path


def write_folder(path: Path, content: str = "whole", **settings) -> Path:
    with claim(path, kind=Kind.DENSE_INDEX, **settings).folder() as (work, _):
        (work / "vectors.bin").write_text(content)
    return path


def interrupted(path: Path, error: Exception, **settings) -> bool:
    """Begin a folder, write a shard and stop with `error`; whether that shard was there already."""
    found = False
    try:
        with claim(path, kind=Kind.DENSE_INDEX, **settings).folder() as (work, _):
            found = (work / "shard").exists()
            (work / "shard").write_text("done")
            raise error
    except type(error):
        return found


def scratch_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


# ----------------------------------------------------------------------------------------------------------- manifests


def test_a_manifest_says_what_an_artifact_is_and_where_it_came_from(tmp_path):
    index = write_folder(tmp_path / "index")
    run = write_run(tmp_path / "run.parquet", inputs={"index": index}, hits=10)
    manifest = artifacts.read_manifest(run, Kind.RUN)
    assert (manifest.kind, manifest.stage, manifest.options) == (Kind.RUN, "search", {"hits": 10})
    assert manifest.inputs["index"] == {
        "path": str(index),
        "kind": "dense index",
        "fingerprint": artifacts.read_manifest(index).fingerprint,
    }
    assert manifest.counts == {"rows": 3}
    assert {"hybrid", "pyarrow", "polars", "torch"} <= set(manifest.versions)


def test_parquet_json_and_folders_all_carry_theirs(tmp_path):
    weights = tmp_path / "w.json"
    claim(weights, kind=Kind.WEIGHTS, method="minmax").write_json({"weights": [1, 2]}, runs=2)
    assert json.loads(weights.read_text())["weights"] == [1, 2]
    for path in (weights, write_run(tmp_path / "r.parquet"), write_folder(tmp_path / "index")):
        assert artifacts.read_manifest(path).stage == "search"


def test_no_file_holds_the_clock_so_equal_work_is_equal_bytes(tmp_path):
    first, second = (write_run(tmp_path / f"{name}.parquet", hits=10) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_foreign_files_have_no_manifest(tmp_path):
    pq.write_table(run_table(), tmp_path / "foreign.parquet")
    (tmp_path / "run.trec").write_text("q1 Q0 a 1 3 t\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "some.json").write_text("[1]")
    for name in ("foreign.parquet", "run.trec", "folder", "some.json"):
        assert artifacts.find_manifest(tmp_path / name) is None
        with pytest.raises(InputError, match="has no manifest, so it was not written by hybrid; a run is needed here"):
            artifacts.read_manifest(tmp_path / name, Kind.RUN)


def test_a_newer_format_is_refused(tmp_path):
    folder = write_folder(tmp_path / "index")
    fields = json.loads((folder / MANIFEST).read_text()) | {"format": FORMAT + 1}
    (folder / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(InputError, match=rf"has format {FORMAT + 1}, this hybrid reads up to {FORMAT}"):
        artifacts.read_manifest(folder)


@pytest.mark.parametrize("damage", [b"", b"{", b"[1, 2]", b"{}", b'{"kind": "cake"}', b"\xff\xfe"])
def test_a_damaged_manifest_is_named(tmp_path, damage):
    folder = write_folder(tmp_path / "index")
    (folder / MANIFEST).write_bytes(damage)
    with pytest.raises(InputError, match=r"index: its manifest is damaged .*; make it again"):
        artifacts.read_manifest(folder)


# ------------------------------------------------------------------------------------------------------------- checking


def foreign(path: Path, frame: pl.DataFrame) -> Path:
    frame.write_parquet(path)
    return path


def test_check_table_names_the_file_what_it_is_and_what_is_needed(tmp_path):
    run = write_run(tmp_path / "run.parquet")
    (tmp_path / "cut.parquet").write_bytes(run.read_bytes()[:-20])
    (tmp_path / "run.txt").write_text("q1 Q0 a 1 3 t\n")
    (tmp_path / "empty").mkdir()
    for name, kind, words in (
        ("missing.parquet", Kind.RUN, "missing.parquet: no such file or folder"),
        ("cut.parquet", Kind.RUN, r"cut.parquet: is not a whole Parquet file \(.*\); make it again"),
        ("run.parquet", Kind.QRELS, r"run.parquet: is a run \(made by `search`\); a qrels file is needed here"),
        ("run.txt", Kind.RUN, "run.txt: is not a Parquet file; a run file is needed here"),
        ("empty", Kind.RUN, "empty: is a folder; a run file is needed here"),
    ):
        with pytest.raises(InputError, match=words):
            artifacts.check_table(tmp_path / name, kind)


def test_an_index_is_not_a_run(tmp_path):
    with pytest.raises(InputError, match="index: is a dense index folder; a run file is needed here"):
        artifacts.check_table(write_folder(tmp_path / "index"), Kind.RUN)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"score": None},
            r"has no column 'score' \(found: qid, docid, rank\); a run file needs qid, docid, rank, score",
        ),
        ({"qid": pl.Int64}, "column 'qid' is int64, a run needs string"),
        ({"rank": pl.Float64}, "column 'rank' is double, a run needs int32"),
        ({"score": pl.String}, "column 'score' is .*string.*, a run needs float"),
    ],
)
def test_wrong_columns_are_named_with_what_is_needed(tmp_path, columns, words):
    frame = pl.DataFrame(pl.from_arrow(run_table())).with_columns(qid=pl.lit("7"))
    for name, kind in columns.items():
        frame = frame.drop(name) if kind is None else frame.cast({name: kind})
    with pytest.raises(InputError, match=words):
        artifacts.check_table(foreign(tmp_path / "x.parquet", frame), Kind.RUN)


def test_whoever_wrote_it_large_strings_other_integers_and_more_columns_are_welcome(tmp_path):
    frame = pl.DataFrame({"more": [1], "score": [2], "rank": [1], "docid": ["a"], "qid": ["q"]})
    file = foreign(tmp_path / "x.parquet", frame)
    assert artifacts.check_table(file, Kind.RUN) == file
    assert runs.read_run(file).rows() == [("q", "a", 1, 2.0)]
    queries = foreign(tmp_path / "queries.parquet", pl.DataFrame({"qid": ["q"], "text": ["words"]}))
    assert artifacts.check_table(queries, Kind.QUERIES) == queries, "answers may be absent"


# --------------------------------------------------------------------------------------------------------- fingerprints


def test_a_fingerprint_does_not_depend_on_how_rows_arrive(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "_ROWS_PER_GROUP", 4)
    table = run_table([(f"q{i}", "ü" * (i % 3), i, float(i)) for i in range(11)])
    whole, single, odd = (tmp_path / f"{name}.parquet" for name in ("whole", "single", "odd"))
    claim(whole).write([table])
    claim(single).write(table.slice(i, 1) for i in range(11))
    claim(odd).write([table.slice(0, 5), table.slice(5, 0), *table.slice(5).to_batches(max_chunksize=2)])
    assert whole.read_bytes() == single.read_bytes() == odd.read_bytes()
    assert pq.ParquetFile(whole).metadata.num_row_groups == 3


def test_a_fingerprint_changes_with_the_content_and_not_with_the_options(tmp_path):
    def fingerprint(rows, **options):
        return artifacts.fingerprint(write_run(tmp_path / "x.parquet", rows, overwrite=True, **options))

    first = fingerprint(HITS, hits=1)
    assert fingerprint(HITS, hits=2) == first
    for row in (("q1", "a", 1, 3.0000002), ("q1", "b", 1, 3.0), ("Q1", "a", 1, 3.0)):
        assert fingerprint([row, *HITS[1:]]) != first
    assert fingerprint(HITS[::-1]) != first
    assert fingerprint(HITS[:2]) != first


def test_a_folders_fingerprint_is_of_names_and_contents_but_not_of_what_is_hidden_or_ignored(tmp_path):
    def fingerprint(files, ignore=()):
        folder = tmp_path / "x"
        with claim(folder, kind=Kind.LEXICAL_INDEX, overwrite=True).folder(ignore=ignore) as (work, _):
            for name, content in files.items():
                (work / name).parent.mkdir(exist_ok=True)
                (work / name).write_text(content)
        return artifacts.fingerprint(folder)

    first = fingerprint({"a": "1", "b/c": "2"})
    assert fingerprint({"b/c": "2", "a": "1"}) == first
    assert fingerprint({"a": "1", "b/c": "2", ".state": "3"}) == first
    assert fingerprint({"a": "1", "b/c": "2", "lucene/x": "3"}, ignore=["lucene"]) == first
    for other in ({"a": "1", "b/c": "3"}, {"a": "1", "b/d": "2"}, {"a": "1"}, {"a": "1", "b/c": "2", "d": ""}):
        assert fingerprint(other) != first


def test_a_folders_fingerprint_does_not_depend_on_the_order_of_its_listing(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text(name)
    listed = sorted(tmp_path.iterdir())
    found = set()
    for order in (listed, listed[::-1]):
        monkeypatch.setattr(Path, "rglob", lambda *_, order=order: iter(order))
        found.add(artifacts.hash_folder(tmp_path))
    assert len(found) == 1


# ---------------------------------------------------------------------------------------------------------------- claim


def test_the_same_call_again_is_up_to_date_and_leaves_the_bytes(tmp_path, capsys):
    path = write_run(tmp_path / "run.parquet", hits=10)
    before = path.read_bytes()
    again = claim(path, hits=10)
    assert again.up_to_date
    assert path.read_bytes() == before
    assert capsys.readouterr().err == f"search: {path} is up to date\n"


def test_what_is_up_to_date_is_newer_than_its_inputs_for_make(tmp_path):
    for path in (write_run(tmp_path / "run.parquet"), write_folder(tmp_path / "index")):
        os.utime(path, (1, 1))
        claim(path, kind=artifacts.read_manifest(path).kind)
        assert path.stat().st_mtime > 1


def test_other_options_are_refused_and_named(tmp_path):
    path = write_run(tmp_path / "run.parquet", hits=10, k1=0.9)
    with pytest.raises(InputError, match=r"was made differently: hits=10 then, 20 now; pass --overwrite to replace it"):
        claim(path, hits=20, k1=0.9)


def test_a_changed_input_is_refused_and_named(tmp_path):
    queries = tmp_path / "queries.tsv"
    queries.write_text("1\twords\n")
    path = write_run(tmp_path / "run.parquet", inputs={"queries": queries})
    assert claim(path, inputs={"queries": queries}).up_to_date
    queries.write_text("1\tother words\n")
    with pytest.raises(InputError, match="was made differently: input 'queries' has changed"):
        claim(path, inputs={"queries": queries})


def test_an_input_that_only_moved_has_not_changed(tmp_path):
    first = tmp_path / "queries.tsv"
    first.write_text("1\twords\n")
    path = write_run(tmp_path / "run.parquet", inputs={"queries": first})
    assert claim(path, inputs={"queries": first.rename(tmp_path / "moved.tsv")}).up_to_date


def test_overwrite_does_the_work_again_also_where_nothing_changed(tmp_path):
    path = write_run(tmp_path / "run.parquet", hits=10)
    assert not claim(path, hits=10, overwrite=True).up_to_date
    write_run(path, HITS[:1], hits=20, overwrite=True)
    assert artifacts.read_manifest(path).counts == {"rows": 1}


def test_what_others_wrote_is_refused_until_overwrite(tmp_path):
    path = tmp_path / "run.parquet"
    path.write_text("my thesis")
    with pytest.raises(InputError, match="is there already, without a manifest of hybrid"):
        claim(path)
    write_run(path, overwrite=True)
    assert runs.read_run(path).height == 3


def test_a_folder_that_hybrid_did_not_write_is_never_replaced(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    claim(home, kind=Kind.DENSE_INDEX, overwrite=True)  # an empty one may be
    (home / "thesis.tex").write_text("words")
    with pytest.raises(InputError, match="home: is a folder that hybrid did not write; remove it, or name another"):
        claim(home, kind=Kind.DENSE_INDEX, overwrite=True)


def test_an_output_that_holds_an_input_is_refused_whatever_is_said(tmp_path):
    folder = write_folder(tmp_path / "data")
    for output, source in (
        (folder, folder / "vectors.bin"),
        (folder, folder),
        (tmp_path / "x" / ".." / "data", folder),
    ):
        with pytest.raises(InputError, match=r"would remove the input 'corpus' .*; name another output"):
            claim(output, kind=Kind.LEXICAL_INDEX, inputs={"corpus": source}, overwrite=True)
    assert (folder / "vectors.bin").exists()


def test_a_name_that_manifests_are_not_looked_for_in_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"run: needs a name that ends with \.parquet"):
        claim(tmp_path / "run")
    with pytest.raises(InputError, match=r"w\.parquet: needs a name that ends with \.json"):
        claim(tmp_path / "w.parquet", kind=Kind.WEIGHTS)
    claim(tmp_path / "run.trec", foreign=True)


def test_an_output_below_a_file_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: is a file, so .*run\.parquet cannot stand in it"):
        claim(tmp_path / "file" / "deep" / "run.parquet")


def test_a_dry_run_checks_everything_and_writes_nothing(tmp_path):
    path = tmp_path / "new" / "run.parquet"
    with artifacts.dry_run():
        with pytest.raises(DryRun) as stopped:
            claim(path, hits=10)
        assert not stopped.value.claim.up_to_date
        with pytest.raises(InputError, match="needs a name"):
            claim(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    write_run(path, hits=10)
    with artifacts.dry_run():
        with pytest.raises(DryRun) as stopped:
            claim(path, hits=10)
        assert stopped.value.claim.up_to_date
        with pytest.raises(InputError, match="made differently"):
            claim(path, hits=20)


# ------------------------------------------------------------------------------------------------------------ atomicity


class Trouble(Exception):
    pass


def failing(rows):
    yield run_table(rows)
    raise Trouble


@pytest.mark.parametrize("before", [None, HITS])
def test_a_failure_while_writing_leaves_what_was_there_and_no_scratch(tmp_path, before):
    path = tmp_path / "run.parquet"
    if before:
        write_run(path, before)
    old = path.read_bytes() if before else None
    with pytest.raises(Trouble):
        claim(path, overwrite=True).write(failing(HITS[:1]))
    assert (path.read_bytes() if before else None) == old
    assert scratch_in(tmp_path) == []
    assert path.exists() is bool(before)


def test_rows_of_another_schema_are_not_written(tmp_path):
    with pytest.raises(KeyError):
        claim(tmp_path / "run.parquet").write([pa.table({"qid": ["q"]})])
    assert not list(tmp_path.iterdir())


def test_a_failure_inside_a_folder_leaves_the_old_one_and_what_to_go_on_with(tmp_path):
    path = write_folder(tmp_path / "index", "old")
    for attempt in (1, 2):
        found = interrupted(path, Trouble(), overwrite=True, hits=2)
        assert found is (attempt == 2), "the second attempt finds what the first has done"
        assert (path / "vectors.bin").read_text() == "old"
    with claim(path, kind=Kind.DENSE_INDEX, overwrite=True, hits=2).folder():
        pass
    assert sorted(file.name for file in path.iterdir()) == [MANIFEST, "shard"]
    assert scratch_in(tmp_path) == []


def test_an_unusable_input_leaves_no_scratch_folder(tmp_path):
    interrupted(tmp_path / "index", InputError("row 7: has no docid"))
    assert not list(tmp_path.iterdir())


def test_what_was_left_by_other_options_is_not_gone_on_with(tmp_path):
    interrupted(tmp_path / "x", Trouble(), dim=8)
    with claim(tmp_path / "x", kind=Kind.DENSE_INDEX, dim=16).folder() as (work, _):
        assert not (work / "shard").exists()


def test_hidden_state_is_gone_when_the_folder_takes_its_name(tmp_path):
    with claim(tmp_path / "x", kind=Kind.ENCODER).folder(steps=3) as (work, counts):
        (work / ".checkpoint-7").mkdir()
        (work / ".checkpoint-7" / "state").write_text("x")
        (work / "model").write_text("x")
        counts["examples"] = 4
    assert sorted(file.name for file in (tmp_path / "x").iterdir()) == [MANIFEST, "model"]
    assert artifacts.read_manifest(tmp_path / "x").counts == {"steps": 3, "examples": 4}


@pytest.mark.parametrize("old", ["file", "folder", "link"])
@pytest.mark.parametrize("new", ["file", "folder"])
def test_files_and_folders_replace_each_other(tmp_path, old, new):
    path = tmp_path / "x.parquet"
    if old == "file":
        write_run(path)
    else:
        write_folder(path if old == "folder" else tmp_path / "elsewhere")
    if old == "link":
        path.symlink_to(tmp_path / "elsewhere")
    (write_run if new == "file" else write_folder)(path, overwrite=True)
    assert path.is_file() is (new == "file")
    assert not path.is_symlink()
    assert scratch_in(tmp_path) == []


def test_a_replacement_that_was_cut_between_its_two_renames_is_undone(tmp_path):
    path = write_folder(tmp_path / "index", "old")
    path.rename(tmp_path / ".index.old")
    assert claim(path, kind=Kind.DENSE_INDEX).up_to_date
    assert (path / "vectors.bin").read_text() == "old"
    assert scratch_in(tmp_path) == []


# --------------------------------------------------------------------------------------------------------- two writers


def hold(path: Path, folder: bool, ready, release) -> None:
    """Another process in the middle of writing."""

    def rows():
        ready.set()
        release.wait(60)
        yield run_table()

    if not folder:
        claim(path).write(rows())
        return
    with claim(path, kind=Kind.DENSE_INDEX).folder():
        next(rows())


@pytest.mark.parametrize("folder", [True, False])
def test_a_second_writer_is_refused_while_the_first_one_writes(tmp_path, folder):
    path = tmp_path / ("index" if folder else "run.parquet")
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    first = context.Process(target=hold, args=(path, folder, ready, release))
    first.start()
    try:
        assert ready.wait(60)
        with pytest.raises(HybridError, match="another hybrid process is writing this output; wait for it, or stop it"):
            (write_folder if folder else write_run)(path)
        assert not path.exists()
    finally:
        release.set()
        first.join()
    assert first.exitcode == 0
    assert artifacts.find_manifest(path) is not None
    assert scratch_in(tmp_path) == []


@pytest.mark.parametrize("folder", [True, False])
def test_a_killed_writer_keeps_nobody_out(tmp_path, folder):
    path = tmp_path / ("index" if folder else "run.parquet")
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    first = context.Process(target=hold, args=(path, folder, ready, release))
    first.start()
    assert ready.wait(60)
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    assert scratch_in(tmp_path)
    (write_folder if folder else write_run)(path)
    assert scratch_in(tmp_path) == []


# ---------------------------------------------------------------------------------------------- permissions, full disks


@contextmanager
def without_privileges():
    """Root may read and write whatever the permissions say; within this context it may not."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root has no permissions to lack")
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
def read_only(tmp_path, monkeypatch):
    """The current folder, with a run and without the permission to write."""
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


def test_a_folder_that_may_not_be_written_to_is_refused_before_any_work(read_only):
    with without_privileges(), pytest.raises(InputError, match="read-only: may not be written to; name another output"):
        claim(Path("deep/new.parquet"))


def test_what_is_up_to_date_may_be_read_only(read_only):
    with without_privileges():
        assert claim(Path("run.parquet"), hits=10).up_to_date


def test_a_file_that_may_not_be_read_is_one_line(read_only):
    Path("foreign.parquet").chmod(0)
    with without_privileges():
        done = hybrid("inspect", "foreign.parquet")
    assert (done.code, done.err) == (2, "hybrid: foreign.parquet: may not be read; change its permissions\n")


def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path):
    """A limit on the size of files stands for the disk, which a test cannot fill."""
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
    assert "hybrid: the output: file too large; nothing was replaced" in done.stderr
    assert output.read_text() == "old"
    assert scratch_in(tmp_path) == []


# ----------------------------------------------------------------------------------------------------------- bad runs


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_scores_that_are_no_numbers_are_refused_with_row_and_ids(tmp_path, bad):
    frame = pl.DataFrame(pl.from_arrow(run_table()))
    frame = frame.with_columns(score=pl.Series([3.0, bad, 1.0], dtype=pl.Float32))
    with pytest.raises(InputError, match=r"x\.parquet: 1 scores are not finite.* row 2 \(query q1, document b\)"):
        runs.read_run(foreign(tmp_path / "x.parquet", frame))


def test_a_document_twice_for_a_query_is_refused_with_row_and_ids(tmp_path):
    frame = pl.DataFrame(pl.from_arrow(run_table([*HITS, ("q1", "b", 3, 0.5)])))
    with pytest.raises(InputError, match=r"x\.parquet: document b stands more than once for query q1 \(row 2\)"):
        runs.read_run(foreign(tmp_path / "x.parquet", frame))


@pytest.mark.parametrize("column", ["qid", "docid"])
def test_a_hit_without_an_id_is_refused(tmp_path, column):
    frame = pl.DataFrame(pl.from_arrow(run_table())).with_columns(
        pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise(column).alias(column)
    )
    with pytest.raises(InputError, match=rf"x\.parquet, row 2: has no {column}"):
        runs.read_run(foreign(tmp_path / "x.parquet", frame))


def test_ranks_count_from_one_whoever_counted_them(tmp_path):
    lines = ["q1 Q0 a 0 5 t", "", "q1 Q0 b 1 4 t", "q2 Q0 c 7 3 t", "q2 Q0 a 9 9 t"]
    (tmp_path / "run.trec").write_text("\n".join(lines) + "\n")
    found = runs.read_run(tmp_path / "run.trec")
    assert found.rows() == [("q1", "a", 1, 5.0), ("q1", "b", 2, 4.0), ("q2", "c", 1, 3.0), ("q2", "a", 2, 9.0)]
    assert found.schema["rank"] == pl.Int32


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"q1 Q0 a 1 5 t\n\nq1 Q0 b 2\n", "run.trec, line 3: 4 fields; a TREC run has six"),
        (b"q1 Q0 \xff 1 5 t\n", "run.trec: is not a text file of a TREC run"),
        (b"PAR1\x00\x01\x01\xfe\n", "run.trec: is not a text file of a TREC run"),
        (b"q1 Q0 a 1 high t\n", "scores are not finite numbers"),
    ],
)
def test_a_file_that_is_no_trec_run_is_refused_with_its_line(tmp_path, content, words):
    (tmp_path / "run.trec").write_bytes(content)
    with pytest.raises(InputError, match=words):
        runs.read_run(tmp_path / "run.trec")
