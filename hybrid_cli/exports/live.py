"""Collections that an engine serves: what `inspect --verify --engine` asks, and the errors about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from hybrid_cli.errors import HybridError, InputError

NAME = "documents"  # of a collection, an index or a table, in the commands of every export
TIMEOUT = 10.0  # seconds of one request


class Live(Protocol):
    """An open collection of an engine.

    Raises:
        InputError: in every method: the engine cannot be reached, or refuses a request.
    """

    def count(self) -> int:
        """Return the number of documents."""

    def search(self, request: Mapping[str, Any]) -> list[tuple[str, float]]:
        """Return ids and scores of the hits of a request of a `Translation`, the best first."""

    def close(self) -> None:
        """Close the connection."""


def collection_in(address: str) -> tuple[str, str]:
    """Return the address of an engine and the name of a collection: the path of a URL, else `NAME`."""
    parts = urlsplit(address)
    name = parts.path.strip("/")
    if "://" not in address or not name:
        return address.rstrip("/"), NAME
    return f"{parts.scheme}://{parts.netloc}", name


def one_line(error: object) -> str:
    """Return the first line of what an engine says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines else type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."


def missing_package(engine: str, package: str) -> HybridError:
    """Return the error about a client that is not installed."""
    problem = f"--engine {engine}: the package {package} is not installed; run: pip install {package}"
    return HybridError(problem, code="missing-package", package=package)


def refusal(engine: str, address: str, reason: str, code: str = "engine-refused") -> InputError:
    """Return the error about a request that an engine refuses, such as for a feature of a later version."""
    return InputError(f"--engine {engine}:{address}: {reason}", code=code, option="engine", value=address)


def unreachable(engine: str, address: str, reason: str) -> InputError:
    """Return the error about an engine that does not answer."""
    problem = f"cannot be reached ({reason}); load the export first, or correct the address"
    return refusal(engine, address, problem, "engine-unreachable")


def no_collection(engine: str, address: str, name: str) -> InputError:
    """Return the error about a collection that is not in an engine."""
    problem = f"has no collection '{name}'; run load.py of the export, or add /NAME to a URL"
    return refusal(engine, address, problem, "no-such-collection")


class Server:
    """An engine that answers JSON over HTTP.

    Args:
        engine: name of the engine, for messages.
        address: URL that the user named; nothing else is contacted.

    Attributes:
        name: name of the collection.

    Raises:
        InputError: no URL.
    """

    def __init__(self, engine: str, address: str):
        self._engine, self._address = engine, address
        self._base, self.name = collection_in(address)
        if urlsplit(address).scheme not in ("http", "https"):
            raise unreachable(engine, address, "needs a URL, such as http://localhost:9200/documents")

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer of a path: to a GET, or with a body to a POST.

        Raises:
            InputError: the server cannot be reached, or refuses.
        """
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=TIMEOUT) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                said = error.read().decode("utf-8", "replace")
            if error.code == 404:
                raise no_collection(self._engine, self._address, self.name) from None
            reason = f"HTTP {error.code}: {one_line(said or error.reason)}"
            raise refusal(self._engine, self._address, reason) from None
        except ValueError as error:
            raise unreachable(self._engine, self._address, f"no JSON in the answer: {one_line(error)}") from None
        except (OSError, HTTPException) as error:
            raise unreachable(self._engine, self._address, one_line(getattr(error, "reason", error))) from None
