"""Static embeddings of model2vec: the normalized mean of the vectors of known tokens, as encoder, index and teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import raises
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["Salt lowers the freezing point of water.", "tides \U0001f30a rise", ""]


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    """The word embeddings of MiniLM in 32 dimensions."""
    words = load_file(resolve("minilm") / "model.safetensors")["embeddings.word_embeddings.weight"].astype(np.float64)
    _, axes = np.linalg.eigh(np.cov(words.T))
    return np.asarray((words - words.mean(0)) @ axes[:, -32:], np.float32)


def write(folder: Path, tensors: dict[str, np.ndarray], normalize: bool = True) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": normalize}))
    rules = Tokenizer.from_file(str(resolve("minilm") / "tokenizer.json"))
    rules.no_padding()
    rules.no_truncation()
    rules.save(str(folder / "tokenizer.json"))
    return folder


def by_hand(folder: Path, vectors: np.ndarray, normalize: bool) -> np.ndarray:
    rules = Tokenizer.from_file(str(folder / "tokenizer.json"))
    unknown = rules.token_to_id("[UNK]")
    rows = [[i for i in rules.encode(text, add_special_tokens=False).ids if i != unknown] for text in TEXTS]
    assert unknown in rules.encode(TEXTS[1]).ids
    means = np.stack([vectors[row].mean(0) if row else np.zeros(vectors.shape[1], np.float32) for row in rows])
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12) if normalize else means


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("form", ["plain", "weighted", "shared"])
def test_vectors_are_those_computed_by_hand(table: np.ndarray, form: str, normalize: bool, tmp_path: Path) -> None:
    tensors, vectors = {"embeddings": table}, table
    if form != "plain":
        weights = np.linspace(0.1, 2, len(table), dtype=np.float32)
        tensors["weights"] = weights
    if form == "shared":
        mapping = (np.arange(len(table)) % 100).astype(np.int64)
        tensors, vectors = {**tensors, "embeddings": table[:100].copy(), "mapping": mapping}, table[:100][mapping]
    vectors = vectors if form == "plain" else vectors * weights[:, None]
    folder = write(tmp_path / "static", tensors, normalize)
    encoder = open_encoder(folder)
    expected = by_hand(folder, vectors, normalize)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.encode_documents([""] * 3, TEXTS), expected, atol=1e-6)
    assert isinstance(encoder, TransformerEncoder)
    encoder.save(tmp_path / "saved")
    np.testing.assert_allclose(open_encoder(tmp_path / "saved").encode_queries(TEXTS), expected, atol=1e-6)


def test_a_static_model_is_indexed_searched_and_distilled(
    tiny: Path, made: Path, table: np.ndarray, tiny_bert: Path, tmp_path: Path
) -> None:
    model = str(write(tmp_path / "static", {"embeddings": table}))
    index = encode(tiny, model=model, dtype="fp32", output=tmp_path / "index")
    assert len(search(tiny, index=index, query="salt in water", hits=3)) == 3
    plan: dict[str, Any] = {"max_steps": 1, "batch_size": 4, "precision": "fp32", "dim": 8, "model": str(tiny_bert)}
    distill_lite(made / "train.parquet", teacher=model, output=tmp_path / "student", **plan)


def test_a_table_that_does_not_fit_its_tokenizer_is_refused(table: np.ndarray, tmp_path: Path) -> None:
    with raises("table-form"):
        open_encoder(write(tmp_path / "short", {"embeddings": table[:100].copy()}))
