"""Fusions in the words of search engines: requests, formulas, differences and losses."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import hybrid, raises, ran

from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.artifacts.retrievers import RetrieverFiles
from hybrid_cli.exports.comparison import simulate
from hybrid_cli.exports.engine import ENGINES, Field, Formula, Fusion
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import METHODS, FusionRecipe
from hybrid_cli.fusion.options import Missing
from hybrid_cli.passages import MAX
from hybrid_cli.runs import read_run
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search
from hybrid_cli.stages.update import update

K1 = 1.5
TRANSLATED = ("opensearch", "elasticsearch")
QUERY = {"qid": "q", "text": "json parser", "terms": {"json": 1.0, "parser": 2.0}, "vector": [0.6, 0.8]}
LISTS = {"contents": {"a": 3.0, "b": 2.0, "c": 1.0}, "vector": {"b": 0.9, "d": 0.5, "a": -0.5}}


def fusion_of(
    engine: str, method: str, weights: Sequence[float] = (0.3, 0.7), missing: Missing | None = None, **fields: Any
) -> Fusion:
    recipe = FusionRecipe(method, tuple(weights), missing or METHODS[method].missing)
    vector = {"exact": True, "unit": True, **fields}
    sides = (Field(ENGINES[engine].lexical, weights[0]), Field("vector", weights[1], 2, **vector))
    return Fusion(recipe, sides, 50, K1)


def translated(engine: str, fusion: Fusion) -> tuple[Mapping[str, Any], Any]:
    translation = ENGINES[engine]().translate(fusion)
    assert translation is not None
    return json.loads(json.dumps(translation.request(QUERY))), translation


def candidates(sides: Mapping[str, Mapping[str, float]], qid: int = 0) -> pl.DataFrame:
    rows = {docid: None for scores in sides.values() for docid in scores}
    frame: dict[str, Any] = {"query": [qid] * len(rows), "docid": list(rows)}
    for number, scores in enumerate(sides.values()):
        order = sorted(scores, key=lambda docid: (-scores[docid], docid))
        frame[f"score_{number}"] = [scores.get(docid) for docid in rows]
        frame[f"rank_{number}"] = [float(order.index(docid) + 1) if docid in scores else None for docid in rows]
    kinds = {name: pl.Float64 for name in frame if name[:4] in ("scor", "rank")}
    return pl.DataFrame(frame, schema_overrides={"query": pl.UInt32, **kinds})


def scores_of(formula: Formula, frame: pl.DataFrame) -> dict[str, float]:
    (run,) = formula.run([frame], pl.Series("qid", ["q"]), 100)
    return dict(run.select("docid", "score").iter_rows())


def random_candidates(complete: bool = False) -> pl.DataFrame:
    """Candidates of 20 queries: two lists of up to 50 of 60 documents, all documents in both if `complete`."""
    rng, frames = np.random.default_rng(7), []
    for query in range(20):
        sides = {}
        for name in LISTS:
            chosen = range(60) if complete else rng.choice(60, rng.integers(2, 50), replace=False)
            sides[name] = {f"d{number:02}": float(rng.normal()) for number in chosen}
        frames.append(candidates(sides, query))
    return pl.concat(frames)


@pytest.mark.parametrize(
    ("engine", "method"),
    [*((engine, "weighted-sum") for engine in TRANSLATED), ("opensearch", "rrf"), ("elasticsearch", "rrf")],
)
def test_a_translation_without_differences_ranks_as_hybrid(engine: str, method: str) -> None:
    fusion = fusion_of(engine, method)
    _, translation = translated(engine, fusion)
    assert not translation.differences
    assert rankings(fusion, translation.formula, complete=method == "weighted-sum") == 1


@pytest.mark.parametrize("method", ["minmax", "combsum"])
def test_min_max_differs_at_the_ends_of_lists_only(method: str) -> None:
    """Elasticsearch: where a list has one score; OpenSearch: the last hit."""
    for engine, least in (("elasticsearch", 1.0), ("opensearch", 0.97)):
        fusion = fusion_of(engine, method)
        _, translation = translated(engine, fusion)
        assert len(translation.differences) == 1
        assert least <= rankings(fusion, translation.formula) <= 1


def rankings(fusion: Fusion, formula: Formula, complete: bool = False) -> float:
    frame, qids = random_candidates(complete), pl.Series("qid", [f"q{number}" for number in range(20)])
    ours = pl.concat(lists.fuse_blocks([frame], qids, fusion.recipe, 10))
    theirs = pl.concat(formula.run([frame], qids, 10))
    assert ours.select("qid", "rank").equals(theirs.select("qid", "rank"))
    return float((ours["docid"] == theirs["docid"]).sum() / len(ours))


@pytest.mark.parametrize("engine", TRANSLATED)
def test_every_method_is_translated_with_its_differences_or_refused(engine: str) -> None:
    exact = {"weighted-sum": (), "sum": ("sum",)}
    for method in METHODS.built_in():
        if method == "product":
            with raises("no-near-fusion", option="format", method="product"):
                ENGINES[engine]().translate(fusion_of(engine, method))
            continue
        _, translation = translated(engine, fusion_of(engine, method))
        alike = method in ("weighted-sum", "rrf")
        assert (not translation.differences) == alike, method
        assert (translation.formula.depth is None) == (method in exact), method
        assert translation.load
        assert "queries.jsonl" in translation.ask


def test_opensearch_adds_exact_scores_in_a_script() -> None:
    body, translation = translated("opensearch", fusion_of("opensearch", "weighted-sum", (0.5, 2.0)))
    script = body["query"]["script_score"]["script"]
    assert "0.5 * _score + 2 * innerProduct(params.vector, doc['vector'])" in script["source"]
    assert script["params"] == {"vector": [0.6, 0.8]}
    bool_query = body["query"]["script_score"]["query"]["bool"]
    assert bool_query["should"] == {"match": {"contents": "json parser"}}
    assert bool_query["must"] == {"match_all": {"boost": 0}}
    assert translation.formula == Formula((0.5, 2.0))
    assert not translation.files


@pytest.mark.parametrize(("method", "technique"), [("minmax", "min_max"), ("zscore", "z_score")])
def test_opensearch_normalizes_in_a_pipeline(method: str, technique: str) -> None:
    body, translation = translated("opensearch", fusion_of("opensearch", method, (1.0, 3.0)))
    query = body["query"]["hybrid"]
    assert query["pagination_depth"] == 50
    assert query["queries"] == [
        {"match": {"contents": "json parser"}},
        {"knn": {"vector": {"vector": [0.6, 0.8], "k": 50}}},
    ]
    (processor,) = json.loads(translation.files["pipeline.json"])["phase_results_processors"]
    assert processor["normalization-processor"] == {
        "normalization": {"technique": technique},
        "combination": {"technique": "arithmetic_mean", "parameters": {"weights": [0.25, 0.75]}},
    }
    assert "search_pipeline=hybrid" in translation.ask


def test_opensearch_fuses_ranks_in_a_pipeline() -> None:
    fusion = fusion_of("opensearch", "rrf", (1.0, 3.0))
    recipe = FusionRecipe("rrf", (1.0, 3.0), "zero", rrf_k=10.4)
    _, translation = translated("opensearch", Fusion(recipe, fusion.fields, 20_000, K1))
    (processor,) = json.loads(translation.files["pipeline.json"])["phase_results_processors"]
    combination = {"technique": "rrf", "rank_constant": 10, "parameters": {"weights": [0.25, 0.75]}}
    assert processor["score-ranker-processor"] == {"combination": combination}
    assert translation.formula.depth == 10_000  # the largest window
    assert len(translation.differences) == 2  # the constant and the depth


def test_the_formula_of_opensearch_by_hand() -> None:
    """Unit vectors score (1 + s) / 2, which min-max ignores; the last hit has .001."""
    _, translation = translated("opensearch", fusion_of("opensearch", "minmax"))
    scores = scores_of(translation.formula, candidates(LISTS))
    expected = {"a": 0.3 + 0.7 * 0.001, "b": 0.3 * 0.5 + 0.7, "c": 0.3 * 0.001, "d": 0.7 * (0.5 + 0.5) / 1.4}
    assert scores == pytest.approx(expected)
    single = scores_of(translation.formula, candidates({"contents": {"a": 3.0}, "vector": {"b": 0.2, "c": 0.2}}))
    assert single == pytest.approx({"a": 0.3, "b": 0.7, "c": 0.7})
    _, translation = translated("opensearch", fusion_of("opensearch", "zscore", (1.0, 1.0)))
    values = {"contents": {"a": 4.0, "b": 2.0, "c": 0.5, "d": 0.5}, "vector": {"e": 0.4}}
    mean, deviation = 1.75, math.sqrt((2.25**2 + 0.25**2 + 2 * 1.25**2) / 3)  # of a sample
    expected = {"a": (4 - mean) / deviation, "b": (2 - mean) / deviation, "c": 0.001, "d": 0.001, "e": 0.7}
    scores = scores_of(translation.formula, candidates(values))
    assert scores == pytest.approx({docid: score / 2 for docid, score in expected.items()})


def test_a_hybrid_query_of_opensearch_has_at_most_five_lists() -> None:
    sides = (Field("contents", 1.0), *(Field(f"vector_{n}", 1.0, 2) for n in range(5)))
    fusion = Fusion(FusionRecipe("minmax", (1.0,) * 6, "zero"), sides, 50, K1)
    with raises("too-many-indexes", limit=5):
        ENGINES["opensearch"]().translate(fusion)
    assert ENGINES["elasticsearch"]().translate(fusion) is not None


def test_elasticsearch_divides_the_weight_of_bm25_by_its_factor() -> None:
    body, _ = translated("elasticsearch", fusion_of("elasticsearch", "weighted-sum", (0.5, 2.0)))
    source = body["query"]["script_score"]["script"]["source"]
    assert f"{0.5 / (K1 + 1):g} * _score + 2 * dotProduct(params.vector, 'vector')" in source


def test_elasticsearch_bends_negative_inner_products() -> None:
    _, translation = translated("elasticsearch", fusion_of("elasticsearch", "minmax", (0.0, 1.0), unit=False))
    assert len(translation.differences) == 2
    scores = scores_of(
        translation.formula, candidates({"contents": {"a": 1.0}, "vector": {"b": 3.0, "c": 1.0, "d": -1.0}})
    )
    assert scores["c"] == pytest.approx((2 - 0.5) / (4 - 0.5))


def test_elasticsearch_has_the_linear_retriever() -> None:
    body, translation = translated("elasticsearch", fusion_of("elasticsearch", "minmax", (1.0, 3.0)))
    linear = body["retriever"]["linear"]
    assert linear["rank_window_size"] == 50
    assert [(each["weight"], each["normalizer"]) for each in linear["retrievers"]] == [
        (0.25, "minmax"),
        (0.75, "minmax"),
    ]
    lexical, dense = (each["retriever"] for each in linear["retrievers"])
    assert lexical == {"standard": {"query": {"match": {"contents": "json parser"}}}}
    assert dense["knn"] == {"field": "vector", "query_vector": [0.6, 0.8], "k": 50, "num_candidates": 50}
    scores = scores_of(translation.formula, candidates(LISTS))
    assert scores == pytest.approx({"a": 0.25, "b": 0.25 * 0.5 + 0.75, "c": 0.0, "d": 0.75 * 1.0 / 1.4})
    single = scores_of(translation.formula, candidates({"contents": {"a": 3.0}, "vector": {"b": 0.2}}))
    assert single == pytest.approx({"a": 0.25 * 3.0, "b": 0.75 * 0.6})  # equal scores remain


def test_elasticsearch_has_the_rrf_retriever() -> None:
    body, translation = translated("elasticsearch", fusion_of("elasticsearch", "rrf", (1.0, 3.0)))
    rrf = body["retriever"]["rrf"]
    assert (rrf["rank_constant"], rrf["rank_window_size"]) == (60, 50)
    assert [each["weight"] for each in rrf["retrievers"]] == [0.25, 0.75]
    scores = scores_of(translation.formula, candidates(LISTS))
    assert scores["b"] == pytest.approx(0.25 / 62 + 0.75 / 61)


def test_elasticsearch_normalizes_lengths_of_its_own_scores() -> None:
    fusion = fusion_of("elasticsearch", "minmax", (0.5, 0.5))
    recipe = FusionRecipe("combsum", (0.5, 0.5), "zero", "l2")
    body, translation = translated("elasticsearch", Fusion(recipe, fusion.fields, 50, K1))
    assert {each["normalizer"] for each in body["retriever"]["linear"]["retrievers"]} == {"l2_norm"}
    scores = scores_of(translation.formula, candidates({"contents": {"a": 3.0, "b": 4.0}, "vector": {"c": 0.2}}))
    assert scores == pytest.approx({"a": 0.3, "b": 0.4, "c": 0.5})
    assert translation.differences


@pytest.fixture(scope="module")
def made(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    (folder / "tiny").symlink_to(tiny)
    index_bm25(folder / "tiny", output=folder / "bm25", threads=1)
    encode(folder / "tiny", model=str(tiny_bert), normalize=True, dtype="fp32", output=folder / "dense", threads=1)
    both = [folder / "bm25", folder / "dense"]
    compose(both, method="weighted-sum", weights="0.5,1", output=folder / "sum")
    compose(both, method="minmax", weights="0.5,0.5", depth=5, output=folder / "minmax")
    output = folder / "exact.parquet"
    search(folder / "tiny", split="test", exact=True, index=both[::-1], weights=[1.0, 0.5], output=output)
    return folder


@pytest.mark.parametrize("engine", TRANSLATED)
def test_the_exact_sum_is_that_of_the_exact_search(made: Path, engine: str) -> None:
    files = RetrieverFiles.read(made / "sum")
    translation = ENGINES[engine]().translate(fusion_of(engine, "weighted-sum", (0.5, 1.0)))
    assert translation is not None
    queries = pl.read_parquet(made / "tiny" / "queries.test.parquet").select("qid", "text")
    run = pl.concat(simulate(files, translation.formula, queries, 10))
    exact = read_run(made / "exact.parquet").filter(pl.col("rank") <= 10)
    assert run.select("qid", "docid", "rank").equals(exact.select("qid", "docid", "rank"))


def test_indexes_may_have_their_documents_in_different_orders(made: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(made / "tiny" / "corpus.parquet")
    rows.tail(6).write_parquet(tmp_path / "last.parquet")
    rows.head(len(rows) - 6).write_parquet(tmp_path / "first.parquet")
    index_bm25(tmp_path / "last.parquet", output=tmp_path / "part", threads=1)
    update(tmp_path / "part", add=tmp_path / "first.parquet", output=tmp_path / "bm25", threads=1)
    both = [tmp_path / "bm25", made / "dense"]
    files = RetrieverFiles.read(compose(both, method="weighted-sum", weights="0.5,1", output=tmp_path / "sum"))
    queries = pl.read_parquet(made / "tiny" / "queries.test.parquet").select("qid", "text")
    run = pl.concat(simulate(files, Formula((0.5, 1.0)), queries, 10))
    exact = read_run(made / "exact.parquet").filter(pl.col("rank") <= 10)
    assert run.select("qid", "docid", "rank").equals(exact.select("qid", "docid", "rank"))


@pytest.mark.parametrize("engine", TRANSLATED)
def test_the_loss_is_printed_and_stored(made: Path, engine: str, tmp_path: Path) -> None:
    words = ["export", made / "minmax", "--format", engine, "--collection", made / "tiny", "--split", "test"]
    done = ran(*words, "--output", tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "fusion.json").read_text())
    assert (stored["method"], stored["depth"]) == ("minmax", 5)
    assert (stored["engine"]["name"], stored["engine"]["ran"]) == (engine, False)
    loss = stored["engine"]["loss"]
    assert done.says("engine-loss", **{**loss, "interval": tuple(loss["interval"])})
    assert loss["measure"] == "nDCG@10"
    assert loss["difference"] == pytest.approx(loss["engine"] - loss["hybrid"])
    assert loss["interval"][0] <= loss["difference"] <= loss["interval"][1]
    assert 0 < loss["overlap"] <= 1
    note = (tmp_path / "out" / "README.md").read_text()
    assert all(difference in note for difference in stored["engine"]["differences"])
    assert f"{loss['hybrid']:.4f}" in note
    queries = [json.loads(line) for line in (tmp_path / "out" / "queries.jsonl").read_text().splitlines()]
    template = json.loads((tmp_path / "out" / "query.json").read_text())
    assert all(query["request"].keys() == template.keys() for query in queries)
    assert f"VECTOR OF {open_dense(made / 'dense').dim} NUMBERS" in json.dumps(template)
    assert "VECTOR OF" not in json.dumps(queries)
    assert hybrid(*words, "--output", tmp_path / "out").says("up-to-date")


def test_without_judgments_the_loss_is_not_measured(made: Path, tmp_path: Path) -> None:
    words = ["export", made / "minmax", "--format", "opensearch", "--collection", tmp_path / "asked", "--split", "test"]
    (tmp_path / "asked").mkdir()
    for name in ("corpus.parquet", "queries.test.parquet"):
        (tmp_path / "asked" / name).write_bytes((made / "tiny" / name).read_bytes())
    assert not ran(*words, "--output", tmp_path / "out").says("engine-loss")
    assert json.loads((tmp_path / "out" / "fusion.json").read_text())["engine"]["loss"] is None
    assert "--split" in (tmp_path / "out" / "README.md").read_text()
    done = hybrid(*words, "--qrels", made / "tiny" / "qrels.test.parquet", "--output", tmp_path / "judged")
    assert done.says("engine-loss", queries=5)


def test_passages_are_collapsed_to_documents(tmp_path: Path, tiny: Path, tiny_bert: Path) -> None:
    """The requests return one hit per document, and the formula is measured on documents."""
    corpus = pl.read_parquet(tiny / "corpus.parquet")
    parts = [corpus.with_columns(docid=pl.col("docid") + f"#{number}") for number in (0, 1)]
    folder = tmp_path / "passages"
    folder.mkdir()
    pl.concat(parts).sort("docid").write_parquet(folder / "corpus.parquet")
    for name in ("queries.test.parquet", "qrels.test.parquet"):
        (folder / name).write_bytes((tiny / name).read_bytes())
    index_bm25(folder / "corpus.parquet", output=tmp_path / "bm25", threads=1)
    encode(folder / "corpus.parquet", model=str(tiny_bert), dtype="fp32", output=tmp_path / "dense", threads=1)
    both = [tmp_path / "bm25", tmp_path / "dense"]
    for method in ("minmax", "weighted-sum"):
        compose(both, method=method, weights="0.5,0.5", group=MAX, depth=5, output=tmp_path / method)
        words = ["export", tmp_path / method, "--format", "opensearch", "--collection", folder, "--split", "test"]
        ran(*words, "--output", tmp_path / f"out-{method}")
        assert json.loads((tmp_path / f"out-{method}" / "query.json").read_text())["collapse"] == {"field": "document"}
        stored = json.loads((tmp_path / f"out-{method}" / "fusion.json").read_text())
        assert stored["engine"]["loss"]["overlap"] > 0.5
    source = json.loads((tmp_path / "out-minmax" / "documents.ndjson").read_text().splitlines()[1])
    assert f"{source['document']}#" in (tmp_path / "out-minmax" / "documents.ndjson").read_text().splitlines()[0]
