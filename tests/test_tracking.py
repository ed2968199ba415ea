"""Callbacks of the command line, and trackers: the points of the learning curve, each once, and nothing contacted."""

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Done, hybrid, ran
from processes import HYBRID, run
from test_train_dense import write_examples

from hybrid_cli import artifacts, storage

SEEN = """
import json
import os
from pathlib import Path
from hybrid_cli.training import Callback


class Seen(Callback):
    '''Write the calls of the training into a file; fail at step 6 if a file asks for it.'''

    def __init__(self):
        self.calls = []

    def on_start(self, facts, curve):
        self.calls.append(["start", facts["stage"], facts["options"]["max_steps"], len(curve)])

    def on_step(self, step, values):
        if step == 6 and Path("kill").exists():
            os.kill(os.getpid(), 9)
        if step == 6 and Path("error").exists():
            raise RuntimeError("asked to fail")
        self.calls.append(["step", step])

    def on_end(self):
        Path("calls.json").write_text(json.dumps([*self.calls, ["end"]]))


class Misspelt(Callback):
    def on_steps(self, step, values): ...


class Short(Callback):
    def on_step(self, step): ...


class Other:
    def on_step(self, step, values): ...


class Needs(Callback):
    def __init__(self, folder): ...


function = print
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_examples(tmp_path / "train.parquet")
    (tmp_path / "seen.py").write_text(SEEN, "utf-8")

    connect = socket.socket.connect

    def checked(opened: socket.socket, address: Any) -> None:
        assert opened.family == socket.AF_UNIX, f"contacts {address}"
        connect(opened, address)

    monkeypatch.setattr(socket.socket, "connect", checked)
    return tmp_path


def train_words(model: Path, output: str) -> tuple[Any, ...]:
    options: tuple[Any, ...] = ("--max-steps", 6, "--batch-size", 2, "--checkpoint-steps", 2, "--threads", 1)
    options += ("--dev", "train.parquet")
    return "train-dense", "train.parquet", "--model", model, *options, "--output", output


def train(model: Path, output: str, *words: Any) -> Done:
    return hybrid(*train_words(model, output), *words)


def points(output: Path) -> Counter[tuple[int, str, float]]:
    rows = pl.read_parquet(output / "curve.parquet").with_columns(pl.col("value").cast(pl.Float32)).iter_rows()
    return Counter((step, name, value) for step, name, value in rows)


def tensorboard(folder: Path, run: str) -> Counter[tuple[int, str, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / run), {"scalars": 0})
    read.Reload()
    return Counter((event.step, name, event.value) for name in read.Tags()["scalars"] for event in read.Scalars(name))


def trackio(folder: Path, run: str) -> Counter[tuple[int, str, float]]:
    from trackio import sqlite_storage

    vars(sqlite_storage)["TRACKIO_DIR"] = folder
    rows = sqlite_storage.SQLiteStorage.get_logs("hybrid", run)
    return Counter(
        (row["step"], name, float(np.float32(value)))
        for row in rows
        for name, value in row.items()
        if name not in ("step", "timestamp")
    )


READERS = {"tensorboard": tensorboard, "trackio": trackio}


@pytest.mark.parametrize("end", ["error", "kill"])
@pytest.mark.parametrize("tracker", READERS)
def test_a_tracker_has_every_point_once(folder: Path, tiny_bert: Path, tracker: str, end: str) -> None:
    words = ("--callback", "seen.py:Seen", "--track", tracker)
    (folder / end).touch()
    assert run(HYBRID, *train_words(tiny_bert, "out/model"), *words).returncode == {"error": 1, "kill": -9}[end]
    assert (folder / "calls.json").exists() == (end == "error")
    (folder / end).unlink()
    assert train(tiny_bert, "out/model", *words).says("resumed", step=4)
    calls = json.loads((folder / "calls.json").read_text())
    assert (calls[0][:3], calls[1:]) == (["start", "train-dense", 6], [["step", 5], ["step", 6], ["end"]])
    assert calls[0][3] > 4
    assert train(tiny_bert, "whole").code == 0
    assert (folder / "whole/model.safetensors").read_bytes() == (folder / "out/model/model.safetensors").read_bytes()
    expected = points(folder / "out/model")
    assert {("dev_MRR@10", 6), ("nll", 1), ("nll", 6)} <= {(name, step) for step, name, _ in expected}
    assert READERS[tracker](folder / "out/model/tracking", "out-model") == expected


@pytest.mark.parametrize("tracker", READERS)
def test_a_tracked_output_is_the_same_artifact(folder: Path, tiny_bert: Path, tracker: str) -> None:
    assert train(tiny_bert, "plain").code == 0
    done = train(tiny_bert, "model", "--track", tracker)
    assert (done.code, done.says("tracked")) == (0, True)
    assert READERS[tracker](folder / "model/tracking", "model") == points(folder / "model")
    plain, tracked = (artifacts.read_manifest(folder / name) for name in ("plain", "model"))
    assert (plain.options, plain.fingerprint) == (tracked.options, tracked.fingerprint)
    (folder / "model/tracking/more").write_text("of the tool that shows it")
    storage.check_parts(folder / "model")
    ran("inspect", "--verify", "model")
    assert train(tiny_bert, "model").says("up-to-date")
