"""Servers in place of the Hugging Face hub."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub without models that records the requested paths."""

    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        self.send_error(404)

    do_HEAD = do_POST = do_CONNECT = do_GET

    def log_message(self, format: str, *arguments: object) -> None: ...


@contextmanager
def recording_hub() -> Iterator[tuple[str, list[str]]]:
    """Return the address of a hub, and the list of requested paths."""
    requests: list[str] = []
    with _served(type("Recording", (Hub,), {"requests": requests})) as address:
        yield address, requests


@contextmanager
def _served(handler: type[Hub]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Receiver(Hub):
    """A hub that accepts a repository and the files of a commit."""

    bodies: list[tuple[str, str]]
    files: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.bodies.append((self.path, body.decode()))
        address = f"http://{self.headers['Host']}/someone/model"
        answer: dict[str, object] = {"url": address, "commitUrl": f"{address}/commit/1", "commitOid": "1"}
        if "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            kept = {"uploadMode": "regular", "shouldIgnore": False}
            answer = {"files": [{"path": name, **kept} for name in names]}
        elif "/commit/" in self.path:
            lines = [json.loads(line) for line in body.splitlines()]
            added = [line["value"] for line in lines if line["key"] == "file"]
            self.files.update((file["path"], base64.b64decode(file["content"])) for file in added)
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def receiving_hub() -> Iterator[tuple[str, list[tuple[str, str]], dict[str, bytes]]]:
    """Return the address of a hub, the list of requests with their bodies, and the files that it receives."""
    bodies: list[tuple[str, str]] = []
    files: dict[str, bytes] = {}
    handler = type("Receiving", (Receiver,), {"requests": [], "bodies": bodies, "files": files})
    with _served(handler) as address:
        yield address, bodies, files
