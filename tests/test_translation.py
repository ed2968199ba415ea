"""Back translation with small random models: the output is meaningless, but deterministic."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sentencepiece
import torch
from tiny_collection import TINY_DOCUMENTS
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from hybrid_cli import artifacts
from hybrid_cli.perturbations import translation
from hybrid_cli.stages.perturb import perturb
from hybrid_cli.storage import Kind

ATTACK = "back-translation"
SPANISH = ">>es<<"
MAX_TOKENS = 10


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "BATCH_SIZE", 3)
    monkeypatch.setattr(translation, "MAX_TOKENS", MAX_TOKENS)


def make_marian(folder: Path, seed: int, codes: tuple[str, ...]) -> Path:
    """Write a Marian model of one layer and 16 dimensions, with a vocabulary from the tiny collection."""
    folder.mkdir()
    written = io.BytesIO()
    texts = iter([text for _, _, text in TINY_DOCUMENTS if text] * 4)
    options: Any = {"vocab_size": 120, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=written, **options)
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(written.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ours = [piece for piece in map(pieces.id_to_piece, range(len(pieces))) if not piece.startswith("<")]
    vocabulary = {piece: place for place, piece in enumerate(["</s>", "<unk>", *codes, *ours, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    files = {name: str(folder / f"{name}.spm") for name in ("source", "target")}
    tokenizer = MarianTokenizer(
        files["source"], files["target"], str(folder / "vocab.json"), source_lang="en", target_lang="xx"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    last = len(vocabulary) - 1
    shape = MarianConfig(
        vocab_size=len(vocabulary), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.5,
        pad_token_id=last, eos_token_id=0, decoder_start_token_id=last, forced_eos_token_id=0,
    )  # fmt: skip
    MarianMTModel(shape).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return make_marian(folder / "en-any", 1, (">>es<<", ">>fr<<")), make_marian(folder / "any-en", 2, ())


def attacked(source: Path, output: Path, models: tuple[Path, Path], prefix: str = SPANISH) -> dict[str, str]:
    split = "test" if source.is_dir() else None
    perturb(source, split=split, attacks=[ATTACK], output=output, translation=models, translation_prefix=prefix)
    return dict(pl.read_parquet(output).select("qid", "text").iter_rows())


def one_at_a_time(folder: Path, text: str) -> str:
    tokenizer, model = MarianTokenizer.from_pretrained(folder), MarianMTModel.from_pretrained(folder).double().eval()
    tokens = tokenizer([text], return_tensors="pt", truncation=True, max_length=MAX_TOKENS)
    with torch.inference_mode():
        written = model.generate(**tokens, num_beams=translation.BEAMS, do_sample=False, max_new_tokens=MAX_TOKENS)
    return str(tokenizer.batch_decode(written, skip_special_tokens=True)[0])


def test_queries_are_translated_to_another_language_and_back(
    tiny: Path, tmp_path: Path, models: tuple[Path, Path]
) -> None:
    found = attacked(tiny, tmp_path / "a.parquet", models)
    queries = dict(pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text").iter_rows())
    for qid, text in queries.items():
        back = one_at_a_time(models[1], one_at_a_time(models[0], f">>es<< {text}")).strip()
        assert found[qid] == (back or text)
    assert len(set(found.values())) > 3
    assert attacked(tiny, tmp_path / "b.parquet", models, ">>fr<<") != found
    pl.read_parquet(tiny / "queries.test.parquet").reverse().write_parquet(tmp_path / "reversed.parquet")
    assert attacked(tmp_path / "reversed.parquet", tmp_path / "c.parquet", models) == found
    manifest = artifacts.read_manifest(tmp_path / "a.parquet", Kind.QUERIES)
    assert set(manifest.inputs) == {"queries", "there", "back"}
    assert manifest.options["translation_prefix"] == SPANISH
    assert manifest.counts["changed"] == sum(found[qid] != text for qid, text in queries.items()) > 0


def test_a_query_with_an_empty_translation_is_kept(tiny: Path, tmp_path: Path, models: tuple[Path, Path]) -> None:
    """A model that starts with the end token generates nothing."""
    silent = tmp_path / "silent"
    tokenizer, model = MarianTokenizer.from_pretrained(models[1]), MarianMTModel.from_pretrained(models[1])
    model.final_logits_bias[0, 0] = 1e6
    model.save_pretrained(silent)
    tokenizer.save_pretrained(silent)
    found = attacked(tiny, tmp_path / "a.parquet", (models[0], silent))
    assert found == dict(pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text").iter_rows())
    assert artifacts.read_manifest(tmp_path / "a.parquet", Kind.QUERIES).counts["unchanged_rate"] == 1
