"""`serve`: a page, an API and MCP tools on a retriever."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
import webbrowser
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts.retrievers import RetrieverFiles
from hybrid_cli.commands import Serve
from hybrid_cli.errors import option_error
from hybrid_cli.reporting.judging import tuning
from hybrid_cli.retrieval import Retriever
from hybrid_cli.runs.index import Index
from hybrid_cli.stages import call, stage

TOKEN = "HYBRID_TOKEN"  # environment variable
_MOST_WAITING = 256  # connections without a complete request; half of the requests that `security.Guard` takes


@stage(Serve)
def serve(settings: Serve) -> None:
    """Serve a retriever until the process is interrupted.

    Raises:
        InputError: the retriever cannot be opened, or the port is in use.
        HybridError: the extra `serve` (or `mcp`) is not installed.
    """
    if settings.mcp_stdio:
        from hybrid_cli.server.mcp_tools import serve_stdio
        from hybrid_cli.server.state import State

        serve_stdio(State.open(settings, "", engines=partial(_engines, settings)))
        return
    _serve(settings)


def _serve(settings: Serve) -> None:
    import uvicorn

    from hybrid_cli.server.app import app_of
    from hybrid_cli.server.state import State

    listener = _listener(settings)
    port = int(listener.getsockname()[1])
    tune, engines = lambda live, journal: _tuned(settings, live.files, journal), partial(_engines, settings)
    state = State.open(settings, _token(), tune, engines)
    log = open(settings.access_log, "a", encoding="utf-8") if settings.access_log else nullcontext(None)  # noqa: SIM115
    with log as file:
        app = app_of(state, port, file)
        address = f"http://{_shown(settings.host)}:{port}/" + (f"?login={app.login}" if app.needs_token else "")
        console.note(f"serve: {state.whole.name}: {address}", code="serving", url=address, port=port)
        if settings.judgments is not None or app.needs_token:
            console.note(f"serve: for programs: Authorization: Bearer {state.token}", code="token", token=state.token)
        if settings.open:
            webbrowser.open(address)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            http=_connection(),
            timeout_graceful_shutdown=round(settings.timeout),
            backlog=128,  # asyncio accepts so many at once, before the oldest are closed
        )
        uvicorn.Server(config).run(sockets=[listener])


def _engines(settings: Serve, retriever: Retriever) -> Mapping[str, Index]:
    """Return the search engine of the settings, which has answered once.

    Raises:
        InputError: it cannot be asked, or a request has a vector and no index an encoder.
    """
    if settings.engine is None:
        return {}
    from hybrid_cli.exports.search import AskedEngine, EngineIndex

    asked = AskedEngine.of(settings.engine, settings.engine_query, settings.timeout)
    dense = next((side for side in retriever.sides.values() if side.system == "dense"), None)
    if asked.takes_vectors and dense is None:
        problem = "has a vector, and the retriever no dense index, whose encoder makes it; change the request"
        raise option_error("engine_query", settings.engine_query, problem, code="conflicting-options")
    index = EngineIndex(asked, retriever.documents, dense.prepare if dense else list)
    list(asked.answers(*index.prepare(pl.DataFrame({"qid": ["0"], "text": ["a"]})), 1))
    return {asked.engine.name: index}


def _connection() -> type[asyncio.Protocol]:
    """Return the class of a connection: h11 bounds its headers; of many without a request, the oldest are closed."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.begun = time.monotonic()
            others = [each for each in self.connections if isinstance(each, Connection)]
            open_ = [each for each in others if not each.transport.is_closing()]
            waiting = [each for each in open_ if not each.cycle or each.cycle.response_complete or each.cycle.more_body]
            for oldest in sorted(waiting, key=lambda each: each.begun)[:-_MOST_WAITING]:
                oldest.transport.close()

    return Connection


def _tuned(settings: Serve, files: RetrieverFiles, journal: Path) -> Path:
    """Write the retriever that is tuned on the judgments; it replaces an earlier one."""
    compose = tuning(files, journal, journal, settings.measure).changed(overwrite=True)
    return Path(call(compose.changed(device=settings.device) if "device" in settings.given else compose))


def _listener(settings: Serve) -> socket.socket:
    """Return an open socket of the address.

    Raises:
        InputError: the port is in use, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        reason = f"{error.strerror or error}; pass another --port, or --port 0 for a free one"
        raise option_error("port", settings.port, reason, code="port-in-use") from None
    listener.listen()
    return listener


def _token() -> str:
    """Return the token of the environment, or a random one."""
    from hybrid_cli.server.security import check_token

    if token := os.environ.get(TOKEN, "").strip():
        check_token(token, TOKEN)
    return token or secrets.token_urlsafe(24)


def _shown(host: str) -> str:
    """Return the host of the printed address."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
