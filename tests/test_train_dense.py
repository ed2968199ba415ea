"""Training as a person runs it: same seed same weights, killed and begun again the same weights, the best kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind, layout
from hybrid_cli.config import Objective, Optimization
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.stages.train_dense import SUM_WEIGHTS, train_dense
from hybrid_cli.training.batches import Examples, allowed
from hybrid_cli.training.loop import rate_factor
from hybrid_cli.training.validation import DevPool

WORDS = (
    "river",
    "bank",
    "loan",
    "water",
    "money",
    "tree",
    "root",
    "square",
    "matrix",
    "inverse",
    "plot",
    "axis",
    "color",
)
PLAN = Optimization(batch_size=4, epochs=2, checkpoint_steps=2, learning_rate=1e-3, precision="fp32", eval_steps=3)


@pytest.fixture(autouse=True)
def one_thread():
    """Models of 16 dimensions gain nothing from more, and lose much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(3, 9)))


def write_examples(path: Path, count: int = 18, seed: int = 0) -> Path:
    """Queries that share words with their positive, negatives that do not know them."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        text = sentence(rng)
        negatives = [
            {
                "docid": f"n{i}-{j}",
                "title": "",
                "text": sentence(rng),
                "lexical_score": float(rng.random() * 9),
                "source": "bm25",
            }
            for j in range(3)
        ]
        rows.append(
            {
                "qid": f"q{i // 2}",  # every query has two positives
                "query": " ".join(text.split()[:2]),
                "docid": f"p{i}",
                "title": "title" if i % 2 else "",
                "text": text,
                "lexical_score": float(rng.random() * 9),
                "negatives": negatives,
            }
        )
    table = pa.Table.from_pylist(rows, schema=artifacts.SCHEMAS[Kind.EXAMPLES])
    artifacts.open_output(path, Kind.EXAMPLES, "test", inputs={}, options={}).write([table])
    return path


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    return write_examples(tmp_path_factory.mktemp("examples") / "train.parquet")


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_the_same_seed_gives_the_same_bytes(examples, tiny_bert, tmp_path):
    for name in ("a", "b"):
        train_dense(examples, tmp_path / name, model=str(tiny_bert), plan=PLAN)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    train_dense(examples, tmp_path / "c", model=str(tiny_bert), plan=replace(PLAN, seed=1))
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


@pytest.mark.parametrize("loss", ["residual-margin", "bpr"])  # the codes of bpr depend on the step
def test_a_killed_training_goes_on_and_ends_with_the_same_weights(examples, tiny_bert, tmp_path, loss):
    plan, objective = replace(PLAN, epochs=12, checkpoint_steps=5), Objective(loss)
    train_dense(examples, tmp_path / "whole", model=str(tiny_bert), plan=plan, objective=objective)
    code = (
        "import sys; from pathlib import Path; from hybrid_cli.config import Objective, Optimization;"
        "from hybrid_cli.stages.train_dense import train_dense;"
        "train_dense(Path(sys.argv[1]), Path(sys.argv[3]), model=sys.argv[2], threads=1,"
        f"plan={plan!r}, objective={objective!r})"
    )
    killed = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", code, str(examples), str(tiny_bert), str(killed)])
    partial = tmp_path / ".killed.partial"
    deadline = time.monotonic() + 120
    while not (partial / layout.CHECKPOINT).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not killed.exists(), "the training was over before it could be killed"
    assert (partial / layout.CHECKPOINT).exists(), "no checkpoint was written"
    train_dense(examples, killed, model=str(tiny_bert), plan=plan, objective=objective)
    assert weights(killed) == weights(tmp_path / "whole")
    assert not partial.exists()
    assert (killed / "curve.parquet").read_bytes() == (tmp_path / "whole" / "curve.parquet").read_bytes()


def test_gradient_caching_reaches_the_same_weights(examples, tiny_bert, tmp_path):
    plan = replace(PLAN, max_steps=3)
    nll = Objective(loss="nll")
    train_dense(examples, tmp_path / "plain", model=str(tiny_bert), plan=plan, objective=nll)
    train_dense(examples, tmp_path / "cached", model=str(tiny_bert), plan=replace(plan, chunk_size=100), objective=nll)
    plain, cached = (
        TransformerEncoder.load(tmp_path / name).encode_queries(["river bank", "matrix"])
        for name in ("plain", "cached")
    )
    np.testing.assert_allclose(plain, cached, atol=1e-4)


def test_no_lexical_weight_is_the_constant_margin(examples, tiny_bert, tmp_path):
    residual = Objective(loss="residual-margin", lexical_weight=0.0)
    train_dense(examples, tmp_path / "residual", model=str(tiny_bert), plan=PLAN, objective=residual)
    train_dense(examples, tmp_path / "margin", model=str(tiny_bert), plan=PLAN, objective=Objective(loss="margin"))
    assert weights(tmp_path / "residual") == weights(tmp_path / "margin")


def test_training_lowers_the_loss_and_lifts_dev(examples, tiny_bert, tmp_path):
    plan = replace(PLAN, epochs=15)
    out = train_dense(examples, tmp_path / "out", model=str(tiny_bert), plan=plan, dev=examples)
    curve = pl.read_parquet(out / "curve.parquet")
    loss = curve.filter(name="residual_margin")["value"]
    assert loss[-5:].mean() < loss[:5].mean()
    dev = curve.filter(name="dev_hybrid_MRR@10")["value"]
    assert dev[0] < dev.max()
    best = artifacts.read_manifest(out, Kind.ENCODER).counts["best_step"]
    assert curve.filter(name="dev_hybrid_MRR@10", step=best)["value"].item() == dev.max()
    pool = DevPool.of(Examples(examples).dev_rows(200))
    assert pool.measure(TransformerEncoder.load(out), SUM_WEIGHTS)["dev_hybrid_MRR@10"] == pytest.approx(dev.max())


@pytest.mark.parametrize(
    "contract", [{"tied": False}, {"dim": 8, "markers": "replace"}, {"pooling": "cls", "normalize": True}]
)
def test_every_contract_trains(examples, tiny_bert, tmp_path, contract):
    out = train_dense(
        examples, tmp_path / "out", model=str(tiny_bert), plan=replace(PLAN, max_steps=2), contract=contract
    )
    encoder = TransformerEncoder.load(out)
    assert {name: getattr(encoder.contract, name) for name in contract} == contract
    assert encoder.encode_queries(["river"]).shape == (1, contract.get("dim", 16))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(examples, tiny_bert, tmp_path, precision):
    out = train_dense(
        examples, tmp_path / "out", model=str(tiny_bert), plan=replace(PLAN, precision=precision, max_steps=2)
    )
    assert np.isfinite(TransformerEncoder.load(out).encode_queries(["river"])).all()


def test_an_up_to_date_encoder_is_left_alone_and_other_options_are_refused(examples, tiny_bert, tmp_path, capsys):
    plan = replace(PLAN, max_steps=1)
    out = train_dense(examples, tmp_path / "out", model=str(tiny_bert), plan=plan)
    before = os.stat(out / "model.safetensors").st_mtime_ns
    train_dense(examples, out, model=str(tiny_bert), plan=plan)
    assert "up to date" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"learning_rate=0\.001 then, 0\.5 now"):
        train_dense(examples, out, model=str(tiny_bert), plan=replace(plan, learning_rate=0.5))
    assert os.stat(out / "model.safetensors").st_mtime_ns == before


def test_the_manifest_says_where_the_encoder_came_from(examples, tiny_bert, tmp_path):
    out = train_dense(examples, tmp_path / "out", model=str(tiny_bert), plan=replace(PLAN, max_steps=1))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["inputs"]["examples"]["fingerprint"] == artifacts.fingerprint(examples)
    assert manifest["options"]["loss"] == "residual-margin"


def test_order_and_draws_do_not_depend_on_where_one_begins(examples):
    source, plan = Examples(examples), replace(PLAN, negatives=2, epochs=3, seed=7)
    whole = list(source.batches(plan))
    assert len(whole) == 3 * 5
    assert len(whole[4]) == 2, "the last batch of an epoch is shorter"
    for done in (1, 5, 7, 14):
        assert list(source.batches(plan, done)) == whole[done:]
    first, second = ({g.docids[0] for batch in whole[e * 5 : e * 5 + 5] for g in batch} for e in (0, 1))
    assert first == second == {f"p{i}" for i in range(18)}
    assert [g.docids for g in whole[0]] != [g.docids for g in whole[5]]


def test_another_positive_in_the_batch_is_no_negative(examples):
    source = Examples(examples)
    batch = next(source.batches(replace(PLAN, batch_size=18)))
    mask = allowed(batch)
    columns = [docid for group in batch for docid in group.docids]
    for row, group in enumerate(batch):
        denied = {columns[column] for column in torch.nonzero(~mask[row]).flatten().tolist()}
        assert denied == group.positives - {group.docids[0]}


def test_the_rate_rises_then_falls_to_nothing():
    factors = [rate_factor(step, 100, 0.1) for step in range(101)]
    assert max(factors) == factors[10] == 1
    assert factors[100] == 0
    assert factors[0] == pytest.approx(1 / 11)
    assert factors[:11] == sorted(factors[:11])
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_what_is_no_examples_file_is_refused(tiny_bert, tmp_path):
    file = tmp_path / "empty.parquet"
    artifacts.open_output(file, Kind.EXAMPLES, "test", inputs={}, options={}).write([])
    with pytest.raises(InputError, match="holds no training examples"):
        train_dense(file, tmp_path / "out", model=str(tiny_bert), plan=PLAN)
    with pytest.raises(InputError, match="no such file"):
        train_dense(tmp_path / "missing.parquet", tmp_path / "out", model=str(tiny_bert), plan=PLAN)


def test_the_residual_margin_needs_lexical_scores_and_the_likelihood_does_not(examples, tiny_bert, tmp_path):
    bare = tmp_path / "bare.parquet"
    rows = pl.read_parquet(examples).with_columns(lexical_score=pl.lit(None, pl.Float32)).to_arrow()
    artifacts.open_output(bare, Kind.EXAMPLES, "test", inputs={}, options={}).write([rows])
    plan = replace(PLAN, max_steps=1)
    with pytest.raises(InputError, match="has no lexical scores"):
        train_dense(bare, tmp_path / "residual", model=str(tiny_bert), plan=plan)
    train_dense(bare, tmp_path / "nll", model=str(tiny_bert), plan=plan, objective=Objective(loss="nll"))
