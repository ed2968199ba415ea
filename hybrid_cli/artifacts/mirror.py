"""Paths of the mirror, the local folder of objects in a store, and their URLs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_cli.errors import InputError

_SCHEMES = ("s3", "gs")


def root() -> Path:
    """Return the folder of the mirror: `HYBRID_CACHE`, else `hybrid` in the user's cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.realpath(Path(os.environ.get("HYBRID_CACHE") or f"{caches}/hybrid").expanduser()))


def place_of(url: str) -> Path:
    """Return the path in the mirror of an object or a folder of objects."""
    scheme, _, key = url.partition(":")
    if ".." in key.split("/"):
        raise InputError(f"{url}: has '..' in its path; name the object itself")
    return root() / scheme / key.strip("/")


def url_of(path: Path) -> str | None:
    """Return the URL of a path in the mirror; None for another path."""
    try:
        scheme, *key = path.relative_to(root()).parts
    except ValueError:
        return None
    return f"{scheme}://{'/'.join(key)}" if scheme in _SCHEMES and len(key) > 1 else None


def copy_of(path: Path) -> str:
    """Return the name of a path in the mirror, for messages in which it is not replaced by its URL."""
    return f"{path.absolute().relative_to(root()).as_posix()} in {root()}"


def disk_of(path: Path) -> str:
    """Return the name of the disk of a path, for messages."""
    if path.absolute().is_relative_to(root()):
        return f"HYBRID_CACHE ({root()})"
    unfinished = (each.parent for each in reversed((path, *path.parents)) if each.name.endswith(".partial"))
    return f"the disk of {next(unfinished, path.parent)}"


def remedy(path: Path, local: str) -> str:
    """Return the advice about a damaged file: `local`, or to download it again if it is a copy of an object."""
    if url_of(path.absolute()) is None:
        return local
    return f"to download it again, remove its copy on this machine, {copy_of(path)}"


def recorded_url(path: Path, location: Path) -> str | None:
    """Return the URL by which the manifest of an artifact at `location` records an input; None for a relative path.

    Paths in one bucket stay relative, so that they are valid in a copy of the bucket.
    """
    url, own = url_of(path), url_of(location)
    return None if url is None or (own is not None and bucket(own) == bucket(url)) else url


def is_url(text: str) -> bool:
    """Return whether a recorded path is a URL."""
    return text.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES))


def bucket(url: str) -> str:
    """Return the beginning of a URL, with its bucket."""
    return "/".join(url.split("/")[:3])


def shown_as_url(text: str) -> str:
    """Return a message with URLs in place of paths in the mirror."""
    for scheme in _SCHEMES:
        text = text.replace(f"{root() / scheme}/", f"{scheme}://")
    return text


def with_urls(value: Any) -> Any:
    """Return the value of an option with URLs in place of paths in the mirror."""
    if isinstance(value, Mapping):
        return {name: with_urls(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(with_urls, value))
    return type(value)(shown_as_url(str(value))) if isinstance(value, str | Path) else value
