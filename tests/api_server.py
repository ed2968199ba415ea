"""An HTTP API on this machine, which answers as a test says."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], tuple[int, str]]


class Server:
    """A server whose answers are those of `reply`: a status and a text, the location of a redirection.

    Attributes:
        bodies, headers: of the requests so far; the headers have the `path`.
        more: headers of the answers, such as `Retry-After`.
    """

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.more: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
                outer.bodies.append(body)
                outer.headers.append({"path": self.path, **dict(self.headers)})
                status, text = outer.reply(body)
                self.send_response(status)
                for name, value in ({"Location": text} if status == 302 else outer.more).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def running(reply: Reply) -> Iterator[Server]:
    """Yield a server until the test ends."""
    started = Server(reply)
    yield started
    started.close()
