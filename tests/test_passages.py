"""Passages return to documents: in lists, retrievers, evaluation, tuning and judging."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import raises, ran
from tiny_collection import TINY_DOCUMENTS, write_tiny_source

from hybrid_cli import artifacts, open_index, open_retriever, runs
from hybrid_cli.commands import PrepareTrec
from hybrid_cli.inputs.json_values import read_json
from hybrid_cli.passages import GroupRule
from hybrid_cli.reporting.judging import JudgedTexts
from hybrid_cli.runs import groups
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.label import label
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.stages.split import split

ALL = 1000
RULES: tuple[GroupRule, ...] = ("max", "mean", "sum2")


@pytest.fixture(scope="module")
def made(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("passages")
    write_tiny_source(folder)
    files: Any = {
        "queries": {split: folder / f"topics.{split}.tsv" for split in ("train", "test")},
        "qrels": {split: folder / f"qrels.{split}.txt" for split in ("train", "test")},
    }
    prepare(PrepareTrec(folder / "docs.jsonl", **files, split_passages=5, output=folder / "passages"))
    prepare(PrepareTrec(folder / "docs.jsonl", **files, output=folder / "whole"))
    index_bm25(folder / "passages", output=folder / "bm25")
    encode(folder / "passages", model=str(tiny_bert), output=folder / "dense")
    return folder


def naive(hits: pl.DataFrame, rule: GroupRule) -> dict[tuple[str, str], float]:
    scores: dict[tuple[str, str], list[float]] = {}
    for qid, passage, score in hits.select("qid", "docid", "score").iter_rows():
        scores.setdefault((qid, passage.rpartition("#")[0]), []).append(score)
    combined: dict[str, Callable[[list[float]], float]] = {
        "max": max,
        "mean": lambda values: sum(values) / len(values),
        "sum2": lambda v: sum(sorted(v)[-2:]),
    }
    return {pair: float(combined[rule](values)) for pair, values in scores.items()}


def values_of(collection: Path, *given: Path) -> pl.DataFrame:
    summary = evaluate([collection, *given], split="test", measure=["nDCG@10"])
    return summary.values


@pytest.mark.parametrize("rule", RULES)
def test_documents_have_the_scores_of_their_passages(made: Path, tmp_path: Path, rule: GroupRule) -> None:
    options: dict[str, Any] = {"split": "test", "index": made / "dense", "hits": ALL}
    passages = runs.read_run(search(made / "passages", **options, group="none", output=tmp_path / "none.parquet"))
    documents = runs.read_run(search(made / "passages", **options, group=rule, output=tmp_path / "run.parquet"))
    expected = naive(passages, rule)
    assert {(qid, docid) for qid, docid in documents.select("qid", "docid").iter_rows()} == set(expected)
    for qid, docid, _, score in documents.iter_rows():
        assert score == pytest.approx(expected[qid, docid], abs=1e-6)
    assert artifacts.read_manifest(tmp_path / "run.parquet").options["group"] == rule
    assert "group" not in artifacts.read_manifest(tmp_path / "none.parquet").options


@pytest.mark.parametrize("index", ["bm25", "dense"])
def test_depth_counts_documents(made: Path, tmp_path: Path, index: str) -> None:
    """The first 3 of all documents, whose passages are far more."""
    found = {
        hits: runs.read_run(
            search(made / "passages", split="test", index=made / index, hits=hits, output=tmp_path / f"{hits}.parquet")
        )
        for hits in (3, ALL)
    }
    assert found[ALL].filter(pl.col("rank") <= 3).equals(found[3])
    if index == "dense":
        assert found[3].group_by("qid").len()["len"].unique().to_list() == [3]
        assert found[ALL]["docid"].n_unique() == len(TINY_DOCUMENTS)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", [None, "minmax", "rrf"])
def test_a_search_is_a_fusion_and_that_of_python(
    made: Path, tmp_path: Path, method: str | None, rule: GroupRule
) -> None:
    depth = 4
    sides = [made / "bm25", made / "dense"]
    how: dict[str, Any] = {"method": method, "weights": [0.3, 0.7]} if method else {}
    retriever = compose(sides, **how, depth=depth, group=rule, output=tmp_path / "retriever")
    assert read_json(retriever / "retriever.json")["group"] == rule
    single = [
        search(made / "passages", split="test", index=side, hits=depth, group=rule, output=tmp_path / f"{n}.parquet")
        for n, side in enumerate(sides)
    ]
    exact: dict[str, Any] = {"index": sides} if method is None else {}
    fused = runs.read_run(fuse(single, weights=f"@{retriever}", **exact, hits=depth, output=tmp_path / "fused.parquet"))
    own = runs.read_run(
        search(made / "passages", split="test", index=retriever, hits=depth, output=tmp_path / "own.parquet")
    )
    assert own.equals(fused)
    queries = pl.read_parquet(made / "passages" / "queries.test.parquet").select("qid", "text")
    live = open_retriever(retriever).search(queries, depth)
    assert live.select("qid", "docid", "rank").equals(own.select("qid", "docid", "rank"))
    np.testing.assert_allclose(live["score"], own["score"], atol=1e-6)
    assert groups.documents_of(live["passage"]).equals(live["docid"].alias("passage"))
    assert all(len(text.split()) <= 5 for text in live["text"])


def test_a_hit_shows_its_best_passage(made: Path) -> None:
    hit = open_index(made / "bm25").search("litre", 1).row(0, named=True)
    assert (hit["docid"], hit["passage"], hit["text"]) == ("salt", "salt#3", "in a litre.")


def test_runs_of_documents_are_measured_and_tuned_with_the_judgments_of_passages(made: Path, tmp_path: Path) -> None:
    single = [
        search(made / "passages", split="test", index=made / name, output=tmp_path / f"{name}.parquet")
        for name in ("bm25", "dense")
    ]
    values = [values_of(made / name, *single) for name in ("passages", "whole")]
    assert values[0].equals(values[1])
    tuned = [
        read_json(fuse(single, tune=True, qrels=made / name, split="test", output=tmp_path / f"{name}.json"))
        for name in ("passages", "whole")
    ]
    assert [content["weights"] for content in tuned] == [tuned[0]["weights"]] * 2
    assert [content["score"] for content in tuned] == [tuned[0]["score"]] * 2


def test_passages_and_documents_are_not_compared(made: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"split": "test", "index": made / "bm25"}
    documents = search(made / "passages", **options, output=tmp_path / "documents.parquet")
    passages = search(made / "passages", **options, group="none", output=tmp_path / "passages.parquet")
    with raises("passages-and-documents", run="documents"):
        values_of(made / "passages", documents, passages)
    with raises("other-queries"):  # no judgment is left, of documents either
        evaluate([made / "passages", documents], split="test", residual_qrels=made / "passages" / "qrels.test.parquet")
    assert len(values_of(made / "passages", passages))


def test_trainings_get_passages(made: Path, tmp_path: Path) -> None:
    retriever = compose([made / "bm25", made / "dense"], output=tmp_path / "retriever")
    known = set(pl.read_parquet(made / "passages" / "corpus.parquet")["docid"])
    mined = mine_negatives(made / "passages", split="train", index=retriever, output=tmp_path / "train.parquet")
    negatives = pl.read_parquet(mined)["negatives"].explode().struct.field("docid")
    assert len(negatives)
    assert set(negatives) <= known
    labels = label(made / "passages", index=retriever, split="train", output=tmp_path / "labels")
    hits: Sequence[str] = pl.read_parquet(sorted(labels.rglob("*.parquet")))["docids"].explode().drop_nulls().to_list()
    assert hits
    assert set(hits) <= known


def test_shards_and_lucene_return_documents(made: Path, tmp_path: Path) -> None:
    whole = runs.read_run(search(made / "passages", split="test", index=made / "bm25", output=tmp_path / "1.parquet"))
    index_bm25(made / "passages", shards=2, output=tmp_path / "shards")
    for number, options in enumerate(({"index": tmp_path / "shards"}, {"index": made / "bm25", "engine": "lucene"}), 2):
        output = tmp_path / f"{number}.parquet"
        run = runs.read_run(search(made / "passages", split="test", **options, output=output))  # type: ignore[arg-type]
        assert run.select("qid", "docid", "rank").equals(whole.select("qid", "docid", "rank"))
    with raises("no-exact-scores"):
        search(
            made / "passages", split="test", index=tmp_path / "shards", group="mean", output=tmp_path / "mean.parquet"
        )


def test_stored_vectors_of_queries_return_documents(made: Path, tiny_bert: Path, tmp_path: Path) -> None:
    vectors = encode(made / "passages", split="test", model=str(tiny_bert), output=tmp_path / "vectors")
    options: dict[str, Any] = {"index": made / "dense", "hits": 3}
    texts = runs.read_run(search(made / "passages", split="test", **options, output=tmp_path / "1.parquet"))
    stored = runs.read_run(search(queries=vectors, **options, output=tmp_path / "2.parquet"))
    assert stored.select("qid", "docid", "rank").equals(texts.select("qid", "docid", "rank"))


def test_ids_with_the_mark_alone_are_no_passages(tmp_path: Path) -> None:
    """Of a collection that was not made with --split-passages."""
    (tmp_path / "docs.csv").write_text("id,text\nissue#1,salt in the sea\nissue#2,salt on the table\n")
    ran("prepare", "files", tmp_path / "docs.csv", "--output", tmp_path / "issues")
    index = index_bm25(tmp_path / "issues", output=tmp_path / "bm25")
    assert open_index(index).search("salt", 5)["docid"].to_list() == ["issue#1", "issue#2"]


def test_judgments_of_documents_are_the_best_of_their_passages() -> None:
    qrels = pl.DataFrame({"qid": ["1", "1", "2"], "docid": ["a#0", "a#1", "b#3"], "relevance": [0, 2, 1]})
    expected = pl.DataFrame({"qid": ["1", "2"], "docid": ["a", "b"], "relevance": [2, 1]})
    assert groups.judgments_for(qrels, [("run", pl.Series(["c", "a"]))]).equals(expected)
    assert groups.judgments_for(qrels, [("run", pl.Series(["c#1"]))]).equals(qrels)


def test_ids_with_the_mark_keep_their_judgments(tmp_path: Path) -> None:
    """Of issues, and of issues that are split: the collection decides, not the form of an id."""
    (tmp_path / "docs.csv").write_text("id,text\nissue#1,salt in the sea\nissue#2,salt on the table\nREADME,salt\n")
    (tmp_path / "queries.tsv").write_text("id\ttext\nq1\tsea\nq2\tsalt\n")
    (tmp_path / "qrels.txt").write_text("q1 0 issue#1 1\nq2 0 issue#1 1\n")
    words = ["prepare", "files", tmp_path / "docs.csv", "--queries", f"test={tmp_path / 'queries.tsv'}"]
    words += ["--qrels", f"test={tmp_path / 'qrels.txt'}"]
    for name, options in (("whole", []), ("split", ["--split-passages", 2])):
        ran(*words, *options, "--output", tmp_path / name)
        index = index_bm25(tmp_path / name, output=tmp_path / f"{name}-bm25")
        run = search(tmp_path / name, split="test", index=index, output=tmp_path / f"{name}.parquet")
        assert "issue#1" in runs.read_run(run)["docid"]
        assert values_of(tmp_path / name, run)["value"].min() > 0  # type: ignore[operator]


def test_an_index_has_documents_as_hits_where_its_collection_is_gone(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "passages", tmp_path / "passages")
    index = index_bm25(tmp_path / "passages", output=tmp_path / "bm25")
    hits = open_index(index).search("litre", 3)["docid"]
    (tmp_path / "passages").rename(tmp_path / "elsewhere")
    assert open_index(index).search("litre", 3)["docid"].equals(hits)


def test_folds_of_a_split_collection_have_documents_as_hits(made: Path, tmp_path: Path) -> None:
    folds = split(made / "passages", split=["test"], folds=2, dev=False, output=tmp_path / "folds")
    index = index_bm25(folds, output=tmp_path / "bm25")
    run = search(folds, split="all", index=index, output=tmp_path / "run.parquet")
    assert not groups.are_passages(runs.read_run(run)["docid"])
    summary = evaluate([folds, run], split="all", measure=["nDCG@10"])
    assert summary.values["value"].sum() > 0


def test_judging_shows_the_passage_that_has_most_words_of_the_query(made: Path, tmp_path: Path) -> None:
    corpus = made / "passages" / "corpus.parquet"
    texts = JudgedTexts(made / "passages" / "queries.test.parquet", [corpus])
    texts.check(["salt"])
    title, text = texts.of("salt", "salt in a litre", ())
    assert (title, text.splitlines()[0]) == ("Table salt", "in a litre.")
    whole = pl.read_parquet(corpus).filter(groups.documents_of(pl.col("docid")) == "salt")["text"]
    assert sorted(filter(None, text.splitlines())) == sorted(whole)
