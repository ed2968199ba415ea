"""Validation of `train-dense`: dev queries, the pool of hard documents, full retrieval at the end, resuming."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from processes import run
from tiny_collection import write_lines

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.open_encoder import open_encoder
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.training import dev_pool
from hybrid_cli.training.dev_pool import CORPUS, EXAMPLES, HITS, DevPool, DevSet, reciprocal_ranks
from hybrid_cli.training.teachers import Bm25Scorer

PLAN: dict[str, Any] = {
    "batch_size": 3, "epochs": 4, "learning_rate": 1e-2, "precision": "fp32", "checkpoint_steps": 3, "eval_steps": 2,
    "loss": "nll",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the collection, its index, and train examples with two random negatives."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(tiny, folder / "tiny")
    index_bm25(folder / "tiny", output=folder / "bm25")
    mined: dict[str, Any] = {"split": "train", "sources": "random:2", "index": folder / "bm25"}
    mine_negatives(folder / "tiny", output=folder / "train.parquet", **mined)
    return folder


@pytest.fixture
def index(made: Path) -> LexicalIndex:
    return LexicalIndex.open(made / "bm25")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of 4 hits, from 3 ranks."""
    monkeypatch.setattr(dev_pool, "POOL", 4)
    monkeypatch.setattr(dev_pool, "DEPTH", 3)


@pytest.fixture
def bm25(index: LexicalIndex) -> StaticEncoder:
    """An encoder whose scores are BM25: both tables are the identity."""
    terms = len(index.idf)
    encoder = StaticEncoder.over(index, ("title", "text"), dim=terms, vocab_size=terms, hash_buckets=1)
    for table in encoder.parameters():
        torch.nn.init.eye_(table)
    return encoder


def hits(index: LexicalIndex, query: str, count: int) -> list[str]:
    run = index.search(pl.DataFrame({"qid": ["q"], "text": [query]}), count)
    return run["docid"].to_list()


@pytest.mark.parametrize(("limit", "origin"), [(12, CORPUS), (8, HITS), (5, HITS)])
def test_dev_queries_search_the_corpus_or_the_best_hits(
    made: Path, index: LexicalIndex, limit: int, origin: str
) -> None:
    dev = DevSet.of(made / "train.parquet", 6, index, limit, 1)
    assert dev.origin == origin
    judged = [set(dev.documents["docid"].gather(rows)) for rows in dev.relevant]
    assert judged == [{"007"}, {"salt", "NA"}, {"moon landing"}, {"órgãos"}, {"bm25"}, {"null"}]
    found = set(dev.documents["docid"])
    assert found >= {hits(index, query, 1)[0] for query in dev.queries["text"].head(limit)}
    assert len(found) <= limit if origin == CORPUS else len(found - set().union(*judged)) <= limit


def test_n_dev_queries_are_n_queries(made: Path, index: LexicalIndex) -> None:
    """The second query has two rows."""
    for count in (1, 2, 3, 6):
        dev = DevSet.of(made / "train.parquet", count, index, 12, 1)
        assert dev.queries["qid"].to_list() == [f"t{number}" for number in range(1, count + 1)]


def test_without_the_corpus_the_documents_of_the_examples_are_searched(
    made: Path, tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Path(shutil.copy(made / "train.parquet", tmp_path))
    out = train_dense(moved, output=tmp_path / "out", model=str(tiny_bert), **PLAN, dev=moved)
    assert "documents of the dev examples (their corpus was moved or changed" in capsys.readouterr().err
    assert artifacts.read_manifest(out, Kind.ENCODER).counts["dev_documents"] == EXAMPLES
    assert not [name for name in pl.read_parquet(out / "curve.parquet")["name"] if name.startswith("full_")]


@pytest.mark.parametrize(("small_corpus", "origin"), [(12, CORPUS), (11, HITS)])
def test_a_small_corpus_is_searched_after_any_number_of_steps(
    made: Path,
    tiny_bert: Path,
    tmp_path: Path,
    small: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    small_corpus: int,
    origin: str,
) -> None:
    """One step encodes 6 documents, the corpus has 12."""
    monkeypatch.setattr(dev_pool, "SMALL_CORPUS", small_corpus, raising=False)
    examples, plan = made / "train.parquet", {**PLAN, "max_steps": 1}
    del plan["epochs"]
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **plan, dev=examples)
    assert artifacts.read_manifest(out, Kind.ENCODER).counts["dev_documents"] == origin
    full = [name for name in pl.read_parquet(out / "curve.parquet")["name"] if name.startswith("full_")]
    assert bool(full) == (origin == CORPUS)
    missing = "hits of the model outside them and full retrieval at the end are missing"
    assert (missing in capsys.readouterr().err) == (origin == HITS)


def test_the_pool_tells_models_apart_that_tie_on_the_documents_of_the_examples(
    made: Path, index: LexicalIndex, bm25: StaticEncoder, tmp_path: Path, small: None
) -> None:
    """A model that overrates "documents" prefers "Dense retrieval", which is no negative, to the positive."""
    asked = write_lines(made / "one" / "query.tsv", "t5\tranking documents with query terms")
    mined = made / "one" / "examples.parquet"
    how: dict[str, Any] = {"split": "train", "queries": asked, "sources": "random:2", "index": made / "bm25", "seed": 0}
    mine_negatives(made / "tiny", output=mined, **how)
    moved, scores = Path(shutil.copy(mined, tmp_path)), Bm25Scorer(index, index.docids)
    old, new = (DevPool(DevSet.of(each, 1, index, 12, 1), bm25, scores, tmp_path, 6) for each in (moved, mined))
    assert (old.dev.origin, new.dev.origin) == (EXAMPLES, CORPUS)
    assert "dense" not in old.dev.documents["docid"]
    before = [pool.validate(0)["dev_MRR@10"] for pool in (old, new)]
    with torch.no_grad():
        bm25.query_table[bm25.terms.to_list().index("document")] *= 100
    assert before == [1, 1]
    assert [pool.validate(0)["dev_MRR@10"] for pool in (old, new)] == [1, 1 / 2]
    assert new.full(1)["full_MRR@10"] == 1 / 2


def test_the_pool_has_the_top_hits_of_bm25_and_of_the_current_model(
    made: Path, index: LexicalIndex, bm25: StaticEncoder, tmp_path: Path, small: None
) -> None:
    dev = DevSet.of(made / "train.parquet", 6, index, 12, 1)
    query = dev.queries["text"][2]  # first people on the moon
    dev = DevSet(dev.queries[2:3], dev.documents, [dev.relevant[2]], dev.origin)
    pool = DevPool(dev, bm25, Bm25Scorer(index, index.docids), tmp_path, 6)

    def drawn() -> set[str]:
        return set(dev.documents["docid"].gather(pool.rows(bm25.encode_queries([query]))))

    start = drawn()
    assert start >= {*hits(index, query, 2), "moon landing"}
    assert len(start) <= 4 + 1
    with torch.no_grad():
        bm25.query_table[bm25.terms.to_list().index("moon")] = torch.eye(len(index.idf))[
            bm25.terms.to_list().index("blood")
        ]
    assert {"órgãos", "lungs"} & drawn() - start, "documents about blood"


def test_the_pool_follows_changed_documents_once_the_training_has_encoded_as_many(
    index: LexicalIndex, made: Path, bm25: StaticEncoder, tmp_path: Path, small: None
) -> None:
    """A step encodes 6 documents, the corpus has 12."""
    whole = DevSet.of(made / "train.parquet", 6, index, 12, 1)
    dev = DevSet(whole.queries[2:3], whole.documents, [whole.relevant[2]], CORPUS)  # first people on the moon
    pool = DevPool(dev, bm25, Bm25Scorer(index, index.docids), tmp_path, 6)

    def drawn(step: int) -> set[str]:
        pool.validate(step)
        return set(dev.documents["docid"].gather(pool.rows(bm25.encode_queries(pool.texts))))

    start = drawn(0)
    terms = bm25.terms.to_list()
    with torch.no_grad():
        bm25.document_table[terms.index("blood")] = 9 * torch.eye(len(terms))[terms.index("moon")]
    assert not {"órgãos", "lungs"} & start
    assert drawn(1) == start
    assert {"órgãos", "lungs"} <= drawn(2), "documents about blood"
    assert pool.validate(2)["dev_MRR@10"] == pool.full(2)["full_MRR@10"] == pool.full(9)["full_MRR@10"] == 1 / 3
    with torch.no_grad():
        bm25.document_table[terms.index("blood")] = 0
    assert {"órgãos", "lungs"} <= drawn(3)
    assert not {"órgãos", "lungs"} & drawn(4)


def test_fixed_documents_are_encoded_once(
    index: LexicalIndex, made: Path, bm25: StaticEncoder, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents of a teacher do not change with the query encoder that is trained."""
    pool = DevPool(DevSet.of(made / "train.parquet", 6, index, 12, 1), bm25, None, tmp_path, 0)
    monkeypatch.setattr(bm25, "encode_documents", None)
    assert pool.validate(1000)["dev_MRR@10"] <= 1
    assert pool.full(1000)["full_MRR@10"] <= 1


def test_during_training_the_pool_contains_the_best_documents_of_the_model(
    made: Path, index: LexicalIndex, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each validation encodes the corpus again, because two steps encode 12 documents."""
    monkeypatch.setattr(dev_pool, "POOL", 11)
    monkeypatch.setattr(dev_pool, "DEPTH", 1)
    true, outside = DevPool.measure, []

    def measure(self: DevPool, queries: Any, documents: Any, rows: Any) -> dict[str, float]:
        texts = self.dev.documents
        everything = self.encoder.encode_documents(texts["title"].to_list(), texts["text"].to_list())
        outside.append(set((queries @ everything.T).argmax(1).tolist()) - set(rows.tolist()))
        return true(self, queries, documents, rows)

    monkeypatch.setattr(DevPool, "measure", measure)
    examples = made / "train.parquet"
    train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **PLAN, dev=examples, dev_queries=2)
    assert len(outside) == 8, "7 validations, one full retrieval"
    assert not any(outside)


def test_reciprocal_ranks_by_hand() -> None:
    scores = np.array([[3, 2, 1, 0], [1, 1, 0, 0], [0, 5, 4, 4]], np.float32)
    relevant = [np.array([1, 2]), np.array([0]), np.array([3])]
    assert reciprocal_ranks(scores, relevant).tolist() == [1 / 2, 1 / 2, 1 / 3]  # ties count against it
    assert reciprocal_ranks(scores, relevant, cut=2).tolist() == [1 / 2, 1 / 2, 0]


def test_the_curve_ends_with_full_retrieval_of_the_kept_step(
    made: Path, index: LexicalIndex, tiny_bert: Path, tmp_path: Path
) -> None:
    examples = made / "train.parquet"
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **PLAN, dev=examples)
    manifest, curve = artifacts.read_manifest(out, Kind.ENCODER), pl.read_parquet(out / "curve.parquet")
    assert manifest.counts["dev_documents"] == CORPUS
    full = curve.filter(pl.col("name").str.starts_with("full_"))
    assert set(full["step"]) == {manifest.counts["best_step"]}
    encoder, dev = open_encoder(out), DevSet.of(examples, 200, index, 12, 1)
    documents = encoder.encode_documents(dev.documents["title"].to_list(), dev.documents["text"].to_list())
    scores = encoder.encode_queries(dev.queries["text"].to_list()) @ documents.T
    assert len(documents) == collections.document_count(made / "tiny")
    expected = reciprocal_ranks(scores, dev.relevant).mean()
    assert full.filter(name="full_MRR@10")["value"].item() == pytest.approx(expected)


SLOWER = {**PLAN, "batch_size": 2, "checkpoint_steps": 5}  # encodes 4 documents per step, the corpus at 4, 8, 12, 16


@pytest.mark.parametrize(
    ("kill", "kept"),
    [
        pytest.param("step == 3", [], id="before a checkpoint"),
        pytest.param("step == 7", ["pool-00000004.npy"], id="after a checkpoint"),
        pytest.param("step == 9", ["pool-00000004.npy"], id="encoded again since the checkpoint"),
        pytest.param("saved == 2", ["pool-00000004.npy"], id="while a checkpoint is written"),
    ],
)
def test_a_killed_training_resumes_with_the_vectors_of_the_last_encoding(
    made: Path, tiny_bert: Path, tmp_path: Path, small: None, kill: str, kept: list[str]
) -> None:
    examples, killed = made / "train.parquet", tmp_path / "killed"
    whole = train_dense(examples, output=tmp_path / "whole", model=str(tiny_bert), **SLOWER, dev=examples)
    code = f"""
import os, signal, sys
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.training import dev_pool
from hybrid_cli.training.loop import Trainer
dev_pool.POOL, dev_pool.DEPTH = 4, 3
saved, true, true_save = 0, Trainer.step, dev_pool.DevPool.save
def step(self, batches, step=0):
    if {kill}: os.kill(os.getpid(), signal.SIGKILL)
    return true(self, batches, step)
def save(self, checkpoint):
    global saved
    saved += 1
    true_save(self, checkpoint)
    if {kill.replace("step ==", "-1 ==")}: os.kill(os.getpid(), signal.SIGKILL)
Trainer.step, dev_pool.DevPool.save = step, save
examples, model, output = sys.argv[1:]
train_dense(examples, model=model, output=output, dev=examples, threads=1, **{SLOWER!r})
"""
    ended = run(code, examples, tiny_bert, killed)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    partial = tmp_path / ".killed.partial"
    assert (partial / ".frozen" / "start-000000.npy").is_file()
    assert [file.name for file in (partial / ".checkpoint").glob("pool-*")] == kept
    train_dense(examples, output=killed, model=str(tiny_bert), **SLOWER, dev=examples)
    for name in ("model.safetensors", "curve.parquet"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    best = [artifacts.read_manifest(folder, Kind.ENCODER).counts["best_step"] for folder in (killed, whole)]
    assert best[0] == best[1]
    assert not [*killed.rglob(".*"), *killed.rglob("pool-*")]


def test_checkpoints_between_two_encodings_share_the_vectors(
    made: Path, index: LexicalIndex, bm25: StaticEncoder, tmp_path: Path, small: None
) -> None:
    def pool() -> DevPool:
        return DevPool(DevSet.of(made / "train.parquet", 6, index, 12, 1), bm25, None, tmp_path, 6)

    first, again = pool(), tmp_path / ".checkpoint"
    again.mkdir()
    first.validate(2)
    first.save(again)
    file, copy = again / "pool-00000002.npy", tmp_path / "next"
    copy.mkdir()
    first.save(copy)
    assert (copy / file.name).samefile(file)
    resumed = pool()
    resumed.load(copy)
    queries = bm25.encode_queries(resumed.texts) @ torch.rand(len(index.idf), len(index.idf)).numpy()
    assert resumed.rows(queries).tolist() == first.rows(queries).tolist()
