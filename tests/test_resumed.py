"""A call that was interrupted ends, when it is repeated, with the files of one that was not."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command import Notices

from hybrid_cli import storage
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.distill_lite import distill_lite
from hybrid_cli.stages.label import label
from hybrid_cli.stages.perturb import perturb
from hybrid_cli.stages.pretrain import pretrain
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
def test_a_training_that_was_resumed(here: Path, monkeypatch: pytest.MonkeyPatch, notices: Notices, name: str) -> None:
    stage, options = TRAININGS[name]
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


PARTS: dict[str, tuple[Callable[..., Path], str, str, dict[str, Any]]] = {
    "labels": (label, "collection", "training.labels.write_shard", {"index": "bm25", "queries_from": "all"}),
    "retriever": (label, "collection", "training.labels.write_shard", {"index": "retriever", "queries_from": "all"}),
    "attacks": (perturb, "collection", "stages.perturb._attack", {"split": "test", "attacks": ["lite"], "seed": 1}),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_are_complete_are_not_computed_again(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    compose([Path("bm25"), Path("dense")], method="minmax", output=Path("retriever"))
    monkeypatch.setattr("hybrid_cli.stages.label.QUERIES_IN_A_SHARD", 3)
    stage, source, place, options = PARTS[name]
    module, _, function = f"hybrid_cli.{place}".rpartition(".")
    true, calls, last = getattr(import_module(module), function), [], 99

    def counted(*values: Any, **counts: Any) -> Any:
        calls.append(1)
        if len(calls) == last:
            raise KeyboardInterrupt
        return true(*values, **counts)

    monkeypatch.setattr(f"{module}.{function}", counted)
    whole = stage(Path(source), output=Path("whole"), **options)
    parts = len(calls)
    last = parts + 3
    with pytest.raises(KeyboardInterrupt):
        stage(Path(source), output=Path("again"), **options)
    assert not Path("again").exists()
    again = stage(Path(source), output=Path("again"), **options)
    assert storage.fingerprint(again) == storage.fingerprint(whole)
    assert len(calls) == 2 * parts + 1 > 6
