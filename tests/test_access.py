"""`serve --require-filter`: a token sees the documents of its condition, whatever a request asks for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from command import hybrid
from served import TOKEN, Answer, Served
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli.commands.data import PrepareFiles
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare

pytestmark = pytest.mark.slow
QUERY = "salt in sea water, sodium and the moon"
TENANTS = {"token-of-the-tenant-a": "a", "token-of-the-tenant-b": "b"}
OWN = {name: {d for n, (d, *_) in enumerate(TINY_DOCUMENTS) if (n % 2 == 0) == (name == "a")} for name in "ab"}
WIDER = ["tenant = 'a' OR tenant = 'b'", "1=1) OR (1=1", "true", "year >= 0"]


@pytest.fixture(scope="module", params=["documents", "passages"])
def retriever(request: pytest.FixtureRequest, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    rows = [
        {"docid": d, "title": t, "text": x, "tenant": "ab"[n % 2], "year": n}
        for n, (d, t, x) in enumerate(TINY_DOCUMENTS)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    cut: dict[str, Any] = {"split_passages": 12} if request.param == "passages" else {}
    prepare(PrepareFiles([folder / "rows.jsonl"], metadata=["all"], output=folder / "collection", **cut))
    index_bm25(folder / "collection", lucene=False, output=folder / "bm25")
    encode(folder / "collection", model=str(tiny_bert), dtype="fp32", output=folder / "dense")
    (folder / "tokens.yaml").write_text("".join(f"{token}: tenant = '{name}'\n" for token, name in TENANTS.items()))
    return compose([folder / "bm25", folder / "dense"], output=folder / "retriever")


@pytest.fixture(scope="module")
def server(retriever: Path) -> Iterator[Served]:
    with Served(retriever, "--require-filter", retriever.parent / "tokens.yaml") as running:
        yield running


def ask(server: Served, token: str, path: str, body: Any = None, **parameters: Any) -> Answer:
    query = f"?{urlencode(parameters)}" if parameters else ""
    accepted = {"accept": "application/json, text/event-stream"}
    words = "GET" if body is None else "POST", path + query, body
    return server.ask(*words, authorization=f"Bearer {token}", **accepted)


def tool(server: Served, token: str, name: str, **arguments: Any) -> str:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    return ask(server, token, "/mcp", call).body.decode()


@pytest.mark.parametrize(("token", "name"), TENANTS.items())
def test_no_request_widens_the_condition(server: Served, token: str, name: str) -> None:
    others, own = OWN["ab".replace(name, "")], OWN[name]
    for system in ("hybrid", "bm25", "dense"):
        hits = ask(server, token, "/api/search", query=QUERY, k=12, system=system, explain="true").json["candidates"]
        assert hits
        assert {hit["docid"] for hit in hits} <= own
        for condition in WIDER:
            some = ask(server, token, "/api/search", query=QUERY, k=12, system=system, filter=condition)
            assert some.status == 400 or {hit["docid"] for hit in some.json["candidates"]} <= own
    body = {"queries": [{"text": QUERY}, {"text": "moon"}], "k": 12}
    for result in ask(server, token, "/api/search", body).json["results"]:
        assert {hit["docid"] for hit in result["candidates"]} <= own
    parts = ask(server, token, "/api/context", query=QUERY, tokens=5000).json["context"]
    assert {part["docid"] for part in parts} <= own
    columns = ask(server, token, "/api/columns", query=QUERY).json
    assert {row["docid"] for row in columns["documents"]} <= own
    for docid in others:
        ids = [docid, f"{docid}#0"]
        body = {"query": QUERY, "docids": ids}
        assert all(not row["snippet"] for row in ask(server, token, "/api/snippets", body).json["documents"])
        for each in ids:
            assert ask(server, token, f"/api/documents/{quote(each)}").status == 404
            assert ask(server, token, "/api/explain", query=QUERY, docid=each).status == 404
            assert '"isError":true' in tool(server, token, "get_document", docid=each)
            assert '"isError":true' in tool(server, token, "explain", query=QUERY, docid=each)
    found = json.loads(tool(server, token, "search", query=QUERY, k=12, filter=WIDER[0]))
    hits = found["result"]["structuredContent"]["hits"]
    assert hits
    assert {hit["docid"] for hit in hits} <= own


@pytest.mark.parametrize(("token", "name"), TENANTS.items())
def test_what_is_known_of_the_collection_is_known_of_the_own_documents(server: Served, token: str, name: str) -> None:
    information = ask(server, token, "/api/info").json
    (facet,) = (each for each in information["metadata"] if each["name"] == "tenant")
    assert [each["value"] for each in facet["values"]] == [name]
    whole = ask(server, TOKEN, "/api/info").json
    assert 0 < information["documents"] < whole["documents"]
    assert (information["queries"], information["judged"], information["judging"]) == (0, 0, None)
    hit = ask(server, token, "/api/search", query=QUERY, k=1).json["candidates"][0]["docid"]
    assert ask(server, token, "/api/explain", query=QUERY, docid=hit).json["docid"] == hit


def test_a_token_with_a_condition_reads_documents_alone(server: Served) -> None:
    token = next(iter(TENANTS))
    for path in ("/", "/metrics", "/api/judged", "/static/app.js", "/api/comparison"):
        assert ask(server, token, path).status == 403
    assert server.get("/api/search", query=QUERY).status == 401
    assert ask(server, "another-token-of-nobody", "/api/search", query=QUERY).status == 401
    assert server.get("/health").status == 200
    everything = ask(server, TOKEN, "/api/search", query=QUERY, k=12).json["candidates"]
    assert {hit["docid"] for hit in everything} & OWN["a"]
    assert {hit["docid"] for hit in everything} & OWN["b"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "not-yaml"),
        ("- a", "not-yaml"),
        ("short: tenant = 'a'", "not-a-token"),
        ("token-of-the-tenant-a:", "no-condition"),
        ("token-of-the-tenant-a: [1]", "no-condition"),
        ("token-of-the-tenant-a: tenant = 'a'\ntoken-of-the-tenant-a: true", "no-condition"),
        ("token-of-the-tenant-a: tenat = 'a'", "no-such-column"),
        ("token-of-the-tenant-a: tenant = ", "filter-syntax"),
        (f"{TOKEN}: tenant = 'a'", "repeated-value"),
    ],
)
def test_an_unusable_file_is_refused_at_the_start(
    retriever: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: str
) -> None:
    (tmp_path / "tokens.yaml").write_text(text)
    monkeypatch.setenv("HYBRID_TOKEN", TOKEN)
    done = hybrid("serve", retriever, "--require-filter", tmp_path / "tokens.yaml", "--port", "0")
    assert done.is_problem(code), (done.err, done.fields)
    assert "token-of" not in done.err.replace(str(tmp_path), "")
