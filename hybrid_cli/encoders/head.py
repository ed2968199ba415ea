"""Modules between pooling and vector: those of a sentence-transformers model, and the projection of this package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from hybrid_cli.artifacts import disk, layout
from hybrid_cli.encoders.contract import Contract
from hybrid_cli.encoders.library_files import Module, parts_of, refuse_other_values, refuse_unknown, unsupported
from hybrid_cli.errors import InputError
from hybrid_cli.json_files import read_object

_ACTIVATIONS = (  # of torch.nn, without arguments
    *("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "ELU", "SELU", "CELU", "ReLU6", "LeakyReLU", "Mish"),
    *("Softplus", "Softsign", "Hardtanh", "Hardsigmoid", "Hardswish", "LogSigmoid", "Tanhshrink"),
)
_DENSE = ("in_features", "out_features", "bias", "activation_function", "use_residual")  # keys of a Dense module
_LAYERS = ("linear", "norm")  # names of the weights of Dense and LayerNorm in sentence-transformers
_BEFORE = 2  # modules before the first: Transformer and Pooling


class Dense(nn.Module):
    """A linear map and an activation, as in sentence-transformers; with a residual, the input is added.

    Input and output of a residual have equal lengths, or the input has a linear map of its own.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, activation: str = "Identity", residual: bool = False
    ):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation: nn.Module = getattr(nn, activation)()
        self.adds_input = residual
        self.residual = nn.Linear(inputs, outputs, bias=False) if residual and inputs != outputs else None

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors [n, inputs] to [n, outputs]."""
        mapped: Tensor = self.activation(self.linear(vectors))
        if not self.adds_input:
            return mapped
        return mapped + (vectors if self.residual is None else self.residual(vectors))


class LayerNorm(nn.Module):
    """Layer normalization, as in sentence-transformers."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors [n, d] to [n, d]."""
        normed: Tensor = self.norm(vectors)
        return normed


class Normalize(nn.Module):
    """Scale vectors to length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors [n, d] to [n, d]."""
        return functional.normalize(vectors, dim=-1)


def load_modules(folder: Path, kinds: Sequence[str], side: str) -> nn.Sequential | None:
    """Load the modules of a sentence-transformers model that follow the pooling; None if there are none.

    Args:
        folder: folder of the model.
        kinds: `Contract.modules`.
        side: `query` or `document`.

    Raises:
        InputError: other modules, a pickle instead of weights, or parameters that this package does not know.
    """
    if not kinds:
        return None
    known = parts_of(folder, side)[2] if (folder / layout.MODULES).is_file() else []
    found = known[: len(kinds)]
    if [each.kind for each in found] != list(kinds):
        raise InputError(f"{folder / layout.MODULES}: needs the modules {', '.join(kinds)} after the pooling")
    return nn.Sequential(*map(_load_module, found))


def _load_module(found: Module) -> nn.Module:
    kind, folder = found.kind, found.folder
    if kind == "Normalize":
        return Normalize()
    file = folder / "config.json"
    config = read_object(file)
    try:
        with torch.device("meta"):  # sizes that the weights do not have take no memory
            if kind == "LayerNorm":
                refuse_unknown(file, config, {"dimension"})
                module: nn.Module = LayerNorm(config["dimension"])
            else:
                refuse_other_values(file, config, _DENSE)
                sizes = config["in_features"], config["out_features"], config.get("bias", True)
                module = Dense(*sizes, _activation(file, config), config.get("use_residual") or False)
        module.load_state_dict(load_file(_weights(folder)), assign=True)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: damaged {kind} module ({str(error).splitlines()[0]})") from None
    return module


def _activation(file: Path, config: Mapping[str, Any]) -> str:
    """Return the name of the activation of a Dense module; Tanh if none is stored, as in sentence-transformers."""
    stored = str(config.get("activation_function") or "torch.nn.Tanh")
    name = stored.rsplit(".", 1)[-1]
    if name not in _ACTIVATIONS or not stored.startswith("torch.nn."):
        raise unsupported(file, "activation_function", stored, f"needs torch.nn.{' or '.join(_ACTIVATIONS)}")
    return name


def _weights(folder: Path) -> Path:
    file = folder / layout.WEIGHTS
    if not file.is_file() and (folder / "pytorch_model.bin").is_file():
        raise InputError(
            f"{folder}: pickles (pytorch_model.bin) are not opened. Convert them: hybrid convert-checkpoint "
            f"{folder.parent} OUT"
        )
    if not file.is_file():
        raise InputError(f"{folder}: damaged encoder; {file.name} is missing")
    return file


def refuse_missing_projection(folder: Path, contract: Contract) -> None:
    """Refuse a stored encoder without the weights of its projection, which would be random."""
    for path, _ in _projection_modules(contract) if contract.dim is not None else ():
        if not (folder / path / layout.WEIGHTS).is_file():
            raise InputError(f"{folder}: damaged encoder; {path}/{layout.WEIGHTS} is missing")


def load_projection(
    folder: Path, contract: Contract, inputs: int, published: Mapping[str, Tensor]
) -> nn.Sequential | None:
    """Load the projection; one that is not in the folder is initialized from torch's random state.

    Args:
        folder: folder of the encoder.
        contract: contract with the length of the projection; None for no projection.
        inputs: length of the vectors before the projection.
        published: weights of a published checkpoint with a projection, as `linear.*` and `norm.*`.

    Raises:
        InputError: the projection is longer than its input, or the weights have another shape.
    """
    if contract.dim is None:
        return None
    if contract.dim > inputs and not published:
        raise InputError(f"--dim {contract.dim}: needs at most the {inputs} dimensions of {folder}")
    layers: list[nn.Module] = [nn.Linear(inputs, contract.dim)]
    if contract.projection_norm:
        layers.append(nn.LayerNorm(contract.dim))
    for (path, _), layer, name in zip(_projection_modules(contract), layers, _LAYERS, strict=False):
        file = folder / path / layout.WEIGHTS
        weights = load_file(file) if file.is_file() else published
        try:
            if weights:
                layer.load_state_dict(_part(weights, name, layer))
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        except RuntimeError:
            raise InputError(f"{folder}: the projection has another shape than {contract.dim} x {inputs}") from None
    return nn.Sequential(*layers)


def _part(weights: Mapping[str, Tensor], name: str, layer: nn.Module) -> dict[str, Tensor]:
    """Return the weights of one layer; a linear map that is stored without a bias has the bias 0."""
    found = {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}
    if isinstance(layer, nn.Linear):
        found.setdefault("bias", torch.zeros(layer.out_features))
    return found


def save_head(
    folder: Path, modules: nn.Sequential | None, projection: nn.Sequential | None, contract: Contract
) -> list[tuple[str, str]]:
    """Write all modules between pooling and vector; return folder and kind of each, for modules.json."""
    listed = []
    for number, module in enumerate(modules or (), _BEFORE):
        listed.append((f"{number}_{type(module).__name__}", type(module).__name__))
        _save_module(folder / listed[-1][0], module)
    if projection is not None:
        paths = _projection_modules(contract)
        for (path, _), layer, name in zip(paths, projection, _LAYERS, strict=False):
            state = {f"{name}.{key}": value for key, value in layer.state_dict().items()}
            _write(folder / path, layer, "Identity", state)
        listed += paths
    return listed


def _save_module(folder: Path, module: nn.Module) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(module, Dense):
        residual = {"use_residual": True} if module.adds_input else {}
        _write(folder, module.linear, type(module.activation).__name__, module.state_dict(), residual)
    elif isinstance(module, LayerNorm):
        _write(folder, module.norm, "", module.state_dict())


def _write(
    folder: Path, layer: Any, activation: str, state: Mapping[str, Tensor], more: Mapping[str, Any] | None = None
) -> None:
    """Write weights and config.json of a linear map or a LayerNorm."""
    folder.mkdir(parents=True, exist_ok=True)
    with disk.by_name(folder / layout.WEIGHTS) as file:
        save_file({key: value.contiguous() for key, value in state.items()}, file, metadata={"format": "pt"})
    config: dict[str, Any] = {"dimension": layer.normalized_shape[0]} if isinstance(layer, nn.LayerNorm) else {}
    if isinstance(layer, nn.Linear):
        config = {"in_features": layer.in_features, "out_features": layer.out_features}
        config |= {"bias": layer.bias is not None, "activation_function": _full_name(activation)}
        config |= more or {}
    disk.write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")


def _full_name(activation: str) -> str:
    module = "linear" if activation == "Identity" else "activation"
    return f"torch.nn.modules.{module}.{activation}"


def _projection_modules(contract: Contract) -> list[tuple[str, str]]:
    first = _BEFORE + len(contract.modules)
    names = ["Dense", "LayerNorm"] if contract.projection_norm else ["Dense"]
    return [(f"{number}_{name}", name) for number, name in enumerate(names, first)]
