"""Runs in files: forms, order, ranks, damage; the texts that belong to a run."""

import gzip
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import Notices, Refusal, raises, ran, refusal
from hypothesis import given
from hypothesis import strategies as st
from small_artifacts import HITS, open_output, run_table, write_run
from tiny_collection import write_lines

from hybrid_cli import runs
from hybrid_cli.collections import collection
from hybrid_cli.collections.readers.queries import text_id
from hybrid_cli.errors import HybridError
from hybrid_cli.runs import run as reading

IDS = st.text(st.characters(exclude_categories=("Cs", "Z", "C")), min_size=1, max_size=20)
SCORES = st.floats(-(2.0**90), 2.0**90, width=32)
TABLES = st.dictionaries(IDS, st.dictionaries(IDS, SCORES, min_size=1, max_size=6), max_size=6)
SEEDS = st.integers(0, 1 << 30)


def table_of(hits: dict[str, dict[str, float]]) -> pl.DataFrame:
    rows = [(qid, docid, score) for qid, found in hits.items() for docid, score in found.items()]
    return runs.ranked(pl.DataFrame(rows, {"qid": pl.String, "docid": pl.String, "score": pl.Float32}, orient="row"))


@contextmanager
def small_blocks(rows: int) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(reading, "BLOCK_ROWS", rows)
        patch.setattr("hybrid_cli.runs.files.BLOCK_ROWS", rows)
        patch.setattr("hybrid_cli.runs.text.TEXT_BYTES", 16 * rows)
        yield Path(folder)


@given(TABLES, st.integers(1, 7))
def test_a_run_of_hybrid_is_read_unchanged_in_blocks_and_whole(hits: dict[str, dict[str, float]], rows: int) -> None:
    table = table_of(hits)
    with small_blocks(rows) as folder:
        path = folder / "run.parquet"
        open_output(path).write([table.to_arrow()])
        opened = runs.open_run(path)
        assert runs.read_run(path).equals(table)
        assert pl.concat([runs.empty(), *opened.blocks()]).equals(table)
        for block in opened.blocks():
            assert block["qid"].n_unique() <= len(block)
            assert all(len(part) == len(hits[qid]) for (qid,), part in block.group_by(["qid"]))


@given(TABLES, SEEDS, st.integers(1, 7))
def test_the_order_of_rows_of_a_foreign_run_is_free(hits: dict[str, dict[str, float]], seed: int, rows: int) -> None:
    table = table_of(hits)
    with small_blocks(rows) as folder:
        table.sample(fraction=1.0, shuffle=True, seed=seed).write_parquet(folder / "run.parquet")
        assert runs.read_run(folder / "run.parquet").equals(table.sort("qid", "rank"))


@given(TABLES.filter(bool), st.integers(-3, 3), st.integers(1, 3), st.integers(1, 7))
def test_a_trec_file_survives_with_any_ranks(
    hits: dict[str, dict[str, float]], start: int, step: int, rows: int
) -> None:
    table = table_of(hits)
    lines = [f"{q} Q0 {d} {start + step * rank} {score!r} t\n\n" for q, d, rank, score in table.rows()]
    with small_blocks(rows) as folder:
        (folder / "run.trec").write_text("".join(lines), "utf-8")
        assert runs.read_run(folder / "run.trec").equals(table.sort("qid", "rank"))


@given(TABLES.filter(lambda hits: sum(map(len, hits.values())) > 1), SEEDS, st.integers(1, 7))
def test_shuffled_rows_of_a_run_of_hybrid_are_refused(hits: dict[str, dict[str, float]], seed: int, rows: int) -> None:
    table = table_of(hits)
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=seed)
    with small_blocks(rows) as folder:
        path = write_run(folder / "run.parquet", shuffled.rows())
        if in_whole_queries(shuffled):  # whole queries in another order are a run
            assert runs.read_run(path).equals(shuffled)
        else:
            with raises("damaged"):
                runs.open_run(path)


def in_whole_queries(table: pl.DataFrame) -> bool:
    spans = table.select(pl.col("qid").rle().struct.field("value")).to_series()
    counted = table.select((pl.col("rank") == pl.int_range(1, pl.len() + 1).over("qid")).all()).item()
    return spans.n_unique() == len(spans) and bool(counted)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("q2", "b", 2, float("nan")), refusal("score-not-finite", row=4, query="q2", document="b")),
        (("q2", "b", 2, float("inf")), refusal("score-not-finite", row=4)),
        (("q2", "a", 2, 0.5), refusal("duplicate-id", row=3, query="q2", document="a")),
        (("q2", "b", 3, 0.5), refusal("damaged")),
        (("q2", "b", 1, 0.5), refusal("damaged")),
        (("q1", "c", 3, 0.5), refusal("damaged")),
    ],
    ids=["nan", "infinity", "document twice", "gap", "rank twice", "query in two places"],
)
def test_runs_with_a_manifest_are_checked(tmp_path: Path, row: tuple[str, str, int, float], problem: Refusal) -> None:
    *hit, score = row
    finite = score if math.isfinite(score) else 0.5
    path = write_run(tmp_path / "run.parquet", [*HITS, (*hit, finite)])  # type: ignore[list-item]
    if finite != score:  # hybrid writes no such run
        table = pq.read_table(path)
        pq.write_table(table.set_column(3, "score", pa.array([*table["score"].to_pylist()[:-1], score])), path)
    with raises(problem, path="run.parquet"):
        runs.open_run(path)


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        *(("score", [3.0, bad, 1.0], "score-not-finite") for bad in (math.nan, math.inf, None)),
        ("docid", ["a", "a", "a"], "duplicate-id"),
        ("qid", ["q1", None, "q2"], "missing-value"),
        ("docid", ["a", None, "a"], "missing-value"),
    ],
)
def test_runs_of_other_programs_are_checked(tmp_path: Path, column: str, values: list[Any], problem: str) -> None:
    frame = pl.DataFrame(pl.from_arrow(run_table()))
    frame.with_columns(pl.Series(column, values, frame.schema[column])).write_parquet(tmp_path / "x.parquet")
    with raises(problem, path="x.parquet"):
        runs.read_run(tmp_path / "x.parquet")


def test_a_run_that_is_replaced_while_it_is_read_stops_the_stage(tmp_path: Path) -> None:
    opened = runs.open_run(write_run(tmp_path / "run.parquet"))
    write_run(tmp_path / "other.parquet").replace(tmp_path / "run.parquet")
    with raises("input-replaced", HybridError, path="run.parquet"):
        opened.table()


def test_statistics_of_the_scores_do_not_depend_on_the_blocks() -> None:
    table = table_of({str(query): {str(hit): (hit * 37 + query) % 11 for hit in range(9)} for query in range(30)})
    with small_blocks(4) as folder:
        table.write_parquet(folder / "run.parquet")
        opened = runs.open_run(folder / "run.parquet")
    deviation = table["score"].std()
    assert opened.deviation == pytest.approx(deviation)
    assert opened.rising == 0.0
    assert runs.Run.of(table.with_columns(-pl.col("score"))).rising == 1.0


def test_a_byte_order_mark_is_not_part_of_the_first_query(tmp_path: Path) -> None:
    """Without the mark's removal, the first hit belonged to a query of another name, which no judgment has."""
    text = "q1 Q0 a 1 2.0 x\nq1 Q0 b 2 1.0 x\nq2 Q0 a 1 2.0 x\n"
    for name, mark in (("plain", b""), ("marked", b"\xef\xbb\xbf")):
        (tmp_path / name).write_bytes(mark + text.encode())
    assert runs.read_run(tmp_path / "marked").equals(runs.read_run(tmp_path / "plain"))


def test_a_gzipped_run_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    lines = "".join(f"q{number} Q0 a 1 2.5 x\n" for number in range(99)).encode()
    (tmp_path / "run.trec").write_bytes(lines)
    (tmp_path / "run.trec.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(lines)[:-20])
    assert runs.read_run(tmp_path / "run.trec.gz").equals(runs.read_run(tmp_path / "run.trec"))
    with raises("damaged-compression", path="cut.gz"):
        runs.read_run(tmp_path / "cut.gz")


def test_files_named_pq_are_parquet(tmp_path: Path) -> None:
    table = table_of({"q": {"a": 2.0, "b": 1.0}})
    table.write_parquet(tmp_path / "run.pq")
    table.select("qid", "docid", relevance="rank").write_parquet(tmp_path / "qrels.pq")
    table.select("qid", text="docid").unique("qid").write_parquet(tmp_path / "queries.pq")
    assert runs.read_run(tmp_path / "run.pq").equals(table)
    assert collection.read_qrels(tmp_path / "qrels.pq").rows() == [("q", "a", 1), ("q", "b", 2)]
    assert collection.read_queries(tmp_path / "queries.pq")["qid"].to_list() == ["q"]


HITS_OF_TWO = [("a b", "x", 1, -1.0), ("a b", "y", 2, -2.0), ("q", "x", 1, -1.0)]


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("q\tx\t1\na b\ty\t2\na b\tx\t1\r\n", None),
        ("docid\tqid\trank\textra\nx\tq\t1\t\ny\ta b\t2\t\nx\ta b\t1\t\n", None),
        ("Doc-ID\tquery_id\tscore\nx\tq\t7\ny\ta b\t2\nx\ta b\t3\n", [3.0, 2.0, 7.0]),
        ("qid\trank\tdocno\tscore\nq\t1\tx\t7\na b\t2\ty\t4\na b\t1\tx\t3\n", [3.0, 4.0, 7.0]),
    ],
    ids=["MS MARCO", "ranks", "scores", "ranks and scores"],
)
def test_runs_of_other_columns_are_read(tmp_path: Path, text: str, scores: list[float] | None) -> None:
    """Ranks without scores give scores that fall with the rank."""
    (tmp_path / "run.tsv").write_bytes(text.encode())
    found = runs.read_run(tmp_path / "run.tsv")
    assert found.drop("score").rows() == [row[:3] for row in HITS_OF_TWO]
    assert found["score"].to_list() == (scores or [row[3] for row in HITS_OF_TWO])


def test_a_header_of_a_trec_run_is_no_hit(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("qid Q0 docid rank score tag\nq1 Q0 a 1 2.0 x\n")
    assert runs.read_run(tmp_path / "run").rows() == [("q1", "a", 1, 2.0)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("q\tx\t1\nq\ty\t2.5\n", refusal("not-a-rank", path="run", line=2, value="2.5")),
        ("q\tx\t1\nq\ty\n", refusal("other-width", path="run", line=2, found=2)),
        ("q x 1 2.0\n", refusal("other-width", path="run", line=1, found=4)),
        ("qid\tdocid\nq\tx\n", "no-scores"),
        ("qid\tdocid\tscore\nq\tx\n", refusal("other-width", line=2, found=2, expected=3)),
        ("q\tx\t1\nq\ty\t0\n", refusal("not-a-rank", path="run", line=2, value="0")),  # judgments, as below
        ("q\tx\t1\nq\ty\t1\n", refusal("duplicate-rank", path="run", query="q", rank=1)),
        ("query-id\tcorpus-id\tscore\nq\tx\t1\n", "is-judgments"),
        ("q1 Q0 a 1 5 t\n\nq1 Q0 b 2\n", refusal("other-width", path="run", line=3)),
        ("q1 Q0 \xff 1 5 t\n", refusal("not-utf-8", path="run", line=1)),
        ("PAR1\x00\x01\x01\xfe\n", refusal("not-parquet", path="run")),
        ("q1 Q0 a 1 high t\n", refusal("score-not-finite", path="run")),
        ("\n \n", refusal("empty-run", path="run")),
    ],
)
def test_texts_that_are_no_run_are_refused_with_their_line(tmp_path: Path, text: str, problem: str | Refusal) -> None:
    (tmp_path / "run").write_bytes(text.encode("latin-1"))
    with raises(problem):
        runs.read_run(tmp_path / "run")


def test_ids_of_foreign_parquet_files_may_be_whole_numbers(tmp_path: Path) -> None:
    table = pl.DataFrame({"qid": [9, 10], "docid": [3, 4], "rank": [1, 1], "score": [2.0, 1.0], "relevance": [1, 0]})
    table.write_parquet(tmp_path / "both.parquet")
    table.select("qid", text=pl.lit("a")).write_parquet(tmp_path / "queries.parquet")
    assert runs.read_run(tmp_path / "both.parquet").rows() == [("10", "4", 1, 1.0), ("9", "3", 1, 2.0)]
    assert collection.read_qrels(tmp_path / "both.parquet").rows() == [("9", "3", 1), ("10", "4", 0)]
    assert collection.read_queries(tmp_path / "queries.parquet")["qid"].to_list() == ["9", "10"]


@pytest.mark.parametrize("rank", ["1", "x", "1.5", "nan", "99999999999"])
def test_a_bad_rank_changes_the_order_of_its_query_only(tmp_path: Path, notices: Notices, rank: str) -> None:
    lines = ["q1 Q0 a 1.0 1 x", "q1 Q0 b 2.0 2 x", "q2 Q0 a 1 1 x", f"q2 Q0 b {rank} 2 x"]
    write_lines(tmp_path / "run", *lines)
    found = runs.read_run(tmp_path / "run")
    assert found.rows() == [("q1", "a", 1, 1.0), ("q1", "b", 2, 2.0), ("q2", "b", 1, 2.0), ("q2", "a", 2, 1.0)]
    assert notices.says("ranks-repaired", path="run", count=1)


def _hits(*rows: tuple[str, str, float]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"qid": pl.String, "docid": pl.String, "score": pl.Float32}, orient="row")


def test_ranks_and_depth_are_per_query() -> None:
    hits = _hits(("q2", "a", 1.0), ("q2", "b", 3.0), ("q2", "c", 2.0), ("q1", "a", 5.0))
    assert runs.ranked(hits, 2).rows() == [("q2", "b", 1, 3.0), ("q2", "c", 2, 2.0), ("q1", "a", 1, 5.0)]
    pieces = _hits(("q", "a", 1.0), ("r", "a", 1.0), ("q", "b", 2.0))
    assert runs.ranked(pieces).rows() == [("q", "b", 1, 2.0), ("q", "a", 2, 1.0), ("r", "a", 1, 1.0)]


def test_equal_scores_are_ordered_by_docid_as_a_string() -> None:
    hits = _hits(("q", "9", 1.0), ("q", "é", 1.0), ("q", "10", 1.0), ("q", "B", 1.0), ("q", "a", 1.0))
    assert runs.ranked(hits)["docid"].to_list() == ["10", "9", "B", "a", "é"]


def test_runs_are_named_by_stems_and_by_folders_if_stems_are_equal(tmp_path: Path) -> None:
    assert list(runs.name_runs(["out/bm25.parquet", "out/dense.parquet"])) == ["bm25", "dense"]
    assert list(runs.name_runs(["x/out/bm25.parquet", "y/out/bm25.parquet"])) == ["x/out/bm25", "y/out/bm25"]
    assert runs.name_runs(["BM25 tuned=out/a.parquet"]) == {"BM25 tuned": Path("out/a.parquet")}
    odd = tmp_path / "k1=0.9.parquet"
    odd.touch()
    assert runs.name_runs([odd]) == {"k1=0.9": odd}
    with raises("duplicate-name", name="a"):
        runs.name_runs(["a=x.parquet", "a=y.parquet"])
    with raises("repeated-input", path="x.parquet"):
        runs.name_runs(["x.parquet", "x.parquet"])


def test_positions_find_ids_or_name_the_unknown_ones() -> None:
    known = pl.Series(["a", "b", "c", "b"])
    assert runs.positions(pl.Series(["c", "b", "c"]), known, "no document").tolist() == [2, 1, 2]
    assert not len(runs.positions(pl.Series([], dtype=pl.String), known, "no document"))
    with raises("unknown-id", id="x"):
        runs.positions(pl.Series(["x", "a", "y", "x"]), known, "no document")


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    docs = write_lines(
        tmp_path / "docs.csv", "id,text", "d1,salt of the deep sea", "d2,two tides of one day", "d3,salt"
    )
    queries = write_lines(tmp_path / "q.txt", "salt of oceans", "tides by day", "deep water")
    qids = [text_id(text) for text in ("salt of oceans", "tides by day", "deep water")]
    write_lines(tmp_path / "judgments.tsv", *(f"{qids[number]} 0 d{1 + number % 2} 1" for number in range(3)))
    commands = [
        ["prepare", "files", docs, "--output", tmp_path / "data"],
        *(
            step
            for name, k1 in (("bm25", 0.9), ("other", 0.1))
            for step in (
                ["index-bm25", tmp_path / "data", "--k1", k1, "--output", tmp_path / name],
                ["search", "--queries", queries, "--index", tmp_path / name, "--output", tmp_path / f"{name}.parquet"],
            )
        ),
    ]
    for words in commands:
        ran(*words)
    return tmp_path


def test_a_report_shows_texts_without_their_options(searched: Path) -> None:
    both = [searched / "bm25.parquet", searched / "other.parquet"]
    page = searched / "r.html"
    words = ["report", *both, "--qrels", searched / "judgments.tsv", "--complement", "bm25", "other"]
    ran(*words, "--output", page)
    shown = page.read_text()
    assert "salt of oceans" in shown
    queries = searched / "q.txt"
    queries.write_text("changed since then\n")  # not those of the runs
    ran(*words, "--output", searched / "second.html")
    assert "salt of oceans" not in (searched / "second.html").read_text()
    assert "changed since then" not in (searched / "second.html").read_text()


def test_a_retriever_s_run_is_known_too(searched: Path) -> None:
    ran("compose", searched / "bm25", searched / "other", "--output", searched / "retriever")
    run = searched / "hybrid.parquet"
    ran("search", "--queries", searched / "q.txt", "--index", searched / "retriever", "--output", run)
    words = ["report", run, searched / "bm25.parquet", "--qrels", searched / "judgments.tsv"]
    ran(*words, "--output", searched / "r.html")
    assert "salt of oceans" in (searched / "r.html").read_text()
