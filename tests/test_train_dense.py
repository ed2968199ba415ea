"""train-dense: steps, schedules, validation, diagnostics."""

import json
import math
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from command import Notices, raises
from gradient_descent import TOLERANCE, errors, gradient_descent
from safetensors.torch import load_file, save_file
from trainings import weights

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts.examples import open_dev_examples
from hybrid_cli.commands import TrainDense
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.transformer import Tower, TransformerEncoder
from hybrid_cli.session.in_memory import examples_table
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.stages.train_reranker import train_reranker
from hybrid_cli.stages.train_sparse import train_sparse
from hybrid_cli.storage import Kind, layout
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import allowed_mask
from hybrid_cli.training.dev_set import DevRetrieval, DevSet
from hybrid_cli.training.loop import rate_factor, recent_means, steps_of
from hybrid_cli.training.losses import LossInputs, margin, nll, residual_margin, with_distillation, with_prefixes
from hybrid_cli.training.options import Optimization, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["river", "bank", "loan", "water", "money", "tree", "root", "square", "matrix", "inverse", "plot", "axis"]
WORDS += ["color"]
PLAN: dict[str, Any] = {"batch_size": 4, "epochs": 2, "checkpoint_steps": 2, "learning_rate": 1e-3, "dtype": "fp32"}


def sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(3, 9)))


def write_examples(path: Path, count: int = 18, seed: int = 0) -> Path:
    """Write examples whose queries share words with their positives only."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        text = sentence(rng)
        negatives = [
            {"docid": f"n{i}-{j}", "title": "", "text": sentence(rng), "lexical_score": float(rng.random() * 9)}
            for j in range(3)
        ]
        row: Any = {
            "qid": f"q{i // 2}",
            "query": " ".join(text.split()[:2]),
            "docid": f"p{i}",
        }  # two positives of a query
        row |= {"title": "title" if i % 2 else "", "text": text, "lexical_score": float(rng.random() * 9)}
        rows.append(row | {"negatives": [negative | {"source": "bm25"} for negative in negatives]})
    table = pa.Table.from_pylist(rows, schema=storage.SCHEMAS[Kind.EXAMPLES])
    artifacts.open_output(path, Kind.EXAMPLES, "test", inputs={}, options={}).write([table])
    return path


def test_gradient_caching_makes_the_same_steps(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**PLAN, "max_steps": 3, "loss": "nll", "learning_rate": 0.02, "clip": 1e9}
    with gradient_descent() as plain:
        train_dense(examples, output=tmp_path / "plain", model=str(tiny_bert), **plan)
    with gradient_descent() as cached:
        train_dense(examples, output=tmp_path / "cached", model=str(tiny_bert), **plan, chunk_size=100)
    assert max(errors(cached, plain)) < TOLERANCE


def test_another_seed_gives_other_weights(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**PLAN, "model": str(tiny_bert), "max_steps": 1}
    folders = [train_dense(examples, output=tmp_path / str(seed), **plan, seed=seed) for seed in (0, 1)]
    assert weights(folders[0]) != weights(folders[1])


def test_training_lowers_the_loss_and_raises_the_dev_score(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**PLAN, "epochs": 15, "eval_steps": 3, "loss": "residual-margin"}
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **plan, dev=examples)
    curve = pl.read_parquet(out / "curve.parquet")
    loss = curve.filter(name="residual_margin")["value"].to_list()
    assert np.mean(loss[-5:]) < np.mean(loss[:5])
    dev = curve.filter(name="dev_MRR@10")["value"].to_list()
    assert dev[0] < max(dev)
    best = artifacts.read_manifest(out, Kind.ENCODER).counts["best_step"]
    assert curve.filter(name="dev_MRR@10", step=best)["value"].item() == max(dev)
    retrieval = DevRetrieval(
        DevSet.of(replace(open_dev_examples(examples), index=None), 200, 1000), TransformerEncoder.load(out), None
    )
    assert retrieval.measure()["dev_MRR@10"] == pytest.approx(max(dev))


@pytest.mark.parametrize("command", [train_dense, distill_lite, train_sparse, train_reranker])
def test_dev_examples_of_another_kind_are_refused_before_the_model_is_opened(
    command: Any, examples: Path, tiny: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also judgments, which are a table, too."""

    def opened(*names: Any, **options: Any) -> None:
        raise AssertionError("a model is opened")

    for kind in (TransformerEncoder, SparseEncoder, CrossEncoder):
        monkeypatch.setattr(kind, "load", opened)
    more: dict[str, Any] = {"teacher": str(tiny_bert)} if command is distill_lite else {}
    more |= {"architecture": "splade"} if command is train_sparse else {}
    for dev in (tiny, tiny / "qrels.test.parquet"):
        with raises("other-kind"):
            command(examples, model=str(tiny_bert), dev=dev, output=tmp_path / "out", **more)
    assert not (tmp_path / "out").exists()


def test_a_tie_keeps_the_later_checkpoint(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**PLAN, "learning_rate": 0.0, "max_steps": 3, "eval_steps": 1}
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **plan, dev=examples)
    assert artifacts.read_manifest(out, Kind.ENCODER).counts["best_step"] == 3


@pytest.mark.parametrize(
    "contract", [{"tied": False}, {"dim": 8, "markers": "replace"}, {"pooling": "cls", "normalize": True}]
)
def test_every_contract_trains(examples: Path, tiny_bert: Path, tmp_path: Path, contract: dict[str, Any]) -> None:
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **PLAN, max_steps=2, **contract)
    encoder = TransformerEncoder.load(out)
    assert {name: getattr(encoder.contract, name) for name in contract} == contract
    assert encoder.encode_queries(["river"]).shape == (1, contract.get("dim", 16))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_and_validation_have_the_same_precision(
    examples: Path, tiny_bert: Path, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    forward = Tower.forward

    def noted(self: Tower, *given: Any) -> Any:
        used.append((self.training, torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None))
        return forward(self, *given)

    monkeypatch.setattr(Tower, "forward", noted)
    plan = {**PLAN, "dtype": precision, "max_steps": 2}
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **plan, dev=examples)
    expected = None if precision == "fp32" else {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert set(used) == {(True, expected), (False, expected)}
    assert np.isfinite(TransformerEncoder.load(out).encode_queries(["river"])).all()


def test_order_and_draws_do_not_depend_on_the_first_batch(examples: Path) -> None:
    source, plan = Examples(examples), Sampling(batch_size=4, negatives=2, epochs=3, seed=7)
    whole = list(source.batches(plan))
    assert len(whole) == 3 * 5
    assert len(whole[4]) == 2, "the last batch of an epoch is smaller"
    for done in (1, 5, 7, 14):
        assert list(source.batches(plan, done)) == whole[done:]
    first, second = ({g.docids[0] for batch in whole[e * 5 : e * 5 + 5] for g in batch} for e in (0, 1))
    assert first == second == {f"p{i}" for i in range(18)}
    assert [g.docids for g in whole[0]] != [g.docids for g in whole[5]]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 5),
        ({"epochs": 2}, 10),
        ({"max_steps": 12}, 12),
        ({"max_steps": 3}, 3),
        ({"max_steps": 12, "epochs": 2}, 10),
    ],
)
def test_max_steps_alone_repeats_the_examples(examples: Path, options: dict[str, int], steps: int) -> None:
    source, plan = Examples(examples), Sampling(batch_size=4, negatives=1, **options)  # type: ignore[arg-type]
    assert steps_of(plan, len(source)) == steps
    assert len(list(islice(source.batches(plan), steps))) == steps
    command = TrainDense(examples, output=Path("out"), batch_size=4, **options)  # type: ignore[arg-type]
    assert steps_of(command, len(source)) == (steps if options else 10), "two passes are the default of the command"


def test_another_positive_in_the_batch_is_not_a_negative(examples: Path) -> None:
    source = Examples(examples)
    batch = next(source.batches(Sampling(batch_size=18)))
    mask = allowed_mask(batch)
    columns = [docid for group in batch for docid in group.docids]
    for row, group in enumerate(batch):
        denied = {columns[column] for column in torch.nonzero(~mask[row]).flatten().tolist()}
        assert denied == group.positives - {group.docids[0]}


def test_the_rate_rises_and_then_falls_to_zero() -> None:
    factors = [rate_factor(Optimization(), step, 100, 50) for step in range(101)]
    assert max(factors) == factors[10] == 1
    assert factors[100] == 0
    assert factors[0] == pytest.approx(1 / 11)
    assert factors[:11] == sorted(factors[:11])
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_the_rate_is_halved_in_each_epoch_after_the_third() -> None:
    """RoC, section 4.1."""
    plan = Optimization(schedule="halve", warmup=2)
    factors = [rate_factor(plan, step, 60, 10) for step in range(60)]
    assert factors[:2] == [pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert factors[2:30] == [1.0] * 28
    assert [factors[step] for step in (30, 39, 40, 50, 59)] == [0.5, 0.5, 0.25, 0.125, 0.125]
    constant = Optimization(schedule="constant", warmup=0)
    assert {rate_factor(constant, step, 60, 10) for step in range(60)} == {1.0}


def test_the_model_of_each_epoch_is_stored(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    out = train_dense(
        examples, output=tmp_path / "out", model=str(tiny_bert), keep_epochs=True, schedule="halve", **PLAN
    )
    first, second, last = (
        load_file(folder / layout.WEIGHTS) for folder in (out / "epochs" / "1", out / "epochs" / "2", out)
    )
    assert all(torch.equal(second[name], last[name]) for name in last)
    assert not all(torch.equal(first[name], last[name]) for name in last)
    assert TransformerEncoder.load(out / "epochs" / "1").contract == TransformerEncoder.load(out).contract


def test_the_residual_margin_alone_needs_lexical_scores(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.parquet"
    rows = pl.read_parquet(examples).with_columns(lexical_score=pl.lit(None, pl.Float32)).to_arrow()
    artifacts.open_output(bare, Kind.EXAMPLES, "test", inputs={}, options={}).write([rows])
    plan = {**PLAN, "max_steps": 1}
    with raises("no-scores"):
        train_dense(bare, output=tmp_path / "residual", model=str(tiny_bert), **plan, loss="residual-margin")
    train_dense(bare, output=tmp_path / "nll", model=str(tiny_bert), **plan, loss="nll")


@pytest.mark.parametrize("tied", [True, False])
def test_the_first_layers_equal_a_truncated_model(examples: Path, tiny_bert: Path, tmp_path: Path, tied: bool) -> None:
    short = shutil.copytree(tiny_bert, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    kept = {name: each for name, each in load_file(short / "model.safetensors").items() if "layer.1." not in name}
    save_file(kept, short / "model.safetensors", {"format": "pt"})
    plan = {**PLAN, "max_steps": 3, "tied": tied}
    by_option = train_dense(examples, output=tmp_path / "option", model=str(tiny_bert), layers=1, **plan)
    by_hand = train_dense(examples, output=tmp_path / "hand", model=str(short), **plan)
    vectors = [TransformerEncoder.load(folder).encode_queries(["river bank"]) for folder in (by_option, by_hand)]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert artifacts.read_manifest(by_option).options["layers"] == 1
    with raises("out-of-range", option="layers", value=3, limit=2):
        train_dense(examples, output=tmp_path / "no", model=str(tiny_bert), layers=3, **plan)


def test_equal_texts_in_memory_are_one_document_and_one_query() -> None:
    example: dict[str, Any] = {"query": "salt", "positive": "salt in water", "negatives": ["a river"]}
    table = examples_table([example, example | {"positive": {"title": "", "text": "salt in water"}}])
    assert table["qid"].to_pylist() == table["docid"].to_pylist() == ["0", "0"]


def scored(positive: list[float], negative: list[float], lexical: list[tuple[float, float]]) -> LossInputs:
    size = len(positive)
    documents = torch.tensor([[[p], [n]] for p, n in zip(positive, negative, strict=True)])
    return LossInputs(
        torch.ones(size, 1), documents, torch.tensor(lexical), torch.ones(size, 2 * size, dtype=torch.bool)
    )


def recorded(batch: LossInputs) -> dict[str, float]:
    return {name: value.item() for name, value in batch.recorded.items()}


def test_active_triples_of_the_hinge_by_hand() -> None:
    # residual margins 1 - .1 * 3 = .7 and 1 + .1 * 9 = 1.9; gaps of the scores 1 and 1
    batch = scored([3.0, 3.0], [2.0, 2.0], [(12.0, 9.0), (5.0, 14.0)])
    residual_margin(batch)
    assert recorded(batch) == pytest.approx({"active_share": 0.5, "mean_margin": 1.3})
    margin(batch, xi=1.1)
    assert recorded(batch) == pytest.approx({"active_share": 1.0, "mean_margin": 1.1})
    similarities = scored([3.0, 5.0], [2.0, 1.0], [(0.0, 0.0)] * 2).similarities()
    assert {name: value.item() for name, value in similarities.items()} == {
        "positive_similarity": 4.0,
        "negative_similarity": 1.5,
    }


def test_the_progress_line_averages_the_last_ten_steps() -> None:
    curve = [
        (step, name, value) for step in range(1, 21) for name, value in (("nll", 9.0), ("active_share", step / 40))
    ]
    assert recent_means(curve) == "active 39%"
    assert recent_means([]) == ""


def test_the_probability_that_is_not_on_the_positive() -> None:
    batch = scored([2.0], [0.0], [(0.0, 0.0)])
    nll(batch, temperature=2.0)
    assert recorded(batch) == pytest.approx({"active_share": 1 / (1 + math.e)})


@pytest.mark.parametrize("in_batch", [True, False])
def test_the_active_share_is_the_derivative_for_the_positive(in_batch: bool) -> None:
    torch.manual_seed(0)
    batch = LossInputs(
        torch.randn(1, 4), torch.randn(1, 3, 4, requires_grad=True), torch.zeros(1, 3), torch.ones(1, 3) > 0
    )
    nll(batch, in_batch=in_batch)["nll"].backward()
    assert batch.documents.grad is not None
    derivative = -batch.documents.grad[0, 0] / batch.queries[0]
    torch.testing.assert_close(derivative, batch.recorded["active_share"].expand(4))


def test_prefixes_and_heads_record_the_vectors_that_search() -> None:
    torch.manual_seed(0)
    whole = LossInputs(torch.randn(2, 6), torch.randn(2, 3, 6), torch.zeros(2, 3), torch.ones(2, 6) > 0)
    nll(whole)
    with_prefixes(nll, [2], 6, False)(
        prefixed := LossInputs(whole.queries, whole.documents, whole.scorer, whole.allowed)
    )
    assert recorded(prefixed) == recorded(whole)
    small = LossInputs(whole.queries[:, :2], whole.documents[..., :2], whole.scorer, whole.allowed)
    nll(small)
    teacher: dict[str, Any] = {"teacher_queries": torch.zeros(2, 4), "teacher_documents": torch.zeros(2, 3, 4)}
    with_distillation(nll, 2)(
        both := LossInputs(whole.queries, whole.documents, whole.scorer, whole.allowed, **teacher)
    )
    assert both.recorded == {**small.recorded, **small.similarities()}


@pytest.mark.parametrize("options", [{"loss": "nll"}, {"loss": "margin"}, {"loss": "nll", "chunk_size": 3}])
def test_the_curve_holds_diagnostics(examples: Path, tiny_bert: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **PLAN, max_steps=3, **options)
    curve = pl.read_parquet(out / "curve.parquet")
    names = {"active_share", "positive_similarity", "negative_similarity"}
    if options["loss"] == "margin":
        names |= {"mean_margin"}
    for name in names:
        assert curve.filter(name=name)["step"].to_list() == [1, 2, 3]
    assert curve.filter(name="active_share")["value"].is_between(0, 1).all()


def test_diagnostics_are_not_part_of_the_loss(examples: Path, tiny_bert: Path, tmp_path: Path) -> None:
    """A record would change the weights if it were added to the loss."""
    plan = {**PLAN, "max_steps": 2, "loss": "nll"}
    with gradient_descent():  # the second step has the rounding of the first, which AdamW would amplify
        for name, chunk in (("plain", None), ("cached", 64)):
            train_dense(examples, output=tmp_path / name, model=str(tiny_bert), **plan, chunk_size=chunk)
    plain, cached = (pl.read_parquet(tmp_path / name / "curve.parquet") for name in ("plain", "cached"))
    assert plain["name"].to_list() == cached["name"].to_list()
    assert plain["value"].to_list() == pytest.approx(cached["value"].to_list(), abs=1e-5)


def test_training_without_loss_warns(examples: Path, tiny_bert: Path, tmp_path: Path, notices: Notices) -> None:
    options = {**PLAN, "loss": "margin", "xi": -1e6}
    out = train_dense(examples, output=tmp_path / "out", model=str(tiny_bert), **options)
    assert notices.says("hardly-any-loss", active_share=0.0, steps=10)
    (remedy,) = [str(notice.fields["remedy"]) for notice in notices.heard if notice.code == "hardly-any-loss"]
    assert all(option in remedy for option in ("--depth", "--xi", "--temperature"))
    notices.clear()
    assert set(pl.read_parquet(out / "curve.parquet").filter(name="active_share")["value"]) == {0.0}
    start = train_dense(
        examples, output=tmp_path / "start", model=str(tiny_bert), **{**PLAN, "learning_rate": 0.0}, loss="margin"
    )
    assert weights(out) == weights(start)
    assert not notices.says("hardly-any-loss"), "the margin of 1 leaves loss"
