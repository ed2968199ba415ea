"""Folders of sentence-transformers: the vectors of that library, or a refusal that names the key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import hybrid
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers import SparseEncoder as SparseModel
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from sparse_models import write_checkpoint
from tiny_tokenizer import tiny_tokenizer
from torch import nn

from hybrid_cli.encoders.contract import kind_of
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.errors import InputError

QUERIES = ["Inverse of a Square MATRIX", "naïve café", "salt"]
TEXTS = ["The inverse of a matrix exists if its determinant is not zero. " * 3, "", "Tides rise"]
PROMPTS = {"query": "query: ", "document": "Represent the document: "}
SETTINGS = "sentence_bert_config.json"
WHOLE = "config_sentence_transformers.json"
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
Build = Callable[[Path, Path], Any]  # of a model from the folders of a BERT and of a masked language model


def plain(bert: Path, *modules: Any, pooling: Any = "mean", include: bool = True, **options: Any) -> Any:
    transformer = Transformer(str(bert), **options.pop("transformer", {}))
    chain = [transformer, Pooling(16, pooling, include_prompt=include), *modules]
    return SentenceTransformer(modules=chain, device="cpu", **options)


def table(dim: int = 16) -> StaticEmbedding:
    torch.manual_seed(1)
    return StaticEmbedding(tiny_tokenizer().backend_tokenizer, embedding_dim=dim)


def static(*modules: Any, **options: Any) -> Any:
    return SentenceTransformer(modules=[table(), *modules], device="cpu", **options)


def routed(*modules: Any, **options: Any) -> Any:
    return SentenceTransformer(modules=[Router(**options), *modules], device="cpu", prompts=PROMPTS)


def body(bert: Path, pooling: str = "mean") -> list[Any]:
    return [Transformer(str(bert)), Pooling(16, pooling)]


def splade(mlm: Path, *pooling: Any, **options: Any) -> Any:
    masked = Transformer(str(mlm), transformer_task="fill-mask", **options)
    return SparseModel(modules=[masked, SpladePooling(*pooling)], device="cpu", prompts=PROMPTS)


def with_query_table(mlm: Path) -> Any:
    torch.manual_seed(1)
    tokenizer = tiny_tokenizer()
    queries: list[Any] = [SparseStaticEmbedding(tokenizer, torch.rand(len(tokenizer)))]
    documents: list[Any] = [Transformer(str(mlm), transformer_task="fill-mask"), SpladePooling()]
    return SparseModel(modules=[Router.for_query_document(queries, documents)], device="cpu")


def pooled(mode: Any, include: bool) -> Build:
    return lambda bert, _: plain(bert, pooling=mode, include=include, prompts=PROMPTS)


def activated(kind: Any) -> Build:
    return lambda bert, _: plain(bert, Dense(16, 8, activation_function=kind()))


def saturated(how: str, activation: str) -> Build:
    return lambda _, mlm: splade(mlm, how, activation)


MODELS: dict[str, Build] = {
    **{
        f"{mode}, prompt {include}": pooled(mode, include)
        for mode in (*MODES, ("mean", "cls"), MODES)
        for include in (True, False)
    },
    **{f"dense with {kind.__name__}": activated(kind) for kind in (nn.Identity, nn.Tanh, nn.GELU, nn.SiLU)},
    "residuals": lambda bert, _: plain(bert, Dense(16, 8, use_residual=True), Dense(8, 8, use_residual=True)),
    "norms": lambda bert, _: plain(bert, Dense(16, 8, bias=False), LayerNorm(8), Normalize()),
    "truncated": lambda bert, _: plain(bert, truncate_dim=5),
    "truncated after the normalization": lambda bert, _: plain(bert, Normalize(), truncate_dim=5),
    "normalized before a dense module": lambda bert, _: plain(bert, Normalize(), Dense(16, 8), truncate_dim=7),
    "lengths": lambda bert, _: plain(bert, transformer={"query_length": 6, "document_length": 9}),
    "limit": lambda bert, _: plain(bert, transformer={"processing_kwargs": {"text": {"max_length": 8}}}),
    "default prompt": lambda bert, _: plain(
        bert, prompts={**PROMPTS, "clustering": "cluster: "}, default_prompt_name="clustering"
    ),
    "table": lambda *_: static(prompts=PROMPTS),
    "table with modules": lambda *_: static(Dense(16, 6), Normalize(), truncate_dim=4),
    "routes": lambda bert, _: routed(Normalize(), sub_modules={"query": [table()], "document": body(bert)}),
    "routes of transformers": lambda bert, _: routed(sub_modules={"query": body(bert, "cls"), "document": body(bert)}),
    "one route": lambda bert, _: routed(sub_modules={"text": body(bert)}, route_mappings={(None, "text"): "text"}),
    "mapped routes": lambda bert, _: routed(
        sub_modules={"a": [table()], "b": body(bert)}, route_mappings={("query", None): "b", ("document", "text"): "a"}
    ),
    **{
        f"splade, {how}, {activation}": saturated(how, activation)
        for how in ("max", "sum")
        for activation in ("relu", "log1p_relu")
    },
    "splade, lengths": lambda _, mlm: splade(mlm, query_length=6, document_length=9),
    "splade, table of queries": lambda _, mlm: with_query_table(mlm),
}


@pytest.fixture(scope="module")
def mlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("mlm"), "splade")


def compare(folder: Path, kind: Any = SentenceTransformer, tolerance: float = 1e-5) -> None:
    """Compare the vectors of a folder with those of sentence-transformers."""
    theirs, ours = kind(str(folder), device="cpu"), open_encoder(folder)
    for expected, found in (
        (theirs.encode_query(QUERIES), ours.encode_queries(QUERIES)),
        (theirs.encode_document(TEXTS), ours.encode_documents([""] * len(TEXTS), TEXTS)),
    ):
        vectors = expected if isinstance(expected, np.ndarray) else expected.to_dense().numpy()
        assert found.shape == vectors.shape
        assert np.abs(vectors).max() > 0.01
        np.testing.assert_allclose(found, vectors, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_vectors_equal_those_of_the_library(tiny_bert: Path, mlm: Path, name: str, tmp_path: Path) -> None:
    model = MODELS[name](tiny_bert, mlm)
    model.save(str(tmp_path / "model"))
    compare(tmp_path / "model", type(model))


def edit(file: Path, **changes: Any) -> None:
    stored = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**stored, **changes}))


@pytest.fixture(scope="module")
def saved(tiny_bert: Path, mlm: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("saved")
    models = {
        "dense": plain(tiny_bert, Dense(16, 8), Normalize(), prompts=PROMPTS),
        "static": static(),
        "routes": routed(sub_modules={"query": [table()], "document": body(tiny_bert)}),
        "sparse": splade(mlm),
        "sparse routes": with_query_table(mlm),
    }
    for name, model in models.items():
        model.save(str(folder / name))
    return {name: folder / name for name in models}


@pytest.fixture
def model(saved: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a copy of a saved model."""
    return lambda name: Path(shutil.copytree(saved[name], tmp_path / "model"))


LEGACY: dict[str, dict[str, dict[str, Any]]] = {
    "lower case": {SETTINGS: {"do_lower_case": True, "max_seq_length": 10}},
    "names of earlier versions": {
        SETTINGS: {
            "max_seq_length": 10,
            "model_args": {"add_pooling_layer": False},
            "config_args": {"revision": "main"},
        },
        "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    },
}


@pytest.mark.parametrize("name", LEGACY)
def test_files_of_earlier_versions_are_read(model: Callable[[str], Path], name: str) -> None:
    folder = model("dense")
    for file, content in LEGACY[name].items():
        (folder / file).write_text(
            json.dumps({"word_embedding_dimension": 16, **content} if "Pool" in file else content)
        )
    compare(folder)


def test_settings_under_the_name_of_an_architecture_are_read(model: Callable[[str], Path]) -> None:
    folder = model("dense")
    (folder / SETTINGS).unlink()
    (folder / "sentence_roberta_config.json").write_text('{"max_seq_length": 9, "do_lower_case": false}')
    compare(folder)
    assert open_encoder(folder).describe()["doc_max_len"] == 9


def test_a_table_of_model2vec_shares_vectors_among_tokens(model: Callable[[str], Path]) -> None:
    folder = model("static")
    weight = load_file(folder / "model.safetensors")["embedding.weight"]
    parts = {"mapping": torch.arange(len(weight)) % 100, "weights": torch.rand(len(weight))}
    save_file({"embeddings": weight[:100].clone(), **parts}, folder / "model.safetensors")
    compare(folder)


def test_a_trained_table_is_a_model_of_the_library(saved: dict[str, Path], tmp_path: Path) -> None:
    encoder = open_encoder(saved["static"], overrides={"doc_max_len": 12, "query_max_len": 12})
    encoder.save(tmp_path / "model")  # type: ignore[attr-defined]
    compare(tmp_path / "model")
    assert not (tmp_path / "model" / SETTINGS).exists()


def test_a_truncated_model_is_saved_as_one(tiny_bert: Path, tmp_path: Path) -> None:
    plain(tiny_bert, Normalize(), truncate_dim=5).save(str(tmp_path / "model"))
    open_encoder(tmp_path / "model").save(tmp_path / "again")  # type: ignore[attr-defined]
    compare(tmp_path / "again")
    found, again = (open_encoder(tmp_path / each).encode_queries(QUERIES) for each in ("model", "again"))
    np.testing.assert_array_equal(found, again)


def test_a_table_that_the_library_cannot_express_is_opened_again(saved: dict[str, Path], tmp_path: Path) -> None:
    """That library truncates after the normalization."""
    encoder = open_encoder(saved["static"], overrides={"truncate_dim": 5, "normalize": True})
    encoder.save(tmp_path / "model")  # type: ignore[attr-defined]
    assert not (tmp_path / "model" / "modules.json").exists()
    again = open_encoder(tmp_path / "model")
    np.testing.assert_array_equal(again.encode_queries(QUERIES), encoder.encode_queries(QUERIES))


def test_kinds(saved: dict[str, Path]) -> None:
    found = {name: kind_of(folder) for name, folder in saved.items()}
    dense, sparse = {"dense": "transformer", "static": "transformer", "routes": "pair"}, ("sparse", "sparse routes")
    assert found == {**dense, **dict.fromkeys(sparse, "sparse")}


KEYS: list[tuple[str, str, str, Any]] = [  # model, file, key, value
    ("dense", SETTINGS, "transformer_task", "fill-mask"),
    ("dense", SETTINGS, "module_output_name", "sentence_embedding"),
    ("dense", SETTINGS, "modality_config", {"text": {"method": "encode", "method_output_name": "pooler_output"}}),
    ("dense", SETTINGS, "query_expansion", {"strategy": "fixed", "length": 32}),
    ("dense", SETTINGS, "tokenizer_name_or_path", "owner/tokenizer"),
    ("dense", SETTINGS, "unknown", 1),
    ("dense", SETTINGS, "do_lower_case", "yes"),
    ("dense", WHOLE, "similarity_fn_name", "euclidean"),
    ("dense", WHOLE, "truncate_dim", 0),
    ("dense", WHOLE, "truncate_dim", "8"),
    ("dense", WHOLE, "model_type", "MultiVectorEncoder"),
    ("dense", WHOLE, "max_active_dims", 16),
    ("dense", WHOLE, "unknown", 1),
    ("dense", "1_Pooling/config.json", "unknown", 1),
    ("dense", "1_Pooling/config.json", "include_prompt", "no"),
    ("dense", "2_Dense/config.json", "activation_function", "torch.nn.modules.activation.Softmax"),
    ("dense", "2_Dense/config.json", "activation_function", "custom.Tanh"),
    ("dense", "2_Dense/config.json", "module_input_name", "token_embeddings"),
    ("dense", "2_Dense/config.json", "module_output_name", "other"),
    ("dense", "2_Dense/config.json", "unknown", 1),
    ("dense", "3_Normalize/config.json", "module_input_name", "token_embeddings"),
    ("sparse", WHOLE, "max_active_dims", 16),
    ("sparse", WHOLE, "similarity_fn_name", "cosine"),
    ("sparse", "1_SpladePooling/config.json", "pooling_strategy", "mean"),
    ("sparse", "1_SpladePooling/config.json", "activation_function", "gelu"),
    ("sparse", "1_SpladePooling/config.json", "unknown", 1),
    ("sparse routes", "query_0_SparseStaticEmbedding/config.json", "path", "owner/idf.json"),
]


@pytest.mark.parametrize(("name", "file", "key", "value"), KEYS)
def test_a_key_that_is_not_supported_is_refused_by_name(
    model: Callable[[str], Path], name: str, file: str, key: str, value: Any
) -> None:
    folder = model(name)
    edit(folder / file, **{key: value})
    with pytest.raises(InputError) as caught:
        open_encoder(folder)
    assert (caught.value.code, caught.value.fields["path"], caught.value.fields["key"]) == (
        "sentence-transformers-key",
        folder / file,
        key,
    )


@pytest.mark.parametrize(
    ("part", "key"),
    [("model_kwargs", "state_dict"), ("tokenizer_args", "truncation_side"), ("config_kwargs", "num_hidden_layers")],
)
def test_an_argument_of_a_module_is_refused_by_name(model: Callable[[str], Path], part: str, key: str) -> None:
    folder = model("dense")
    edit(folder / SETTINGS, **{part: {key: 1, "trust_remote_code": True}})
    with pytest.raises(InputError) as caught:
        open_encoder(folder)
    assert str(caught.value.fields["key"]).endswith(f".{key}")


ST = "sentence_transformers.models"
LISTS: list[tuple[str, list[tuple[str, str]]]] = [
    ("module-unsupported", [("custom_st.Transformer", ""), (f"{ST}.Pooling", "1_Pooling")]),
    ("module-unsupported", [("pylate.models.Dense", "")]),
    ("module-unsupported", [(f"{ST}.Transformer", ""), (f"{ST}.CNN", "1_CNN")]),
    ("module-outside", [(f"{ST}.Transformer", "../other"), (f"{ST}.Pooling", "1_Pooling")]),
    ("module-outside", [(f"{ST}.Transformer", "/etc"), (f"{ST}.Pooling", "1_Pooling")]),
    ("modules-order", [(f"{ST}.Transformer", "")]),
    ("modules-order", [(f"{ST}.Pooling", "1_Pooling"), (f"{ST}.Transformer", "")]),
    ("modules-order", [(f"{ST}.Transformer", ""), (f"{ST}.Dense", "2_Dense"), (f"{ST}.Pooling", "1_Pooling")]),
    ("modules-order", [(f"{ST}.Transformer", ""), (f"{ST}.SpladePooling", "1"), (f"{ST}.Normalize", "2")]),
    ("modules-order", []),
]


@pytest.mark.parametrize(("problem", "modules"), LISTS)
def test_other_modules_are_refused(model: Callable[[str], Path], problem: str, modules: list[tuple[str, str]]) -> None:
    folder = model("dense")
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError) as caught:
        open_encoder(folder)
    assert caught.value.code == problem


@pytest.mark.parametrize(
    "changes",
    [
        {"structure": {"query": ["query_0_StaticEmbedding"]}},
        {"structure": {"query": ["other"], "document": ["other"]}},
        {"parameters": {"default_route": None, "unknown": 1}},
        {"parameters": {"route_mappings": {"open('x')": "query"}}},
        {"types": {"query_0_StaticEmbedding": "custom.Module"}},
        {"types": 1},
    ],
)
def test_a_damaged_router_is_refused(model: Callable[[str], Path], changes: dict[str, Any]) -> None:
    folder = model("routes")
    edit(folder / "router_config.json", **changes)
    with pytest.raises(InputError) as caught:
        open_encoder(folder)
    assert caught.value.code in ("sentence-transformers-key", "module-unsupported", "modules-form")


def test_queries_with_another_tokenizer_are_refused(model: Callable[[str], Path]) -> None:
    folder = model("sparse routes")
    edit(folder / "query_0_SparseStaticEmbedding/tokenizer.json", normalizer={"type": "Lowercase"})
    with pytest.raises(InputError) as caught:
        open_encoder(folder)
    assert caught.value.code == "tokenizers-differ"


@pytest.mark.parametrize("sizes", [{"in_features": 10**6}, {"out_features": 10**9}])
def test_sizes_of_a_module_are_those_of_its_weights(model: Callable[[str], Path], sizes: dict[str, int]) -> None:
    folder = model("dense")
    edit(folder / "2_Dense/config.json", **sizes)
    with pytest.raises(InputError):
        open_encoder(folder)


@pytest.mark.parametrize("weight", [torch.zeros(3, 4), torch.zeros(9000), torch.zeros(9000, 4, dtype=torch.int8)])
def test_a_table_that_does_not_fit_is_refused(model: Callable[[str], Path], weight: Any) -> None:
    folder = model("static")
    save_file({"embedding.weight": weight}, folder / "model.safetensors")
    with pytest.raises(InputError) as caught:
        open_encoder(folder)
    assert caught.value.code == "table-form"


def test_values_without_effect_are_noted(
    tiny: Path, saved: dict[str, Path], model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = model("static")
    edit(folder / WHOLE, prompts={"query": "q: ", "code": "code: ", "empty": ""}, default_prompt_name="code")
    done = hybrid("encode", tiny, "--model", folder, "--dtype", "fp32", "--output", tmp_path / "index")
    notes = [notice.message for notice in done.notices.heard if notice.code == "contract"]
    assert done.code == 0
    assert len(notes) == 3
    assert ("code ('code: ')" in notes[0], "empty" in notes[0]) == (True, False)
    done = hybrid("encode", tiny, "--model", saved["dense"], "--dtype", "fp32", "--output", tmp_path / "dense")
    assert not done.says("contract")


def test_an_asymmetric_model_is_searched(tiny: Path, saved: dict[str, Path], tmp_path: Path) -> None:
    index, out = tmp_path / "index", tmp_path / "run.parquet"
    assert hybrid("encode", tiny, "--model", saved["routes"], "--dtype", "fp32", "--output", index).code == 0
    assert hybrid("search", tiny, "--split", "test", "--index", index, "--output", out).code == 0


def test_the_maximum_length_of_a_reranker_is_that_of_its_settings(tiny_bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    torch.manual_seed(0)
    Theirs(str(tiny_bert), num_labels=1, device="cpu").save_pretrained(str(tmp_path / "model"))
    edit(tmp_path / "model" / SETTINGS, max_seq_length=40)
    assert CrossEncoder.load(tmp_path / "model").input.max_length == 40
    listed = json.loads((tmp_path / "model/modules.json").read_text())
    (tmp_path / "model/modules.json").write_text(json.dumps([{**listed[0], "type": "custom.Transformer"}]))
    with pytest.raises(InputError):
        CrossEncoder.load(tmp_path / "model")
