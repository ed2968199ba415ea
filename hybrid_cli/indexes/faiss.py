"""FAISS itself: its import, its settings, its messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybrid_cli.errors import HybridError, InputError


def set_threads(threads: int | None) -> None:
    """How many threads FAISS may use; None leaves it at all cores."""
    if threads is not None:
        load_faiss().omp_set_num_threads(threads)


def load_faiss() -> Any:
    """The module; heavy, so imported where it is first needed.

    Raises:
        HybridError: it is not installed.
    """
    if sys.platform == "darwin":  # the wheels of torch and FAISS each bring an OpenMP
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    try:
        import faiss
    except ImportError:
        raise HybridError(
            "FAISS is not installed; type: pip install 'hybrid_cli[cpu]' (or [gpu] on a machine with CUDA)"
        ) from None
    # From 1.15 on, FAISS leaves out BLAS where queries * dimensions < 128,000, which costs a block 20 times the time
    # and gives scores that depend on its size by an ulp (facebookresearch/faiss#5022, #5109). 1 asks for BLAS always.
    faiss.cvar.distance_compute_blas_threshold = 1
    return faiss


@contextmanager
def same_graph() -> Iterator[None]:
    """While a graph (HNSW) is made: the same one at every run on a machine, whatever the threads.

    FAISS makes it so by itself since it has `hnsw_add_vertices_deterministic` (1.15). Before, threads link vectors in
    the order in which they come, and only one thread always gives the same graph.
    """
    faiss = load_faiss()
    threads = faiss.omp_get_max_threads()
    if not hasattr(faiss, "hnsw_add_vertices_deterministic"):
        faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


@contextmanager
def quiet() -> Iterator[None]:
    """Without FAISS's own warnings, which it writes from C++ past Python: we say the same in one line."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def reason(error: RuntimeError) -> str:
    """FAISS's reason without its file, line and stack."""
    return str(error).strip().splitlines()[-1].rsplit("Error: ", 1)[-1].rsplit(" failed: ", 1)[-1]


def set_parameter(index: Any, name: str, value: int, option: str = "") -> None:
    """Set a parameter of an index, or of the one inside it, by FAISS's name.

    Raises:
        InputError: the index has no such parameter.
    """
    try:
        load_faiss().ParameterSpace().set_index_parameter(index, name, value)
    except RuntimeError:
        raise InputError(f"{option or name} {value}: this kind of index has no such setting") from None


def inverted_lists(index: Any) -> int:
    """The number of inverted lists, 0 for an index without."""
    inner = load_faiss().try_extract_index_ivf(index)
    return int(inner.nlist) if inner is not None else 0


def check_metric(index: Any, where: str) -> None:
    """Refuse an index, or the storage inside it, that measures anything but the inner product."""
    faiss = load_faiss()
    inner = faiss.downcast_index(index)
    while inner is not None:
        if inner.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(f"{where}: its {type(inner).__name__} does not measure the inner product; use another")
        below = getattr(inner, "storage", None) or getattr(inner, "index", None)
        inner = faiss.downcast_index(below) if isinstance(below, faiss.Index) else None
