"""Finished outputs in the mirror that are not in the store yet: no download replaces or removes them.

A command notes its output before its work, and removes the note when the upload is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hybrid_cli.artifacts import disk, files, store
from hybrid_cli.artifacts.manifest import MANIFEST
from hybrid_cli.artifacts.mirror import place_of, root
from hybrid_cli.artifacts.upload_marker import MARKER
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
    disk.write_text(_note_of(url), json.dumps({"url": url.rstrip("/"), "before": identity(place_of(url))}))


def forget(url: str) -> None:
    """Remove the note of an output whose upload is complete."""
    disk.remove(_note_of(url))


def is_unsent(url: str, found: Mapping[str, Any]) -> bool:
    """Return whether the mirror has a finished output that differs from the objects `found` of its URL."""
    place, file = place_of(url), _note_of(url)
    name = MANIFEST if (place / MANIFEST).is_file() else ""
    if not file.is_file() or not (place / name).is_file():
        return False
    written = identity(place) != parse_json(read_bytes(file), file)["before"]
    return written and not (name in found and same(place / name, found[name]))


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
    known = [str(parse_json(read_bytes(file), file)["url"]) for file in _notes().glob("*.json")]
    noted = {each.removeprefix(start) for each in known if each.startswith(start)}
    marked = {name.removesuffix(f"/{MARKER}") for name in found if name.endswith(f"/{MARKER}")}
    for name in sorted(noted | marked):
        inside = {each[len(name) + 1 :]: found[each] for each in found if each == name or each.startswith(f"{name}/")}
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
