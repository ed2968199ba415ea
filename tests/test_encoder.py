"""The transformer encoder against sentence-transformers; pooling, markers and contracts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import raises

from hybrid_cli.encoders.contract import Contract, differences
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.transformer import TransformerEncoder, batches_by_length, pool

TEXTS = [
    "Return the inverse of a square matrix.",
    "",
    "Fit a line.",
    "Compute the q-th quantile of the data along the specified axis, ignoring values that are not numbers. " * 4,
    "naïve café 数据 [unused1] [SEP] x",
]


def sentence_transformer(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def test_minilm_has_the_vectors_of_sentence_transformers() -> None:
    encoder = TransformerEncoder.load("minilm")
    assert encoder.contract == Contract(normalize=True, query_max_len=256, doc_max_len=256)
    expected = sentence_transformer(resolve("minilm")).encode(TEXTS)
    np.testing.assert_allclose(encoder.encode_documents([""] * len(TEXTS), TEXTS), expected, atol=1e-5)


def test_all_files_of_a_saved_encoder_are_as_readable_as_other_new_files(tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    TransformerEncoder.load(tiny_bert).save(tmp_path / "model")
    modes = {path.stat().st_mode for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "new").stat().st_mode}


@pytest.mark.parametrize(
    "overrides",
    [
        {"pooling": "cls"},
        {"markers": "replace", "normalize": True},
        {"markers": "prepend"},
        {"dim": 8},
        {"dim": 8, "projection_norm": False, "normalize": True},
        {"query_prefix": "query: ", "doc_prefix": "passage: "},
    ],
)
def test_a_saved_encoder_is_a_sentence_transformers_model(
    tiny_bert: Path, tmp_path: Path, overrides: dict[str, Any]
) -> None:
    torch.manual_seed(3)
    encoder = TransformerEncoder.load(tiny_bert, query_max_len=40, doc_max_len=40, **overrides)
    encoder.save(tmp_path / "model")
    other = sentence_transformer(tmp_path / "model")
    expected = other.encode(TEXTS, prompt_name="document")
    np.testing.assert_allclose(encoder.encode_documents([""] * len(TEXTS), TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), other.encode(TEXTS, prompt_name="query"), atol=1e-5)


@pytest.mark.parametrize("side", ["query", "doc"])
def test_a_length_above_the_positions_of_the_model_is_refused(tiny_bert: Path, side: str) -> None:
    longer: dict[str, Any] = {f"{side}_max_len": 513}
    with raises("out-of-range"):
        TransformerEncoder.load(tiny_bert, device="cpu", **longer)
    encoder = TransformerEncoder.load(tiny_bert, device="cpu", query_max_len=512, doc_max_len=512)
    long = "salt " * 600
    encode = encoder.encode_queries if side == "query" else lambda texts: encoder.encode_documents([""], texts)
    assert np.isfinite(encode([long])).all()
    assert encoder.truncated == 1


def test_a_stored_length_above_the_positions_is_cut(tiny_bert: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "model")
    (tmp_path / "model" / "encoder.json").write_text('{"doc_max_len": 600}')
    encoder = TransformerEncoder.load(tmp_path / "model", device="cpu")
    assert np.isfinite(encoder.encode_documents([""], ["salt " * 600])).all()


@pytest.mark.parametrize("overrides", [{}, {"tied": False}, {"markers": "replace", "dim": 4}])
def test_saving_and_loading_changes_nothing(tiny_bert: Path, tmp_path: Path, overrides: dict[str, Any]) -> None:
    encoder = TransformerEncoder.load(tiny_bert, **overrides)
    encoder.save(tmp_path / "model")
    again = TransformerEncoder.load(tmp_path / "model")
    assert again.contract == encoder.contract
    np.testing.assert_array_equal(again.encode_queries(TEXTS), encoder.encode_queries(TEXTS))
    np.testing.assert_array_equal(again.encode_documents(TEXTS, TEXTS), encoder.encode_documents(TEXTS, TEXTS))


def test_markers_replace_cls(tiny_bert: Path) -> None:
    tokens = TransformerEncoder.load(tiny_bert, markers="replace").query_tower.tokenizer
    contract = Contract(markers="replace")
    ids = tokens([contract.query("a dog"), contract.document("cat", "runs")])["input_ids"]
    assert tokens.convert_ids_to_tokens(ids[0]) == ["[unused1]", "a", "dog", "[SEP]"]
    assert tokens.convert_ids_to_tokens(ids[1]) == ["[unused2]", "cat", "runs", "[SEP]"]


def test_markers_distinguish_queries_from_documents(tiny_bert: Path) -> None:
    encoder = TransformerEncoder.load(tiny_bert, markers="replace")
    assert not np.allclose(encoder.encode_queries(["a dog"]), encoder.encode_documents([""], ["a dog"]))


def test_mean_pooling_ignores_padding() -> None:
    states = torch.tensor([[[1.0], [3.0], [100.0]]])
    assert pool(states, torch.tensor([[1, 1, 0]]), "mean").item() == 2.0


def test_vectors_do_not_depend_on_the_batch(tiny_bert: Path) -> None:
    encoder = TransformerEncoder.load(tiny_bert)
    alone = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode_queries(TEXTS, batch_tokens=30), alone, atol=1e-6)


def test_scores_are_inner_products_not_cosines(tiny_bert: Path) -> None:
    norms = np.linalg.norm(TransformerEncoder.load(tiny_bert).encode_queries(TEXTS), axis=1)
    assert not np.allclose(norms, 1)


def test_batches_contain_every_row_once_within_the_budget() -> None:
    lengths = list(np.random.default_rng(0).integers(1, 50, 200))
    parts = list(batches_by_length(lengths, 100))
    assert sorted(np.concatenate(parts)) == list(range(200))
    assert all(len(rows) * max(lengths[row] for row in rows) <= 100 for rows in parts)


def test_title_and_text_are_joined_with_the_separator_of_the_contract() -> None:
    assert Contract(title_separator=" [SEP] ").document("Home Run Derby", "Some") == "Home Run Derby [SEP] Some"
    assert Contract().document("", "Some") == "Some"


def test_the_fingerprint_changes_with_weights_and_contract(tiny_bert: Path, tmp_path: Path) -> None:
    first = TransformerEncoder.load(tiny_bert)
    assert first.fingerprint == TransformerEncoder.load(tiny_bert).fingerprint
    assert first.fingerprint != TransformerEncoder.load(tiny_bert, pooling="cls").fingerprint
    first.query_tower.backbone.get_parameter("embeddings.word_embeddings.weight").data[5] += 1
    first.save(tmp_path / "other")
    assert TransformerEncoder.load(tmp_path / "other").fingerprint != first.fingerprint


def test_differences_are_described() -> None:
    assert differences(Contract().to_dict(), replace(Contract(), pooling="cls").to_dict()) == [
        "pooling='mean', not 'cls'"
    ]


def test_distillation_heads_are_returned_in_training_only_and_never_saved(tiny_bert: Path, tmp_path: Path) -> None:
    encoder = TransformerEncoder.load(tiny_bert, device="cpu", tied=False)
    encoder.add_distillation_heads(5)
    tower = encoder.document_tower
    ids = torch.tensor([[101, 2054, 102]])
    assert tower(ids, torch.ones_like(ids)).shape == (1, 16)
    assert tower.train()(ids, torch.ones_like(ids)).shape == (1, 21)
    encoder.save(tmp_path / "saved")
    assert TransformerEncoder.load(tmp_path / "saved").dim == 16


@pytest.mark.heavy
def test_limited_instructions_compute_in_fp32() -> None:
    """PyTorch fails in bf16 where a processor that has AVX-512 may not use it."""
    code = "from hybrid_cli.encoders.models import pick_dtype; print(pick_dtype('auto', 'cpu'))"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["torch.float32"]
