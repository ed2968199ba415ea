"""Open an encoder of any kind: of ours, or of another package (docs/extending.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybrid_cli import storage
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.checkpoints.layouts import SIDES
from hybrid_cli.encoders.composite import Combination, Pair
from hybrid_cli.encoders.contract import COMBINATION, PAIR, SPARSE, STATIC, TRANSFORMER, Encoder, kind_of
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.options import DEVICE, INT8, EncodingPrecision
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.plugins import Registry
from hybrid_cli.storage.layout import CONTRACT, PAIR_SIDES

Opener = Callable[[Path, str, EncodingPrecision, dict[str, Any]], Encoder]  # folder, device, dtype, changes


def open_encoder(
    name: str | Path,
    *,
    device: str = DEVICE,
    dtype: EncodingPrecision = "fp32",
    overrides: Mapping[str, Any] | None = None,
) -> Encoder:
    """Open an encoder of any kind.

    Args:
        name: `minilm`, a folder, or a Hugging Face id.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        dtype: precision of a transformer; `auto` is bf16 where the processor supports it natively, else fp32; for
            `int8` see `int8.quantize`.
        overrides: contract fields that override those of the encoder; the `architecture` of a sparse one.

    Raises:
        InputError: no such model, or its kind has no such field.
    """
    folder = resolve(name)
    with storage.one_version(folder, storage.find_record(folder)):
        storage.check_parts(folder)
        return _open(folder, device, dtype, dict(overrides or {}))


def _open(folder: Path, device: str, dtype: EncodingPrecision, changes: dict[str, Any]) -> Encoder:
    kind = kind_of(folder)
    if kind != COMBINATION and "weight" in changes:
        raise option_error("weight", None, f"{folder} is no combination of encoders", code="option-does-not-apply")
    if changes.get("architecture") is not None:
        kind = SPARSE
    if dtype == INT8 and kind in (SPARSE, STATIC):
        problem = f"not with {folder}, a {kind} encoder; use fp32"
        raise option_error("dtype", INT8, problem, code="option-does-not-apply")
    return ENCODERS[kind](folder, device, dtype, {**changes})


def _sparse(folder: Path, device: str, dtype: EncodingPrecision, changes: dict[str, Any]) -> Encoder:
    from hybrid_cli.encoders.sparse import SparseEncoder  # transformers, which takes seconds to import

    precision: Any = dtype  # int8 is refused
    return SparseEncoder.load(folder, device=device, dtype=precision, **{"architecture": None, **changes})


def _static(folder: Path, device: str, dtype: EncodingPrecision, changes: dict[str, Any]) -> Encoder:
    length = changes.pop("truncate_dim", None)
    _refuse(folder, changes, STATIC)
    return StaticEncoder.load(folder, length)


def _combination(folder: Path, device: str, dtype: EncodingPrecision, changes: dict[str, Any]) -> Encoder:
    weight = changes.pop("weight", None)
    _refuse(folder, changes, COMBINATION)
    recipe = composite.read_recipe(folder)
    parts = [
        open_encoder(part, device=device, dtype=dtype, overrides=changed)
        for part, changed in zip(composite.parts(folder), recipe.changes, strict=True)
    ]
    return Combination(recipe, parts, weight)


def _pair(folder: Path, device: str, dtype: EncodingPrecision, changes: dict[str, Any]) -> Encoder:
    _refuse(folder, changes, PAIR)
    if not (folder / CONTRACT).is_file():  # of sentence-transformers, with modules for each side
        return Pair(*(_transformer(folder, device, dtype, {"route": side}) for side in SIDES))
    return Pair(*(open_encoder(folder / side, device=device, dtype=dtype) for side in PAIR_SIDES))


def _transformer(folder: Path, device: str, dtype: EncodingPrecision, changes: dict[str, Any]) -> Encoder:
    """Open a transformer; `changes` are the fields of its contract, or its route."""
    from hybrid_cli.encoders.transformer import TransformerEncoder

    if dtype == INT8:
        from hybrid_cli.encoders.int8 import quantize

        encoder = TransformerEncoder.load(folder, device=device, **changes)
        quantize(encoder)
        return encoder
    return TransformerEncoder.load(folder, device=device, dtype=dtype, **changes)


def _refuse(folder: Path, changes: Mapping[str, Any], kind: str) -> None:
    if changes:
        options = ", ".join(
            ("--no-" if value is False else "--") + name.replace("_", "-") for name, value in changes.items()
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

    def opened(folder: Path, device: str, dtype: EncodingPrecision, changes: dict[str, Any]) -> Encoder:
        _refuse(folder, {key: value for key, value in changes.items() if value is not None}, name)
        encoder: Encoder = load(folder, device=device, dtype=dtype)
        return encoder

    opened.documented = added  # type: ignore[attr-defined]
    return opened


_BUILT_IN: dict[str, Opener] = {
    TRANSFORMER: _transformer,
    STATIC: _static,
    COMBINATION: _combination,
    PAIR: _pair,
    SPARSE: _sparse,
}
ENCODERS: Registry[Opener] = Registry("encoders", _BUILT_IN, as_opener)
