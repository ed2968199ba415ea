"""Calls of an API at a URL that the user named: with retries and limits, without redirections to other hosts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from hybrid_cli.console import plain
from hybrid_cli.errors import HybridError, option_error

KEY_VARIABLE = "HYBRID_API_KEY"
DELAYS = (0.5, 1.0, 2.0, 4.0)  # seconds before each retry
_LONGEST_DELAY = 60.0
_SHOWN = 200  # characters of a server's message


class SpentError(Exception):
    """The calls of `--max-calls` are made."""


class _Http(HTTPConnection):
    """A connection whose socket is known to the handler that opened it."""

    def __init__(self, opened: Callable[[socket.socket], None], *words: Any, **options: Any):
        super().__init__(*words, **options)
        self._opened = opened

    def connect(self) -> None:
        """Connect."""
        super().connect()
        self._opened(self.sock)


class _Https(_Http, HTTPSConnection):
    """An encrypted connection."""


class _Connections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens one connection at a time for each thread; `end` ends it, whatever the thread waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: dict[int, socket.socket] = {}

    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        """Open a connection."""
        return self.do_open(partial(_Http, self._open), request)  # type: ignore[arg-type]

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        """Open an encrypted connection."""
        return self.do_open(partial(_Https, self._open), request)  # type: ignore[arg-type]

    def _open(self, opened: socket.socket) -> None:
        self._sockets[threading.get_ident()] = opened

    def end(self, thread: int) -> None:
        """End the connection of a thread."""
        with contextlib.suppress(KeyError, OSError):  # closed before
            self._sockets.pop(thread).shutdown(socket.SHUT_RDWR)

    def end_all(self) -> None:
        """End all connections."""
        for thread in list(self._sockets):
            self.end(thread)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, so that texts and key reach the named server alone."""

    def redirect_request(self, *_: Any) -> None:
        """Return no further request."""


@dataclass
class Api:
    """A server that answers JSON over HTTP; `ask` may be called in several threads.

    The key in `HYBRID_API_KEY` is sent as a bearer token; one with a space is the whole header: `ApiKey KEY`.

    Attributes:
        url: base of the API, such as `http://localhost:8000/v1`; a query string follows every path.
        option: option that names it, for messages; `shown` is its value.
        timeout: seconds for one answer.
        most_calls: calls that may be made, retries included; None for any number.
        most_bytes: bytes of an answer.
        calls: calls that were made.
    """

    url: str
    option: str
    timeout: float
    most_calls: int | None = None
    most_bytes: int = 1 << 26
    shown: str = ""
    calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.shown = self.shown or self.url
        try:
            parts = urlsplit(self.url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or not self.url.isascii():
            raise option_error(self.option, self.url, "is no URL of a server: http://HOST:PORT/v1", code="not-a-url")
        if parts.username is not None:
            problem = f"names a user; pass the key as {KEY_VARIABLE}, such as 'Basic ...'"
            raise option_error(self.option, None, problem, code="not-a-url")
        self._base = parts._replace(fragment="")
        self._headers = {"Content-Type": "application/json"}
        if secret := os.environ.get(KEY_VARIABLE, "").strip():
            if not (secret.isascii() and secret.isprintable()):
                raise HybridError(f"{KEY_VARIABLE}: is no key, which has printable characters", code="not-a-key")
            self._headers["Authorization"] = secret if " " in secret else f"Bearer {secret}"
        self._connections = _Connections()
        self._opener = urllib.request.build_opener(_NoRedirect, self._connections)

    def ask(self, path: str, body: Mapping[str, Any] | None = None, live: bool = False) -> bytes:
        """Return the answer of a path; errors of a moment are retried after a delay.

        Args:
            path: end of the URL, such as `/embeddings`.
            body: JSON to post; None for a GET.
            live: `timeout` limits all tries together.

        Raises:
            HybridError: the server refuses (`server-refuses`, with its `status` and `reason`), or gives no answer.
            SpentError: `most_calls` are made.
        """
        address = self._base._replace(path=self._base.path.rstrip("/").removesuffix(path) + path).geturl()
        data = None if body is None else json.dumps(body).encode()
        end = time.monotonic() + self.timeout if live else math.inf
        problem, tries = "", 0
        for delay in (*DELAYS, None):
            tries += 1
            try:
                return self._answer(address, data, min(self.timeout, end - time.monotonic()))
            except urllib.error.HTTPError as error:
                problem = self._reason(error)
                if error.code != 429 and error.code < 500:
                    fields = {"status": error.code, "reason": problem}
                    raise self.failure(f"refuses the request: {problem}", "server-refuses", **fields) from None
                asked = error.headers.get("Retry-After", "")
                wait = float(asked) if asked.isascii() and asked.isdigit() else 0.0
            except (OSError, HTTPException) as error:  # refused, no such host, timeout, connection lost
                problem, wait = str(getattr(error, "reason", error)) or type(error).__name__, 0.0
            pause = min(max(wait, (delay or 0.0) * random.uniform(1, 1.5)), _LONGEST_DELAY)
            if delay is None or time.monotonic() + pause >= end or self._closed.wait(pause):
                break
        raise self.failure(f"gives no answer after {tries} calls: {problem}", "server-down", reason=problem)

    def _answer(self, address: str, data: bytes | None, timeout: float) -> bytes:
        with self._lock:
            if self.most_calls is not None and self.calls >= self.most_calls:
                raise SpentError
            self.calls += 1
        request = urllib.request.Request(address, data, self._headers)
        clock = threading.Timer(timeout, self._connections.end, [threading.get_ident()])
        clock.start()
        try:
            with self._opener.open(request, timeout=timeout) as answer:
                return bytes(answer.read(self.most_bytes))
        finally:
            clock.cancel()

    def close(self) -> None:
        """End the running calls."""
        self._closed.set()
        self._connections.end_all()

    @staticmethod
    def _reason(error: urllib.error.HTTPError) -> str:
        with error:
            text = error.read(_SHOWN * 4).decode("utf-8", "replace")
        return f"{error.code} {' '.join(plain(text).split())[:_SHOWN]}"

    def failure(self, reason: str, code: str, /, **fields: object) -> HybridError:
        """Return the error about the server."""
        problem = f"--{self.option.replace('_', '-')} {self.shown}: {reason}"
        return HybridError(problem, code=code, option=self.option, value=self.shown, **fields)
