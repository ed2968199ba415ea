"""The routes of the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, TextIO

import polars as pl
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.inputs.json_values import parse_json
from hybrid_cli.reporting.colours import style_sheet
from hybrid_cli.server import answers, comparison, judging
from hybrid_cli.server.live import EXAMPLES
from hybrid_cli.server.security import LOOPBACK, QUERY_CHARACTERS, Guard, Refused, checked_query, error_response
from hybrid_cli.server.state import State
from hybrid_cli.version import __version__

MOST_HITS, MOST_QUERIES, MOST_TOKENS = 1000, 256, 1_000_000
_NOT_FOUND = ("no-such-document", "unknown-id")
_WRITES, _MCP = ("/api/judgments", "/api/judging"), "/mcp"


def app_of(state: State, port: int, log: TextIO | None = None) -> Guard:
    """Return the app of a server.

    Args:
        state: the open retriever and the options.
        port: port of the server.
        log: file of the access log.
    """
    settings = state.settings
    routes: list[BaseRoute] = [
        *_page_routes(),
        *comparison.routes(state),
        Route("/api/info", _handler(state, _information)),
        Route("/api/search", _handler(state, _search), methods=["GET", "POST"]),
        Route("/api/columns", _handler(state, _columns)),
        Route("/api/snippets", _handler(state, _snippets), methods=["POST"]),
        Route("/api/context", _handler(state, _context)),
        Route("/api/explain", _handler(state, _explain)),
        Route("/api/documents/{docid:path}", _handler(state, _document)),
        Route("/api/judged", _handler(state, _judged)),
        Route("/health", _handler(state, _health)),
        Route("/metrics", _metrics(state)),
        Route("/openapi.yaml", _openapi),
    ]
    if state.judging is not None:
        routes += judging.routes(state.judging)
    lifespans: list[Callable[[], contextlib.AbstractAsyncContextManager[None]]] = []
    if find_spec("mcp") is not None:
        from hybrid_cli.server import mcp_tools

        server = mcp_tools.tools(state)
        routes += mcp_tools.routes(server)
        lifespans.append(lambda: mcp_tools.lifespan(server))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for enter in lifespans:
                await stack.enter_async_context(enter())
            watching = asyncio.create_task(state.watch()) if settings.watch else None
            yield
            if watching is not None:
                watching.cancel()
            state.batches.close()

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=_HANDLERS)
    hosts = [*settings.allow_host, socket.gethostname() if settings.host in ("0.0.0.0", "::") else settings.host]
    local = settings.host in LOOPBACK
    writes = (*_WRITES, _MCP) if settings.mcp_judge else _WRITES
    return Guard(
        app,
        port,
        {*map(str.lower, hosts), *LOOPBACK},
        state.token,
        not local or bool(state.conditions),
        state.conditions,
        lambda path: path.startswith(writes),
        settings.timeout,
        lambda path, status, seconds: state.metrics.requests.labels(path, status).observe(seconds),
        log,
        settings.log_queries,
    )


def _handler(
    state: State, handle: Callable[[State, Request], Awaitable[Any]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a route that answers JSON with the milliseconds it took."""

    async def handler(request: Request) -> Response:
        started = time.perf_counter()
        content = await handle(state, request)
        if isinstance(content, dict):
            content["took"] = round(1e3 * (time.perf_counter() - started), 2)
        return await run_in_threadpool(JSONResponse, content) if _is_large(content) else JSONResponse(content)

    return handler


def _is_large(content: Any) -> bool:
    return isinstance(content, dict) and any(name in content for name in ("documents", "queries", "results", "context"))


# ------------------------------------------------------------------------------------------------------------ requests


async def _information(state: State, request: Request) -> Any:
    content = await run_in_threadpool(answers.information, state.live)
    settings = state.settings
    limits = {"k": MOST_HITS, "query": QUERY_CHARACTERS, "queries": MOST_QUERIES}
    restricted = state.live.only is not None  # knows no queries of others
    judged = 0 if restricted else await run_in_threadpool(lambda: state.qrels()["qid"].n_unique())
    desk = None if state.judging is None else await run_in_threadpool(state.judging.information)
    queries = pl.Series([], dtype=pl.String) if restricted else await run_in_threadpool(lambda: state.queries["text"])
    return content | {
        "version": __version__,
        "queries": len(queries),
        "examples": queries.head(EXAMPLES).to_list() or await run_in_threadpool(lambda: state.live.examples),
        "judged": judged,
        "limits": limits,
        "measure": settings.measure,
        "judging": desk,
    }


async def _search(state: State, request: Request) -> Any:
    posted = request.method == "POST"
    fields = await _json(request, _SEARCH_FIELDS) if posted else _parameters(request, _SEARCH_PARAMETERS)
    k = _number(fields, "k", 10, MOST_HITS)
    explain = _flag(fields, "explain")
    if explain and k > answers.EXPLAINED:
        raise InputError(
            f"k {k}: at most {answers.EXPLAINED} hits are explained", code="out-of-range", option="k", value=k
        )
    system, condition = _text(fields, "system", state.live.main), _condition(fields)
    if not posted:
        text = checked_query(fields.get("query"))
        candidates = await state.hits(text, k, system, condition, explain)
        return {
            "api": "v1",
            "query": {"text": text},
            "system": system,
            "formula": answers.formula(state.live),
            "candidates": candidates,
        }
    queries = _queries(fields.get("queries"))
    results = await asyncio.gather(*(state.hits(text, k, system, condition, explain) for _, text in queries))
    listed = [
        {"query": {"qid": qid, "text": text}, "candidates": candidates}
        for (qid, text), candidates in zip(queries, results, strict=True)
    ]
    return {"api": "v1", "system": system, "formula": answers.formula(state.live), "results": listed}


async def _columns(state: State, request: Request) -> Any:
    fields = _parameters(request, ("query", "depth", "filter"))
    depth = _number(fields, "depth", state.live.retriever.depth, MOST_HITS)
    return await run_in_threadpool(
        answers.columns, state.live, checked_query(fields.get("query")), _condition(fields), depth
    )


async def _snippets(state: State, request: Request) -> Any:
    fields = await _json(request, ("query", "docids"))
    docids = fields.get("docids")
    if not isinstance(docids, list) or len(docids) > MOST_HITS or not all(isinstance(each, str) for each in docids):
        problem = f"docids: needs a list of at most {MOST_HITS} ids"
        raise InputError(problem, code="other-type", option="docids")
    listed = await run_in_threadpool(answers.snippets, state.live, checked_query(fields.get("query")), docids)
    return {"documents": listed}


async def _context(state: State, request: Request) -> Any:
    fields = _parameters(request, ("query", "k", "filter", "tokens"))
    query, condition = checked_query(fields.get("query")), _condition(fields)
    k, tokens = _number(fields, "k", 10, MOST_HITS), _number(fields, "tokens", 2000, MOST_TOKENS)
    parts = await run_in_threadpool(answers.context, state.live, query, k, condition, tokens)
    return {"query": {"text": query}, "context": parts}


async def _explain(state: State, request: Request) -> Any:
    fields = _parameters(request, ("query", "docid", "filter"))
    query, docid = checked_query(fields.get("query")), _text(fields, "docid", "")
    return await run_in_threadpool(answers.explained, state.live, query, docid, _condition(fields))


async def _document(state: State, request: Request) -> Any:
    return await run_in_threadpool(answers.document, state.live, request.path_params["docid"])


async def _judged(state: State, request: Request) -> Any:
    return await run_in_threadpool(state.judged)


async def _health(state: State, request: Request) -> Any:
    return {"status": "ok", "generation": state.whole.files.stored.generation}


def _metrics(state: State) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(request: Request) -> Response:
        return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return metrics


async def _openapi(request: Request) -> Response:
    text = files("hybrid_cli.server").joinpath("openapi.yaml").read_bytes()
    return Response(text, media_type="application/yaml")


# -------------------------------------------------------------------------------------------------------------- values

_SEARCH_PARAMETERS = ("query", "k", "system", "filter", "explain")
_SEARCH_FIELDS = ("queries", "k", "system", "filter", "explain")


def _parameters(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters of a request, each once.

    Raises:
        InputError: an unknown or repeated parameter.
    """
    fields: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        _known(name, names)
        if name in fields:
            raise InputError(f"{name}: is repeated", code="repeated-value", option=name)
        fields[name] = value
    return fields


async def _json(request: Request, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the body of a request, an object.

    Raises:
        InputError: no object, or an unknown field.
    """
    fields = parse_json(await request.body(), "the body")
    if not isinstance(fields, dict):
        raise InputError("the body is no JSON object", code="not-json")
    for name in fields:
        _known(name, names)
    return fields


def _known(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise InputError(f"{name[:80]}: unknown; known: {', '.join(names)}", code="unknown-field", choices=list(names))


def _queries(fields: Any) -> list[tuple[str, str]]:
    if not isinstance(fields, list) or not 0 < len(fields) <= MOST_QUERIES:
        problem = f"queries: needs a list of 1 to {MOST_QUERIES} objects with text, and maybe qid"
        raise InputError(problem, code="other-type", option="queries")
    queries = []
    for number, query in enumerate(fields):
        if not isinstance(query, Mapping) or not {"text"} <= set(query) <= {"qid", "text"}:
            raise InputError(f"queries[{number}]: needs text, and maybe qid", code="other-type", option="queries")
        queries.append((str(query.get("qid", number)), checked_query(query["text"])))
    return queries


def _number(fields: Mapping[str, Any], name: str, default: int, most: int) -> int:
    """Return a whole number from 1 to `most`.

    Raises:
        InputError: anything else.
    """
    value = fields.get(name, default)
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12 else value
    if type(number) is not int or not 1 <= number <= most:
        problem = f"{name} {str(value)[:40]}: needs a whole number from 1 to {most:,}"
        raise InputError(problem, code="out-of-range", option=name, limit=most)
    return number


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    known: dict[Any, bool] = {"true": True, "1": True, "false": False, "0": False, "": False, True: True, False: False}
    if not isinstance(value, str | bool) or value not in known:
        raise InputError(f"{name}: needs true or false", code="other-type", option=name)
    return known[value]


def _text(fields: Mapping[str, Any], name: str, default: str) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise InputError(f"{name}: needs a text", code="other-type", option=name)
    return value


def _condition(fields: Mapping[str, Any]) -> str | None:
    return _text(fields, "filter", "").strip() or None


# -------------------------------------------------------------------------------------------------------------- errors


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HybridError)
    status = 404 if error.code in _NOT_FOUND else 400 if isinstance(error, InputError) else 500
    fields = {name: error.fields[name] for name in ("option", "choices", "limit") if name in error.fields}
    return error_response(status, error.code, str(error), **fields)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, "http", error.detail)


async def _on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error_response(error.status, error.code, str(error))


_HANDLERS: Mapping[Any, Any] = {HybridError: _on_error, HTTPException: _on_http, Refused: _on_refused}


def _page_routes() -> list[BaseRoute]:
    """Return the routes of `/` and `/static`; scripts of the report are served from the package of the report."""
    page = files(__package__).joinpath("static/index.html").read_text("utf-8")
    colours = style_sheet()

    async def index(_: object) -> Response:
        return HTMLResponse(page)

    async def colour_variables(_: object) -> Response:
        return Response(colours, media_type="text/css")

    static = StaticFiles(packages=[(__package__, "static"), ("hybrid_cli.reporting", "static")])
    return [Route("/", index), Route("/static/colours.css", colour_variables), Mount("/static", static)]
