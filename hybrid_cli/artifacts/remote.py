"""Inputs and outputs in object stores, `s3://BUCKET/KEY` and `gs://BUCKET/KEY`: stages read and write local copies.

`local_paths` surrounds a stage. Before it, inputs are downloaded to CACHE/SCHEME/BUCKET/KEY, where relative paths in
manifests lead to the same inputs as in the bucket. After it, the output is uploaded, manifests last: a folder without
one is no artifact. Only buckets of URLs in the settings are contacted, never one that only a file names.

A copy has the time of its object in whole seconds; a file that a stage writes has another one. While a command writes
the copy of its output, `.NAME.upload` next to it notes the objects at the start. A copy that differs from its note is
not uploaded yet: no download replaces it, and the same command finds it up to date and uploads it.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pyarrow.fs as pa_fs
from filelock import FileLock, Timeout

from hybrid_cli import console
from hybrid_cli.artifacts.manifest import find_manifest
from hybrid_cli.cluster import inputs_on_machine
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.inputs.files import opened, refuse_unsafe_name
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.settings import Settings
from hybrid_cli.settings.conversion import URL, has_url
from hybrid_cli.storage import MANIFEST, Kind, disk, files
from hybrid_cli.storage.files import cache_folder
from hybrid_cli.threads import ThreadPool

S = TypeVar("S", bound=Settings)
States = dict[str, list[int]]  # name relative to a URL, empty for the object itself -> size and time, also of its copy

AT_ONCE = 8  # transfers
PATIENCE = timedelta(seconds=30)  # of Google's client, which otherwise tries again for 15 minutes
S3_ATTEMPTS = 5  # of each operation, with growing pauses
_BLOCK, _SECOND = 1 << 20, 10**9
_ENDS = {"judge": ("", ".skipped")}  # command -> ends of its files, which are uploaded after an interruption too
_FOLDERS = ("auto", "export", "inspect")  # commands whose output may be a folder without manifest
_RECORDED = {  # kind of a named artifact -> roles of recorded inputs that stages need, in the named buckets
    **dict.fromkeys((Kind.LEXICAL_INDEX, Kind.DENSE_INDEX, Kind.SHARDS), ("model", "corpus", "texts")),
    Kind.RUN: ("queries",),
    Kind.EXAMPLES: ("index", "corpus"),  # of the validation, --dev
}
_VARIABLES = {  # scheme -> variables of the endpoint, and of the region
    "s3": (("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")),
    "gs": (("CLOUD_STORAGE_EMULATOR_ENDPOINT",), ()),
}
_PROBLEMS = {  # code -> words in messages of the stores, and the message
    "no-such-bucket": ("NO_SUCH_BUCKET", "no such bucket; create it, or check its name and region"),
    "access-denied": (
        "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|PERMISSION_DENIED",
        "access denied; check the credentials, such as AWS_ACCESS_KEY_ID or GOOGLE_APPLICATION_CREDENTIALS",
    ),
    "store-unreachable": (
        "NETWORK_CONNECTION|UNAVAILABLE|OAuth2 access token",
        "the object store does not answer; check the network, the endpoint (AWS_ENDPOINT_URL) and the file of "
        "GOOGLE_APPLICATION_CREDENTIALS, and repeat the command",
    ),
    "store-failed": ("", "the object store failed; repeat the command to resume"),
}


def _refusal(url: str, code: str, problem: str, kind: type[HybridError] = InputError) -> HybridError:
    return kind(f"{url}: {problem}", code=code, path=url)


# ------------------------------------------------------------------------------------------------------------ one call


@contextmanager
def local_paths(settings: S) -> Iterator[S]:
    """Yield settings with paths of local copies in place of URLs; upload the output if the block succeeds.

    Raises:
        InputError: no such object or bucket, no access, or an output that hybrid did not write.
        HybridError: the store does not answer, or another process writes the output.
    """
    given = {name: value for name in settings.given if has_url(value := getattr(settings, name))}
    urls: dict[str, list[str]] = {name: [] for name in given}
    changes = {name: _local_value(value, urls[name]) for name, value in given.items()}
    outputs = [f"{url}{end}" for url in urls.pop("output", ()) for end in _ENDS.get(settings.command, ("",))]
    with ExitStack() as ends:  # all of them, also after an error of one
        for url in outputs:
            ends.enter_context(uploading(url, settings))
        downloaded = _download(urls)
        ends.callback(inputs_on_machine.set, inputs_on_machine.get())
        inputs_on_machine.set(partial(fetch_all, str(cache_folder()), downloaded))
        yield settings.changed(**changes)


def fetch_all(folder: str, urls: Iterable[str]) -> None:
    """Download inputs into the cache `folder`, in a process of a cluster."""
    os.environ["HYBRID_CACHE"] = folder
    for url in urls:
        fetch(url)


def local_copies(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return paths, with those of their downloaded copies in place of URLs; for callers without settings."""
    urls: list[str] = []
    copies = [Path(_local_value(path, urls)) for path in paths]
    _download({"": urls})
    return copies


def _download(named: Mapping[str, Iterable[str]]) -> list[str]:
    """Download the URLs of options, and the inputs that they record and that stages need; return all URLs."""
    urls = dict.fromkeys(url for some in named.values() for url in some)
    for url in urls:
        fetch(url)
    buckets = {_bucket(url) for url in urls}
    recorded = {source for option, some in named.items() for url in some for source in _inputs(option, url)}
    inputs = [url for url in sorted(recorded) if _bucket(url) in buckets - {url} and objects(url)]  # no whole bucket
    for url in inputs:
        fetch(url)
    return [*urls, *inputs]


def _inputs(option: str, url: str) -> Iterator[str]:
    """Yield the URLs of inputs that the artifacts at a URL record by relative paths."""
    copy = copy_of(url)
    for path in [copy] if copy.exists() else sorted(copy.parent.glob(copy.name)):
        try:
            manifest = find_manifest(path)
        except InputError:  # reported by the stage
            continue
        if manifest is None or (manifest.kind == Kind.EXAMPLES and option != "dev"):
            continue
        for role in manifest.inputs:
            source = manifest.input_path(role) if role.split()[0] in _RECORDED.get(manifest.kind, ()) else None
            if source is not None and source.is_relative_to(cache_folder()):
                yield _url_of(source)


# ---------------------------------------------------------------------------------------------------------------- URLs


def copy_of(url: str) -> Path:
    """Return the path of the copy of an object, or of a folder of objects.

    Raises:
        InputError: the URL has a part that is no name of a file, such as `..`.
    """
    scheme, _, key = url.partition("://")
    refuse_unsafe_name(key, url)
    return cache_folder() / scheme / key


def _url_of(copy: Path) -> str:
    scheme, *key = copy.relative_to(cache_folder()).parts or ("",)
    return f"{scheme}://{'/'.join(key)}"


def _bucket(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _local_value(value: Any, urls: list[str]) -> Any:
    """Return the value of an option with paths of copies in place of URLs, which are added to `urls`."""
    if isinstance(value, Mapping):
        return {name: _local_value(item, urls) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_local_value(item, urls) for item in value)
    match = URL.fullmatch(str(value)) if has_url(value) else None
    if match is None:
        return value
    url = f"{match['scheme']}://{match['key'].rstrip('/')}"  # a Path has lost its second slash
    urls.append(re.sub(r":\d+$", "", url))  # `run:URL:COUNT`
    return type(value)(f"{match['before'] or ''}{copy_of(url)}")


# --------------------------------------------------------------------------------------------------------------- store


@cache
def _system(scheme: str, endpoint: str, region: str) -> pa_fs.FileSystem:
    if scheme == "gs":  # an emulator has no accounts
        return pa_fs.GcsFileSystem(retry_time_limit=PATIENCE, anonymous=bool(endpoint))
    protocol, _, host = endpoint.rpartition("://")
    service = {"endpoint_override": host.rstrip("/"), "scheme": protocol or "https"} if host else {}
    retries = pa_fs.AwsStandardS3RetryStrategy(max_attempts=S3_ATTEMPTS)
    return pa_fs.S3FileSystem(retry_strategy=retries, region=region or None, **service)


@contextmanager
def _open_object(url: str, name: str = "") -> Iterator[tuple[pa_fs.FileSystem, str]]:
    """Yield the store of a URL and the path of an object in it; an error of the store becomes one line."""
    scheme, _, key = url.partition("://")
    endpoint, region = (next(filter(None, map(os.environ.get, names)), "") for names in _VARIABLES[scheme])
    try:
        if scheme == "s3" and not endpoint and not region:
            region = pa_fs.resolve_s3_region(key.split("/")[0])
        yield _system(scheme, endpoint, region), f"{key}/{name}" if name else key
    except OSError as error:  # the client has tried again before
        if error.filename or error.errno not in (None, errno.ENOENT):  # of a local file
            raise
        text = " ".join(str(error).split())
        code, (_, problem) = next(item for item in _PROBLEMS.items() if re.search(item[1][0], text))
        kind = HybridError if code.startswith("store") else InputError
        raise _refusal(url, code, f"{problem} ({text[:160]})" if code == "store-failed" else problem, kind) from None


def objects(url: str) -> States:
    """Return the states of the objects of a URL, without hidden ones.

    Raises:
        InputError: no such bucket, no access, or an object whose name could lead out of the folder.
    """
    with _open_object(url) as (store, key):
        info = store.get_file_info(key)
        if info.type == pa_fs.FileType.File:
            return {"": _state(info)}
        listed = store.get_file_info(pa_fs.FileSelector(key, allow_not_found=True, recursive=True))
        if not listed and store.get_file_info(key.split("/")[0]).type == pa_fs.FileType.NotFound:
            raise _refusal(url, "no-such-bucket", _PROBLEMS["no-such-bucket"][1])
    states = {info.path[len(key) + 1 :]: _state(info) for info in listed if info.type == pa_fs.FileType.File}
    states.pop("", None)  # the mark of the folder
    for name in states:
        refuse_unsafe_name(name, url)
    folders = {str(folder) for name in states for folder in PurePosixPath(name).parents}
    marks = {name for name in folders & states.keys() if not states[name][0]}
    return {name: state for name, state in states.items() if name not in marks and not _is_hidden(name)}


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _state(info: pa_fs.FileInfo) -> list[int]:
    return [info.size, info.mtime_ns // _SECOND * _SECOND]  # some stores round the time of a single object to seconds


def _states_of_copies(copy: Path) -> States:
    paths = (path for path in (copy, *copy.rglob("*")) if path.is_file())
    states = {path.as_posix()[len(copy.as_posix()) + 1 :]: path.stat() for path in paths}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in states.items() if not _is_hidden(name)}


def _mark(path: Path, state: list[int]) -> None:
    """Give a copy the time of its object."""
    os.utime(path, ns=(state[1], state[1]))


def _in_order(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return files, and the manifests that are copied after them, that of the folder last."""
    manifests = {name for name in names if PurePosixPath(name).name == MANIFEST}
    return sorted(set(names) - manifests), sorted(manifests, key=lambda name: (-name.count("/"), name))


def _transfer(what: str, call: Callable[[str], None], names: list[str]) -> None:
    """Call a function for names, some at a time."""
    with console.progress(what, len(names), "files") as advance, ThreadPool(AT_ONCE) as pool:
        for _ in pool.map(call, names):
            advance(1)


# ----------------------------------------------------------------------------------------------------------- downloads


def fetch(url: str) -> None:
    """Download an object, a folder of objects, or those that a pattern matches; unchanged ones are kept.

    Raises:
        InputError: no such object, or the finished output of a command that is not uploaded.
    """
    _refuse_pending(copy_of(url))
    folder, _, pattern = url.rpartition("/")
    if states := objects(url):
        _copy(url, states)
        return
    found = {name.split("/")[0] for name in objects(folder)} if has_magic(pattern) else ()
    names = sorted(fnmatch.filter(found, pattern))
    if not names:
        raise _refusal(url, "no-such-object", "no such object or folder")
    for path in copy_of(folder).glob("[!.]*"):
        if fnmatch.fnmatch(path.name, pattern) and path.name not in names:  # deleted in the store
            _refuse_pending(path)
            disk.remove(path)
    for name in names:
        fetch(f"{folder}/{name}")


def _copy(url: str, states: States) -> None:
    """Make the copy of a URL equal to its objects; until it is, it has no manifest.

    Raises:
        HybridError: objects changed meanwhile, or the store failed.
    """
    copy, what = copy_of(url), f"download {url}"
    copy.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(
        cache_folder() / f".{_bucket(url).replace('://', '.')}.lock"
    ):  # the processes of a machine share the cache
        copies = _states_of_copies(copy)
        missing = {name for name, state in states.items() if copies.get(name) != state}
        stale = copies.keys() - states.keys()
        if not missing and not stale:
            return
        advice = "set HYBRID_CACHE to a folder on another disk"
        console.forecast(sum(states[name][0] for name in missing), what, advice, files.scratch_path(copy))
        newest = max((states[name][1] for name in missing), default=0)
        time.sleep(min(max(newest + _SECOND - time.time_ns(), 0), _SECOND) / _SECOND)  # later versions have other times
        _, manifests = _in_order(copies)
        for name in {*stale, *manifests}:
            disk.remove(copy / name)
        for folder in sorted((path for path in (copy, *copy.rglob("*")) if path.is_dir()), reverse=True):
            with suppress(OSError):  # not empty
                folder.rmdir()
        first, last = _in_order(missing | (states.keys() & set(manifests)))
        get = partial(get_object, url, states)
        _transfer(what, get, first)
        for name in last:
            get(name)
        if states and objects(url) != states:
            for name in last or first:
                disk.remove(copy / name)
            raise _refusal(url, "input-changed", "changed while it was downloaded; repeat the command", HybridError)


def get_object(url: str, states: States, name: str) -> None:
    """Download an object below a URL; its copy gets its time."""
    path = copy_of(url) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as scratch:
        with (
            disk.create(scratch) as file,
            _open_object(url, name) as (store, key),
            store.open_input_stream(key, compression=None) as source,
        ):
            shutil.copyfileobj(source, file, _BLOCK)
        _mark(scratch, states[name])


def _refuse_pending(copy: Path) -> None:
    """Refuse to replace the copy of an output that is not uploaded, and is around `copy` or in it."""
    inside = (path.with_name(path.name[1 : -len(".upload")]) for path in copy.rglob(".*.upload"))
    for output in (copy, *(folder for folder in copy.parents if cache_folder() in folder.parents), *inside):
        if _is_pending(output):
            problem = f"the finished output is not uploaded; repeat the command that writes it, or remove {output}"
            raise _refusal(_url_of(output), "unfinished-upload", problem)


def _note_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.upload")


def _is_pending(output: Path) -> bool:
    """Return whether the copy of an output differs from the objects that its note names."""
    note = _note_of(output)
    return note.is_file() and output.exists() and _states_of_copies(output) != read_object(note)


# ------------------------------------------------------------------------------------------------------------- uploads


@contextmanager
def uploading(url: str, settings: Settings) -> Iterator[None]:
    """Lock the output of a command in a store, on this machine; upload it if the block succeeds.

    Args:
        url: its URL.
        settings: settings of the command.

    Raises:
        InputError: the folder is no output of hybrid.
        HybridError: another process writes the output, or has written it since this copy.
    """
    if os.environ.get("WORLD_SIZE", "1") != os.environ.get("LOCAL_WORLD_SIZE", "1"):
        problem = "the processes of several machines need a folder that all of them read"
        raise _refusal(f"--output {url}", "output-not-shared", problem)
    copy, note, done = copy_of(url), _note_of(copy_of(url)), settings.command in _ENDS
    leads = os.environ.get("RANK", "0") == "0"  # of the processes of a training
    note.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{note}.lock", blocking=False, thread_local=False)
    try:
        if leads:
            lock.acquire()
    except Timeout:
        problem = "another process of this machine writes it; wait for it, or stop it"
        raise _refusal(url, "output-in-use", problem, HybridError) from None
    try:
        changes = partial(_changes, url, _begin(url, settings, leads), bool(getattr(settings, "overwrite", False)))
        if _is_pending(copy):
            changes()
        try:
            yield
            done = True
        finally:
            if leads and done and _is_pending(copy):
                publish(url, changes)
            if leads and (done or not _is_pending(copy)):
                disk.remove(note)
    finally:
        lock.release()


def _begin(url: str, settings: Settings, leads: bool) -> States:
    """Bring the copy to the state of the store, so that the checks of a local output apply; return and note it."""
    copy, note = copy_of(url), _note_of(copy_of(url))
    stored = objects(url)
    if _is_pending(copy):
        return read_object(note)
    _refuse_pending(copy)
    if stored and not {"", MANIFEST} & stored.keys() and settings.command not in (*_FOLDERS, *_ENDS):
        problem = f"has no {MANIFEST}: an unfinished upload, or no artifact; remove it, or name another output"
        raise _refusal(url, "foreign-folder", problem)
    _copy(url, stored)
    if leads:
        with files.replacing(note) as scratch:
            disk.write_text(scratch, json.dumps(stored))
    return stored


def _changes(url: str, noted: States, overwrite: bool) -> tuple[set[str], set[str]]:
    """Return the names of the files to upload, and of the objects to remove.

    Raises:
        HybridError: another process has written objects since they were noted, and may not be overwritten.
    """
    stored, copy = objects(url), copy_of(url)
    names = _states_of_copies(copy).keys()
    missing = {name for name in names if not _is_stored(url, name, stored.get(name))}
    kept = names - missing
    if not overwrite and any(state != noted.get(name) for name, state in stored.items() if name not in kept):
        problem = f"another process has written it since; pass --overwrite to replace it, or remove {copy}"
        raise _refusal(url, "output-changed", problem, HybridError)
    return missing, stored.keys() - names


def publish(url: str, changes: Callable[[], tuple[set[str], set[str]]]) -> None:
    """Upload files, then manifests, that of the folder last, if no other process has written meanwhile."""
    missing, obsolete = changes()
    if not missing and not obsolete:
        return
    copy = copy_of(url)
    first, last = _in_order({*missing, *(_states_of_copies(copy).keys() & {MANIFEST})})
    for name in objects(url).keys() & {*last, *obsolete}:
        with _open_object(url, name) as (store, key):
            store.delete_file(key)
    _transfer(f"upload {url}", partial(put, url), first)
    if objects(url) != {name: state for name, state in _states_of_copies(copy).items() if name not in last}:
        problem = "another process wrote it during the upload, so nothing was published; repeat the command"
        raise _refusal(url, "output-changed", problem, HybridError)
    for name in last:
        put(url, name)
    text = f"uploaded to {url}: {console.counted(file=len(missing))}"
    console.note(text, code="uploaded", url=url, count=len(missing))


def _is_stored(url: str, name: str, state: list[int] | None) -> bool:
    """Return whether an object of a state has the bytes of its copy, which then gets its time."""
    path = copy_of(url) / name
    status = path.stat()
    if state is None or status.st_size != state[0]:
        return False
    if status.st_mtime_ns != state[1]:
        with (
            opened(path) as own,
            _open_object(url, name) as (store, key),
            store.open_input_stream(key, compression=None) as other,
        ):
            while block := other.read(_BLOCK):
                if block != own.read(len(block)):
                    return False
    _mark(path, state)
    return True


def put(url: str, name: str) -> None:
    """Upload a file, which gets the time of the object; an object of a part of it is removed."""
    path = copy_of(url) / name
    with opened(path) as source, _open_object(url, name) as (store, key):
        try:
            with store.open_output_stream(key, compression=None) as target:
                shutil.copyfileobj(source, target, _BLOCK)
        except BaseException:  # the stream was closed
            with suppress(OSError):
                store.delete_file(key)
            raise
        _mark(path, _state(store.get_file_info(key)))
