"""Truncated vectors: one model, several lengths, and training of vector prefixes (Matryoshka)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import raises

from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.stages.combine import combine
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.stages.train_lambda import train_lambda

PLAN: dict[str, Any] = {"batch_size": 4, "max_steps": 2, "precision": "fp32"}


@pytest.mark.parametrize("unit", [True, False])
def test_a_truncated_vector_has_the_leading_values(tiny_bert: Path, tiny_lambda: Path, unit: bool) -> None:
    overrides = {"normalize": unit}
    whole = open_encoder(tiny_bert, overrides=overrides).encode_queries(["salt water"])[0]
    cut = open_encoder(tiny_bert, overrides={**overrides, "truncate_dim": 5}).encode_queries(["salt water"])[0]
    expected = whole[:5] / np.linalg.norm(whole[:5]) if unit else whole[:5]
    np.testing.assert_allclose(cut, expected, atol=1e-6)
    static_lambda = open_encoder(tiny_lambda)
    np.testing.assert_array_equal(
        open_encoder(tiny_lambda, overrides={"truncate_dim": 3}).encode_queries(["salt water"]),
        static_lambda.encode_queries(["salt water"])[:, :3],
    )


def precision(name: str) -> dict[str, Any]:
    """Return fp32 for a transformer; static encoders have no precision."""
    return {"dtype": "fp32"} if name == "dense" else {}


def test_truncating_an_index_equals_encoding_with_truncation(
    tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path: Path
) -> None:
    for name, model in (("dense", tiny_bert), ("static_lambda", tiny_lambda)):
        whole = encode(tiny, model=str(model), output=tmp_path / name, **precision(name))
        direct = encode(tiny, model=model, truncate_dim=3, output=tmp_path / f"{name}-direct", **precision(name))
        cut = encode(whole, truncate_dim=3, output=tmp_path / f"{name}-cut")
        one, other = open_dense(direct), open_dense(cut)
        assert (one.fingerprint, one.dim) == (other.fingerprint, other.dim)
        np.testing.assert_allclose(one.vectors_of(np.arange(12)), other.vectors_of(np.arange(12)), atol=1e-6)
        search(tiny, split="test", index=cut, output=tmp_path / f"{name}.parquet")
        with raises("out-of-range", option="truncate_dim", value=4, limit=3):
            encode(cut, output=tmp_path / "no", truncate_dim=4)


def test_prefixes_are_trained(tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    bm25 = tiny_lambda.parent / "bm25"
    examples = mine_negatives(tiny, split="train", index=bm25, output=tmp_path / "examples.parquet")
    folders = []
    static: dict[str, Any] = {"encoder": "static", "index": bm25, "max_steps": 5, "batch_size": 4, "dim": 6}
    for dims in ((), (2, 4)):
        folder = tmp_path / f"dense{len(dims)}"
        plan: dict[str, Any] = {"matryoshka_dims": dims or None}
        folders.append(train_dense(examples, output=folder, model=str(tiny_bert), loss="nll", **plan, **PLAN))
        static_lambda = tmp_path / f"static{len(dims)}"
        folders.append(train_lambda(tiny, output=static_lambda, sampled_candidates=5, **plan, **static))
    vectors = [open_encoder(folder).encode_queries(["salt water"]) for folder in folders]
    assert not np.allclose(vectors[0], vectors[2], atol=1e-7)
    assert not np.allclose(vectors[1], vectors[3], atol=1e-7)


def test_truncation_is_kept_in_a_combination(tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path: Path) -> None:
    dense, static_lambda = (
        encode(tiny, model=str(model), truncate_dim=length, output=tmp_path / name, **precision(name))
        for model, length, name in ((tiny_bert, 5, "dense"), (tiny_lambda, 3, "static_lambda"))
    )
    both = encode(dense, concat_with=static_lambda, output=tmp_path / "both")
    assert open_dense(both).dim == 8
    tuned = combine([tiny_bert, tiny_lambda], output=tmp_path / "tuned", tune=tiny, split="train", index=both)
    assert open_encoder(tuned).dim == 8
    search(tiny, split="test", index=both, output=tmp_path / "run.parquet", model=str(tuned))
