"""RoC's two pieces as a person trains them: with every loss, seeded, remembered, refused where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.config import Objective, Optimization
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.projection import SignProjection
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.train_dense import PROJECTION, train_dense
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.bm25_vectors import LexicalSide
from hybrid_cli.training.losses import squared_cosine
from hybrid_cli.training.validation import DevPool

PLAN = Optimization(batch_size=3, epochs=2, learning_rate=1e-3, precision="fp32", eval_steps=2)
ROC = Objective(loss="roc")


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_bm25(tiny, output=tmp_path_factory.mktemp("lexical") / "bm25")


@pytest.fixture(scope="module")
def examples(tiny: Path, index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mine_negatives(
        tiny, output=tmp_path_factory.mktemp("mined") / "train.parquet", split="train", index=index, num_negatives=3
    )


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def curve(folder: Path, name: str) -> list[float]:
    return pl.read_parquet(folder / "curve.parquet").filter(name=name)["value"].to_list()


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_roc_lowers_the_squared_cosines_and_remembers_its_projection(examples, index, tiny_bert, tmp_path):
    plan, objective = replace(PLAN, epochs=20), replace(ROC, ortho_weight=50.0, mask_matches=0.0)
    settings = {"model": str(tiny_bert), "index": index, "dev": examples, "plan": replace(plan, keep="last")}
    trained = train_dense(examples, tmp_path / "roc", objective=objective, **settings)
    plain = train_dense(examples, tmp_path / "nll", objective=Objective(loss="nll"), **settings)
    assert curve(trained, "orthogonality")[-1] < curve(trained, "orthogonality")[0]
    assert curve(trained, "dev_cos2")[-1] < min(curve(trained, "dev_cos2")[0], curve(plain, "dev_cos2")[-1])
    assert curve(plain, "orthogonality") == []
    assert json.loads((trained / PROJECTION).read_text()) == {"dim": 16, "seed": 0, "version": 1}
    assert not (plain / PROJECTION).exists()


def test_the_curve_shows_what_an_evaluation_of_the_encoder_would(examples, index, tiny_bert, tmp_path):
    trained = train_dense(
        examples, tmp_path / "roc", model=str(tiny_bert), objective=ROC, plan=PLAN, index=index, dev=examples
    )
    encoder, source = TransformerEncoder.load(trained), Examples(examples)
    pool = DevPool.of(source.dev_rows(200))
    lexical = LexicalIndex.open(index)
    dense = encoder.encode_queries(pool.queries) @ encoder.encode_documents(pool.titles, pool.texts).T
    sparse = (lexical.query_matrix(pool.queries) @ lexical.rows(pl.Series(pool.docids)).T).toarray()

    def found(scores: np.ndarray) -> set[int]:
        """Queries whose relevant document has fewer than ten others at or above it."""
        return {
            query
            for query, relevant in enumerate(pool.relevant)
            if sum(s >= scores[query][relevant].max() for s in np.delete(scores[query], relevant)) < 10
        }

    best = artifacts.read_manifest(trained, Kind.ENCODER).counts["best_step"]
    logged = pl.read_parquet(trained / "curve.parquet").filter(step=best)
    expected = len(found(dense) - found(sparse)) / len(found(dense))
    assert logged.filter(name="dev_RoC@10")["value"].item() == pytest.approx(expected)
    side = LexicalSide(lexical, SignProjection(16), pl.Series(pool.docids))
    cosines = [
        squared_cosine(
            torch.from_numpy(encoder.encode_queries(pool.queries)), torch.from_numpy(side.queries(pool.queries))
        ),
        squared_cosine(
            torch.from_numpy(encoder.encode_documents(pool.titles, pool.texts)),
            torch.from_numpy(side.documents(pool.docids)),
        ),
    ]
    mean = sum(values.mean().item() for values in cosines) / 2
    assert logged.filter(name="dev_cos2")["value"].item() == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("loss", ["residual-margin", "margin", "nll"])
@pytest.mark.parametrize("contract", [{}, {"tied": False, "pooling": "cls"}, {"dim": 8, "markers": "replace"}])
def test_the_pieces_go_with_every_loss_and_every_encoder(examples, index, tiny_bert, tmp_path, loss, contract):
    objective = Objective(loss=loss, ortho_weight=1.0, mask_matches=0.5)
    plan = replace(PLAN, max_steps=1)
    out = train_dense(
        examples, tmp_path / "out", model=str(tiny_bert), objective=objective, plan=plan, contract=contract, index=index
    )
    names = pl.read_parquet(out / "curve.parquet")["name"].to_list()
    assert names == [loss.replace("-", "_"), "orthogonality"]
    assert json.loads((out / PROJECTION).read_text())["dim"] == contract.get("dim", 16)


def test_both_pieces_off_is_the_plain_likelihood(examples, tiny_bert, tmp_path):
    off = replace(ROC, ortho_weight=0.0, mask_matches=0.0)
    train_dense(examples, tmp_path / "roc", model=str(tiny_bert), objective=off, plan=PLAN)
    train_dense(examples, tmp_path / "nll", model=str(tiny_bert), objective=Objective(loss="nll"), plan=PLAN)
    assert weights(tmp_path / "roc") == weights(tmp_path / "nll")


def test_masking_changes_training_and_not_the_encoder_that_is_saved(examples, tiny_bert, tmp_path):
    masked = replace(ROC, ortho_weight=0.0, mask_matches=1.0)
    out = train_dense(examples, tmp_path / "masked", model=str(tiny_bert), objective=masked, plan=PLAN)
    train_dense(examples, tmp_path / "plain", model=str(tiny_bert), objective=Objective(loss="nll"), plan=PLAN)
    assert weights(out) != weights(tmp_path / "plain")
    encoder = TransformerEncoder.load(out)
    once, again = (encoder.encode_documents([""], ["the heart pumps blood"]) for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_gradient_caching_and_masking_reach_the_same_weights(examples, index, tiny_bert, tmp_path):
    plan = replace(PLAN, max_steps=3)
    for name, chunk_size in (("plain", None), ("cached", 100)):
        train_dense(
            examples,
            tmp_path / name,
            model=str(tiny_bert),
            objective=replace(ROC, mask_matches=0.5),
            plan=replace(plan, chunk_size=chunk_size),
            index=index,
        )
    plain, cached = (
        TransformerEncoder.load(tmp_path / name).encode_queries(["river bank"]) for name in ("plain", "cached")
    )
    np.testing.assert_allclose(plain, cached, atol=1e-4)


def test_orthogonality_without_an_index_is_refused(examples, tiny_bert, tmp_path):
    with pytest.raises(InputError, match="give --index, or --ortho-weight 0"):
        train_dense(examples, tmp_path / "out", model=str(tiny_bert), objective=ROC, plan=PLAN)


def test_going_on_with_another_projection_is_refused(examples, index, tiny_bert, tmp_path):
    plan = replace(PLAN, max_steps=1)
    first = train_dense(
        examples, tmp_path / "first", model=str(tiny_bert), objective=replace(ROC, ortho_seed=3), plan=plan, index=index
    )
    with pytest.raises(InputError, match="seed 3, version 1; now dim 16, seed 0, version 1"):
        train_dense(examples, tmp_path / "other", model=str(first), objective=ROC, plan=plan, index=index)
    assert not (tmp_path / "other").exists()
    with pytest.raises(InputError, match="another projection"):
        train_dense(
            examples,
            tmp_path / "narrow",
            model=str(first),
            objective=replace(ROC, ortho_seed=3),
            plan=plan,
            index=index,
            contract={"dim": 8},
        )
    train_dense(
        examples, tmp_path / "same", model=str(first), objective=replace(ROC, ortho_seed=3), plan=plan, index=index
    )
    train_dense(examples, tmp_path / "without", model=str(first), objective=Objective(loss="nll"), plan=plan)


def test_an_index_of_another_corpus_is_refused(examples, index, tiny_bert, tmp_path):
    other = tmp_path / "other.parquet"
    rows = pl.read_parquet(examples).with_columns(docid=pl.lit("elsewhere")).to_arrow()
    artifacts.open_output(other, Kind.EXAMPLES, "test", inputs={}, options={}).write([rows])
    with pytest.raises(InputError, match="has no document elsewhere; give the --index that the examples"):
        train_dense(other, tmp_path / "out", model=str(tiny_bert), objective=ROC, plan=PLAN, index=index)
