"""Training in two processes gives the weights of one process, on devices of their own."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import cases, raises
from gradient_descent import TOLERANCE, errors
from processes import Started
from safetensors.torch import load_file
from test_train_dense import write_examples
from torch import distributed

from hybrid_cli.encoders.models import pick_device
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.label import label
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.storage import layout
from hybrid_cli.training import parallel

PLAN = ("--max-steps", "4", "--checkpoint-steps", "2", "--clip", "1e9")  # gradients are not scaled
TRANSFORMER = ("--epochs", "2", "--device", "cpu", "--lr", "0.02", "--dtype", "fp32", "--batch-size", "7")
COMMANDS = {
    "plain": ("train-dense", "{examples}", "--model", "{model}", "--loss", "nll", "--dev", "{dev}", *TRANSFORMER),
    "cached": ("train-dense", "{examples}", "--model", "{model}", "--loss", "bpr", "--chunk-size", "2", *TRANSFORMER),
    "weighted": (
        *("train-dense", "{mined}", "--model", "{model}", "--loss", "residual-nll", "--index", "{index}"),
        *("--scorer-schedule", "learned", *TRANSFORMER, "--epochs", "4", "--lr", "1e-6"),
    ),
    "taught": (
        *("train-dense", "{mined}", "--model", "{model}", "--loss", "residual-nll", "--index", "{index}"),
        *("--distill", "margin-mse", "--teacher", "{reranker}", *TRANSFORMER, "--epochs", "4"),
    ),
    "refreshed": (
        *("train-dense", "{mined}", "--model", "{model}", "--dynamic-negatives", "1", "--refresh-negatives", "2"),
        *(*TRANSFORMER, "--epochs", "4"),
    ),
    "sparse": ("train-sparse", "{examples}", "--architecture", "splade", "--model", "{model}", *TRANSFORMER),
    "deepct": ("train-sparse", "{examples}", "--architecture", "deepct", "--model", "{model}", *TRANSFORMER),
    "sparterm": (
        *("train-sparse", "{examples}", "--architecture", "sparterm", "--model", "{model}", *TRANSFORMER),
        *("--lr", "1e-3"),
    ),
    "reranker": ("train-reranker", "{examples}", "--model", "{model}", "--mask-matches", "0.5", *TRANSFORMER),
    "roc": (
        *("train-dense", "{mined}", "--model", "{model}", "--loss", "roc", "--index", "{index}"),
        *("--ortho-weight", "1", "--mask-matches", "0.3", *TRANSFORMER, "--epochs", "4"),
    ),
    "student": ("distill-lite", "{examples}", "--teacher", "{model}", "--model", "{model}", "--dim", "4", *TRANSFORMER),
    "lambda": (
        *("train-lambda", "{collection}", "--labels", "{labels}", "--loss", "listwise", "--positives", "2"),
        *("--model", "{model}", *TRANSFORMER, "--epochs", "4"),
    ),
    "mlm": ("pretrain", "{collection}", "--model", "{model}", *TRANSFORMER),
    "cocondenser": ("pretrain", "{collection}", "--model", "{model}", "--cocondenser", *TRANSFORMER),
    "static": (
        *("train-lambda", "{collection}", "--encoder", "static", "--index", "{index}", "--dim", "4", "--lr", "0.1"),
        *("--batch-size", "5", "--candidates", "2", "6"),
    ),
}
FAULTS = {  # wrong reductions: factors of the gradients of the two processes, which encode 3 and 4 of 7 queries
    "mean of the processes": (1 / 2, 1 / 2),
    "mean of their means": (7 / 6, 7 / 8),
    "first process only": (1, 0),
}
RUN = """
import json, os, sys
import torch
from torch import distributed
from command import hybrid
from gradient_descent import gradient_descent
from hybrid_cli.training import parallel
parallel.BUCKET = 2000  # fewer values than some parameters have, and more than others
if "WORLD_SIZE" in os.environ:
    distributed.init_process_group("gloo")  # one group of processes for all commands
summed = parallel.sum_gradients

def weighted(parameters):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= factors[parallel.rank()]
    summed(parameters)

for factors, words in json.loads(sys.argv[1]):
    parallel.sum_gradients = weighted if factors else summed
    with gradient_descent() as steps:
        done = hybrid(*words)
    print(done.err, file=sys.stderr)
    if done.code:
        sys.exit(done.code)
    if not parallel.rank():
        torch.save(steps, words[-1] + ".pt")
"""


@pytest.fixture(scope="module")
def without_dropout(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without dropout, which differs between processes."""
    folder = tmp_path_factory.mktemp("model") / "bert"
    shutil.copytree(tiny_bert, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def sources(
    tiny: Path, without_dropout: Path, reranker: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sources")
    index = index_bm25(tiny, output=folder / "bm25", threads=1)
    return {
        "examples": str(write_examples(folder / "examples.parquet")),
        "dev": str(write_examples(folder / "dev.parquet", 6, seed=3)),
        "model": str(without_dropout),
        "reranker": str(reranker),
        "collection": str(tiny),
        "index": str(index),
        "mined": str(mine_negatives(tiny, split="train", index=index, output=folder / "mined.parquet")),
        "labels": str(label(tiny, index=index, split="train", output=folder / "labels", depth=5)),
    }


CASES = cases(COMMANDS, "plain", "cached", "sparse", "reranker", "lambda", "mlm", "static")  # of each learner


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, sources: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Train with each selected command in one process, in two, and in two with wrong reductions.

    Returns:
        Folder of the encoders and of the gradients of their steps; messages of the two processes.
    """
    cases = [getattr(each, "callspec", None) for each in request.session.items if each.path == request.path]
    selected = {each.params.get("name") for each in cases if each is not None}
    folder = tmp_path_factory.mktemp("trained")
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    of_torchrun = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks = [of_torchrun | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    messages = ""
    faults = {name: (factors, (*PLAN, "--max-steps", "1")) for name, factors in FAULTS.items()}
    for names, environments in ({"one": ([], PLAN)}, [{}]), ({"two": ([], PLAN), **faults}, ranks):
        commands = [
            (factors, [part.format(**sources) for part in (*command, *plan, "--output", f"{folder}/{each}-{name}")])
            for each, command in COMMANDS.items()
            if each in selected
            for name, (factors, plan) in names.items()
        ]
        started = [Started(RUN, json.dumps(commands), **environment) for environment in environments]
        ended = [process.wait() for process in started]
        messages = "".join(each.stderr for each in ended)
        assert not any(each.returncode for each in ended), messages
    return folder, messages


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_gradients_and_weights_of_one(trained: tuple[Path, str], name: str) -> None:
    folder, messages = trained
    one, two = (torch.load(folder / f"{name}-{processes}.pt") for processes in ("one", "two"))
    assert max(errors(two, one)) < TOLERANCE
    one, two = (weights(folder / f"{name}-{processes}") for processes in ("one", "two"))
    np.testing.assert_allclose(two, one, atol=1e-4)
    curves = [pl.read_parquet(folder / f"{name}-{processes}" / layout.CURVE) for processes in ("one", "two")]
    assert curves[0].select("step", "name").equals(curves[1].select("step", "name"))
    np.testing.assert_allclose(curves[1]["value"], curves[0]["value"], rtol=1e-4, atol=1e-4)
    assert messages.count(f"{folder / name}-two: ") == 1, "only the first process prints"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_reduction_gives_other_gradients(trained: tuple[Path, str], name: str, fault: str) -> None:
    right, wrong = (torch.load(trained[0] / f"{name}-{each}.pt")[:1] for each in ("one", fault))
    assert errors(wrong, right)[0] > 50 * TOLERANCE


def weights(folder: Path) -> np.ndarray:
    tables = [load_file(file) for file in sorted(folder.rglob("*.safetensors"))]
    return np.concatenate([each.numpy().ravel() for table in tables for each in table.values()])


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """Let PyTorch report some GPUs, and record the one that is selected before the processes join."""

    def report(count: int, local_rank: int = 0, processes: int = 1) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []
        empty = torch.empty

        def allocate(*shape: Any, device: Any = None, **options: Any) -> torch.Tensor:
            wanted = torch.device(device or "cpu")
            if wanted.type == "cuda" and (wanted.index or 0) >= count:
                raise RuntimeError("CUDA error: invalid device ordinal")
            return empty(*shape, **options)

        monkeypatch.setattr(torch, "empty", allocate)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("use", str(device))))
        monkeypatch.setattr(
            distributed,
            "init_process_group",
            lambda backend, device_id=None, timeout=None: calls.append(("join", backend, str(device_id))),
        )
        for name, value in (("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", processes), ("WORLD_SIZE", processes)):
            monkeypatch.setenv(name, str(value))
        return calls

    return report


@pytest.mark.parametrize(
    ("device", "local_rank", "processes", "found"),
    [("auto", 0, 1, "cuda:0"), ("cuda:1", 0, 1, "cuda:1"), ("auto", 1, 2, "cuda:1"), ("cpu", 1, 2, "cpu")],
)
def test_each_process_has_its_gpu(
    gpus: Callable[..., Any], device: str, local_rank: int, processes: int, found: str
) -> None:
    gpus(2, local_rank, processes)
    assert pick_device(device) == found


@pytest.mark.parametrize(
    ("device", "local_rank", "processes", "message"),
    [
        ("cuda:1", 0, 2, {"code": "conflicting-options", "option": "device"}),
        ("auto", 2, 3, {"code": "no-gpu", "option": "device"}),
        ("cuda:7", 0, 1, {"code": "no-such-device", "option": "device", "value": "cuda:7"}),
    ],
)
def test_processes_that_would_share_a_gpu_are_refused(
    gpus: Callable[..., Any], device: str, local_rank: int, processes: int, message: dict[str, Any]
) -> None:
    gpus(2, local_rank, processes)
    with raises(**message):
        pick_device(device)


def test_a_process_uses_its_gpu_before_nccl_starts(gpus: Callable[..., Any]) -> None:
    calls = gpus(2, local_rank=1, processes=2)
    parallel.start(pick_device("auto"))
    assert calls == [("use", "cuda:1"), ("join", "nccl", "cuda:1")]


def test_processes_on_cpus_of_a_machine_with_gpus_use_gloo(gpus: Callable[..., Any]) -> None:
    calls = gpus(2, local_rank=1, processes=2)
    parallel.start(pick_device("cpu"))
    assert calls == [("join", "gloo", "None")]


def test_shares_cover_all_items_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    items = list(range(7))
    for processes in (1, 2, 3, 9):
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "get_world_size", lambda processes=processes: processes)
        found = []
        for rank in range(processes):
            monkeypatch.setattr(distributed, "get_rank", lambda rank=rank: rank)
            found.append(parallel.share(items))
        assert [item for mine in found for item in mine] == items
        assert list(map(len, found)) == parallel.shares(7)
        assert np.ptp(list(map(len, found))) <= 1
