"""The server: routes, refusals, updates; the tools of MCP."""

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import hybrid
from served import TOKEN, Answer, Served
from small_artifacts import write_corpus
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli import open_index, open_retriever
from hybrid_cli.collections.readers.qrels import JudgmentFile
from hybrid_cli.commands.data import PrepareFiles
from hybrid_cli.server.batching import Batches
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare

pytestmark = pytest.mark.slow
QUERY = "salt in sea water"


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(made, folder / "made", symlinks=True)
    indexes = [folder / "made" / "bm25", folder / "made" / "dense"]
    compose(indexes, output=folder / "retriever")
    compose(indexes, method="minmax", depth=3, output=folder / "shallow")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    log = folder / "access.log"
    options = ("--compare", folder / "shallow", "--access-log", log, "--judgments", folder / "judgments.jsonl")
    with Served(folder / "retriever", "--split", "test", *options) as running:
        yield running


def test_hits_are_those_of_python(server: Served, folder: Path) -> None:
    hits = open_retriever(folder / "retriever").search(QUERY, 5)
    answer = server.get("/api/search", query=QUERY, k=5).json
    for name in ("docid", "rank", "score"):
        assert [each[name] for each in answer["candidates"]] == hits[name].to_list()
    for side in ("bm25", "dense"):
        assert [each["scores"][side] for each in answer["candidates"]] == hits[f"{side}_score"].to_list()
        assert [each["ranks"][side] for each in answer["candidates"]] == hits[f"{side}_rank"].to_list()
    assert answer["candidates"][0]["doc"]["title"] == hits["title"][0]
    assert answer["took"] > 0
    for system, search in (("bm25", open_index(folder / "made/bm25")), ("shallow", open_retriever(folder / "shallow"))):
        (hit, *_), expected = (
            server.get("/api/search", query=QUERY, system=system).json["candidates"],
            search.search(QUERY),
        )
        assert (hit["docid"], hit["score"]) == expected.select("docid", "score").row(0)


def test_several_queries_are_answered_as_one_by_one(server: Served) -> None:
    texts = [QUERY, "oxygen in the blood", QUERY, "moon"]
    body = {"queries": [{"qid": f"q{n}", "text": text} for n, text in enumerate(texts)], "k": 3}
    answer = server.ask("POST", "/api/search", body).json
    assert [each["query"]["qid"] for each in answer["results"]] == ["q0", "q1", "q2", "q3"]
    for text, result in zip(texts, answer["results"], strict=True):
        alone = server.get("/api/search", query=text, k=3).json["candidates"]
        assert [each["docid"] for each in result["candidates"]] == [each["docid"] for each in alone]
        for one, other in zip(result["candidates"], alone, strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=1e-5)


@pytest.mark.parametrize("name", ["retriever", "shallow"])
@pytest.mark.parametrize("docid", ["salt", "void", "hamlet"])
def test_an_explanation_adds_up_for_any_document(folder: Path, name: str, docid: str) -> None:
    from hybrid_cli.server import answers
    from hybrid_cli.server.live import Live

    live = Live.open(folder / name)
    found = answers.explained(live, QUERY, docid)
    explanation = found["explanation"]
    assert sum(part["value"] for part in explanation["details"]) == pytest.approx(explanation["value"], abs=1e-6)
    terms = found["sides"][0]["terms"]
    assert sum(term["score"] for term in terms) == pytest.approx(found["sides"][0]["score"] or 0, abs=1e-6)
    hits = open_retriever(folder / name).search(QUERY, 12)
    rows = hits.filter(pl.col("docid") == docid)
    if len(rows):
        assert found["score"] == pytest.approx(rows["score"][0], abs=1e-6)
        assert found["rank"] == rows["rank"][0]
    else:
        assert found["rank"] is None
    assert "".join(part for part, _ in found["doc"]["text"]) == next(t for d, _, t in TINY_DOCUMENTS if d == docid)


@pytest.mark.parametrize("condition", [None, "year >= 2"])
@pytest.mark.parametrize("how", [{}, {"depth": 3}, {"method": "rrf"}, {"reranker": True}], ids=str)
def test_an_explanation_has_the_rank_of_the_hit(
    tmp_path: Path, tiny_bert: Path, reranker: Path, how: dict[str, Any], condition: str | None
) -> None:
    from hybrid_cli.server import answers
    from hybrid_cli.server.live import Live

    rows = [{"docid": d, "title": t, "text": x, "year": n} for n, (d, t, x) in enumerate(TINY_DOCUMENTS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepare(PrepareFiles([tmp_path / "rows.jsonl"], metadata=["all"], output=tmp_path / "collection"))
    indexes = [tmp_path / "bm25", tmp_path / "dense"]
    index_bm25(tmp_path / "collection", lucene=False, output=indexes[0])
    encode(tmp_path / "collection", model=str(tiny_bert), dtype="fp32", output=indexes[1])
    reranked = {"reranker": str(reranker), "rerank_depth": 4} if how.get("reranker") else how
    live = Live.open(compose(indexes, **{"method": "minmax", **reranked}, output=tmp_path / "retriever"))
    for system in live.systems:
        hits = answers.hits(live, [QUERY], 12, system, condition, True)[0]
        assert hits
        for hit in hits:
            explained = answers.explained(live, QUERY, hit["docid"], condition)
            ranks = {live.main: explained["rank"], **{side["name"]: side["rank"] for side in explained["sides"]}}
            assert ranks[system] == hit["rank"]
            if system != live.main:
                assert hit["explanation"]["description"].endswith(f", rank {hit['rank']}")


def test_candidates_have_the_scores_of_every_side(server: Served, folder: Path) -> None:
    """The page fuses them again: with the stored weights, the order is that of the column."""
    answer = server.get("/api/columns", query=QUERY).json
    weights = answer["fusion"]["weights"]
    fused = {
        each["docid"]: sum(weight * score for weight, score in zip(weights, each["scores"], strict=True))
        for each in answer["documents"]
    }
    order = sorted(fused, key=lambda docid: (-round(fused[docid], 6), docid))
    assert [each["docid"] for each in answer["columns"]["hybrid"]] == order[: len(answer["columns"]["hybrid"])]
    assert any(is_term for each in answer["documents"] for _, is_term in each["snippet"] or ())


def test_figures_name_no_query(server: Served, folder: Path) -> None:
    server.get("/api/search", query="a secret question", k=1)
    figures = server.get("/metrics").body.decode()
    assert 'path="/api/search"' in figures
    assert 'side="dense",step="query"' in figures
    assert "secret" not in figures
    assert "secret" not in (folder / "access.log").read_text()
    assert server.get("/health").json["status"] == "ok"
    assert b"/api/search" in server.get("/openapi.yaml").body


def test_one_index_is_served_alone(folder: Path) -> None:
    with Served(folder / "made" / "bm25") as alone:
        assert alone.get("/api/info").json["systems"] == ["bm25"]
        found = alone.get("/api/search", query=QUERY, k=2, explain="true").json["candidates"]
        assert found[0]["explanation"]["value"] == pytest.approx(found[0]["score"], abs=1e-6)


def refused(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({}, "no-query"),
        ({"query": "x" * 5000}, "query-too-long"),
        ({"query": "x", "k": 0}, "out-of-range"),
        ({"query": "x", "system": "../../etc/passwd"}, "unknown-choice"),
        ({"query": "x", "path": "/etc/passwd"}, "unknown-field"),
        ({"query": "x", "explain": "maybe"}, "other-type"),
        ({"query": "x", "filter": "year >"}, "filter-syntax"),
    ],
)
def test_unusable_parameters_are_refused(server: Served, parameters: dict[str, Any], code: str) -> None:
    refused(server.get("/api/search", **parameters), 400, code)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "not-json"),
        ({}, 400, "other-type"),
        ({"queries": [{"text": 1}]}, 400, "no-query"),
        ({"queries": [{"text": "x"}], "k": True}, 400, "out-of-range"),
        (b"x" * 1_100_000, 413, "too-large"),
    ],
)
def test_unusable_bodies_are_refused(server: Served, body: Any, status: int, code: str) -> None:
    refused(server.ask("POST", "/api/search", body), status, code)


@pytest.mark.parametrize("docid", ["nothing", "../made/manifest.json", "%2e%2e/%2e%2e/etc/passwd", "%00"])
def test_an_unknown_document_is_not_found(server: Served, docid: str) -> None:
    assert server.ask("GET", f"/api/documents/{docid}").status == 404
    assert server.get("/api/documents/moon%20landing").json["docid"] == "moon landing"


def test_control_characters_are_spaces_and_a_long_address_is_refused(server: Served) -> None:
    plain, strange = (
        server.get("/api/search", query=query, k=3).json["candidates"]
        for query in ("salt in water", "salt\0in\x1b\u202ewater")
    )
    assert [each["docid"] for each in strange] == [each["docid"] for each in plain]
    with contextlib.suppress(ConnectionError):  # refused before all of it was sent
        assert server.get("/api/search", query="x" * 1_000_000).status in (400, 414, 431)
    assert server.get("/health").status == 200


JOINED = ("کتاب\u200cهای", "ශ්\u200dරී", "Silben\u00adtrennung")  # noqa: RUF001


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of documents with joiners and soft hyphens, and of their parts."""
    folder = tmp_path_factory.mktemp("letters")
    parts = [re.sub("[\u200c\u200d\u00ad]", " ", word) for word in JOINED]
    return index_bm25(write_corpus(folder / "corpus.parquet", [*JOINED, *parts]), output=folder / "bm25")


@pytest.fixture(scope="module")
def joined(letters: Path) -> Iterator[Served]:
    with Served(letters, "--judgments", letters.parent / "judgments.jsonl") as running:
        yield running


@pytest.mark.parametrize("query", [*JOINED, "Silben\0trennung", "Silben\ud800trennung"])
def test_a_query_is_read_alike_everywhere(letters: Path, joined: Served, query: str) -> None:
    found = open_index(letters).search(query)["docid"].to_list()
    assert found == ([f"d{JOINED.index(query)}"] if query in JOINED else ["d5"])
    posted = joined.ask("POST", "/api/search", {"queries": [{"text": query}]}).json["results"][0]["candidates"]
    assert [hit["docid"] for hit in posted] == found
    if "\ud800" in query:  # which neither an address nor an argument has
        return
    assert [hit["docid"] for hit in joined.get("/api/search", query=query).json["candidates"]] == found
    _, hits = called(joined.url + "mcp", ("search", {"query": query}))
    assert [hit["docid"] for hit in hits.structured_content["hits"]] == found
    if "\0" not in query:
        done = hybrid("search", "--index", letters, "--query", query, "--format", "json")
        assert [hit["docid"] for hit in json.loads(done.out)["hits"]] == found


LONE = "\ud800"  # which JSON can escape, and UTF-8 cannot encode
ANSWER = {"rater": "ann", "id": "12345678", "qid": "q", "docid": "d0", "grade": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/search", {"queries": [{"text": LONE, "qid": LONE}]}),
        ("/api/search", {"queries": [{"text": "x"}], "system": LONE}),
        ("/api/search", {"queries": [{"text": "x"}], "filter": LONE}),
        ("/api/search", {"queries": [{"text": "x"}], LONE: 1}),
        ("/api/snippets", {"query": LONE, "docids": [LONE]}),
        ("/api/judging/queries", {"rater": "ann", "text": LONE}),
        ("/api/judging/queries", {"rater": LONE, "text": "x"}),
        ("/api/judgments", ANSWER | {"qid": LONE, "docid": LONE}),
        ("/api/judgments", ANSWER | {"reason": LONE}),
        ("/api/judgments", ANSWER | {LONE: 1}),
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": LONE}),
    ],
)
def test_a_lone_surrogate_is_no_fault_of_the_server(joined: Served, path: str, body: Any) -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "accept": "application/json, text/event-stream"}
    assert joined.ask("POST", path, body, **headers).status in (200, 400)


def test_no_file_outside_of_the_page_is_served(server: Served) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/"):
        assert server.ask("GET", path).status == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]", "a b"])
def test_another_host_is_refused(server: Served, host: str) -> None:
    for path in ("/", "/api/info", "/metrics", "/mcp"):
        assert server.ask("GET", path, host=host).status in (400, 421)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9999", "LOCALHOST", "[::1]", "[::1]:80"])
def test_names_of_this_machine_are_known(server: Served, host: str) -> None:
    assert server.ask("GET", "/api/info", host=host).status == 200


def test_other_sites_are_refused(server: Served) -> None:
    refused(server.ask("GET", "/api/info", sec_fetch_site="cross-site"), 403, "cross-site")
    refused(server.ask("GET", "/api/info", sec_fetch_site="same-site"), 403, "cross-site")
    body = {"queries": [{"text": "x"}]}
    refused(server.ask("POST", "/api/search", body, origin="http://evil.example"), 403, "cross-site")
    assert server.ask("GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200
    answer = server.ask("POST", "/api/search", b'{"queries": [{"text": "x"}]}', content_type="text/plain")
    refused(answer, 415, "not-json")
    assert "access-control-allow-origin" not in server.ask("OPTIONS", "/api/search", b"", origin="http://a.b").headers


def test_a_program_writes_with_the_token_only(server: Served) -> None:
    refused(server.ask("POST", "/api/judgments", {}), 401, "no-token")
    refused(server.ask("POST", "/api/judgments", {}, authorization=f"Bearer {TOKEN[:-1]}"), 401, "no-token")
    refused(server.ask("POST", "/api/judgments", {}, sec_fetch_site="cross-site"), 403, "cross-site")
    assert server.ask("POST", "/api/judgments", {}, authorization=f"Bearer {TOKEN}").status not in (401, 403)


def test_the_headers_of_every_answer(server: Served) -> None:
    for path in ("/", "/api/info", "/nothing", "/static/app.js"):
        headers = server.ask("GET", path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_beyond_this_machine_everything_needs_the_token(folder: Path) -> None:
    with Served(folder / "made" / "bm25", "--host", "0.0.0.0", "--allow-host", "Search.Example") as server:
        assert server.get("/health").status == 200
        for path in ("/", "/api/info", "/metrics", "/mcp", "/static/app.js"):
            assert server.ask("GET", path).status == 401
        for name in ("search.example", socket.gethostname()):  # the second is in the printed address
            assert server.ask("GET", "/api/info", host=name, authorization=f"Bearer {TOKEN}").status == 200
        refused(
            server.ask("GET", "/api/info", host="other.example", authorization=f"Bearer {TOKEN}"), 421, "unknown-host"
        )
        first = server.ask("GET", "/" + server.path)
        assert (first.status, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"]
        assert cookie.startswith(f"hybrid-{server.port}=")
        assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
        assert server.ask("GET", "/api/info", cookie=cookie.partition(";")[0]).status == 200
        refused(server.ask("GET", "/" + server.path), 401, "used-login")


@pytest.mark.parametrize("token", ["short", "a token with a\nline break", "a-token-with-an-\u00e4"])
def test_a_token_that_no_header_has_is_refused(letters: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_TOKEN", token)
    assert hybrid("serve", letters, "--port", 0).problem == "not-a-token"


def test_equal_queries_in_flight_are_answered_once() -> None:
    calls: list[tuple[str, list[str]]] = []

    def answer(key: str, texts: Any) -> list[str]:
        calls.append((key, list(texts)))
        time.sleep(0.05)
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper() for text in texts]

    async def main() -> list[Any]:
        batches = Batches(answer, workers=2)
        first = asyncio.create_task(batches.get("k", "a"))
        await asyncio.sleep(0.02)
        rest = [batches.get("k", text) for text in ("b", "c", "b", "a")]
        results = await asyncio.gather(first, *rest)
        failed = await asyncio.gather(*(batches.get("other", "bad") for _ in range(3)), return_exceptions=True)
        assert all(isinstance(each, ValueError) for each in failed)
        results.append(await batches.get("other", "good"))
        batches.close()
        return results

    assert asyncio.run(main()) == ["A", "B", "C", "B", "A", "GOOD"]
    assert calls == [("k", ["a"]), ("k", ["b", "c"]), ("other", ["bad"]), ("other", ["good"])]


HEADERS = (
    b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
)


@pytest.mark.parametrize("part", [HEADERS[:40], HEADERS], ids=["headers", "body"])
def test_half_sent_requests_lock_nobody_out(letters: Path, part: bytes) -> None:
    with Served(letters) as server, contextlib.ExitStack() as connections:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (512, 512))
        for _ in range(4):  # bursts, which are accepted together
            burst = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(150)]
            for slow in map(connections.enter_context, burst):
                with contextlib.suppress(ConnectionError):  # closed before
                    slow.sendall(part)
        assert server.get("/health").status == 200
        assert server.get("/api/search", query="Silben").status == 200


def test_a_server_without_free_files_goes_on(letters: Path) -> None:
    with Served(letters) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (128, 128))  # fewer than connections may wait
        with contextlib.ExitStack() as connections:
            for _ in range(200):
                connections.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            time.sleep(1)
        assert server.get("/health").status == 200


def test_endless_headers_are_refused(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as endless:
        endless.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(200):
                endless.sendall(f"x-{number}: {'x' * 1000}\r\n".encode())
            assert endless.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"")


def test_a_slow_client_holds_nobody_up(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        slow.sendall(HEADERS)
        assert server.get("/api/search", query=QUERY).status == 200
        assert b" 408 " in slow.recv(4096)


def test_a_retriever_serves_without_its_texts_and_as_before_if_an_index_is_gone(folder: Path, tmp_path: Path) -> None:
    for name in ("bm25", "dense", "model"):
        shutil.copytree(folder / "made" / name, tmp_path / name)
    compose([tmp_path / "bm25", tmp_path / "dense"], method="minmax", output=tmp_path / "retriever")
    with Served(tmp_path / "retriever", "--watch") as server:
        hit = server.get("/api/search", query=QUERY, k=1).json["candidates"][0]
        assert hit["doc"] == {"title": None, "text": None, "metadata": {}}
        refused(server.get("/api/documents/salt"), 404, "no-such-document")
        (tmp_path / "bm25").rename(tmp_path / "away")
        file = tmp_path / "retriever" / "retriever.json"
        shutil.copy(file, tmp_path / "copy")
        shutil.move(tmp_path / "copy", file)
        deadline = time.monotonic() + 20
        while "warning" not in server.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "warning" in server.log.read_text()
        assert server.get("/api/search", query=QUERY, k=1).json["candidates"][0] == hit


def test_a_stopped_server_finishes_its_requests(folder: Path) -> None:
    with Served(folder / "retriever") as server:
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(server.get("/api/columns", query=QUERY).status))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
        for thread in threads:
            thread.join()
        assert statuses == [200] * 8


def test_an_update_is_served_without_a_lost_request(folder: Path, tmp_path: Path) -> None:
    documents = tmp_path / "docs.jsonl"
    rows = [f'{{"docid": "d{number}", "text": "salt number {number}"}}' for number in range(20)]
    documents.write_text("\n".join(rows))
    from hybrid_cli.stages.auto import auto
    from hybrid_cli.stages.update import update

    auto([documents], model=str(folder / "made" / "model"), output=tmp_path / "mine")
    with Served(tmp_path / "mine", "--watch") as server:
        ended, statuses = threading.Event(), list[int]()

        def ask() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                statuses.append(server.get("/api/search", query=f"salt {number}", k=2).status)

        thread = threading.Thread(target=ask)
        thread.start()
        documents.write_text("\n".join([*rows, '{"docid": "new", "text": "an unheard zebra"}']))
        update(tmp_path / "mine", [documents])
        deadline = time.monotonic() + 60
        while server.get("/health").json["generation"] == 1 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert server.get("/api/search", query="zebra", k=1).json["candidates"][0]["docid"] == "new"
        update(tmp_path / "mine", rollback=True)
        while server.get("/health").json["generation"] == 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert "new" not in {each["docid"] for each in server.get("/api/search", query="zebra").json["candidates"]}
        assert server.get("/health").json["generation"] == 1
        ended.set()
        thread.join()
        assert set(statuses) == {200}


pytest.importorskip("mcp", reason="the MCP SDK is not installed: pip install 'hybrid_cli[mcp]'")


@pytest.fixture(scope="module")
def retriever(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compose([made / "bm25", made / "dense"], output=tmp_path_factory.mktemp("mcp") / "retriever")


@pytest.fixture(scope="module")
def url(retriever: Path) -> Iterator[str]:
    with Served(retriever) as server:
        yield server.url + "mcp"


def called(target: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    from mcp.client import Client

    async def main() -> list[Any]:
        async with Client(target) as client:
            names = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
            return [names, *[await client.call_tool(name, arguments) for name, arguments in calls]]

    return asyncio.run(main())


def test_tools_over_http(url: str, retriever: Path) -> None:
    hits = open_retriever(retriever).search(QUERY, 3)
    searched, explain = ("search", {"query": QUERY, "k": 3}), ("explain", {"query": QUERY, "docid": "hamlet"})
    names, found, document, explained = called(url, searched, ("get_document", {"docid": "salt"}), explain)
    assert set(names) == {"search", "get_context", "get_document", "explain"}
    assert all(annotations.read_only_hint for annotations in names.values())
    assert [hit["docid"] for hit in found.structured_content["hits"]] == hits["docid"].to_list()
    assert document.structured_content["title"] == "Table salt"
    assert explained.structured_content["details"][1]["description"].startswith("dense")


def test_every_interface_has_the_context_of_python(url: str, retriever: Path) -> None:
    parts = open_retriever(retriever).context(QUERY, 120)
    _, found, none = called(url, ("get_context", {"query": QUERY, "tokens": 120}), ("get_context", {"query": " "}))
    (listed,) = found.structured_content.values()
    with Served(retriever) as server:
        answer = server.get("/api/context", query=QUERY, tokens=120).json["context"]
        assert server.get("/api/context", query=QUERY, tokens=0).code == "out-of-range"
    for name in ("docid", "place", "text", "tokens"):
        assert [part[name] for part in listed] == [part[name] for part in answer] == parts[name].to_list()
    assert none.is_error


def test_an_error_names_its_cause(url: str) -> None:
    nothing, filtered = ("get_document", {"docid": "nothing"}), ("search", {"query": QUERY, "filter": "year >"})
    _, unknown, zero, condition = called(url, nothing, ("search", {"query": QUERY, "k": 0}), filtered)
    for result, word in ((unknown, "nothing"), (zero, "100"), (condition, "filter")):
        assert result.is_error
        assert word in result.content[0].text


def test_tools_have_the_limits_of_the_api(url: str) -> None:
    long = {"query": "x" * 4001}
    calls = ("search", long), ("explain", long | {"docid": "salt"}), ("search", {"query": " "})
    for result in called(url, *calls)[1:]:
        assert result.is_error
        assert "query" in result.content[0].text


def test_tools_on_standard_streams(retriever: Path) -> None:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    words = ["-m", "hybrid_cli", "serve", str(retriever), "--mcp-stdio"]
    process = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    names, found = called(stdio_client(process), ("search", {"query": QUERY, "k": 1}))
    assert set(names) == {"search", "get_context", "get_document", "explain"}
    assert found.structured_content["hits"][0]["docid"] == open_retriever(retriever).search(QUERY, 1)["docid"][0]


def test_a_tool_stores_grades_as_those_of_a_machine(retriever: Path, tmp_path: Path) -> None:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    words = ["-m", "hybrid_cli", "serve", str(retriever), "--mcp-stdio", "--judgments", str(tmp_path / "j.jsonl")]
    process = StdioServerParameters(command=sys.executable, args=[*words, "--mcp-judge"], env=dict(os.environ))
    call = {"query": QUERY, "docid": "salt", "grade": 2}
    _, stored, unknown, high = called(
        stdio_client(process), ("judge", call), ("judge", call | {"docid": "nothing"}), ("judge", call | {"grade": 4})
    )
    assert not stored.is_error
    assert unknown.is_error
    assert high.is_error
    assert JudgmentFile.of(tmp_path / "j.jsonl").raters == {"machine:mcp": 1}


def test_a_client_that_judges_needs_the_token(retriever: Path, tmp_path: Path) -> None:
    with Served(retriever, "--judgments", tmp_path / "j.jsonl", "--mcp-judge") as server:
        assert server.ask("POST", "/mcp", {}).status == 401
        assert server.ask("POST", "/mcp", {}, authorization=f"Bearer {TOKEN}").status != 401
