"""A server in place of the Hugging Face hub."""

import http.server
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
    handler = type("Recording", (Hub,), {"requests": requests})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
        server.shutdown()
