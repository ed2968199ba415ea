"""`encode`: shards, indexes and manifests; refused options; interrupted and repeated runs."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import Notices, raises
from processes import run
from safetensors.torch import load_file, save_file
from sparse_models import write_checkpoint
from test_resumed import files as contents

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts.indexes import info_of, read_info
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import HybridError
from hybrid_cli.indexes import faiss, options
from hybrid_cli.indexes import shards as shards_module
from hybrid_cli.indexes.shards import read_ids, read_shard
from hybrid_cli.stages.encode import encode
from hybrid_cli.storage import Kind


def corpus(folder: Path, documents: int) -> Path:
    rows = range(documents)
    texts = [f"{row} is the number after {row - 1} " * (1 + row % 5) for row in rows]
    columns = {"docid": [f"d{row}" for row in rows], "title": [f"Number {row}" for row in rows], "text": texts}
    pq.write_table(pa.table(columns), folder / "corpus.parquet")
    return folder / "corpus.parquet"


def test_the_index_has_the_vectors_of_the_encoder_in_corpus_order(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    folder = encode(tiny, output=tmp_path / "index", model=tiny_bert, dtype="fp32", shard_size=5)
    assert [path.name for path in shards_module.shards(folder)] == [f"part-0000{number}.parquet" for number in range(3)]
    index = open_dense(folder)
    corpus = pq.read_table(tiny / "corpus.parquet")
    assert index.docids.to_list() == corpus["docid"].to_pylist() == read_ids(folder).to_list()
    encoder = TransformerEncoder.load(tiny_bert, device="cpu")
    expected = encoder.encode_documents(corpus["title"].to_pylist(), corpus["text"].to_pylist())
    np.testing.assert_allclose(index.vectors_of(np.arange(12)), expected, atol=1e-5)


def test_the_manifest_records_contract_and_weights(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"model": tiny_bert, "dtype": "fp32", "pooling": "cls"}
    folder = encode(tiny, output=tmp_path / "index", doc_max_len=8, doc_prefix="passage: ", query_max_len=None, **how)
    manifest = artifacts.read_manifest(folder, Kind.DENSE_INDEX)
    encoder = TransformerEncoder.load(tiny_bert, pooling="cls", doc_max_len=8, doc_prefix="passage: ")
    assert manifest.counts["contract"] == encoder.contract.to_dict()
    assert manifest.counts["encoder"] == encoder.fingerprint
    assert manifest.options["contract"] == {"pooling": "cls", "doc_max_len": 8, "doc_prefix": "passage: "}


def test_truncated_texts_are_counted(tmp_path: Path, tiny_bert: Path) -> None:
    table = pa.table(
        {"docid": ["short", "exact", "long"], "title": [""] * 3, "text": ["a", "a b c d e f", "a b c d e f g"]}
    )
    pq.write_table(table, tmp_path / "corpus.parquet")
    for size in (1, 3):
        how: dict[str, Any] = {"shard_size": size, "doc_max_len": 8}  # with [CLS] and [SEP]
        folder = encode(
            tmp_path / "corpus.parquet", output=tmp_path / f"index{size}", model=tiny_bert, dtype="fp32", **how
        )
        assert artifacts.read_manifest(folder).counts["truncated"] == 1


@pytest.mark.heavy
def test_two_devices_write_the_bytes_of_one(tmp_path: Path, tiny_lambda: Path) -> None:
    """A static encoder, whose processes start without transformers."""
    source = corpus(tmp_path, 200)
    options: dict[str, Any] = {"model": str(tiny_lambda), "shard_size": 20, "threads": 1}
    plain = encode(source, output=tmp_path / "plain", **options)
    assert contents(encode(source, output=tmp_path / "index", devices="cpu,cpu", **options)) == contents(plain)


KILLED = """
import os, sys
from importlib import import_module
from pathlib import Path
from hybrid_cli.indexes import shards
from hybrid_cli.stages.encode import encode

shards.SAVE_SECONDS, shards._AT_ONCE = 0, (8, 8)
module, name, last, model, source, output, *architecture = sys.argv[1:]
module, calls = import_module(module), []
true = getattr(module, name)


def killed(*values):
    def block(texts):
        calls.append(print(len(texts[1]), flush=True))
        if len(calls) == int(last):
            os.kill(os.getpid(), 9)
        return function(texts)

    function = true(*values)
    return block


setattr(module, name, killed)
how = {"dtype": "fp32", "threads": 1, "shard_size": 40, "architecture": (architecture or [None])[0]}
encode(Path(source), output=Path(output), model=model, **how)
"""


@pytest.mark.parametrize(("kind", "function"), [("dense", "block_encoder"), ("sparse", "block_weights")])
def test_a_killed_call_resumes_from_the_last_block(tmp_path: Path, tiny_bert: Path, kind: str, function: str) -> None:
    source, model, how = corpus(tmp_path, 100), tiny_bert, list[str]()
    if kind == "sparse":
        model, how = write_checkpoint(tmp_path / "splade", "splade"), ["splade"]
    ends = [
        run(KILLED, f"hybrid_cli.stages.encode.{kind}", function, last, model, source, tmp_path / output, *how)
        for output, last in (("whole", 0), ("again", 9), ("again", 2), ("again", 0))
    ]
    assert [end.returncode for end in ends] == [0, -9, -9, 0]
    sizes = [[*map(int, end.stdout.split())] for end in ends]
    assert sizes[0] == [8] * 10 + [8, 8, 4]
    assert [sum(calls) - 8 * (code < 0) for calls, (code, _, _) in zip(sizes, ends, strict=True)] == [100, 64, 8, 28]
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")
    assert artifacts.read_manifest(tmp_path / "again").counts == artifacts.read_manifest(tmp_path / "whole").counts


def test_a_repeated_command_does_nothing_or_writes_the_same_bytes(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    one = encode(tiny, output=tmp_path / "one", model=tiny_bert, dtype="fp32")
    written = (one / "index.faiss").stat().st_mtime_ns
    encode(tiny, output=tmp_path / "one", model=tiny_bert, dtype="fp32")
    assert (one / "index.faiss").stat().st_mtime_ns == written
    two = encode(tiny, output=tmp_path / "two", model=tiny_bert, dtype="fp32")
    assert contents(one) == contents(two)
    assert storage.fingerprint(one) == storage.fingerprint(two)


def test_queries_of_a_split_are_encoded_without_an_index(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    folder = encode(tiny, output=tmp_path / "queries", model=tiny_bert, split="test", dtype="fp32")
    assert artifacts.read_manifest(folder).kind == Kind.VECTORS
    assert read_ids(folder).to_list() == ["001", "002", "003", "004", "005", "006"]
    assert not (folder / "index.faiss").exists()


def test_half_precision_is_close_to_fp32(tiny: Path, tmp_path: Path) -> None:
    exact = encode(tiny, output=tmp_path / "fp32", dtype="fp32")
    expected = read_shard(shards_module.shards(exact)[0])
    for dtype in ("bf16", "fp16"):
        folder = encode(tiny, output=tmp_path / dtype, dtype=dtype, vector_dtype="float16")
        found = read_shard(shards_module.shards(folder)[0])
        cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
        assert cosines.min() > 0.999
        assert pq.read_schema(shards_module.shards(folder)[0]).field("vector").type == pa.list_(pa.float16(), 384)


def test_the_batch_size_changes_vectors_by_rounding_only(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    found = []
    for tokens in (1, 64, 100_000):
        folder = encode(tiny, output=tmp_path / str(tokens), model=tiny_bert, dtype="fp32", batch_tokens=tokens)
        found.append(read_shard(shards_module.shards(folder)[0]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)


def test_a_vector_that_is_not_finite_names_the_document(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(tiny_bert, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    salt = TransformerEncoder.load(tiny_bert).document_tower.tokenizer("salt")["input_ids"][1]
    weights["embeddings.word_embeddings.weight"][salt] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with raises("values-not-finite", HybridError, id="NA", count=2):
        encode(tiny, output=tmp_path / "index", model=str(broken), dtype="fp32")
    assert not (tmp_path / "index").exists()


def test_an_impossible_index_is_refused_before_encoding(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    with raises("invalid-value", option="index_type", value="Nonsense"):
        encode(tiny, output=tmp_path / "index", model=tiny_bert, index_type="Nonsense")
    assert not list(tmp_path.iterdir())


def test_a_dense_index_is_rebuilt_without_encoding(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    flat = encode(tiny, output=tmp_path / "flat", model=tiny_bert, dtype="fp32")
    graph = encode(flat, output=tmp_path / "graph", index_type="HNSW8,Flat")
    direct = encode(tiny, output=tmp_path / "direct", model=tiny_bert, dtype="fp32", index_type="HNSW8,Flat")
    assert contents(graph) == contents(direct)
    manifest, made = artifacts.read_manifest(graph), artifacts.read_manifest(direct)
    assert manifest.counts == made.counts
    assert manifest.options == made.options
    assert set(manifest.inputs) == {"vectors", "corpus", "model"}
    with raises("invalid-value", option="index_type", value="Nonsense"):
        encode(flat, output=tmp_path / "none", index_type="Nonsense")


def test_options_of_other_variants_are_not_recorded(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    flat = encode(tiny, output=tmp_path / "flat", model=tiny_bert)
    graph = encode(flat, output=tmp_path / "graph", index_type="HNSW8,Flat")
    again = encode(graph, output=tmp_path / "again", index_type="flat")
    queries = encode(tiny, output=tmp_path / "queries", model=tiny_bert, split="test")
    options = [set(artifacts.read_manifest(path).options) for path in (flat, graph, again, queries)]
    encoding = {"contract", "dtype", "vector_dtype", "shard_size"}
    assert options[0] == options[2] == encoding | {"index_type"}
    assert options[1] == options[0] | {"ef_search", "seed"}
    assert options[3] == encoding


def test_index_facts_survive_the_manifest(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    folder = encode(tiny, output=tmp_path / "index", model=tiny_bert, index_type="binary", recall_check=True)
    info = read_info(folder)
    assert (info.vectors, info.dim, info.truncated, info.factory, info.binary) == (12, 16, 0, "Binary", True)
    assert set(info.recall) == {"recall@10", "recall@100"}
    manifest = artifacts.read_manifest(folder)
    assert info.counts() == manifest.counts
    with raises("damaged-manifest"):
        info_of(replace(manifest, counts={"vectors": 12, "dim": 16, "contract": {}}))


def test_recall_is_measured_stored_and_printed(tiny: Path, tiny_bert: Path, tmp_path: Path, notices: Notices) -> None:
    flat = encode(tiny, output=tmp_path / "flat", model=tiny_bert, dtype="fp32")
    for kind in (None, "flat", "Flat"):
        with raises("option-does-not-apply", option="recall_check"):
            encode(flat, output=tmp_path / "again", recall_check=True, index_type=kind)
    graph = encode(flat, output=tmp_path / "graph", index_type="HNSW8,Flat", recall_check=True)
    exactly = {"factory": "HNSW8,Flat", "recall": {"recall@10": 1.0, "recall@100": 1.0}}
    assert notices.says("recall", **exactly)
    notices.clear()
    encode(flat, output=tmp_path / "graph", index_type="HNSW8,Flat", recall_check=True)
    assert notices.says("recall", **exactly), "of an index that is up to date"
    assert read_info(graph).recall == {"recall@10": 1.0, "recall@100": 1.0}
    assert not read_info(flat).recall
    codes = encode(graph, output=tmp_path / "codes", index_type="binary")
    assert not read_info(codes).recall
    direct = encode(
        tiny, output=tmp_path / "direct", model=tiny_bert, dtype="fp32", index_type="binary", recall_check=True
    )
    assert 0 < read_info(direct).recall["recall@10"] <= 1


def test_every_index_type_is_declared_and_built() -> None:
    assert set(options.INDEX_TYPES) == {*faiss.FACTORIES, "auto"}
