"""Pretraining as a person runs it: the same bytes again, also after a kill; an encoder that everything opens."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import hybrid
from safetensors.torch import load_file, save_file
from small_artifacts import write_corpus
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind, layout
from hybrid_cli.config import Optimization, Pretraining
from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.stages.pretrain import pretrain
from hybrid_cli.stages.train_dense import train_dense

WORDS = ["river", "bank", "loan", "water", "money", "matrix", "inverse", "plot", "unsqueezed", "eigenvalues"]
PLAN = Pretraining(
    batch_size=4, epochs=2, max_length=16, held_out=3, learning_rate=3e-3, checkpoint_steps=2, precision="fp32"
)
BOTH = pytest.mark.parametrize("cocondenser", [False, True])
TEXTS = ["The matrix has an inverse.", "", "river bank"]


@pytest.fixture(autouse=True)
def one_thread():
    """Models of 16 dimensions gain nothing from more, and lose much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 30))) for _ in range(40)]
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.parquet", texts)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file but the manifest, which holds the duration."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != artifacts.MANIFEST]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def curve_of(folder: Path, name: str) -> pl.Series:
    return pl.read_parquet(folder / "curve.parquet").filter(name=name)["value"]


@BOTH
def test_the_same_seed_gives_the_same_bytes(corpus, tiny_bert, tmp_path, cocondenser):
    plan = replace(PLAN, cocondenser=cocondenser, max_steps=3)
    a, b = (pretrain(corpus, tmp_path / name, model=str(tiny_bert), plan=plan) for name in "ab")
    assert bytes_of(a) == bytes_of(b)
    c = pretrain(corpus, tmp_path / "c", model=str(tiny_bert), plan=replace(plan, seed=1))
    assert bytes_of(a)["model.safetensors"] != bytes_of(c)["model.safetensors"]


def test_a_killed_pretraining_goes_on_and_ends_with_the_same_bytes(corpus, tiny_bert, tmp_path):
    plan = replace(PLAN, cocondenser=True, chunk_size=4, checkpoint_steps=5)
    whole = pretrain(corpus, tmp_path / "whole", model=str(tiny_bert), plan=plan)
    code = (
        "import sys; from pathlib import Path; from hybrid_cli.config import Pretraining;"
        "from hybrid_cli.stages.pretrain import pretrain;"
        f"pretrain(Path(sys.argv[1]), Path(sys.argv[3]), model=sys.argv[2], plan={plan!r}, threads=1)"
    )
    killed, partial = tmp_path / "killed", tmp_path / ".killed.partial"
    process = subprocess.Popen([sys.executable, "-c", code, str(corpus), str(tiny_bert), str(killed)])
    deadline = time.monotonic() + 120
    while not (partial / layout.CHECKPOINT).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not killed.exists(), "the training was over before it could be killed"
    assert (partial / layout.CHECKPOINT).exists(), "no checkpoint was written"
    pretrain(corpus, killed, model=str(tiny_bert), plan=plan)
    assert bytes_of(killed) == bytes_of(whole)
    assert not partial.exists()


@BOTH
def test_training_lowers_the_loss_of_words_that_were_held_out(corpus, tiny_bert, tmp_path, cocondenser):
    plan = replace(PLAN, cocondenser=cocondenser, epochs=9, max_steps=30, learning_rate=3e-2)
    out = pretrain(corpus, tmp_path / "out", model=str(tiny_bert), plan=plan)
    for name in ["mlm", "condenser_mlm"] if cocondenser else ["mlm"]:
        held_out, trained = curve_of(out, f"held_out_{name}"), curve_of(out, name)
        assert len(held_out) == 11, "before, and ten times"
        assert trained[-5:].mean() < trained[:5].mean() - 2
        assert held_out[-1] < held_out[0] - 2


@BOTH
def test_the_output_is_an_encoder_that_everything_opens(corpus, tiny_bert, tmp_path, capsys, cocondenser):
    plan = replace(PLAN, cocondenser=cocondenser, max_steps=2)
    out = pretrain(corpus, tmp_path / "out", model=str(tiny_bert), plan=plan)
    wanted = {"pooling": "cls", "normalize": False} if cocondenser else {}
    assert read_contract(out) == replace(read_contract(tiny_bert), **wanted)
    encoder = TransformerEncoder.load(out)
    vectors = encoder.encode_documents([""] * 3, TEXTS)
    assert not np.allclose(vectors, TransformerEncoder.load(tiny_bert).encode_documents([""] * 3, TEXTS), atol=1e-3)
    tokens = AutoTokenizer.from_pretrained(out)(TEXTS, padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(out).eval()(**tokens).last_hidden_state
    if cocondenser:
        np.testing.assert_allclose(states[:, 0].detach().numpy(), vectors, atol=1e-5)
    _, report = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"]
    from sentence_transformers import SentenceTransformer

    np.testing.assert_allclose(SentenceTransformer(str(out), device="cpu").encode(TEXTS), vectors, atol=1e-5)


@BOTH
def test_a_second_pretraining_goes_on_with_the_heads_of_the_first(corpus, tiny_bert, tmp_path, capsys, cocondenser):
    plan = replace(PLAN, cocondenser=cocondenser)
    first = pretrain(corpus, tmp_path / "first", model=str(tiny_bert), plan=replace(plan, max_steps=8))
    capsys.readouterr()
    second = pretrain(corpus, tmp_path / "second", model=str(first), plan=replace(plan, max_steps=1))
    said = capsys.readouterr().err
    assert "a new one" not in said
    assert ("goes on with its Condenser head" in said) == cocondenser
    for name in ["mlm", "condenser_mlm"] if cocondenser else ["mlm"]:
        before, after = curve_of(first, f"held_out_{name}"), curve_of(second, f"held_out_{name}")
        assert after[0] == pytest.approx(before[-1], abs=1e-5)


@BOTH
def test_train_dense_starts_from_it(corpus, tiny_bert, tmp_path, capsys, cocondenser):
    from test_train_dense import write_examples

    out = pretrain(
        corpus, tmp_path / "out", model=str(tiny_bert), plan=replace(PLAN, max_steps=2, cocondenser=cocondenser)
    )
    examples = write_examples(tmp_path / "train.parquet")
    trained = train_dense(
        examples, tmp_path / "dense", model=str(out), plan=Optimization(max_steps=1), contract={"tied": False}
    )
    assert TransformerEncoder.load(trained).contract == replace(read_contract(out), tied=False)
    assert f"{out}: cls left out: heads of pretraining, no part of an encoder" in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(corpus, tiny_bert, tmp_path, precision):
    plan = replace(PLAN, precision=precision, max_steps=2, cocondenser=True, chunk_size=3)
    out = pretrain(corpus, tmp_path / "out", model=str(tiny_bert), plan=plan)
    assert np.isfinite(TransformerEncoder.load(out).encode_queries(TEXTS)).all()


def test_the_command_takes_a_collection(tiny, tiny_bert, tmp_path):
    command = ["pretrain", tiny, "--model", tiny_bert, "--max-length", 16, "--max-steps", 3, "--batch-size", 4]
    done = hybrid(*command, "--output", tmp_path / "out", "--threads", 1)
    assert done.code == 0, done.err
    assert f"{tiny_bert}: has no head that names words; a new one" in done.err
    assert "pretrain: " in done.err.splitlines()[-1]
    assert "12 documents, 3 steps, loss of held-out words" in done.err
    manifest = artifacts.read_manifest(tmp_path / "out", Kind.ENCODER)
    assert manifest.inputs["corpus"]["fingerprint"] == artifacts.fingerprint(tiny / "corpus.parquet")
    assert manifest.counts == {"documents": 12, "held_out": 1, "spans": manifest.counts["spans"], "steps": 3}
    assert "up to date" in hybrid(*command, "--output", tmp_path / "out").err
    assert "max_length=16 then, 12 now" in hybrid(*command, "--max-length", 12, "--output", tmp_path / "out").err


def test_the_options_are_the_settings(tiny, tiny_bert, tmp_path):
    """Every setting but those of other trainings is an option, and its default the setting's."""
    done = hybrid("pretrain", tiny, "--model", tiny_bert, "--output", tmp_path / "out", "--dry-run")
    shown = dict(line.split(None, 1) for line in done.out.splitlines())
    settings = {name: str(value) for name, value in asdict(Pretraining()).items() if name != "precision"}
    assert {name: shown.get(name) for name in settings} == {
        **settings, "negatives": None, "accumulate": None, "keep": None,
    }  # fmt: skip


def test_spans_longer_than_the_model_has_positions_are_refused(corpus, tiny_bert, tmp_path):
    with pytest.raises(InputError, match="--max-length 513: the model has positions for 512 word pieces"):
        pretrain(corpus, tmp_path / "out", model=str(tiny_bert), plan=replace(PLAN, max_length=513))


def test_an_empty_collection_is_refused_and_leaves_nothing(tiny_bert, tmp_path):
    empty = write_corpus(tmp_path / "corpus.parquet", [])
    with pytest.raises(InputError, match=r"corpus\.parquet: holds no words to train on"):
        pretrain(empty, tmp_path / "out", model=str(tiny_bert), plan=PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.parquet"]


def test_a_model_without_mask_token_is_refused(corpus, tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "maskless")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (file := folder / name).is_file():
            content = json.loads(file.read_text())
            file.write_text(json.dumps({**content, "mask_token": None, "tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(InputError, match="has no mask token"):
        pretrain(corpus, tmp_path / "out", model=str(folder), plan=PLAN)


def test_two_towers_are_refused_with_what_to_name(corpus, tiny_bert, tmp_path):
    TransformerEncoder.load(tiny_bert, tied=False).save(tmp_path / "two")
    with pytest.raises(InputError, match=r"two: has two towers; pretrain one of them: .*/two/document or .*/two/query"):
        pretrain(corpus, tmp_path / "out", model=str(tmp_path / "two"), plan=PLAN)
    pretrain(corpus, tmp_path / "out", model=str(tmp_path / "two" / "query"), plan=replace(PLAN, max_steps=1))


def test_half_a_checkpoint_is_refused(corpus, tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "layer.1" not in k}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="lacks weights"):
        pretrain(corpus, tmp_path / "out", model=str(folder), plan=PLAN)
