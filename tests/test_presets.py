"""Published encoders: checkpoints with published names of weights have the vectors of the published arithmetic."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    DPRConfig,
    DPRContextEncoder,
    DPRQuestionEncoder,
    ErnieConfig,
    ErnieModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5EncoderModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from hybrid_cli.encoders.contract import read_contract
from hybrid_cli.encoders.pickles import read_weights
from hybrid_cli.encoders.presets import PRESETS, preset_fields
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.stages.convert_checkpoint import convert_checkpoint
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_dense import train_dense

QUERIES = ["inverse of a square matrix", "naïve café"]
TITLES = ["linear algebra", ""]
TEXTS = ["The inverse of a matrix exists if its determinant is not zero.", "A naïve estimate."]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
WIDE = {**SHAPE, "initializer_range": 0.3, "pad_token_id": 0, "max_position_embeddings": 8194}
WEIGHTS = "model.safetensors"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokenizer(tiny_bert: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_bert)


def saved(model: nn.Module, config: Any, tokenizer: Any, folder: Path, prefix: str = "") -> Path:
    """Write weights under a prefix, configuration and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {prefix + name: value.clone() for name, value in model.state_dict().items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def opened(folder: Path, preset: str | None) -> TransformerEncoder:
    return TransformerEncoder.load(folder, **preset_fields(preset, folder))


def batch(tokenizer: Any, texts: list[str], **options: Any) -> dict[str, Tensor]:
    encoded = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False, **options)
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


def close(ours: np.ndarray, reference: Tensor) -> None:
    assert ours.shape == tuple(reference.shape)
    assert float(np.abs(ours).max()) > 0.01
    np.testing.assert_allclose(ours, reference.detach().numpy(), atol=2e-5)


def bert(tokenizer: Any, seed: int = 0, kind: Any = BertModel, config: Any = BertConfig, **more: Any) -> Any:
    torch.manual_seed(seed)
    model: Any = kind(config(vocab_size=len(tokenizer), **{**WIDE, **more}))
    return model.eval()


# --------------------------------------------------------------------------------------------------- forms of weights


@pytest.fixture(scope="module")
def dpr(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """DPR's two checkpoints, joined, and their models."""
    folder = tmp_path_factory.mktemp("dpr")
    models = []
    for seed, (kind, name) in enumerate([(DPRQuestionEncoder, "question"), (DPRContextEncoder, "context")]):
        models.append(bert(tokenizer, seed, kind, DPRConfig))
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
    with pytest.raises(
        InputError, match=r"has the query tower only \(question_encoder\.\*\); join both towers: hybrid"
    ):
        TransformerEncoder.load(dpr[0] / "question")
    shutil.copytree(dpr[0] / "context", tmp_path / "two" / "query")
    shutil.copytree(dpr[0] / "context", tmp_path / "two" / "document")
    with pytest.raises(InputError, match="has the weights of the document tower, not of the query tower"):
        TransformerEncoder.load(tmp_path / "two")


def test_search_encodes_queries_with_the_contract_of_the_preset(
    dpr: tuple[Path, Any, Any], tiny: Path, tokenizer: Any, tmp_path: Path
) -> None:
    folder, question, context = dpr
    index = encode(tiny, model=str(folder / "joined"), preset="dpr", dtype="fp32", output=tmp_path / "index")
    hits = search(tiny, index=index, query="sodium and water", hits=3)
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
    model = bert(tokenizer, 0, RobertaModel, RobertaConfig)
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
    model = bert(tokenizer, 0, RobertaModel, RobertaConfig)
    head: Any = ance_head(1)
    start = saved(nn.ModuleDict({"roberta": model, **head}), model.config, tokenizer, tmp_path / "ance")
    plan: dict[str, Any] = {"loss": "nll", "max_steps": 1, "batch_size": 4, "precision": "fp32", "query_max_len": 32}
    out = train_dense(made / "train.parquet", output=tmp_path / "out", model=str(start), preset="ance", **plan)
    contract = read_contract(out)
    assert (contract.pooling, contract.dim, contract.query_max_len, contract.doc_max_len) == ("cls", 12, 32, 512)


def test_dpr_scale_and_drboost_read_towers_and_projections_from_one_lightning_file(
    tokenizer: Any, tiny_bert: Path, tmp_path: Path
) -> None:
    """The form of dpr-scale: a projection with LayerNorm in each tower, under `state_dict`."""
    towers: dict[str, Any] = {}
    for seed, side in enumerate(("query", "context")):
        projection = nn.Sequential(nn.Linear(16, 4), nn.LayerNorm(4))
        towers[f"{side}_encoder"] = nn.ModuleDict({"transformer": bert(tokenizer, seed), "project": projection})
    state = nn.ModuleDict(towers).state_dict()
    torch.save({"epoch": 1, "state_dict": OrderedDict(state), "hyper_parameters": {"k": 1}}, tmp_path / "learner.ckpt")
    base = saved(towers["query_encoder"]["transformer"], towers["query_encoder"]["transformer"].config, tokenizer,
                 tmp_path / "base")  # fmt: skip
    folder = convert_checkpoint(tmp_path / "learner.ckpt", tmp_path / "learner", base=str(base))
    encoder = opened(folder, "drboost")
    assert (encoder.contract.dim, encoder.contract.tied) == (4, False)
    for side, ours in (
        ("query", encoder.encode_queries(QUERIES)),
        ("context", encoder.encode_documents(["", ""], QUERIES)),
    ):
        tower = towers[f"{side}_encoder"]
        close(ours, tower["project"](tower["transformer"](**batch(tokenizer, QUERIES)).last_hidden_state[:, 0]))


def test_dpr_reads_both_towers_from_a_checkpoint_of_its_authors(tokenizer: Any, tmp_path: Path) -> None:
    """The form of the DPR repository: `question_model` and `ctx_model` under `model_dict`, with an optimizer."""
    towers = {"question_model": bert(tokenizer, 0), "ctx_model": bert(tokenizer, 1)}
    state = {f"{name}.{key}": value for name, model in towers.items() for key, value in model.state_dict().items()}
    training: dict[str, Any] = {
        "optimizer_dict": {"state": {}},
        "scheduler_dict": None,
        "offset": 0,
        "epoch": 40,
        "encoder_params": {},
    }
    torch.save({"model_dict": state, **training}, tmp_path / "dpr_biencoder.40")
    base = saved(towers["ctx_model"], towers["ctx_model"].config, tokenizer, tmp_path / "base")
    folder = convert_checkpoint(tmp_path / "dpr_biencoder.40", tmp_path / "dpr", base=str(base))
    encoder = opened(folder, "dpr")
    question, context = (model(**batch(tokenizer, QUERIES)).last_hidden_state[:, 0] for model in towers.values())
    close(encoder.encode_queries(QUERIES), question)
    close(encoder.encode_documents(["", ""], QUERIES), context)


def test_spar_joins_two_plain_towers(tokenizer: Any, tmp_path: Path) -> None:
    models = [bert(tokenizer, seed) for seed in range(2)]
    for model, name in zip(models, ("query", "context"), strict=True):
        saved(model, model.config, tokenizer, tmp_path / name)
    folder = convert_checkpoint(tmp_path / "query", tmp_path / "spar", documents=tmp_path / "context")
    encoder = opened(folder, "spar")
    close(encoder.encode_queries(QUERIES), models[0](**batch(tokenizer, QUERIES)).last_hidden_state[:, 0])
    close(encoder.encode_documents(["", ""], TEXTS), models[1](**batch(tokenizer, TEXTS)).last_hidden_state[:, 0])


def test_tct_colbert_fills_queries_and_leaves_its_marker_out_of_the_mean(tokenizer: Any, tmp_path: Path) -> None:
    model = bert(tokenizer)
    encoder = opened(saved(model, model.config, tokenizer, tmp_path / "tct"), "tct-colbert")
    filled = tokenizer([f"[CLS] [Q] {query}" + "[MASK]" * 36 for query in QUERIES], max_length=36, truncation=True,
                       add_special_tokens=False, return_tensors="pt", return_token_type_ids=False)  # fmt: skip
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
    model = bert(tokenizer, 0, ErnieModel, ErnieConfig)
    encoder = opened(saved(model, model.config, tokenizer, tmp_path / "rocketqa"), "rocketqa")
    for title, text in zip(TITLES, TEXTS, strict=True):
        pair = tokenizer(title, text, return_tensors="pt", return_token_type_ids=True)
        assert pair["token_type_ids"].max() == 1
        close(encoder.encode_documents([title], [text]), model(**pair).last_hidden_state[:, 0])
    close(encoder.encode_queries(QUERIES), model(**batch(tokenizer, QUERIES)).last_hidden_state[:, 0])


def mean(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


KINDS: dict[str, tuple[Any, Any]] = {
    "bert": (BertModel, BertConfig),
    "xlm-roberta": (XLMRobertaModel, XLMRobertaConfig),
    "nomic_bert": (NomicBertModel, NomicBertConfig),
}


@pytest.mark.parametrize(
    "name", ["contriever", "cocondenser", "e5", "bge", "bge-m3", "snowflake", "snowflake-v2", "nomic"]
)
def test_a_preset_of_a_plain_checkpoint_sets_prefixes_pooling_and_length(
    tokenizer: Any, tmp_path: Path, name: str
) -> None:
    kind, config = KINDS[PRESETS[name].types[0]]
    model = bert(tokenizer, 0, kind, config)
    folder = saved(model, model.config, tokenizer, tmp_path / name)
    encoder, contract = opened(folder, name), PRESETS[name].contract
    for prefix, ours in (
        (contract.get("query_prefix", ""), encoder.encode_queries(TEXTS)),
        (contract.get("doc_prefix", ""), encoder.encode_documents(["", ""], TEXTS)),
    ):
        inputs = batch(tokenizer, [prefix + text for text in TEXTS])
        states = model(**inputs).last_hidden_state
        reference = states[:, 0] if contract["pooling"] == "cls" else mean(states, inputs["attention_mask"])
        close(ours, functional.normalize(reference, dim=-1) if contract["normalize"] else reference)


# ---------------------------------------------------------------------------------------------- sentence-transformers


def chain(folder: Path, source: Path, pooling: str, *modules: nn.Module) -> SentenceTransformer:
    model = SentenceTransformer(modules=[Transformer(str(source)), Pooling(16, pooling), *modules], device="cpu")
    model.save(str(folder))
    return model


CHAINS: dict[str, tuple[str, Callable[[], list[nn.Module]]]] = {
    "gtr": ("mean", lambda: [Dense(16, 12, bias=False, activation_function=nn.Identity()), Normalize()]),
    "two dense": ("max", lambda: [Dense(16, 8), Normalize(), Dense(8, 6, activation_function=nn.ReLU())]),
    "last token": ("lasttoken", lambda: [Normalize()]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_modules_has_the_vectors_of_sentence_transformers(tokenizer: Any, tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, pad_token_id=0)
    t5 = T5EncoderModel(config).eval()
    model: PreTrainedModel = t5 if name == "gtr" else bert(tokenizer)
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
    file = tmp_path / "chain" / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_function": "os.system"}))
    with pytest.raises(InputError, match="unsupported Dense module"):
        TransformerEncoder.load(tmp_path / "chain")
    (tmp_path / "chain" / "2_Dense" / WEIGHTS).unlink()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_function": "torch.nn.Tanh"}))
    with pytest.raises(InputError, match=r"2_Dense: damaged encoder; model\.safetensors is missing"):
        TransformerEncoder.load(tmp_path / "chain")


def test_the_length_of_a_model_without_max_seq_length_is_that_of_its_positions(tiny_bert: Path, tmp_path: Path) -> None:
    chain(tmp_path / "chain", tiny_bert, "mean")
    (tmp_path / "chain" / "sentence_bert_config.json").write_text('{"do_lower_case": false}')
    assert read_contract(tmp_path / "chain").doc_max_len == 512


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "foreign", ["embeddingHead.weight", "classifier.bias", "linear.weight", "bert.head.weight", "colbert_linear.weight"]
)
def test_weights_of_an_unknown_part_are_refused_by_name(tiny_bert: Path, tmp_path: Path, foreign: str) -> None:
    shutil.copytree(tiny_bert, tmp_path / "model")
    weights = load_file(tmp_path / "model" / WEIGHTS)
    save_file({**weights, foreign: torch.zeros(2)}, tmp_path / "model" / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"weights of an unknown part \({foreign}\), without which its vectors"):
        TransformerEncoder.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ance", "weights have the form 'plain'; the preset needs 'ance or pyserini-ance'"),
        ("dpr", "the preset needs 'dpr-question and dpr-context or dpr-original or dpr-scale'"),
        ("bge-m3", "a bert model; needs xlm-roberta"),
        ("gtr", "a bert model; needs t5"),
    ],
)
def test_a_preset_that_does_not_fit_the_checkpoint_is_refused(tiny_bert: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"--preset {name}: does not fit .*{message}"):
        preset_fields(name, tiny_bert)


def test_a_preset_of_an_encoder_with_its_own_contract_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    TransformerEncoder.load(tiny_bert).save(tmp_path / "own")
    with pytest.raises(InputError, match=r"has a contract of its own \(encoder\.json\); remove --preset"):
        preset_fields("bge", tmp_path / "own")
    chain(tmp_path / "dense", tiny_bert, "mean", Dense(16, 8), Normalize())
    with pytest.raises(InputError, match=r"has Dense after the pooling \(modules\.json\); the preset needs no module"):
        preset_fields("e5", tmp_path / "dense")


# --------------------------------------------------------------------------------------------------------- conversion


class Payload:
    """An object whose unpickling would create a file."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_a_pickled_model_folder_is_converted_with_its_modules(tiny_bert: Path, tmp_path: Path) -> None:
    chain(tmp_path / "chain", tiny_bert, "mean", Dense(16, 8), Normalize())
    expected = TransformerEncoder.load(tmp_path / "chain").encode_queries(TEXTS)
    for folder in (tmp_path / "chain", tmp_path / "chain" / "2_Dense"):
        torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()
    with pytest.raises(InputError, match="hybrid convert-checkpoint"):
        TransformerEncoder.load(tmp_path / "chain")
    convert_checkpoint(tmp_path / "chain", tmp_path / "converted")
    np.testing.assert_array_equal(TransformerEncoder.load(tmp_path / "converted").encode_queries(TEXTS), expected)
    assert not any((tmp_path / "converted").rglob("*.bin"))


def test_a_file_that_needs_unpickling_is_refused_and_runs_nothing(tiny_bert: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": load_file(tiny_bert / WEIGHTS), "code": Payload(tmp_path / "ran")}, tmp_path / "a.ckpt")
    with pytest.raises(InputError, match=r"a\.ckpt: needs unpickling of objects \("):
        convert_checkpoint(tmp_path / "a.ckpt", tmp_path / "out", base=str(tiny_bert))
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {"a": 1}}, "a is no tensor"),
        ([1, 2], "has no weights"),
        (b"no pickle", "is not a readable PyTorch file"),
    ],
)
def test_a_file_without_weights_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    if isinstance(content, bytes):
        (tmp_path / "a.bin").write_bytes(content)
    else:
        torch.save(content, tmp_path / "a.bin")
    with pytest.raises(InputError, match=message):
        read_weights(tmp_path / "a.bin")


def test_a_file_without_a_configuration_needs_a_base(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.bin")
    with pytest.raises(InputError, match=r"a\.bin: has no config\.json next to it; pass --base"):
        convert_checkpoint(tmp_path / "a.bin", tmp_path / "out")
