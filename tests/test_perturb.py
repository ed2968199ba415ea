"""`perturb`: the synonym adversary and the shuffle, as files that `search` reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
from command import Notices

from hybrid_cli import artifacts, runs
from hybrid_cli.collections import collection
from hybrid_cli.settings.retrieval import Engine
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.perturb import perturb
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind

DATA = Path(__file__).parent / "data" / "wordnet"
ATTACK = "synonym-adversary"


def attacked(source: Path, output: Path, wordnet: Path = DATA, seed: int = 0) -> dict[str, str]:
    path = perturb(source, split="test", attacks=[ATTACK], output=output, wordnet=wordnet, seed=seed)
    return dict(pl.read_parquet(path).select("qid", "text").iter_rows())


def with_queries(tiny: Path, folder: Path, queries: pl.DataFrame) -> Path:
    """Copy the tiny collection with other test queries, as another program might write them."""
    shutil.copytree(tiny, folder)
    queries.write_parquet(folder / "queries.test.parquet")
    return folder


def test_words_of_relevant_documents_are_replaced_by_new_synonyms(tiny: Path, tmp_path: Path) -> None:
    """`tide`, `great water` and `sodium` share a word with the relevant document; 006 has no judgment."""
    found = attacked(tiny, tmp_path / "a.parquet")
    assert found["001"] in {f"what does the {moon} do to the deep" for moon in ("night lamp", "Luna")}
    assert found["002"] == "salt in brine water"
    assert found["003"] == "breath in the red juice"
    assert found["004"] in {f"{near} arrow for a ask" for near in ("adjacent", "close")}
    assert found["005"] == "to be or not to be"
    assert found["006"] == "price of tea in China"


def test_counts_are_recorded_and_printed(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    attacked(tiny, tmp_path / "a.parquet")
    manifest = artifacts.read_manifest(tmp_path / "a.parquet", Kind.QUERIES)
    assert manifest.options == {"attack": ATTACK, "seed": 0}
    assert set(manifest.inputs) == {"queries", "qrels", "corpus", "wordnet"}
    assert manifest.counts == {
        "rows": 6, "queries": 6, "changed": 4, "unchanged_rate": 1 - 4 / 6, "without_relevant": 1,
        "matched": 10, "replaced": 8, "without_synonym": 2,
    }  # fmt: skip
    assert notices.says("written", **{name: count for name, count in manifest.counts.items() if name != "rows"})
    attacked(tiny, tmp_path / "a.parquet")
    assert notices.says("up-to-date")


def test_ids_answers_and_order_are_kept(tiny: Path, tmp_path: Path) -> None:
    queries = pl.read_parquet(tiny / "queries.test.parquet").reverse()
    queries = queries.with_columns(answers=pl.Series([["yes"], None, ["a", "b"], [], None, None]))
    source = with_queries(tiny, tmp_path / "collection", queries)
    attacked(source, tmp_path / "a.parquet")
    found = collection.read_queries(tmp_path / "a.parquet")
    assert found.drop("text").equals(queries.drop("text").select("qid", "answers"))


@pytest.mark.parametrize("order", ["reversed", "alone"])
def test_a_query_is_independent_of_the_others(tiny: Path, tmp_path: Path, order: str) -> None:
    queries = pl.read_parquet(tiny / "queries.test.parquet")
    queries = queries.reverse() if order == "reversed" else queries.filter(pl.col("qid") == "001")
    whole = {seed: attacked(tiny, tmp_path / f"{seed}.parquet", seed=seed) for seed in range(4)}
    assert len({tuple(found.values()) for found in whole.values()}) > 1
    source = with_queries(tiny, tmp_path / "collection", queries)
    for seed, found in whole.items():
        again = attacked(source, tmp_path / f"again-{seed}.parquet", seed=seed)
        assert again == {qid: found[qid] for qid in queries["qid"]}


def test_documents_of_grade_0_are_not_relevant(tiny: Path, tmp_path: Path) -> None:
    """`moon landing`, which contains `moon`, is judged 0 for query 001."""
    source = with_queries(tiny, tmp_path / "collection", pl.read_parquet(tiny / "queries.test.parquet"))
    qrels = pl.read_parquet(tiny / "qrels.test.parquet").filter(pl.col("docid") != "007")
    qrels.write_parquet(source / "qrels.test.parquet")
    assert attacked(source, tmp_path / "a.parquet")["001"] == "what does the moon do to the oceans"


# -------------------------------------------------------------------------------------------------------------- shuffle


def shuffled(source: Path, output: Path, seed: int = 0) -> dict[str, str]:
    path = perturb(source, split="test", attacks=["shuffle"], output=output, seed=seed)
    return dict(pl.read_parquet(path).select("qid", "text").iter_rows())


def test_the_seed_decides_the_order_of_the_same_words(tiny: Path, tmp_path: Path) -> None:
    texts = dict(pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text").iter_rows())
    found = {seed: shuffled(tiny, tmp_path / f"{seed}.parquet", seed=seed) for seed in range(6)}
    for seed, queries in found.items():
        assert {qid: sorted(text.split()) for qid, text in queries.items()} == {
            qid: sorted(text.split()) for qid, text in texts.items()
        }
        manifest = artifacts.read_manifest(tmp_path / f"{seed}.parquet", Kind.QUERIES)
        assert set(manifest.inputs) == {"queries"}
        assert manifest.counts["changed"] == sum(queries[qid] != text for qid, text in texts.items())
    assert len({queries["005"] for queries in found.values()}) == 6


@pytest.mark.parametrize("engine", ["matrix", "lucene"])
def test_bm25_runs_of_shuffled_queries_are_bit_identical(tiny: Path, tmp_path: Path, engine: Engine) -> None:
    shuffled(tiny, tmp_path / "shuffled.parquet")
    index_bm25(tiny, output=tmp_path / "bm25", threads=1)
    index = tmp_path / "bm25"
    for name, queries in (("before", tiny), ("after", tmp_path / "shuffled.parquet")):
        split = "test" if queries == tiny else None
        search(queries=queries, split=split, index=index, engine=engine, output=tmp_path / f"{name}.parquet")
    before, after = (runs.read_run(tmp_path / f"{name}.parquet") for name in ("before", "after"))
    assert len(before) == 9
    assert before.equals(after)
