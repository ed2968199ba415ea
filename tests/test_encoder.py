"""Transformer encoders: contracts, vectors, few queries without PyTorch, towers, padding."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Notices, raises
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertLayer

from hybrid_cli.encoders.contract import Contract, differences
from hybrid_cli.encoders.few_queries import FEW, FewQueries, open_few
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.encoders.transformer import TransformerEncoder, batches_by_length
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25

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
    texts, one = [text.replace("\0", "") for text in FEW_TEXTS], few(resolve("minilm"))
    expected = sentence_transformer(resolve("minilm")).encode(texts, batch_size=1)
    np.testing.assert_allclose(one_by_one(one), expected, atol=1e-6)
    assert one.truncated == 1


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
def test_a_saved_encoder_opens_in_the_library(tiny_bert: Path, tmp_path: Path, overrides: dict[str, Any]) -> None:
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


def test_vectors_do_not_depend_on_the_batch(tiny_bert: Path) -> None:
    encoder = TransformerEncoder.load(tiny_bert)
    alone = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode_queries(TEXTS, batch_tokens=30), alone, atol=1e-6)


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


pytestmark = pytest.mark.usefixtures("one_thread")
FEW_TEXTS = ["solve a linear system", "", "x", "日本 naïve café RÉSUMÉ don't U.S.A. 3.14", "word " * 300]
FEW_TEXTS += ["  several   spaces\tand\nlines ", "[MASK] special [SEP] words [unused1]"]
FEW_TEXTS += ["\u0000 control \u200b characters \U0001f600"]
FORMS: list[dict[str, Any]] = [{}, {"pooling": "cls", "normalize": True}, {"markers": "replace"}]
FORMS += [{"markers": "prepend", "query_prefix": "find: "}, {"truncate_dim": 5, "normalize": True}]
FORMS += [{"query_max_len": 4}, {"tied": False}]


def few(folder: Path, **overrides: Any) -> FewQueries:
    opened = open_few(folder, overrides, None, lambda: open_encoder(folder, device="cpu", overrides=overrides))
    assert opened is not None
    return opened


def one_by_one(encoder: Any) -> np.ndarray:
    return np.vstack([encoder.encode_queries([text]) for text in FEW_TEXTS])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_vectors_are_those_of_the_transformer(tiny_bert: Path, tmp_path: Path, form: dict[str, Any]) -> None:
    TransformerEncoder.load(tiny_bert, device="cpu", **form).save(tmp_path / "saved")
    encoder, whole = few(tmp_path / "saved"), open_encoder(tmp_path / "saved", device="cpu")
    np.testing.assert_allclose(one_by_one(encoder), one_by_one(whole), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_queries(FEW_TEXTS), one_by_one(whole), atol=1e-5)
    expected = (whole.fingerprint, whole.dim, whole.truncated, whole.describe())
    assert (encoder.fingerprint, encoder.dim, encoder.truncated, encoder.describe()) == expected


def test_many_queries_and_documents_are_of_the_transformer(tiny_bert: Path) -> None:
    encoder, whole = few(tiny_bert), open_encoder(tiny_bert, device="cpu")
    texts = ["word " * 60 * (number % 2) + f"text {number}" for number in range(FEW + 1)]
    np.testing.assert_allclose(encoder.encode_queries(texts[1:]), whole.encode_queries(texts)[1:], atol=1e-5)
    assert (encoder.encode_queries(texts) == whole.encode_queries(texts)).all()
    assert (encoder.encode_documents(["a"], ["b"]) == whole.encode_documents(["a"], ["b"])).all()
    assert encoder.encode_queries([]).shape == (0, whole.dim)
    assert encoder.device == whole.device


OTHERS: list[dict[str, Any]] = [{"dim": 4}, {"pooling": "max"}, {"fill_queries": True}]


@pytest.mark.parametrize(
    ("form", "change"),
    [
        *((form, {}) for form in OTHERS),
        *(({}, change) for change in ({"num_hidden_layers": 1}, {"hidden_act": "relu"}, {"layer_norm_eps": None})),
    ],
    ids=str,
)
def test_other_forms_and_configurations_are_left_to_the_transformer(
    tiny_bert: Path, tmp_path: Path, form: dict[str, Any], change: dict[str, Any]
) -> None:
    TransformerEncoder.load(tiny_bert, device="cpu", **form).save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved/config.json").read_text()) | change
    kept = {name: value for name, value in config.items() if value is not None}
    (tmp_path / "saved/config.json").write_text(json.dumps(kept))
    assert open_few(tmp_path / "saved", {}, None, lambda: open_encoder(tiny_bert)) is None


def test_live_queries_of_a_retriever_import_nothing_that_compiles_or_trains(tiny: Path, tmp_path: Path) -> None:
    dense = encode(tiny, model="minilm", output=tmp_path / "dense")
    bm25 = index_bm25(tiny, output=tmp_path / "bm25", lucene=False)
    retriever = compose([bm25, dense], output=tmp_path / "retriever")
    code = """
import sys
from hybrid_cli import open_retriever
from hybrid_cli.stages.search import search_query
hits = search_query(index=sys.argv[1], query="salt water", hits=3, threads=1)
many = open_retriever(sys.argv[1]).search([f"salt water {number}" for number in range(32)], k=3)
print({"torch", "transformers", "numba", "faiss", "scipy"} & set(sys.modules))
import torch
print(torch.get_num_threads())
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", code, str(retriever)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["set()", "1"], done.stderr


TOWER_TEXTS = ["Return the inverse of a square matrix.", "", "naïve café"]
WEIGHTS = "model.safetensors"


@pytest.fixture
def condenser(tiny_bert: Path, tmp_path: Path) -> Path:
    """Make a BERT with a masked-language-model head and Condenser's two layers, like the published checkpoints."""
    folder = tmp_path / "condenser"
    shutil.copytree(tiny_bert, folder)
    torch.manual_seed(1)
    model = AutoModelForMaskedLM.from_pretrained(tiny_bert)
    model.save_pretrained(folder)
    head = torch.nn.ModuleDict({"c_head": torch.nn.ModuleList([BertLayer(model.config) for _ in range(2)])})
    change_weights(folder, lambda weights: weights | head.state_dict())
    return folder


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


def test_a_condenser_loads_as_its_backbone_with_a_note(condenser: Path, tiny_bert: Path, notices: Notices) -> None:
    vectors = TransformerEncoder.load(condenser).encode_queries(TOWER_TEXTS)
    np.testing.assert_array_equal(vectors, TransformerEncoder.load(tiny_bert).encode_queries(TOWER_TEXTS))
    assert notices.says("heads-skipped", path=condenser, heads=("c_head", "cls"))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_condenser_becomes_any_encoder(condenser: Path, tmp_path: Path, pooling: str, tied: bool) -> None:
    encoder = TransformerEncoder.load(condenser, pooling=pooling, tied=tied)
    queries, documents = (
        encoder.encode_queries(TOWER_TEXTS),
        encoder.encode_documents([""] * len(TOWER_TEXTS), TOWER_TEXTS),
    )
    np.testing.assert_array_equal(queries, documents)
    assert (encoder.query_tower is encoder.document_tower) == tied
    encoder.save(tmp_path / "saved")
    assert TransformerEncoder.load(tmp_path / "saved").contract == encoder.contract
    np.testing.assert_array_equal(TransformerEncoder.load(tmp_path / "saved").encode_queries(TOWER_TEXTS), queries)


def test_two_towers_of_one_checkpoint_have_separate_weights(condenser: Path) -> None:
    encoder = TransformerEncoder.load(condenser, tied=False)
    encoder.query_tower.backbone.get_parameter("embeddings.word_embeddings.weight").data.neg_()
    assert not np.allclose(
        encoder.encode_queries(TOWER_TEXTS), encoder.encode_documents([""] * len(TOWER_TEXTS), TOWER_TEXTS)
    )


def test_a_saved_encoder_has_no_heads(condenser: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TransformerEncoder.load(condenser).save(tmp_path / "saved")
    capsys.readouterr()
    TransformerEncoder.load(tmp_path / "saved")
    assert capsys.readouterr().err == ""


def test_a_checkpoint_without_a_layer_is_refused(condenser: Path) -> None:
    change_weights(condenser, lambda weights: {k: v for k, v in weights.items() if ".layer.1.output" not in k})
    with raises("missing-weights"):
        TransformerEncoder.load(condenser)


def test_a_stored_tokenizer_does_not_depend_on_the_texts_that_it_has_read(tiny_bert: Path, tmp_path: Path) -> None:
    encoder = TransformerEncoder.load(tiny_bert, query_max_len=5)
    encoder.save(tmp_path / "unused")
    encoder.encode_queries(TOWER_TEXTS)
    encoder.save(tmp_path / "used")
    assert (tmp_path / "used/tokenizer.json").read_bytes() == (tmp_path / "unused/tokenizer.json").read_bytes()


def test_an_encoder_with_projection_runs_in_bf16(tiny_bert: Path) -> None:
    whole, half = (TransformerEncoder.load(tiny_bert, dim=4, dtype=dtype) for dtype in ("fp32", "bf16"))
    half.load_state_dict(whole.state_dict())
    np.testing.assert_allclose(half.encode_queries(TOWER_TEXTS), whole.encode_queries(TOWER_TEXTS), atol=0.1)
