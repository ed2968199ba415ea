"""The two parts of RoC: with every loss, reproducible, recorded, refused where they do not apply."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from gradient_descent import TOLERANCE, errors, gradient_descent
from trainings import curve, weights

from hybrid_cli import artifacts
from hybrid_cli.artifacts.examples import open_dev_examples
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.storage import Kind, layout
from hybrid_cli.training.dev_set import DevSet
from hybrid_cli.training.losses import squared_cosine
from hybrid_cli.training.roc import Bm25Vectors, SignProjection, VectorsOfOthers

PLAN: dict[str, Any] = {"batch_size": 3, "epochs": 2, "learning_rate": 1e-3, "dtype": "fp32"}
ROC = {**PLAN, "loss": "roc"}
NLL = {**PLAN, "loss": "nll"}
OFF: dict[str, Any] = {"ortho_weight": 0.0, "mask_matches": 0.0}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.heavy
def test_roc_lowers_the_squared_cosines(mined: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**PLAN, "epochs": 20, "model": str(tiny_bert), "index": tiny_bm25, "dev": mined, "keep": "last"}
    roc: dict[str, Any] = {"loss": "roc", "ortho_weight": 50.0, "mask_matches": 0.0}
    trained = train_dense(mined, output=tmp_path / "roc", eval_steps=2, **plan, **roc)
    plain = train_dense(mined, output=tmp_path / "nll", eval_steps=2, **plan, loss="nll")
    assert curve(trained, "orthogonality")[-1] < curve(trained, "orthogonality")[0]
    assert curve(trained, "dev_cos2")[-1] < min(curve(trained, "dev_cos2")[0], curve(plain, "dev_cos2")[-1])
    assert curve(plain, "orthogonality") == []
    assert json.loads((trained / layout.LEXICAL_PROJECTION).read_text()) == {"dim": 16, "seed": 0, "version": 1}
    assert not (plain / layout.LEXICAL_PROJECTION).exists()


def test_the_curve_equals_an_evaluation(mined: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path) -> None:
    trained = train_dense(
        mined, output=tmp_path / "roc", model=str(tiny_bert), **ROC, index=tiny_bm25, dev=mined, eval_steps=2
    )
    encoder, lexical = TransformerEncoder.load(trained), open_bm25(tiny_bm25)
    dev = DevSet.of(replace(open_dev_examples(mined), index=lexical), 200, 1000)
    queries, docids = dev.queries["text"].to_list(), dev.documents["docid"]
    documents = dev.documents["title"].to_list(), dev.documents["text"].to_list()
    dense = encoder.encode_queries(queries) @ encoder.encode_documents(*documents).T
    sparse = (lexical.query_matrix(queries) @ lexical.rows(docids).T).toarray()

    def found(scores: np.ndarray) -> set[int]:
        """Return queries whose relevant document has fewer than ten others at or above it."""
        return {
            query
            for query, relevant in enumerate(dev.relevant)
            if sum(s >= scores[query][relevant].max() for s in np.delete(scores[query], relevant)) < 10
        }

    best = artifacts.read_manifest(trained, Kind.ENCODER).counts["best_step"]
    logged = pl.read_parquet(trained / "curve.parquet").filter(step=best)
    ours, theirs, every = found(dense), found(sparse), set(range(len(queries)))
    expected = {"RoC": len(ours - theirs) / len(ours), "dense_only": len(ours - theirs)}
    expected |= {"sparse_only": len(theirs - ours), "fail": len(every - ours - theirs)}
    for name, value in expected.items():
        assert logged.filter(name=f"dev_{name}@10")["value"].item() == pytest.approx(value)
    side = Bm25Vectors(lexical, SignProjection(16), docids)
    cosines = [
        squared_cosine(torch.from_numpy(encoder.encode_queries(queries)), torch.from_numpy(side.queries(queries))),
        squared_cosine(
            torch.from_numpy(encoder.encode_documents(*documents)), torch.from_numpy(side.documents(docids.to_list()))
        ),
    ]
    mean = sum(values.mean().item() for values in cosines) / 2
    assert logged.filter(name="dev_cos2")["value"].item() == pytest.approx(mean, rel=1e-4)


def test_masking_changes_training_not_the_saved_encoder(mined: Path, tiny_bert: Path, tmp_path: Path) -> None:
    masked = {**ROC, **OFF, "mask_matches": 1.0}
    out = train_dense(mined, output=tmp_path / "masked", model=str(tiny_bert), **masked)
    train_dense(mined, output=tmp_path / "plain", model=str(tiny_bert), **NLL)
    assert weights(out) != weights(tmp_path / "plain")
    encoder = TransformerEncoder.load(out)
    once, again = (encoder.encode_documents([""], ["the heart pumps blood"]) for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_without_both_parts_roc_is_the_plain_likelihood(mined: Path, tiny_bert: Path, tmp_path: Path) -> None:
    train_dense(mined, output=tmp_path / "roc", model=str(tiny_bert), **ROC, **OFF)
    train_dense(mined, output=tmp_path / "nll", model=str(tiny_bert), **NLL)
    assert weights(tmp_path / "roc") == weights(tmp_path / "nll")


def test_caching_and_masking_are_the_same(mined: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**ROC, "max_steps": 3, "mask_matches": 0.5, "index": tiny_bm25, "learning_rate": 0.02, "clip": 1e9}
    with gradient_descent() as plain:
        train_dense(mined, output=tmp_path / "plain", model=str(tiny_bert), **plan)
    with gradient_descent() as cached:
        train_dense(mined, output=tmp_path / "cached", model=str(tiny_bert), **plan, chunk_size=100)
    assert max(errors(cached, plain)) < TOLERANCE


def test_a_control_changes_orthogonality(mined: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**ROC, "model": str(tiny_bert), "index": tiny_bm25, "mask_matches": 0.0, "max_steps": 2}
    roc = train_dense(mined, output=tmp_path / "roc", **plan)
    control = train_dense(mined, output=tmp_path / "control", **plan, ortho_control=True)
    assert curve(control, "nll")[0] == curve(roc, "nll")[0]
    assert curve(control, "orthogonality")[0] != curve(roc, "orthogonality")[0]


def test_the_control_has_the_vectors_of_other_texts_in_all_batches(tiny_bm25: Path) -> None:
    opened = open_bm25(tiny_bm25)
    own = Bm25Vectors(opened, SignProjection(16), opened.docids)
    queries, docids = ["salt water", "heart", "river bank"], opened.docids.to_list()
    others = VectorsOfOthers(own, pl.Series(queries), opened.docids, seed=3)
    for texts, found, plain in (
        (queries, others.queries(queries), own.queries(queries)),
        (docids, others.documents(docids), own.documents(docids)),
    ):
        places = [next(at for at, row in enumerate(plain) if np.array_equal(row, each)) for each in found]
        assert sorted(places) == list(range(len(texts))), "a permutation"
        assert all(place != number for number, place in enumerate(places)), "never their own"
    np.testing.assert_array_equal(others.documents(docids[2:4]), others.documents(docids)[2:4])
