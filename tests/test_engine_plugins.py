"""The engines of `examples/engines`, each loaded as a plugin: documents, the body of a request, the formula by hand."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import hybrid, raises, ran
from test_exported_fusions import LISTS, QUERY, candidates, fusion_of, scores_of

from hybrid_cli import plugins
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.exports.engine import ENGINES
from hybrid_cli.lexical import analyze
from hybrid_cli.runs import read_run
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search

FILES = Path(__file__).parent.parent / "examples" / "engines"
NAMES = ("vespa", "milvus", "lancedb")
PROFILE = "application/schemas/document/hybrid.profile"


@pytest.fixture(params=NAMES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    with plugins.load_files(FILES / f"{name}.py" for name in NAMES):
        yield request.param


def translated(engine: str, method: str, weights: Sequence[float] = (1.0, 3.0), **options: Any) -> tuple[Any, Any]:
    translation = ENGINES[engine]().translate(fusion_of(engine, method, weights, **options))
    assert translation is not None
    query = {**QUERY, "indices": [4, 7], "values": [1.0, 2.0]}
    return json.loads(json.dumps(translation.request(query))), translation


@pytest.fixture(scope="module")
def made(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "data").mkdir()
    corpus = pl.read_parquet(tiny / "corpus.parquet").with_columns(year=pl.lit(2000), free=pl.lit(True))
    corpus.write_parquet(folder / "data/corpus.parquet")
    for name in ("queries.test.parquet", "qrels.test.parquet"):
        (folder / "data" / name).write_bytes((tiny / name).read_bytes())
    index_bm25(folder / "data", output=folder / "bm25", k1=1.2, b=0.5, threads=1)
    encode(folder / "data", model=str(tiny_bert), normalize=True, dtype="fp32", output=folder / "dense", threads=1)
    search(folder / "data", split="test", index=folder / "bm25", output=folder / "bm25.parquet", threads=1)
    compose([folder / "bm25", folder / "dense"], method="minmax", weights="0.5,0.5", output=folder / "retriever")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_plugin_writes_documents_requests_and_the_loss(made: Path, tmp_path: Path, name: str) -> None:
    plugin, output = ("--plugin", FILES / f"{name}.py"), tmp_path / "out"
    words = ("export", made / "retriever", "--format", name, "--collection", made / "data", "--split", "test")
    assert hybrid(*words, "--output", output).is_problem("removed", words=f"export --format {name}")
    done = ran(*words, *plugin, "--output", output)
    loss = json.loads((output / "fusion.json").read_text())["engine"]["loss"]
    assert done.says("engine-loss", measure="nDCG@10", overlap=loss["overlap"])
    queries = [json.loads(line) for line in (output / "queries.jsonl").read_text("utf-8").splitlines()]
    template = json.loads((output / "query.json").read_text())
    assert all(query["request"].keys() == template.keys() for query in queries)
    vectors = open_dense(made / "dense")
    if name == "vespa":
        lines = (output / "documents.jsonl").read_text("utf-8").splitlines()
        rows = [json.loads(line)["fields"] for line in lines]
        assert {"year": 2000, "free": True}.items() <= rows[0].items()
        schema = (output / "application/schemas/document.sd").read_text()
        assert "field year type long {" in schema
        assert "field free type bool {" in schema
        assert rows[0]["terms"] == {term: round(1000 * value) for term, value in rows[0]["impacts"].items()}
        terms = [query["terms"] for query in queries]
        found = [
            [sum(row["impacts"].get(term, 0) * count for term, count in each.items()) for row in rows] for each in terms
        ]
    else:
        rows = pl.read_parquet(output / "documents.parquet").to_dicts()
        assert (output / "load.py").is_file()
        if name == "lancedb":
            (words_of_first,) = analyze([f"{rows[0]['title']}\n{rows[0]['text']}"])
            assert rows[0]["terms"] == " ".join(words_of_first)
            found = None
        else:
            impacts = [dict(zip(row["indices"], row["values"], strict=True)) for row in rows]
            terms = [query["request"]["search"][0]["data"][0] for query in queries]
            found = [
                [sum(of.get(int(term), 0) * count for term, count in each.items()) for of in impacts] for each in terms
            ]
    order = [vectors.docids.to_list().index(row["docid"]) for row in rows]
    np.testing.assert_allclose([row["vector"] for row in rows], vectors.vectors_of(np.array(order)), rtol=1e-6)
    if found is not None:
        columns = {row["docid"]: column for column, row in enumerate(rows)}
        lines_of = {query["qid"]: line for line, query in enumerate(queries)}
        for qid, docid, score in read_run(made / "bm25.parquet").select("qid", "docid", "score").iter_rows():
            assert found[lines_of[qid]][columns[docid]] == pytest.approx(score, rel=1e-5)
    assert hybrid(*words, *plugin, "--output", output).says("up-to-date")


@pytest.mark.parametrize("engine", ["vespa"], indirect=True)
def test_vespa_normalizes_over_all_candidates_in_the_global_phase(engine: str) -> None:
    body, translation = translated(engine, "minmax")
    profile = translation.files[PROFILE]
    assert "expression: 0.25 * normalize_linear(score_impacts) + 0.75 * normalize_linear(score_vector)" in profile
    assert "rerank-count: 100" in profile
    assert profile.count("{") == profile.count("}")
    assert body["ranking"] == "hybrid"
    assert "({targetHits: 50}nearestNeighbor(vector, vector))" in body["yql"]
    assert '({targetHits: 50}wand(terms, {"json": 1, "parser": 2}))' in body["yql"]
    assert json.loads(body["input.query(terms)"]) == QUERY["terms"]
    assert body["input.query(vector)"] == [0.6, 0.8]
    complete = {"impacts": {**LISTS["contents"], "d": 0.0}, "vector": {**LISTS["vector"], "c": -1.0}}
    expected = {"a": 0.25 + 0.75 * 0.5 / 1.9, "b": 0.25 * 2 / 3 + 0.75, "c": 0.25 / 3, "d": 0.75 * 1.5 / 1.9}
    assert scores_of(translation.formula, candidates(complete)) == pytest.approx(expected)
    equal = scores_of(translation.formula, candidates({"impacts": {"a": 0.0, "b": 0.0}, "vector": {"a": 2, "b": 1}}))
    assert equal == pytest.approx({"a": 0.125 + 0.75, "b": 0.125})


@pytest.mark.parametrize("engine", ["vespa"], indirect=True)
def test_vespa_fuses_ranks_in_the_global_phase_and_adds_scores_in_the_first(engine: str) -> None:
    _, translation = translated(engine, "rrf", (1.0, 1.0))
    expected = "0.5 * reciprocal_rank(score_impacts, 60.0) + 0.5 * reciprocal_rank(score_vector, 60.0)"
    assert expected in translation.files[PROFILE]
    body, translation = translated(engine, "weighted-sum", (0.5, 2.0))
    assert "expression: 0.5 * score_impacts + 2 * score_vector" in translation.files[PROFILE]
    assert "global-phase" not in translation.files[PROFILE]
    assert body["yql"].endswith("where true")
    assert not translation.differences


@pytest.mark.parametrize("engine", ["milvus"], indirect=True)
def test_milvus_adds_weighted_scores_or_ranks_without_weights(engine: str) -> None:
    body, translation = translated(engine, "weighted-sum", (0.5, 2.0))
    assert body["rerank"] == {"strategy": "ws", "params": {"weights": [0.25, 1.0], "norm_score": False}}
    assert [search["data"][0] for search in body["search"]] == [{"4": 1.0, "7": 2.0}, [0.6, 0.8]]
    assert [search["annsField"] for search in body["search"]] == ["bm25", "vector"]
    scores = scores_of(translation.formula, candidates({"bm25": {"a": 3.0, "b": 1.0}, "vector": {"a": 0.5, "b": 0.9}}))
    assert scores == pytest.approx({"a": 1.5 + 1.0, "b": 0.5 + 1.8})
    body, translation = translated(engine, "rrf")
    assert body["rerank"] == {"strategy": "rrf", "params": {"k": 60}}
    scores = scores_of(translation.formula, candidates(LISTS))
    assert scores["b"] == pytest.approx(1 / 62 + 1 / 61)
    assert "Weights are not used." in translation.differences


@pytest.mark.parametrize("engine", ["lancedb"], indirect=True)
def test_lancedb_interpolates_min_max_scores_of_its_own_bm25(engine: str) -> None:
    body, translation = translated(engine, "minmax")
    expected = {"column": "vector", "vector": [0.6, 0.8], "terms": "json parser", "weight": 0.75, "candidates": 50}
    expected |= {"limit": 10}
    assert body == expected
    scores = scores_of(translation.formula, candidates(LISTS))
    assert scores == pytest.approx({"a": 0.25, "b": 0.25 * 0.5 + 0.75, "c": 0.0, "d": 0.75 * 1.0 / 1.4})
    body, translation = translated(engine, "rrf")
    assert body["K"] == 60
    assert scores_of(translation.formula, candidates(LISTS))["b"] == pytest.approx(1 / 62 + 1 / 61)
    assert any("k1 = 1.2" in line for line in translation.differences)


def test_a_product_is_refused_and_a_client_or_a_server_named(engine: str, made: Path, tmp_path: Path) -> None:
    with raises("no-near-fusion", method="product"):
        translated(engine, "product")
    addresses: Mapping[str, Any] = {
        "vespa": "http://localhost:1",
        "milvus": tmp_path / "no.db",
        "lancedb": tmp_path / "no",
    }
    words = ("inspect", "--verify", made / "retriever", "--plugin", FILES / f"{engine}.py")
    data = ("--collection", made / "data", "--split", "test")
    done = hybrid(*words, "--engine", f"{engine}:{addresses[engine]}", *data)
    assert done.problem in ("engine-unreachable", "missing-package"), done.err
