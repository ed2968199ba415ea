"""`encode --from-vectors` reads flat, HNSW and IVF-flat indexes of FAISS, and refuses other files in one line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import faiss
import numpy as np
import pytest
from command import hybrid, listing, raises, refused

from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.collections import collection
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.external import read_external, read_vectors
from hybrid_cli.stages.encode import encode

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
    """Return vectors and ids of an index that FAISS wrote and that was read again."""
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
def test_other_files_are_refused_without_a_trace(kind: str, tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
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
    with pytest.raises(InputError) as caught:
        encode(tiny, from_vectors=tmp_path / "v.faiss", ids=tmp_path / "ids", output=tmp_path / "index")
    assert caught.value.code == "ids-twice"
    (tmp_path / "docs.tsv").write_text("".join(f"{100 + n}\tword\n" for n in range(len(docids))))
    assert hybrid("prepare", "files", tmp_path / "docs.tsv", "--output", tmp_path / "numbered").code == 0
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
        with pytest.raises(InputError) as caught:
            read_external(path)
        assert caught.value.code == "vectors-shape"
    np.save(path, np.array([{}, {}]), allow_pickle=True)
    np.save(tmp_path / "w.npy", VECTORS)
    whole = (tmp_path / "w.npy").read_bytes()
    for data in (path.read_bytes(), whole[:60], whole[:-1], whole.replace(b"(300, 16)", b"(300, -1)"), whole[:6]):
        path.write_bytes(data)
        with pytest.raises(InputError) as caught:
            read_external(path)
        assert caught.value.code == "vectors-unreadable"
