"""FAISS on GPUs: their choice, copies of indexes, and assignment of vectors to inverted lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hybrid_cli import console
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.faiss import load_faiss, reason


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
    if device not in ("auto", "gpu") and not all(part.isdecimal() for part in numbers):
        raise InputError(
            f"--faiss-device {device}: unknown; use auto, cpu, gpu, or numbers of GPUs such as 0,1",
            code="unknown-choice",
            option="faiss_device",
            value=device,
            choices=("auto", "cpu", "gpu"),
        )
    faiss = load_faiss()
    visible = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if device == "auto":
        return list(range(visible))
    if not hasattr(faiss, "StandardGpuResources"):
        raise InputError(
            f"--faiss-device {device}: this FAISS has no GPU support; run: pip install 'hybrid_cli[gpu]', or use cpu",
            code="no-gpu",
            option="faiss_device",
            value=device,
        )
    found = list(range(visible)) if device == "gpu" else sorted({int(part) for part in numbers})
    if not found or found[-1] >= visible:
        raise InputError(
            f"--faiss-device {device}: FAISS sees {visible} GPUs; use a number below, or cpu",
            code="no-gpu",
            option="faiss_device",
            value=device,
            limit=visible,
        )
    return found


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
        console.warn(f"FAISS cannot use the GPU ({reason(error)}) and continues on the CPU; see --faiss-device")
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
