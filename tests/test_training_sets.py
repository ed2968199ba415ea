"""`mine-negatives` on several training sets, and on files that bring their own negatives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Refusal, raises, refusal

from hybrid_cli import artifacts, storage
from hybrid_cli.collections.readers.given import given_negatives
from hybrid_cli.settings import MineNegatives
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.storage import Kind
from hybrid_cli.training.batches import Examples


def changed_copy(tiny: Path, folder: Path) -> Path:
    """Copy the collection with another text of every document."""
    shutil.copytree(tiny, folder)
    corpus = pl.read_parquet(folder / "corpus.parquet").with_columns(text=pl.col("text") + " more")
    manifest = artifacts.Manifest(Kind.CORPUS, "test", {}, {})
    storage.write_parquet(folder / "corpus.parquet", [corpus.to_arrow()], storage.SCHEMAS[Kind.CORPUS], manifest)
    return folder


def test_sets_over_one_corpus_keep_their_queries_apart_and_share_documents(tiny: Path, tmp_path: Path) -> None:
    bm25 = index_bm25(tiny, output=tmp_path / "bm25")
    shutil.copytree(tiny, tmp_path / "nq")
    shutil.copytree(tiny, tmp_path / "web")
    options: dict[str, Any] = {"split": "train", "index": bm25, "num_negatives": 3}
    alone = pl.read_parquet(mine_negatives(tiny, output=tmp_path / "alone.parquet", **options))
    both = pl.read_parquet(
        mine_negatives([tmp_path / "nq", tmp_path / "web"], output=tmp_path / "b.parquet", **options)
    )
    assert both["qid"].to_list() == [f"{name}:{qid}" for name in ("nq", "web") for qid in alone["qid"]]
    for part in (both.head(len(alone)), both.tail(len(alone))):
        assert part.drop("qid").equals(alone.drop("qid"))
    assert artifacts.read_manifest(tmp_path / "b.parquet").counts["queries"] == 2 * alone["qid"].n_unique()


def test_sets_over_other_corpora_keep_their_documents_apart(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "nq")
    other = changed_copy(tiny, tmp_path / "web")
    output = mine_negatives([tmp_path / "nq", other], split="train", sources="random:2", output=tmp_path / "x.parquet")
    rows = pl.read_parquet(output)
    for name in ("nq", "web"):
        part = rows.filter(pl.col("qid").str.starts_with(f"{name}:"))
        documents = pl.concat([part["docid"], part["negatives"].explode().struct.field("docid")])
        assert documents.str.starts_with(f"{name}:").all()
    assert len(Examples(output)) == len(rows)


def test_each_of_several_sets_has_the_negatives_of_its_own_file(tiny: Path, tmp_path: Path) -> None:
    """As DPR-multi: the query ids of the files are those of their sets."""
    items, wanted = [], {"nq": ["lungs", "salt"], "web": ["dense", "salt"]}
    for name, negatives in wanted.items():
        shutil.copytree(tiny, tmp_path / name)
        lines = [f"t1\t007\t{docid}" for docid in negatives]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        items.append(f"given:{tmp_path / name}.tsv")
    rows = pl.read_parquet(
        mine_negatives(
            [tmp_path / name for name in wanted], split="train", sources=[f"{item}:2" for item in items],
            output=tmp_path / "x.parquet",
        )
    )  # fmt: skip
    for name, negatives in wanted.items():
        drawn = rows.filter(qid=f"{name}:t1")["negatives"][0].struct.field("docid")
        assert sorted(drawn) == negatives
    kinds = {source.name: source.count for source in MineNegatives(
        [tmp_path / name for name in wanted], sources=items, output=tmp_path / "y").plan()}  # fmt: skip
    assert kinds == {"given": 8}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": "random:1"}, refusal("invalid-name")),
        ({"sources": "run:a.parquet:1"}, refusal("conflicting-options", option="sources")),
        ({"sources": "given:a.json:1,given:b.json:2"}, refusal("number-of-values", option="sources")),
        ({"index": ["a", "b", "c"]}, refusal("number-of-values", option="index")),
    ],
)
def test_ambiguous_training_sets_are_refused(options: dict[str, Any], message: str | Refusal) -> None:
    with raises(message):
        MineNegatives([Path("a/tiny"), Path("b/tiny")], output=Path("x.parquet"), **options)


GIVEN: dict[str, str] = {
    "dpr.json": json.dumps(
        [
            {"question": "a", "positive_ctxs": [], "hard_negative_ctxs": [{"passage_id": "d03"}, {"psg_id": "d01"}]},
            {"question": "b", "positive_ctxs": [], "hard_negative_ctxs": []},
        ]
    ),
    "tevatron.jsonl": json.dumps(
        {
            "query_id": "0",
            "query": "a",
            "positive_passages": [],
            "negative_passages": [{"docid": "d03"}, {"docid": "d01"}],
        }
    ),
    "triples.tsv": "0\td09\td03\n0\td08\td03\n0\td09\td01\n",
}


@pytest.mark.parametrize("name", GIVEN)
def test_negatives_of_a_training_file_are_read_in_its_order(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(GIVEN[name])
    assert given_negatives(tmp_path / name).select("qid", "docid", "rank").rows() == [("0", "d03", 1), ("0", "d01", 2)]


def test_given_negatives_are_the_only_ones_of_a_query_that_has_enough(tiny: Path, tmp_path: Path) -> None:
    qrels = pl.read_parquet(tiny / "qrels.train.parquet").filter(pl.col("relevance") > 0)
    qid = qrels["qid"][0]
    positives = qrels.filter(qid=qid)["docid"].to_list()
    others = [docid for docid in pl.read_parquet(tiny / "corpus.parquet")["docid"] if docid not in positives][:3]
    lines = [f"{qid}\t{positives[0]}\t{docid}" for docid in [*others, positives[0], "unknown"]]
    (tmp_path / "triples.tsv").write_text("\n".join(lines) + "\n")
    output = mine_negatives(
        tiny, split="train", sources=f"given:{tmp_path / 'triples.tsv'}:3", output=tmp_path / "x.parquet"
    )
    row = pl.read_parquet(output).filter(qid=qid)["negatives"][0]
    assert set(row.struct.field("docid")) == set(others)
    assert set(row.struct.field("source")) == {"given"}


def test_the_first_positive_is_that_of_the_judgments_and_the_others_are_no_negatives(
    tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "qrels.txt").write_text("101 0 p03 1\n101 0 p01 1\n101 0 p02 0\n")
    (tmp_path / "queries.tsv").write_text("101\tsodium\n")
    docids = pl.read_parquet(tiny / "corpus.parquet")["docid"].sort().to_list()
    text = (tmp_path / "qrels.txt").read_text()
    for name, docid in zip(("p01", "p02", "p03"), docids, strict=False):
        text = text.replace(name, docid)
    (tmp_path / "qrels.txt").write_text(text)
    files = {"queries": tmp_path / "queries.tsv", "qrels": tmp_path / "qrels.txt"}
    options: dict[str, Any] = {"sources": "random:11", "positives": "first", **files}
    rows = pl.read_parquet(mine_negatives(tiny, output=tmp_path / "x.parquet", **options))
    assert rows["docid"].to_list() == [docids[2]]
    assert docids[0] not in rows["negatives"][0].struct.field("docid").to_list()
