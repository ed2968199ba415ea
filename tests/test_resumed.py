"""A call that was interrupted ends, when it is repeated, with the files of one that was not; trackers."""

import json
import socket
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Done, Notices, hybrid, ran
from processes import HYBRID, run
from test_train_dense import write_examples

from hybrid_cli import artifacts, storage
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.label import label
from hybrid_cli.stages.perturb import perturb
from hybrid_cli.stages.pretrain import pretrain
from hybrid_cli.stages.rerank import rerank
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.stages.train_lambda import train_lambda
from hybrid_cli.stages.train_reranker import train_reranker
from hybrid_cli.stages.train_sparse import train_sparse
from hybrid_cli.training import loop

pytestmark = pytest.mark.usefixtures("one_thread")

STATIC = {"batch_size": 8, "dim": 4, "candidates": (1, 3), "dynamic_negatives": 2}
TRAININGS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "codes that depend on the step": (train_dense, {"loss": "bpr"}),
    "validations": (train_dense, {"loss": "nll", "dev": "train.parquet", "eval_steps": 1}),
    "dynamic negatives": (train_dense, {"loss": "residual-nll", "index": "bm25", "dynamic_negatives": 1}),
    "adapter": (train_dense, {"loss": "nll", "lora_r": 4}),
    "scores of a reranker": (train_dense, {"distill": "kl", "teacher": "reranker", "dynamic_negatives": 1}),
    "scores of an encoder": (train_dense, {"distill": "kl", "teacher": "model", "dynamic_negatives": 1}),
    "reranker": (train_reranker, {"negatives": 1}),
    "small student": (distill_lite, {"teacher": "model", "dim": 4}),
    "query encoder": (distill_lite, {"teacher": "model", "queries_only": True}),
    **{name: (train_sparse, {"architecture": name}) for name in ("splade", "unicoil", "deepct")},
    "sparterm": (train_sparse, {"architecture": "sparterm", "mask_matches": 0.5, "chunk_size": 3}),
    "pretraining": (pretrain, {"cocondenser": True, "chunk_size": 4, "max_length": 16}),
    "static": (train_lambda, {"encoder": "static", "index": "bm25", **STATIC}),
}


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file except manifests, which record durations."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != storage.MANIFEST]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_was_resumed(
    here: Path, reranker: Path, monkeypatch: pytest.MonkeyPatch, notices: Notices, name: str
) -> None:
    stage, options = TRAININGS[name]
    Path("reranker").symlink_to(reranker)
    options = {"max_steps": 4, "checkpoint_steps": 2, "batch_size": 4, "learning_rate": 1e-2, **options}
    if "encoder" not in options:
        options |= {"model": "model", "dtype": "fp32", "device": "cpu"}
    source = Path("collection" if stage in (pretrain, train_lambda) else "train.parquet")
    whole, save = stage(source, output=Path("whole"), **options), loop.save_checkpoint

    def then_stop(*values: Any) -> None:
        save(*values)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loop, "save_checkpoint", then_stop)
        with pytest.raises(KeyboardInterrupt):
            stage(source, output=Path("again"), **options)
    assert not Path("again").exists()
    again = stage(source, output=Path("again"), **options)
    assert notices.says("resumed", step=2)
    assert files(again) == files(whole)
    assert not list(Path().glob(".again*"))


SCORED = {"model": "reranker", "dtype": "fp32", "device": "cpu", "shard_size": 4}
TAUGHT = {"model": "model", "distill": "kl", "teacher": "reranker", "max_steps": 2, "batch_size": 4, "dtype": "fp32"}
PARTS: dict[str, tuple[Callable[..., Path], str, str, dict[str, Any]]] = {
    "labels": (label, "collection", "training.labels.write_shard", {"index": "bm25", "queries_from": "all"}),
    "retriever": (label, "collection", "training.labels.write_shard", {"index": "retriever", "queries_from": "all"}),
    "reranked hits": (rerank, "bm25.parquet", "encoders.cross_encoder.write_scores", SCORED),
    "scored examples": (rerank, "train.parquet", "training.teachers.write_scores", SCORED),
    "scores of a teacher": (train_dense, "train.parquet", "training.teachers.write_scores", TAUGHT),
    "attacks": (perturb, "collection", "stages.perturb._attack", {"split": "test", "attacks": ["lite"], "seed": 1}),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_are_complete_are_not_computed_again(
    here: Path, reranker: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    compose([Path("bm25"), Path("dense")], method="minmax", output=Path("retriever"))
    Path("reranker").symlink_to(reranker)
    monkeypatch.setattr("hybrid_cli.session.SHARD_PAIRS", 4)
    monkeypatch.setattr("hybrid_cli.training.labels.QUERIES_IN_A_SHARD", 3)
    stage, source, place, options = PARTS[name]
    outputs = [Path(f"{name}.parquet" if stage is rerank else name) for name in ("whole", "again")]
    module, _, function = f"hybrid_cli.{place}".rpartition(".")
    true, calls, last = getattr(import_module(module), function), [], 99

    def counted(*values: Any, **counts: Any) -> Any:
        calls.append(1)
        if len(calls) == last:
            raise KeyboardInterrupt
        return true(*values, **counts)

    monkeypatch.setattr(f"{module}.{function}", counted)
    whole = stage(Path(source), output=outputs[0], **options)
    parts = len(calls)
    last = parts + 3
    with pytest.raises(KeyboardInterrupt):
        stage(Path(source), output=outputs[1], **options)
    assert not outputs[1].exists()
    again = stage(Path(source), output=outputs[1], **options)
    assert storage.fingerprint(again) == storage.fingerprint(whole)
    assert files(again) == files(whole) if again.is_dir() else again.read_bytes() == whole.read_bytes()
    assert not list(Path().glob(".again*"))
    assert len(calls) == 2 * parts + 1 > 6


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


def curve_of_tensorboard(folder: Path) -> Counter[tuple[int, str, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), {"scalars": 0})
    read.Reload()
    return Counter((event.step, name, event.value) for name in read.Tags()["scalars"] for event in read.Scalars(name))


@pytest.mark.parametrize("end", ["error", "kill"])
def test_a_tracker_has_every_point_once(folder: Path, tiny_bert: Path, end: str) -> None:
    words = ("--callback", "seen.py:Seen", "--track", "tensorboard")
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
    assert curve_of_tensorboard(folder / "out/model/tracking") == expected


def test_a_tracked_output_is_the_same_artifact(folder: Path, tiny_bert: Path) -> None:
    assert train(tiny_bert, "plain").code == 0
    done = train(tiny_bert, "model", "--track", "tensorboard")
    assert (done.code, done.says("tracked", path=Path("model/tracking"))) == (0, True)
    assert any((folder / "model" / "tracking").iterdir())
    assert curve_of_tensorboard(folder / "model/tracking") == points(folder / "model")
    plain, tracked = (artifacts.read_manifest(folder / name) for name in ("plain", "model"))
    assert (plain.options, plain.fingerprint) == (tracked.options, tracked.fingerprint)
    (folder / "model/tracking/more").write_text("of the tool that shows it")
    storage.check_parts(folder / "model")
    ran("inspect", "--verify", "model")
    assert train(tiny_bert, "model").says("up-to-date")
