"""What teachers find: the matrix and runs agree with `search`, and leave out what they are told to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_artifacts import write_corpus, write_run

from hybrid_cli.config import Labelling
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.training.labels import Hits, MatrixTeacher, RunTeacher, labelled, uniform_part

TEXTS = ["the red fox runs", "a red  fox\nruns", "the red fox", "grey owls fly", "", "red fox runs over red fields"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("labelling") / "corpus.parquet", TEXTS)


@pytest.fixture(scope="module")
def index(corpus: Path) -> LexicalIndex:
    return LexicalIndex.open(index_bm25(corpus, output=corpus.parent / "bm25", threads=1))


def queries(*texts: str, rows: list[int | None] | None = None) -> pl.DataFrame:
    sources = rows or [None] * len(texts)
    return pl.DataFrame(
        {
            "qid": [f"q{n}" for n in range(len(texts))],
            "text": list(texts),
            "source": [None if row is None else f"d{row}" for row in sources],
            "row": sources,
        },
        schema={"qid": pl.String, "text": pl.String, "source": pl.String, "row": pl.Int64},
    )


def lists(hits: Hits) -> list[list[str]]:
    counts, docids, _ = hits
    return [part.tolist() for part in np.split(docids.to_numpy(), np.cumsum(counts)[:-1])]


def test_the_matrix_finds_what_search_finds(index, corpus):
    asked = queries("red fox runs", "unknown", "owls")
    found = labelled(asked, MatrixTeacher(index, corpus, Labelling(depth=2)).hits(asked))
    run = index.search(asked, 2)
    assert found["qid"].to_pylist() == ["q0", "q2"]
    for row in found.to_pylist():
        hits = run.filter(pl.col("qid") == row["qid"])
        assert (row["docids"], row["scores"]) == (hits["docid"].to_list(), hits["score"].to_list())
        assert row["source"] is None


def test_a_sentence_finds_its_own_passage_unless_told_otherwise(index, corpus):
    asked = queries("the red fox runs", "grey owls fly", rows=[0, 3])
    kept, dropped = (
        MatrixTeacher(index, corpus, Labelling(depth=3, keep_own=keep)).hits(asked) for keep in (True, False)
    )
    assert lists(kept) == [["d0", "d1", "d5"], ["d3"]]
    assert lists(dropped) == [["d1", "d5", "d2"], []], "others take the place of what was left out"
    assert labelled(asked, dropped)["qid"].to_pylist() == ["q0"]


def test_passages_with_the_text_of_the_query_go_when_asked_white_space_aside(index, corpus):
    asked = queries("a red fox runs", "the red\tfox ", "owls", rows=[5, 2, 3])
    how = Labelling(keep_same_text=False)
    assert lists(MatrixTeacher(index, corpus, how).hits(asked)) == [["d0", "d5", "d2"], ["d5", "d0", "d1"], ["d3"]]
    both = Labelling(keep_same_text=False, keep_own=False)
    assert lists(MatrixTeacher(index, corpus, both).hits(asked)) == [["d0", "d2"], ["d5", "d0", "d1"], []]


def test_a_run_gives_its_own_order_to_the_depth(tmp_path, corpus):
    hits = [("q1", "d3", 1, 9.0), ("q1", "d0", 2, 9.0), ("q1", "d2", 3, 1.0), ("q0", "d5", 1, 0.5), ("x", "d9", 1, 1.0)]
    run, asked = write_run(tmp_path / "run.parquet", hits), queries("the red fox", "grey owls fly", "nothing")
    teacher = RunTeacher(run, asked, corpus, Labelling(depth=2))
    assert lists(teacher.hits(asked)) == [["d5"], ["d3", "d0"], []]
    assert lists(teacher.hits(asked[1:2])) == [["d3", "d0"]]
    assert labelled(asked, teacher.hits(asked))["scores"].to_pylist() == [[0.5], [9.0, 9.0]]
    without = RunTeacher(run, asked, corpus, Labelling(depth=2, keep_same_text=False))
    assert lists(without.hits(asked)) == [["d5"], ["d0", "d2"], []]


def test_a_run_of_other_documents_or_other_queries_is_refused(tmp_path, corpus):
    asked = queries("the red fox")
    run = write_run(tmp_path / "run.parquet", [("q0", f"z{n}", n + 1, 1.0) for n in range(5)] + [("q0", "d0", 6, 0.5)])
    with pytest.raises(InputError, match=r"5 of its documents are not in .* \(z0, z1, z2, \.\.\.\); name a run over"):
        RunTeacher(run, asked, corpus, Labelling())
    other = write_run(tmp_path / "other.parquet", [("q7", "d0", 1, 1.0)])
    with pytest.raises(InputError, match="answers none of the 1 queries"):
        RunTeacher(other, asked, corpus, Labelling())


@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=9), data=st.data(), seed=st.integers(0, 99))
def test_a_part_has_the_size_asked_for_whatever_the_blocks(sizes, data, seed):
    rows = pl.DataFrame({"row": range(sum(sizes))}, schema={"row": pl.Int64})
    wanted = data.draw(st.integers(0, len(rows)))
    ends = np.cumsum(sizes).tolist()
    blocks = [rows[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    part = pl.concat([rows.clear(), *uniform_part(blocks, len(rows), wanted, seed)])["row"].to_list()
    assert len(set(part)) == len(part) == wanted
    assert part == sorted(part)
    assert part == pl.concat(uniform_part([rows], len(rows), wanted, seed))["row"].to_list()


def test_every_query_is_as_likely_to_be_in_the_part():
    rows = pl.DataFrame({"row": range(10)})
    taken = Counter(row for seed in range(2000) for part in uniform_part([rows], 10, 3, seed) for row in part["row"])
    assert all(abs(taken[row] - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5 for row in range(10))
