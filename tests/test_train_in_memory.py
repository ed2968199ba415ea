"""`hybrid_cli.train`: the weights of the commands, without files; keywords and inputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from command import Notices, raises
from trainings import curve

from hybrid_cli import BM25, Collection, Dense, Encoder, open_collection, open_encoder, open_index, plugins, train
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.label import label
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.stages.train_lambda import train_lambda
from hybrid_cli.training import Callback
from hybrid_cli.training.options import LOSSES

pytestmark = pytest.mark.usefixtures("one_thread")

PLAN: dict[str, Any] = {"batch_size": 2, "learning_rate": 1e-3, "dtype": "fp32"}
STEPS: dict[str, Any] = {**PLAN, "max_steps": 3}
TEXTS = ["salt in sea water", "oxygen"]
EXAMPLES: list[dict[str, Any]] = [
    {"query": "salt", "positive": "salt in water", "negatives": ["a river"]},
    {"query": "sea", "positive": "salt in the sea", "negatives": ["blood", "salt in water"]},
]


class Kept(Callback):
    """Keeps the values of the steps and of the validations."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []
        self.validations: list[Mapping[str, float]] = []

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.append(values)

    def on_validation(self, step: int, values: Mapping[str, float]) -> None:
        self.validations.append(values)


def same_vectors(trained: Encoder, folder: Path) -> bool:
    stored = open_encoder(folder, dtype="fp32")
    mine, theirs = ((one.encode_queries(TEXTS), one.encode_documents(["", "sea"], TEXTS)) for one in (trained, stored))
    return all(map(np.array_equal, mine, theirs))


@pytest.fixture
def data(tiny: Path) -> Collection:
    return open_collection(tiny)


@pytest.fixture
def mined(tiny: Path, tiny_bm25: Path, tmp_path: Path) -> Path:
    return mine_negatives(tiny, split="train", index=tiny_bm25, output=tmp_path / "train.parquet")


def test_clear_has_the_weights_and_the_curve_of_the_command(
    data: Collection, mined: Path, tiny: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    dev = mine_negatives(tiny, split="test", index=tiny_bm25, output=tmp_path / "test.parquet")
    out = train_dense(mined, model=str(tiny_bert), loss="residual-margin", dev=dev, output=tmp_path / "out", **STEPS)
    for index in (BM25().index(data), open_index(tiny_bm25)):
        kept = Kept()
        options = {**PLAN, "steps": 3, "loss": "residual-margin", "scorer": index, "dev": "test", "callback": kept}
        trained = train(tiny_bert, data, **options)
        assert same_vectors(trained, out)
        assert [values["residual_margin"] for values in kept.steps] == curve(out, "residual_margin")
        for name in ("dev_MRR@10", "dev_hybrid_MRR@10", "dev_RoC@10"):
            assert [values[name] for values in kept.validations] == curve(out, name), name
    judged = data.queries("test"), data.qrels("test")
    assert same_vectors(train(tiny_bert, data, **{**options, "dev": judged}), out)
    assert same_vectors(train(tiny_bert, mined, **{**options, "dev": dev}), out)


def test_roc_has_the_weights_of_the_command(
    data: Collection, mined: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    out = train_dense(mined, model=str(tiny_bert), loss="roc", index=tiny_bm25, output=tmp_path / "out", **STEPS)
    assert same_vectors(train(tiny_bert, data, loss="roc", index=BM25().index(data), **STEPS), out)
    assert same_vectors(train(tiny_bert, data, loss="roc", index=tiny_bm25, **STEPS), out)


@pytest.mark.parametrize("queries_only", [False, True])
def test_lite_has_the_weights_of_the_command(
    data: Collection, mined: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path, queries_only: bool
) -> None:
    plan: dict[str, Any] = {**STEPS, "queries_only": True} if queries_only else {**STEPS, "dim": 4}
    out = distill_lite(mined, model=str(tiny_bert), teacher=str(tiny_bert), output=tmp_path / "out", **plan)
    teacher = open_encoder(tiny_bert, dtype="fp32")
    options = {**plan, "method": "distill-lite", "index": BM25().index(data), "teacher": teacher}
    assert same_vectors(train(tiny_bert, data, **options), out)


@pytest.mark.parametrize("loss", ["contrastive", "listwise"])
def test_a_lambda_has_the_weights_of_the_command(
    data: Collection, tiny: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path, loss: str
) -> None:
    labels = label(tiny, index=tiny_bm25, depth=6, queries_from="all", output=tmp_path / "labels")
    plan: dict[str, Any] = {**STEPS, "loss": loss, "positives": 1, "dev": "test"}
    plan |= {"negatives": 1} if loss == "contrastive" else {}
    out = train_lambda(tiny, labels=labels, index=tiny_bm25, model=str(tiny_bert), output=tmp_path / "out", **plan)
    options = {**plan, "method": "train-lambda", "depth": 6, "queries_from": "all", "index": BM25().index(data)}
    assert same_vectors(train(tiny_bert, data, **options), out)


def test_a_static_lambda_has_the_weights_of_the_command(
    data: Collection, tiny: Path, tiny_bm25: Path, tmp_path: Path
) -> None:
    plan: dict[str, Any] = {"encoder": "static", "dim": 4, "max_steps": 3, "vocab_size": 20, "hash_buckets": 8}
    out = train_lambda(tiny, index=tiny_bm25, output=tmp_path / "out", **plan)
    assert same_vectors(train(data=data, method="train-lambda", index=BM25().index(data), **plan), out)


@pytest.mark.parametrize("loss", ["nll", "margin"])
def test_given_examples_have_the_weights_of_the_command(
    mined: Path, tiny_bert: Path, tmp_path: Path, loss: str
) -> None:
    train_dense(mined, model=str(tiny_bert), loss=loss, output=tmp_path / "encoder", **STEPS)
    examples = [
        {"query": row["query"], "positive": document(row), "negatives": [document(each) for each in row["negatives"]]}
        for row in pq.read_table(mined).to_pylist()
    ]
    assert same_vectors(train(tiny_bert, examples, loss=loss, **STEPS), tmp_path / "encoder")
    assert same_vectors(train(tiny_bert, pl.DataFrame(examples), loss=loss, **STEPS), tmp_path / "encoder")


def document(row: dict[str, Any]) -> dict[str, str]:
    return {name: row[name] for name in ("docid", "title", "text")}


def test_given_examples_get_the_scores_of_the_scorer(data: Collection, mined: Path, tiny_bert: Path) -> None:
    bm25, dense = BM25().index(data), Dense(open_encoder(tiny_bert)).index(data)
    rows = pq.read_table(mined).to_pylist()
    examples = [
        {"query": row["query"], "positive": document(row), "negatives": [document(each) for each in row["negatives"]]}
        for row in rows
    ]
    margins = []
    for scorer in (bm25, dense, open_encoder(tiny_bert)):
        train(tiny_bert, examples, loss="residual-margin", scorer=scorer, callback=[kept := Kept()], **STEPS)
        margins.append(kept.steps[0]["mean_margin"])
    assert margins[1] == pytest.approx(margins[2], abs=1e-5)
    assert abs(margins[0] - margins[1]) > 0.01
    train(tiny_bert, mined, loss="residual-margin", callback=kept, **STEPS)
    assert kept.steps[-3]["mean_margin"] == pytest.approx(margins[0], abs=1e-5)


def test_examples_in_memory_are_taught(data: Collection, tiny_bert: Path) -> None:
    documents = [{"text": "salt water", "teacher_score": 3.0}, {"text": "a river", "teacher_score": 1.0}]
    examples: list[dict[str, Any]] = [{"query": "sea", "positive": documents[0], "negatives": documents[1:]}]
    plan = {**STEPS, "batch_size": 1}
    train(tiny_bert, examples, loss="margin-mse", **plan)
    with raises("missing-score"):
        train(tiny_bert, [{**examples[0], "positive": "sea water"}], loss="kl", **plan)
    train(tiny_bert, EXAMPLES, loss="kl", teacher=open_encoder(tiny_bert), **plan)


def reads_scorer(vectors: Any) -> Any:
    """Read the scores of the scorer."""
    return {"reads": vectors.queries.mean() + vectors.scorer_scores(False).mean()}


@pytest.mark.parametrize(
    ("options", "code", "option"),
    [
        ({"loss": "residual-margin"}, "no-scores", "scorer"),
        ({"loss": "residual-nll"}, "missing-option", "index"),
        ({"loss": "kl"}, "no-scores", "teacher"),
        ({"loss": "roc"}, "missing-option", "index"),
        ({"loss": "reads-scorer"}, "missing-loss-input", "scorer"),
        ({"method": "distill-lite"}, "missing-option", "teacher"),
        ({"method": "train-lambda"}, "needs-collection", "method"),
    ],
)
def test_a_loss_without_its_inputs_is_refused(tiny_bert: Path, options: dict[str, Any], code: str, option: str) -> None:
    plugins.register("losses", "reads-scorer", reads_scorer)
    try:
        with raises(code, option=option):
            train(tiny_bert, EXAMPLES, **options, **STEPS)
    finally:
        LOSSES.remove(plugins.Origin(__name__))


@pytest.mark.parametrize(
    ("options", "code", "fields"),
    [
        ({"los": "nll"}, "no-such-option", {"option": "los", "similar": "loss"}),
        ({"callbacks": []}, "no-such-option", {"similar": "callback"}),
        ({"depth": 5}, "no-such-option", {"option": "depth"}),
        ({"output": "x"}, "option-does-not-apply", {"option": "output"}),
        ({"track": "tensorboard"}, "option-does-not-apply", {"option": "track"}),
        ({"xi": 1.0}, "option-does-not-apply", {"option": "xi"}),
        ({"loss": "nul"}, "unknown-choice", {}),
        ({"method": "train"}, "unknown-choice", {}),
        ({"scorer": 3}, "other-type", {"option": "scorer"}),
        ({"dev": "test"}, "needs-collection", {"option": "dev"}),
    ],
)
def test_unusable_keywords_are_refused(tiny_bert: Path, options: dict[str, Any], code: str, fields: Any) -> None:
    with raises(code, **fields):
        train(tiny_bert, EXAMPLES, **options)


def test_unusable_data_are_refused(tiny_bert: Path) -> None:
    for data, code in ((3, "other-type"), (None, "other-type"), ([3], "no-query"), ([{"query": "a"}], "no-documents")):
        with raises(code):
            train(tiny_bert, data)
    with raises("other-type"):
        train(EXAMPLES, "minilm")  # type: ignore[arg-type]


def test_an_option_is_refused_before_the_examples_are_mined(
    data: Collection, tiny_bert: Path, notices: Notices
) -> None:
    for options, code in (({"loss": "residual-nll"}, "missing-option"), ({"xi": 3}, "option-does-not-apply")):
        with raises(code):
            train(tiny_bert, data, **options)
    with raises("missing-option", option="index"):
        train(tiny_bert, data, method="train-lambda")
    assert not notices.says("random-negatives")
    train(tiny_bert, data, refresh_negatives=2, dynamic_negatives=1, sources="random:3", split="train", **STEPS)


def test_keywords_are_the_flags(tiny_bert: Path) -> None:
    def weights(**options: Any) -> Any:
        return train(tiny_bert, EXAMPLES, dtype="fp32", batch_size=2, **options).encode_queries(TEXTS)

    one = weights(max_steps=2, learning_rate=1e-2, in_batch=False)
    np.testing.assert_array_equal(one, weights(steps=2, lr=1e-2, no_in_batch=True))
    assert not np.array_equal(one, weights(steps=2, lr=1e-2))
    with raises("no-such-option", option="outptu", similar="output"):
        train_dense("train.parquet", outptu="x")  # type: ignore[call-overload]


def test_a_collection_is_searched_in_memory(data: Collection) -> None:
    assert set(data.splits) == {"train", "test"}
    assert data.documents().columns[:3] == ["docid", "title", "text"]
    hits = BM25().index(data).search(data.queries("test"), k=3)
    assert isinstance(data.qrels("test"), pl.DataFrame)
    assert set(hits["docid"]) <= set(data.documents()["docid"])
    with raises("no-such-file"):
        open_collection("missing")
