"""`search --engine` and `serve --engine`: OpenSearch over HTTP, Qdrant's local mode; requests, latency, bad answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import polars as pl
import pytest
from api_server import Server, running
from command import hybrid, ran
from served import TOKEN, Served
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli import open_index, open_run
from hybrid_cli.artifacts import read_manifest
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25

pytestmark = pytest.mark.usefixtures("no_delays")


def hits_of(*pairs: tuple[str, Any]) -> tuple[int, str]:
    """Return an answer as the reference of OpenSearch has it, with ids of its own."""
    rows = [
        {"_index": "docs", "_id": f"row-{n}", "_score": score, "_source": {"docid": docid}}
        for n, (docid, score) in enumerate(pairs)
    ]
    hits = {"total": {"value": len(rows), "relation": "eq"}, "max_score": None, "hits": rows}
    return 200, json.dumps({"took": 3, "timed_out": False, "hits": hits})


def words_in_common(body: dict[str, Any]) -> tuple[int, str]:
    words = set(body["query"]["multi_match"]["query"].split())
    scores = {
        docid: float(len(words & {*title.lower().split(), *text.split()})) for docid, title, text in TINY_DOCUMENTS
    }
    best = sorted(((docid, score) for docid, score in scores.items() if score), key=lambda hit: (-hit[1], hit[0]))
    return hits_of(*best[: body["size"]])


@pytest.fixture
def server(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    Path("tiny").symlink_to(tiny)
    yield from running(words_in_common)


def words_for(server: Server, name: str = "engine.parquet") -> list[str]:
    address = server.url.removesuffix("/v1")
    return ["search", "tiny", "--split", "test", "--engine", f"opensearch:{address}/docs", "--output", name]


def test_a_run_of_an_engine_works_as_one_of_ours(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_API_KEY", "Basic c2VjcmV0")
    done = ran(*words_for(server), "--hits", 5)
    assert done.says("written", queries=6)
    assert {headers["Authorization"] for headers in server.headers} == {"Basic c2VjcmV0"}
    assert {(headers["path"], body["size"]) for headers, body in zip(server.headers, server.bodies, strict=True)} == {
        ("/docs/_search", 5)
    }
    run = open_run("engine.parquet")
    assert run.filter(qid="002")["docid"][0] == "salt"
    assert run.group_by("qid").len()["len"].max() == 5
    latency = read_manifest("engine.parquet").counts["latency"]
    assert 0 < latency["p50"] <= latency["p95"]
    assert b"c2VjcmV0" not in Path("engine.parquet").read_bytes()
    index_bm25("tiny", output="bm25", lucene=False)
    ran("search", "tiny", "--split", "test", "--index", "bm25", "--output", "ours.parquet")
    both = ["ours.parquet", "engine.parquet"]
    assert '"engine"' in ran("evaluate", "tiny", *both, "--split", "test", "--format", "json").out
    tuned = ["fuse", *both, "--tune", "--qrels", "tiny", "--split", "test", "--method", "minmax", "--output"]
    ran(*tuned, "weights.json")
    ran("fuse", *both, "--weights", "@weights.json", "--output", "fused.parquet")
    exact = hybrid("fuse", *both, "--missing", "exact", "--index", "bm25,bm25", "--method", "minmax", "--output", "x")
    assert exact.is_problem("no-exact-scores", path="engine.parquet"), exact.err
    ran("gate", "engine.parquet", "tiny", "--split", "test", "--baseline", "quality.json", "--write")
    assert ran(*words_for(server), "--hits", 5).code == 0
    assert len(server.bodies) == 6, "up to date"


def test_a_request_of_its_own_with_vectors_of_a_model(server: Server, tiny_bert: Path) -> None:
    request = {"knn": {"field": "v", "query_vector": "{vector}", "k": 3}, "name": "of {query}", "_source": False}
    Path("request.json").write_text(json.dumps(request))
    server.reply = lambda body: (200, json.dumps({"hits": {"hits": [{"_id": "salt", "_score": 1.0}]}}))
    ran(*words_for(server), "--engine-query", "request.json", "--model", tiny_bert, "--timeout", 5)
    assert {len(body["knn"]["query_vector"]) for body in server.bodies} == {16}
    assert server.bodies[1]["name"] == "of salt in sea water"
    assert server.bodies[0]["size"] == 1000
    assert set(open_run("engine.parquet")["docid"]) == {"salt"}
    lacking = hybrid(*words_for(server, "b.parquet"), "--engine-query", "request.json")
    assert lacking.is_problem("missing-option", option="model")
    assert hybrid(*words_for(server, "b.parquet"), "--model", tiny_bert).is_problem(
        "conflicting-options", option="model"
    )


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (hits_of(("salt", 1.0), ("NA", 2.0)), "engine-answer"),
        (hits_of(("salt", 1.0), ("salt", 1.0)), "engine-answer"),
        (hits_of(("salt", None)), "engine-answer"),
        ((200, '{"hits": []}'), "engine-answer"),
        (hits_of(("salt", 1.0), ("unknown", 0.5)), "other-corpus"),
        (hits_of(), "no-hits"),
        ((200, "<html>"), "engine-unreachable"),
        ((401, "no key"), "engine-refused"),
        ((404, "no such index"), "no-such-collection"),
        ((503, "busy"), "engine-unreachable"),
    ],
)
def test_a_bad_answer_is_one_line(server: Server, reply: tuple[int, str], problem: str) -> None:
    server.reply = lambda body: reply
    done = hybrid(*words_for(server))
    assert (done.code, done.problem) == (2, problem), done.err
    assert not Path("engine.parquet").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--index", "bm25"], "option-does-not-apply"),
        (["--k1", 1.2], "option-does-not-apply"),
        (["--query", "salt"], "option-does-not-apply"),
        (["--filter", "a = 1"], "option-does-not-apply"),
        (["--exact"], "option-does-not-apply"),
    ],
)
def test_options_of_indexes_do_not_apply(server: Server, words: list[Any], problem: str) -> None:
    given = words_for(server)[: -2 if "--query" in words else None]
    assert hybrid(*given, *words).problem == problem
    assert hybrid("search", "tiny", "--split", "test", "--output", "x").problem == "missing-option"
    assert (
        hybrid("search", "tiny", "--index", "bm25", "--engine", "luzene", "--output", "x").problem == "unknown-choice"
    )


def test_qdrant_answers_with_the_vectors_of_an_export(server: Server, tiny_bert: Path) -> None:
    from test_engines import run_script

    index_bm25("tiny", output="bm25", lucene=False)
    encode("tiny", model=str(tiny_bert), dtype="fp32", output="dense")
    ran("export", "bm25", "--dense", "dense", "--format", "qdrant", "--collection", "tiny", "--output", "files")
    run_script(Path("files/load.py"), "points")
    words = ["search", "tiny", "--split", "test", "--engine", "qdrant:points", "--model", tiny_bert]
    ran(*words, "--hits", 12, "--output", "qdrant.parquet")
    ran("search", "tiny", "--split", "test", "--index", "dense", "--hits", 12, "--output", "ours.parquet")
    theirs, ours = (open_run(f"{name}.parquet").sort("qid", "docid") for name in ("qdrant", "ours"))
    assert theirs.select("qid", "docid").equals(ours.select("qid", "docid"))
    assert theirs["score"].to_list() == pytest.approx(ours["score"].to_list(), abs=1e-4)
    Path("sparse.json").write_text('{"query": "{vector}", "using": "other"}')
    assert hybrid(*words, "--engine-query", "sparse.json", "--output", "x.parquet").problem == "engine-refused"


@pytest.fixture
def tenants(server: Server, tiny_bert: Path) -> str:
    """Write a retriever of documents of two tenants; return the address of an engine that also knows another one."""
    rows = [
        {"docid": docid, "title": title, "text": text, "tenant": "ab"[number % 2]}
        for number, (docid, title, text) in enumerate(TINY_DOCUMENTS)
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ran("prepare", "files", "rows.jsonl", "--metadata", "all", "--output", "collection")
    ran("index-bm25", "collection", "--no-lucene", "--output", "bm25")
    ran("encode", "collection", "--model", tiny_bert, "--output", "dense")
    ran("compose", "bm25", "dense", "--output", "retriever")
    ranked = [(docid, float(99 - place)) for place, (docid, *_) in enumerate([("elsewhere",), *TINY_DOCUMENTS])]
    server.reply = lambda body: hits_of(*ranked[: body["size"]])
    return f"opensearch:{server.url.removesuffix('/v1')}/docs"


@pytest.mark.slow
def test_serve_shows_an_engine_next_to_a_retriever(server: Server, tenants: str) -> None:
    """Only documents of the retriever are hits, for a token only its own; an engine that fails leaves the others."""
    token = "token-of-the-tenant-b"
    Path("tokens.yaml").write_text(f"{token}: tenant = 'b'\n")
    documents = [docid for docid, *_ in TINY_DOCUMENTS]

    def hits(running: Served, secret: str = TOKEN, **more: Any) -> list[str]:
        path = "/api/search?" + urlencode({"query": "salt", "k": 5, "system": "opensearch"} | more)
        answer = running.ask("GET", path, authorization=f"Bearer {secret}").json
        return [hit["docid"] for hit in answer["candidates"]]

    with Served("retriever", "--engine", tenants, "--require-filter", "tokens.yaml") as running:
        assert hits(running, k=3) == documents[:2]  # of three answers, one is of no document
        assert hits(running, filter="tenant = 'a'") == documents[::2][:5]
        assert hits(running, token) == documents[1::2][:5]
        server.reply = lambda body: (500, "broken")
        assert hits(running) == []
        columns = running.ask("GET", "/api/columns?query=salt", authorization=f"Bearer {TOKEN}").json["columns"]
        assert columns["hybrid"]
        assert columns["opensearch"] == []


@pytest.mark.slow
def test_the_vector_of_a_request_is_by_the_encoder_of_the_retriever(server: Server, tenants: str) -> None:
    Path("request.json").write_text('{"query": {"knn": {"v": {"vector": "{vector}", "k": "{hits}"}}}}')
    with Served("retriever", "--engine", tenants, "--engine-query", "request.json") as running:
        assert running.get("/api/search", query="salt", system="opensearch", k=2).json["candidates"]
    sent = server.bodies[-1]["query"]["knn"]["v"]
    expected = open_index("dense").prepare(pl.DataFrame({"qid": ["1"], "text": ["salt"]}))[0]
    assert sent["vector"] == pytest.approx(expected.tolist(), abs=1e-6)
    refused = hybrid("serve", "bm25", "--engine", tenants, "--engine-query", "request.json", "--port", 0)
    assert refused.problem == "conflicting-options"
    server.close()
    assert hybrid("serve", "retriever", "--engine", tenants, "--port", 0).problem == "engine-unreachable"
    assert hybrid("serve", "retriever", "--engine", "nosuch:x", "--port", 0).problem == "unknown-choice"
