"""Vectors of other tools: read, indexed and searched."""

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import faiss
import numpy as np
import pytest
from command import Refusal, listing, raises, ran, refusal, refused

from hybrid_cli import runs
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.collections import collection
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.indexes.external import read_external, read_vectors
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.search import search

DIM, COUNT = 16, 300
IP, L2 = faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2
VECTORS = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype("float32")
EXACT = ["Flat", "HNSW8,Flat", "IVF4,Flat", "IVF4(HNSW8),Flat", "IDMap,Flat", "IDMap2,HNSW8,Flat", "IDMap,IVF4,Flat"]
REFUSED = ["RR16,Flat", "PCA8,Flat", "NSG8,Flat", "SQ8", "PQ4x4", "IVF4,PQ8x4", "HNSW8,SQ8", "IVF4,FlatPanorama4"]


def built(factory: str, metric: int = IP, ids: np.ndarray | None = None) -> Any:
    index = faiss.index_factory(DIM, factory, metric)
    index.train(VECTORS)
    if ids is None and not factory.startswith("IDMap"):
        index.add(VECTORS)
    else:
        index.add_with_ids(VECTORS, np.arange(COUNT) if ids is None else ids)
    return index


def stored(index: Any, folder: Path) -> tuple[np.ndarray, list[int]]:
    faiss.write_index(index, str(folder / "v.faiss"))
    vectors, ids = read_vectors(folder / "v.faiss")
    return vectors, list(range(COUNT)) if ids is None else ids.tolist()


@pytest.mark.parametrize("factory", EXACT)
def test_vectors_are_read_as_they_were(factory: str, tmp_path: Path) -> None:
    vectors, ids = stored(built(factory), tmp_path)
    np.testing.assert_array_equal(vectors, VECTORS)
    assert ids == list(range(COUNT))


@pytest.mark.parametrize("factory", ["IDMap,Flat", "IDMap2,HNSW8,Flat", "IDMap,IVF4,Flat", "IVF4,Flat"])
@pytest.mark.parametrize("kind", ["negative", "large", "shuffled", "gaps"])
def test_vectors_are_in_the_order_of_their_ids(factory: str, kind: str, tmp_path: Path) -> None:
    numbers = np.arange(COUNT)
    ids = {
        "negative": numbers - 150,
        "large": numbers * (1 << 54),
        "shuffled": np.random.default_rng(1).permutation(COUNT),
        "gaps": numbers[::-1] * 3,
    }[kind].copy()
    vectors, found = stored(built(factory, ids=ids), tmp_path)
    assert found == sorted(ids.tolist())
    np.testing.assert_array_equal(vectors, VECTORS[np.argsort(ids)])


@pytest.mark.parametrize("factory", REFUSED)
def test_other_indexes_are_refused(factory: str, tmp_path: Path) -> None:
    with raises("faiss-kind", path="v.faiss"):
        stored(built(factory), tmp_path)


@pytest.mark.parametrize("factory", ["IDMap,Flat", "IVF4,Flat"])
def test_ids_that_repeat_are_refused(factory: str, tmp_path: Path) -> None:
    with raises("faiss-id-twice", path="v.faiss"):
        stored(built(factory, ids=np.arange(COUNT) // 2), tmp_path)


OTHERS: dict[str, tuple[str, Any]] = {
    "l2": ("faiss-metric", lambda path: faiss.write_index(built("Flat", L2), path)),
    "l1": ("faiss-metric", lambda path: faiss.write_index(faiss.IndexFlat(DIM, faiss.METRIC_L1), path)),
    "empty": ("vectors-shape", lambda path: faiss.write_index(faiss.IndexFlatIP(DIM), path)),
    "untrained": ("vectors-shape", lambda path: faiss.write_index(faiss.index_factory(DIM, "IVF4,Flat", IP), path)),
    "binary": ("faiss-unreadable", lambda path: faiss.write_index_binary(faiss.IndexBinaryFlat(DIM), path)),
    "transform": ("faiss-unreadable", lambda path: faiss.write_VectorTransform(faiss.PCAMatrix(DIM, 8), path)),
    "text": ("faiss-unreadable", lambda path: Path(path).write_text("id\tvector\n")),
    "nothing": ("faiss-unreadable", lambda path: Path(path).write_bytes(b"")),
    "archive": ("vectors-archive", lambda path: Path(path).write_bytes(b"PK\x03\x04" + bytes(50))),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_refused_without_a_trace(kind: str, tiny: Path, workdir: Path) -> None:
    problem, write = OTHERS[kind]
    write("vectors.faiss")
    refused("encode", tiny, "--from-vectors", "vectors.faiss", "--output", "index", problem=problem)
    assert not [name for name in listing() if "index" in name]


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    """Sizes of petabytes in the head of a file are no allocation."""
    faiss.write_index(built("IDMap2,IVF4,Flat"), str(tmp_path / "whole.faiss"))
    whole, rng = (tmp_path / "whole.faiss").read_bytes(), Random(0)
    for size in (2**63 - 1, 2**40, 2**32 - 1, 0):
        data = bytearray(whole[: rng.choice([len(whole), rng.randrange(300, len(whole))])])
        for at in (rng.randrange(192) for _ in range(3)):
            data[at : at + 8] = size.to_bytes(8, "little")
        (tmp_path / "damaged.faiss").write_bytes(data)
        with contextlib.suppress(InputError):
            assert read_vectors(tmp_path / "damaged.faiss")[0].shape[1] == DIM


def test_the_ids_of_a_faiss_index_are_ids_of_documents(tiny: Path, tmp_path: Path) -> None:
    docids = collection.docids(tiny).to_list()
    vectors = VECTORS[: len(docids)]
    theirs = faiss.IndexIDMap(faiss.IndexFlatIP(DIM))
    theirs.add_with_ids(vectors, 100 + np.arange(len(docids))[::-1])
    faiss.write_index(theirs, str(tmp_path / "v.faiss"))
    found, ids = read_external(tmp_path / "v.faiss")
    assert ids is not None
    assert ids.to_list() == [str(100 + number) for number in range(len(docids))]
    np.testing.assert_array_equal(found, vectors[::-1])
    (tmp_path / "ids").write_text("".join(f"{name}\n" for name in docids))
    with raises("ids-twice"):
        encode(tiny, from_vectors=tmp_path / "v.faiss", ids=tmp_path / "ids", output=tmp_path / "index")
    (tmp_path / "docs.tsv").write_text("".join(f"{100 + n}\tword\n" for n in range(len(docids))))
    ran("prepare", "files", tmp_path / "docs.tsv", "--output", tmp_path / "numbered")
    index = encode(tmp_path / "numbered", from_vectors=tmp_path / "v.faiss", output=tmp_path / "index")
    np.testing.assert_array_equal(open_dense(index).vectors_of(np.arange(len(docids))), vectors[::-1])


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", ">f8", "longdouble"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_array_of_numpy_has_the_same_vectors(dtype: str, order: str, tiny: Path, tmp_path: Path) -> None:
    count = len(collection.docids(tiny))
    vectors = np.asarray(VECTORS[:count].astype("<f2").astype(dtype), order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "v.npy", vectors)
    index = encode(tiny, from_vectors=tmp_path / "v.npy", output=tmp_path / "index")
    np.testing.assert_array_equal(open_dense(index).vectors_of(np.arange(count)), vectors.astype("float32"))


def test_other_arrays_of_numpy_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    for array in (
        VECTORS[0],
        VECTORS.astype(complex),
        VECTORS.astype("int64"),
        VECTORS[None],
        np.zeros((3, 0)),
        np.float32(1),
    ):
        np.save(path, array)
        with raises("vectors-shape"):
            read_external(path)
    np.save(path, np.array([{}, {}]), allow_pickle=True)
    np.save(tmp_path / "w.npy", VECTORS)
    whole = (tmp_path / "w.npy").read_bytes()
    for data in (path.read_bytes(), whole[:60], whole[:-1], whole.replace(b"(300, 16)", b"(300, -1)"), whole[:6]):
        path.write_bytes(data)
        with raises("vectors-unreadable"):
            read_external(path)


def random_vectors(count: int, dim: int = 8) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, dim)).astype("float32")


def saved(path: Path, vectors: np.ndarray) -> Path:
    np.save(path, vectors)
    return path


def listed(path: Path, ids: list[str]) -> Path:
    path.write_text("".join(f"{name}\n" for name in ids), "utf-8")
    return path


def test_vectors_are_searched_by_query_vectors(tiny: Path, tmp_path: Path) -> None:
    docids = collection.docids(tiny).to_list()
    qids = collection.read_queries(tiny / "queries.test.parquet")["qid"].to_list()
    documents, queries = random_vectors(len(docids)), random_vectors(len(qids))
    vectors, ids = saved(tmp_path / "d.npy", documents[::-1]), listed(tmp_path / "d.txt", docids[::-1])
    index = encode(tiny, from_vectors=vectors, ids=ids, shard_size=5, output=tmp_path / "index")
    asked = encode(tiny, split="test", from_vectors=saved(tmp_path / "q.npy", queries), output=tmp_path / "queries")
    run = runs.read_run(search(index=index, queries=asked, hits=1, output=tmp_path / "run.parquet"))
    assert run["docid"].to_list() == [docids[row] for row in (queries @ documents.T).argmax(1)]
    assert open_dense(index).docids.to_list() == docids
    with raises("option-does-not-apply", option="split", value="train", path="queries"):
        search(split="train", index=index, queries=asked, output=tmp_path / "other.parquet")
    with raises("no-encoder"):
        search(tiny, split="test", index=index, output=tmp_path / "texts.parquet")


def test_with_their_model_vectors_are_searched_by_texts(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    made = encode(tiny, model=tiny_bert, dtype="fp32", output=tmp_path / "made")
    texts = collection.texts(tiny, collection.docids(tiny))
    encoder = TransformerEncoder.load(tiny_bert, device="cpu")
    vectors = encoder.encode_documents(texts["title"].to_list(), texts["text"].to_list())
    path = saved(tmp_path / "v.npy", vectors)
    index = encode(tiny, from_vectors=path, model=tiny_bert, dtype="fp32", output=tmp_path / "index")
    found = [
        runs.read_run(search(tiny, split="test", index=each, output=tmp_path / f"{each.name}.parquet"))
        for each in (made, index)
    ]
    assert found[0].select("qid", "docid").equals(found[1].select("qid", "docid"))
    with raises("other-width", value=8):
        encode(tiny, from_vectors=saved(path, random_vectors(12)), model=tiny_bert, output=tmp_path / "other")


def test_vectors_that_do_not_fit_are_refused(tiny: Path, tmp_path: Path) -> None:
    docids = collection.docids(tiny).to_list()
    right = random_vectors(12)
    infinite = right.copy()
    infinite[3, 2] = np.inf
    cases: list[tuple[np.ndarray, list[str] | None, Refusal]] = [
        (right[:11], None, refusal("missing-option", option="ids", value=11)),
        (right[:11], docids, refusal("number-of-values", path="ids.txt", value=12)),
        (right, [*docids[:-1], "nothing"], refusal("unknown-id", path="ids.txt", id="nothing")),
        (right[:11], docids[:11], refusal("unknown-id", path="corpus.parquet", id=docids[11])),
        (right, [*docids[:-1], docids[0]], refusal("duplicate-id", path="ids.txt", line=12, id=docids[0])),
        (infinite, None, refusal("values-not-finite")),
        (right.astype("float64") * 1e300, None, refusal("values-not-finite", id=docids[0], count=12)),
    ]
    for vectors, ids, problem in cases:
        file = listed(tmp_path / "ids.txt", ids) if ids else None
        with raises(problem, HybridError):
            encode(tiny, from_vectors=saved(tmp_path / "v.npy", vectors), ids=file, output=tmp_path / "index")
        assert not (tmp_path / "index").exists()
