"""Vectors of a FAISS index that another tool wrote, read in a process of its own.

An error inside FAISS, such as a damaged file or a vector that an index cannot return, may abort the process that reads
the file. The process sends one line of JSON, then the ids if they are not the numbers of the rows, then the vectors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import numpy.typing as npt

from hybrid_cli import memory
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.indexes.faiss import check_metric, load_faiss, reason, suppress_output

Ids = npt.NDArray[np.int64]
_AT_ONCE = 1 << 14  # vectors
_ROOM, _OF_THREAD = 2 << 30, 96 << 20  # bytes of the process, in addition to several times the size of the file
_ORTHONORMAL = 1e-3
_PLAIN = (  # indexes whose vectors are numbered from 0
    "IndexFlat", "IndexFlatIP", "IndexScalarQuantizer", "IndexPQ", "IndexPQFastScan", "IndexHNSWFlat", "IndexHNSWSQ",
    "IndexNSGFlat", "IndexNSGSQ", "IndexNNDescentFlat", "IndexRefine", "IndexRefineFlat", "IndexResidualQuantizer",
    "IndexLocalSearchQuantizer", "IndexProductResidualQuantizer", "IndexProductLocalSearchQuantizer",
    "IndexResidualQuantizerFastScan", "IndexLocalSearchQuantizerFastScan", "IndexRaBitQ", "IndexRaBitQFastScan",
    "IndexEDEN",
)  # fmt: skip
_LISTS = (  # indexes of inverted lists, which store an id with each vector
    "IndexIVFFlat", "IndexIVFFlatPanorama", "IndexIVFPQ", "IndexIVFScalarQuantizer", "IndexIVFResidualQuantizer",
    "IndexIVFLocalSearchQuantizer", "IndexIVFProductResidualQuantizer", "IndexIVFProductLocalSearchQuantizer",
    "IndexIVFRaBitQ", "IndexIVFEDEN",
)  # fmt: skip


# ----------------------------------------------------------------------------------------------- in the calling process


def read_vectors(path: Path) -> tuple[npt.NDArray[np.float32], Ids | None]:
    """Return the vectors [n, d] of an index of inner products, and the ids [n] of its rows.

    The ids are None, and the rows in the order of the ids, if these are the numbers from 0.

    Raises:
        InputError: not a FAISS index, another metric, an id twice, or an index that cannot return its vectors.
    """
    threads = str(load_faiss().omp_get_max_threads())
    command = [sys.executable, "-m", __name__, str(path)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # FAISS prints there before it aborts
        env={**os.environ, "OMP_NUM_THREADS": threads},
    ) as process:
        assert process.stdout is not None
        head = process.stdout.readline()
        if not head:
            _refuse_failed(path, process)
        facts = json.loads(head)
        if "problem" in facts:
            raise path_error(path, f"{facts['problem']}", code=facts["code"])
        ids = np.empty(facts["vectors"] if facts["ids"] else 0, np.int64)
        vectors = np.empty((facts["vectors"], facts["dim"]), np.float32)
        if not all(_fill(array, process.stdout) for array in (ids, vectors)):
            _refuse_failed(path, process)
    return vectors, ids if facts["ids"] else None


def _fill(array: np.ndarray, stream: IO[bytes]) -> bool:
    """Read an array; return False if the stream ends before."""
    rest = array.reshape(-1).view(np.uint8).data
    while len(rest) and (count := stream.readinto(rest)):  # type: ignore[attr-defined]
        rest = rest[count:]
    return not len(rest)


def _refuse_failed(path: Path, process: subprocess.Popen[bytes]) -> NoReturn:
    status = process.wait()
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    raise path_error(path, f"FAISS failed to read it ({ended}); pass a .npy file", code="faiss-failed")


# --------------------------------------------------------------------------------------------------- in its own process


class Stored:
    """The vectors of an index, by their position in the order of their ids.

    Attributes:
        ids: [n] ids, ascending.
    """

    def __init__(self, index: Any):
        """Find the ids.

        Raises:
            InputError: see `read_vectors`; the message does not name the file.
        """
        faiss = load_faiss()
        self._owner = index  # frees the memory of the index
        self._index = index = faiss.downcast_index(index)
        self._inner: Stored | None = None
        self._chain: list[Any] = []
        name, count = type(index).__name__, index.ntotal
        if name in ("IndexIDMap", "IndexIDMap2"):
            self._inner = Stored(index.index)
            self.ids = faiss.vector_to_array(index.id_map)
        elif name == "IndexPreTransform":
            self._inner = Stored(index.index)
            self._chain = [faiss.downcast_VectorTransform(index.chain.at(i)) for i in range(index.chain.size())]
            _check_invertible(self._chain)
            self.ids = self._inner.ids
        elif name in _LISTS:
            self.ids = _ids_of_lists(index)
        elif name in _PLAIN:
            self.ids = np.arange(count)
        else:
            raise InputError(f"the vectors of FAISS's {name} cannot be read; use .npy", code="faiss-kind")
        if len(self.ids) != count or (self._inner is not None and len(self._inner.ids) != count):
            raise InputError(f"{name} has {count:,} vectors and {len(self.ids):,} ids", code="faiss-damaged")
        self._order = np.argsort(self.ids, kind="stable") if name in ("IndexIDMap", "IndexIDMap2") else None
        self.ids = np.sort(self.ids)
        if len(same := self.ids[1:][self.ids[1:] == self.ids[:-1]]):
            raise InputError(f"the index has id {same[0]} twice; keep one of the vectors", code="faiss-id-twice")
        if name in _LISTS:
            index.set_direct_map_type(faiss.DirectMap.NoMap)  # the file's own may be damaged
            index.set_direct_map_type(faiss.DirectMap.Array if self.numbered else faiss.DirectMap.Hashtable)

    @property
    def numbered(self) -> bool:
        """Whether the ids are the numbers from 0."""
        return bool(len(self.ids) == 0 or (self.ids[0] == 0 and self.ids[-1] == len(self.ids) - 1))

    def at(self, positions: Ids) -> npt.NDArray[np.float32]:
        """Return the vectors [k, d] at positions [k]."""
        if self._inner is not None:
            rows = self._inner.at(positions if self._order is None else self._order[positions])
            for transform in reversed(self._chain):
                rows = transform.reverse_transform(rows)
            return rows
        vectors: npt.NDArray[np.float32] = self._index.reconstruct_batch(self.ids[positions])
        return vectors


def _ids_of_lists(index: Any) -> Ids:
    """Return the ids in the order of the lists."""
    faiss = load_faiss()
    lists = faiss.downcast_InvertedLists(index.invlists)
    if isinstance(lists, faiss.OnDiskInvertedLists):
        raise InputError(f"the vectors are in {lists.filename}; merge both", code="faiss-on-disk-lists")
    sizes = [lists.list_size(number) for number in range(lists.nlist)]
    parts = [
        faiss.rev_swig_ptr(lists.get_ids(number), size).copy() for number, size in enumerate(sizes) if size
    ]  # the ids of an empty list are a null pointer
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _check_invertible(chain: Sequence[Any]) -> None:
    """Refuse a linear transformation whose transpose does not invert it, such as whitening."""
    faiss = load_faiss()
    for transform in chain:
        if isinstance(transform, faiss.LinearTransform):
            matrix = faiss.vector_to_array(transform.A).reshape(transform.d_out, transform.d_in).astype(np.float64)
            if np.abs(matrix @ matrix.T - np.eye(len(matrix))).max() > _ORTHONORMAL:
                raise InputError(f"FAISS's {type(transform).__name__} is no rotation; use .npy", code="faiss-kind")


def _blocks(path: str) -> Iterator[bytes]:
    """Yield the facts of an index as a line of JSON, its ids, and its vectors.

    Raises:
        InputError: see `read_vectors`; the message does not name the file.
    """
    faiss = load_faiss()
    try:
        index = faiss.read_index(path, faiss.IO_FLAG_READ_ONLY)
        check_metric(index, "the index")
        stored = Stored(index)
        facts = {"vectors": len(stored.ids), "dim": index.d, "ids": not stored.numbered}
        first = stored.at(np.arange(min(len(stored.ids), _AT_ONCE)))
    except (RuntimeError, MemoryError) as error:
        why = reason(error) if isinstance(error, RuntimeError) else "it needs more memory than its size"
        raise InputError(f"no readable FAISS index ({why}); use .npy", code="faiss-unreadable") from None
    yield json.dumps(facts).encode() + b"\n"
    if not stored.numbered:
        yield stored.ids.tobytes()
    yield first.tobytes()
    for begin in range(_AT_ONCE, len(stored.ids), _AT_ONCE):
        yield stored.at(np.arange(begin, min(begin + _AT_ONCE, len(stored.ids)))).tobytes()


def main(path: str) -> None:
    """Write the vectors of a file, or the reason of a refusal, to the standard output, which FAISS must not use."""
    with os.fdopen(os.dup(1), "wb") as out, suppress_output(1):
        load_faiss()
        # a damaged count ends in an error before it fills the memory of the machine
        memory.limit_addresses(_ROOM + _OF_THREAD * memory.cpu_count() + 8 * os.stat(path).st_size)
        try:
            for block in _blocks(path):
                out.write(block)
        except InputError as error:
            out.write(json.dumps({"problem": str(error), "code": error.code}).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
