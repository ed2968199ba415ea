"""Teacher labels: shards on disk, and the hits of both teachers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from command import raises
from small_artifacts import open_output, write_corpus, write_run

from hybrid_cli import artifacts, runs
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.opening.examples import open_labels
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.settings import Label
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.storage import SCHEMAS, Kind
from hybrid_cli.training.labels import (
    Hits,
    MatrixTeacher,
    RunTeacher,
    labelled,
    shard_path,
    write_shard,
)

TEXTS = ["the red fox runs", "a red  fox\nruns", "the red fox", "grey owls fly", "", "red fox runs over red fields"]


# -------------------------------------------------------------------------------------------------------------- on disk


def row(qid: str, hits: int) -> dict[str, Any]:
    docids = [f"d{n}" for n in range(hits)]
    return {"qid": qid, "text": f"words of {qid}", "source": None, "docids": docids, "scores": [1.0] * hits}


def write_labels(folder: Path, *shards: list[dict[str, Any]]) -> Path:
    output = open_output(folder, kind=Kind.LABELS, depth=50)
    with output.folder() as (work, counts):
        for number, rows in enumerate(shards):
            table = pa.Table.from_pylist(rows, SCHEMAS[Kind.LABELS])
            write_shard(shard_path(work, number), table, output.manifest, hits=sum(len(row["docids"]) for row in rows))
        counts["shards"] = len(shards)
    return folder


def test_shards_are_read_in_order(tmp_path: Path) -> None:
    shards = [[row("a", 3), row("b", 1)], [], [row("c", 50)]]
    labels = open_labels(write_labels(tmp_path / "labels", *shards))
    assert (len(labels), labels.shards, labels.depth) == (3, 3, 50)
    assert [table.rows(named=True) for table in labels.tables()] == shards
    assert labels.read(2).rows(named=True) == shards[2]
    assert artifacts.read_manifest(shard_path(labels.folder, 0)).counts == {"rows": 2, "hits": 4}


# ------------------------------------------------------------------------------------------------------------- teachers


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("labels") / "corpus.parquet", TEXTS)


@pytest.fixture(scope="module")
def index(corpus: Path) -> LexicalIndex:
    return open_bm25(index_bm25(corpus, output=corpus.parent / "bm25", threads=1))


def label_settings(**options: Any) -> Label:
    return Label(Path("data"), index=Path("bm25"), output=Path("out"), **options)


def queries(*texts: str, rows: list[int | None] | None = None) -> pl.DataFrame:
    sources = rows or [None] * len(texts)
    return pl.DataFrame(
        {
            "qid": [f"q{n}" for n in range(len(texts))],
            "text": list(texts),
            "source": [None if row is None else f"d{row}" for row in sources],
            "row": sources,
        },
        schema={"qid": pl.String, "text": pl.String, "source": pl.String, "row": pl.Int64},
    )


def lists(hits: Hits) -> list[list[str]]:
    counts, docids, _ = hits
    return [part.tolist() for part in np.split(docids.to_numpy(), np.cumsum(counts)[:-1])]


def test_the_matrix_returns_the_hits_of_search(index: LexicalIndex, corpus: Path) -> None:
    batch = queries("red fox runs", "unknown", "owls")
    found = labelled(batch, MatrixTeacher(index, corpus, label_settings(depth=2)).hits(batch))
    run = index.search(batch, 2)
    assert found["qid"].to_pylist() == ["q0", "q2"]
    for labels in found.to_pylist():
        hits = run.filter(pl.col("qid") == labels["qid"])
        assert (labels["docids"], labels["scores"]) == (hits["docid"].to_list(), hits["score"].to_list())
        assert labels["source"] is None


def test_drop_own_replaces_the_passage_of_a_sentence_with_the_next_hit(index: LexicalIndex, corpus: Path) -> None:
    batch = queries("the red fox runs", "grey owls fly", rows=[0, 3])
    kept, dropped = (
        MatrixTeacher(index, corpus, label_settings(depth=3, keep_own=keep)).hits(batch) for keep in (True, False)
    )
    assert lists(kept) == [["d0", "d1", "d5"], ["d3"]]
    assert lists(dropped) == [["d1", "d5", "d2"], []]
    assert labelled(batch, dropped)["qid"].to_pylist() == ["q0"]


def test_drop_same_text_drops_passages_with_the_text_of_the_query(index: LexicalIndex, corpus: Path) -> None:
    """White space does not count."""
    batch = queries("a red fox runs", "the red\tfox ", "owls", rows=[5, 2, 3])
    same_text = MatrixTeacher(index, corpus, label_settings(keep_same_text=False)).hits(batch)
    assert lists(same_text) == [["d0", "d5", "d2"], ["d5", "d0", "d1"], ["d3"]]
    both = MatrixTeacher(index, corpus, label_settings(keep_same_text=False, keep_own=False)).hits(batch)
    assert lists(both) == [["d0", "d2"], ["d5", "d0", "d1"], []]


def run_teacher(run: Path, batch: pl.DataFrame, corpus: Path, settings: Label) -> RunTeacher:
    return RunTeacher(run, runs.open_run(run, by_qid=False), batch, corpus, settings)


def test_a_run_keeps_its_order_down_to_the_depth(tmp_path: Path, corpus: Path) -> None:
    hits = [("q1", "d3", 1, 9.0), ("q1", "d0", 2, 9.0), ("q1", "d2", 3, 1.0), ("q0", "d5", 1, 0.5), ("x", "d9", 1, 1.0)]
    run, batch = write_run(tmp_path / "run.parquet", hits), queries("the red fox", "grey owls fly", "nothing")
    teacher = run_teacher(run, batch, corpus, label_settings(depth=2))
    assert lists(teacher.hits(batch)) == [["d5"], ["d3", "d0"], []]
    assert lists(teacher.hits(batch[1:2])) == [["d3", "d0"]]
    assert labelled(batch, teacher.hits(batch))["scores"].to_pylist() == [[0.5], [9.0, 9.0]]
    without = run_teacher(run, batch, corpus, label_settings(depth=2, keep_same_text=False))
    assert lists(without.hits(batch)) == [["d5"], ["d0", "d2"], []]


def test_a_run_of_other_documents_or_other_queries_is_refused(tmp_path: Path, corpus: Path) -> None:
    batch = queries("the red fox")
    run = write_run(tmp_path / "run.parquet", [("q0", f"z{n}", n + 1, 1.0) for n in range(5)] + [("q0", "d0", 6, 0.5)])
    with raises("other-corpus", corpus="corpus.parquet", id="z0", count=5):
        run_teacher(run, batch, corpus, label_settings())
    repeated = pl.concat([pl.read_parquet(corpus), pl.read_parquet(corpus).head(1)])
    repeated.write_parquet(tmp_path / "repeated.parquet")
    known = write_run(tmp_path / "known.parquet", [("q0", "d0", 1, 0.5)])
    with raises("duplicate-id", path="repeated.parquet", id="d0"):
        run_teacher(known, batch, tmp_path / "repeated.parquet", label_settings())
    other = write_run(tmp_path / "other.parquet", [("q7", "d0", 1, 1.0)])
    with raises("other-queries", path="other.parquet"):
        run_teacher(other, batch, corpus, label_settings())
