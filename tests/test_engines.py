"""Retrievers in Qdrant: the same hits as here; answers of servers; live queries with the analysis of the index."""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from api_server import Server
from command import Done, hybrid, raises, ran, refused

from hybrid_cli import runs
from hybrid_cli.artifacts.opening import open_bm25, open_dense
from hybrid_cli.artifacts.retrievers import RetrieverFiles
from hybrid_cli.commands import PreparePythonDocs
from hybrid_cli.exports.comparison import fusion_of, simulate, vectors_of
from hybrid_cli.exports.documents import Served
from hybrid_cli.exports.engine import ENGINES
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.export import export
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.inspect import inspect
from hybrid_cli.stages.prepare import prepare

PAGE = Path(__file__).parent.parent / "docs" / "export.md"
PLACES = {"qdrant": "points", "milvus": "points.db", "lancedb": "table"}


@pytest.fixture(scope="module", params=["tiny", "rich"])
def home(request: pytest.FixtureRequest, tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indexes of a collection: of passages, one without text and queries without terms, or of docstrings."""
    folder = tmp_path_factory.mktemp(request.param)
    collection = tiny
    if request.param == "rich":
        few = {"train": 1, "dev": 1, "test": 30}
        settings = PreparePythonDocs(package=["rich"], sample=120, sample_queries=few, output=folder / "rich")
        collection = prepare(settings)
    index_bm25(collection, output=folder / "bm25", k1=1.2, b=0.5)
    encode(collection, model=str(tiny_bert), dtype="fp32", normalize=True, output=folder / "dense")
    (folder / "collection").symlink_to(collection)
    return folder


def loaded(retriever: Path, home: Path, folder: Path) -> str:
    export(retriever, form="qdrant", collection=home / "collection", split="test", output=folder / "files")
    run_script(folder / "files/load.py", folder / "points")
    return f"qdrant:{folder / 'points'}"


def run_script(script: Path, *words: object) -> None:
    before, sys.argv = sys.argv, [str(script), *map(str, words)]
    try:
        runpy.run_path(str(script))
    finally:
        sys.argv = before


def compared(retriever: Path, address: str, home: Path) -> dict[str, Any]:
    words = ["--collection", home / "collection", "--split", "test", "--format", "json"]
    done = ran("inspect", "--verify", retriever, "--engine", address, *words)
    answer: dict[str, Any] = json.loads(done.out)
    return answer


@pytest.mark.heavy
@pytest.mark.parametrize("weights", [None, "0.5,1"])
def test_an_exact_sum_has_the_same_ten_documents(home: Path, tmp_path: Path, weights: str | None) -> None:
    chosen: dict[str, Any] = {} if weights is None else {"method": "weighted-sum", "weights": weights}
    retriever = compose([home / "bm25", home / "dense"], output=tmp_path / "retriever", **chosen)
    address = loaded(retriever, home, tmp_path)
    agreement = compared(retriever, address, home)
    assert agreement["queries"] in (6, 30)
    assert agreement["same"] == agreement["same_order"] == agreement["queries"]
    assert agreement["differences"] == agreement["differing"] == []
    ours, theirs = agreement["measured"]
    assert ours == pytest.approx(theirs, abs=0.02)  # ties
    other = compose([home / "bm25", home / "dense"], method="weighted-sum", weights="1,0", output=tmp_path / "other")
    assert compared(other, address, home)["same"] == agreement["queries"]  # weights are of the query, not of the load


@pytest.mark.heavy
@pytest.mark.parametrize("home", ["rich"], indirect=True)
@pytest.mark.parametrize("method", ["dbsf", "minmax", "rrf"])
def test_the_engine_computes_the_formula_by_which_the_loss_is_measured(
    home: Path, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    retriever = compose(
        [home / "bm25", home / "dense"], method=method, weights="0.3,0.7", depth=200, output=tmp_path / "retriever"
    )
    agreement = compared(retriever, loaded(retriever, home, tmp_path), home)
    assert agreement["differences"]
    assert agreement["overlap"] > 0.5
    capsys.readouterr()
    run_script(tmp_path / "files/ask.py", tmp_path / "points")
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    asked = pl.DataFrame(lines, ["qid", "docid", "rank", "score"], orient="row").cast({"score": pl.Float64})
    files = RetrieverFiles.read(retriever)
    dense = vectors_of(files)
    opened = {name: open_dense(path) for name, path in dense.items()}
    served = Served(open_bm25(files.indexes[0]), (), (), Path(), opened)
    translation = ENGINES["qdrant"]().translate(fusion_of(files, dense, served, "bm25"))
    assert translation is not None
    queries = pl.read_parquet(home / "collection/queries.test.parquet").select("qid", "text")
    expected = pl.concat([runs.empty(), *simulate(files, translation.formula, queries, 10)])
    for qid in queries["qid"]:
        mine, theirs = expected.filter(qid=qid)["score"], asked.filter(qid=qid)["score"]
        np.testing.assert_allclose(theirs, mine, rtol=1e-2 if method == "rrf" else 1e-4, atol=1e-5)


def test_a_live_query_of_the_documentation_is_the_vector_of_the_index(tiny: Path, tmp_path: Path) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25")
    written = export(index, form="parquet", output=tmp_path / "parquet")
    code = re.search(r"```python\n(from collections import Counter.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert code is not None
    scope: dict[str, Any] = {"pl": pl}
    exec(code[1].replace("out/parquet", str(written)), scope)
    matrix = open_bm25(index).query_matrix(["Is water salted?"])
    assert dict(zip(scope["indices"], scope["values"], strict=True)) == dict(
        zip(matrix.indices.tolist(), matrix.data.tolist(), strict=True)
    )
    assert len(scope["indices"]) == 2


@pytest.fixture(scope="module")
def composed(tiny: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("composed")
    index_bm25(tiny, output=folder / "bm25")
    encode(tiny, model=str(tiny_bert), dtype="fp32", normalize=True, output=folder / "dense")
    return compose([folder / "bm25", folder / "dense"], method="weighted-sum", output=folder / "retriever")


@pytest.mark.usefixtures("no_delays")
@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ("qdrant", "unknown-choice"),
        ("qdrant:nothing", "engine-unreachable"),
        ("qdrant:http://localhost:1", "engine-unreachable"),
        ("opensearch:http://localhost:1/documents", "engine-unreachable"),
        ("elasticsearch:documents", "engine-unreachable"),
    ],
)
def test_an_engine_that_cannot_be_reached_is_refused(composed: Path, workdir: Path, engine: str, problem: str) -> None:
    refused("inspect", "--verify", composed, "--engine", engine, "--split", "test", problem=problem, option="engine")


def test_a_collection_that_is_not_there_or_of_other_documents_is_refused(composed: Path, tmp_path: Path) -> None:
    from qdrant_client import QdrantClient, models

    place = tmp_path / "points"
    for name, problem in (("others", "no-such-collection"), ("documents", "other-corpus")):
        client = QdrantClient(path=str(place))
        vectors = {"vector": models.VectorParams(size=16, distance=models.Distance.DOT)}
        client.create_collection(name, vectors_config=vectors)
        client.close()
        with raises(problem):
            inspect([composed], verify=True, engine=f"qdrant:{place}", split="test")


def test_a_missing_client_is_named(composed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    done = hybrid("inspect", "--verify", composed, "--engine", f"qdrant:{tmp_path}", "--split", "test")
    assert (done.code, done.problem) == (1, "missing-package")


@contextmanager
def server(answers: dict[str, tuple[int, Any]]) -> Iterator[str]:
    """Serve answers by path, and yield the address."""

    def reply(body: dict[str, Any]) -> tuple[int, str]:
        code, content = answers.get(asked.headers[-1]["path"], (404, {}))
        return code, content if isinstance(content, str) else json.dumps(content)

    asked = Server(reply)
    try:
        yield asked.url.removesuffix("/v1")
    finally:
        asked.close()


def test_servers_are_asked_over_http(composed: Path) -> None:
    """The answers are those of the reference of the servers; no server runs here."""

    def asked(engine: str, address: str) -> Done:
        words = ("--engine", f"{engine}:{address}", "--split", "test", "--format", "json")
        return hybrid("inspect", "--verify", composed, *words)

    hits = {"hits": {"hits": [{"_id": "d1", "_score": 2.0}]}}
    reason = {"error": {"reason": "no script"}}
    with server({"/documents/_count": (200, {"count": 12}), "/documents/_search": (200, hits)}) as address:
        for engine in ("opensearch", "elasticsearch"):
            done = asked(engine, address)
            assert (done.code, done.problem) == (1, "other-hits"), done.err
            assert json.loads(done.out)["queries"] == 6
        assert asked("opensearch", f"{address}/others").problem == "no-such-collection"
    with server({"/documents/_count": (200, {"count": 3})}) as address:
        assert asked("opensearch", address).is_problem("other-corpus", value=3, expected=12)
    with server({"/documents/_count": (200, {"count": 12}), "/documents/_search": (400, reason)}) as address:
        done = asked("elasticsearch", address)
        assert done.problem == "engine-refused"
        assert "no script" in done.err
    with server({"/documents/_count": (200, "<html>")}) as address:
        assert asked("opensearch", address).problem == "engine-unreachable"
