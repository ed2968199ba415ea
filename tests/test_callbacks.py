"""The training loop calls its callbacks, and reads the values of a step from the device when they are due."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hybrid_cli.errors import HybridError
from hybrid_cli.training import loop
from hybrid_cli.training.loop import Callback, Job, Validator, train
from hybrid_cli.training.losses import Terms
from hybrid_cli.training.options import Optimization

STEPS = 6


class Line:
    """A learner of `2 x + 1` from numbers."""

    precision = torch.float32

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)

    def backward(self, batch: Tensor, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        loss = (self.model(batch) - (2 * batch + 1)).square().mean()
        scale(loss).backward()
        return {"square": loss.detach(), "largest": batch.max().double()}


class Record(Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.append(("step", step, dict(values)))

    def on_validation(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.append(("validation", step, dict(values)))

    def on_epoch(self, epoch: int) -> None:
        self.calls.append(("epoch", epoch))

    def on_checkpoint(self, step: int) -> None:
        self.calls.append(("checkpoint", step))

    def names(self) -> list[tuple[Any, ...]]:
        return [call[:2] for call in self.calls]


def batches(done: int) -> Iterator[Tensor]:
    for number in range(done, 2 * STEPS):
        yield torch.tensor([[float(number)], [number + 0.5]]) / 10


def job(learner: Line, epoch_steps: int | None = 2) -> Job[Tensor]:
    validator = Validator(lambda: {"dev": learner.model.weight.item()}, every=3, criterion="dev")
    return Job(learner, batches, STEPS, lambda folder: {}, validator, epoch_steps=epoch_steps)


PLAN = Optimization(batch_size=2, accumulate=2, learning_rate=0.05, warmup_steps=0, checkpoint_steps=4)


def test_callbacks_see_every_step_validation_epoch_and_checkpoint(tmp_path: Path) -> None:
    record = Record()
    state = train(job(Line()), PLAN, tmp_path, [Callback(), record])
    assert record.names() == [
        ("validation", 0), ("step", 1), ("step", 2), ("epoch", 1), ("step", 3), ("validation", 3), ("step", 4),
        ("epoch", 2), ("checkpoint", 4), ("step", 5), ("step", 6), ("validation", 6), ("epoch", 3),
    ]  # fmt: skip
    seen = [(call[1], name, value) for call in record.calls if len(call) > 2 for name, value in call[2].items()]
    assert seen == state.curve


def test_values_read_late_are_the_same_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, late = Record(), Record()
    now = train(job(Line()), PLAN, tmp_path / "now", [first])
    original = loop.scalars
    reads: list[int] = []

    def counted(tensors: list[Tensor]) -> list[float]:
        reads.append(len(tensors))
        return original(tensors)

    monkeypatch.setattr(loop, "scalars", counted)
    monkeypatch.setattr(loop, "CPU_LOG_STEPS", 10)
    later = train(job(Line(), epoch_steps=None), PLAN, tmp_path / "later", [late])
    assert later.curve == now.curve
    assert reads == [3 * 2 * 2, 1 * 2 * 2, 2 * 2 * 2]  # at a validation, a checkpoint and the last step
    assert [call for call in late.calls if call[0] == "step"] == [call for call in first.calls if call[0] == "step"]


def test_a_value_that_is_not_finite_ends_the_training_at_its_step(tmp_path: Path) -> None:
    class Broken(Line):
        def backward(self, batch: Tensor, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
            terms = super().backward(batch, scale, step)
            return {**terms, "square": terms["square"] * (float("nan") if step == 2 else 1)}

    record = Record()
    with pytest.raises(HybridError) as caught:
        train(job(Broken()), PLAN, tmp_path, [record])
    assert (caught.value.code, caught.value.fields) == ("values-not-finite", {"step": 3, "names": ["square"]})
    assert record.names()[-1] == ("epoch", 1)
    assert not list(tmp_path.glob("checkpoint*"))
