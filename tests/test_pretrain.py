"""`pretrain`: reproducible bytes, also after an interruption; an encoder that other libraries open; refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Notices
from safetensors.torch import load_file
from small_artifacts import write_corpus
from trainings import curve
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from hybrid_cli import artifacts
from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.encoders.sparse import SparseEncoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.pretrain import pretrain
from hybrid_cli.stages.train_dense import train_dense

WORDS = ["river", "bank", "loan", "water", "money", "matrix", "inverse", "plot", "unsqueezed", "eigenvalues"]
PLAN: dict[str, Any] = {"batch_size": 4, "epochs": 2, "max_length": 16, "held_out": 3, "learning_rate": 3e-3}
PLAN |= {"checkpoint_steps": 2, "dtype": "fp32"}
BOTH = pytest.mark.parametrize("cocondenser", [False, True])
TEXTS = ["The matrix has an inverse.", "", "river bank"]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 30))) for _ in range(40)]
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.parquet", texts)


@BOTH
def test_training_lowers_the_held_out_loss(corpus: Path, tiny_bert: Path, tmp_path: Path, cocondenser: bool) -> None:
    plan = {**PLAN, "cocondenser": cocondenser, "epochs": 9, "max_steps": 30, "learning_rate": 3e-2}
    out = pretrain(corpus, output=tmp_path / "out", model=str(tiny_bert), **plan)
    for name in ["mlm", "condenser_mlm"] if cocondenser else ["mlm"]:
        held_out, trained = curve(out, f"held_out_{name}"), curve(out, name)
        assert len(held_out) == 11, "before the training, and ten times"
        assert np.mean(trained[-5:]) < np.mean(trained[:5]) - 2
        assert held_out[-1] < held_out[0] - 2


@BOTH
def test_two_libraries_open_the_output(corpus: Path, tiny_bert: Path, tmp_path: Path, cocondenser: bool) -> None:
    plan = {**PLAN, "cocondenser": cocondenser, "max_steps": 2}
    out = pretrain(corpus, output=tmp_path / "out", model=str(tiny_bert), **plan)
    expected: dict[str, Any] = {"pooling": "cls", "normalize": False} if cocondenser else {}
    assert read_contract(out) == replace(read_contract(tiny_bert), **expected)
    encoder = TransformerEncoder.load(out)
    vectors = encoder.encode_documents([""] * 3, TEXTS)
    assert not np.allclose(vectors, TransformerEncoder.load(tiny_bert).encode_documents([""] * 3, TEXTS), atol=1e-3)
    tokens = AutoTokenizer.from_pretrained(out)(TEXTS, padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(out).eval()(**tokens).last_hidden_state
    if cocondenser:
        np.testing.assert_allclose(states[:, 0].detach().numpy(), vectors, atol=1e-5)
    _, report = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"]
    for architecture in ("splade", "unicoil", "deepct"):  # without the head of the pretraining
        SparseEncoder.load(out, architecture=architecture, device="cpu", fresh=True)
    from sentence_transformers import SentenceTransformer

    np.testing.assert_allclose(SentenceTransformer(str(out), device="cpu").encode(TEXTS), vectors, atol=1e-5)


@BOTH
def test_a_second_pretraining_continues_with_the_heads_of_the_first(
    corpus: Path, tiny_bert: Path, tmp_path: Path, notices: Notices, cocondenser: bool
) -> None:
    plan = {**PLAN, "cocondenser": cocondenser}
    first = pretrain(corpus, output=tmp_path / "first", model=str(tiny_bert), **plan, max_steps=8)
    notices.clear()
    second = pretrain(corpus, output=tmp_path / "second", model=str(first), **plan, max_steps=1)
    assert not notices.says("new-head")
    assert notices.says("condenser-head", path=first) == cocondenser
    for name in ["mlm", "condenser_mlm"] if cocondenser else ["mlm"]:
        before, after = curve(first, f"held_out_{name}"), curve(second, f"held_out_{name}")
        assert after[0] == pytest.approx(before[-1], abs=1e-5)


@BOTH
def test_training_starts_from_it(
    corpus: Path, tiny_bert: Path, tmp_path: Path, notices: Notices, cocondenser: bool
) -> None:
    from test_train_dense import write_examples

    plan = {**PLAN, "max_steps": 2, "cocondenser": cocondenser}
    out = pretrain(corpus, output=tmp_path / "out", model=str(tiny_bert), **plan)
    examples = write_examples(tmp_path / "train.parquet")
    trained = train_dense(examples, output=tmp_path / "dense", model=str(out), max_steps=1, tied=False)
    assert TransformerEncoder.load(trained).contract == replace(read_contract(out), tied=False)
    assert notices.says("heads-skipped", path=out)


@BOTH
def test_some_layers_in_accumulated_batches(corpus: Path, tiny_bert: Path, tmp_path: Path, cocondenser: bool) -> None:
    plan = {**PLAN, "layers": 1, "max_steps": 4, "accumulate": 3, "batch_size": 2, "cocondenser": cocondenser}
    out = pretrain(corpus, output=tmp_path / "out", model=str(tiny_bert), **{**plan, "dtype": "bf16"})
    assert artifacts.read_manifest(out).counts["steps"] == 4
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1
    assert not [name for name in load_file(out / "model.safetensors") if "layer.1." in name]
    assert np.isfinite(TransformerEncoder.load(out).encode_queries(TEXTS)).all()
