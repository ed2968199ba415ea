"""Training in two processes gives the weights of one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_train_dense import write_examples

from hybrid_cli.encoders.open_encoder import open_encoder
from hybrid_cli.stages.train_dense import train_dense

PLAN: dict[str, Any] = {
    "batch_size": 6, "epochs": 2, "max_steps": 4, "learning_rate": 1e-3, "precision": "fp32", "checkpoint_steps": 2,
}  # fmt: skip
TEXTS = ["river bank", "inverse of a square matrix"]


@pytest.fixture(scope="module")
def without_dropout(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without dropout, which differs between processes."""
    folder = tmp_path_factory.mktemp("model") / "bert"
    shutil.copytree(tiny_bert, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("options", [[], ["--chunk-size", "2"]], ids=["plain", "cached"])
def test_two_processes_give_the_weights_of_one(without_dropout: Path, tmp_path: Path, options: list[str]) -> None:
    examples = write_examples(tmp_path / "examples.parquet")
    dev = write_examples(tmp_path / "dev.parquet", 6, seed=1)
    alone = train_dense(examples, output=tmp_path / "alone", model=str(without_dropout), loss="nll", dev=dev, **PLAN)
    together = tmp_path / "together"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hybrid_cli"),
        *("train-dense", str(examples), "--model", str(without_dropout), "--loss", "nll", "--output", str(together)),
        *("--batch-size", "6", "--epochs", "2", "--max-steps", "4", "--lr", "1e-3", "--precision", "fp32"),
        *("--checkpoint-steps", "2", "--dev", str(dev), *options),
    ]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("train-dense: ") == 1, "only the first process prints"
    vectors = [open_encoder(folder).encode_queries(TEXTS) for folder in (alone, together)]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-4)
    untrained = open_encoder(without_dropout).encode_queries(TEXTS)
    assert not np.allclose(vectors[0], untrained, atol=1e-2)
