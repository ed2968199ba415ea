"""Devices and precision: one named GPU for each process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hybrid_cli.encoders.options import Precision
from hybrid_cli.errors import InputError

if TYPE_CHECKING:
    import torch


_IN_USE = ("out of memory", "busy or unavailable")  # CUDA's errors of a GPU without room for another process


def pick_device(device: str) -> str:
    """Return the device by its full name, such as `cuda:0`; `auto` is the first available of cuda, mps and cpu.

    Under torchrun, `auto` and `cuda` are the GPU with the number of the process on its machine.

    Raises:
        InputError: no such device on this machine, or the processes of torchrun would share a GPU.
    """
    import torch

    if device == "auto" and not torch.cuda.is_available():
        return "mps" if torch.backends.mps.is_available() else "cpu"
    found = device
    if device == "auto" or device.startswith("cuda"):
        number = int(os.environ.get("LOCAL_RANK", "0"))
        found = _own_gpu(device, torch.cuda.device_count(), number, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    unknown = f"--device {device}: unknown; use auto, cpu, cuda, cuda:N or mps"
    if found.partition(":")[0] == "meta":  # tensors without values
        raise InputError(unknown, code="unknown-choice", option="device", value=device)
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # a PyTorch without CUDA raises an AssertionError
        if "device type at start of device string" in str(error):
            raise InputError(unknown, code="unknown-choice", option="device", value=device) from None
        reason = str(error).splitlines()[0].split(". ")[0].removesuffix(".")
        if any(sign in reason for sign in _IN_USE):
            raise InputError(
                f"--device {device}: other processes use the GPU ({reason}); wait for them, or pass --device cpu",
                code="gpu-in-use",
                option="device",
                value=device,
            ) from None
        raise InputError(
            f"--device {device}: not available on this machine ({reason}); use auto or cpu",
            code="no-such-device",
            option="device",
            value=device,
        ) from None
    return found


def _own_gpu(device: str, gpus: int, number: int, processes: int) -> str:
    """Return the GPU of process `number` of `processes` on a machine with `gpus` GPUs."""
    if device not in ("auto", "cuda"):
        if processes > 1:
            raise InputError(
                f"--device {device}: {processes} processes cannot share a GPU; use --device cuda or cpu",
                code="conflicting-options",
                option="device",
                value=device,
                processes=processes,
            )
        return device
    if gpus and number >= gpus:
        raise InputError(
            f"torchrun started {processes} processes, and {gpus} GPU{'s are' if gpus > 1 else ' is'} visible; pass "
            f"--nproc-per-node {gpus}, or --device cpu",
            code="no-gpu",
            value=processes,
            limit=gpus,
        )
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
