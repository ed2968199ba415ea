"""Whatever FAISS writes is read right by `encode --from-vectors`, or refused in one line; nothing aborts."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import faiss
import numpy as np
import pytest
from command import hybrid, listing, refused

from hybrid_cli.collections import collection
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.faiss_file import Stored
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.stages.encode import encode
from hybrid_cli.workflows.external import read_external

DIM, COUNT = 16, 300
IP, L2 = faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2
VECTORS = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype("float32")
EXACT = [
    "Flat", "RR16,Flat", "Pad32,Flat", "HNSW8,Flat", "NSG8,Flat", "IVF4,Flat", "IVF4(HNSW8),Flat", "PQ4x4,RFlat",
    "Flat,RFlat", "IVF4,FlatPanorama4", "IDMap,Flat", "IDMap2,Flat", "IDMap2,HNSW8,Flat", "IDMap,IVF4,Flat",
]  # fmt: skip
APPROXIMATE = {  # largest error, relative to the vectors
    "SQ8": 0.02, "SQ6": 0.05, "SQ4": 0.2, "SQfp16": 0.001, "SQbf16": 0.01, "HNSW8,SQ8": 0.02, "NSG8,SQ8": 0.02,
    "IVF4,SQ8": 0.02, "IVF4,SQfp16": 0.001, "PQ4x4": 0.7, "PQ8x4": 0.4, "PQ4x4fs": 0.7, "OPQ4,PQ4x4": 0.7,
    "IVF4,PQ8x4": 0.4, "PCA15,Flat": 0.4, "PCAR15,IVF4,Flat": 0.4, "RQ4x4": 0.7, "LSQ4x4": 0.7, "PRQ2x2x4": 0.7,
    "PLSQ2x2x4": 0.7, "RQ4x4fs": 0.7, "LSQ4x4fs": 0.7, "IVF4,RQ4x4": 0.7, "IVF4,LSQ4x4": 0.7, "IVF4,PRQ2x2x4": 0.7,
    "IVF4,PLSQ2x2x4": 0.7, "RaBitQ": 0.8, "IVF4,RaBitQ": 0.8, "EDEN": 0.8, "IDMap,PQ8x4": 0.4,
}  # fmt: skip
REFUSED = {
    "PCAW8,Flat": "faiss-kind",  # whitening has no inverse in FAISS
    "IVF4,PQ4x4fs": "faiss-kind",  # a segmentation fault in FAISS
    "IVF4,PQ4x4fsr": "faiss-kind",
    "IVF4,RQ2x4fs": "faiss-kind",
    "IVF4,RaBitQfs": "faiss-kind",  # other vectors in FAISS
    "IVF4,FlatDedup": "faiss-kind",
}


def built(factory: str, metric: int = IP, ids: np.ndarray | None = None) -> Any:
    index = faiss.index_factory(DIM, factory, metric)
    index.train(VECTORS)
    if ids is None and not factory.startswith("IDMap"):
        index.add(VECTORS)
    else:
        index.add_with_ids(VECTORS, np.arange(COUNT) if ids is None else ids)
    return index


def stored(index: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors and ids of an index that FAISS wrote to bytes and read again."""
    found = Stored(faiss.deserialize_index(faiss.serialize_index(index)))
    return found.at(np.arange(COUNT)), found.ids


@pytest.mark.parametrize("factory", EXACT)
def test_exact_vectors_are_read_as_they_were(factory: str) -> None:
    vectors, ids = stored(built(factory))
    np.testing.assert_allclose(vectors, VECTORS, atol=1e-5)
    assert ids.tolist() == list(range(COUNT))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("factory", APPROXIMATE)
def test_codes_are_read_as_the_vectors_that_they_stand_for(factory: str) -> None:
    vectors, _ = stored(built(factory))
    assert np.linalg.norm(vectors - VECTORS) < APPROXIMATE[factory] * np.linalg.norm(VECTORS)


@pytest.mark.parametrize("factory", ["IDMap,Flat", "IDMap2,Flat", "IDMap,IVF4,Flat", "IVF4,Flat", "IDMap,PCA15,Flat"])
@pytest.mark.parametrize("kind", ["negative", "large", "shuffled", "gaps"])
def test_vectors_are_in_the_order_of_their_ids(factory: str, kind: str) -> None:
    numbers = np.arange(COUNT)
    ids = {
        "negative": numbers - 150,
        "large": numbers * (1 << 54),
        "shuffled": np.random.default_rng(1).permutation(COUNT),
        "gaps": numbers[::-1] * 3,
    }[kind].copy()
    vectors, found = stored(built(factory, ids=ids))
    assert found.tolist() == sorted(ids.tolist())
    expected = VECTORS[np.argsort(ids)]
    np.testing.assert_allclose(vectors, expected, atol=2.0 if "PCA" in factory else 0)
    assert np.linalg.norm(vectors - expected) < 0.4 * np.linalg.norm(expected)


@pytest.mark.parametrize("factory", REFUSED)
def test_vectors_that_faiss_does_not_return_are_refused(factory: str) -> None:
    with pytest.raises(InputError) as caught:
        stored(built(factory))
    assert caught.value.code == REFUSED[factory]


def test_ids_that_repeat_are_refused() -> None:
    for factory in ("IDMap,Flat", "IVF4,Flat"):
        with pytest.raises(InputError) as caught:
            stored(built(factory, ids=np.arange(COUNT) // 2))
        assert caught.value.code == "faiss-id-twice"


def write_on_disk(path: str) -> None:
    """Write an index whose vectors are in a file that it names."""
    index, lists = built("IVF4,Flat"), faiss.OnDiskInvertedLists(4, 4 * DIM, "lists.ivfdata")
    parts = faiss.InvertedListsPtrVector()  # type: ignore[attr-defined]
    parts.push_back(index.invlists)
    lists.merge_from_multiple(parts.data(), parts.size())
    index.replace_invlists(lists)
    faiss.write_index(index, path)


OTHERS: dict[str, tuple[str, Any]] = {
    "l2": ("faiss-metric", lambda path: faiss.write_index(built("Flat", L2), path)),
    "l1": ("faiss-metric", lambda path: faiss.write_index(faiss.IndexFlat(DIM, faiss.METRIC_L1), path)),
    "empty": ("vectors-shape", lambda path: faiss.write_index(faiss.IndexFlatIP(DIM), path)),
    "untrained": ("vectors-shape", lambda path: faiss.write_index(faiss.index_factory(DIM, "PQ4", IP), path)),
    "binary": ("faiss-unreadable", lambda path: faiss.write_index_binary(faiss.IndexBinaryFlat(DIM), path)),
    "transform": ("faiss-unreadable", lambda path: faiss.write_VectorTransform(faiss.PCAMatrix(DIM, 8), path)),
    "text": ("faiss-unreadable", lambda path: Path(path).write_text("id\tvector\n")),
    "nothing": ("faiss-unreadable", lambda path: Path(path).write_bytes(b"")),
    "on-disk": ("faiss-on-disk-lists", write_on_disk),
    "archive": ("vectors-archive", lambda path: Path(path).write_bytes(b"PK\x03\x04" + bytes(50))),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_refused_without_a_trace(kind: str, tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    problem, write = OTHERS[kind]
    write("vectors.faiss")
    refused("encode", tiny, "--from-vectors", "vectors.faiss", "--output", "index", problem=problem)
    assert not [name for name in listing() if "index" in name]


def refusal(path: Path) -> InputError | None:
    try:
        read_external(path)
    except InputError as error:
        return error
    return None


def test_damaged_files_end_in_one_line(tmp_path: Path) -> None:
    faiss.write_index(built("IDMap2,IVF4,PQ8x4"), str(tmp_path / "whole.faiss"))
    whole, rng = (tmp_path / "whole.faiss").read_bytes(), Random(0)
    for _ in range(4):
        data = bytearray(whole)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data))]
        for _ in range(3):
            at = rng.randrange(min(len(data), 200) - 8)
            data[at : at + 8] = rng.choice([2**63 - 1, 2**40, 2**32 - 1, 0]).to_bytes(8, "little")
        (tmp_path / "damaged.faiss").write_bytes(data)
        if (error := refusal(tmp_path / "damaged.faiss")) is not None:
            assert error.code.startswith(("faiss-", "vectors-"))
            assert "\n" not in str(error)


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
    for array in (VECTORS[0], VECTORS.astype(complex), VECTORS > 0, VECTORS[None], np.zeros((3, 0)), np.float32(1)):
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
