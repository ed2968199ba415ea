"""The MCP tools of `serve`, through the client of the official SDK."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import TOKEN, Served

from hybrid_cli import open_retriever
from hybrid_cli.collections.readers.qrels import raters_of
from hybrid_cli.stages.compose import compose

pytest.importorskip("mcp", reason="the MCP SDK is not installed: pip install 'hybrid_cli[mcp]'")
pytestmark = pytest.mark.slow
QUERY = "salt in sea water"


@pytest.fixture(scope="module")
def retriever(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compose([made / "bm25", made / "dense"], output=tmp_path_factory.mktemp("mcp") / "retriever")


@pytest.fixture(scope="module")
def url(retriever: Path) -> Iterator[str]:
    with Served(retriever) as server:
        yield server.url + "mcp"


def called(target: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Return the names of all tools, and the results of calls."""
    from mcp.client import Client

    async def main() -> list[Any]:
        async with Client(target) as client:
            names = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
            return [names, *[await client.call_tool(name, arguments) for name, arguments in calls]]

    return asyncio.run(main())


def test_tools_over_http(url: str, retriever: Path) -> None:
    hits = open_retriever(retriever).search(QUERY, 3)
    names, found, document, explained = called(
        url, ("search", {"query": QUERY, "k": 3}), ("get_document", {"docid": "salt"}),
        ("explain", {"query": QUERY, "docid": "hamlet"}),
    )  # fmt: skip
    assert set(names) == {"search", "get_document", "explain"}
    assert all(annotations.read_only_hint for annotations in names.values())
    assert [hit["docid"] for hit in found.structured_content["hits"]] == hits["docid"].to_list()
    assert document.structured_content["title"] == "Table salt"
    assert explained.structured_content["details"][1]["description"].startswith("dense")


def test_an_error_names_its_cause(url: str) -> None:
    _, unknown, zero, condition = called(
        url, ("get_document", {"docid": "nothing"}), ("search", {"query": QUERY, "k": 0}),
        ("search", {"query": QUERY, "filter": "year >"}),
    )  # fmt: skip
    for result, word in ((unknown, "nothing"), (zero, "100"), (condition, "filter")):
        assert result.is_error
        assert word in result.content[0].text


def test_tools_on_standard_streams(retriever: Path) -> None:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    words = ["-m", "hybrid_cli", "serve", str(retriever), "--mcp-stdio"]
    process = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    names, found = called(stdio_client(process), ("search", {"query": QUERY, "k": 1}))
    assert set(names) == {"search", "get_document", "explain"}
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
    assert raters_of(tmp_path / "j.jsonl") == {"machine:mcp": 1}


def test_a_client_that_judges_needs_the_token(retriever: Path, tmp_path: Path) -> None:
    with Served(retriever, "--judgments", tmp_path / "j.jsonl", "--mcp-judge") as server:
        assert server.ask("POST", "/mcp", {}).status == 401
        assert server.ask("POST", "/mcp", {}, authorization=f"Bearer {TOKEN}").status != 401
