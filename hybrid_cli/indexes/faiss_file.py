"""Vectors of a FAISS index that another tool wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybrid_cli.errors import InputError, path_error
from hybrid_cli.indexes.faiss import check_metric, load_faiss, reason

Ids = npt.NDArray[np.int64]
_NUMBERED = ("IndexFlat", "IndexFlatIP", "IndexHNSWFlat")  # whose vectors are numbered from 0
_READ = "flat, HNSW and IVF-flat indexes are read, also with ids (IDMap)"


def read_vectors(path: Path) -> tuple[npt.NDArray[np.float32], Ids | None]:
    """Return the vectors [n, d] of an index of inner products, and the ids [n] of its rows, ascending.

    The ids are None, and the rows in the order of the ids, if these are the numbers from 0.

    Raises:
        InputError: not a FAISS index, another metric, an id twice, or an index of another kind.
    """
    faiss = load_faiss()
    try:
        index = faiss.read_index(os.fspath(path))
        check_metric(index, "the index")
        vectors, ids = _stored(index, path)
    except InputError as error:
        raise path_error(path, str(error).removeprefix(f"{path}: "), code=error.code) from None
    except (RuntimeError, MemoryError) as error:
        why = reason(error) if isinstance(error, RuntimeError) else "it needs more memory than there is"
        raise path_error(path, f"no readable FAISS index ({why}); use .npy", code="faiss-unreadable") from None
    if len(ids) != len(vectors):
        raise path_error(path, f"has {len(vectors):,} vectors and {len(ids):,} ids; use .npy", code="faiss-damaged")
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if len(twice := ids[1:][ids[1:] == ids[:-1]]):
        raise path_error(path, f"has id {twice[0]} twice; keep one of the vectors", code="faiss-id-twice")
    numbered = not len(ids) or (ids[0] == 0 and ids[-1] == len(ids) - 1)
    return vectors[order], None if numbered else ids


def _stored(index: Any, path: Path) -> tuple[npt.NDArray[np.float32], Ids]:
    """Return vectors and ids in the order of the file."""
    faiss = load_faiss()
    name = type(index).__name__
    if name in ("IndexIDMap", "IndexIDMap2"):
        vectors, inner = _stored(faiss.downcast_index(index.index), path)
        return vectors[np.argsort(inner)], faiss.vector_to_array(index.id_map)
    if name in _NUMBERED:
        return index.reconstruct_n(0, index.ntotal), np.arange(index.ntotal)
    if name != "IndexIVFFlat":
        raise path_error(path, f"is FAISS's {name}; {_READ}; use .npy", code="faiss-kind")
    lists = faiss.downcast_InvertedLists(index.invlists)
    parts, ids = [np.zeros((0, index.d), np.float32)], [np.zeros(0, np.int64)]
    for number in range(lists.nlist):
        if size := lists.list_size(number):  # those of an empty list are null pointers
            codes = faiss.rev_swig_ptr(lists.get_codes(number), size * index.d * 4)
            parts.append(codes.view(np.float32).reshape(size, index.d).copy())
            ids.append(faiss.rev_swig_ptr(lists.get_ids(number), size).copy())
    return np.concatenate(parts), np.concatenate(ids)
