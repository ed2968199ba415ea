"""Finished outputs in the mirror that are not in the store yet: no download replaces or removes them.

A command notes its output before its work, and removes the note when the upload is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hybrid_cli.artifacts import disk, files, store
from hybrid_cli.artifacts.manifest import MANIFEST
from hybrid_cli.artifacts.mirror import place_of, root
from hybrid_cli.artifacts.upload_marker import MARKER
from hybrid_cli.errors import InputError
from hybrid_cli.input_files import read_bytes
from hybrid_cli.json_files import parse_json


def identity(place: Path) -> int:
    """Return a number that changes when an output is replaced, and not when it is touched; 0 if there is none."""
    file = place / MANIFEST if (place / MANIFEST).is_file() else place
    return file.stat().st_ino if file.exists() else 0


def same(path: Path, found: Any) -> bool:
    """Return whether a file has the size and the time of an object."""
    if not path.is_file():
        return False
    status = path.stat()
    return bool(status.st_size == found.size and status.st_mtime_ns == found.mtime_ns)


def _notes() -> Path:
    return root() / ".unsent"


def _note_of(url: str) -> Path:
    return _notes() / f"{hashlib.sha256(url.rstrip('/').encode()).hexdigest()[:40]}.json"


def note(url: str) -> None:
    """Note that a command is about to write an output; what the mirror has now needs no upload."""
    _notes().mkdir(parents=True, exist_ok=True)
    _write_note(url, identity(place_of(url)))


def _write_note(url: str, before: int) -> None:
    scratch = _note_of(url).with_suffix(f".{os.getpid()}")
    disk.write_text(scratch, json.dumps({"url": url.rstrip("/"), "before": before}))
    disk.device.rename(scratch, _note_of(url))  # other processes read whole notes


def _read(file: Path) -> dict[str, Any]:
    """Return a note; empty if another process has removed it meanwhile."""
    try:
        found: dict[str, Any] = parse_json(read_bytes(file), file) if file.is_file() else {}
    except (InputError, FileNotFoundError):
        return {}
    return found


def forget(url: str) -> None:
    """Remove the note of an output whose upload is complete."""
    disk.remove(_note_of(url))


def is_unsent(url: str, found: Mapping[str, Any]) -> bool:
    """Return whether the mirror has a finished output that differs from the objects `found` of its URL.

    One that equals them was downloaded, so that it needs no upload either when the store has another version later.
    """
    place, noted = place_of(url), _read(_note_of(url))
    name = MANIFEST if (place / MANIFEST).is_file() else ""
    if not noted or not (place / name).is_file():
        return False
    made = identity(place)
    if made == noted["before"]:
        return False
    stored = name in found and (same(place / name, found[name]) or (name and _equal(place / name, f"{url}/{name}")))
    if stored:
        _write_note(url, made)
    return not stored


def _equal(file: Path, url: str) -> bool:
    """Return whether a small file has the content of an object: the upload ended, but not its command."""
    return read_bytes(file) == b"".join(store.blocks(url))


def note_downloads(url: str, found: Mapping[str, Any]) -> None:
    """Note that outputs at a URL and below it were downloaded: commands that failed have left notes of them."""
    is_unsent(url.rstrip("/"), found)
    deque(below(url, found), maxlen=0)


def _inside(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects of a name in a folder, with names relative to it."""
    return {each[len(name) + 1 :]: found[each] for each in found if each == name or each.startswith(f"{name}/")}


def around(url: str) -> str | None:
    """Return the unsent output that a URL is, or is inside of; None if there is none."""
    scheme, _, key = url.partition("://")
    for folder in (PurePosixPath(key), *PurePosixPath(key).parents):
        each = f"{scheme}://{folder}"
        if _note_of(each).is_file() and is_unsent(each, store.objects(each)):
            return each
    return None


def below(url: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names, relative to a URL with the objects `found`, of the unsent outputs in its folder.

    An output whose marker is in the store without a manifest is one of them, also without a note.
    """
    start = f"{url.rstrip('/')}/"
    known = [str(_read(file).get("url")) for file in _notes().glob("*.json")]
    noted = {each.removeprefix(start) for each in known if each.startswith(start)}
    marked = {name.removesuffix(f"/{MARKER}") for name in found if name.endswith(f"/{MARKER}")}
    for name in sorted(noted | marked):
        inside = _inside(name, found)
        uploading = name in marked and MANIFEST not in inside and (place_of(start + name) / MANIFEST).is_file()
        if uploading or is_unsent(start + name, inside):
            yield name


def set_aside(place: Path) -> None:
    """Give an output that is not in the store the name of an unfinished one, which an equal call completes."""
    if (place / MANIFEST).is_file():
        disk.remove(files.scratch_path(place))
        disk.device.rename(place, files.scratch_path(place))
    elif place.is_file() or (place.is_dir() and not any(map(Path.is_file, place.rglob("*")))):
        disk.remove(place)
