"""Access to object stores (S3 and Google Cloud Storage) through pyarrow; an error of the store is one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.input_files import opened

GOOGLE_PATIENCE = timedelta(seconds=30)  # of Google's client, which otherwise tries again for 15 minutes
S3_ATTEMPTS = 5  # of each operation, with growing pauses
_BLOCK = 1 << 20
_PLACES = {  # scheme -> variables of the endpoint, and of the region
    "s3": (("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")),
    "gs": (("CLOUD_STORAGE_EMULATOR_ENDPOINT",), ()),
}
_REASONS = (  # parts of a message, the reason, and the advice
    ("NO_SUCH_BUCKET", "no such bucket", "create it, or check its name and region"),
    ("ACCESS_DENIED", "access denied", "check the credentials, such as AWS_ACCESS_KEY_ID"),
    ("INVALID_ACCESS_KEY_ID", "access denied", "check the credentials, such as AWS_ACCESS_KEY_ID"),
    ("SIGNATURE_DOES_NOT_MATCH", "access denied", "check the credentials, such as AWS_SECRET_ACCESS_KEY"),
    ("PERMISSION_DENIED", "access denied", "check the credentials, such as GOOGLE_APPLICATION_CREDENTIALS"),
    (
        "Could not create a OAuth2 access token",
        "no access token of Google Cloud",
        "check GOOGLE_APPLICATION_CREDENTIALS (file of a key) and the network, and repeat the command",
    ),
    ("UNAVAILABLE", "the object store does not answer", "check the network, and repeat the command"),
    ("NETWORK_CONNECTION", "the object store does not answer", "check AWS_ENDPOINT_URL, and repeat the command"),
)


@cache
def _filesystem(scheme: str, endpoint: str, region: str) -> pa_fs.FileSystem:
    if scheme == "gs":
        emulated = bool(endpoint)  # an emulator has no accounts
        return pa_fs.GcsFileSystem(anonymous=emulated, retry_time_limit=GOOGLE_PATIENCE)
    protocol, _, host = endpoint.rpartition("://")
    options: dict[str, Any] = {"retry_strategy": pa_fs.AwsStandardS3RetryStrategy(max_attempts=S3_ATTEMPTS)}
    options |= {"region": region} if region else {}
    if host:
        options |= {"endpoint_override": host.rstrip("/"), "scheme": protocol or "https"}
    return pa_fs.S3FileSystem(**options)


def _open(url: str) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it; the environment has the endpoint and the region."""
    scheme, _, key = url.partition("://")
    endpoint, region = (
        next((os.environ[name] for name in each if os.environ.get(name)), "") for each in _PLACES[scheme]
    )
    if scheme == "s3" and not endpoint and not region:
        with _explained(url):
            region = pa_fs.resolve_s3_region(key.split("/")[0])
    return _filesystem(scheme, endpoint, region), key.strip("/")


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn an error of the store into one line; its client has tried again before."""
    try:
        yield
    except OSError as error:
        text = " ".join(str(error).split())
        for words, reason, advice in _REASONS:
            if words in text:
                kind = HybridError if advice.endswith("repeat the command") else InputError
                raise kind(f"{url}: {reason}; {advice}") from None
        if getattr(error, "filename", None):  # of a local file
            raise
        raise HybridError(f"{url}: the object store failed ({text[:160]}); repeat the command to resume") from None


def objects(url: str) -> dict[str, Any]:
    """Return the objects of a URL: relative name -> size and time; an object itself has the name ''."""
    system, key = _open(url)
    with _explained(url):
        found = system.get_file_info(key)
        if found.type == pa_fs.FileType.File:
            return {"": found}
        listed = system.get_file_info(pa_fs.FileSelector(key, allow_not_found=True, recursive=True))
        if not listed and system.get_file_info(key.split("/")[0]).type == pa_fs.FileType.NotFound:
            raise InputError(f"{url}: no such bucket; create it, or check its name and region")
        return {each.path[len(key) + 1 :]: each for each in listed if each.type == pa_fs.FileType.File}


def state(found: Any) -> tuple[int, int] | None:
    """Return size and time of an object; some stores round the time of a single object to seconds."""
    return None if found is None else (found.size, found.mtime_ns // 10**9)


def blocks(url: str) -> Iterator[bytes]:
    """Yield the content of an object."""
    system, key = _open(url)
    with _explained(url), system.open_input_stream(key) as source:
        while block := source.read(_BLOCK):
            yield block


def put(path: Path, url: str) -> None:
    """Upload a file; an object is stored as a whole or not at all."""
    system, key = _open(url)
    with opened(path) as source, _explained(url), system.open_output_stream(key) as target:
        while block := source.read(_BLOCK):
            target.write(block)


def write(content: bytes, url: str) -> None:
    """Store a small object."""
    system, key = _open(url)
    with _explained(url), system.open_output_stream(key) as target:
        target.write(content)


def delete(url: str) -> None:
    """Remove an object."""
    system, key = _open(url)
    with _explained(url):
        system.delete_file(key)
