"""`train-reranker` and the cross-encoder: losses, weights, the form of sentence-transformers, refusals."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import Notices, Refusal, hybrid, raises, refusal
from test_train_dense import write_examples

from hybrid_cli import artifacts
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.settings import TrainReranker
from hybrid_cli.stages.train_reranker import train_reranker
from hybrid_cli.storage import Kind
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.options import RerankerLoss
from hybrid_cli.training.reranking import LOSSES, DevRanking, RerankerLearner, diagnostics

pytestmark = pytest.mark.usefixtures("one_thread")

PLAN: dict[str, Any] = {
    "batch_size": 4, "negatives": 2, "epochs": 2, "checkpoint_steps": 2, "learning_rate": 1e-3, "precision": "fp32",
    "max_length": 48, "query_max_len": 16, "threads": 1,
}  # fmt: skip
PAIRS = pl.DataFrame(
    {
        "query": ["river bank", "a loan of money", "matrix " * 30, "water"],
        "title": ["", "Loans", "", "The root"],
        "text": ["The river has two banks. " * 20, "Money that a bank lends.", "A square matrix.", ""],
    }
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("examples") / "train.parquet")


@pytest.fixture(scope="module")
def reranker(examples: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_reranker(examples, model=str(tiny_bert), output=tmp_path_factory.mktemp("out") / "reranker", **PLAN)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


# --------------------------------------------------------------------------------------------------------------- losses


def test_losses_of_a_group_computed_by_hand() -> None:
    scores = torch.tensor([[2.0, 0.0, 1.0]])
    assert LOSSES["listwise"](scores)["listwise"].item() == pytest.approx(
        math.log(math.exp(2) + 1 + math.e) - 2, abs=1e-6
    )
    by_pair = [math.log(1 + math.exp(-2)), math.log(2), math.log(1 + math.e)]
    assert LOSSES["pointwise"](scores)["pointwise"].item() == pytest.approx(sum(by_pair) / 3, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_active_share_is_the_derivative_of_the_positive(loss: RerankerLoss) -> None:
    scores = torch.tensor([[0.5, -1.0], [0.1, 0.4]], requires_grad=True)
    LOSSES[loss](scores)[loss].backward()
    assert scores.grad is not None
    per_positive = -scores.grad[:, 0].mean() * (4 if loss == "pointwise" else 2)  # the mean is over pairs, or groups
    assert diagnostics(scores, loss)["active_share"].item() == pytest.approx(per_positive.item(), abs=1e-6)


# ------------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("loss", LOSSES)
def test_training_lowers_the_loss_and_raises_the_dev_score(
    examples: Path, tiny_bert: Path, tmp_path: Path, loss: RerankerLoss
) -> None:
    plan = PLAN | {"epochs": 5, "eval_steps": 8, "loss": loss, "learning_rate": 3e-3}
    out = train_reranker(examples, model=str(tiny_bert), output=tmp_path / "out", dev=examples, **plan)
    curve = pl.read_parquet(out / "curve.parquet")
    values = curve.filter(name=loss)["value"].to_list()
    assert np.mean(values[-5:]) < np.mean(values[:5])
    dev = curve.filter(name="dev_MRR@10")["value"].to_list()
    assert dev[0] < max(dev)
    best = artifacts.read_manifest(out, Kind.RERANKER).counts["best_step"]
    assert curve.filter(name="dev_MRR@10", step=best)["value"].item() == max(dev)
    found = DevRanking(examples, 200, CrossEncoder.load(out)).measure()["dev_MRR@10"]
    assert found == pytest.approx(max(dev))


def test_gradient_caching_gives_the_same_gradients(examples: Path, tiny_bert: Path) -> None:
    found = []
    for chunk_size in (None, 5):
        torch.manual_seed(0)
        model = CrossEncoder.load(tiny_bert, device="cpu", train=True)
        learner = RerankerLearner(model, "listwise", torch.float32, chunk_size)
        batch = next(Examples(examples).batches(TrainReranker(examples, output=Path("out"), **PLAN)))
        learner.backward(batch, lambda loss: loss)
        found.append(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_matched_words_of_documents_are_masked(examples: Path, tiny_bert: Path) -> None:
    model = CrossEncoder.load(tiny_bert, device="cpu", train=True)
    batch = next(Examples(examples).batches(TrainReranker(examples, output=Path("out"), **PLAN)))
    plain, masked = (
        RerankerLearner(model, "listwise", torch.float32, mask_matches=share).inputs(batch) for share in (0.0, 1.0)
    )
    mask, changed = model.tokenizer.mask_token_id, 0
    for pair, ids in zip(plain.encodings, masked["input_ids"], strict=True):
        rows = zip(pair.ids, pair.tokens, pair.sequence_ids, strict=True)
        query = {number for number, piece, side in rows if side == 0 and piece not in STOP_WORDS}
        wanted = [
            mask if side == 1 and number in query else number
            for number, side in zip(pair.ids, pair.sequence_ids, strict=True)
        ]
        assert ids == wanted
        changed += ids != pair.ids
    assert changed


# ------------------------------------------------------------------------------------------------------------ on disk


def test_sentence_transformers_reads_the_output(reranker: Path) -> None:
    models = pytest.importorskip("sentence_transformers")
    theirs = models.CrossEncoder(str(reranker), device="cpu")
    model = CrossEncoder.load(reranker, device="cpu")
    pairs = [(query, model.input.document(title, text)) for query, title, text in PAIRS.rows() if "matrix" not in query]
    ours = model.scores(PAIRS.filter(~pl.col("query").str.contains("matrix")))[0]
    np.testing.assert_allclose(ours, theirs.predict(pairs), atol=1e-5)
    assert np.ptp(ours) > 1e-3
    done = hybrid("export", reranker, "--format", "sentence-transformers", "--output", reranker.parent / "exported")
    assert done.is_problem("unknown-choice", option="format")


@pytest.mark.parametrize("labels", [1, 2])
def test_a_reranker_of_sentence_transformers_is_read(tiny_bert: Path, tmp_path: Path, labels: int) -> None:
    models = pytest.importorskip("sentence_transformers")
    torch.manual_seed(1)
    theirs = models.CrossEncoder(str(tiny_bert), num_labels=labels, max_length=40, device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = CrossEncoder.load(tmp_path / "theirs", device="cpu")
    assert ours.input.max_length == 40
    rows = PAIRS.filter(~pl.col("query").str.contains("matrix"))
    pairs = [(query, ours.input.document(title, text)) for query, title, text in rows.rows()]
    found = theirs.predict(pairs)
    logits = np.log(found / (1 - found)) if labels == 1 else found[:, 1] - found[:, 0]
    np.testing.assert_allclose(ours.scores(rows)[0], logits, atol=1e-4)
    assert ours.truncated == 1


def test_only_the_document_is_cut_after_an_overlong_query(reranker: Path) -> None:
    model = CrossEncoder.load(reranker, device="cpu")
    documents = [model.input.document(*row) for row in PAIRS.select("title", "text").rows()]
    encoded = model.tokens(PAIRS["query"].to_list(), documents)
    sides = [[pair.sequence_ids.count(side) for side in (0, 1)] for pair in encoded.encodings]
    assert sides[0] == [2, 48 - 3 - 2]
    assert sides[2] == [14, len(model.tokenizer("A square matrix.", add_special_tokens=False)["input_ids"])]
    scores = model.scores(PAIRS)[0]
    np.testing.assert_allclose(scores, [model.scores(PAIRS[row])[0][0] for row in range(len(PAIRS))], atol=1e-5)


# ------------------------------------------------------------------------------------------------------------- refusals


def changed(reranker: Path, copy: Path, **config: Any) -> Path:
    shutil.copytree(reranker, copy)
    stored = json.loads((copy / "config.json").read_text("utf-8"))
    (copy / "config.json").write_text(json.dumps(stored | config), "utf-8")
    return copy


def test_a_head_of_three_labels_is_refused_and_replaced_in_training(
    tiny_bert: Path, tmp_path: Path, notices: Notices
) -> None:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=3)
    shutil.copytree(tiny_bert, tmp_path / "nli")
    model.save_pretrained(tmp_path / "nli")
    with raises("other-kind", labels=3):
        CrossEncoder.load(tmp_path / "nli")
    assert CrossEncoder.load(tmp_path / "nli", train=True).scores(PAIRS)[0].shape == (4,)
    assert notices.says("new-head", path="nli")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"reranker.json": '{"max_length": 20, "query_max_len": 18}'}, refusal("out-of-range", path="reranker.json")),
        ({"reranker.json": '{"most": 20}'}, refusal("json-unknown-field", path="reranker.json")),
    ],
)
def test_files_that_are_not_supported_are_refused(
    reranker: Path, tmp_path: Path, files: dict[str, str], words: str | Refusal
) -> None:
    copy = changed(reranker, tmp_path / "copy")
    for name, content in files.items():
        (copy / name).write_text(content, "utf-8")
    with raises(words):
        CrossEncoder.load(copy)
