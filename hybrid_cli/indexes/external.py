"""Vectors that other tools computed: a NumPy file or a FAISS index, with the ids of its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from hybrid_cli import console
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.faiss import check_metric, load_faiss, reason
from hybrid_cli.indexes.shards import Advance, check_finite, shard_path, write_shard
from hybrid_cli.input_files import refuse_special, text_lines
from hybrid_cli.settings import Encode


def read_external(path: Path) -> np.ndarray:
    """Return the vectors [n, d] of a `.npy` file (mapped into memory) or of a FAISS index.

    Raises:
        InputError: not such a file, not two-dimensional floating-point numbers, no rows, or a FAISS index that cannot
            return its vectors or does not measure the inner product.
    """
    refuse_special(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; pass a .npy file or a FAISS index")
    vectors = _from_numpy(path) if path.suffix == ".npy" else _from_faiss(path)
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or 0 in vectors.shape:
        shape = " x ".join(map(str, vectors.shape)) or "a single value"
        raise InputError(f"{path}: {shape} of {vectors.dtype}; rows of floating-point numbers are needed")
    return vectors


def _from_numpy(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a NumPy array ({str(error).splitlines()[0]})") from None


def _from_faiss(path: Path) -> np.ndarray:
    faiss = load_faiss()
    try:
        index = faiss.read_index(str(path))
        check_metric(index, str(path))
        if isinstance(faiss.downcast_index(index), faiss.IndexIVF):
            index.make_direct_map()
        found: np.ndarray = index.reconstruct_n(0, index.ntotal)
    except RuntimeError as error:
        raise InputError(f"{path}: no FAISS index whose vectors can be read ({reason(error)}); use .npy") from None
    return found


def rows_of(vectors: np.ndarray, path: Path, ids: Path | None, wanted: pl.Series, texts: Path) -> np.ndarray:
    """Return the row of each wanted id.

    Args:
        vectors: [n, d]
        path: file of the vectors, for messages.
        ids: file with one id per line, in the order of the vectors; None if they have the order of `wanted`.
        wanted: ids of the documents or queries.
        texts: file of the documents or queries, for messages.

    Raises:
        InputError: another number of vectors or ids, an id twice, or ids without a vector or a text.
    """
    if ids is None:
        if len(vectors) != len(wanted):
            raise InputError(f"{path}: {len(vectors):,} vectors, {texts} has {len(wanted):,} ids; pass --ids FILE")
        return np.arange(len(vectors))
    listed = pl.Series("id", text_lines(ids), pl.String)
    if len(listed) != len(vectors):
        raise InputError(f"{ids}: {len(listed):,} ids, {path} has {len(vectors):,} vectors; one id per line is needed")
    if listed.n_unique() < len(listed):
        line = int(listed.is_first_distinct().arg_min() or 0)
        raise InputError(f"{ids}, line {line + 1}: id '{listed[line]}' occurs twice")
    for some, others, where, lack in ((listed, wanted, ids, texts), (wanted, listed, texts, ids)):
        unknown = some.filter(~some.is_in(others.implode()))
        if len(unknown):
            raise InputError(f"{where}: {console.counted(id=len(unknown))} not in {lack} ('{unknown[0]}', ...)")
    found = pl.DataFrame({"id": wanted}).join(
        listed.to_frame().with_row_index("row"), on="id", how="left", maintain_order="left"
    )
    return found["row"].to_numpy()


def write_external(
    folder: Path, vectors: np.ndarray, rows: np.ndarray, ids: pl.Series, settings: Encode, advance: Advance
) -> None:
    """Write vectors as shards, in the order of `ids`.

    Args:
        folder: folder of the shards.
        vectors: [n, d]
        rows: [n] row of each id.
        ids: [n]
        settings: size of shards, type of the stored vectors.
        advance: called with the number of written vectors.

    Raises:
        InputError: a vector of the file is not finite.
        HybridError: a vector is not finite in the type of the stored vectors.
    """
    for number, begin in enumerate(range(0, len(ids), settings.shard_size)):
        names = ids.slice(begin, settings.shard_size)
        given = vectors[rows[begin : begin + len(names)]]
        if not (finite := np.isfinite(given).all(1)).all():
            at = int(finite.argmin())
            raise InputError(
                f"{settings.from_vectors}: row {rows[begin + at] + 1:,} (id {names[at]}) is not finite; correct the "
                "file"
            )
        with np.errstate(over="ignore"):  # an overflow is infinite, which is refused
            part = given.astype(settings.vector_dtype)
        check_finite(part, names, "id", "remove it, or use --vector-dtype float32")
        write_shard(shard_path(folder, number), names.to_arrow(), part, truncated=0)
        advance(len(names))
