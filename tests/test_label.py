"""`label` end to end: sentences or given queries to shards of labels; interruptions; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, Refusal, hybrid, raises, refusal
from small_artifacts import write_corpus, write_run
from tiny_collection import TINY_QUERIES, write_lines

from hybrid_cli import artifacts
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.sentences import Sentences
from hybrid_cli.opening.examples import open_labels
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.runs import Run, read_run
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.label import label
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind

SHARD = "hybrid_cli.stages.label.QUERIES_IN_A_SHARD"
SMALL = 3


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_bm25(tiny, output=tmp_path_factory.mktemp("label") / "bm25", threads=1)


def labels_of(collection: Path, output: Path, **options: Any) -> pl.DataFrame:
    return pl.concat(open_labels(label(collection, output=output, threads=1, **options)).tables())


def counts_of(path: Path) -> dict[str, Any]:
    return artifacts.read_manifest(path, Kind.LABELS).counts


# -------------------------------------------------------------------------------------------------------------- queries


def test_every_sentence_gets_the_hits_of_search(tiny: Path, index: Path, tmp_path: Path, notices: Notices) -> None:
    found = labels_of(tiny, tmp_path / "labels", index=index, queries_from="all", depth=4)
    sentences = pl.concat(Sentences(tiny, "all", 0).blocks())
    run = open_bm25(index).search(sentences, 4)
    assert found["qid"].to_list() == run["qid"].unique(maintain_order=True).to_list()
    lists = found.explode("docids", "scores").select("qid", docid="docids", score="scores")
    assert lists.equals(run.select("qid", "docid", "score"))
    assert (found["docids"].list.first() == found["source"]).all(), "the top hit of a sentence is its own passage"
    assert counts_of(tmp_path / "labels") == {
        "documents": 12, "empty_documents": 1, "sentences": 15, "short_sentences": 0, "available": 15,
        "queries": 15, "labelled": 15, "without_hits": 0, "hits": len(run), "shards": 1,
    }  # fmt: skip
    assert notices.says("written", queries=15, hits=len(run), without_hits=0)
    label(tiny, output=tmp_path / "labels", index=index, queries_from="all", depth=4)
    assert notices.says("up-to-date")


def test_given_queries_keep_their_ids_and_those_without_a_hit_are_dropped(
    tiny: Path, index: Path, tmp_path: Path, notices: Notices
) -> None:
    """Query 005 has only stop words, and no document has the words of 006."""
    found = labels_of(tiny, tmp_path / "labels", index=index, split="test")
    assert found["qid"].to_list() == ["001", "002", "003", "004"]
    assert found["text"].to_list() == [text for _, text in TINY_QUERIES["test"][:4]]
    assert found["source"].null_count() == 4
    assert notices.says("written", queries=4, hits=9, without_hits=2)
    assert counts_of(tmp_path / "labels")["without_hits"] == 2
    assert artifacts.read_manifest(tmp_path / "labels").options == {
        "max_queries": None, "depth": 50, "keep_same_text": True,
    }  # fmt: skip


def test_a_run_gives_the_labels_of_its_index(tiny: Path, index: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.parquet"
    queries = collections.read_queries(collections.queries_path(tiny, "test"))
    hits = open_bm25(index).search(queries, 10)
    write_run(run, hits.rows())
    by_run = labels_of(tiny, tmp_path / "by-run", run=run, split="test", depth=2)
    assert by_run.equals(labels_of(tiny, tmp_path / "by-index", index=index, split="test", depth=2))
    assert by_run["docids"].list.len().max() == 2
    assert read_run(run)["rank"].max() > 2, "the run is deeper"  # type: ignore[operator]


@pytest.fixture(scope="module")
def retriever(tiny: Path, index: Path, tiny_bert: Path) -> Path:
    dense = encode(tiny, model=str(tiny_bert), output=index.with_name("dense"))
    return compose([index, dense], method="minmax", output=index.with_name("retriever"))


def test_a_retriever_gives_the_labels_of_its_run(tiny: Path, retriever: Path, tmp_path: Path) -> None:
    run = search(tiny, split="test", index=retriever, output=tmp_path / "run.parquet")
    found = labels_of(tiny, tmp_path / "by-index", index=retriever, split="test", depth=3)
    assert found.equals(labels_of(tiny, tmp_path / "by-run", run=run, split="test", depth=3))
    assert artifacts.read_manifest(tmp_path / "by-index").inputs["index"]["kind"] == Kind.RETRIEVER


@pytest.mark.parametrize("dropped", ["keep_own", "keep_same_text"])
def test_a_retriever_labels_sentences_without_dropped_passages(tmp_path: Path, tiny_bert: Path, dropped: str) -> None:
    texts = ["Salt is in the sea.", "Salt is in the sea.", "The sea is deep.", "The air has no salt at all."]
    corpus = write_corpus(tmp_path / "corpus.parquet", texts)
    sides = [index_bm25(corpus, output=tmp_path / "bm25"), encode(corpus, model=str(tiny_bert), output=tmp_path / "d")]
    retriever = compose(sides, method="rrf", output=tmp_path / "retriever")
    whole = labels_of(corpus, tmp_path / "whole", index=retriever, queries_from="all")
    found = labels_of(corpus, tmp_path / "few", index=retriever, queries_from="all", depth=2, **{dropped: False})
    for qid, source, docids in found.select("qid", "source", "docids").iter_rows():
        other = {"d0": "d1", "d1": "d0"}.get(source)
        absent = {source, other} if dropped == "keep_same_text" else {source}
        (every,) = whole.filter(qid=qid)["docids"].to_list()
        assert docids == [docid for docid in every if docid not in absent][:2]


def test_labels_of_a_run_in_another_order_follow_it_and_hold_no_hits(
    tiny: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = collections.read_queries(collections.queries_path(tiny, "test"))
    hits = open_bm25(index).search(queries[::-1], 10).filter(pl.col("qid") != queries["qid"][1])
    run = write_run(tmp_path / "run.parquet", hits.rows())
    monkeypatch.setattr(Run, "held", lambda self: pytest.fail("hits are held in memory"))
    found = labels_of(tiny, tmp_path / "labels", run=run, split="test")
    assert found["qid"].to_list() == hits["qid"].unique(maintain_order=True).to_list()
    assert len(found) > 1, "the order is another one"
    assert found.select("qid", pl.col("docids").alias("docid")).explode("docid").equals(hits.select("qid", "docid"))
    assert artifacts.read_manifest(tmp_path / "labels").counts["without_hits"] == len(queries) - len(found)


def test_a_corpus_of_one_sentence_is_enough(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.parquet", ["", "Only one sentence here", ""])
    index = index_bm25(corpus, output=tmp_path / "bm25", threads=1)
    found = labels_of(corpus, tmp_path / "labels", index=index)
    assert found.select("qid", "source", "docids").rows() == [("d1#1", "d1", ["d1"])]
    with raises("no-hits", count=1):
        labels_of(corpus, tmp_path / "none", index=index, keep_own=False)
    assert not (tmp_path / ".none.partial").exists()


# --------------------------------------------------------------------------------------------------------------- shards


@pytest.mark.parametrize(
    "options",
    [
        {"max_queries": 7},
        {"queries_from": "cropped"},
    ],
    ids=str,
)
def test_the_size_of_a_shard_changes_no_label(
    tiny: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Memory holds two shards, so it does not grow with the number of queries."""
    whole = labels_of(tiny, tmp_path / "whole", index=index, **options)
    monkeypatch.setattr(SHARD, SMALL)
    parts = labels_of(tiny, tmp_path / "parts", index=index, **options)
    assert whole.equals(parts)
    sizes = [len(table) for table in open_labels(tmp_path / "parts").tables()]
    assert max(sizes) == SMALL
    assert len(sizes) == -(-counts_of(tmp_path / "parts")["queries"] // SMALL) > 1


# --------------------------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--index {index} --split nowhere", refusal("no-such-split", path="collection")),
        ("--index {tiny}", refusal("other-kind", path="collection")),
        ("--run run.tsv --split test", refusal("other-corpus", path="run.tsv", id="elsewhere")),
        ("--run run.tsv --split train", refusal("other-queries", path="run.tsv")),
    ],
)
def test_a_refusal_is_one_line_and_leaves_no_file(
    tiny: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str | Refusal
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(Path("run.tsv"), "001 Q0 007 1 2.0 x", "001 Q0 elsewhere 2 1.0 x")
    write_lines(Path("none.tsv"))
    before = sorted(Path().iterdir())
    done = hybrid("label", tiny, *words.format(index=index, tiny=tiny).split(), "--output", "labels")
    assert done.code == 2
    assert done.is_problem(message)
    assert len(done.err.strip().splitlines()) == 1
    assert sorted(Path().iterdir()) == before
