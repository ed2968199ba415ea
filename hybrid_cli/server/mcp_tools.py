"""Tools for programs that speak the Model Context Protocol: search, documents and explanations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import Tool, ToolAnnotations
from pydantic import BaseModel
from starlette.routing import BaseRoute

from hybrid_cli.errors import HybridError
from hybrid_cli.retrieval.filters import kind_of
from hybrid_cli.server import answers
from hybrid_cli.server.judging import Judging
from hybrid_cli.server.security import checked_query
from hybrid_cli.server.state import State
from hybrid_cli.version import __version__

PATH = "/mcp"
_MOST_HITS, _MOST_TOKENS = 100, 100_000
_READS = ToolAnnotations(read_only_hint=True)


class Hit(BaseModel):
    """A document of a search."""

    docid: str
    rank: int
    score: float
    title: str | None
    text: str | None
    metadata: dict[str, Any]
    scores: dict[str, float | None]
    probability: float | None = None


class Hits(BaseModel):
    """The hits of a query; `formula` says how the scores of the indexes are fused."""

    query: str
    formula: str
    hits: list[Hit]


class Document(BaseModel):
    """A document with its metadata."""

    docid: str
    title: str | None
    text: str
    metadata: dict[str, Any]


class Part(BaseModel):
    """A part of a document; `place` says which one, and `tokens` is about the number of its tokens."""

    docid: str
    place: str
    title: str | None
    text: str
    tokens: int
    metadata: dict[str, Any]


class Explanation(BaseModel):
    """A part of a score, and the parts that it is made of."""

    value: float | None
    description: str
    details: list[Explanation]


class Tools(MCPServer[Any]):
    """Tools whose list names the columns of the metadata of the retriever that is open."""

    state: State

    async def list_tools(self) -> list[Tool]:
        """See `MCPServer`."""
        listed = await super().list_tools()
        columns = [f"{name} ({kind_of(kind)})" for name, kind in self.state.live.columns.items()]
        listed[0].description = f"{listed[0].description}\nColumns of the filter: {', '.join(columns) or 'none'}."
        return listed


def tools(state: State) -> MCPServer[Any]:
    """Return the server of the tools of a retriever."""
    live = state.whole
    logging.basicConfig(format="%(message)s")  # MCPServer's handler imports modules: without free files, it raises
    about = f"Search of documents ({live.name}) by {', '.join(live.sides)} and their fusion."
    server = Tools(live.name, instructions=about, version=__version__)
    server.state = state

    @server.tool(structured_output=True, annotations=_READS)
    async def search(query: str, k: int = 10, filter: str | None = None) -> Hits:
        """Search the documents.

        Args:
            query: a question, or key words.
            k: number of documents, from 1 to 100.
            filter: condition over the metadata of documents in the syntax of SQL, such as `year >= 2020`.
        """
        if not 1 <= k <= _MOST_HITS:
            raise ToolError(f"needs k from 1 to {_MOST_HITS}")
        with _tool_errors():
            candidates = await state.hits(query := checked_query(query), k, state.live.main, filter or None, False)
        hits = [Hit(**hit | hit["doc"]) for hit in candidates]
        return Hits(query=query, formula=answers.formula(state.live), hits=hits)

    @server.tool(structured_output=True, annotations=_READS)
    async def get_document(docid: str) -> Document:
        """Return title, text and metadata of a document.

        Args:
            docid: id of a hit.
        """
        with _tool_errors():
            return Document(**await asyncio.to_thread(answers.document, state.live, docid))

    @server.tool(structured_output=True, annotations=_READS)
    async def explain(query: str, docid: str, filter: str | None = None) -> Explanation:
        """Explain the score of a document for a query, also of a document that is no hit.

        Args:
            query: text of the query.
            docid: id of the document.
            filter: that of the search, for the ranks.
        """
        with _tool_errors():
            asked = (checked_query(query), docid, filter or None)
            return Explanation(**(await asyncio.to_thread(answers.explained, state.live, *asked))["explanation"])

    _add_context(server, state)
    if state.settings.mcp_judge and (judging := state.judging) is not None:
        _add_judge(server, judging)
    return server


def _add_context(server: MCPServer[Any], state: State) -> None:
    @server.tool(structured_output=True, annotations=_READS)
    async def get_context(query: str, tokens: int = 2000, filter: str | None = None) -> list[Part]:
        """Return the best parts of the documents for a query, with their neighbors, to answer from and to cite.

        Args:
            query: a question, or key words.
            tokens: largest number of tokens of all parts, from 1 to 100,000.
            filter: condition over the metadata of documents, as of `search`.
        """
        if not 1 <= tokens <= _MOST_TOKENS:
            raise ToolError(f"needs tokens from 1 to {_MOST_TOKENS:,}")
        with _tool_errors():
            asked = state.live, checked_query(query), 10, filter or None, tokens
            return [Part(**part) for part in await asyncio.to_thread(answers.context, *asked)]


def _add_judge(server: MCPServer[Any], judging: Judging) -> None:
    @server.tool(structured_output=False)
    async def judge(query: str, docid: str, grade: int) -> str:
        """Store how relevant a document is for a query; the grade counts as that of a machine.

        Args:
            query: text of the query.
            docid: id of the document.
            grade: 0 not relevant, 1 partly, 2 relevant, 3 fully relevant.
        """
        with _tool_errors():
            await asyncio.to_thread(judging.take_of_program, query, docid, grade)
        return "stored"


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Answer an error of the user as the result of a tool."""
    try:
        yield
    except HybridError as error:
        raise ToolError(str(error)) from None


def routes(server: MCPServer[Any]) -> list[BaseRoute]:
    """Return the route of the tools; every request is complete in itself."""
    checked_before = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # by `security.Guard`
    app = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, transport_security=checked_before
    )
    return list(app.routes)


def lifespan(server: MCPServer[Any]) -> AbstractAsyncContextManager[None]:
    """Return the context in which the route answers."""
    return server.session_manager.run()


def serve_stdio(state: State) -> None:
    """Answer on standard input and output until the input ends."""
    asyncio.run(tools(state).run_stdio_async())
