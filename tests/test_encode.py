"""`encode`: whole shards, whole indexes, and what is stored with them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from hybrid_cli import artifacts, indexes
from hybrid_cli.artifacts import Kind
from hybrid_cli.config import Encoding, VectorIndex
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.stages.encode import encode

EXACT = Encoding(dtype="fp32")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of an artifact but its manifest, which holds the duration."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def corpus(folder: Path, documents: int) -> Path:
    """A corpus of that many documents without a manifest, as anybody may bring one."""
    rows = range(documents)
    table = pa.table(
        {
            "docid": [f"d{row}" for row in rows],
            "title": [f"Number {row}" for row in rows],
            "text": [f"{row} is the number after {row - 1} " * (1 + row % 5) for row in rows],
        }
    )
    pq.write_table(table, folder / "corpus.parquet")
    return folder / "corpus.parquet"


def test_the_index_holds_the_encoders_vectors_in_the_order_of_the_corpus(tiny: Path, tiny_bert: Path, tmp_path: Path):
    folder = encode(tiny, output=tmp_path / "index", model=str(tiny_bert), encoding=Encoding("fp32", shard_size=5))
    assert [path.name for path in indexes.shards(folder)] == [f"part-0000{number}.parquet" for number in range(3)]
    index = indexes.DenseIndex.open(folder)
    corpus = pq.read_table(tiny / "corpus.parquet")
    assert index.docids.to_list() == corpus["docid"].to_pylist() == indexes.read_ids(folder).to_list()
    encoder = TransformerEncoder.load(tiny_bert, device="cpu")
    wanted = encoder.encode_documents(corpus["title"].to_pylist(), corpus["text"].to_pylist())
    np.testing.assert_allclose(index.vectors_of(np.arange(12)), wanted, atol=1e-5)


def test_the_manifest_states_the_contract_and_the_weights(tiny: Path, tiny_bert: Path, tmp_path: Path):
    changed = {"pooling": "cls", "doc_max_len": 8, "doc_prefix": "passage: ", "query_max_len": None}
    folder = encode(tiny, output=tmp_path / "index", model=str(tiny_bert), encoding=EXACT, contract=changed)
    manifest = artifacts.read_manifest(folder, Kind.DENSE_INDEX)
    encoder = TransformerEncoder.load(tiny_bert, pooling="cls", doc_max_len=8, doc_prefix="passage: ")
    assert manifest.counts["contract"] == encoder.contract.to_dict()
    assert manifest.counts["encoder"] == encoder.fingerprint
    assert manifest.options["contract"] == {"pooling": "cls", "doc_max_len": 8, "doc_prefix": "passage: "}


def test_cut_texts_are_counted(tmp_path: Path, tiny_bert: Path):
    table = pa.table(
        {"docid": ["short", "exact", "long"], "title": [""] * 3, "text": ["a", "a b c d e f", "a b c d e f g"]}
    )
    pq.write_table(table, tmp_path / "corpus.parquet")
    for size in (1, 3):
        folder = encode(
            tmp_path / "corpus.parquet",
            output=tmp_path / f"index{size}",
            model=str(tiny_bert),
            encoding=Encoding("fp32", shard_size=size),
            contract={"doc_max_len": 8},  # with [CLS] and [SEP]
        )
        assert artifacts.read_manifest(folder).counts["truncated"] == 1


def test_a_killed_run_goes_on_with_the_first_missing_shard(tmp_path: Path, tiny_bert: Path):
    source = corpus(tmp_path, 3000)
    output = tmp_path / "index"
    shards = tmp_path / ".index.partial" / "vectors"
    command = [
        sys.executable,
        "-m",
        "hybrid_cli",
        "encode",
        str(source),
        "--model",
        str(tiny_bert),
        "--output",
        str(output),
    ]
    command += ["--shard-size", "100", "--dtype", "fp32", "--threads", "1", "--quiet"]
    process = subprocess.Popen(command)
    while len(list(shards.glob("part-*.parquet"))) < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    whole = {path: path.stat().st_mtime_ns for path in shards.glob("part-*.parquet")}
    assert 2 <= len(whole) < 30
    assert not output.exists()
    begun = min(path.stat().st_mtime_ns for path in whole)
    subprocess.run(command, check=True)
    for path, written in whole.items():
        assert (output / "vectors" / path.name).stat().st_mtime_ns == written >= begun
    plain = encode(
        source, output=tmp_path / "plain", model=str(tiny_bert), encoding=Encoding("fp32", shard_size=100), threads=1
    )
    assert contents(output) == contents(plain)


def test_the_same_command_again_does_nothing_and_elsewhere_gives_the_same_bytes(
    tiny: Path, tiny_bert: Path, tmp_path: Path
):
    one = encode(tiny, output=tmp_path / "one", model=str(tiny_bert), encoding=EXACT)
    written = (one / "index.faiss").stat().st_mtime_ns
    encode(tiny, output=tmp_path / "one", model=str(tiny_bert), encoding=EXACT)
    assert (one / "index.faiss").stat().st_mtime_ns == written
    two = encode(tiny, output=tmp_path / "two", model=str(tiny_bert), encoding=EXACT)
    assert contents(one) == contents(two)
    assert artifacts.fingerprint(one) == artifacts.fingerprint(two)


def test_queries_of_a_split_become_vectors_without_an_index(tiny: Path, tiny_bert: Path, tmp_path: Path):
    folder = encode(tiny, output=tmp_path / "queries", model=str(tiny_bert), split="test", encoding=EXACT)
    assert artifacts.read_manifest(folder).kind == Kind.VECTORS
    assert indexes.read_ids(folder).to_list() == ["001", "002", "003", "004", "005", "006"]
    assert not (folder / "index.faiss").exists()


def test_half_precision_stays_close_to_fp32(tiny: Path, tmp_path: Path):
    exact = encode(tiny, output=tmp_path / "fp32", encoding=EXACT)
    wanted = indexes.read_shard(indexes.shards(exact)[0])
    for dtype in ("bf16", "fp16"):
        folder = encode(tiny, output=tmp_path / dtype, encoding=Encoding(dtype, "float16"))  # type: ignore[arg-type]
        found = indexes.read_shard(indexes.shards(folder)[0])
        assert ((found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)).min() > 0.999
        assert pq.read_schema(indexes.shards(folder)[0]).field("vector").type == pa.list_(pa.float16(), 384)


def test_the_size_of_batches_changes_vectors_by_rounding_only(tiny: Path, tiny_bert: Path, tmp_path: Path):
    found = []
    for tokens in (1, 64, 100_000):
        folder = encode(
            tiny, output=tmp_path / str(tokens), model=str(tiny_bert), encoding=Encoding("fp32", batch_tokens=tokens)
        )
        found.append(indexes.read_shard(indexes.shards(folder)[0]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)


def test_a_vector_that_is_not_finite_stops_the_run_and_names_the_document(tiny: Path, tiny_bert: Path, tmp_path: Path):
    broken = shutil.copytree(tiny_bert, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    sodium = TransformerEncoder.load(tiny_bert).document_tower.tokenizer("sodium")["input_ids"][1]
    weights["embeddings.word_embeddings.weight"][sodium] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HybridError, match=r"^document NA: its vector is not finite, and 1 more like it"):
        encode(tiny, output=tmp_path / "index", model=str(broken), encoding=EXACT)
    assert not (tmp_path / "index").exists()


def test_an_index_that_cannot_be_is_refused_before_anything_is_encoded(tiny: Path, tiny_bert: Path, tmp_path: Path):
    with pytest.raises(InputError, match="--factory Nonsense: FAISS makes no such index of 16 dimensions"):
        encode(tiny, output=tmp_path / "index", model=str(tiny_bert), index=VectorIndex(factory="Nonsense"))
    assert not list(tmp_path.iterdir())


def test_nothing_to_encode_is_refused(tmp_path: Path, tiny_bert: Path):
    with pytest.raises(InputError, match="nothing to encode: name a collection"):
        encode(None, output=tmp_path / "index", model=str(tiny_bert))
    pq.write_table(artifacts.SCHEMAS[Kind.CORPUS].empty_table(), tmp_path / "corpus.parquet")
    with pytest.raises(InputError, match="no documents"):
        encode(tmp_path / "corpus.parquet", output=tmp_path / "index", model=str(tiny_bert))


def test_another_index_over_the_same_vectors_encodes_nothing(tiny: Path, tiny_bert: Path, tmp_path: Path):
    flat = encode(tiny, output=tmp_path / "flat", model=str(tiny_bert), encoding=EXACT)
    graph = encode(flat, output=tmp_path / "graph", index=VectorIndex("hnsw", m=8))
    direct = encode(
        tiny, output=tmp_path / "direct", model=str(tiny_bert), encoding=EXACT, index=VectorIndex("hnsw", m=8)
    )
    assert contents(graph) == contents(direct)
    manifest, made = artifacts.read_manifest(graph), artifacts.read_manifest(direct)
    assert manifest.counts == made.counts
    assert manifest.options == made.options
    assert set(manifest.inputs) == {"vectors", "corpus"}
    with pytest.raises(InputError, match="--factory Nonsense"):
        encode(flat, output=tmp_path / "none", index=VectorIndex(factory="Nonsense"))
    for second in ({}, {"beside": flat}):
        with pytest.raises(InputError, match="--pooling: means nothing to vectors that are there already"):
            encode(flat, output=tmp_path / "none", contract={"pooling": "cls"}, **second)


def test_recall_is_measured_kept_and_said_but_not_of_a_flat_index(
    tiny: Path, tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flat = encode(tiny, output=tmp_path / "flat", model=str(tiny_bert), encoding=EXACT, recall_check=True)
    assert "recall@" not in capsys.readouterr().err
    graph = encode(flat, output=tmp_path / "graph", index=VectorIndex("hnsw", m=8), recall_check=True)
    assert "HNSW8,Flat: recall@10 1.0000, recall@100 1.0000 of exact search for 12 documents" in capsys.readouterr().err
    encode(flat, output=tmp_path / "graph", index=VectorIndex("hnsw", m=8), recall_check=True)
    assert "recall@10 1.0000" in capsys.readouterr().err, "an index that is up to date"
    kept = artifacts.read_manifest(graph).counts
    assert (kept["recall@10"], kept["recall@100"]) == (1.0, 1.0)
    assert not any(name.startswith("recall") for name in artifacts.read_manifest(flat).counts)
    codes = encode(graph, output=tmp_path / "codes", index=VectorIndex("binary"))
    assert not any(name.startswith("recall") for name in artifacts.read_manifest(codes).counts)
    direct = encode(
        tiny, output=tmp_path / "direct", model=str(tiny_bert), encoding=EXACT, index=VectorIndex("binary"),
        recall_check=True,
    )  # fmt: skip
    assert 0 < artifacts.read_manifest(direct).counts["recall@10"] <= 1
