"""`--dtype int8`: 8-bit transformers by ONNX Runtime."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import raises
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli import artifacts, runs
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.indexes.shards import read_shard, shards
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search
from hybrid_cli.stages.update import update

TEXT = "the moon moves the water of the oceans"


def vectors(folder: Path) -> np.ndarray:
    return np.concatenate([read_shard(each) for each in shards(folder)])


@pytest.fixture(scope="module")
def index(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encode(tiny, output=tmp_path_factory.mktemp("int8") / "index", model=str(tiny_bert), dtype="int8")


@pytest.mark.usefixtures("one_thread")
def test_the_vectors_are_close_to_those_of_fp32(tiny: Path, tiny_bert: Path, index: Path, tmp_path: Path) -> None:
    exact, found = vectors(encode(tiny, output=tmp_path / "fp32", model=str(tiny_bert), dtype="fp32")), vectors(index)
    assert (exact != found).any()
    assert ((exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)).min() > 0.99
    assert artifacts.read_manifest(index).options["dtype"] == "int8"


@pytest.mark.usefixtures("one_thread")
def test_every_text_of_a_real_model_is_close_to_fp32() -> None:
    """Long and short texts in one batch, whose activations share their scales."""
    texts = [" ".join(text for _, _, text in TINY_DOCUMENTS[first:]) for first in range(len(TINY_DOCUMENTS))]
    texts = [*filter(None, texts), *(text for _, _, text in TINY_DOCUMENTS if text), TEXT, "tides"]
    found, exact = (
        open_encoder("minilm", dtype=dtype).encode_documents([""] * len(texts), texts) for dtype in ("int8", "fp32")
    )
    assert ((exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)).min() > 0.99


@pytest.mark.usefixtures("one_thread")
def test_queries_of_an_int8_index_are_encoded_in_fp32(tiny: Path, tiny_bert: Path, index: Path, tmp_path: Path) -> None:
    run = search(tiny, split="test", index=index, output=tmp_path / "run.parquet", threads=1)
    queries = encode(tiny, split="test", output=tmp_path / "queries", model=str(tiny_bert), dtype="fp32")
    scores = vectors(queries) @ vectors(index).T
    first = runs.read_run(run).filter(pl.col("rank") == 1).sort("qid")["score"].to_numpy()
    np.testing.assert_allclose(first, scores.max(1), rtol=1e-5)


@pytest.mark.usefixtures("one_thread")
def test_appended_documents_are_encoded_in_int8(tiny_bert: Path, index: Path, tmp_path: Path) -> None:
    added = tmp_path / "added.parquet"
    pl.DataFrame({"docid": ["new"], "title": [""], "text": [TEXT]}).write_parquet(added)
    longer = update(index, add=added, output=tmp_path / "longer", threads=1)
    exact = open_encoder(tiny_bert).encode_documents([""], [TEXT])[0]
    found = vectors(longer)[-1]
    assert (found != exact).any()
    assert found @ exact / np.linalg.norm(found) / np.linalg.norm(exact) > 0.99


def test_other_encoders_and_devices_are_refused(tiny: Path, tiny_lambda: Path, tiny_bert: Path, tmp_path: Path) -> None:
    with raises("option-does-not-apply", option="dtype"):
        encode(tiny, output=tmp_path / "index", model=str(tiny_lambda), dtype="int8")
    with raises("option-does-not-apply", option="dtype", value="int8"):
        encode(tiny, output=tmp_path / "index", model=str(tiny_bert), architecture="splade", dtype="int8")


def test_without_onnx_runtime_the_extra_is_named(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "onnxruntime":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with raises("missing-package", option="dtype", package="onnxruntime"):
        open_encoder(tiny_bert, dtype="int8")
