"""Checkpoints, the best weights so far, and the learning curve."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind, layout


@dataclass
class State:
    """Progress of a training: steps done, the learning curve, the best dev value and its step."""

    step: int = 0
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    best: float = -1.0
    best_step: int = 0


def save_checkpoint(
    work: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, state: State
) -> None:
    """Replace the checkpoint in `work`; a kill leaves the old one or the new one."""
    with artifacts.replacing(work / layout.CHECKPOINT) as scratch:
        scratch.mkdir()
        save_model(model, str(scratch / layout.WEIGHTS))
        torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, scratch / "optimizer.pt")
        (scratch / "state.json").write_text(json.dumps(vars(state)), "utf-8")


def load_checkpoint(
    work: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> State:
    """Load the checkpoint in `work`, if there is one, and return its progress."""
    folder = work / layout.CHECKPOINT
    artifacts.restore(folder)
    if not folder.exists():
        return State()
    load_model(model, str(folder / layout.WEIGHTS))
    saved = torch.load(folder / "optimizer.pt", weights_only=True)
    optimizer.load_state_dict(saved["optimizer"])
    scaler.load_state_dict(saved["scaler"])
    fields = json.loads((folder / "state.json").read_text("utf-8"))
    return State(**{**fields, "curve": [tuple(row) for row in fields["curve"]]})


def save_best(work: Path, model: nn.Module) -> None:
    """Store the weights as the best so far."""
    with artifacts.replacing(work / layout.BEST_WEIGHTS) as scratch:
        save_model(model, str(scratch))


def load_best(work: Path, model: nn.Module) -> bool:
    """Load the best weights; return whether any were stored."""
    file = work / layout.BEST_WEIGHTS
    if file.is_file():
        load_model(model, str(file))
    return file.is_file()


def write_curve(folder: Path, state: State, stage: str) -> None:
    """Write the learning curve: step, name, value."""
    steps, names, values = zip(*state.curve, strict=True)
    table = pa.table({"step": steps, "name": names, "value": values})
    manifest = artifacts.Manifest(Kind.LEARNING_CURVE, stage, {}, {})
    artifacts.write_parquet(folder / layout.CURVE, [table], artifacts.SCHEMAS[Kind.LEARNING_CURVE], manifest)
