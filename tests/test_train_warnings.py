"""Messages about trainings whose options have no effect, whose validation misleads, or that would discard another."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import Notices, raises
from safetensors.torch import load_file, save_file
from test_train_dense import PLAN, write_examples
from trainings import weights

from hybrid_cli import storage
from hybrid_cli.errors import DamageError, HybridError
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.storage import layout
from hybrid_cli.training import loop
from hybrid_cli.training.dev_set import DevRetrieval

pytestmark = pytest.mark.usefixtures("one_thread")


class Stop(Exception):
    """In place of a kill."""


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"negatives": 5}, {"few-negatives": {"option": "negatives", "value": 5, "most": 3}}),
        ({"keep_epochs": True}, {"no-effect": {"option": "keep_epochs", "steps": 2}}),
        ({"warmup": 2}, {"no-effect": {"option": "warmup", "value": 2, "steps": 2}}),
        ({"negatives": 3, "warmup": 1, "loss": "nll", "dynamic_negatives": 5}, {}),
    ],
)
def test_options_without_their_effect_are_named(
    examples: Path,
    tiny_bert: Path,
    tmp_path: Path,
    notices: Notices,
    options: dict[str, Any],
    warned: dict[str, dict[str, Any]],
) -> None:
    train_dense(examples, output=tmp_path / "x", model=str(tiny_bert), **{**PLAN, "max_steps": 2, **options})
    assert notices.warnings == [*warned]
    assert all(notices.says(code, **fields) for code, fields in warned.items())


@pytest.fixture
def interrupted(
    examples: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, Any]]:
    """The output path and the options of a training that stopped after its first checkpoint."""
    options = {**PLAN, "max_steps": 6, "model": str(tiny_bert), "output": tmp_path / "x"}
    save = loop.save_checkpoint

    def then_stop(*inputs: Any) -> None:
        save(*inputs)
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(loop, "save_checkpoint", then_stop)
        with pytest.raises(Stop):
            train_dense(examples, **options)
    return tmp_path / "x", options


def test_a_checkpoint_of_another_call_is_not_discarded_without_overwrite(
    examples: Path, tmp_path: Path, interrupted: tuple[Path, dict[str, Any]], notices: Notices
) -> None:
    output, options = interrupted
    with raises("checkpoint-of-another-call", path="x"):
        train_dense(examples, **{**options, "learning_rate": 1e-2})
    assert (tmp_path / ".x.partial" / layout.CHECKPOINT).is_dir()
    notices.clear()
    train_dense(examples, **options)
    assert notices.says("resumed", step=2)
    train_dense(examples, **{**options, "output": tmp_path / "whole"})
    assert weights(output) == weights(tmp_path / "whole")


@pytest.mark.parametrize("change", [{"max_steps": 1, "overwrite": True}, {"checkpoint_steps": 1}])
def test_overwrite_discards_a_checkpoint_and_checkpoints_may_be_stored_more_often(
    examples: Path, interrupted: tuple[Path, dict[str, Any]], notices: Notices, change: dict[str, Any]
) -> None:
    output, options = interrupted
    notices.clear()
    train_dense(examples, **{**options, **change})
    assert notices.says("resumed", step=2) is ("overwrite" not in change)
    assert (output / layout.WEIGHTS).is_file()


@pytest.mark.parametrize("seed", [0, 1])
def test_dev_queries_are_counted(examples: Path, tiny_bert: Path, tmp_path: Path, notices: Notices, seed: int) -> None:
    """Examples of another seed have the same ids and other texts."""
    dev = write_examples(tmp_path / "dev.parquet", seed=seed)
    plan = {**PLAN, "max_steps": 1, "dev": dev, "dev_queries": 4, "model": str(tiny_bert)}
    train_dense(examples, output=tmp_path / "x", **plan)
    assert notices.says("trained-on-queries", path=dev, count=4, queries=4) is (seed == 0)
    train_dense(examples, output=tmp_path / "y", **{**plan, "loss": "nll", "dynamic_negatives": 300})
    assert notices.says("small-pool", count=300)


def test_a_validation_names_its_criterion(tiny: Path, tiny_bert: Path, tmp_path: Path, notices: Notices) -> None:
    how: dict[str, Any] = {"split": "train", "sources": "random:2", "index": tmp_path / "bm25"}
    index_bm25(tiny, output=tmp_path / "bm25")
    dev = mine_negatives(tiny, output=tmp_path / "dev.parquet", **how)
    for k1, criterion in ((None, "dev_hybrid_MRR@10"), (2.0, "dev_MRR@10")):
        if k1:
            index_bm25(tiny, output=tmp_path / "bm25", k1=k1, overwrite=True)
        out = tmp_path / criterion
        train_dense(dev, output=out, model=str(tiny_bert), dev=dev, loss="nll", max_steps=1, dtype="fp32")
        assert notices.says("validation", criterion=criterion)
        assert notices.says("index-changed", path=dev) is bool(k1)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", [layout.WEIGHTS, layout.OPTIMIZER, layout.CHECKSUM])
def test_a_damaged_checkpoint_is_not_resumed(
    examples: Path, tmp_path: Path, interrupted: tuple[Path, dict[str, Any]], name: str, cut: bool
) -> None:
    output, options = interrupted
    damaged(tmp_path / ".x.partial" / layout.CHECKPOINT / name, cut)
    with raises("damaged", DamageError, path=".checkpoint"):
        train_dense(examples, **options)
    assert not output.exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_code_is_refused(
    examples: Path, tmp_path: Path, interrupted: tuple[Path, dict[str, Any]], protocol: int
) -> None:
    """PyTorch knows the instructions of some protocols of pickle only."""
    output, options = interrupted
    folder = tmp_path / ".x.partial" / layout.CHECKPOINT
    (folder / layout.OPTIMIZER).write_bytes(pickle.dumps({"optimizer": Path}, protocol=protocol))
    (folder / layout.CHECKSUM).write_text(storage.hash_folder(folder, (layout.CHECKSUM,)))
    with raises("checkpoint-of-another-version"):
        train_dense(examples, **options)
    assert not output.exists()


@pytest.mark.parametrize("stored", ["0.1.9", None])
def test_a_checkpoint_of_another_version_is_refused(
    examples: Path, tmp_path: Path, interrupted: tuple[Path, dict[str, Any]], stored: str | None
) -> None:
    """Its model and its optimizer may have other parameters, and its steps another meaning."""
    output, options = interrupted
    key = tmp_path / ".x.partial" / ".key"
    call = json.loads(key.read_text())
    key.write_text(json.dumps(call[:-1] if stored is None else [*call[:-1], stored]))
    with raises("checkpoint-of-another-version"):
        train_dense(examples, **options)
    assert (tmp_path / ".x.partial" / layout.CHECKPOINT).is_dir()
    train_dense(examples, **options, overwrite=True)
    assert output.is_dir()


def test_a_checkpoint_that_does_not_fit_is_refused(
    examples: Path, interrupted: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = loop.parameter_groups
    monkeypatch.setattr(loop, "parameter_groups", lambda *given: [*groups(*given), {"params": []}])  # of other code
    with raises("checkpoint-of-another-version", path=f".x.partial/{layout.CHECKPOINT}"):
        train_dense(examples, **interrupted[1])


@pytest.mark.parametrize("cut", [False, True])
def test_damaged_best_weights_are_not_published(
    examples: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """The weights of step 0 are the best, and are damaged before the last step."""
    save = loop.save_checkpoint

    def then_damage(work: Path, *others: Any) -> None:
        save(work, *others)
        damaged(work / layout.BEST_WEIGHTS.format(0), cut)

    monkeypatch.setattr(loop, "save_checkpoint", then_damage)
    plan = {**PLAN, "max_steps": 3, "eval_steps": 3, "checkpoint_steps": 1, "learning_rate": 1e-9}
    values = [0.2, 0.1]
    monkeypatch.setattr(DevRetrieval, "measure", lambda self: {"dev_MRR@10": values.pop(0)})
    with raises("damaged", DamageError, path=".best-0.safetensors"):
        train_dense(examples, output=tmp_path / "x", model=str(tiny_bert), dev=examples, **plan)
    assert not (tmp_path / "x").exists()


def test_best_weights_later_than_the_checkpoint_are_not_used_after_a_kill(
    examples: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the best weights of step 2 were stored, before a checkpoint; resumed where rounding differs, so that
    step 2 is not the best any more."""
    plan = {**PLAN, "eval_steps": 1, "checkpoint_steps": 1, "schedule": "constant"}
    options = {**plan, "max_steps": 3, "model": str(tiny_bert), "dev": examples}
    save, best = loop.save_checkpoint, [0.1, 0.2, 0.3]

    def then_stop(work: Path, model: Any, optimizer: Any, scaler: Any, state: loop.Progress) -> None:
        if state.step == 2:
            raise Stop
        save(work, model, optimizer, scaler, state)

    with monkeypatch.context() as patched:
        patched.setattr(DevRetrieval, "measure", lambda self: {"dev_MRR@10": best.pop(0)})
        patched.setattr(loop, "save_checkpoint", then_stop)
        with pytest.raises(Stop):
            train_dense(examples, output=tmp_path / "x", **options)
    assert not best
    monkeypatch.setattr(DevRetrieval, "measure", lambda self: {"dev_MRR@10": 0.15})
    train_dense(examples, output=tmp_path / "x", **options)
    train_dense(examples, output=tmp_path / "one", **{**options, "max_steps": 1})
    assert weights(tmp_path / "x") == weights(tmp_path / "one")


def damaged(file: Path, cut: bool) -> None:
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(
        content[:middle] if cut else content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    )


@pytest.mark.parametrize(("rate", "step"), [(1e-3, 1), (1e9, 2)])
def test_values_not_finite_are_named(examples: Path, tiny_bert: Path, tmp_path: Path, rate: float, step: int) -> None:
    start = shutil.copytree(tiny_bert, tmp_path / "start")
    if rate < 1:
        tensors = load_file(start / layout.WEIGHTS)
        next(iter(tensors.values())).fill_(float("nan"))
        save_file(tensors, start / layout.WEIGHTS, {"format": "pt"})
    plan = {**PLAN, "max_steps": 3, "learning_rate": rate, "warmup": 0.0}
    with raises("values-not-finite", HybridError, step=step):
        train_dense(examples, output=tmp_path / "x", model=str(start), **plan)
