"""Published encoders: checkpoints with published names of weights have the vectors of the published arithmetic."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from command import raises
from published_models import QUERIES, TEXTS, TITLES, WEIGHTS, batch, bert, chain, close, opened, saved
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize
from torch import Tensor, nn
from torch.nn import functional

from hybrid_cli.encoders.contract import PRESETS, preset_fields, read_contract
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.convert_checkpoint import convert_checkpoint
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search_query
from hybrid_cli.stages.train_dense import train_dense

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokenizer(tiny_bert: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(tiny_bert)


@pytest.fixture(scope="module")
def dpr(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp("dpr")
    models = []
    for seed, (kind, name) in enumerate(
        [(transformers.DPRQuestionEncoder, "question"), (transformers.DPRContextEncoder, "context")]
    ):
        models.append(bert(tokenizer, seed, kind, transformers.DPRConfig))
        saved(models[-1], models[-1].config, tokenizer, folder / name)
    convert_checkpoint(folder / "question", folder / "joined", documents=folder / "context")
    return folder, *models


def test_dpr_has_the_vectors_of_both_published_encoders(dpr: tuple[Path, Any, Any], tokenizer: Any) -> None:
    folder, question, context = dpr
    encoder = opened(folder / "joined", "dpr")
    close(encoder.encode_queries(QUERIES), question(**batch(tokenizer, QUERIES)).pooler_output)
    whole = [f"{TITLES[0]} [SEP] {TEXTS[0]}", TEXTS[1]]
    close(encoder.encode_documents(TITLES, TEXTS), context(**batch(tokenizer, whole)).pooler_output)


def test_one_tower_of_dpr_is_refused_in_both_places(dpr: tuple[Path, Any, Any], tmp_path: Path) -> None:
    with raises("one-tower", path="question"):
        TransformerEncoder.load(dpr[0] / "question")
    with raises("one-tower", path="context"):
        preset_fields("dpr", dpr[0] / "context")
    shutil.copytree(dpr[0] / "context", tmp_path / "two" / "query")
    shutil.copytree(dpr[0] / "context", tmp_path / "two" / "document")
    with raises("one-tower", path="query"):
        TransformerEncoder.load(tmp_path / "two")


def test_search_has_the_contract_of_it(dpr: tuple[Path, Any, Any], tiny: Path, tokenizer: Any, tmp_path: Path) -> None:
    folder, question, context = dpr
    index = encode(tiny, model=str(folder / "joined"), preset="dpr", dtype="fp32", output=tmp_path / "index")
    hits = search_query(tiny, index=index, query="sodium and water", hits=3)
    import polars as pl

    corpus = pl.read_parquet(tiny / "corpus.parquet")
    whole = [f"{title} [SEP] {text}" if title else text for title, text in corpus.select("title", "text").iter_rows()]
    vectors = [context(**batch(tokenizer, [text], truncation=True, max_length=256)).pooler_output for text in whole]
    scores = question(**batch(tokenizer, ["sodium and water"])).pooler_output @ torch.cat(vectors).T
    best = scores[0].argsort(descending=True, stable=True)[:3]
    assert hits["docid"].to_list() == [corpus["docid"][int(row)] for row in best]


def ance_head(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    head = nn.ModuleDict({"embeddingHead": nn.Linear(16, 12), "norm": nn.LayerNorm(12)})
    nn.init.normal_(head["norm"].weight)  # type: ignore[arg-type]
    return head


@pytest.mark.parametrize("root", ["", "ance_encoder."])
def test_ance_applies_its_head_and_norm(tokenizer: Any, tmp_path: Path, root: str) -> None:
    model = bert(tokenizer, 0, transformers.RobertaModel, transformers.RobertaConfig)
    head: Any = ance_head(1)
    whole = nn.ModuleDict({"roberta": model, **head})
    folder = saved(whole, model.config, tokenizer, tmp_path / "ance", root)
    encoder = opened(folder, "ance")
    state = model(**batch(tokenizer, QUERIES)).last_hidden_state[:, 0]
    close(encoder.encode_queries(QUERIES), head["norm"](head["embeddingHead"](state)))
    assert (encoder.contract.query_max_len, encoder.contract.doc_max_len) == (64, 512)
    encoder.save(tmp_path / "saved")  # the start of a training
    np.testing.assert_allclose(
        TransformerEncoder.load(tmp_path / "saved").encode_queries(QUERIES), encoder.encode_queries(QUERIES), atol=1e-6
    )


def test_training_starts_with_the_contract_of_a_preset(tokenizer: Any, made: Path, tmp_path: Path) -> None:
    model = bert(tokenizer, 0, transformers.RobertaModel, transformers.RobertaConfig)
    head: Any = ance_head(1)
    start = saved(nn.ModuleDict({"roberta": model, **head}), model.config, tokenizer, tmp_path / "ance")
    plan: dict[str, Any] = {"loss": "nll", "max_steps": 1, "batch_size": 4, "dtype": "fp32", "query_max_len": 32}
    out = train_dense(made / "train.parquet", output=tmp_path / "out", model=str(start), preset="ance", **plan)
    contract = read_contract(out)
    assert (contract.pooling, contract.dim, contract.query_max_len, contract.doc_max_len) == ("cls", 12, 32, 512)


def test_tct_colbert_fills_queries_and_leaves_its_marker_out_of_the_mean(tokenizer: Any, tmp_path: Path) -> None:
    model = bert(tokenizer)
    encoder = opened(saved(model, model.config, tokenizer, tmp_path / "tct"), "tct-colbert")
    texts = [f"[CLS] [Q] {query}" + "[MASK]" * 36 for query in QUERIES]
    how = {"add_special_tokens": False, "return_token_type_ids": False}
    filled = tokenizer(texts, max_length=36, truncation=True, return_tensors="pt", **how)
    assert filled["input_ids"].shape == (2, 36)
    close(encoder.encode_queries(QUERIES), model(**filled).last_hidden_state[:, 4:].mean(1))
    documents = [f"[CLS] [D] {f'{title} {text}' if title else text}" for title, text in zip(TITLES, TEXTS, strict=True)]
    inputs = batch(tokenizer, documents, add_special_tokens=False)
    weights = inputs["attention_mask"][:, 4:, None]
    reference = (model(**inputs).last_hidden_state[:, 4:] * weights).sum(1) / weights.sum(1)
    close(encoder.encode_documents(TITLES, TEXTS), reference)
    assert encoder.truncated == 0
    encoder.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "modules.json").exists()  # sentence-transformers cannot compute these vectors
    np.testing.assert_array_equal(
        TransformerEncoder.load(tmp_path / "saved").encode_queries(QUERIES), encoder.encode_queries(QUERIES)
    )


def test_rocketqa_marks_title_and_text_as_two_segments(tokenizer: Any, tmp_path: Path) -> None:
    model = bert(tokenizer, 0, transformers.ErnieModel, transformers.ErnieConfig)
    encoder = opened(saved(model, model.config, tokenizer, tmp_path / "rocketqa"), "rocketqa")
    for title, text in zip(TITLES, TEXTS, strict=True):
        pair = tokenizer(title, text, return_tensors="pt", return_token_type_ids=True)
        assert pair["token_type_ids"].max() == 1
        close(encoder.encode_documents([title], [text]), model(**pair).last_hidden_state[:, 0])
    close(encoder.encode_queries(QUERIES), model(**batch(tokenizer, QUERIES)).last_hidden_state[:, 0])


def mean(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


KINDS: dict[str, tuple[Any, Any]] = {
    "bert": (transformers.BertModel, transformers.BertConfig),
    "xlm-roberta": (transformers.XLMRobertaModel, transformers.XLMRobertaConfig),
    "nomic_bert": (transformers.NomicBertModel, transformers.NomicBertConfig),
}


@pytest.mark.parametrize(
    "name", ["contriever", "cocondenser", "e5", "bge", "bge-m3", "snowflake", "snowflake-v2", "nomic"]
)
def test_a_preset_sets_prefixes_pooling_and_length(tokenizer: Any, tmp_path: Path, name: str) -> None:
    kind, config = KINDS[PRESETS[name].types[0]]
    model = bert(tokenizer, 0, kind, config)
    model.save_pretrained(folder := tmp_path / name)  # with the names of the published weights
    tokenizer.save_pretrained(folder)
    if name == "nomic":
        assert "encoder.layers.0.attn.Wqkv.weight" in load_file(folder / "model.safetensors")
    encoder, contract = opened(folder, name), PRESETS[name].contract
    for prefix, ours in (
        (contract.get("query_prefix", ""), encoder.encode_queries(TEXTS)),
        (contract.get("doc_prefix", ""), encoder.encode_documents(["", ""], TEXTS)),
    ):
        inputs = batch(tokenizer, [prefix + text for text in TEXTS])
        states = model(**inputs).last_hidden_state
        reference = states[:, 0] if contract["pooling"] == "cls" else mean(states, inputs["attention_mask"])
        close(ours, functional.normalize(reference, dim=-1) if contract["normalize"] else reference)


CHAINS: dict[str, tuple[Any, Callable[[], list[nn.Module]]]] = {
    "gtr": ("mean", lambda: [Dense(16, 12, bias=False, activation_function=nn.Identity()), Normalize()]),
    "two dense": ("max", lambda: [Dense(16, 8), Normalize(), Dense(8, 6, activation_function=nn.ReLU())]),
    "last token": ("lasttoken", lambda: [Normalize()]),
    "square root": ("mean_sqrt_len_tokens", lambda: []),
    "weighted": ("weightedmean", lambda: [Dense(16, 8), Normalize()]),
    "joined": (("max", "cls", "mean"), lambda: [Dense(48, 12), Normalize()]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_modules_has_the_vectors_of_sentence_transformers(tokenizer: Any, tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, pad_token_id=0
    )
    t5 = transformers.T5EncoderModel(config).eval()
    model: transformers.PreTrainedModel = t5 if name == "gtr" else bert(tokenizer)
    saved(model, model.config, tokenizer, tmp_path / "base")
    pooling, modules = CHAINS[name]
    reference = chain(tmp_path / "chain", tmp_path / "base", pooling, *modules())
    for preset in ("gtr", "sentence-t5") if name == "gtr" else (None,):
        encoder = opened(tmp_path / "chain", preset)
        close(encoder.encode_queries(TEXTS), torch.from_numpy(reference.encode(TEXTS)))
    encoder.save(tmp_path / "saved")
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(again, encoder.encode_queries(TEXTS), atol=1e-5)
    assert TransformerEncoder.load(tmp_path / "saved", dim=4).encode_queries(TEXTS).shape == (2, 4)


def test_an_unknown_module_or_activation_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    chain(tmp_path / "chain", tiny_bert, "mean", Dense(16, 8))
    TransformerEncoder.load(tmp_path / "chain").save(tmp_path / "own")
    file = tmp_path / "own" / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_function": "os.system"}))
    with raises("activation-unsupported"):
        TransformerEncoder.load(tmp_path / "own")
    (tmp_path / "own" / "2_Dense" / WEIGHTS).unlink()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_function": "torch.nn.Tanh"}))
    with raises("damaged", path="2_Dense", missing="model.safetensors"):
        TransformerEncoder.load(tmp_path / "own")


def test_the_length_of_a_model_without_max_seq_length_is_that_of_its_positions(tiny_bert: Path, tmp_path: Path) -> None:
    chain(tmp_path / "chain", tiny_bert, "mean")
    (tmp_path / "chain" / "sentence_bert_config.json").write_text('{"do_lower_case": false}')
    assert read_contract(tmp_path / "chain").doc_max_len == 512


@pytest.mark.parametrize(
    "foreign", ["embeddingHead.weight", "classifier.bias", "linear.weight", "bert.head.weight", "colbert_linear.weight"]
)
def test_weights_of_an_unknown_part_are_refused_by_name(tiny_bert: Path, tmp_path: Path, foreign: str) -> None:
    shutil.copytree(tiny_bert, tmp_path / "model")
    weights = load_file(tmp_path / "model" / WEIGHTS)
    save_file({**weights, foreign: torch.zeros(2)}, tmp_path / "model" / WEIGHTS, metadata={"format": "pt"})
    with raises("unknown-weights"):
        TransformerEncoder.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["ance", "dpr", "bge-m3", "gtr", "splade"])
def test_a_preset_that_does_not_fit_the_checkpoint_is_refused(tiny_bert: Path, name: str) -> None:
    with raises("other-preset", option="preset"):
        preset_fields(name, tiny_bert)
