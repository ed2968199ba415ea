"""What an interrupted training goes on from, and the best model so far."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model
from torch import nn


@dataclass
class State:
    """Where a training stands: steps done, the learning curve, the best dev value and its step."""

    step: int = 0
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    best: float = -1.0
    best_step: int = 0


def save(
    work: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, state: State
) -> None:
    """Replace the checkpoint in `work`; a kill leaves the old or the new one."""
    scratch = work / ".checkpoint.scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    save_model(model, str(scratch / "model.safetensors"))
    torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, scratch / "optimizer.pt")
    (scratch / "state.json").write_text(json.dumps(vars(state)), "utf-8")
    for old in work.glob(".checkpoint-*"):
        old.rename(old.with_name(".previous"))
    scratch.rename(work / f".checkpoint-{state.step}")
    shutil.rmtree(work / ".previous", ignore_errors=True)


def restore(work: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> State:
    """Load the checkpoint in `work`, if there is one, and say where it stands."""
    found = [*work.glob(".checkpoint-*"), *work.glob(".previous")]
    if not found:
        return State()
    shutil.rmtree(work / ".previous", ignore_errors=True) if len(found) > 1 else None
    load_model(model, str(found[0] / "model.safetensors"))
    saved = torch.load(found[0] / "optimizer.pt", weights_only=True)
    optimizer.load_state_dict(saved["optimizer"])
    scaler.load_state_dict(saved["scaler"])
    fields = json.loads((found[0] / "state.json").read_text("utf-8"))
    return State(**{**fields, "curve": [tuple(row) for row in fields["curve"]]})


def save_best(work: Path, model: nn.Module) -> None:
    """Keep the weights as the best so far."""
    scratch = work / ".best.scratch"
    save_model(model, str(scratch))
    scratch.rename(work / ".best.safetensors")


def load_best(work: Path, model: nn.Module) -> bool:
    """Put the best weights back, if any were kept."""
    file = work / ".best.safetensors"
    if file.is_file():
        load_model(model, str(file))
    return file.is_file()
