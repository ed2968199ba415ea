"""Codes and prefixes of vectors: BPR end to end; one model for several lengths (Matryoshka)."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import raises
from small_artifacts import vector_hits
from torch import Tensor

from hybrid_cli import artifacts
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.commands import VectorIndex
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.indexes.construction import build
from hybrid_cli.indexes.dense import IndexInfo
from hybrid_cli.indexes.shards import read_ids, shard_path, write_shard
from hybrid_cli.stages.combine import combine
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.stages.train_lambda import train_lambda
from hybrid_cli.storage import Kind
from hybrid_cli.training import losses

PLAN: dict[str, Any] = {"batch_size": 4, "max_steps": 3, "learning_rate": 1e-3, "dtype": "fp32"}


@pytest.fixture(scope="module")
def trained(tiny: Path, tiny_bert: Path, tiny_bm25: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bpr")
    examples = mine_negatives(tiny, split="train", index=tiny_bm25, output=folder / "examples.parquet")
    train_dense(examples, output=folder / "bpr", model=str(tiny_bert), **PLAN, loss="bpr", dev=examples)
    return folder


def test_training_records_both_terms_of_the_loss_and_the_contract_is_binary(trained: Path) -> None:
    curve = pl.read_parquet(trained / "bpr" / "curve.parquet")
    assert {"candidates", "rerank", "dev_MRR@10"} <= set(curve["name"])
    assert TransformerEncoder.load(trained / "bpr").contract.binary


def test_the_next_training_and_a_student_of_a_binary_encoder_are_not_binary(trained: Path, tmp_path: Path) -> None:
    examples, start = trained / "examples.parquet", str(trained / "bpr")
    again = train_dense(examples, output=tmp_path / "nll", model=start, **PLAN, loss="nll")
    student = distill_lite(examples, output=tmp_path / "lite", teacher=start, model=start, dim=4, **PLAN)
    assert not any(TransformerEncoder.load(folder).contract.binary for folder in (again, student))


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_of_length_1_are_rescaled_and_others_are_not(
    trained: Path, tiny_bert: Path, tmp_path: Path, normalize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan: dict[str, Any] = {**PLAN, "max_steps": 1, "model": str(tiny_bert), "normalize": normalize}
    examples, scales = trained / "examples.parquet", []
    true = losses.relaxed_signs

    def seen(vectors: Tensor, step: int, gamma: float, unit: bool) -> Tensor:
        scales.append((unit, bool(torch.allclose(vectors.norm(dim=-1), torch.ones(())))))
        return true(vectors, step, gamma, unit)

    monkeypatch.setattr(losses, "relaxed_signs", seen)
    out = train_dense(examples, output=tmp_path / "out", loss="bpr", **plan)
    assert set(scales) == {(normalize, normalize)}
    assert artifacts.read_manifest(out).options["temperature"] == 1
    likelihood = train_dense(examples, output=tmp_path / "nll", loss="nll", **plan)
    assert artifacts.read_manifest(likelihood).options["temperature"] == (0.05 if normalize else 1)


def test_the_index_is_binary_by_default(trained: Path, tiny: Path, tmp_path: Path) -> None:
    codes = encode(tiny, output=tmp_path / "codes", model=str(trained / "bpr"), dtype="fp32")
    made = artifacts.read_manifest(codes, Kind.DENSE_INDEX)
    assert (made.options["index_type"], made.counts["factory"]) == ("binary", "Binary")
    flat = encode(codes, output=tmp_path / "flat", index_type="flat")
    assert artifacts.read_manifest(flat).counts["factory"] == "Flat"
    assert artifacts.read_manifest(encode(flat, output=tmp_path / "again")).counts["factory"] == "Binary"


def test_codes_find_candidates_and_the_float_query_rescores_them(trained: Path, tiny: Path, tmp_path: Path) -> None:
    index = encode(tiny, output=tmp_path / "codes", model=str(trained / "bpr"), dtype="fp32")
    queries = pl.read_parquet(tiny / "queries.test.parquet")
    encoder = open_encoder(trained / "bpr", device="cpu")
    vectors = encoder.encode_queries(queries["text"].to_list())
    stored = open_dense(index).vectors_of(np.arange(12))
    codes = np.where(stored >= 0, 1.0, -1.0)
    for candidates in (4, 1000):
        output = tmp_path / f"{candidates}.parquet"
        how: dict[str, Any] = {"binary_k": candidates, "hits": 12}
        run = pl.read_parquet(search(tiny, split="test", index=index, output=output, device="cpu", **how))
        assert run.group_by("qid").len()["len"].unique().to_list() == [12]
    scores = vectors.astype(np.float64) @ codes.T
    docids = read_ids(index)
    expected = {(qid, docid): scores[q, d] for q, qid in enumerate(queries["qid"]) for d, docid in enumerate(docids)}
    assert len(run) == len(expected)
    for qid, docid, score in run.select("qid", "docid", "score").iter_rows():
        assert score == pytest.approx(expected[qid, docid], abs=1e-4)


def test_candidates_are_the_nearest_documents_by_hamming_distance(tmp_path: Path) -> None:
    """Documents that are not among the candidates are not returned, for any score with the float query."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    matrix, query = rng.standard_normal((40, 64)).astype(np.float32), rng.standard_normal((1, 64)).astype(np.float32)
    output = artifacts.open_output(tmp_path / "index", Kind.DENSE_INDEX, "encode", inputs={}, options={})
    with output.folder() as (work, counts):
        write_shard(shard_path(work, 0), pa.array([str(row) for row in range(40)]), matrix)
        factory = build(work, VectorIndex(index_type="binary"))
        counts |= IndexInfo(40, 64, factory=factory).counts()
    distances = ((matrix >= 0) != (query >= 0)).sum(1)
    nearest = np.flatnonzero(distances <= np.sort(distances)[19])  # including all ties at the last distance
    index = open_dense(tmp_path / "index", binary_k=len(nearest))
    found = [int(docid) for docid in vector_hits(index, query, ["q"], 3)["docid"]]
    scores = np.where(matrix >= 0, 1, -1) @ query[0]
    assert found == nearest[np.argsort(-scores[nearest])][:3].tolist()
    assert len(nearest) < 40


PLAN_nested: dict[str, Any] = {"batch_size": 4, "max_steps": 2, "dtype": "fp32"}


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
    return {"dtype": "fp32"} if name == "dense" else {}


def test_truncating_an_index_is_encoding_so(tiny: Path, tiny_bert: Path, tiny_lambda: Path, tmp_path: Path) -> None:
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
        folders.append(train_dense(examples, output=folder, model=str(tiny_bert), loss="nll", **plan, **PLAN_nested))
        static_lambda = tmp_path / f"static{len(dims)}"
        folders.append(train_lambda(tiny, output=static_lambda, candidates=(8, 5), **plan, **static))
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
