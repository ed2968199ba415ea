"""Retrievers: what is evaluated is what is searched, for every method and rule, on real and made-up collections."""

import json
import pickle
import random
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Notices, hybrid, raises, ran
from small_artifacts import write_corpus
from tiny_collection import write_lines

from hybrid_cli import BM25, Dense, Retriever, open_encoder, open_index, open_retriever, runs
from hybrid_cli.artifacts import lineage
from hybrid_cli.artifacts.judged import reused
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.errors import DamageError, InputError
from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.fusion.options import Missing
from hybrid_cli.runs.index import Index
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.report import report
from hybrid_cli.stages.rerank import rerank
from hybrid_cli.stages.search import search, search_query
from hybrid_cli.stages.train_dense import train_dense

DEPTH = 4
RULES = ("exact", "min", "zero", "ignore", "drop")


def equal(run: pl.DataFrame, other: pl.DataFrame, tolerance: float = 0.0) -> None:
    key = ["qid", "docid"]
    assert run.select(key).sort(key).equals(other.select(key).sort(key))
    expected = other.sort(key)["score"].to_numpy()
    np.testing.assert_allclose(run.sort(key)["score"].to_numpy(), expected, rtol=tolerance, atol=tolerance)
    if not tolerance:
        assert run.sort("qid", "rank").equals(other.sort("qid", "rank"))


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (method, RULES[(number + step) % len(RULES)])
        for number, method in enumerate(METHODS.built_in())
        for step in (0, 2)
        if (method, RULES[(number + step) % len(RULES)]) != ("product", "drop")  # refused: few common documents
    ],
)
def test_a_search_is_a_fusion_and_that_of_python(
    tiny_runs: Path, tiny: Path, tmp_path: Path, method: str, rule: str
) -> None:
    sides = [tiny_runs / "bm25", tiny_runs / "dense"]
    chosen: dict[str, Any] = {"method": method, "missing": rule, "weights": [0.3, 0.7], "depth": DEPTH}
    chosen |= {"normalize": "minmax"} if method == "product" else {}  # of raw scores, 0 is refused
    retriever = compose(sides, output=tmp_path / "retriever", **chosen)
    searched = runs.read_run(search(tiny, split="test", index=retriever, output=tmp_path / "searched.parquet"))
    exact: dict[str, Any] = {"index": sides} if rule == "exact" else {}
    pair = [tiny_runs / "bm25.parquet", tiny_runs / "dense.parquet"]
    fused = runs.read_run(fuse(pair, output=tmp_path / "fused.parquet", **chosen, **exact))
    equal(searched, fused)
    equal(runs.read_run(fuse(pair, weights=f"@{retriever}", output=tmp_path / "again.parquet")), fused)
    queries = pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text")
    opened = open_retriever(retriever)
    equal(opened.search(queries, 1000).select(searched.columns), searched)
    one_by_one = [opened.search(queries[row], 1000).select(searched.columns) for row in range(len(queries))]
    equal(pl.concat(one_by_one), searched, 1e-4)  # a normalization multiplies the rounding of a score


@pytest.mark.parametrize("change", [{"depth": 0}, {"depth": -3}, {"generation": 0}, {"rrf_k": -1.0}])
def test_stored_numbers_out_of_range_are_refused(tiny_runs: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = compose([tiny_runs / "bm25", tiny_runs / "dense"], method="rrf", output=tmp_path / "retriever")
    manifest, file = folder / "manifest.json", folder / "retriever.json"
    unchecked = {name: value for name, value in json.loads(manifest.read_text()).items() if "checksum" not in name}
    manifest.write_text(json.dumps(unchecked))  # as another program may write it
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with raises("out-of-range"):
        open_retriever(folder)


def made_up(folder: Path) -> Path:
    """Documents and queries of a few words, so that many scores are equal and some lists are short."""
    draw = random.Random(5)
    words = ["salt", "sea", "air", "moon", "blood", "table", "light", "stone"]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 6))) for _ in range(60)]
    write_lines(folder / "d.tsv", *(f"d{number}\t{text}" for number, text in enumerate(texts)))
    write_lines(folder / "q.tsv", *(f"q{number}\t{' '.join(draw.choices(words, k=2))}" for number in range(12)))
    write_lines(folder / "r.tsv", *(f"q{number}\td{draw.randrange(60)}\t1" for number in range(12)))
    queries, qrels = [f"test={folder / 'q.tsv'}"], [f"test={folder / 'r.tsv'}"]
    return prepare(PrepareFiles([folder / "d.tsv"], queries=queries, qrels=qrels, output=folder / "words"))


@pytest.mark.heavy
def test_the_law_holds_elsewhere(tiny_bert: Path, tmp_path: Path) -> None:
    path, sides = made_up(tmp_path), [tmp_path / "bm25", tmp_path / "dense"]
    index_bm25(path, output=sides[0])
    encode(path, model=str(tiny_bert), output=sides[1])
    pair = [search(path, split="test", index=side, hits=20, output=tmp_path / f"{side.name}.parquet") for side in sides]
    queries = pl.read_parquet(path / "queries.test.parquet").select("qid", "text").head(40)
    compared = 0
    for method, rule in list(product(METHODS.built_in(), RULES))[::2]:
        chosen: dict[str, Any] = {"method": method, "missing": rule, "weights": [0.3, 0.7], "depth": 20}
        exact: dict[str, Any] = {"index": sides} if rule == "exact" else {}
        try:
            fused = runs.read_run(fuse(pair, output=tmp_path / "fused.parquet", overwrite=True, **chosen, **exact))
        except InputError as error:
            assert error.code == "fusion-range"  # noqa: PT017
            continue
        opened = open_retriever(compose(sides, output=tmp_path / "retriever", overwrite=True, **chosen))
        hits = opened.search(queries, 1000).select(fused.columns)
        equal(hits, fused.filter(pl.col("qid").is_in(queries["qid"].implode())), 1e-5)
        compared += 1
    assert compared > 30


def test_the_default_sums_exact_scores_in_units_of_their_deviations(
    tiny_runs: Path, tiny: Path, tmp_path: Path
) -> None:
    queries = pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text")
    retriever = compose(
        [tiny_runs / "bm25", tiny_runs / "dense"], queries=tiny, split="test", output=tmp_path / "retriever"
    )
    stored = json.loads((retriever / "retriever.json").read_text())
    assert (stored["method"], stored["missing"], stored["shares"]) == ("weighted-sum", "exact", [0.3, 0.7])
    whole = {name: open_index(tiny_runs / name).search(queries, 1000) for name in ("bm25", "dense")}
    both = whole["dense"].join(whole["bm25"], on=["qid", "docid"], how="left", suffix="_bm25")
    both = both.with_columns(pl.col("score_bm25").fill_null(0.0))
    deviations = [float(both[score].to_numpy().std()) for score in ("score_bm25", "score")]
    np.testing.assert_allclose(stored["scales"], deviations, rtol=1e-5)
    expected = 0.3 / deviations[0] * both["score_bm25"] + 0.7 / deviations[1] * both["score"]
    hits = open_retriever(retriever).search(queries, 1000)
    pairs = both.with_columns(expected=expected).join(hits, on=["qid", "docid"], suffix="_hybrid")
    assert len(pairs) == len(hits) == len(both)
    np.testing.assert_allclose(pairs["score_hybrid"], pairs["expected"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("method", "rule"), [("minmax", "zero"), ("weighted-sum", "exact"), ("rrf", "ignore")])
def test_indexes_in_memory_have_the_hits_of_those_on_disk(
    tiny_runs: Path, tiny: Path, tiny_bert: Path, tmp_path: Path, method: str, rule: Missing
) -> None:
    documents = pl.read_parquet(tiny / "corpus.parquet")
    queries = pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text")
    sides: dict[str, Index] = {
        "bm25": BM25().index(documents),
        "dense": Dense(open_encoder(tiny_bert, dtype="fp32")).index(documents),
    }
    encode(tiny, model=str(tiny_bert), dtype="fp32", output=tmp_path / "dense")
    options: dict[str, Any] = {"method": method, "missing": rule, "weights": "0.3,1"}
    composed = compose([tiny_runs / "bm25", tmp_path / "dense"], depth=DEPTH, output=tmp_path / "retriever", **options)
    hits = Retriever.of(sides, method, [0.3, 1], missing=rule, depth=DEPTH).search(queries, 20)
    equal(open_retriever(composed).search(queries, 20).select(hits.columns), hits, 1e-5)


def test_hits_have_rank_and_score_in_each_index_and_texts(tiny_runs: Path, tmp_path: Path) -> None:
    retriever = compose(
        [tiny_runs / "bm25", tiny_runs / "dense"], method="minmax", depth=3, output=tmp_path / "retriever"
    )
    hits = open_retriever(retriever).search("salt water", k=3)
    expected = ["qid", "docid", "rank", "score", "bm25_rank", "bm25_score", "dense_rank", "dense_score", "title"]
    expected += ["text"]
    assert hits.columns == expected
    for name in ("bm25", "dense"):
        alone = open_index(tiny_runs / name).search("salt water", k=3)
        there = hits.drop_nulls(f"{name}_rank").join(alone, on="docid", how="left", suffix="_alone")
        assert there[f"{name}_rank"].to_list() == there["rank_alone"].to_list()
        assert there[f"{name}_score"].to_list() == there["score_alone"].to_list()
    assert hits["text"].null_count() == 0
    assert open_retriever(retriever).search([], k=3).is_empty()


def test_two_indexes_in_python_are_their_default_retriever(tiny_runs: Path, tmp_path: Path) -> None:
    retriever = compose([tiny_runs / "bm25", tiny_runs / "dense"], output=tmp_path / "retriever")
    composed = open_retriever(retriever).search("salt water", k=5)
    assert open_index(tiny_runs / "bm25", tiny_runs / "dense").search("salt water", k=5).equals(composed)
    printed = search_query(index=[tiny_runs / "bm25", tiny_runs / "dense"], query="salt water", hits=5)
    assert printed.select("docid", "score").equals(composed.select("docid", "score"))


def test_tuned_weights_are_those_of_it(tiny_runs: Path, tiny: Path, tmp_path: Path, notices: Notices) -> None:
    pair = [tiny_runs / "bm25.parquet", tiny_runs / "dense.parquet"]
    weights = fuse(pair, tune=True, qrels=tiny, split="test", depth=DEPTH, output=tmp_path / "weights.json")
    retriever = compose([tiny_runs / "bm25", tiny_runs / "dense"], weights=f"@{weights}", output=tmp_path / "retriever")
    tuned, stored = (json.loads(path.read_text()) for path in (weights, retriever / "retriever.json"))
    assert (stored["method"], stored["weights"], stored["depth"]) == (tuned["method"], tuned["weights"], DEPTH)
    assert stored["tuning"]["judged"] == tuned["judged"]
    notices.clear()
    fused = runs.read_run(fuse(pair, weights=f"@{weights}", depth=DEPTH, output=tmp_path / "fused.parquet"))
    searched = search(tiny, split="test", index=retriever, output=tmp_path / "searched.parquet")
    equal(runs.read_run(searched), fused)
    assert notices.count("tuned-on-queries") == (not tuned["keeps_untuned"])
    options: dict[str, Any] = {"tune": True, "qrels": tiny, "split": "test", "measure": "MRR@10", "depth": DEPTH}
    in_one_step = compose([tiny_runs / "bm25", tiny_runs / "dense"], device="cpu", output=tmp_path / "tuned", **options)
    assert json.loads((in_one_step / "retriever.json").read_text())["tuning"]["queries"] == tuned["queries"]


def test_weights_tuned_in_python_are_those_of_compose(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    """The five judged queries of the collection under three names are enough."""
    sides = [tiny_runs / "bm25", tiny_runs / "dense"]
    queries, qrels = (pl.read_parquet(tiny / f"{name}.test.parquet") for name in ("queries", "qrels"))
    twice = [
        pl.concat([table.with_columns(qid=prefix + pl.col("qid")) for prefix in ("", "again-", "third-")])
        for table in (queries, qrels)
    ]
    paths = [tmp_path / "queries.parquet", tmp_path / "qrels.parquet"]
    for table, path in zip(twice, paths, strict=True):
        table.write_parquet(path)
    how: dict[str, Any] = {"tune": True, "queries": paths[0], "qrels": paths[1], "measure": "MRR@10", "depth": DEPTH}
    stored = json.loads((compose(sides, output=tmp_path / "tuned", **how) / "retriever.json").read_text())
    default = open_retriever(compose(sides, output=tmp_path / "default", depth=DEPTH))
    made = default.tune(twice[1], twice[0], "MRR@10")
    assert isinstance(made, Retriever)
    assert made.recipe.weights == pytest.approx(stored["weights"])
    assert stored["scales"] == json.loads((tmp_path / "default/retriever.json").read_text())["scales"]
    copy = pickle.loads(pickle.dumps(made))
    assert copy.search("salt").equals(made.search("salt"))
    in_memory = Retriever.of({path.name: open_index(path) for path in sides}, depth=DEPTH)
    runs_of = [
        search(queries=paths[0], index=path, hits=DEPTH, output=tmp_path / f"{path.name}.parquet") for path in sides
    ]
    of_lists = json.loads(fuse(runs_of, output=tmp_path / "minmax.json", **{**how, "queries": None}).read_text())
    assert of_lists["no_prior"] is None
    assert in_memory.tune(twice[1], twice[0], "MRR@10").recipe.weights == pytest.approx(of_lists["weights"])
    few = default.tune(qrels, queries, "MRR@10")
    assert isinstance(few, Retriever)
    assert isinstance(default, Retriever)
    assert few.recipe == default.recipe  # five judged queries
    with raises("option-does-not-apply", option="tune"):
        compose(sides[:1], output=tmp_path / "one", **how)
    with raises("measure-always-zero"):
        default.tune(twice[1].with_columns(relevance=pl.lit(0)), twice[0], "MRR@10")
    with raises("other-kind"):
        open_index(tiny_runs / "bm25").tune(twice[1], twice[0], "MRR@10")


def test_a_folder_that_is_moved_with_its_indexes_is_searched(tiny: Path, tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    collection, model = (
        shutil.copytree(path, tmp_path / "here" / name) for path, name in ((tiny, "tiny"), (tiny_bert, "model"))
    )
    index_bm25(collection, output=tmp_path / "here/bm25")
    encode(collection, model=str(model), output=tmp_path / "here/dense")
    compose([tmp_path / "here/bm25", tmp_path / "here/dense"], method="rrf", output=tmp_path / "here/retriever")
    before = open_retriever(tmp_path / "here/retriever").search("salt water")
    (tmp_path / "here").rename(tmp_path / "there")
    assert open_retriever(tmp_path / "there/retriever").search("salt water").equals(before)
    ran("inspect", "--verify", tmp_path / "there/retriever")
    shutil.rmtree(tmp_path / "there/dense")
    with raises("index-missing", index=tmp_path / "there/dense"):
        open_retriever(tmp_path / "there/retriever")


def test_an_index_that_was_built_again_is_refused(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_runs / "bm25", tmp_path / "bm25")
    compose([tmp_path / "bm25", tiny_runs / "dense"], method="minmax", output=tmp_path / "retriever")
    index_bm25(tiny, k1=2.0, output=tmp_path / "bm25")
    with raises("index-changed", index=tmp_path / "bm25"):
        search_query(index=tmp_path / "retriever", query="salt")


def test_a_run_is_followed_to_corpus_indexes_and_judgments(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    sides = [tiny_runs / "bm25", tiny_runs / "dense"]
    retriever = compose(sides, tune=True, qrels=tiny, split="test", depth=DEPTH, output=tmp_path / "retriever")
    run = search(tiny, split="test", index=retriever, output=tmp_path / "run.parquet")
    corpus = lineage.corpus_of(run)
    assert corpus is not None
    assert corpus.path == tiny / "corpus.parquet"
    assert set(lineage.indexes_of(run)) == set(sides)
    assert lineage.system_of(run).kind == "several runs"
    kept = json.loads((retriever / "retriever.json").read_text())["tuning"]["keeps_untuned"]
    too_high = reused({"hybrid": run}, tiny / "qrels.test.parquet")
    assert [reuse.run for reuse in too_high] == ([] if kept else ["hybrid"])
    described = json.loads(hybrid("inspect", retriever, "--format", "json").out)
    assert (described["what"], described["retriever"]["depth"]) == ("retriever", DEPTH)
    assert str(tiny_runs / "bm25") in hybrid("inspect", retriever).out
    ran("inspect", "--verify", run, retriever)


def test_negatives_are_drawn_from_the_hits_of_a_retriever(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    retriever = compose([tiny_runs / "bm25", tiny_runs / "dense"], method="rrf", output=tmp_path / "hybrid")
    mined = mine_negatives(
        tiny, split="train", index=retriever, negatives=2, depth=6, output=tmp_path / "train.parquet"
    )
    hits = runs.read_run(tmp_path / "train.hits.parquet")
    rows = pl.read_parquet(mined).explode("negatives").unnest("negatives", separator="_")
    drawn = rows.filter(pl.col("negatives_source") == "train.hits").join(
        hits, left_on=["qid", "negatives_docid"], right_on=["qid", "docid"]
    )
    assert len(drawn) == len(rows.filter(pl.col("negatives_source") == "train.hits"))
    assert drawn["rank"].max() <= 6  # type: ignore[operator]
    assert rows["lexical_score"].null_count() == 0
    assert lineage.queries_of(tmp_path / "train.hits.parquet") is not None
    with raises("conflicting-options"):
        mine_negatives(tiny, split="train", index=retriever, sources=["bm25"], output=tmp_path / "other.parquet")


def test_evaluate_searches_retrievers(tiny_runs: Path, tiny: Path, tmp_path: Path) -> None:
    retriever = compose([tiny_runs / "bm25", tiny_runs / "dense"], method="rrf", output=tmp_path / "hybrid")
    run = search(tiny, split="test", index=retriever, output=tmp_path / "run.parquet")
    measured = [evaluate([tiny, f"hybrid={run}"], split="test"), evaluate([tiny, retriever], split="test")]
    first, second = measured
    assert first.means == second.means
    page = report([tiny, tiny_runs / "bm25.parquet", retriever], split="test", output=tmp_path / "page/report.html")
    assert "hybrid" in page.read_text("utf-8")
    assert runs.read_run(tmp_path / "page/hybrid.hits.parquet").equals(runs.read_run(run))


def test_runs_of_other_indexes_do_not_take_the_weights_of_a_retriever(tiny_runs: Path, tmp_path: Path) -> None:
    retriever = compose([tiny_runs / "bm25", tiny_runs / "dense"], method="minmax", output=tmp_path / "retriever")
    pair = [tiny_runs / "dense.parquet", tiny_runs / "bm25.parquet"]
    with raises("other-index", path=pair[0]):
        fuse(pair, weights=f"@{retriever}", output=tmp_path / "fused.parquet")
    with raises("tuned-for-others", value=3):
        third = shutil.copy(pair[0], tmp_path / "third.parquet")
        fuse([*pair, third], weights=f"@{retriever}", output=tmp_path / "fused.parquet")


def test_the_default_weights_of_a_trained_encoder_are_warned_about(
    tiny_runs: Path, tiny: Path, tiny_bert: Path, tmp_path: Path, notices: Notices
) -> None:
    examples = mine_negatives(tiny, split="train", index=tiny_runs / "bm25", output=tmp_path / "train.parquet")
    model = train_dense(examples, model=str(tiny_bert), max_steps=1, batch_size=2, output=tmp_path / "model")
    dense = encode(tiny, model=str(model), output=tmp_path / "dense")
    compose([tiny_runs / "bm25", dense], output=tmp_path / "retriever")
    assert notices.count("trained-encoder", path=dense, stage="train-dense") == 1
    compose([tiny_runs / "bm25", dense], weights="0.5,0.5", output=tmp_path / "weighted")
    assert notices.count("trained-encoder") == 1


def test_a_retriever_without_its_file_is_named_as_damaged(tiny_runs: Path, tmp_path: Path) -> None:
    retriever = compose([tiny_runs / "bm25", tiny_runs / "dense"], method="rrf", output=tmp_path / "retriever")
    (retriever / "retriever.json").unlink()
    with raises("damaged", DamageError):
        search_query(index=retriever, query="salt")


@pytest.mark.parametrize("texts", [["salt", "sea water", ""], ["salt lake"]])
def test_without_sentences_texts_give_scales(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    corpus = write_corpus(tmp_path / "corpus.parquet", texts)
    sides = [index_bm25(corpus, output=tmp_path / "bm25"), encode(corpus, model=str(tiny_bert), output=tmp_path / "d")]
    hits = open_retriever(compose(sides, output=tmp_path / "retriever")).search("salt")
    assert hits["docid"][0] == "d0"
    assert hits["score"].is_finite().all()


def test_documents_without_any_text_have_no_default_fusion(tmp_path: Path, tiny_bert: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.parquet", ["", " "])
    sides = [index_bm25(corpus, output=tmp_path / "bm25"), encode(corpus, model=str(tiny_bert), output=tmp_path / "d")]
    with raises("no-queries"):
        compose(sides, output=tmp_path / "retriever")
    hits = open_retriever(compose(sides, method="minmax", output=tmp_path / "retriever")).search("salt")
    assert hits["score"].is_finite().all()


def test_a_reranker_rescores_hits_as_rerank_does(
    tiny_runs: Path, tiny: Path, tiny_bert: Path, reranker: Path, tmp_path: Path
) -> None:
    reranker = shutil.copytree(reranker, tmp_path / "reranker")
    sides = [tiny_runs / "bm25", tiny_runs / "dense"]
    first = compose(sides, method="minmax", depth=DEPTH, output=tmp_path / "first")
    whole = compose(
        sides, method="minmax", depth=DEPTH, reranker=str(reranker), rerank_depth=3, output=tmp_path / "whole"
    )
    fused = search(tiny, split="test", index=first, output=tmp_path / "first.parquet")
    again = rerank(
        fused, model=str(reranker), depth=[3], collection=tiny, dtype="fp32", output=tmp_path / "again.parquet"
    )
    searched = runs.read_run(search(tiny, split="test", index=whole, output=tmp_path / "whole.parquet"))
    equal(searched, runs.read_run(again), 1e-5)
    assert not searched.equals(runs.read_run(fused))
    qid, text = pl.read_parquet(tiny / "queries.test.parquet").select("qid", "text").row(0)
    equal(open_retriever(whole).search({qid: text}, 100).select(searched.columns), searched.filter(qid=qid), 1e-5)
    assert (
        open_retriever(whole).search(text, 2)["docid"].to_list() == searched.filter(qid=qid)["docid"].head(2).to_list()
    )
    shutil.rmtree(reranker)
    with raises("recorded-model-missing", path=whole, model=str(reranker)):
        open_retriever(whole)
    with raises("no-ranking-head"):
        compose(sides, method="rrf", reranker=str(tiny_bert), output=tmp_path / "other")
