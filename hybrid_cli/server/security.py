"""What a request must fulfil before it is answered, and the headers of every answer.

The host must be known, which stops DNS rebinding; a request of another site is refused; a write needs a request of the
page itself or the token; the token is needed for everything where the server can be reached from other machines.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import parse_qs, urlsplit

import yaml
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import read_text
from hybrid_cli.inputs.json_values import reason
from hybrid_cli.runs.given import query_text

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
QUERY_CHARACTERS = 4000  # of a query
# Condition of the token of a request: "" of all documents; None before the token was checked.
CONDITION: ContextVar[str | None] = ContextVar("CONDITION", default=None)
LEAST_TOKEN = 16  # characters
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOGIN = "login"  # parameter of the one-time URL
_OPEN_PATHS = ("/health",)
_OF_DOCUMENTS = (
    *(
        *_OPEN_PATHS,
        "/api/info",
        "/api/search",
        "/api/columns",
        "/api/snippets",
        "/api/context",
        "/api/explain",
        "/api/documents/",
    ),
    *("/openapi.yaml", "/mcp"),
)
_MOST_REQUESTS = 512
_BODY_BYTES, _BODY_SECONDS = 1 << 20, 10.0
_COOKIE_SECONDS = 30 * 24 * 3600


class Refused(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status, self.code = status, code


def check_token(token: str, name: str) -> None:
    """Refuse a short token, or one that no header can have; `name` is the subject of the message."""
    if not (len(token) >= LEAST_TOKEN and token.isascii() and token.isprintable() and " " not in token):
        problem = f"{name}: needs {LEAST_TOKEN} or more printable characters of ASCII"
        raise InputError(problem, code="not-a-token", limit=LEAST_TOKEN)


def read_conditions(path: Path) -> dict[str, str]:
    """Return token -> condition of a YAML file; messages name a line, and no token.

    Raises:
        InputError: no such mapping, a token that is unusable or has two conditions.
    """
    try:
        node = yaml.compose(read_text(path), yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise path_error(path, f"not a readable YAML file ({reason(error)})", code="not-yaml") from None
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise path_error(path, "needs lines of `TOKEN: CONDITION`", code="not-yaml")
    conditions: dict[str, str] = {}
    for key, value in node.value:
        line, token, condition = key.start_mark.line + 1, str(key.value), value.value
        check_token(token, f"{path}, line {line}")
        if token in conditions or not isinstance(condition, str) or not condition.strip():
            problem = f"{path}, line {line}: " + (
                "a token has two conditions" if token in conditions else "no condition"
            )
            raise InputError(problem, code="no-condition", path=path, line=line)
        conditions[token] = condition
    return conditions


def checked_query(text: Any) -> str:
    """Return the text of a query; see `query_text`.

    Raises:
        InputError: no text, a blank one, or one that is too long.
    """
    if not isinstance(text, str) or not query_text(text).strip():
        raise InputError("query: needs a text", code="no-query", option="query")
    if len(text) > QUERY_CHARACTERS:
        problem = f"query: has {len(text):,} characters; at most {QUERY_CHARACTERS:,} are searched"
        raise InputError(problem, code="query-too-long", option="query", value=len(text), limit=QUERY_CHARACTERS)
    return query_text(text)


def error_response(status: int, code: str, message: str, **fields: Any) -> Response:
    """Return an error as the API answers it."""
    return JSONResponse({"error": {"code": code, "message": message, **fields}}, status)


@dataclass
class Guard:
    """Checks all requests of an app.

    Attributes:
        app: the app.
        port: port of the server, which the name of the cookie has: cookies are common to all ports of a host.
        hosts: names of this server in requests.
        token: secret of programs.
        needs_token: every request needs a token or the cookie.
        conditions: further token -> condition of the documents that it may see, for requests that only read them.
        writes: tests whether a path changes anything.
        seconds: limit of a request.
        observe: receives path, status and seconds of every request.
        log: file of the access log; None for none.
        log_queries: log the query strings too.
    """

    app: ASGIApp
    port: int
    hosts: Collection[str]
    token: str
    needs_token: bool
    conditions: Mapping[str, str]
    writes: Callable[[str], bool]
    seconds: float
    observe: Callable[[str, int, float], None]
    log: TextIO | None = None
    log_queries: bool = False
    login: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _requests: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and let the app answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        started, status, size = time.perf_counter(), 500, 0

        async def answer(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            size += len(message.get("body", b""))
            await send(message)

        self._requests += 1
        try:
            await self._answered(scope, receive, answer)
        finally:
            self._requests -= 1
            seconds = time.perf_counter() - started
            self.observe(getattr(scope.get("route"), "path", "other"), status, seconds)
            self._write_log(scope, status, size, seconds)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            if self._requests > _MOST_REQUESTS:
                raise Refused(503, "too-many-requests", "too many requests at a time; try again")
            response = self._checked(scope, Headers(scope=scope))
            if response is not None:
                await response(scope, receive, watched)
                return
            async with asyncio.timeout(self.seconds):
                await self.app(scope, _limited(Headers(scope=scope), receive), watched)
        except Refused as error:
            if not begun:
                await error_response(error.status, error.code, str(error))(scope, receive, send)
        except TimeoutError:
            if not begun:
                problem = f"no answer within {self.seconds:g} seconds"
                await error_response(503, "timeout", problem)(scope, receive, send)

    def _checked(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that the app does not see; None for others.

        Raises:
            Refused: the request is not answered.
        """
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_known(hosts[0], scope):
            raise Refused(421, "unknown-host", "this server has another name; pass --allow-host NAME to add one")
        path, method = scope["path"], scope["method"]
        condition = self._condition(headers)
        program = condition is not None
        if condition and not path.startswith(_OF_DOCUMENTS):
            raise Refused(403, "not-allowed", "this token searches and reads documents, and nothing else")
        CONDITION.set(condition)
        if not program and not self._is_own(scope, headers, hosts[0]):
            raise Refused(403, "cross-site", "requests of other sites are refused")
        if self.needs_token and path not in _OPEN_PATHS and not program:
            if code := parse_qs(scope["query_string"].decode("latin-1")).get(LOGIN):
                return self._logged_in(code[0])
            cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
            if not _equal(cookie, self._session):
                return _unauthorized(path)
            CONDITION.set("")
        if method not in ("GET", "HEAD"):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refused(415, "not-json", "needs the content type application/json")
            if self.writes(path) and not program and "origin" not in headers:
                problem = "a program that writes needs the token: Authorization: Bearer TOKEN"
                raise Refused(401, "no-token", problem)
        return None

    def _is_known(self, host: str, scope: Scope) -> bool:
        name = _host_name(host)
        if name in self.hosts:
            return True
        server = scope.get("server")
        try:  # an address, which no other site can rebind
            return server is not None and ipaddress.ip_address(name) == ipaddress.ip_address(server[0])
        except ValueError:
            return False

    def _is_own(self, scope: Scope, headers: Headers, host: str) -> bool:
        """Return whether a browser names this server as the origin of a request; programs name none."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if scope["method"] in ("GET", "HEAD"):
            opens = headers.get("sec-fetch-mode") == "navigate"  # a link of another page
            return site in (None, "same-origin", "none") or (opens and not scope["path"].startswith(("/api", "/mcp")))
        return site in (None, "same-origin", "none") and (origin is None or urlsplit(origin).netloc == host)

    def _condition(self, headers: Headers) -> str | None:
        """Return the condition of the token of a request, empty for all documents; None without a known token."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        known = [
            condition for own, condition in {**self.conditions, self.token: ""}.items() if _equal(token.strip(), own)
        ]
        return known[0] if known and scheme.lower() == "bearer" else None

    @property
    def _cookie(self) -> str:
        return f"hybrid-{self.port}"

    def _logged_in(self, code: str) -> Response:
        """Exchange the code of the one-time URL for a cookie."""
        if not self.login or not _equal(code, self.login):
            raise Refused(401, "used-login", "this address was used, or is of another start; restart the server")
        self.login = ""
        response = RedirectResponse("/", 303)
        response.set_cookie(
            self._cookie, self._session, max_age=_COOKIE_SECONDS, httponly=True, samesite="strict", path="/"
        )
        return response

    def _write_log(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        if self.log is None:
            return
        client = scope.get("client") or ("", 0)
        line: dict[str, Any] = {
            "time": round(time.time(), 3),
            "client": client[0],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "bytes": size,
            "ms": round(1e3 * seconds, 2),
        }
        if self.log_queries:
            line["query"] = scope["query_string"].decode("latin-1")
        self.log.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.log.flush()


def _equal(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode(), secret.encode())


def _host_name(host: str) -> str:
    """Return the name in `name:port` or `[address]:port`."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _unauthorized(path: str) -> Response:
    if path.startswith(("/api", "/mcp", "/metrics")):
        return error_response(401, "no-token", "needs Authorization: Bearer TOKEN; the token is printed at the start")
    text = "Open the address that `hybrid serve` printed at its start.\n"
    return PlainTextResponse(text, HTTPStatus.UNAUTHORIZED)


def _limited(headers: Headers, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Return a `receive` that refuses large and slow bodies.

    Raises:
        Refused: the length in the header is too large.
    """
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _BODY_BYTES:
        raise Refused(413, "too-large", f"the body has more than {_BODY_BYTES:,} bytes")
    received, ended = 0, False

    async def limited() -> Message:
        nonlocal received, ended
        if ended:
            return await receive()  # waits for the end of the connection
        try:
            message = await asyncio.wait_for(receive(), _BODY_SECONDS)
        except TimeoutError:
            raise Refused(408, "slow", "the body did not arrive in time") from None
        if message["type"] == "http.disconnect":
            raise Refused(400, "incomplete", "the connection ended before the body")
        received += len(message.get("body", b""))
        ended = not message.get("more_body", False)
        if received > _BODY_BYTES:
            raise Refused(413, "too-large", f"the body has more than {_BODY_BYTES:,} bytes")
        return message

    return limited
