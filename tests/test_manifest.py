"""Manifests, checked reads and content hashes."""

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from command import Refusal, raises, refusal
from packaging.version import Version
from small_artifacts import HITS, Rows, foreign, open_output, run_table, write_folder, write_run

from hybrid_cli import artifacts, runs, storage
from hybrid_cli.storage import Kind, tables
from hybrid_cli.version import is_later


def test_a_manifest_holds_kind_stage_options_and_inputs(tmp_path: Path) -> None:
    index = write_folder(tmp_path / "index")
    run = write_run(tmp_path / "run.parquet", inputs={"index": index}, hits=10)
    manifest = artifacts.read_manifest(run, Kind.RUN)
    assert (manifest.kind, manifest.stage, manifest.options) == (Kind.RUN, "search", {"hits": 10})
    assert manifest.inputs["index"] == {
        "path": "index",
        "kind": "dense index",
        "fingerprint": artifacts.read_manifest(index).fingerprint,
    }
    assert manifest.counts == {"rows": 3}
    assert {"hybrid", "pyarrow", "polars", "torch"} <= set(manifest.versions)


def test_parquet_json_html_and_folders_have_manifests(tmp_path: Path) -> None:
    weights, page = tmp_path / "w.json", tmp_path / "r.html"
    open_output(weights, kind=Kind.WEIGHTS, method="minmax").write_json({"weights": [1, 2]}, runs=2)
    assert json.loads(weights.read_text())["weights"] == [1, 2]
    open_output(page, kind=Kind.REPORT, title="</script><b>").write_html("<html><head></head><body>1 < 2</body></html>")
    assert page.read_text().count("</script>") == 1
    for path in (weights, page, write_run(tmp_path / "r.parquet"), write_folder(tmp_path / "index")):
        assert artifacts.read_manifest(path).stage == "search"
    assert artifacts.read_manifest(page).options == {"title": "</script><b>"}
    assert open_output(page, kind=Kind.REPORT, title="</script><b>").up_to_date


def test_equal_calls_give_equal_bytes(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / f"{name}.parquet", hits=10) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_foreign_files_have_no_manifest(tmp_path: Path) -> None:
    pq.write_table(run_table(), tmp_path / "foreign.parquet")
    (tmp_path / "run.trec").write_text("q1 Q0 a 1 3 t\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "some.json").write_text("[1]")
    (tmp_path / "some.html").write_text("<html></html>")
    for name in ("foreign.parquet", "run.trec", "folder", "some.json", "some.html"):
        assert artifacts.find_manifest(tmp_path / name) is None
        with raises("no-manifest", expected="run"):
            artifacts.read_manifest(tmp_path / name, Kind.RUN)


def test_check_table_names_the_file_its_kind_and_the_kind_that_is_needed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet")
    (tmp_path / "cut.parquet").write_bytes(run.read_bytes()[:-20])
    (tmp_path / "run.txt").write_text("q1 Q0 a 1 3 t\n")
    (tmp_path / "empty").mkdir()
    for name, kind, problem in (
        ("missing.parquet", Kind.RUN, "no-such-file"),
        ("cut.parquet", Kind.RUN, "damaged"),
        ("run.parquet", Kind.QRELS, refusal("other-kind", kind="run", expected="qrels")),
        ("run.txt", Kind.RUN, refusal("not-parquet", expected="run")),
        ("run.txt", Kind.CORPUS, refusal("not-parquet", expected="corpus")),
        ("empty", Kind.RUN, refusal("other-kind", expected="run")),
    ):
        with raises(problem, path=name):
            storage.check_table(tmp_path / name, kind)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"score": None}, refusal("no-such-column", column="score")),
        ({"qid": pl.Float64}, refusal("other-type", column="qid")),
        ({"rank": pl.Float64}, refusal("other-type", column="rank")),
        ({"score": pl.String}, refusal("other-type", column="score")),
    ],
)
def test_wrong_columns_are_named_with_their_type(
    tmp_path: Path, columns: dict[str, Any], problem: str | Refusal
) -> None:
    frame = pl.DataFrame(pl.from_arrow(run_table())).with_columns(qid=pl.lit("7"))
    for name, kind in columns.items():
        frame = frame.drop(name) if kind is None else frame.cast({name: kind})
    with raises(problem):
        storage.check_table(foreign(tmp_path / "x.parquet", frame), Kind.RUN)


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    table = run_table()
    pq.write_table(table.append_column("docid", table["qid"]), tmp_path / "x.parquet")
    with raises("repeated-column", column="docid"):
        storage.check_table(tmp_path / "x.parquet", Kind.RUN)


def test_tables_of_others_may_have_large_strings_other_integers_and_more_columns(tmp_path: Path) -> None:
    frame = pl.DataFrame({"more": [1], "score": [2], "rank": [1], "docid": ["a"], "qid": ["q"]})
    file = foreign(tmp_path / "x.parquet", frame)
    assert storage.check_table(file, Kind.RUN) == file
    assert runs.read_run(file).rows() == [("q", "a", 1, 2.0)]
    queries = foreign(tmp_path / "queries.parquet", pl.DataFrame({"qid": ["q"], "text": ["words"]}))
    assert storage.check_table(queries, Kind.QUERIES) == queries, "answers may be absent"


def test_a_fingerprint_does_not_depend_on_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 4)
    table = run_table([(f"q{i}", "ü" * (i % 3), i, float(i)) for i in range(11)])
    whole, single, odd = (tmp_path / f"{name}.parquet" for name in ("whole", "single", "odd"))
    open_output(whole).write([table])
    open_output(single).write(table.slice(i, 1) for i in range(11))
    open_output(odd).write([table.slice(0, 5), table.slice(5, 0), *table.slice(5).to_batches(max_chunksize=2)])
    assert whole.read_bytes() == single.read_bytes() == odd.read_bytes()
    assert pq.ParquetFile(whole).metadata.num_row_groups == 3


def test_a_fingerprint_changes_with_the_content_and_not_with_the_options(tmp_path: Path) -> None:
    def fingerprint(rows: Rows, **options: Any) -> str:
        return storage.fingerprint(write_run(tmp_path / "x.parquet", rows, overwrite=True, **options))

    first = fingerprint(HITS, hits=1)
    assert fingerprint(HITS, hits=2) == first
    for row in (("q1", "a", 1, 3.0000002), ("q1", "b", 1, 3.0), ("Q1", "a", 1, 3.0)):
        assert fingerprint([row, *HITS[1:]]) != first
    assert fingerprint(HITS[::-1]) != first
    assert fingerprint(HITS[:2]) != first


def test_the_fingerprint_of_a_folder_covers_names_and_contents_except_hidden_and_ignored_files(tmp_path: Path) -> None:
    def fingerprint(files: dict[str, str], ignore: Sequence[str] = ()) -> str:
        folder = tmp_path / "x"
        with open_output(folder, kind=Kind.LEXICAL_INDEX, overwrite=True).folder(ignore=ignore) as (work, _):
            for name, content in files.items():
                (work / name).parent.mkdir(exist_ok=True)
                (work / name).write_text(content)
        return storage.fingerprint(folder)

    first = fingerprint({"a": "1", "b/c": "2"})
    assert fingerprint({"b/c": "2", "a": "1"}) == first
    assert fingerprint({"a": "1", "b/c": "2", ".state": "3"}) == first
    assert fingerprint({"a": "1", "b/c": "2", "lucene/x": "3"}, ignore=["lucene"]) == first
    for other in ({"a": "1", "b/c": "3"}, {"a": "1", "b/d": "2"}, {"a": "1"}, {"a": "1", "b/c": "2", "d": ""}):
        assert fingerprint(other) != first


def test_the_fingerprint_of_a_folder_has_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    listed = sorted(tmp_path.iterdir())
    found = set()
    for order in (listed, listed[::-1]):
        monkeypatch.setattr(Path, "rglob", lambda *_, order=order: iter(order))
        found.add(storage.hash_folder(tmp_path))
    assert len(found) == 1


def test_versions_have_the_order_of_packages() -> None:
    versions = ["0.2.0", "0.3.0.dev0", "0.3.0.dev1", "0.3.0a1", "0.3.0b2", "0.3.0rc1", "0.3.0", "0.10.0", "1.0.0"]
    assert versions == sorted(versions, key=Version)
    for first, second in combinations(versions, 2):
        assert (is_later(second, first), is_later(first, second), is_later(first, first)) == (True, False, False)
    assert not is_later("unknown", "0.2.0")
    assert is_later("99.0.0")
