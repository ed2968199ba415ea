"""Labels of a teacher: shards on disk, hits of both teachers, the command label."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from command import Notices, raises
from small_artifacts import open_output, write_corpus, write_run
from tiny_collection import TINY_QUERIES

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts.examples import open_labels
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.sentences import Sentences
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.runs import Run, read_run
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.label import label
from hybrid_cli.stages.search import search
from hybrid_cli.storage import SCHEMAS, Kind
from hybrid_cli.training.labels import Hits, Teacher, labelled, matrix_teacher, run_teacher, shard_path, write_shard

TEXTS = ["the red fox runs", "a red  fox\nruns", "the red fox", "grey owls fly", "", "red fox runs over red fields"]


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


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("labels") / "corpus.parquet", TEXTS)


@pytest.fixture(scope="module")
def index(corpus: Path) -> LexicalIndex:
    return open_bm25(index_bm25(corpus, output=corpus.parent / "bm25", threads=1))


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
    found = labelled(batch, matrix_teacher(index, 2)(batch))
    run = index.search(batch, 2)
    assert found["qid"].to_pylist() == ["q0", "q2"]
    for labels in found.to_pylist():
        hits = run.filter(pl.col("qid") == labels["qid"])
        assert (labels["docids"], labels["scores"]) == (hits["docid"].to_list(), hits["score"].to_list())
        assert labels["source"] is None


def opened(run: Path, batch: pl.DataFrame, corpus: Path, depth: int) -> Teacher:
    return run_teacher(run, runs.open_run(run, by_qid=False), batch, corpus, depth)


def test_a_run_keeps_its_order_down_to_the_depth(tmp_path: Path, corpus: Path) -> None:
    hits = [("q1", "d3", 1, 9.0), ("q1", "d0", 2, 9.0), ("q1", "d2", 3, 1.0), ("q0", "d5", 1, 0.5), ("x", "d9", 1, 1.0)]
    run, batch = write_run(tmp_path / "run.parquet", hits), queries("the red fox", "grey owls fly", "nothing")
    teacher = opened(run, batch, corpus, 2)
    assert lists(teacher(batch)) == [["d5"], ["d3", "d0"], []]
    assert lists(teacher(batch[1:2])) == [["d3", "d0"]]
    assert labelled(batch, teacher(batch))["scores"].to_pylist() == [[0.5], [9.0, 9.0]]


def test_a_run_of_other_documents_or_other_queries_is_refused(tmp_path: Path, corpus: Path) -> None:
    batch = queries("the red fox")
    run = write_run(tmp_path / "run.parquet", [("q0", f"z{n}", n + 1, 1.0) for n in range(5)] + [("q0", "d0", 6, 0.5)])
    with raises("other-corpus", corpus="corpus.parquet", id="z0", count=5):
        opened(run, batch, corpus, 50)
    repeated = pl.concat([pl.read_parquet(corpus), pl.read_parquet(corpus).head(1)])
    repeated.write_parquet(tmp_path / "repeated.parquet")
    known = write_run(tmp_path / "known.parquet", [("q0", "d0", 1, 0.5)])
    with raises("duplicate-id", path="repeated.parquet", id="d0"):
        opened(known, batch, tmp_path / "repeated.parquet", 50)
    other = write_run(tmp_path / "other.parquet", [("q7", "d0", 1, 1.0)])
    with raises("other-queries", path="other.parquet"):
        opened(other, batch, corpus, 50)


SHARD = "hybrid_cli.training.labels.QUERIES_IN_A_SHARD"
SMALL = 3


def labels_of(collection: Path, output: Path, **options: Any) -> pl.DataFrame:
    return pl.concat(open_labels(label(collection, output=output, threads=1, **options)).tables())


def counts_of(path: Path) -> dict[str, Any]:
    return artifacts.read_manifest(path, Kind.LABELS).counts


def test_every_sentence_gets_the_hits_of_search(tiny: Path, tiny_bm25: Path, tmp_path: Path, notices: Notices) -> None:
    found = labels_of(tiny, tmp_path / "labels", index=tiny_bm25, queries_from="all", depth=4)
    sentences = pl.concat(Sentences(tiny, "all", 0).blocks())
    run = open_bm25(tiny_bm25).search(sentences, 4)
    assert found["qid"].to_list() == run["qid"].unique(maintain_order=True).to_list()
    lists = found.explode("docids", "scores").select("qid", docid="docids", score="scores")
    assert lists.equals(run.select("qid", "docid", "score"))
    assert (found["docids"].list.first() == found["source"]).all(), "the top hit of a sentence is its own passage"
    expected = {"documents": 12, "empty_documents": 1, "sentences": 15, "short_sentences": 0, "available": 15}
    expected |= {"queries": 15, "labelled": 15, "without_hits": 0, "hits": len(run), "shards": 1}
    assert counts_of(tmp_path / "labels") == expected
    assert notices.says("written", queries=15, hits=len(run), without_hits=0)
    label(tiny, output=tmp_path / "labels", index=tiny_bm25, queries_from="all", depth=4)
    assert notices.says("up-to-date")


def test_given_queries_keep_their_ids_if_they_have_hits(
    tiny: Path, tiny_bm25: Path, tmp_path: Path, notices: Notices
) -> None:
    """Query 005 has only stop words, and no document has the words of 006."""
    found = labels_of(tiny, tmp_path / "labels", index=tiny_bm25, split="test")
    assert found["qid"].to_list() == ["001", "002", "003", "004"]
    assert found["text"].to_list() == [text for _, text in TINY_QUERIES["test"][:4]]
    assert found["source"].null_count() == 4
    assert notices.says("written", queries=4, hits=9, without_hits=2)
    assert counts_of(tmp_path / "labels")["without_hits"] == 2
    assert artifacts.read_manifest(tmp_path / "labels").options == {"max_queries": None, "depth": 50}


def test_a_run_gives_the_labels_of_its_index(tiny: Path, tiny_bm25: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.parquet"
    queries = collections.read_queries(collections.queries_path(tiny, "test"))
    hits = open_bm25(tiny_bm25).search(queries, 10)
    write_run(run, hits.rows())
    by_run = labels_of(tiny, tmp_path / "by-run", run=run, split="test", depth=2)
    assert by_run.equals(labels_of(tiny, tmp_path / "by-index", index=tiny_bm25, split="test", depth=2))
    assert by_run["docids"].list.len().max() == 2
    assert read_run(run)["rank"].max() > 2, "the run is deeper"  # type: ignore[operator]


@pytest.fixture(scope="module")
def retriever(tiny_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("label") / "retriever"
    return compose([tiny_runs / "bm25", tiny_runs / "dense"], method="minmax", output=output)


def test_a_retriever_gives_the_labels_of_its_run(tiny: Path, retriever: Path, tmp_path: Path) -> None:
    run = search(tiny, split="test", index=retriever, output=tmp_path / "run.parquet")
    found = labels_of(tiny, tmp_path / "by-index", index=retriever, split="test", depth=3)
    assert found.equals(labels_of(tiny, tmp_path / "by-run", run=run, split="test", depth=3))


def test_labels_of_a_run_in_another_order_follow_it_and_hold_no_hits(
    tiny: Path, tiny_bm25: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = collections.read_queries(collections.queries_path(tiny, "test"))
    hits = open_bm25(tiny_bm25).search(queries[::-1], 10).filter(pl.col("qid") != queries["qid"][1])
    run = write_run(tmp_path / "run.parquet", hits.rows())
    monkeypatch.setattr(Run, "held", lambda self: pytest.fail("hits are held in memory"))
    found = labels_of(tiny, tmp_path / "labels", run=run, split="test")
    assert found["qid"].to_list() == hits["qid"].unique(maintain_order=True).to_list()
    assert found.select("qid", docid="docids").explode("docid").equals(hits.select("qid", "docid"))


def test_max_queries_draws_from_all_queries(tiny: Path, tiny_bm25: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"index": tiny_bm25, "queries_from": "all"}
    whole = labels_of(tiny, tmp_path / "whole", **how)
    parts = [labels_of(tiny, tmp_path / f"part{seed}", **how, max_queries=5, seed=seed) for seed in (1, 2)]
    assert all(len(part) == 5 and len(part.join(whole, on=whole.columns)) == 5 for part in parts)
    assert not parts[0].equals(parts[1])
    assert not any(part.equals(whole.head(5)) for part in parts)


@pytest.mark.parametrize("options", [{"max_queries": 7}, {"queries_from": "cropped"}], ids=str)
def test_the_size_of_a_shard_changes_no_label(
    tiny: Path, tiny_bm25: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Memory holds two shards, so it does not grow with the number of queries."""
    whole = labels_of(tiny, tmp_path / "whole", index=tiny_bm25, **options)
    monkeypatch.setattr(SHARD, SMALL)
    parts = labels_of(tiny, tmp_path / "parts", index=tiny_bm25, **options)
    assert whole.equals(parts)
    sizes = [len(table) for table in open_labels(tmp_path / "parts").tables()]
    assert max(sizes) == SMALL
    assert len(sizes) == -(-counts_of(tmp_path / "parts")["queries"] // SMALL) > 1
