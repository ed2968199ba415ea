"""Folders of sentence-transformers and model2vec: the vectors of that library, computed here or there."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import hybrid, raises, ran
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder as Theirs
from sentence_transformers import SentenceTransformer
from sentence_transformers import SparseEncoder as SparseModel
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import CNN, LayerNorm, Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from sparse_models import write_checkpoint
from tiny_tokenizer import tiny_tokenizer
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from hybrid_cli.encoders.contract import LIBRARY, SPARSE, TRANSFORMER, kind_of
from hybrid_cli.encoders.cross_encoder import load_reranker
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
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
    return SentenceTransformer(modules=chain, device="cpu", **{"similarity_fn_name": "dot", **options})


def static(*modules: Any, **options: Any) -> Any:
    torch.manual_seed(1)
    table = StaticEmbedding(tiny_tokenizer().backend_tokenizer, embedding_dim=16)
    return SentenceTransformer(modules=[table, *modules], device="cpu", similarity_fn_name="dot", **options)


def routed(bert: Path) -> Any:
    routes = {"query": [static()[0]], "document": [Transformer(str(bert)), Pooling(16)]}
    return SentenceTransformer(modules=[Router(routes)], device="cpu", prompts=PROMPTS, similarity_fn_name="dot")


def splade(mlm: Path, *pooling: Any) -> Any:
    masked = Transformer(str(mlm), transformer_task="fill-mask")
    return SparseModel(modules=[masked, SpladePooling(*pooling)], device="cpu", prompts=PROMPTS)


def with_query_table(mlm: Path, lower_case: bool = True) -> Any:
    torch.manual_seed(1)
    tokenizer = tiny_tokenizer()
    if not lower_case:  # the plain class: BERT's restores its own normalizer on loading
        rules = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        rules.normalizer = BertNormalizer(lowercase=False)
        special = {name: getattr(tokenizer, name) for name in ("unk_token", "cls_token", "sep_token", "pad_token")}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, **special)
    queries: list[Any] = [SparseStaticEmbedding(tokenizer, torch.rand(len(tokenizer)))]
    documents: list[Any] = [Transformer(str(mlm), transformer_task="fill-mask"), SpladePooling()]
    return SparseModel(modules=[Router.for_query_document(queries, documents)], device="cpu")


def pooled(mode: Any, include: bool) -> Build:
    return lambda bert, _: plain(bert, pooling=mode, include=include, prompts=PROMPTS)


def activated(kind: Any) -> Build:
    return lambda bert, _: plain(bert, Dense(16, 8, activation_function=kind()))


USUAL: dict[str, Build] = {
    **{
        f"{mode}, prompt {include}": pooled(mode, include)
        for mode in (*MODES, ("mean", "cls"), MODES)
        for include in (True, False)
    },
    **{f"dense with {kind.__name__}": activated(kind) for kind in (nn.Identity, nn.Tanh, nn.GELU)},
    "residuals": lambda bert, _: plain(bert, Dense(16, 8, use_residual=True), Dense(8, 8, use_residual=True)),
    "norms": lambda bert, _: plain(bert, Dense(16, 8, bias=False), LayerNorm(8), Normalize()),
    "truncated": lambda bert, _: plain(bert, truncate_dim=5),
    "truncated after the normalization": lambda bert, _: plain(bert, Normalize(), truncate_dim=5),
    "normalized before a dense module": lambda bert, _: plain(bert, Normalize(), Dense(16, 8), truncate_dim=7),
    "lengths": lambda bert, _: plain(bert, transformer={"query_length": 6, "document_length": 9}),
    "lower case": lambda bert, _: plain(bert, transformer={"do_lower_case": True}),
    "default prompt": lambda bert, _: plain(
        bert, prompts={**PROMPTS, "clustering": "cluster: "}, default_prompt_name="clustering"
    ),
}
OTHERS: dict[str, Build] = {
    "another limit": lambda bert, _: plain(bert, transformer={"processing_kwargs": {"text": {"max_length": 8}}}),
    "convolution": lambda bert, _: SentenceTransformer(
        modules=[Transformer(str(bert)), CNN(16, 8), Pooling(24)], device="cpu", similarity_fn_name="dot"
    ),
    "table": lambda *_: static(prompts=PROMPTS),
    "table with modules": lambda *_: static(Dense(16, 6), Normalize(), truncate_dim=4),
    "routes": lambda bert, _: routed(bert),
}
SPARSE_MODELS: dict[str, Build] = {
    "splade": lambda _, mlm: splade(mlm),
    "splade, sum of two logarithms": lambda _, mlm: splade(mlm, "sum", "log1p_relu"),
    "splade, table of queries": lambda _, mlm: with_query_table(mlm),
    "splade, table of queries that keeps their case": lambda _, mlm: with_query_table(mlm, lower_case=False),
}


@pytest.fixture(scope="module")
def mlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("mlm"), "splade")


def compare(folder: Path, kind: Any = SentenceTransformer) -> Any:
    """Compare the vectors of a folder with those of sentence-transformers; return the encoder."""
    theirs, ours = kind(str(folder), device="cpu"), open_encoder(folder)
    for expected, found in (
        (theirs.encode_query(QUERIES), ours.encode_queries(QUERIES)),
        (theirs.encode_document(TEXTS), ours.encode_documents([""] * len(TEXTS), TEXTS)),
    ):
        vectors = expected if isinstance(expected, np.ndarray) else expected.to_dense().numpy()
        assert found.shape == vectors.shape
        assert np.abs(vectors).max() > 0.01
        np.testing.assert_allclose(found, vectors, atol=1e-5)
    return ours


@pytest.mark.parametrize("name", [*USUAL, *OTHERS, *SPARSE_MODELS])
def test_vectors_equal_those_of_the_library(tiny_bert: Path, mlm: Path, name: str, tmp_path: Path) -> None:
    """The usual modules are computed here, every other model in the library."""
    model = {**USUAL, **OTHERS, **SPARSE_MODELS}[name](tiny_bert, mlm)
    model.save(str(tmp_path / "model"))
    kind = next(
        kind for kind, names in ((TRANSFORMER, USUAL), (LIBRARY, OTHERS), (SPARSE, SPARSE_MODELS)) if name in names
    )
    assert kind_of(tmp_path / "model") == kind
    encoder = compare(tmp_path / "model", type(model))
    assert isinstance(encoder, TransformerEncoder) == (kind == TRANSFORMER)


def edit(file: Path, **changes: Any) -> None:
    stored = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**stored, **changes}))


@pytest.fixture(scope="module")
def saved(tiny_bert: Path, mlm: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("saved")
    models = {
        "dense": plain(tiny_bert, Dense(16, 8), Normalize(), prompts=PROMPTS),
        "static": static(),
        "routes": routed(tiny_bert),
        "sparse": splade(mlm),
    }
    for name, model in models.items():
        model.save(str(folder / name))
    torch.manual_seed(0)
    Theirs(str(tiny_bert), num_labels=1, device="cpu").save_pretrained(str(folder / "reranker"))
    return {name: folder / name for name in [*models, "reranker"]}


@pytest.fixture
def model(saved: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(saved[name], tmp_path / "model"))


EARLIER: dict[str, dict[str, Any]] = {  # files of earlier versions
    SETTINGS: {"max_seq_length": 10, "model_args": {"add_pooling_layer": False}, "config_args": {"revision": "main"}},
    "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_cls_token": True},
    "sentence_roberta_config.json": {"max_seq_length": 9, "do_lower_case": False},
}


@pytest.mark.parametrize("name", EARLIER)
def test_files_of_earlier_versions_are_read(model: Callable[[str], Path], name: str) -> None:
    folder = model("dense")
    if "roberta" in name:
        (folder / SETTINGS).unlink()
    (folder / name).write_text(json.dumps(EARLIER[name]))
    assert compare(folder).describe()["doc_max_len"] == EARLIER[name].get("max_seq_length", 512)


def test_the_maximum_length_of_a_reranker_is_that_of_its_settings(model: Callable[[str], Path]) -> None:
    edit((folder := model("reranker")) / SETTINGS, max_seq_length=40)
    assert load_reranker(folder).input.max_length == 40  # type: ignore[attr-defined]


def test_a_declared_cosine_is_honoured(tiny_bert: Path, tmp_path: Path) -> None:
    plain(tiny_bert, truncate_dim=5, similarity_fn_name="cosine").save(str(tmp_path / "model"))
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    queries, documents = theirs.encode_query(QUERIES), theirs.encode_document(TEXTS)
    encoder = open_encoder(tmp_path / "model")
    scores = encoder.encode_queries(QUERIES) @ encoder.encode_documents([""] * 3, TEXTS).T
    np.testing.assert_allclose(scores, theirs.similarity(queries, documents).numpy(), atol=1e-5)
    assert encoder.describe()["normalize"]


def test_minilm_is_that_of_the_library_without_its_import() -> None:
    folder = resolve("minilm")
    encoder = compare(folder)
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert (encoder.contract.doc_max_len, encoder.contract.pooling) == (theirs.max_seq_length, "mean")
    program = (
        "import sys; from hybrid_cli import open_encoder; open_encoder('minilm').encode_queries(['salt']); "
        "sys.exit('sentence_transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_search_uses_a_contract(
    tiny: Path, saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library opens a folder when it is encoded; searches, and a combination with it, need the library no more."""
    index, both = tmp_path / "index", tmp_path / "both"
    ran("encode", tiny, "--model", saved["dense"], "--dtype", "fp32", "--output", index)
    ran("combine", saved["dense"], "minilm", "--output", both)
    vectors = open_encoder(both).encode_queries(QUERIES)
    monkeypatch.setattr("hybrid_cli.encoders.library.open_in_library", None)
    monkeypatch.setattr("hybrid_cli.encoders.contract.in_library", None)
    out = tmp_path / "run.parquet"
    ran("search", tiny, "--split", "test", "--index", index, "--output", out)
    np.testing.assert_array_equal(open_encoder(both).encode_queries(QUERIES), vectors)


@pytest.mark.parametrize("name", ["static", "routes", "sparse"])
def test_a_model_in_the_library_is_searched(tiny: Path, saved: dict[str, Path], name: str, tmp_path: Path) -> None:
    index, out = tmp_path / "index", tmp_path / "run.parquet"
    ran("encode", tiny, "--model", saved[name], "--dtype", "fp32", "--output", index)
    ran("search", tiny, "--split", "test", "--index", index, "--output", out)
    done = hybrid("encode", tiny, "--model", saved[name], "--query-max-len", "9", "--output", tmp_path / "other")
    assert done.problem == "transformer-option"


def test_prefixes_and_truncation_of_a_model_in_the_library(saved: dict[str, Path]) -> None:
    changes = {"query_prefix": "q: ", "truncate_dim": 3, "normalize": True}
    found = open_encoder(saved["static"], overrides=changes).encode_queries(QUERIES)
    theirs = SentenceTransformer(str(saved["static"]), device="cpu", truncate_dim=3)
    expected = theirs.encode(QUERIES, prompt="q: ", normalize_embeddings=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_folder_of_model2vec_is_a_static_model(saved: dict[str, Path], normalize: bool, tmp_path: Path) -> None:
    """Its table may share vectors among tokens, with a weight for each token."""
    weight = load_file(saved["static"] / "model.safetensors")["embedding.weight"]
    parts = {"mapping": torch.arange(len(weight)) % 100, "weights": torch.rand(len(weight))}
    folder = tmp_path / "table"
    folder.mkdir()
    save_file({"embeddings": weight[:100].clone(), **parts}, folder / "model.safetensors")
    edit(folder / "config.json", model_type="model2vec", normalize=normalize)
    shutil.copy(saved["static"] / "tokenizer.json", folder)
    table = weight[:100][parts["mapping"]] * parts["weights"][:, None]
    ids = [tiny_tokenizer().backend_tokenizer.encode(text, add_special_tokens=False).ids for text in QUERIES]
    expected = torch.stack([table[row].mean(0) for row in ids])
    expected = nn.functional.normalize(expected, dim=1) if normalize else expected
    np.testing.assert_allclose(open_encoder(folder).encode_queries(QUERIES), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("labels", [1, 2])
def test_cross_encoders_have_its_scores(saved: dict[str, Path], tiny_bert: Path, labels: int, tmp_path: Path) -> None:
    folder = saved["reranker"]
    if labels == 2:
        torch.manual_seed(0)
        Theirs(str(tiny_bert), num_labels=2, device="cpu").save_pretrained(str(tmp_path / "two"))
        folder = tmp_path / "two"
    pairs = pl.DataFrame({"query": ["salt", QUERIES[0]], "title": ["", "Title"], "text": TEXTS[:2]})
    reranker, theirs = load_reranker(folder, max_length=20), Theirs(str(folder), device="cpu")
    theirs.max_seq_length = 20
    scores, lengths = reranker.scores(pairs)
    whole = [("salt", TEXTS[0]), (QUERIES[0], f"Title {TEXTS[1]}")]
    expected = theirs.predict(whole, activation_fn=nn.Identity())
    np.testing.assert_allclose(scores, expected if labels == 1 else expected[:, 1] - expected[:, 0], atol=1e-6)
    assert lengths.tolist()[0] == 20
    with raises("transformer-option"):
        load_reranker(folder, query_max_len=5)


def test_a_truncated_model_is_saved_as_one(tiny_bert: Path, tmp_path: Path) -> None:
    plain(tiny_bert, Normalize(), truncate_dim=5).save(str(tmp_path / "model"))
    open_encoder(tmp_path / "model").save(tmp_path / "again")  # type: ignore[attr-defined]
    compare(tmp_path / "again")


ST = "sentence_transformers.models"
REFUSED: list[tuple[str, str, str, Any]] = [  # model, file, key, value
    ("dense", WHOLE, "similarity_fn_name", "euclidean"),
    ("dense", SETTINGS, "model_args", {"attn_implementation": "owner/kernel"}),
    ("dense", "config.json", "quantization_config", {"quant_method": "awq"}),
    ("dense", "2_Dense/config.json", "in_features", 10**6),
    ("reranker", "config.json", "id2label", {"0": "a", "1": "b", "2": "c"}),
]


@pytest.mark.parametrize(("name", "file", "key", "value"), REFUSED)
def test_an_incomplete_folder_fails(model: Callable[[str], Path], name: str, file: str, key: str, value: Any) -> None:
    folder = model(name)
    edit(folder / file, **{key: value})
    with pytest.raises(InputError):
        load_reranker(folder) if name == "reranker" else open_encoder(folder)


@pytest.mark.parametrize(
    ("kind", "path"), [("custom_st.Module", ""), ("os.system", ""), (f"{ST}.Transformer", "../other"), (f"{ST}.No", "")]
)
def test_modules_of_other_code_or_folders_are_refused(model: Callable[[str], Path], kind: str, path: str) -> None:
    folder = model("dense")
    (folder / "custom_st.py").write_text("raise SystemExit('it ran')")
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": path, "type": kind}]))
    with pytest.raises(InputError):
        open_encoder(folder)


@pytest.mark.parametrize("part", ["", "2_Dense"])
def test_weights_in_a_pickle_are_refused(model: Callable[[str], Path], part: str) -> None:
    folder = model("dense")
    (folder / part / "model.safetensors").rename(folder / part / "pytorch_model.bin")
    with raises("no-weights"):
        open_encoder(folder)
