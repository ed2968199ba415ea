"""Callbacks by name, and the one that writes the learning curve for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from hybrid_cli import plugins
from hybrid_cli.errors import option_error
from hybrid_cli.training.loop import Callback


def _callback_class(name: str, value: Any) -> type[Callback]:
    """Return a class of callbacks.

    Raises:
        ValueError: another object, a class with arguments, or functions that the training would not call.
    """
    if not (isinstance(value, type) and issubclass(value, Callback)):
        raise ValueError("is no subclass of hybrid_cli.training.Callback")
    functions = [attribute for attribute in dir(value) if attribute.startswith("on_")]
    if unknown := [function for function in functions if not hasattr(Callback, function)]:
        raise ValueError(f"has {unknown[0]}; the training calls {', '.join(f for f in vars(Callback) if f[0] != '_')}")
    try:
        signature(value).bind()
        for function in functions:
            signature(getattr(value, function)).bind(*signature(getattr(Callback, function)).parameters)
    except TypeError as error:
        raise ValueError(f"has other arguments than hybrid_cli.training.Callback ({error})") from None
    return value


CALLBACKS: plugins.Registry[type[Callback]] = plugins.Registry("callbacks", {}, _callback_class)


def open_callback(name: str) -> Callback:
    """Make a callback.

    Args:
        name: `module:Class`, `FILE.py:Class`, or a registered name.

    Raises:
        InputError: no such class, or one of another form.
    """
    if ":" not in name and name not in CALLBACKS:
        choices = list(CALLBACKS)
        problem = "unknown; pass module:Class or FILE.py:Class" + "".join(f", or {known}" for known in choices)
        raise option_error("callback", name, problem, code="unknown-choice", choices=choices)
    if ":" not in name:
        return CALLBACKS[name]()
    try:
        return _callback_class(name, plugins.imported(name))()
    except ValueError as error:
        raise option_error("callback", name, str(error), code="not-a-callback") from None


class TensorBoard(Callback):
    """Writes the learning curve in event files of TensorBoard, on this machine.

    A training that resumes, or is repeated, replaces the points of its run, so that none is doubled or lost.

    Args:
        folder: folder of the event files.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def on_start(self, facts: Mapping[str, Any], curve: Sequence[tuple[int, str, float]]) -> None:
        """Begin an event file that makes TensorBoard drop the points of earlier ones; add those of a checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        while any(self.folder.glob(f"events.out.tfevents.{int(time.time()):010}.*")):  # read in the order of seconds
            time.sleep(0.1)
        self.writer = SummaryWriter(str(self.folder), purge_step=0, flush_secs=5)
        options = (f"    {name}: {value}" for name, value in facts.get("options", {}).items())
        self.writer.add_text("options", "\n".join(options))
        for step, name, value in curve:
            self.writer.add_scalar(name, value, step)

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def on_validation(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of a validation."""
        self.on_step(step, values)

    def on_end(self) -> None:
        """Write all points."""
        self.writer.close()
