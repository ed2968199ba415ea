"""Queries of a BERT encoder in NumPy: the vectors of the transformer, and no import of PyTorch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_encoder import sentence_transformer

from hybrid_cli.encoders.few_queries import FEW, FewQueries, open_few
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = (
    "solve a linear system", "", "x", "日本 naïve café RÉSUMÉ don't U.S.A. 3.14", "word " * 300,
    "  several   spaces\tand\nlines ", "[MASK] special [SEP] words [unused1]",
    "\u0000 control \u200b characters \U0001f600",
)  # fmt: skip
FORMS: list[dict[str, Any]] = [
    {}, {"pooling": "cls", "normalize": True}, {"markers": "replace"}, {"markers": "prepend", "query_prefix": "find: "},
    {"truncate_dim": 5, "normalize": True}, {"query_max_len": 4}, {"tied": False},
]  # fmt: skip


def few(folder: Path, **overrides: Any) -> FewQueries:
    opened = open_few(folder, overrides, None, lambda: open_encoder(folder, device="cpu", overrides=overrides))
    assert opened is not None
    return opened


def one_by_one(encoder: Any) -> np.ndarray:
    return np.vstack([encoder.encode_queries([text]) for text in TEXTS])


def test_minilm_has_the_vectors_of_sentence_transformers() -> None:
    encoder = few(resolve("minilm"))
    found, texts = one_by_one(encoder), [text.replace("\u0000", "") for text in TEXTS]
    expected = sentence_transformer(resolve("minilm")).encode(texts, batch_size=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert encoder.truncated == 1


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_vectors_are_those_of_the_transformer(tiny_bert: Path, tmp_path: Path, form: dict[str, Any]) -> None:
    TransformerEncoder.load(tiny_bert, device="cpu", **form).save(tmp_path / "saved")
    encoder, whole = few(tmp_path / "saved"), open_encoder(tmp_path / "saved", device="cpu")
    np.testing.assert_allclose(one_by_one(encoder), one_by_one(whole), atol=1e-5)
    assert (encoder.fingerprint, encoder.dim, encoder.truncated, encoder.describe()) == (
        whole.fingerprint, whole.dim, whole.truncated, whole.describe(),
    )  # fmt: skip


def test_many_queries_and_documents_are_of_the_transformer(tiny_bert: Path) -> None:
    encoder, whole = few(tiny_bert), open_encoder(tiny_bert, device="cpu")
    texts = [f"text {number}" for number in range(FEW + 1)]
    assert (encoder.encode_queries(texts) == whole.encode_queries(texts)).all()
    assert (encoder.encode_documents(["a"], ["b"]) == whole.encode_documents(["a"], ["b"])).all()
    assert encoder.encode_queries([]).shape == (0, whole.dim)
    assert encoder.device == whole.device


@pytest.mark.parametrize("form", [{"dim": 4}, {"pooling": "max"}, {"fill_queries": True}], ids=str)
def test_other_forms_are_left_to_the_transformer(tiny_bert: Path, tmp_path: Path, form: dict[str, Any]) -> None:
    TransformerEncoder.load(tiny_bert, device="cpu", **form).save(tmp_path / "saved")
    assert open_few(tmp_path / "saved", {}, None, lambda: open_encoder(tiny_bert)) is None


@pytest.mark.parametrize(
    "change", [{"num_hidden_layers": 1}, {"hidden_act": "relu"}, {"layer_norm_eps": None}], ids=str
)
def test_another_configuration_is_left_to_the_transformer(
    tiny_bert: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    model = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text()) | change
    (model / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    assert open_few(model, {}, None, lambda: open_encoder(model)) is None


def test_a_live_query_of_a_retriever_imports_nothing_that_compiles_or_trains(tiny: Path, tmp_path: Path) -> None:
    dense = encode(tiny, model="minilm", output=tmp_path / "dense")
    bm25 = index_bm25(tiny, output=tmp_path / "bm25", lucene=False)
    retriever = compose([bm25, dense], output=tmp_path / "retriever")
    code = """
import sys
from hybrid_cli.stages.search import search
hits = search(index=sys.argv[1], query="salt water", hits=3, threads=1)
print({"torch", "transformers", "numba", "faiss", "scipy"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code, str(retriever)], capture_output=True, text=True)
    assert done.stdout.split() == ["set()"], done.stderr


def test_a_live_query_does_not_import_pytorch(tiny: Path, tmp_path: Path) -> None:
    index = encode(tiny, model="minilm", output=tmp_path / "index")
    code = """
import sys
from hybrid_cli.stages.search import search
hits = search(index=sys.argv[1], query="salt", hits=1, threads=1)
print(hits["docid"][0], {"torch", "transformers"} & set(sys.modules))
import torch
print(torch.get_num_threads())
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code, str(index)], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["salt", "set()", "1"], done.stderr
