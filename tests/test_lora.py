"""LoRA adapters: vectors are those of peft, trainings resume, files are peft's, other base models are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from causal_models import DECODERS, TEXTS, write_causal
from command import raises
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.options import LoraOptions
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.convert_checkpoint import convert_checkpoint
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.rerank import rerank
from hybrid_cli.stages.search import search_query
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.stages.train_reranker import train_reranker
from hybrid_cli.stages.train_sparse import train_sparse
from hybrid_cli.training import dense
from hybrid_cli.training.dense import load_start
from hybrid_cli.training.options import Start

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("one_thread")
TITLES = [""] * len(TEXTS)
PLAN: dict[str, Any] = {"loss": "nll", "batch_size": 4, "max_steps": 4, "checkpoint_steps": 2, "learning_rate": 1e-2}
PLAN |= {"dtype": "fp32", "lora_r": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_causal(tmp_path_factory.mktemp(kind), kind) for kind in (*DECODERS, "gpt2")}


@pytest.fixture(scope="module")
def adapted(made: Path, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("adapted") / "out"
    model = str(models["qwen3"])
    return train_dense(made / "train.parquet", output=output, model=model, pooling="last", append_eos=True, **PLAN)


def last_states(model: nn.Module, folder: Path) -> np.ndarray:
    """Return the last states of the texts with the tokenizer of a folder, one by one."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1] for text in TEXTS]
    return np.asarray(torch.stack(states).detach().numpy())


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to, ignore=shutil.ignore_patterns("manifest.json")))


def weights(folder: Path) -> dict[str, Tensor]:
    return dict(load_file(folder / "adapter_model.safetensors"))


@pytest.mark.parametrize("kind", [*DECODERS, "gpt2"])
def test_vectors_are_those_of_peft(made: Path, models: dict[str, Path], kind: str, tmp_path: Path) -> None:
    out = train_dense(made / "train.parquet", output=tmp_path / "out", model=str(models[kind]), pooling="last", **PLAN)
    assert not (out / "model.safetensors").exists()
    vectors = TransformerEncoder.load(out).encode_documents(TITLES, TEXTS)
    model = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(models[kind]), out).eval()
    np.testing.assert_allclose(vectors, last_states(model, out), atol=1e-6, rtol=1e-5)
    base = TransformerEncoder.load(models[kind], pooling="last").encode_documents(TITLES, TEXTS)
    assert np.abs(vectors - base).max() > 1e-3
    merged = convert_checkpoint(out, tmp_path / "merged", merge=True)
    assert not (merged / "adapter_config.json").exists()
    np.testing.assert_allclose(
        TransformerEncoder.load(merged).encode_documents(TITLES, TEXTS), vectors, atol=1e-5, rtol=1e-4
    )


def test_an_adapter_made_by_peft_is_opened(models: dict[str, Path], tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(AutoModel.from_pretrained(models["llama"]), config).eval()
    model.save_pretrained(tmp_path / "theirs")
    AutoTokenizer.from_pretrained(models["llama"]).save_pretrained(tmp_path / "theirs")
    encoder = TransformerEncoder.load(tmp_path / "theirs", pooling="last")
    vectors = encoder.encode_documents(TITLES, TEXTS)
    np.testing.assert_allclose(vectors, last_states(model, tmp_path / "theirs"), atol=1e-6, rtol=1e-5)
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(TransformerEncoder.load(tmp_path / "saved").encode_documents(TITLES, TEXTS), vectors)


def test_sentence_transformers_opens_the_encoder(made: Path, tiny_bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    plan = {**PLAN, "model": str(tiny_bert), "dim": 8, "normalize": True, "lora_targets": ("query", "value")}
    out = train_dense(made / "train.parquet", output=tmp_path / "out", **plan)
    theirs = SentenceTransformer(str(out), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(TransformerEncoder.load(out).encode_documents(TITLES, TEXTS), theirs, atol=1e-5)
    assert {name.split(".")[-3] for name in weights(out)} == {"query", "value"}


def test_a_sparse_encoder_has_an_adapter_and_its_head(made: Path, tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    plan = {**PLAN, "model": str(tiny_bert), "architecture": "splade"}
    del plan["loss"]
    out = train_sparse(made / "train.parquet", output=tmp_path / "out", **plan)
    vectors = SparseEncoder.load(out).encode_documents(TITLES, TEXTS)
    assert {name.split(".")[-2] for name in weights(out)} == {"lora_A", "lora_B"}
    merged = convert_checkpoint(out, tmp_path / "merged", merge=True)
    np.testing.assert_allclose(SparseEncoder.load(merged).encode_documents(TITLES, TEXTS), vectors, atol=1e-5)
    index = encode(tiny, model=str(out), dtype="fp32", output=tmp_path / "index")
    search_query(tiny, index=index, query="salt", hits=2)


def test_a_reranker_has_an_adapter_and_its_head(made: Path, models: dict[str, Path], tmp_path: Path) -> None:
    plan = {**PLAN, "model": str(models["llama"]), "max_steps": 2}
    del plan["loss"]
    out = train_reranker(made / "train.parquet", output=tmp_path / "out", **plan)
    pairs = pl.DataFrame({"query": ["why do tides rise?"] * 3, "title": TITLES, "text": TEXTS})
    scores, _ = CrossEncoder.load(out, dtype="fp32").scores(pairs)
    assert len(set(scores)) == 3
    assert weights(out)
    merged = convert_checkpoint(out, tmp_path / "merged", merge=True)
    np.testing.assert_allclose(CrossEncoder.load(merged).scores(pairs)[0], scores, atol=1e-5)
    rerank(made / "bm25.parquet", model=str(out), dtype="fp32", output=tmp_path / "run.parquet")


def test_a_base_in_bf16(made: Path, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast would cast its frozen layers in every call."""
    plan = {**PLAN, "model": str(models["qwen3"]), "pooling": "last", "dtype": "bf16"}
    plan |= {"dev": made / "train.parquet", "eval_steps": 2}
    ours = weights(train_dense(made / "train.parquet", output=tmp_path / "bf16", **plan))
    monkeypatch.setattr(dense, "cast_base", lambda model, precision: None)
    theirs = weights(train_dense(made / "train.parquet", output=tmp_path / "fp32", **plan))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


def test_an_index_is_searched_with_its_own_adapter_only(tiny: Path, adapted: Path, tmp_path: Path) -> None:
    index = encode(tiny, model=str(adapted), dtype="fp32", output=tmp_path / "index")
    assert len(search_query(tiny, index=index, query="salt", hits=2)) == 2
    other, state = copied(adapted, tmp_path / "other"), weights(adapted)
    save_file({name: value + 1 for name, value in state.items()}, other / "adapter_model.safetensors", {"format": "pt"})
    with raises("other-encoder"):
        search_query(tiny, index=index, query="salt", model=str(other))


def test_only_the_adapter_and_the_projection_are_trained(tiny_bert: Path) -> None:
    class Both(LoraOptions, Start):
        pass

    encoder = load_start(str(tiny_bert), "cpu", Both(lora_r=2), dim=8)
    trained = {name for name, weight in encoder.named_parameters() if weight.requires_grad}
    assert all("lora_" in name or "projection" in name for name in trained)
    assert any("projection" in name for name in trained)


def test_another_base_model(
    made: Path, adapted: Path, models: dict[str, Path], tiny_bert: Path, tmp_path: Path
) -> None:
    copy = copied(adapted, tmp_path / "copy")
    base = json.loads((copy / "base_model.json").read_text())
    for name in (str(models["qwen2"]), str(tiny_bert), str(adapted)):
        (copy / "base_model.json").write_text(json.dumps({**base, "model": name}))
        with raises("other-base", path="copy"):
            open_encoder(copy)
    taught: dict[str, Any] = {"distill": "kl", "teacher": str(copy), "model": str(tiny_bert), "lora_r": None}
    with raises("other-base", path="copy"):
        train_dense(made / "train.parquet", output=tmp_path / "taught", **{**PLAN, **taught})
    (copy / "base_model.json").write_text(json.dumps({**base, "model": str(tiny_bert), "fingerprint": ""}))
    with raises("other-base", path="copy"):
        open_encoder(copy)
    for name in (str(tmp_path / "gone"), "owner/gone"):
        (copy / "base_model.json").write_text(json.dumps({**base, "model": name}))
        with raises("model-adapter", model=name):
            open_encoder(copy)


@pytest.mark.parametrize(("key", "value"), [("peft_type", "IA3"), ("target_modules", "(a+)+$"), ("r", 1 << 40)])
def test_other_parts_of_a_configuration_are_refused(adapted: Path, key: str, value: Any, tmp_path: Path) -> None:
    copy = copied(adapted, tmp_path / "copy")
    file = copy / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with raises("other-base" if key == "r" else "model-adapter"):
        open_encoder(copy)
