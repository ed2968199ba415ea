"""FAISS: import, index types, parameters, error messages."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hybrid_cli import console
from hybrid_cli.errors import InputError, option_error, require_packages
from hybrid_cli.indexes.options import FLAT

ALL_GPUS = "auto"


def pick_gpus(device: str) -> list[int]:
    """Return the GPUs of `--faiss-device`; none for the CPU.

    Args:
        device: `auto` is all GPUs that FAISS can use, if any; `cpu`; `gpu` is all GPUs; `0,1` are two of them.

    Raises:
        InputError: this build of FAISS has no GPU support, or there is no such GPU.
    """
    if device == "cpu":
        return []
    numbers = [part.strip() for part in device.split(",")]
    if device not in (ALL_GPUS, "gpu") and not all(part.isdecimal() for part in numbers):
        raise option_error("faiss_device", device, "use auto, cpu, gpu, or numbers such as 0,1", code="unknown-choice")
    faiss = load_faiss()
    visible = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if device == ALL_GPUS:
        return list(range(visible))
    if not hasattr(faiss, "StandardGpuResources"):
        problem = "no GPU support; run: pip install 'hybrid_cli[gpu]', or use cpu"
        raise option_error("faiss_device", device, problem, code="no-gpu")
    gpus = list(range(visible)) if device == "gpu" else sorted({int(part) for part in numbers})
    if not gpus or gpus[-1] >= visible:
        raise option_error("faiss_device", device, f"FAISS sees {visible} GPUs; use a number below", code="no-gpu")
    return gpus


def on_gpus(index: Any, gpus: Sequence[int], shard: bool) -> Any | None:
    """Copy an index to GPUs; None if it does not fit, with a warning.

    Args:
        index: the index.
        gpus: numbers of the GPUs.
        shard: each of several GPUs holds a part of the vectors; else all vectors, and searches a part of the queries.
    """
    faiss = load_faiss()
    options = faiss.GpuMultipleClonerOptions()
    options.shard = shard
    try:
        return faiss.index_cpu_to_gpus_list(index, options, list(gpus))
    except RuntimeError as error:
        problem = f"FAISS cannot use the GPU ({reason(error)}) and continues on the CPU; see --faiss-device"
        console.warn(problem, code="gpu-unusable", option="faiss_device")
        return None


@contextmanager
def training_on(gpus: Sequence[int], index: Any) -> Iterator[None]:
    """Within this context, GPUs assign vectors to the centroids of inverted lists during their training."""
    faiss = load_faiss()
    ivf = faiss.try_extract_index_ivf(index) if gpus else None
    if ivf is not None:
        ivf.clustering_index = on_gpus(faiss.IndexFlatIP(ivf.d), gpus, shard=False)
    try:
        yield
    finally:
        if ivf is not None:
            ivf.clustering_index = None


@contextmanager
def adding_on(gpus: Sequence[int], index: Any) -> Iterator[None]:
    """Within this context, GPUs assign added vectors to inverted lists, which stay in memory in the usual order."""
    faiss = load_faiss()
    ivf: Any = faiss.try_extract_index_ivf(index) if gpus else None
    copied = on_gpus(ivf.quantizer, gpus, shard=False) if ivf is not None else None
    if copied is None:
        yield
        return
    kept = ivf.quantizer
    ivf.quantizer = copied
    try:
        yield
    finally:
        ivf.quantizer = kept


BINARY, BINARY_GRAPH = "Binary", "BHNSW"  # sign codes with Hamming distance; the number of links follows the name
_LINKS = 64  # per vector of an HNSW graph
_BITS = {FLAT: 32, "SQfp16": 16, "SQbf16": 16, "SQ8": 8, "SQ6": 6, "SQ4": 4}
FLOATS = (FLAT, "SQfp16", "SQbf16")


def set_threads(threads: int | None) -> None:
    """Set the number of threads of FAISS, which is not imported for it; None keeps all cores."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # FAISS and PyTorch read it on their import
        if "faiss" in sys.modules:
            load_faiss().omp_set_num_threads(threads)


def load_faiss() -> Any:
    """Import FAISS on first use and return the module.

    Raises:
        HybridError: FAISS is not installed, or broken.
    """
    if sys.platform == "darwin":  # the wheels of torch and FAISS each contain an OpenMP library
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    with require_packages("faiss"):
        import faiss

        if not hasattr(faiss, "index_factory"):
            raise ImportError("another package than FAISS")
    # Since 1.15, FAISS does not use BLAS if queries * dimensions < 128,000, which is 20 times slower for a block and
    # makes scores depend on its size by an ulp (facebookresearch/faiss#5022, #5109). 1 means always BLAS.
    faiss.cvar.distance_compute_blas_threshold = 1
    return faiss


# --------------------------------------------------------------------------------------------------------- index types


def _code_bytes(dim: int) -> int:
    """Return the bytes of a product code: the largest divisor of `dim` up to dim / 4."""
    return max(size for size in range(1, max(2, dim // 4 + 1)) if dim % size == 0)


def _lists(count: int) -> int:
    """Return the number of inverted lists: 4 sqrt(count), with at least 39 vectors per list."""
    return max(1, min(round(4 * math.sqrt(count)), count // 39))


FACTORIES: Mapping[str, Callable[[int, int], str]] = {
    "flat": lambda dim, count: FLAT,
    "fp16": lambda dim, count: "SQfp16",
    "sq8": lambda dim, count: "SQ8",
    "pq": lambda dim, count: f"PQ{_code_bytes(dim)}",
    "opq": lambda dim, count: f"OPQ{_code_bytes(dim)},PQ{_code_bytes(dim)}",
    "binary": lambda dim, count: BINARY,
    "hnsw": lambda dim, count: f"HNSW{_LINKS},{FLAT}",
    "hnsw-fp16": lambda dim, count: f"HNSW{_LINKS},SQfp16",
    "hnsw-sq8": lambda dim, count: f"HNSW{_LINKS},SQ8",
    "hnsw-binary": lambda dim, count: f"{BINARY_GRAPH}{_LINKS}",
    "ivf": lambda dim, count: f"IVF{_lists(count)},{FLAT}",
}  # index type -> (length and number of vectors) -> FAISS factory string


def factory_string(index_type: str | None, dim: int, count: int) -> str:
    """Return the FAISS factory string of an index over `count` vectors of length `dim`.

    Args:
        index_type: a name of `FACTORIES`, or a factory string; None is `flat`.
        dim: length of the vectors.
        count: number of vectors.
    """
    named = FACTORIES.get(index_type or "flat")
    return str(index_type) if named is None else named(dim, count)


def is_binary(factory: str) -> bool:
    """Return whether an index stores sign codes."""
    return factory == BINARY or factory.startswith(BINARY_GRAPH)


def sign_bits(vectors: np.ndarray) -> np.ndarray:
    """Pack vectors [n, d] to bits [n, ceil(d/8)]: 1 for values >= 0 (BPR; sign(0) = +1)."""
    return np.packbits(vectors >= 0, axis=1)


def code_size(factory: str, dim: int) -> int | None:
    """Return the bytes of one vector or code in an index; None for unknown factory strings."""
    if is_binary(factory):
        return -(-dim // 8)
    *steps, last = factory.split(",")
    for step in steps:  # a rotation or projection may shorten vectors: PCA64, OPQ16_64
        if match := re.fullmatch(r"PCAR?(\d+)|OPQ\d+_(\d+)", step):
            dim = int(match[1] or match[2])
    if product := re.fullmatch(r"PQ(\d+)(x8)?", last):
        return int(product[1])
    return -(-dim * _BITS[last] // 8) if last in _BITS else None


def table_size(factory: str, dim: int) -> int:
    """Return the bytes of the trained tables of an index type of `VectorIndex`: code books, rotation or bounds."""
    rotation = 4 * dim * dim if factory.startswith("OPQ") else 0
    return rotation + 4 * dim * (256 if "PQ" in factory else 2 if "SQ8" in factory else 0)


# ------------------------------------------------------------------------------------------------------------- indexes


def empty_index(factory: str, dim: int) -> Any:
    """Return an empty index of floating-point vectors for the inner product.

    Raises:
        InputError: FAISS has no such index for this length, or the index does not measure the inner product.
    """
    faiss = load_faiss()
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        problem = f"use {', '.join(FACTORIES)}, auto, or a factory string of FAISS for {dim} dimensions"
        raise option_error("index_type", factory, f"{problem} ({reason(error)})", code="invalid-value") from None
    check_metric(index, f"--index-type {factory}")
    codes = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    if isinstance(codes, faiss.IndexPQ):
        codes.do_polysemous_training = False  # tables for a kind of search that is not used take minutes
    return index


@contextmanager
def same_graph() -> Iterator[None]:
    """Within this context an HNSW graph is the same in every run on a machine, for any number of threads.

    Since 1.15, FAISS has `hnsw_add_vertices_deterministic`. In older versions, the order of links depends on the
    threads, so one thread is used.
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
def suppress_output() -> Iterator[None]:
    """Suppress the warnings that FAISS prints from C++ on stderr, of which `build` prints its own."""
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
    """Return the reason in an error of FAISS, without file, line and stack."""
    last = (
        (str(error).strip() or type(error).__name__)
        .splitlines()[-1]
        .rsplit("Error: ", 1)[-1]
        .rsplit(" failed: ", 1)[-1]
    )
    return re.sub(r"^Error in .* at \S+:\d+: ", "", last)


def set_parameter(index: Any, name: str, value: int, option: str = "") -> None:
    """Set a parameter of an index, or of the index inside it, by FAISS's name.

    Raises:
        InputError: the index has no such parameter.
    """
    try:
        load_faiss().ParameterSpace().set_index_parameter(index, name, value)
    except RuntimeError:
        problem = "this type of index has no such parameter"
        raise option_error(option or name, value, problem, code="unknown-parameter") from None


def search_selected(index: Any, queries: np.ndarray, depth: int, allowed: np.ndarray) -> Any | None:
    """Search an index among the rows that are `allowed` [N]; None if its type cannot.

    Graphs and inverted lists are searched as much deeper as rows are left out.

    Returns:
        Scores and rows [Q, depth]; -1 for missing rows.
    """
    faiss = load_faiss()
    bits = np.packbits(allowed, bitorder="little")
    selector = faiss.IDSelectorBitmap(bits)
    factor = len(allowed) / max(1, int(allowed.sum()))

    def parameters(index: Any) -> Any:
        index = faiss.downcast_index(index)
        if isinstance(index, faiss.IndexPreTransform):
            return faiss.SearchParametersPreTransform(index_params=parameters(index.index))
        if isinstance(index, faiss.IndexIVF):
            return faiss.SearchParametersIVF(sel=selector, nprobe=min(index.nlist, math.ceil(index.nprobe * factor)))
        if isinstance(index, faiss.IndexHNSW):
            candidates = max(index.hnsw.efSearch, depth)
            return faiss.SearchParametersHNSW(sel=selector, efSearch=math.ceil(candidates * factor))
        return faiss.SearchParameters(sel=selector)

    try:
        return index.search(queries, depth, params=parameters(index))
    except RuntimeError:  # product codes take no selector
        return None


def inverted_lists(index: Any) -> int:
    """Return the number of inverted lists; 0 for other types of index."""
    inner = load_faiss().try_extract_index_ivf(index)
    return int(inner.nlist) if inner is not None else 0


def check_metric(index: Any, where: str) -> None:
    """Refuse an index that measures anything but the inner product, or contains such an index."""
    faiss = load_faiss()
    inner = faiss.downcast_index(index)
    while inner is not None:
        if inner.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(f"{where}: {type(inner).__name__} does not measure the inner product", code="faiss-metric")
        below = getattr(inner, "storage", None) or getattr(inner, "index", None)
        inner = faiss.downcast_index(below) if isinstance(below, faiss.Index) else None
