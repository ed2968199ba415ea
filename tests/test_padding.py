"""Models whose tokenizers have no padding token, no [CLS] and no [SEP]: encoders, rerankers and training."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from causal_models import KINDS, TEXTS, write_causal
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_causal(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def rerankers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_causal(tmp_path_factory.mktemp(kind), kind, head=True) for kind in KINDS}


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "max", "weighted-mean", "mean-sqrt"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_vector(models: dict[str, Path], kind: str, pooling: Any, tmp_path: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(models[kind]), AutoModel.from_pretrained(models[kind]).eval()
    encoder = TransformerEncoder.load(models[kind], pooling=pooling)
    found = encoder.encode_documents([""] * len(TEXTS), TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].detach()
        weights = torch.arange(1, len(states) + 1).unsqueeze(1)
        expected = {
            "mean": states.mean(0),
            "last": states[-1],
            "cls": states[0],
            "max": states.amax(0),
            "weighted-mean": (states * weights).sum(0) / weights.sum(),
            "mean-sqrt": states.sum(0) / len(states) ** 0.5,
        }[pooling]
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)
    encoder.save(tmp_path / "saved")
    again = TransformerEncoder.load(tmp_path / "saved").encode_documents([""] * len(TEXTS), TEXTS)
    np.testing.assert_allclose(again, found, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "max"])
@pytest.mark.parametrize("kind", ["gpt2", "bare"])
def test_a_text_without_tokens_has_a_zero_vector(models: dict[str, Path], kind: str, pooling: Any) -> None:
    encoder = TransformerEncoder.load(models[kind], pooling=pooling)
    alone, mixed = encoder.encode_queries([""]), encoder.encode_queries(["", TEXTS[0]])
    assert (alone[0] == 0).all()
    assert (mixed[0] == 0).all()
    np.testing.assert_allclose(mixed[1], encoder.encode_queries(TEXTS[:1])[0], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_score(rerankers: dict[str, Path], kind: str, tmp_path: Path) -> None:
    folder = rerankers[kind]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    pairs = pl.DataFrame({"query": ["why do tides rise?"] * 3, "title": [""] * 3, "text": TEXTS})
    reranker = CrossEncoder.load(folder)
    found, _ = reranker.scores(pairs)
    expected = [
        model(**tokenizer("why do tides rise?", text, return_tensors="pt", return_token_type_ids=False)).logits.item()
        for text in TEXTS
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    reranker.save(tmp_path / "saved")
    np.testing.assert_allclose(CrossEncoder.load(tmp_path / "saved").scores(pairs)[0], found, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_weights_equal_those_of_single_texts(models: dict[str, Path], kind: str) -> None:
    torch.manual_seed(0)
    encoder = SparseEncoder.load(models[kind], architecture="unicoil", fresh=True)
    torch.nn.init.normal_(encoder.document_tower.network.head.weight)  # type: ignore[union-attr, arg-type]
    texts = [*TEXTS, ""]
    together = encoder.encode_documents([""] * 4, texts)
    alone = np.concatenate([encoder.encode_documents([""], [text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert together[:3].any()
    assert not together[3].any() or kind == "llama"
