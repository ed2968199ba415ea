"""Vectors of other tools: `.npy` files and FAISS indexes, read, matched to ids, and stored as shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import console
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.indexes.faiss import check_metric, load_faiss, reason
from hybrid_cli.indexes.options import Shards
from hybrid_cli.indexes.shards import Advance, check_finite, shard_path, write_shard
from hybrid_cli.inputs.files import opened, refuse_special, text_lines

_NUMPY, _ZIP = b"\x93NUMPY", b"PK"  # first bytes


def read_external(path: Path) -> tuple[np.ndarray, pl.Series | None]:
    """Return the vectors [n, d] of a `.npy` file (mapped into memory) or of a FAISS index, and the ids of its rows.

    The ids are None for rows without ids, and for a FAISS index whose ids are the numbers from 0.

    Raises:
        InputError: not such a file, not two-dimensional floating-point numbers, no rows, or see
            `read_vectors`.
    """
    refuse_special(path)
    if not path.is_file():
        raise path_error(path, "no such file; pass a .npy file or a FAISS index", code="no-such-file")
    with opened(path) as file:
        begin = file.read(len(_NUMPY))
    if begin == _NUMPY or path.suffix == ".npy":
        vectors, ids = _from_numpy(path), None
    elif begin.startswith(_ZIP):
        raise path_error(path, "is an archive (.npz, .zip); save its array with np.save", code="vectors-archive")
    else:
        vectors, ids = read_vectors(path)
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or 0 in vectors.shape:
        shape = " x ".join(map(str, vectors.shape)) or "a single value"
        problem = f"{shape} of {vectors.dtype}; needs rows of floating-point numbers"
        raise path_error(path, problem, code="vectors-shape")
    return vectors, None if ids is None else pl.Series("id", ids).cast(pl.String)


def _from_numpy(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array if isinstance(array, np.ndarray) else np.empty(())
    except (ValueError, OSError, EOFError, OverflowError, MemoryError, SyntaxError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise path_error(path, f"not a NumPy array ({why})", code="vectors-unreadable") from None


def rows_of(
    count: int, own: pl.Series | None, path: Path, ids: Path | None, wanted: pl.Series, texts: Path
) -> np.ndarray:
    """Return the row of each wanted id.

    Args:
        count: number of vectors.
        own: ids in the file of the vectors, if it has some.
        path: file of the vectors, for messages.
        ids: file with one id per line, in the order of the vectors; None if they have the order of `wanted`, or `own`.
        wanted: ids of the documents or queries.
        texts: file of the documents or queries, for messages.

    Raises:
        InputError: another number of vectors or ids, an id twice, or ids without a vector or a text.
    """
    if own is not None:
        if ids is not None:
            raise option_error("ids", None, f"{path} has ids of its own ({own[0]}, ...); omit it", code="ids-twice")
        return _positions(own, path, wanted, texts)
    if ids is None:
        if count != len(wanted):
            problem = f"{count:,} vectors for {len(wanted):,} ids; pass --ids FILE"
            raise path_error(path, problem, code="missing-option", option="ids", value=count)
        return np.arange(count)
    listed = pl.Series("id", text_lines(ids), pl.String)
    if len(listed) != count:
        problem = f"{len(listed):,} ids for {count:,} vectors; needs one per line"
        raise path_error(ids, problem, code="number-of-values", value=len(listed))
    if listed.n_unique() < len(listed):
        line = int(listed.is_first_distinct().arg_min() or 0)
        problem = f"line {line + 1}: id '{listed[line]}' occurs twice"
        raise path_error(ids, problem, code="duplicate-id", line=line + 1, id=listed[line])
    return _positions(listed, ids, wanted, texts)


def _positions(listed: pl.Series, source: Path, wanted: pl.Series, texts: Path) -> np.ndarray:
    """Return the position of each wanted id in `listed`, which has the same ids."""
    for some, others, where, lack in ((listed, wanted, source, texts), (wanted, listed, texts, source)):
        unknown = some.filter(~some.is_in(others.implode()))
        if len(unknown):
            problem = f"{console.counted(id=len(unknown))} not in {lack} ('{unknown[0]}', ...)"
            raise path_error(where, problem, code="unknown-id", id=unknown[0])
    joined = pl.DataFrame({"id": wanted}).join(
        listed.to_frame().with_row_index("row"), on="id", how="left", maintain_order="left"
    )
    return joined["row"].to_numpy()


def write_external(
    folder: Path, vectors: np.ndarray, source: Path, rows: np.ndarray, ids: pl.Series, how: Shards, advance: Advance
) -> None:
    """Write vectors as shards, in the order of `ids`.

    Args:
        folder: folder of the shards.
        vectors: [n, d]
        source: their file, for messages.
        rows: [n] row of each id.
        ids: [n]
        how: size of shards, type of the stored vectors.
        advance: called with the number of written vectors.

    Raises:
        InputError: a vector of the file is not finite.
        HybridError: a vector is not finite in the type of the stored vectors.
    """
    for number, begin in enumerate(range(0, len(ids), how.shard_size)):
        names = ids.slice(begin, how.shard_size)
        given = vectors[rows[begin : begin + len(names)]]
        if not (finite := np.isfinite(given).all(1)).all():
            at = int(finite.argmin())
            problem = f"row {rows[begin + at] + 1:,} is not finite; correct it"
            raise path_error(source, problem, code="values-not-finite", id=names[at])
        with np.errstate(over="ignore"):  # an overflow is infinite, which is refused
            part = given.astype(how.vector_dtype)
        check_finite(part, names, "id", "remove it, or use --vector-dtype float32")
        write_shard(shard_path(folder, number), names.to_arrow(), part, truncated=0)
        advance(len(names))


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
