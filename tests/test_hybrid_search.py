"""Exact search by a sum of scores, against brute force in numpy and `fuse --missing exact`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Refusal, hybrid, raises, refusal
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from small_artifacts import vector_scores, write_corpus

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts.opening import open_bm25, open_dense
from hybrid_cli.collections import collection
from hybrid_cli.commands import VectorIndex
from hybrid_cli.indexes import construction, hybrid_search
from hybrid_cli.indexes.dense import IndexInfo
from hybrid_cli.indexes.hybrid_search import HybridIndex
from hybrid_cli.indexes.shards import shard_path, write_shard
from hybrid_cli.lexical import kernels
from hybrid_cli.runs.index import Allowed
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind

DIM, COUNT = 8, 300
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with many equal texts and vectors, hence equal scores, with a lexical and two dense indexes."""
    folder = tmp_path_factory.mktemp("joint")
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 5))) for _ in range(COUNT)]
    corpus = write_corpus(folder / "corpus.parquet", texts)
    index_bm25(corpus, output=folder / "bm25")
    for name, seed in (("dense", 2), ("second", 3)):
        stored = np.random.default_rng(seed).integers(-2, 3, (COUNT, DIM)).astype(np.float32)
        dense_index(folder / name, stored, collection.docids(corpus))
    return folder


def dense_index(folder: Path, stored: np.ndarray, docids: pl.Series, index_type: str = "flat") -> Path:
    recipe = VectorIndex(index_type=index_type)
    claim = artifacts.open_output(folder, Kind.DENSE_INDEX, "encode", inputs={}, options={}, overwrite=False)
    with claim.folder() as (work, counts):
        for number, rows in enumerate(np.array_split(np.arange(len(stored)), [7, 150])):
            write_shard(shard_path(work, number), docids[rows].to_arrow(), stored[rows])
        info = IndexInfo(len(stored), stored.shape[1], "none", factory=construction.build(work, recipe))
        counts |= info.counts()
    return folder


def random_queries(seed: int, count: int) -> tuple[np.ndarray, pl.DataFrame]:
    """Return queries as vectors of small integers, whose sums are exact in any order, and as texts."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, 3)) for _ in range(count - 1)] + ["unheard"]
    queries = pl.DataFrame({"qid": [f"q{number}" for number in range(count)], "text": texts})
    return rng.integers(-2, 3, (count, DIM)).astype(np.float32), queries


def brute_force(
    made: Path, names: list[str], weights: list[float], found: np.ndarray, queries: pl.DataFrame
) -> np.ndarray:
    total = np.zeros((len(queries), COUNT))
    for name, weight in zip(names, weights, strict=True):
        if name == "bm25":
            index = open_bm25(made / name)
            pairs = queries.select("qid").join(index.docids.to_frame("docid"), how="cross")
            total += weight * index.score(pairs, queries).to_numpy().astype(np.float64).reshape(total.shape)
        else:
            total += weight * (found @ open_dense(made / name).vectors_of(np.arange(COUNT)).T)
    return total.astype(np.float32)


def joint(made: Path, names: list[str], weights: list[float], threads: int | None = None) -> HybridIndex:
    of = dict(zip(names, weights, strict=True))
    dense = [name for name in names if name != "bm25"]
    lexical = open_bm25(made / "bm25") if "bm25" in of else None
    opened = tuple(open_dense(made / name) for name in dense)
    return HybridIndex(opened, tuple(of[name] for name in dense), lexical, of.get("bm25", 0.0), threads=threads)


def hits_of(index: HybridIndex, found: np.ndarray, queries: pl.DataFrame, hits: int) -> pl.DataFrame:
    bags = None if index.lexical is None else index.lexical.prepare(queries)
    return index.table(index.hits(([found] * len(index.dense), bags), hits), queries["qid"])


def top(scores: np.ndarray, queries: pl.DataFrame, docids: pl.Series, hits: int) -> pl.DataFrame:
    pairs = queries.select("qid").join(docids.to_frame("docid"), how="cross")
    return runs.ranked(pairs.with_columns(score=scores.ravel()), hits)


@given(
    st.integers(0, 99),
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0, 64.0]), min_size=3, max_size=3),
    st.sampled_from([1, 2, 10, 299, 300, 1000]),
    st.integers(1, 3),
)
def test_hits_equal_brute_force(made: Path, seed: int, weights: list[float], hits: int, threads: int) -> None:
    names = ["dense", "bm25", "second"]
    found, queries = random_queries(seed, 5)
    index = joint(made, names, weights, threads)
    run = hits_of(index, found, queries, hits)
    expected = top(brute_force(made, names, weights, found, queries), queries, index.dense[0].docids, hits)
    assert run.equals(expected)


def test_hits_do_not_depend_on_the_size_of_blocks(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, queries = random_queries(4, 70)
    index = joint(made, ["dense", "bm25"], [1, 0.5])
    whole = hits_of(index, found, queries, 3)
    monkeypatch.setattr(hybrid_search, "BLOCK_DOCUMENTS", 11)
    monkeypatch.setattr(hybrid_search, "BLOCK_QUERIES", 32)
    monkeypatch.setattr(kernels, "LEAST_KEYS", 0)
    assert hits_of(index, found, queries, 3).equals(whole)
    scores = brute_force(made, ["dense", "bm25"], [1, 0.5], found, queries)
    assert whole.equals(top(scores, queries, index.dense[0].docids, 3))


def test_a_filter_keeps_its_documents_in_every_block(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, queries = random_queries(7, 5)
    index = joint(made, ["dense", "bm25"], [1, 0.5])
    docids = index.dense[0].docids
    kept = np.random.default_rng(8).random(COUNT) < 0.3
    monkeypatch.setattr(hybrid_search, "BLOCK_DOCUMENTS", 11)
    hits = hits_of(index.within(Allowed(docids, kept)), found, queries, 20)
    scores = brute_force(made, ["dense", "bm25"], [1, 0.5], found, queries)
    assert hits.equals(top(scores[:, kept], queries, docids.filter(pl.Series(kept)), 20))


@pytest.mark.parametrize("index_type", ["HNSW4,Flat", "sq8", "binary"])
def test_approximate_indexes_are_scored_by_their_stored_vectors(made: Path, tmp_path: Path, index_type: str) -> None:
    flat = open_dense(made / "dense")
    stored = flat.vectors_of(np.arange(COUNT))
    folder = dense_index(tmp_path / "index", stored, flat.docids, index_type)
    found, queries = random_queries(5, 4)
    run = hits_of(joint(tmp_path, ["index"], [1]), found, queries, 20)
    exact = vector_scores(open_dense(folder), run.select("qid", "docid"), queries["qid"].to_list(), found)
    assert run["score"].to_list() == exact.to_list()
    seen = np.where(stored >= 0, 1, -1) if index_type == "binary" else stored
    assert run.equals(top((found @ seen.T).astype(np.float32), queries, flat.docids, 20))


def test_a_query_does_not_depend_on_other_queries(made: Path) -> None:
    found, queries = random_queries(6, 40)
    found += np.random.default_rng(0).standard_normal(found.shape).astype(np.float32)
    index = joint(made, ["dense", "bm25"], [1, 0.1])
    together = hits_of(index, found, queries, 50)
    alone = hits_of(index, found[3:4], queries[3:4], 50)
    assert_frame_equal(alone, together.filter(pl.col("qid") == "q3"), rel_tol=1e-5)


def test_exact_search_equals_exact_fusion_of_complete_lists(tiny: Path, tiny_runs: Path, tmp_path: Path) -> None:
    both = [tiny_runs / "dense", tiny_runs / "bm25"]
    lists = [search(tiny, split="test", index=index, output=tmp_path / f"{index.name}.parquet") for index in both]
    fused = fuse(lists, output=tmp_path / "f.parquet", method="weighted-sum", weights=[1, 0.5], index=both)
    exact = search(tiny, split="test", exact=True, index=both, weights="1,0.5", output=tmp_path / "e.parquet")
    expected, found = runs.read_run(fused), runs.read_run(exact)
    assert found.select("qid", "docid", "rank").equals(expected.select("qid", "docid", "rank"))
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-5, atol=1e-5)
    manifest = artifacts.read_manifest(exact, Kind.RUN)
    assert manifest.options["weights"] == [1.0, 0.5]
    assert set(manifest.inputs) == {"index 1", "index 2", "queries"}


def test_tuned_weights_are_read_from_their_file(tiny: Path, tiny_runs: Path, tmp_path: Path) -> None:
    both = [tiny_runs / "dense", tiny_runs / "bm25"]
    lists = [search(tiny, split="test", index=index, output=tmp_path / f"{index.name}.parquet") for index in both]
    weights = tmp_path / "weights.json"
    named = ("--split", "test", "--index", ",".join(map(str, both)))
    hybrid("fuse", *lists, "--tune", "--method", "weighted-sum", *named, "--qrels", tiny, "--output", weights)
    words = ("search", tiny, "--exact", *named)
    hybrid(*words, "--weights", f"@{weights}", "--output", tmp_path / "e.parquet")
    manifest = artifacts.read_manifest(tmp_path / "e.parquet", Kind.RUN)
    assert manifest.input_path("weights") == weights
    assert manifest.options["weights"] == json.loads(weights.read_text("utf-8"))["weights"]


def test_indexes_that_do_not_fit_together_are_refused(tiny: Path, tiny_runs: Path, made: Path, tmp_path: Path) -> None:
    def refused(match: str | Refusal, *names: Path, **options: Any) -> None:
        words = {"collection": tiny, "split": "test", "exact": True, **options}
        with raises(match):
            search(**words, index=names, output=tmp_path / "x.parquet")

    dense, bm25 = tiny_runs / "dense", tiny_runs / "bm25"
    refused(refusal("other-corpus", path="bm25"), dense, made / "bm25")
    refused(refusal("needs-indexes"), dense, bm25, bm25)
    refused(refusal("out-of-range", option="weights"), dense, bm25, weights="1,nan")
    stored = encode(tiny, split="test", model="minilm", output=tmp_path / "vectors")
    refused(refusal("other-kind", option="exact"), dense, queries=stored, collection=None, split=None)
    assert not (tmp_path / "x.parquet").exists()
