"""Validation on mined examples: dev queries and their documents, full retrieval, how often, resuming."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import Notices
from tiny_collection import TINY_DOCUMENTS, TINY_JUDGEMENTS, TINY_QUERIES

from hybrid_cli import artifacts
from hybrid_cli.artifacts.examples import open_dev_examples
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.storage import Kind
from hybrid_cli.training import dev_set
from hybrid_cli.training.dev_set import CORPUS, EXAMPLES, HITS, DevRetrieval, DevSet, reciprocal_ranks

PLAN: dict[str, Any] = {"batch_size": 3, "epochs": 4, "learning_rate": 1e-2, "dtype": "fp32", "checkpoint_steps": 3}
PLAN |= {"eval_steps": 2, "loss": "nll"}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(tiny, folder / "tiny")
    index_bm25(folder / "tiny", output=folder / "bm25")
    mined: dict[str, Any] = {"split": "train", "sources": "random:2", "index": folder / "bm25"}
    mine_negatives(folder / "tiny", output=folder / "train.parquet", **mined)
    return folder


@pytest.fixture
def index(made: Path) -> LexicalIndex:
    return open_bm25(made / "bm25")


@pytest.fixture
def bm25(index: LexicalIndex) -> StaticEncoder:
    terms = len(index.idf)
    encoder = StaticEncoder.over(index, ("title", "text"), dim=terms, vocab_size=terms, hash_buckets=1)
    for table in encoder.parameters():
        torch.nn.init.eye_(table)
    return encoder


def hits(index: LexicalIndex, query: str, count: int) -> list[str]:
    run = index.search(pl.DataFrame({"qid": ["q"], "text": [query]}), count)
    return run["docid"].to_list()


@pytest.mark.parametrize(("most", "limit", "origin"), [(4, 12, CORPUS), (4, 11, HITS), (1, 11, HITS)])
def test_dev_queries_search_the_corpus_or_the_best_hits(
    made: Path, index: LexicalIndex, monkeypatch: pytest.MonkeyPatch, most: int, limit: int, origin: str
) -> None:
    monkeypatch.setattr(dev_set, "MOST_HITS", most)
    dev = DevSet.of(replace(open_dev_examples(made / "train.parquet"), index=index), 6, limit)
    assert dev.origin == origin
    judged = [set(dev.documents["docid"].gather(rows)) for rows in dev.relevant]
    assert judged == [{"007"}, {"salt", "NA"}, {"moon landing"}, {"órgãos"}, {"bm25"}, {"null"}]
    found = set(dev.documents["docid"])
    assert found >= {hits(index, query, 1)[0] for query in dev.queries["text"].head(most)}
    assert len(found) == 12 if origin == CORPUS else len(found - set().union(*judged)) <= most


@pytest.mark.parametrize(
    ("small", "largest", "steps", "origin"),
    [(12, 12, 1, CORPUS), (12, 11, 1, HITS), (11, 12, 3, HITS), (11, 12, 4, CORPUS)],
)
def test_a_corpus_is_searched_if_it_is_small_or_half_of_the_documents_of_the_training(
    made: Path,
    tiny_bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    notices: Notices,
    small: int,
    largest: int,
    steps: int,
    origin: str,
) -> None:
    """A step encodes 6 documents, the corpus has 12."""
    monkeypatch.setattr(dev_set, "SMALL_CORPUS", small)
    monkeypatch.setattr(dev_set, "LARGEST", largest)
    examples = made / "train.parquet"
    out = train_dense(
        examples, output=tmp_path / "out", model=str(tiny_bert), **{**PLAN, "max_steps": steps}, dev=examples
    )
    assert artifacts.read_manifest(out, Kind.ENCODER).counts["dev_documents"] == origin
    assert notices.says("validation", origin=origin)


@pytest.mark.parametrize(("steps", "searched"), [(1, False), (2, True), (3, True)])
def test_a_corpus_as_large_as_the_training_is_searched_by_the_start_model_and_by_the_kept_weights(
    made: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, searched: bool
) -> None:
    """A step encodes 6 documents, the corpus has 12."""
    for name, number in {"SMALL_CORPUS": 5, "MOST_HITS": 2, "DEPTH": 1}.items():
        monkeypatch.setattr(dev_set, name, number)
    found: list[set[str]] = []
    true = DevRetrieval.measure

    def measure(self: DevRetrieval) -> dict[str, float]:
        found.append(set(self._docids))
        return true(self)

    monkeypatch.setattr(DevRetrieval, "measure", measure)
    examples = made / "train.parquet"
    plan = {**PLAN, "max_steps": steps, "keep": "last"}
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **plan, dev=examples)
    counts = artifacts.read_manifest(out, Kind.ENCODER).counts
    assert (counts["dev_documents"], counts.get("dev_corpus")) == (HITS, 12 if searched else None)
    values = pl.read_parquet(out / "curve.parquet").filter(name="dev_corpus_MRR@10")
    assert values["step"].to_list() == [steps] * searched
    lexical = DevSet.of(replace(open_dev_examples(examples), index=open_bm25(made / "bm25")), 6, 11)
    assert found[0] >= set(lexical.documents["docid"])
    if searched:
        assert values["value"].item() == pytest.approx(full_retrieval(made, out))
        start = DevRetrieval(
            DevSet.of(replace(open_dev_examples(examples), index=None), 6, 12), open_encoder(tiny_bert), None
        )
        assert found[0] == {*lexical.documents["docid"], *start.hits()}
        assert start.hits().to_list() == top_hits(tiny_bert)[:2]


def top_hits(model: Path) -> list[str]:
    encoder = open_encoder(model)
    titles, texts = ([document[column] for document in TINY_DOCUMENTS] for column in (1, 2))
    scores = encoder.encode_queries([text for _, text in TINY_QUERIES["train"]])
    best = (scores @ encoder.encode_documents(titles, texts).T).argmax(1)
    return list(dict.fromkeys(TINY_DOCUMENTS[place][0] for place in best))


def test_each_validation_is_full_retrieval_by_the_model_of_its_step(
    made: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    """The models of the steps are those of trainings that end there."""
    examples = made / "train.parquet"
    steps: dict[str, Any] = {**PLAN, "schedule": "constant", "warmup": 0, "dev": examples, "keep": "last"}
    curve = pl.read_parquet(
        train_dense(examples, output=tmp_path / "all", model=str(tiny_bert), **steps, max_steps=4) / "curve.parquet"
    )
    values = curve.filter(name="dev_MRR@10")
    assert values["step"].to_list() == [0, 2, 4]
    expected = [full_retrieval(made, tiny_bert)]
    for step in (2, 4):
        out = train_dense(examples, output=tmp_path / f"{step}", model=str(tiny_bert), **steps, max_steps=step)
        expected.append(full_retrieval(made, out))
    assert values["value"].to_list() == pytest.approx(expected)
    assert len(set(expected)) > 1


VALIDATIONS_ENCODE_AT: list[Any] = [({"max_steps": 7}, [0, 2, 4, 6, 7])]
VALIDATIONS_ENCODE_AT += [({"max_steps": 7, "batch_size": 2}, [0, 3, 6, 7])]
VALIDATIONS_ENCODE_AT += [({"max_steps": 7, "batch_size": 2, "accumulate": 3}, [*range(8)]), ({"max_steps": 1}, [0, 1])]
VALIDATIONS_ENCODE_AT += [({"max_steps": 30}, [*range(0, 31, 3)]), ({"max_steps": 4, "eval_steps": 1}, [0, 1, 2, 3, 4])]


@pytest.mark.parametrize(("change", "expected"), VALIDATIONS_ENCODE_AT)
def test_validations_encode_at_most_as_many_documents_as_the_training_and_the_best_is_kept(
    made: Path, tiny_bert: Path, tmp_path: Path, change: dict[str, Any], expected: list[int]
) -> None:
    """A step encodes 6 documents if nothing is changed, the corpus has 12."""
    plan, examples = {**PLAN, "eval_steps": None, "epochs": 30, **change}, made / "train.parquet"
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **plan, dev=examples)
    curve = pl.read_parquet(out / "curve.parquet")
    sums = curve.filter(name="dev_hybrid_MRR@10")
    assert sums["step"].to_list() == expected
    dense = curve.filter(name="dev_MRR@10")["value"]
    assert (sums["value"] >= dense).all(), "a weight of 0 is among those of the sum"
    best = artifacts.read_manifest(out, Kind.ENCODER).counts["best_step"]
    assert sums.filter(step=best)["value"].item() == sums["value"].max()
    assert curve.filter(name="dev_MRR@10", step=best)["value"].item() == pytest.approx(full_retrieval(made, out))


def test_the_start_may_win(
    made: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: Notices
) -> None:
    values = iter([0.5, 0.4, 0.3])
    monkeypatch.setattr(DevRetrieval, "measure", lambda self: {"dev_MRR@10": next(values)})
    moved = Path(shutil.copy(made / "train.parquet", tmp_path))
    out = train_dense(moved, output=tmp_path / "out", model=str(tiny_bert), **PLAN, max_steps=4, dev=moved)
    assert artifacts.read_manifest(out, Kind.ENCODER).counts["best_step"] == 0
    assert notices.says("no-better-validation", option="keep")
    assert notices.says("validation", origin=EXAMPLES), "without their corpus, the examples are searched"


def test_a_query_encoder_is_validated_every_tenth_of_the_steps(made: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """The vectors of documents are encoded once."""
    plan = {**PLAN, "eval_steps": None, "max_steps": 10, "epochs": 10, "queries_only": True}
    del plan["loss"]
    examples, model = made / "train.parquet", str(tiny_bert)
    out = distill_lite(examples, output=tmp_path / "out", model=model, teacher=model, **plan, dev=examples)
    assert pl.read_parquet(out / "curve.parquet").filter(name="dev_MRR@10")["step"].to_list() == [*range(11)]


@pytest.mark.parametrize("fixed", [False, True])
def test_changed_documents_are_encoded_again(index: LexicalIndex, made: Path, bm25: StaticEncoder, fixed: bool) -> None:
    dev = DevSet.of(replace(open_dev_examples(made / "train.parquet"), index=index), 6, 12)
    retrieval = DevRetrieval(dev, bm25, None, fixed)
    first = retrieval.measure()["dev_MRR@10"]
    with torch.no_grad():
        bm25.document_table.neg_()
    assert (retrieval.measure()["dev_MRR@10"] == first) is fixed


def full_retrieval(made: Path, model: Path) -> float:
    """Return MRR@10 of the train queries over the tiny corpus, computed without the validation."""
    encoder = open_encoder(model)
    titles, texts = ([document[column] for document in TINY_DOCUMENTS] for column in (1, 2))
    queries = encoder.encode_queries([text for _, text in TINY_QUERIES["train"]])
    scores = queries @ encoder.encode_documents(titles, texts).T
    found = []
    for (qid, _), row in zip(TINY_QUERIES["train"], scores, strict=True):
        relevant = {docid for other, docid, _ in TINY_JUDGEMENTS["train"] if other == qid}
        ranked = [TINY_DOCUMENTS[place][0] for place in np.argsort(-row)]
        rank = next(place for place, docid in enumerate(ranked, 1) if docid in relevant)
        found.append(1 / rank if rank <= 10 else 0)
    return sum(found) / len(found)


def test_reciprocal_ranks_by_hand() -> None:
    scores = np.array([[3, 2, 1, 0], [1, 1, 0, 0], [0, 5, 4, 4]], np.float32)
    relevant = [np.array([1, 2]), np.array([0]), np.array([3])]
    assert reciprocal_ranks(scores, relevant).tolist() == [1 / 2, 1 / 2, 1 / 3]  # ties count against it
    assert reciprocal_ranks(scores, relevant, cut=2).tolist() == [1 / 2, 1 / 2, 0]
