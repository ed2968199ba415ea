"""Training with a frozen scorer: its scores of a batch, their weight, and negatives mined from the sum."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import raises
from trainings import curve

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.commands import TrainDense
from hybrid_cli.encoders.contract import Encoder
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.storage import Kind, layout
from hybrid_cli.training.batches import Examples, Group
from hybrid_cli.training.dense import Fusion, RefreshedNegatives, StudentNegatives, relevant
from hybrid_cli.training.options import Sampling
from hybrid_cli.training.teachers import Bm25Scorer, FrozenEncoder, PostingsScorer, ScorerWeight

PLAN: dict[str, Any] = {"batch_size": 4, "epochs": 20, "max_steps": 20, "learning_rate": 1e-3, "dtype": "fp32"}
PLAN |= {"checkpoint_steps": 6}


@pytest.mark.parametrize("loss", ["residual-nll", "residual-margin"])
def test_learn_with_a_frozen_one(mined: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path: Path, loss: str) -> None:
    before = storage.fingerprint(tiny_lambda)
    plan = {**PLAN, "loss": loss, "model": str(tiny_bert), "scorer": str(tiny_lambda)}
    joint = train_dense(mined, output=tmp_path / "joint", **plan, scorer_schedule="learned")
    alone = train_dense(mined, output=tmp_path / "alone", **plan, scorer_weight=0)
    assert storage.fingerprint(tiny_lambda) == before
    vectors = [open_encoder(folder).encode_queries(["salt water"]) for folder in (joint, alone)]
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)
    manifest = artifacts.read_manifest(joint)
    assert manifest.inputs["scorer"]["fingerprint"] == before
    weights = curve(joint, "scorer_weight")
    assert weights[0] == 1
    assert manifest.counts["scorer_weight"] > 0
    assert len(set(weights)) > 10
    assert "scorer_weight" not in artifacts.read_manifest(alone).counts
    found = curve(joint, loss.replace("-", "_"))
    assert np.mean(found[-4:]) < np.mean(found[:4])


def test_a_frozen_model_scores_all_pairs_of_a_batch(mined: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    groups = next(Examples(mined).batches(Sampling(batch_size=3)))
    encoder = open_encoder(tiny_lambda)
    docids = [docid for group in groups for docid in group.docids]
    scores = FrozenEncoder(encoder, Examples(mined), tmp_path).scores([group.query for group in groups], docids)
    assert scores.shape == (3, 6)
    last = groups[2]
    document = encoder.encode_documents(last.titles[1:], last.texts[1:])[0]
    query = encoder.encode_queries([groups[0].query])[0]
    assert scores[0, 5] == pytest.approx(float(query @ document), abs=1e-5)


def test_bm25_scores_all_pairs_of_a_batch_as_the_examples_store_them(mined: Path, tiny_bm25: Path) -> None:
    groups = next(Examples(mined).batches(Sampling(batch_size=7)))
    docids = [docid for group in groups for docid in group.docids]
    scores = Bm25Scorer(open_bm25(tiny_bm25), Examples(mined).docids()).scores(
        [group.query for group in groups], docids
    )
    for row, group in enumerate(groups):
        assert scores[row, 2 * row : 2 * row + 2] == pytest.approx(group.lexical, abs=1e-4)
    assert (scores > 0).sum() > np.count_nonzero(
        np.array([group.lexical for group in groups], float)
    )  # documents of other queries too


def test_the_schedules_of_the_weight() -> None:
    fixed, anneal, random = (ScorerWeight(0.4, name, 11) for name in ("fixed", "anneal", "random"))  # type: ignore[arg-type]
    assert [fixed(step, step).item() for step in (0, 10)] == pytest.approx([0.4, 0.4])
    assert [anneal(step, 7).item() for step in (0, 5, 10)] == pytest.approx([0, 0.2, 0.4])
    drawn = [random(3, noise).item() for noise in range(200)]
    assert [random(9, noise).item() for noise in range(200)] == drawn  # the seed of the batch decides
    assert 0 <= min(drawn) < 0.02 < 0.38 < max(drawn) <= 0.4
    assert np.mean(drawn) == pytest.approx(0.2, abs=0.03)


def test_the_learned_weight_starts_at_its_value() -> None:
    weight = ScorerWeight(0.05, "learned")
    assert weight(3, 4).item() == pytest.approx(0.05)
    weight(3, 4).backward()
    assert weight.logarithm is not None
    assert weight.logarithm.grad is not None
    assert weight.logarithm.grad.item() == pytest.approx(50)


def test_dynamic_negatives_are_the_top_hits_of_the_sum(
    mined: Path, tiny_bm25: Path, tiny_bert: Path, tiny: Path
) -> None:
    known, encoder = Examples(mined), TransformerEncoder.load(tiny_bert)
    texts = pl.concat(list(known.documents()))
    scorer = Bm25Scorer(open_bm25(tiny_bm25), known.docids())
    plan = Sampling(batch_size=4, checkpoint_steps=3)
    batch = next(known.batches(plan))
    tops = []
    for weight in (0.0, 100.0):  # the model alone, BM25 alone
        fusion = Fusion(0.5, scorer, ScorerWeight(weight))
        negatives = StudentNegatives(
            encoder, texts, plan, torch.float32, 2, 100, relevant(texts, known.positives()), fusion
        )
        extended = next(negatives.added(iter([batch]), 0))
        tops.append([group.docids[2:] for group in extended])
        encoder.eval()
        for before, after in zip(batch, extended, strict=True):
            others = texts.filter(~pl.col("docid").is_in([*before.docids, *before.positives]))
            query, documents = (
                encoder.encode_queries([before.query]),
                encoder.encode_documents(others["title"].to_list(), others["text"].to_list()),
            )
            fused = (query @ documents.T)[0] / 0.5 + weight * scorer.scores([before.query], others["docid"].to_list())[
                0
            ]
            assert after.docids[:2] == before.docids
            assert after.docids[2:] == others["docid"].gather(np.argsort(-fused, kind="stable")[:2]).to_list()
            assert after.texts[2:] == [texts.filter(docid=docid)["text"].item() for docid in after.docids[2:]]
    assert tops[0] != tops[1]


def test_copies_of_a_positive_are_not_dynamic_negatives() -> None:
    rows = [("p", "", "a  b"), ("copy", "", "a b"), ("other", "", "c"), ("q", "a", "b")]
    texts = pl.DataFrame(rows, schema=["docid", "title", "text"], orient="row")
    group = Group("?", ["p"], [""], ["a  b"], [0.0], frozenset({"p"}))
    assert relevant(texts, pl.Series(["p"]))(group) == {"p", "copy", "q"}


def test_dynamic_negatives_are_ranked_by_no_loss(mined: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """With weight 0 the sum ranks as the model; a residual loss may use the model's own ranking."""

    def trained(name: str, **options: Any) -> bytes:
        plan = {**PLAN, "max_steps": 2, "dynamic_negatives": 1, "model": str(tiny_bert), **options}
        return (train_dense(mined, output=tmp_path / name, **plan) / layout.WEIGHTS).read_bytes()

    by_model = {"loss": "nll", "in_batch": False}
    by_sum = {**by_model, "dynamic_ranking": "sum", "index": str(tiny_bm25)}
    alone = trained("model", **by_model)
    assert trained("sum-0", **by_sum, scorer_weight=0.0) == alone != trained("sum", **by_sum, scorer_weight=100.0)
    residual = {"loss": "residual-margin", "index": str(tiny_bm25), "scorer_weight": 100.0, "xi": 1000.0}
    assert trained("residual", **residual) != trained("residual-model", **residual, dynamic_ranking="model")


class Counting:
    """An encoder that counts the texts that it encodes, and is interrupted after `limit` of them."""

    def __init__(self, encoder: Encoder, limit: int = 1 << 30) -> None:
        self.encoder, self.dim, self.texts, self.limit = encoder, encoder.dim, 0, limit

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        self._count(texts)
        return self.encoder.encode_queries(texts)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        self._count(texts)
        return self.encoder.encode_documents(titles, texts)

    def _count(self, texts: Sequence[str]) -> None:
        self.texts += len(texts)
        if self.texts > self.limit:
            raise KeyboardInterrupt


def test_every_text_is_encoded_once_and_read_again_after_an_interruption(
    mined: Path, tiny_lambda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybrid_cli.training.teachers.BLOCK_TEXTS", 2)
    known = Examples(mined)
    queries = {group.query for group in known.epoch(0, 0, 1)}
    encoder: Any = Counting(open_encoder(tiny_lambda))
    first = FrozenEncoder(encoder, known, tmp_path)
    assert encoder.texts == len(queries) + len(known.docids())
    other = tmp_path / "other"
    other.mkdir()
    interrupted: Any = Counting(open_encoder(tiny_lambda), limit=len(queries) + 3)
    with pytest.raises(KeyboardInterrupt):
        FrozenEncoder(interrupted, known, other)
    again: Any = Counting(open_encoder(tiny_lambda))
    second = FrozenEncoder(again, known, other)
    assert again.texts == encoder.texts - len(queries) - 2, "all but the queries and one block"
    third: Any = Counting(open_encoder(tiny_lambda))
    FrozenEncoder(third, known, other)
    assert third.texts == 0
    assert sorted(path.name for path in (other / ".frozen").iterdir()) == ["documents.npy", "queries.npy"]
    texts, docids = sorted(queries), known.docids().to_list()
    np.testing.assert_array_equal(first.scores(texts, docids), second.scores(texts, docids))


# ---------------------------------------------------------------------------------- negatives from the whole collection

REFRESHED: dict[str, Any] = {**PLAN, "max_steps": 11, "dynamic_negatives": 2, "refresh_negatives": 7}


def test_refreshed_negatives_are_top_hits_of_the_current_sum_in_the_corpus(
    mined: Path, tiny_bm25: Path, tiny_bert: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybrid_cli.training.dense.BLOCK_TEXTS", 5)
    monkeypatch.setattr("hybrid_cli.training.dense.BLOCK_QUERIES", 4)
    known, encoder = Examples(mined), TransformerEncoder.load(tiny_bert)
    corpus = pl.read_parquet(tiny / "corpus.parquet")
    queries, scorer = pl.concat(known.queries())["text"].to_list(), PostingsScorer(open_bm25(tiny_bm25))
    plan, exclude = Sampling(batch_size=4, epochs=9), relevant(corpus, known.positives())
    for weight in (0.0, 100.0):
        fusion = Fusion(0.5, scorer, ScorerWeight(weight))
        how: dict[str, Any] = {"every": 3, "queries": queries, "depth": 3, "spare": known.most_positives}
        how["folder"] = tmp_path / str(weight)
        negatives = RefreshedNegatives(encoder, corpus, plan, torch.float32, 2, 100, exclude, fusion, **how)
        extended = list(negatives.added(islice(known.batches(plan), 5), 0))
        stored = sorted(path.name for path in (tmp_path / str(weight)).iterdir())
        assert stored == ["00000000.npy", "00000003.npy"]
        encoder.eval()
        vectors = encoder.encode_documents(corpus["title"].to_list(), corpus["text"].to_list())
        drawn = set()
        for group in (group for batch in extended for group in batch):
            fused = (encoder.encode_queries([group.query]) @ vectors.T)[0] / 0.5
            fused = fused + weight * scorer.scores([group.query], corpus["docid"].to_list())[0]
            ranked = corpus["docid"].gather(np.argsort(-fused, kind="stable")).to_list()
            hits = [docid for docid in ranked if docid not in {*group.docids[:2], *exclude(group)}]
            assert len(set(group.docids[2:])) == 2
            assert set(group.docids[2:]) <= set(hits[:3])
            assert group.texts[2:] == [corpus.filter(docid=docid)["text"].item() for docid in group.docids[2:]]
            drawn.add((group.query, *group.docids[2:]))
        assert len(drawn) > len(queries), "an epoch draws others"


def test_the_corpus_is_that_of_the_examples(mined: Path, tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**REFRESHED, "model": str(tiny_bert), "max_steps": 1}
    out = train_dense(mined, output=tmp_path / "out", **plan)
    corpus = artifacts.read_manifest(out).input_path("corpus")
    assert corpus is not None
    assert corpus.samefile(tiny / "corpus.parquet")
    named = train_dense(mined, output=tmp_path / "named", collection=tiny, **plan)
    assert (named / layout.WEIGHTS).read_bytes() == (out / layout.WEIGHTS).read_bytes()
    unrecorded = tmp_path / "unrecorded.parquet"
    rows = pl.read_parquet(mined).to_arrow(compat_level=pl.CompatLevel.oldest())
    artifacts.open_output(unrecorded, Kind.EXAMPLES, "test", inputs={}, options={}).write([rows])
    with raises("corpus-missing", option="collection"):
        train_dense(unrecorded, output=tmp_path / "no", **plan)
    other = tmp_path / "corpus.parquet"
    pl.read_parquet(tiny / "corpus.parquet").head(5).write_parquet(other)
    with raises("other-corpus", path="corpus.parquet"):
        train_dense(mined, output=tmp_path / "no", collection=other, **plan)
    for options in ({"refresh_negatives": 3}, {"dynamic_negatives": 1, "collection": tiny}):
        with raises("option-does-not-apply", option=list(options)[-1]):
            TrainDense(mined, output=tmp_path / "no", **options)  # type: ignore[arg-type]
