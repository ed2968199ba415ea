"""BM25 and dense vectors in memory have the hits of the indexes on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from hybrid_cli import BM25, Dense, HybridError, InputError, evaluate, fuse, open_encoder, open_index
from hybrid_cli.collections import collection
from hybrid_cli.runs.given import documents_table, queries_table
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25

TEXTS = ["salt in sea water", "oxygen in the blood", "salt and pepper"]
ASKED = {"a": "salt water", "b": "blood", "c": "xylophone"}


def corpus_of(tiny: Path) -> pl.DataFrame:
    return pl.read_parquet(collection.corpus_path(tiny))


def test_five_lines_lead_from_texts_to_hits_of_both() -> None:
    bm25 = BM25(k1=0.9, b=0.4).index(TEXTS)
    dense = Dense(open_encoder("minilm")).index(TEXTS)
    runs = {"bm25": bm25.search("salt in water", 3), "dense": dense.search("salt in water", 3)}
    hits = fuse(runs, method="minmax", weights=[0.4, 0.6])
    assert evaluate(hits, {"0": {"0": 1}}, ["MRR@10"]) == {"MRR@10": 1.0}
    assert (len(runs["bm25"]), len(runs["dense"]), hits["docid"][0]) == (2, 3, "0")


@pytest.mark.parametrize("options", [{}, {"k1": 2.0, "b": 0.1}, {"fields": ["title=3", "text"]}, {"language": "de"}])
def test_bm25_in_memory_has_the_hits_of_an_index(tiny: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    queries = collection.read_queries(collection.queries_path(tiny, "test"))
    index_bm25(tiny, output=tmp_path / "bm25", **options)
    wanted = open_index(tmp_path / "bm25").search(queries, k=5).drop("title", "text")
    assert_frame_equal(BM25(**options).index(corpus_of(tiny)).search(queries, k=5), wanted, check_exact=True)


@pytest.mark.parametrize("k", [1, 3, 100])
def test_dense_vectors_in_memory_have_the_hits_of_an_index(tiny: Path, tiny_bert: Path, tmp_path: Path, k: int) -> None:
    queries = collection.read_queries(collection.queries_path(tiny, "test"))
    encode(tiny, model=str(tiny_bert), dtype="fp32", output=tmp_path / "dense")
    wanted = open_index(tmp_path / "dense").search(queries, k=k).drop("title", "text")
    found = Dense(open_encoder(tiny_bert, dtype="fp32")).index(corpus_of(tiny)).search(queries, k=k)
    assert_frame_equal(found, wanted, abs_tol=1e-5)


def test_every_form_of_documents_and_queries_is_the_same_table() -> None:
    wanted = documents_table(dict(enumerate_texts()))
    rows = [{"docid": docid, "text": text} for docid, text in enumerate_texts()]
    for form in (TEXTS, rows, pl.DataFrame(rows), pd.DataFrame(rows), pl.DataFrame(rows).rename({"docid": "doc_id"})):
        assert_frame_equal(documents_table(form), wanted)
    asked = queries_table(ASKED)
    frame = pl.DataFrame({"qid": list(ASKED), "text": list(ASKED.values())})
    for other in (frame, pd.DataFrame(frame.to_dict(as_series=False)), frame.rename({"qid": "query_id"})):
        assert_frame_equal(queries_table(other), asked)
    assert queries_table("salt").rows() == queries_table(["salt"]).rows() == [("0", "salt")]


def enumerate_texts() -> list[tuple[str, str]]:
    return [(str(number), text) for number, text in enumerate(TEXTS)]


def test_no_documents_and_no_queries_have_no_hits() -> None:
    index = BM25().index([])
    assert len(index.search("salt")) == len(BM25().index(TEXTS).search([])) == 0


@pytest.mark.parametrize(
    ("documents", "code"),
    [
        ("one text", "not-a-list"),
        ([1, 2], "not-a-text"),
        ([{"docid": "1"}], "no-such-column"),
        ([{"docid": "1", "text": "a"}, {"docid": 2, "text": "b"}], "other-type"),
        ([{"docid": None, "text": "a"}], "other-type"),
        ([{"docid": "1", "text": "a"}, {"docid": "1", "text": "b"}], "duplicate-id"),
    ],
)
def test_unusable_documents_are_refused(documents: Any, code: str) -> None:
    with pytest.raises(InputError) as caught:
        documents_table(documents)
    assert caught.value.code == code


def test_unusable_calls_are_refused() -> None:
    index = BM25().index(TEXTS)
    for queries, k, code in ((3, 1, "not-a-list"), ({"a": 3}, 1, "other-type"), ("a", 0, "invalid-depth")):
        with pytest.raises(InputError) as caught:
            index.search(queries, k)
        assert caught.value.code == code
    for options, code in (({"fields": ["body"]}, "no-such-column"), ({"fields": ["a=b"]}, "invalid-field")):
        with pytest.raises(HybridError) as refused:
            BM25(**options).index(TEXTS)  # type: ignore[arg-type]
        assert refused.value.code == code
