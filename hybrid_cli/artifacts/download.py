"""Downloads from an object store into its mirror."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from hybrid_cli import console
from hybrid_cli.artifacts import disk, files, store, unsent
from hybrid_cli.artifacts.manifest import MANIFEST
from hybrid_cli.artifacts.mirror import copy_of, place_of, root, shown_as_url
from hybrid_cli.artifacts.upload_marker import MARKER
from hybrid_cli.errors import HybridError, InputError

AT_ONCE = 8  # transfers
_failed: set[str] = set()  # URLs of recorded inputs that could not be downloaded


def _get(path: Path, found: Any, scheme: str) -> None:
    """Download an object, unless the file has its size and time."""
    if unsent.same(path, found):
        return
    if path.is_dir():
        disk.remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as scratch:
        with disk.create(scratch) as file:
            for block in store.blocks(f"{scheme}://{found.path}"):
                file.write(block)
        if scratch.stat().st_size != found.size:
            raise HybridError(f"{scheme}://{found.path}: the download is incomplete; repeat the command")
    os.utime(path, ns=(found.mtime_ns, found.mtime_ns))


def _wait_for_last_versions(objects: Iterable[Any]) -> None:
    """Wait, up to a second, until no later version of the objects can have the same time: S3 counts seconds."""
    second = 10**9
    newest = max((each.mtime_ns for each in objects if each.mtime_ns % second == 0), default=0)
    if (rest := newest + second - time.time_ns()) > 0:
        time.sleep(min(rest, second) / second)


def transfer(what: str, calls: Sequence[Callable[[], None]]) -> None:
    """Run some transfers at a time, and wait for all."""
    with console.progress(what, len(calls), "files") as advance, ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(call) for call in calls]
        try:
            for each in running:
                each.result()
                advance(1)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def has_pattern(url: str) -> bool:
    """Return whether the last name of a URL is a pattern."""
    return any(letter in url.rpartition("/")[2] for letter in "*?[")


def fetch(url: str) -> None:
    """Download an object, a folder of objects, or those that a pattern matches; remove files deleted in the store.

    Raises:
        InputError: an upload to this folder has not finished, or the mirror has a finished output of it to upload.
    """
    folder, _, pattern = url.rpartition("/")
    if has_pattern(url):
        known = {path.name for path in place_of(folder).glob("[!.]*")}  # some may be deleted in the store
        for name in sorted(known | {name.split("/")[0] for name in store.objects(folder)}):
            if fnmatchcase(name, pattern):
                fetch(f"{folder}/{name}")
        return
    found = store.objects(url)
    if MARKER in found and MANIFEST not in found:
        raise InputError(f"{url}: an upload to it has not finished; repeat the command that writes it")
    if (output := unsent.around(url)) is not None:
        raise InputError(_to_upload(output))
    mirror_objects(url, found)


def _to_upload(url: str) -> str:
    return (
        f"{url}: the finished output in HYBRID_CACHE is not uploaded; repeat the command that writes it, or remove "
        f"{copy_of(place_of(url))}"
    )


def fetch_recorded(path: Path) -> None:
    """Download an input that a manifest records by its URL; if that fails, warn once, and leave the mirror as it is."""
    url = shown_as_url(str(path))
    if url in _failed:
        return
    try:
        fetch(url)
    except HybridError as error:
        _failed.add(url)
        console.warn(str(error))


def local_file(url: str) -> Path:
    """Download an object, and return its path in the mirror.

    Raises:
        InputError: no such object.
    """
    fetch(url)
    if not (place := place_of(url)).is_file():
        raise InputError(f"{url}: no such file")
    return place


def mirror_objects(url: str, found: Mapping[str, Any]) -> None:
    """Download the objects of a URL, and remove other files from the mirror; outputs to upload are left as they are."""
    place, (scheme, _, key) = place_of(url), url.partition("://")
    kept = list(unsent.below(url, found))
    for name in kept:
        console.warn(_to_upload(f"{url.rstrip('/')}/{name}"))

    def is_kept(name: str) -> bool:
        return any(name == each or name.startswith(f"{each}/") for each in kept)

    wanted = {place / name: found[name] for name in found if Path(name).name != MARKER and not is_kept(name)}
    (root() / scheme).mkdir(parents=True, exist_ok=True)
    missing = [each for path, each in wanted.items() if not unsent.same(path, each)]
    console.forecast(
        sum(each.size for each in missing), f"download {url}", "set HYBRID_CACHE", files.scratch_path(place)
    )
    calls = [partial(_get, path, each, scheme) for path, each in wanted.items()]
    with FileLock(root() / scheme / f".{key.split('/')[0]}.lock"):  # the processes of a machine share the mirror
        if not found:
            unsent.set_aside(place)
        for file in list(place.rglob("*")) if place.is_dir() else ():
            name = file.relative_to(place).as_posix()
            if file.is_file() and name not in found and not _is_hidden(name) and not is_kept(name):
                disk.remove(file)
        _wait_for_last_versions(missing)
        transfer(f"download {url}", calls)
    unsent.note_downloads(url, found)


def _is_hidden(name: str) -> bool:
    """Return whether a file belongs to the unfinished output of another command."""
    return any(part.startswith(".") for part in name.split("/"))
