"""Devices and precision: one named GPU for each process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hybrid_cli.encoders.options import Precision
from hybrid_cli.errors import option_error

if TYPE_CHECKING:
    import torch


def pick_device(device: str) -> str:
    """Return the device by its full name, such as `cuda:0`; `auto` is the first available of cuda, mps and cpu.

    Under torchrun, `auto` and `cuda` are the GPU with the number of the process on its machine.

    Raises:
        InputError: no such device on this machine, or the processes of torchrun would share a GPU.
    """
    import torch

    if device == "auto" and not torch.cuda.is_available():
        return "mps" if torch.backends.mps.is_available() else "cpu"
    name = device
    if device == "auto" or device.startswith("cuda"):
        number = int(os.environ.get("LOCAL_RANK", "0"))
        name = _own_gpu(device, torch.cuda.device_count(), number, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # a PyTorch without CUDA raises an AssertionError
        reason = str(error).splitlines()[0].split(". ")[0].removesuffix(".")
        if "device type at start of device string" in reason:
            raise option_error("device", device, "use auto, cpu, cuda, cuda:N or mps", code="unknown-choice") from None
        problem = f"not available ({reason}); wait for other processes that use it, or use cpu"
        raise option_error("device", device, problem, code="no-such-device") from None
    return name


def _own_gpu(device: str, gpus: int, number: int, processes: int) -> str:
    """Return the GPU of process `number` of `processes` on a machine with `gpus` GPUs."""
    if device not in ("auto", "cuda"):
        if processes > 1:
            problem = "several processes cannot share a GPU; use cuda or cpu"
            raise option_error("device", device, problem, code="conflicting-options")
        return device
    if gpus and number >= gpus:
        problem = f"torchrun started {processes} processes for {gpus} GPUs; pass --nproc-per-node {gpus}"
        raise option_error("device", device, problem, code="no-gpu")
    return f"cuda:{number}"


def pick_dtype(dtype: Precision, device: str) -> torch.dtype:
    """Return the torch dtype of a name; `auto` is bf16 if the device supports it natively, else fp32."""
    import torch

    if dtype != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    if device.startswith("cuda"):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        # ATEN_CPU_CAPABILITY may forbid it, and bf16 then fails
        allowed = torch.backends.cpu.get_cpu_capability() == "AVX512"
        native = device == "cpu" and allowed and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Return the context of forward passes of float32 weights in a precision."""
    import torch

    return torch.autocast(device.type, precision, enabled=precision != torch.float32)
