"""Callbacks by name, and those that write the learning curve for the experiment trackers of others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from hybrid_cli import plugins
from hybrid_cli.errors import option_error, refuse_missing
from hybrid_cli.training.loop import Callback
from hybrid_cli.training.options import Tracker as TrackerName

_PROJECT = "hybrid"  # of Trackio
_SECONDS = 5  # between two writes of the same tracker


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


class Tracker(Callback):
    """Writes the learning curve for a tracker, on this machine.

    A training that resumes, or is repeated, replaces the points of its run, so that none is doubled or lost.

    Args:
        folder: folder of the tracker.
        run: name of the run in it.
    """

    package: ClassVar[str]
    command: ClassVar[str]  # that shows a folder

    def __init__(self, folder: Path, run: str):
        self.folder, self.run = folder, run

    def on_start(self, facts: Mapping[str, Any], curve: Sequence[tuple[int, str, float]]) -> None:
        """Begin the run, with the points of a checkpoint."""
        self.begin(facts)
        for step, points in groupby(curve, itemgetter(0)):
            self.on_step(step, {name: value for _, name, value in points})

    def on_validation(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of a validation."""
        self.on_step(step, values)

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Begin a run without points, in place of an earlier one of this name."""
        raise NotImplementedError


class TensorBoard(Tracker):
    """Writes event files of TensorBoard."""

    package, command = "tensorboard", "tensorboard --logdir {}"

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Begin an event file that makes TensorBoard drop the points of earlier ones."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self.folder / self.run
        while any(folder.glob(f"events.out.tfevents.{int(time.time()):010}.*")):  # read in the order of seconds
            time.sleep(0.1)
        self.writer = SummaryWriter(str(folder), purge_step=0, flush_secs=_SECONDS)
        options = (f"    {name}: {value}" for name, value in facts.get("options", {}).items())
        self.writer.add_text("options", "\n".join(options))

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def on_end(self) -> None:
        """Write all points."""
        self.writer.close()


class Trackio(Tracker):
    """Writes the local database of Trackio: its client would also measure the machine, and can upload."""

    package, command = "trackio", "TRACKIO_DIR={} trackio show"

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Remove an earlier run of this name from the database."""
        from trackio import sqlite_storage

        self.folder.mkdir(parents=True, exist_ok=True)
        vars(sqlite_storage)["TRACKIO_DIR"] = self.folder
        self.storage = sqlite_storage.SQLiteStorage
        self.storage.delete_run(_PROJECT, self.run)
        self.config, self.points = dict(facts.get("options", {})), list[tuple[int, Mapping[str, float]]]()
        self.written = time.monotonic()

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of a step."""
        self.points.append((step, values))
        if time.monotonic() - self.written > _SECONDS:
            self.on_end()

    def on_end(self) -> None:
        """Write all points."""
        steps, values = [step for step, _ in self.points], [dict(values) for _, values in self.points]
        self.storage.bulk_log(_PROJECT, self.run, values, steps, config=self.config)
        self.points.clear()
        self.written = time.monotonic()


TRACKERS: Mapping[TrackerName, type[Tracker]] = {"tensorboard": TensorBoard, "trackio": Trackio}


def open_tracker(name: TrackerName) -> type[Tracker]:
    """Return the class of a tracker.

    Raises:
        PackageError: its package is not installed.
    """
    refuse_missing(TRACKERS[name].package)
    return TRACKERS[name]
