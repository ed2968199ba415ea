"""Training in memory ends with the weights of `train-dense` on a file of the same examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from hybrid_cli import InputError, open_encoder
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.train_dense import train_dense
from hybrid_cli.training import Callback, train
from hybrid_cli.training.in_memory import examples_table
from hybrid_cli.training.options import Sampling

PLAN: dict[str, Any] = {"batch_size": 2, "max_steps": 3, "learning_rate": 1e-3, "precision": "fp32"}
EXAMPLE = {"query": "salt", "positive": "salt in water", "negatives": ["oxygen", "pepper"]}


class Recorded(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        assert values["nll"] > 0
        self.steps.append(step)


@pytest.mark.parametrize("loss", ["nll", "margin"])
def test_the_weights_are_those_of_the_command(
    tiny: Path, tiny_bm25: Path, tiny_bert: Path, tmp_path: Path, loss: str
) -> None:
    mined = mine_negatives(tiny, split="train", index=tiny_bm25, output=tmp_path / "train.parquet")
    train_dense(mined, model=str(tiny_bert), loss=loss, output=tmp_path / "encoder", **PLAN)
    examples = [
        {"query": row["query"], "positive": document(row), "negatives": [document(each) for each in row["negatives"]]}
        for row in pq.read_table(mined).to_pylist()
    ]
    trained = train(examples, tiny_bert, loss=loss, options=Sampling(**PLAN))
    wanted = open_encoder(tmp_path / "encoder", dtype="fp32")
    texts = ["salt in sea water", "oxygen"]
    np.testing.assert_array_equal(trained.encode_queries(texts), wanted.encode_queries(texts))


def document(row: dict[str, Any]) -> dict[str, str]:
    return {name: row[name] for name in ("docid", "title", "text")}


def test_callbacks_receive_every_step(tiny_bert: Path) -> None:
    recorded = Recorded()
    train([EXAMPLE] * 3, tiny_bert, options=Sampling(**PLAN), callbacks=[recorded])
    assert recorded.steps == [1, 2, 3]


def test_equal_texts_are_one_document_and_one_query() -> None:
    table = examples_table([EXAMPLE, EXAMPLE | {"positive": {"title": "", "text": "salt in water"}}])
    assert table["qid"].to_pylist() == ["0", "0"]
    assert table["docid"].to_pylist() == ["0", "0"]


@pytest.mark.parametrize(
    ("example", "code"),
    [
        ({"positive": "salt", "negatives": []}, "no-query"),
        ({"query": "salt", "negatives": ["a"]}, "no-documents"),
        ({"query": "salt", "positive": 3, "negatives": ["b"]}, "not-a-text"),
    ],
)
def test_unusable_examples_are_refused(example: Any, code: str) -> None:
    with pytest.raises(InputError) as caught:
        train([example])
    assert caught.value.code == code


@pytest.mark.parametrize(("loss", "code"), [("nothing", "unknown-choice"), ("residual-nll", "needs-scorer")])
def test_a_loss_that_needs_more_is_refused(loss: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        train([EXAMPLE], loss=loss)
    assert caught.value.code == code
