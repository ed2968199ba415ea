"""Encoders made of decoders: the state of the last token, instructions, the end of a text, padding on both sides."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from causal_models import DECODERS, TEXTS, write_causal
from command import raises
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from hybrid_cli.encoders.contract import Contract, preset_fields
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search_query
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.training.dense import load_start
from hybrid_cli.training.options import Start

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = "Given a web search query, retrieve relevant passages that answer the query"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_causal(tmp_path_factory.mktemp(kind), kind) for kind in DECODERS}


def last_states(folder: Path, texts: list[str], side: str) -> np.ndarray:
    """Return the states of the last tokens of texts that end with the end-of-sequence token, padded on one side."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = [tokenizer(text)["input_ids"] for text in texts]
    rows = [row if row[-1] == tokenizer.eos_token_id else [*row, tokenizer.eos_token_id] for row in rows]
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, side
    batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    states = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    last = torch.full((len(rows),), -1) if side == "left" else batch["attention_mask"].sum(1) - 1
    return np.asarray(functional.normalize(states[torch.arange(len(rows)), last], dim=-1).detach().numpy())


@pytest.mark.parametrize("kind", DECODERS)
def test_vectors_are_the_last_states_with_padding_on_both_sides(
    models: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    encoder = TransformerEncoder.load(models[kind], pooling="last", normalize=True, append_eos=True)
    vectors = encoder.encode_documents([""] * len(TEXTS), TEXTS)
    for side in ("left", "right"):
        np.testing.assert_allclose(vectors, last_states(models[kind], TEXTS, side), atol=1e-5)
    alone = np.concatenate([encoder.encode_documents([""], [text]) for text in TEXTS])
    np.testing.assert_allclose(vectors, alone, atol=1e-6)
    encoder.save(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "padding_side": "left"}))
    again = TransformerEncoder.load(tmp_path / "saved")
    np.testing.assert_allclose(again.encode_documents([""] * len(TEXTS), TEXTS), vectors, atol=1e-6)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_cut_text_ends_with_the_end_of_sequence(models: dict[str, Path], kind: str) -> None:
    tower = TransformerEncoder.load(models[kind], append_eos=True, doc_max_len=6).document_tower
    rows, cut = tower.tokenize([*TEXTS, "a"], "document")
    assert cut == len(TEXTS)
    assert [len(row) for row in rows[:-1]] == [6] * len(TEXTS)
    assert all(row.count(tower.tokenizer.eos_token_id) == 1 for row in rows)
    assert {row[-1] for row in rows} == {tower.tokenizer.eos_token_id}


@pytest.mark.parametrize(
    ("preset", "kind", "prefix"),
    [
        ("qwen3-embedding", "qwen3", f"Instruct: {TASK}\nQuery:"),
        ("e5-mistral", "mistral", f"Instruct: {TASK}\nQuery: "),
    ],
)
def test_a_preset_instructs_queries(
    models: dict[str, Path], preset: str, kind: str, prefix: str, tmp_path: Path
) -> None:
    fields = preset_fields(preset, models[kind])
    encoder = TransformerEncoder.load(models[kind], **fields)
    instructed = last_states(models[kind], [prefix + text for text in TEXTS], "left")
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), instructed, atol=1e-5)
    documents = encoder.encode_documents([""] * len(TEXTS), TEXTS)
    np.testing.assert_allclose(documents, last_states(models[kind], TEXTS, "left"), atol=1e-5)
    encoder.save(tmp_path / "saved")
    prompts = json.loads((tmp_path / "saved" / "config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == {"query": prefix, "document": ""}
    other = TransformerEncoder.load(models[kind], **{**fields, "task": "Find code"})
    assert other.contract.query("salt").startswith("Instruct: Find code\nQuery:")


def test_an_instruction_needs_its_placeholder(models: dict[str, Path], tmp_path: Path) -> None:
    template = Contract().changed(query_prefix="Instruct: {task}\nQuery:{query}", task="Find code")
    assert template.query("salt") == "Instruct: Find code\nQuery:salt"
    wrong: list[dict[str, Any]] = [
        {"query_prefix": "Instruct: find code", "task": "Find code"},
        {"query_prefix": "Instruct: {task}\nQuery:"},
        {"query_prefix": "{query} in short"},
        {"query_prefix": "Instruct: {tsk}\nQuery: "},
    ]
    for changes in wrong:
        with raises("template-placeholder"):
            TransformerEncoder.load(models["qwen2"], **changes)
    with raises("no-eos-token"):
        TransformerEncoder.load(write_causal(tmp_path / "bare", "bare"), append_eos=True)


def test_a_decoder_is_searched_with_its_instruction(tiny: Path, models: dict[str, Path], tmp_path: Path) -> None:
    model = str(models["mistral"])
    index = encode(tiny, model=model, preset="e5-mistral", task="Find a fact", dtype="fp32", output=tmp_path / "index")
    hits = search_query(tiny, index=index, query="salt", hits=2)
    encoder = TransformerEncoder.load(model, **{**preset_fields("e5-mistral", Path(model)), "task": "Find a fact"})
    import polars as pl

    corpus = pl.read_parquet(tiny / "corpus.parquet")
    vectors = encoder.encode_documents(corpus["title"].to_list(), corpus["text"].to_list())
    best = (vectors @ encoder.encode_queries(["salt"])[0]).argsort()[::-1][:2]
    assert hits["docid"].to_list() == [corpus["docid"][int(row)] for row in best]


@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
def test_gradients_with_checkpointing_are_those_without(models: dict[str, Path], kind: str) -> None:
    gradients = []
    for start in (Start(), Start(gradient_checkpointing=True)):
        tower = load_start(str(models[kind]), "cpu", start, pooling="last").train().document_tower
        tower(*tower.batch(tower.tokenize(TEXTS, "document")[0], "document")).square().sum().backward()
        gradients.append({name: weight.grad for name, weight in tower.named_parameters() if weight.grad is not None})
    assert gradients[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=1e-6)


def test_a_decoder_is_trained_in_bf16_with_checkpointing(made: Path, models: dict[str, Path], tmp_path: Path) -> None:
    plan: dict[str, Any] = {"max_steps": 2, "batch_size": 4, "dtype": "bf16", "loss": "nll", "device": "cpu"}
    plan |= {"model": str(models["qwen3"]), "preset": "qwen3-embedding", "query_max_len": 64, "doc_max_len": 64}
    plain = train_dense(made / "train.parquet", output=tmp_path / "plain", **plan)
    frugal = train_dense(made / "train.parquet", output=tmp_path / "frugal", gradient_checkpointing=True, **plan)
    vectors = [TransformerEncoder.load(folder).encode_queries(TEXTS) for folder in (plain, frugal)]
    assert np.isfinite(vectors[0]).all()
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-3)


def test_a_model_with_dropout_is_trained_with_checkpointing(made: Path, tmp_path: Path) -> None:
    plan: dict[str, Any] = {"max_steps": 1, "batch_size": 4, "dtype": "fp32", "loss": "nll", "lora_r": 2}
    out = train_dense(made / "train.parquet", output=tmp_path / "out", gradient_checkpointing=True, **plan)
    assert np.isfinite(TransformerEncoder.load(out).encode_queries(TEXTS)).all()
