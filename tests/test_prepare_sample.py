"""Samples of documents and queries in `prepare`, and passages of documents."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from command import raises
from hypothesis import given
from hypothesis import strategies as st
from tiny_collection import (
    TINY_DOCUMENTS,
    corpus_of,
    counts_of,
    write_lines,
    write_tiny_source,
)

from hybrid_cli import artifacts
from hybrid_cli.collections import collection
from hybrid_cli.collections.source import passages
from hybrid_cli.settings import PrepareBeir, PrepareTrec
from hybrid_cli.stages.prepare import prepare


def write_graded(folder: Path, documents: int = 40) -> Path:
    """Write a BEIR folder with two relevant documents and one of grade 0 for each of ten queries in `test`."""
    write_lines(folder / "corpus.jsonl", *({"_id": f"d{n}", "text": f"text {n}"} for n in range(documents)))
    write_lines(folder / "queries.jsonl", *({"_id": f"q{n}", "text": f"query {n}"} for n in range(12)))
    rows = [
        (f"q{n}", f"d{(n + shift) % documents}", grade) for n in range(10) for shift, grade in ((0, 1), (1, 2), (20, 0))
    ]
    write_lines(folder / "qrels/test.tsv", *(f"{qid}\t{docid}\t{grade}" for qid, docid, grade in rows))
    write_lines(folder / "qrels/train.tsv", "q10\td30\t1", "q11\td31\t1")
    return folder


def docids_of(path: Path) -> list[str]:
    return [row[0] for row in corpus_of(path)]


@pytest.mark.parametrize("seed", [42, 1, 2])
def test_a_sample_has_its_size_and_all_relevant_documents(tmp_path: Path, seed: int) -> None:
    folder = write_graded(tmp_path / "beir")
    made = prepare(PrepareBeir(folder, sample=20, seed=seed, output=tmp_path / "made"))
    kept = docids_of(made)
    relevant = {f"d{n}" for n in (*range(11), 30, 31)}
    assert len(kept) == 20
    assert relevant < set(kept)
    assert kept == sorted(kept, key=lambda docid: int(docid[1:]))  # in the order of the corpus
    whole = prepare(PrepareBeir(folder, output=tmp_path / "whole"))
    for split in ("test", "train"):
        assert (made / f"queries.{split}.parquet").stat().st_size > 0
        qrels = collection.read_qrels(whole / f"qrels.{split}.parquet")
        sampled = collection.read_qrels(made / f"qrels.{split}.parquet")
        assert sampled.equals(qrels.filter(pl.col("docid").is_in(kept)))
    assert counts_of(made)["sampled_from"] == {"documents": 40, "queries": {"test": 10, "train": 2}}
    options = artifacts.read_manifest(made).options
    assert (options["sample"], options["seed"]) == (20, seed)
    assert "seed" not in artifacts.read_manifest(whole).options


def test_a_sample_depends_on_the_seed_only(tmp_path: Path) -> None:
    folder = write_graded(tmp_path / "beir")
    samples = {
        name: docids_of(prepare(PrepareBeir(folder, sample=20, seed=seed, output=tmp_path / name)))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    }
    assert samples["a"] == samples["b"] != samples["c"]
    lines = (folder / "corpus.jsonl").read_text("utf-8").splitlines()
    write_lines(folder / "corpus.jsonl", *reversed(lines))
    reverse = docids_of(prepare(PrepareBeir(folder, sample=20, seed=1, output=tmp_path / "reverse")))
    assert reverse == samples["a"][::-1]
    larger = docids_of(prepare(PrepareBeir(folder, sample=30, seed=1, output=tmp_path / "larger")))
    assert set(reverse) < set(larger)


def test_queries_are_sampled_per_split_with_their_relevant_documents(tmp_path: Path) -> None:
    folder = write_graded(tmp_path / "beir")
    made = prepare(PrepareBeir(folder, sample=8, sample_queries={"test": 2}, output=tmp_path / "made"))
    queries = {
        split: set(collection.read_queries(made / f"queries.{split}.parquet")["qid"]) for split in ("test", "train")
    }
    assert len(queries["test"]) == 2
    assert queries["train"] == {"q10", "q11"}
    qrels = collection.read_qrels(made / "qrels.test.parquet")
    assert set(qrels["qid"]) == queries["test"]
    relevant = qrels.filter(pl.col("relevance") >= 1)
    assert relevant.group_by("qid").len()["len"].to_list() == [2, 2]
    assert set(qrels["docid"]) <= set(docids_of(made))
    assert len(docids_of(made)) == 8


def test_dangling_judgments_of_a_sample_are_reported(tmp_path: Path) -> None:
    folder = write_graded(tmp_path / "beir")
    write_lines(folder / "qrels/train.tsv", "q10\td30\t1", "q10\tmissing\t1", "unknown\td1\t1")
    with raises("dangling-judgments", path="train.tsv", line=2):
        prepare(PrepareBeir(folder, sample=20, output=tmp_path / "made"))
    made = prepare(PrepareBeir(folder, sample=20, on_dangling="drop", output=tmp_path / "made"))
    assert counts_of(made)["judgments"]["train"] == 1


# ------------------------------------------------------------------------------------------------------------- passages


@given(st.text(alphabet="ab \n", max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_passages_contain_every_word_in_order(text: str, size: int, stride: int) -> None:
    found = passages(text, size, min(stride, size))
    words = text.split()
    assert all(part in text for part in found)
    assert [len(part.split()) for part in found[:-1]] == [size] * (len(found) - 1)
    places = list(range(0, len(words), min(stride, size)))[: len(found)]
    assert [part.split() for part in found] == ([words[start : start + size] for start in places] if words else [[]])
    assert not words or places[-1] + size >= len(words)


def test_passages_have_the_title_and_the_judgments_of_their_document(tmp_path: Path) -> None:
    write_tiny_source(tmp_path)
    settings = PrepareTrec(
        tmp_path / "docs.jsonl",
        topics={"test": tmp_path / "topics.test.tsv"},
        qrels={"test": tmp_path / "qrels.test.txt"},
        split_passages=10,
        output=tmp_path / "out",
    )
    rows = corpus_of(prepare(settings))
    own = [row for row in rows if row[0].startswith("007#")]
    assert [row[0] for row in own] == ["007#0", "007#1", "007#2", "007#3"]
    assert {row[1] for row in own} == {"Tides"}
    assert " ".join(row[2] for row in own) == next(text for docid, _, text in TINY_DOCUMENTS if docid == "007")
    assert ("void#0", "A page without words", "") in rows
    judged = pl.read_parquet(tmp_path / "out" / "qrels.test.parquet").filter(qid="001")
    assert judged.filter(relevance=2)["docid"].to_list() == [row[0] for row in own]
    manifest = artifacts.read_manifest(tmp_path / "out")
    assert manifest.counts["whole_documents"] == len(TINY_DOCUMENTS)
    assert (manifest.options["split_passages"], manifest.options["passage_stride"]) == (10, 10)
