"""The surrogate pool of a Lambda: 2N passages, the rank of each query's own, overlap with the teacher."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.surrogate import SurrogatePool

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
    """An encoder whose query n has the n-th row of a table of scores."""

    def __init__(self, scores: list[list[float]]):
        self.scores = np.array(scores, np.float32)

    def encode_queries(self, texts):
        return self.scores[[int(text) for text in texts]]

    def encode_documents(self, titles, texts):
        return np.eye(self.scores.shape[1], dtype=np.float32)[: len(texts)]


def texts(docids: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({"docid": sorted(docids), "title": "", "text": "x"})


def test_the_pool_has_each_best_passage_and_one_of_the_worst():
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
def test_mrr_by_hand(scores, mrr):
    pool = SurrogatePool.of(QUERIES, HITS, texts, negatives=1)
    assert pool.measure(Table(scores))["dev_MRR"] == pytest.approx(mrr)


def test_overlap_is_one_with_the_teacher_itself():
    known = {"d1": 3.0, "d3": 2.0, "d4": 1.0}
    pool = SurrogatePool.of(QUERIES, HITS, texts, negatives=1, score=lambda pairs: pairs["docid"].replace_strict(known))
    assert pool.measure(Table([[3, 2, 1], [3, 2, 1]]))["dev_RBO"] == pytest.approx(1)
    assert pool.measure(Table([[1, 2, 3], [1, 2, 3]]))["dev_RBO"] < 0.9


def test_queries_with_one_hit_are_not_enough():
    with pytest.raises(InputError, match="none of the dev queries has two hits"):
        SurrogatePool.of(QUERIES, HITS.filter(pl.col("rank") == 1), texts)
