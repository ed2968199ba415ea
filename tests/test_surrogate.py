"""The surrogate pool of Lambda: 2N passages, the rank of each query's own passage, overlap with the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

from hybrid_cli.training.lambda_data import SurrogatePool

QUERIES = pl.DataFrame({"qid": ["a", "b", "c"], "text": ["0", "1", "2"]})
HITS = pl.DataFrame(
    {
        "qid": ["a", "a", "a", "b", "b", "c"],
        "docid": ["d1", "d2", "d3", "d1", "d4", "d5"],
        "rank": [1, 2, 3, 1, 2, 1],
        "score": [3.0, 2.0, 1.0, 5.0, 4.0, 9.0],
    },
    schema_overrides={"rank": pl.Int32, "score": pl.Float32},
)


class Table:
    """An encoder whose n-th query has the scores in the n-th row of a table."""

    def __init__(self, scores: list[list[float]]) -> None:
        self.scores = np.array(scores, np.float32)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self.scores[[int(text) for text in texts]]

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        return np.eye(self.scores.shape[1], dtype=np.float32)[: len(texts)]


def table(scores: list[list[float]]) -> Any:
    return Table(scores)


def texts(docids: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({"docid": sorted(docids), "title": "", "text": "x"})


def test_the_pool_has_the_top_passage_and_a_bottom_ranked_one() -> None:
    pool = SurrogatePool.of(QUERIES, HITS, texts, negatives=1)
    assert pool.queries["qid"].to_list() == ["a", "b"]  # c has a single hit
    assert pool.documents["docid"].to_list() == ["d1", "d3", "d4"]
    assert list(pool.own) == [0, 0]


@pytest.mark.parametrize(
    ("scores", "mrr"),
    [
        ([[3, 2, 1], [3, 2, 1]], 1.0),
        ([[1, 2, 3], [3, 2, 1]], (1 / 3 + 1) / 2),
        ([[2, 2, 1], [0, 0, 0]], (1 / 2 + 1 / 3) / 2),  # ties count against it
    ],
)
def test_mrr_by_hand(scores: list[list[float]], mrr: float) -> None:
    pool = SurrogatePool.of(QUERIES, HITS, texts, negatives=1)
    assert pool.measure(table(scores))["dev_MRR"] == pytest.approx(mrr)


def test_the_overlap_with_the_teacher_itself_is_one() -> None:
    known = {"d1": 3.0, "d3": 2.0, "d4": 1.0}
    pool = SurrogatePool.of(QUERIES, HITS, texts, negatives=1, score=lambda pairs: pairs["docid"].replace_strict(known))
    assert pool.measure(table([[3, 2, 1], [3, 2, 1]]))["dev_RBO"] == pytest.approx(1)
    assert pool.measure(table([[1, 2, 3], [1, 2, 3]]))["dev_RBO"] < 0.9
