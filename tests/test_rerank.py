"""`rerank`: rescored hits first and all others in their order; shards and resumption; depths; refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Notices, Refusal, hybrid, raises, refusal, refused
from hypothesis import given
from hypothesis import strategies as st
from small_artifacts import write_run
from test_report import Page
from tiny_collection import TINY_DOCUMENTS, TINY_QUERIES

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts.lineage import corpus_of, queries_of
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.stages.report import report
from hybrid_cli.stages.rerank import rerank
from hybrid_cli.storage import Kind

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS: dict[str, Any] = {"dtype": "fp32", "device": "cpu", "threads": 1}


def scored(reranker: Path, run: pl.DataFrame, queries: dict[str, str]) -> pl.DataFrame:
    """Return the pairs of a run with their scores, one by one."""
    texts = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}
    model = CrossEncoder.load(reranker, device="cpu")
    pairs = [(queries[qid], *texts[docid]) for qid, docid in run.select("qid", "docid").iter_rows()]
    rows = pl.DataFrame(pairs, schema=["query", "title", "text"], orient="row")
    alone = [model.scores(rows[row])[0][0] for row in range(len(rows))]
    return run.with_columns(new_score=pl.Series(alone, dtype=pl.Float32))


# ---------------------------------------------------------------------------------------------------- the order of hits


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=4),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_no_document_is_lost_and_the_rest_keeps_its_order(lists: list[list[int]], depth: int, random: Any) -> None:
    rows = [
        (f"q{query}", f"d{place}", place + 1, float(score))
        for query, scores in enumerate(lists)
        for place, score in enumerate(sorted(scores, reverse=True))
    ]
    hits = pl.DataFrame(rows, schema=runs.SCHEMA, orient="row")
    new = [random.choice([-1.0, 0.0, 2.5]) if rank <= depth else None for rank in hits["rank"]]
    found = runs.rerank_hits(hits.with_columns(new_score=pl.Series(new, dtype=pl.Float32)), depth)
    assert found.schema == runs.SCHEMA
    for (qid,), before in hits.with_columns(new=pl.Series(new)).group_by("qid", maintain_order=True):
        after = found.filter(qid=qid)
        assert after["rank"].to_list() == list(range(1, len(before) + 1))
        first = before.filter(pl.col("rank") <= depth).sort(["new", "docid"], descending=[True, False])
        assert after["docid"].to_list() == first["docid"].to_list() + before["docid"].to_list()[depth:]
        assert after["score"].head(depth).to_list() == first["new"].to_list()
        assert (after["score"].diff().drop_nulls() <= 0).all()
        assert not set(after["score"][:depth]) & set(after["score"][depth:]), "equal to a rescored hit"


def test_the_other_hits_keep_their_distances() -> None:
    hits = pl.DataFrame(
        [("q", "a", 1, 9.0, 0.5), ("q", "b", 2, 7.0, 3.0), ("q", "c", 3, 6.5, None), ("q", "d", 4, 2.0, None)],
        schema=[*runs.SCHEMA, "new_score"],
        orient="row",
    )
    found = runs.rerank_hits(hits, 2)
    assert found.rows() == [("q", "b", 1, 3.0), ("q", "a", 2, 0.5), ("q", "c", 3, 0.0), ("q", "d", 4, -4.5)]


# ------------------------------------------------------------------------------------------------------------ the stage


def test_the_top_hits_have_the_scores_of_their_texts(made: Path, reranker: Path, tmp_path: Path) -> None:
    out = rerank(made / "dense.parquet", model=str(reranker), top_k=3, output=tmp_path / "out.parquet", **OPTIONS)
    before, after = runs.read_run(made / "dense.parquet"), runs.read_run(out)
    expected = scored(reranker, before.filter(pl.col("rank") <= 3), dict(TINY_QUERIES["test"]))
    both = after.join(expected.select("qid", "docid", "new_score"), on=["qid", "docid"])
    assert len(both) == len(expected)
    np.testing.assert_allclose(both["score"], both["new_score"], atol=1e-5)
    assert (both["rank"] <= 3).all()
    assert after.select("qid", "docid").sort("qid", "docid").equals(before.select("qid", "docid").sort("qid", "docid"))
    manifest = artifacts.read_manifest(out, Kind.RUN)
    assert manifest.counts["pairs"] == len(expected)
    assert manifest.input_path("model") == reranker
    source, corpus = queries_of(out), corpus_of(out)
    assert source is not None
    assert corpus is not None
    assert source.path.samefile(made / "collection" / "queries.test.parquet")
    assert corpus.path.samefile(made / "collection" / "corpus.parquet")


def test_each_depth_is_the_run_of_its_own_call(made: Path, reranker: Path, tmp_path: Path) -> None:
    folder = rerank(made / "dense.parquet", model=str(reranker), depths=(1, 4), output=tmp_path / "by-depth", **OPTIONS)
    manifest = artifacts.read_manifest(folder, Kind.RERANKED)
    assert manifest.counts["depths"] == [1, 4]
    assert manifest.counts["seconds"] > 0
    for depth in (1, 4):
        alone = rerank(
            made / "dense.parquet", model=str(reranker), top_k=depth, output=tmp_path / f"{depth}.parquet", **OPTIONS
        )
        one, other = runs.read_run(folder / f"depth-{depth}.parquet"), runs.read_run(alone)
        assert one.drop("score").equals(other.drop("score"))
        np.testing.assert_allclose(one["score"], other["score"], atol=1e-4)
        part = artifacts.read_manifest(folder / f"depth-{depth}.parquet", Kind.RUN)
        single = artifacts.read_manifest(alone, Kind.RUN)
        assert part.counts == single.counts
        assert part.options == single.options
        assert part.input_path("corpus") == single.input_path("corpus")
    assert artifacts.read_manifest(folder / "depth-1.parquet").counts["pairs"] == 6


def test_the_report_shows_quality_and_cost_by_depth(
    made: Path, reranker: Path, tmp_path: Path, notices: Notices
) -> None:
    runs_of = {}
    for name in ("bm25", "dense"):
        depths = (1, 3) if name == "bm25" else (2,)
        out = tmp_path / f"{name}-by-depth"
        runs_of[name] = rerank(made / f"{name}.parquet", model=str(reranker), depths=depths, output=out, **OPTIONS)
    given = [str(made / "collection"), str(made / "bm25.parquet")]
    folders = [f"bm25={runs_of['bm25']}", str(runs_of["dense"])]
    options: dict[str, Any] = {"split": "test", "measures": ["MRR@10", "R@100"], "reranked": folders}
    shown = Page(report(given, output=tmp_path / "report.html", **options))
    assert "reranked" in shown.sections
    assert notices.says("short-lists", run="bm25, 3 rescored")
    rows = shown.rows("reranked-quality")
    assert [(row["stage"], row["depth"]) for row in rows] == [
        ("bm25", 0), ("bm25", 1), ("bm25", 3), ("dense-by-depth", 0), ("dense-by-depth", 2)
    ]  # fmt: skip
    done = hybrid("evaluate", *given, runs_of["bm25"] / "depth-3.parquet", "--split", "test", "--format", "json")
    means = {run["run"]: run["means"]["MRR@10"] for run in json.loads(done.out)["runs"]}
    assert [row["mean"] for row in rows if row["stage"] == "bm25"][::2] == [
        pytest.approx(means["bm25"], abs=1e-5),
        pytest.approx(means["depth-3"], abs=1e-5),
    ]
    costs = [row["ms"] for row in rows if row["stage"] == "bm25"]
    assert costs[0] == 0 < costs[1] < costs[2]
    with raises("other-kind", path="dense.parquet"):
        report(given, output=tmp_path / "no.html", split="test", reranked=[str(made / "dense.parquet")])


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.fixture
def place(here: Path, reranker: Path) -> Path:
    (here / "reranker").symlink_to(reranker)
    return here


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            "dense.parquet --depths 5,500",
            refusal("out-of-range", option="depths"),
        ),
        ("dense.parquet --depths 5,5", refusal("repeated-value", option="depths")),
        ("dense.parquet --collection other", refusal("other-corpus", path="dense.parquet")),
        ("foreign.parquet", refusal("corpus-missing", option="collection")),
        ("foreign.parquet --collection collection", refusal("queries-missing", option="queries")),
        (
            "foreign.parquet --collection collection --split test",
            refusal("other-corpus", path="foreign.parquet", id="moonstone"),
        ),
        (
            "foreign.parquet --collection collection --split train",
            refusal("unknown-id", id="001"),
        ),
    ],
)
def test_unusable_input_is_refused(place: Path, words: str, complaint: str | Refusal) -> None:
    rows = [("001", "007", 1, 2.0), ("001", "moonstone", 2, 1.0), ("002", "rock", 1, 1.0)]
    pl.DataFrame(rows, schema=runs.SCHEMA, orient="row").write_parquet("foreign.parquet")
    other = Path("other")
    other.mkdir()
    pl.DataFrame({"docid": ["007"], "title": [""], "text": ["x"]}).write_parquet(other / "corpus.parquet")
    model = [] if "--model" in words else ["--model", "reranker"]
    output = "out" if "--depths" in words else "out.parquet"
    refused("rerank", *words.split(), *model, "--output", output, problem=complaint)


def test_a_query_without_text_keeps_its_order(place: Path) -> None:
    write_run(Path("run.parquet"), [("e", "007", 1, 2.0), ("e", "salt", 2, 1.0), ("f", "salt", 1, 1.0)])
    pl.DataFrame({"qid": ["e", "f"], "text": ["  ", "sea salt"]}).write_parquet("queries.parquet")
    options = ["--model", "reranker", "--collection", "collection", "--queries", "queries.parquet"]
    done = hybrid("rerank", "run.parquet", *options, "--output", "out.parquet")
    assert done.code == 0
    assert done.says("queries-without-text", count=1, path="run.parquet")
    found = runs.read_run(Path("out.parquet"))
    assert found.filter(qid="e").rows() == [("e", "007", 1, 2.0), ("e", "salt", 2, 1.0)]
    assert artifacts.read_manifest("out.parquet").counts["queries_without_text"] == 1
