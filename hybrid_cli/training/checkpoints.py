"""Checkpoints of unfinished trainings: replaced atomically, and compared with their checksums before they are used."""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_model, save_file, save_model
from torch import nn

from hybrid_cli import storage
from hybrid_cli.errors import DamageError, HybridError, path_error
from hybrid_cli.inputs.files import read_bytes
from hybrid_cli.inputs.json_values import read_json
from hybrid_cli.storage import disk, layout

_BUFFER = 1 << 20  # bytes; PyTorch writes four pieces for each tensor


@dataclass
class State:
    """Progress of a training: completed steps, learning curve, best dev value, its step, checksum of its weights."""

    step: int = 0
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    best: float = -1.0
    best_step: int = 0
    best_checksum: str = ""


def save_checkpoint(
    work: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, state: State
) -> None:
    """Replace the checkpoint in `work` atomically; remove best weights that are not its own."""
    with storage.replacing(work / layout.CHECKPOINT) as scratch:
        scratch.mkdir()
        with disk.by_name(scratch / layout.WEIGHTS) as file:
            _save(model, file)
        with disk.create(scratch / layout.OPTIMIZER) as file, io.BufferedWriter(file, _BUFFER) as buffered:
            torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, buffered)
        disk.write_text(scratch / layout.STATE, json.dumps(vars(state)))
        disk.write_text(scratch / layout.CHECKSUM, storage.hash_folder(scratch))
    for file in work.glob(layout.BEST_WEIGHTS.format("*")):
        if file != _best(work, state):
            disk.remove(file)


def load_checkpoint(
    work: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> State:
    """Load the checkpoint in `work`, if there is one, and return its progress.

    Raises:
        DamageError: its files are not those that were written.
        InputError: another version of hybrid wrote it.
    """
    folder = work / layout.CHECKPOINT
    storage.restore(folder)
    if not folder.exists():
        return State()
    stored = folder / layout.CHECKSUM
    written = read_bytes(stored).decode("ascii", "replace") if stored.is_file() else None
    _refuse_damage(folder, written, storage.hash_folder(folder, (layout.CHECKSUM,)))
    try:
        _load(model, folder / layout.WEIGHTS)
        with warnings.catch_warnings(action="ignore"):  # of other protocols of pickle
            saved = torch.load(folder / layout.OPTIMIZER, map_location="cpu", weights_only=True)  # not on the first GPU
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        fields = read_json(folder / layout.STATE)
        return State(**{**fields, "curve": [tuple(row) for row in fields["curve"]]})
    except HybridError:
        raise
    except Exception as error:  # foreign pickles raise every class
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        problem = f"was written by another version ({reason}); use that one, or remove {work}"
        raise path_error(folder, problem, code="checkpoint-of-another-version") from None


def save_best(work: Path, model: nn.Module, state: State) -> None:
    """Store the weights of `state.best_step` as the best so far, next to those of the checkpoint."""
    with storage.replacing(_best(work, state)) as scratch:
        with disk.by_name(scratch) as file:
            _save(model, file)
        state.best_checksum = storage.fingerprint(scratch)


def load_best(work: Path, model: nn.Module, state: State) -> bool:
    """Load the best weights; return whether any were stored.

    Raises:
        DamageError: the file is not the one that was written.
    """
    file = _best(work, state)
    if state.best_checksum:
        _refuse_damage(file, state.best_checksum, storage.fingerprint(file) if file.is_file() else None)
        _load(model, file)
    return bool(state.best_checksum)


def _save(model: nn.Module, file: Path) -> None:
    """Write the weights of a model; of one with frozen weights, the others alone."""
    if all(weight.requires_grad for weight in model.parameters()):
        save_model(model, str(file))
    else:
        trained = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
        save_file(trained, file)


def _load(model: nn.Module, file: Path) -> None:
    load_model(model, str(file), strict=all(weight.requires_grad for weight in model.parameters()))


def _best(work: Path, state: State) -> Path:
    return work / layout.BEST_WEIGHTS.format(state.best_step)


def _refuse_damage(path: Path, written: str | None, current: str | None) -> None:
    if written != current:
        problem = f"{path}: changed after it was written; restore it, or remove {path.parent}"
        raise DamageError(problem, code="damaged", path=path)
