"""Checkpoints of learned sparse encoders: published ones against plain arithmetic, other kinds of models refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from command import Notices, raises
from safetensors.torch import load_file, save_file
from sparse_models import TEXTS, open_model, write_checkpoint, write_checkpoints
from tiny_tokenizer import tiny_tokenizer

from hybrid_cli import artifacts
from hybrid_cli.encoders.contract import PRESETS
from hybrid_cli.encoders.sparse import LiteralTerms, SparseEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.analysis import LazyAnalyzer
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search_query

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    return write_checkpoints(tmp_path_factory.mktemp("sparse"))


def inputs(folder: Path, texts: list[str]) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer, tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)


def splade_reference(folder: Path, texts: list[str]) -> np.ndarray:
    """SPLADE's arithmetic with transformers' own class: the logarithm first, then the maximum."""
    _, batch = inputs(folder, texts)
    with torch.inference_mode():
        logits = transformers.BertForMaskedLM.from_pretrained(folder)(**batch).logits
    weights = torch.log(1 + torch.relu(logits)) * batch["attention_mask"].unsqueeze(-1)
    return np.asarray(weights.max(1).values)


def unicoil_reference(folder: Path, texts: list[str], repeats: Callable[[list[float]], float]) -> np.ndarray:
    """UniCOIL's arithmetic in plain loops."""
    tokenizer, batch = inputs(folder, texts)
    state = load_file(folder / "model.safetensors")
    body = transformers.BertModel.from_pretrained(
        None,
        config=transformers.BertConfig.from_pretrained(folder),
        state_dict={key.removeprefix("coil_encoder."): state[key] for key in state if key.startswith("coil")},
    ).eval()
    with torch.inference_mode():
        states = body(**batch).last_hidden_state
    weights = torch.relu(states @ state["tok_proj.weight"].T + state["tok_proj.bias"]).squeeze(-1)
    found = np.zeros((len(texts), len(tokenizer)), np.float32)
    for row, ids in enumerate(batch["input_ids"].tolist()):
        for piece in set(ids) - set(tokenizer.all_special_ids):
            found[row, piece] = repeats([weights[row, at].item() for at, each in enumerate(ids) if each == piece])
    return found


def test_splade_computes_the_reference_weights(models: dict[Any, Path]) -> None:
    encoder = open_model(models, "splade")
    wanted = splade_reference(models["splade"], TEXTS)
    assert (wanted > 0).any()
    np.testing.assert_allclose(encoder.encode_documents([""] * 3, TEXTS), wanted, atol=2e-6)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), wanted, atol=2e-6)


def test_unicoil_takes_the_maximum_in_documents_and_the_sum_in_queries(models: dict[Any, Path]) -> None:
    encoder = open_model(models, "unicoil")
    maximum, total = (unicoil_reference(models["unicoil"], TEXTS, repeats) for repeats in (max, sum))
    assert not np.allclose(maximum, total)
    np.testing.assert_allclose(encoder.encode_documents([""] * 3, TEXTS), maximum, atol=2e-6)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), total, atol=2e-6)


def test_deepct_counts_literal_terms_only(models: dict[Any, Path]) -> None:
    encoder = open_model(models, "deepct")
    found = encoder.document_weights([""] * 3, TEXTS, 100)
    terms, ends = found.terms.to_pylist(), np.cumsum(found.distinct).tolist()
    tokenizer, batch = inputs(models["deepct"], TEXTS)
    with torch.inference_mode():
        weights = transformers.BertForTokenClassification.from_pretrained(models["deepct"])(**batch).logits.squeeze(-1)
    analyzed = LazyAnalyzer().analyze(TEXTS)
    for row, end in enumerate(ends):
        assert set(terms[end - found.distinct[row] : end]) <= set(analyzed[row])
    pieces = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    blood = max(weights[0, at].item() for at, piece in enumerate(pieces) if piece == "blood")
    first = dict(zip(terms[: ends[0]], found.weights.tolist(), strict=False))
    assert blood > 0
    assert first["blood"] == round(100 * blood)


def test_words_that_lucene_joins_are_weighted_as_one(models: dict[Any, Path]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["deepct"])
    text = "salt-free U.S. isn't"
    words = LiteralTerms().words([text], tokenizer([text]).encodings)[0]
    assert sorted(term for _, terms in words for term in terms) == sorted(LazyAnalyzer().analyze([text])[0])


def test_a_table_of_word_pieces_replaces_the_query_encoder(models: dict[Any, Path], tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "free", "splade")
    (folder / "idf.json").write_text(json.dumps({"blood": 2.5, "the": 0.25, "[CLS]": 9.0}))
    encoder = SparseEncoder.load(folder, architecture="splade", device="cpu")
    boosts = encoder.query_boosts(["blood blood the tides"], 128)
    assert dict(boosts.select("term", "boost").iter_rows()) == {"blood": 320.0, "the": 32.0}
    np.testing.assert_allclose(
        encoder.encode_documents([""], TEXTS[:1]), splade_reference(folder, TEXTS[:1]), atol=2e-6
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"tok_proj.weight": None, "tok_proj.bias": None}, {"code": "missing-weights"}),
        ({"coil_encoder.encoder.layer.0.output.dense.bias": None}, {"code": "missing-weights"}),
        ({"embeddingHead.weight": torch.zeros(2, 2)}, {"code": "unknown-weights"}),
        ({"tok_proj.weight": torch.zeros(2, 16)}, {"code": "weights-shape"}),
    ],
)
def test_other_checkpoints(
    models: dict[Any, Path], tmp_path: Path, damage: dict[str, Any], message: dict[str, Any]
) -> None:
    folder = write_checkpoint(tmp_path / "model", "unicoil")
    state = {**load_file(folder / "model.safetensors"), **damage}
    save_file({key: value for key, value in state.items() if value is not None}, folder / "model.safetensors")
    with raises(**message):
        SparseEncoder.load(folder, architecture="unicoil", device="cpu")


def write_published(folder: Path, kind: str, settings: str, **more: Any) -> Path:
    torch.manual_seed(1)
    tokenizer = tiny_tokenizer()
    names = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    names |= {"intermediate_size": 16, "pad_token_id": tokenizer.pad_token_id} | more
    getattr(transformers, kind)(getattr(transformers, settings)(**names)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


DIMS = ("dim", "n_layers", "n_heads", "hidden_dim")
SPECIAL = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
MASKED: dict[str, tuple[str, str, dict[str, int]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", {}),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", {}),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", dict(zip(DIMS, (16, 1, 2, 16), strict=True))),
    "electra": ("ElectraForPreTraining", "ElectraConfig", {"embedding_size": 16}),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", dict(zip(SPECIAL, (1, 2, 1, 2), strict=True))),
}


@pytest.mark.parametrize("architecture", ["splade", "unicoil", "deepct"])
@pytest.mark.parametrize("name", MASKED)
def test_training_starts_from_any_pretrained_checkpoint(tmp_path: Path, name: str, architecture: Any) -> None:
    kind, settings, more = MASKED[name]
    folder = write_published(tmp_path / name, kind, settings, **more)
    encoder = SparseEncoder.load(folder, architecture=architecture, device="cpu", fresh=True)
    weights = encoder.encode_documents([""], ["salt in sea water"])
    assert np.isfinite(weights).all()
    encoder.save(tmp_path / "saved")
    again = SparseEncoder.load(tmp_path / "saved", device="cpu")
    np.testing.assert_array_equal(again.encode_documents([""], ["salt in sea water"]), weights)


FOREIGN = {
    "bert": ("BertForSequenceClassification", "BertConfig", {"num_labels": 1}),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", {"num_labels": 1}),
    "answers": ("BertForQuestionAnswering", "BertConfig", {}),
}


@pytest.mark.parametrize("architecture", ["splade", "unicoil", "deepct"])
@pytest.mark.parametrize("name", FOREIGN)
def test_models_of_other_tasks_are_refused(tmp_path: Path, name: str, architecture: Any) -> None:
    kind, settings, more = FOREIGN[name]
    folder = write_published(tmp_path / name, kind, settings, **more)
    with pytest.raises(InputError) as caught:
        SparseEncoder.load(folder, architecture=architecture, device="cpu", fresh=True)
    assert caught.value.code in ("unknown-weights", "other-kind")


def test_a_sparse_encoder_of_another_architecture_is_refused(tmp_path: Path) -> None:
    pairs: Any = (("deepct", "unicoil"), ("unicoil", "deepct"), ("deepct", "splade"))
    for stored, given in pairs:
        folder = write_checkpoint(tmp_path / stored, stored)
        with raises("unknown-weights"):
            SparseEncoder.load(folder, architecture=given, device="cpu", fresh=True)


@pytest.mark.parametrize("name", ["splade", "splade-v3", "unicoil", "deepct", "opensearch"])
def test_a_preset_gives_the_published_form(models: dict[Any, Path], tiny: Path, name: str, tmp_path: Path) -> None:
    contract = dict(PRESETS[name].contract)
    architecture = contract.pop("architecture")
    model = str(models[architecture])
    index = encode(tiny, model=model, preset=name, dtype="fp32", output=tmp_path / "index")
    stored = artifacts.read_manifest(index).counts["contract"]
    assert {key: stored[key] for key in contract} == contract
    assert len(search_query(tiny, index=index, query="salt water", hits=1)) == 1
    how: dict[str, Any] = {name: contract[name] for name in ("query_max_len", "doc_max_len")}
    by_hand = encode(tiny, model=model, architecture=architecture, dtype="fp32", output=tmp_path / "own", **how)
    assert artifacts.read_manifest(by_hand).counts["encoder"] == artifacts.read_manifest(index).counts["encoder"]


def test_truncated_text_is_a_warning(models: dict[Any, Path], tiny: Path, notices: Notices, tmp_path: Path) -> None:
    plan: dict[str, Any] = {"model": str(models["splade"]), "preset": "splade", "dtype": "fp32"}
    encode(tiny, output=tmp_path / "whole", **plan)
    assert not notices.says("truncated-documents")
    encode(tiny, output=tmp_path / "cut", doc_max_len=4, **plan)
    assert notices.says("truncated-documents", limit=4)
