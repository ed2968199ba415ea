"""A running `hybrid serve` for tests, in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from processes import HYBRID, Started

TOKEN = "a-token-for-tests-only"
STARTS_WITHIN = 120  # seconds, on a busy machine
ADDRESS = re.compile(r"http://[^/]+:(\d+)/(\S*)")


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Served:
    """A server on a free port of this machine; its end is part of the context."""

    def __init__(self, *words: object, port: int = 0, **environment: str):
        self.words: list[object] = ["serve", *words, "--port", port]
        self.code, self.environment = HYBRID, {"HYBRID_TOKEN": TOKEN, **environment}

    def __enter__(self) -> Served:
        self.log = Path(tempfile.mkstemp(suffix=".log")[1])
        self.process = Started(self.code, *self.words, log=str(self.log), **self.environment)
        for _ in range(STARTS_WITHIN * 50):
            if found := ADDRESS.search(self.log.read_text()):
                self.port, self.path = int(found[1]), found[2]
                return self
            assert self.process.poll() is None, f"the server ended: {self.log.read_text()}"
            time.sleep(0.02)
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGTERM)
        self.log.unlink()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def stop(self, number: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.Signals(number))
        return self.process.wait(60).returncode

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; underscores in the names of headers are hyphens, and a None removes one."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        known = {"content-type": "application/json"} if data is not None else {}
        known |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host="host" in known, skip_accept_encoding=True)
        for name, value in known.items():
            connection.putheader(name, value)
        if data is not None:
            connection.putheader("content-length", str(len(data)))
        connection.endheaders(data)
        answer = connection.getresponse()
        content = Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return content

    def get(self, path: str, /, **parameters: Any) -> Answer:
        return self.ask("GET", path + (f"?{urlencode(parameters)}" if parameters else ""))
