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
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pyarrow.fs as pa_fs
from filelock import FileLock, Timeout
from fsspec.implementations.arrow import ArrowFSWrapper

from hybrid_cli import console
from hybrid_cli.artifacts.manifest import find_manifest
from hybrid_cli.cluster import inputs_on_machine
from hybrid_cli.errors import DamageError, HybridError, InputError
from hybrid_cli.inputs.files import opened, refuse_unsafe_name
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.settings import Settings
from hybrid_cli.settings.conversion import URL, has_url
from hybrid_cli.storage import MANIFEST, Kind, disk, files
from hybrid_cli.threads import ThreadPool

S = TypeVar("S", bound=Settings)
Objects = Mapping[str, Any]  # name relative to a URL, empty for the object itself -> its pyarrow.fs.FileInfo
States = dict[str, list[int]]  # name -> size and time of an object, or of its copy

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
    given = {name: getattr(settings, name) for name in settings.given if has_url(getattr(settings, name))}
    before, uploads, done = inputs_on_machine.get(), list[Upload](), False
    try:
        if "output" in given:
            output, shared = _url_in(given["output"]), os.environ.get("LOCAL_WORLD_SIZE", "1")
            if os.environ.get("WORLD_SIZE", "1") != shared:
                problem = "the processes of several machines need a folder that all of them read"
                raise _refusal(f"--output {output}", "output-not-shared", problem)
            for end in _ENDS.get(settings.command, ("",)):
                uploads.append(Upload(f"{output}{end}", settings))
        urls = _download([(name, url) for name, value in given.items() if name != "output" for url in _urls(value)])
        inputs_on_machine.set(partial(fetch_all, str(root()), urls))
        yield settings.changed(**{name: _local_value(value) for name, value in given.items()})
        done = True
    except DamageError as error:
        if str(root()) in str(error):
            error.args = (f"{error} (to download a copy again, remove it)",)
        raise
    finally:
        inputs_on_machine.set(before)
        with ExitStack() as ends:  # all of them, also after an error of one
            for upload in uploads:
                ends.callback(upload.end, done or settings.command in _ENDS)


def fetch_all(folder: str, urls: Iterable[str]) -> None:
    """Download inputs into the cache `folder`, in a process of a cluster."""
    os.environ["HYBRID_CACHE"] = folder
    for url in urls:
        fetch(url)


def local_copies(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return paths, with those of their downloaded copies in place of URLs; for callers without settings."""
    named = [str(path) if isinstance(path, str) else Path(path) for path in paths]
    _download([("", url) for path in named for url in _urls(path)])
    return [Path(_local_value(path)) for path in named]


def _download(named: list[tuple[str, str]]) -> list[str]:
    """Download the URLs of options, and the inputs that they record and that stages need; return all URLs."""
    for _, url in named:
        fetch(url)
    buckets = {_bucket(url) for _, url in named}
    recorded = {url_of_input for option, url in named for url_of_input in _input_urls(option, url, buckets)}
    inputs = [url for url in sorted(recorded) if objects(url)]
    for url in inputs:
        fetch(url)
    return [*(url for _, url in named), *inputs]


def _input_urls(option: str, url: str, buckets: set[str]) -> Iterator[str]:
    """Yield the URLs of inputs that the artifacts at a URL record by relative paths, in the named buckets."""
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
            input_url = _url_of(source) if source is not None and source.is_relative_to(root()) else ""
            if _bucket(input_url) in buckets - {input_url}:  # never a whole bucket
                yield input_url


# ---------------------------------------------------------------------------------------------------------------- URLs


def root() -> Path:
    """Return the folder of the cache: `HYBRID_CACHE`, else `hybrid` in the user's cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.realpath(Path(os.environ.get("HYBRID_CACHE") or f"{caches}/hybrid").expanduser()))


def copy_of(url: str) -> Path:
    """Return the path of the copy of an object, or of a folder of objects.

    Raises:
        InputError: the URL has a part that is no name of a file, such as `..`.
    """
    scheme, _, key = url.partition("://")
    refuse_unsafe_name(key, url)
    return root() / scheme / key


def _url_of(copy: Path) -> str:
    scheme, *key = copy.relative_to(root()).parts or ("",)
    return f"{scheme}://{'/'.join(key)}"


def _bucket(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _urls(value: Any) -> Iterator[str]:
    """Yield the URLs in the value of an option."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
    for text in filter(has_url, values):
        yield re.sub(r":\d+$", "", _url_in(text))  # `run:URL:COUNT`


def _url_in(text: object) -> str:
    """Return the URL in a text such as `run:s3://BUCKET/KEY`, also if a Path has lost its second slash."""
    return URL.sub(r"\g<scheme>://\g<key>", str(text)).rstrip("/")


def _local_value(value: Any) -> Any:
    """Return the value of an option with paths of copies in place of URLs."""
    if isinstance(value, Mapping):
        return {name: _local_value(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_local_value, value))
    match = URL.fullmatch(str(value)) if has_url(value) else None
    return type(value)(f"{match['before'] or ''}{copy_of(_url_in(value))}") if match else value


# --------------------------------------------------------------------------------------------------------------- store


@cache
def _system(scheme: str, endpoint: str, region: str) -> Any:
    options: dict[str, Any] = {"retry_time_limit": PATIENCE, "anonymous": bool(endpoint)}  # an emulator has no accounts
    if scheme == "s3":
        protocol, _, host = endpoint.rpartition("://")
        options = {"retry_strategy": pa_fs.AwsStandardS3RetryStrategy(max_attempts=S3_ATTEMPTS)}
        options |= {"region": region} if region else {}
        options |= {"endpoint_override": host.rstrip("/"), "scheme": protocol or "https"} if host else {}
    system = (pa_fs.S3FileSystem if scheme == "s3" else pa_fs.GcsFileSystem)(**options)
    return ArrowFSWrapper(system, skip_instance_cache=True)


@contextmanager
def _open_object(url: str, name: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the store of a URL and the path of an object in it; an error of the store becomes one line."""
    scheme, _, key = url.partition("://")
    variables = ([os.environ[name] for name in names if os.environ.get(name)] for names in _VARIABLES[scheme])
    endpoint, region = (next(iter(names), "") for names in variables)
    try:
        if scheme == "s3" and not endpoint and not region:
            region = pa_fs.resolve_s3_region(key.split("/")[0])
        yield _system(scheme, endpoint, region), f"{key}/{name}" if name else key
    except OSError as error:  # the client has tried again before
        if error.filename or error.errno not in (None, errno.ENOENT):  # of a local file
            raise
        text = " ".join(str(error).split())
        for code, (words, problem) in _PROBLEMS.items():
            if re.search(words, text):
                kind = HybridError if code == "store-unreachable" else InputError
                raise _refusal(url, code, problem, kind) from None
        problem = f"the object store failed ({text[:160]}); repeat the command to resume"
        raise _refusal(url, "store-failed", problem, HybridError) from None


def objects(url: str) -> dict[str, Any]:
    """Return the objects of a URL, without hidden ones; see `Objects`.

    pyarrow lists them: the wrapper leaves out names with empty parts, and has no times in nanoseconds.

    Raises:
        InputError: no such bucket, no access, or an object whose name could lead out of the folder.
    """
    with _open_object(url) as (store, key):
        if store.fs.get_file_info(key).type == pa_fs.FileType.File:
            return {"": store.fs.get_file_info(key)}
        listed = store.fs.get_file_info(pa_fs.FileSelector(key, allow_not_found=True, recursive=True))
        if not listed and store.fs.get_file_info(key.split("/")[0]).type == pa_fs.FileType.NotFound:
            raise _refusal(url, "no-such-bucket", _PROBLEMS["no-such-bucket"][1])
    by_name = {info.path[len(key) + 1 :]: info for info in listed if info.type == pa_fs.FileType.File}
    by_name.pop("", None)  # the mark of the folder
    for name in by_name:
        refuse_unsafe_name(name, url)
    folders = {str(folder) for name in by_name for folder in PurePosixPath(name).parents}
    if both := next((name for name in folders & by_name.keys() if by_name[name].size), None):
        raise _refusal(url, "object-and-folder", f"{both} is an object and a folder; rename one of them")
    return {name: info for name, info in by_name.items() if name not in folders and not _is_hidden(name)}


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _states(infos: Objects) -> States:
    """Return sizes and times of objects; some stores round the time of a single object to seconds."""
    return {name: [info.size, info.mtime_ns // _SECOND * _SECOND] for name, info in infos.items()}


def _states_of_copies(copy: Path) -> States:
    paths = [path for path in (copy, *copy.rglob("*")) if path.is_file()]
    names = {path.relative_to(copy).as_posix() if path != copy else "": path.stat() for path in paths}
    return {name: [status.st_size, status.st_mtime_ns] for name, status in names.items() if not _is_hidden(name)}


def _mark(path: Path, state: list[int]) -> None:
    """Give a file the time of its object; one that another artifact shares is copied first."""
    if path.stat().st_nlink > 1:
        with files.replacing(path) as scratch:
            disk.copy(path, scratch)
    os.utime(path, ns=(state[1], state[1]))


def _transfer(what: str, call: Callable[[str], None], names: Iterable[str]) -> None:
    """Call a function for names, some at a time."""
    waiting = list(names)
    with console.progress(what, len(waiting), "files") as advance, ThreadPool(AT_ONCE) as pool:
        for _ in pool.map(call, waiting):
            advance(1)


# ----------------------------------------------------------------------------------------------------------- downloads


def fetch(url: str) -> None:
    """Download an object, a folder of objects, or those that a pattern matches; unchanged ones are kept.

    Raises:
        InputError: no such object, or the finished output of a command that is not uploaded.
    """
    _refuse_pending(copy_of(url))
    matches, (folder, _, pattern) = {url: objects(url)}, url.rpartition("/")
    if not matches[url] and any(letter in pattern for letter in "*?["):
        names = {path.name for path in copy_of(folder).glob("[!.]*")}  # some were deleted in the store
        names |= {name.split("/")[0] for name in objects(folder)}
        matches = {f"{folder}/{name}": objects(f"{folder}/{name}") for name in names if fnmatchcase(name, pattern)}
    if not any(matches.values()):
        raise _refusal(url, "no-such-object", "no such object or folder")
    for matched, infos in sorted(matches.items()):
        _refuse_pending(copy_of(matched))
        _copy(matched, infos)


def _copy(url: str, infos: Objects) -> None:
    """Make the copy of a URL equal to its objects; until it is, it has no manifest.

    Raises:
        HybridError: objects changed meanwhile, or the store failed.
    """
    copy, states = copy_of(url), _states(infos)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root() / f".{_bucket(url).replace('://', '.')}.lock"):  # the processes of a machine share the cache
        copies = _states_of_copies(copy)
        missing = {name for name, state in states.items() if copies.get(name) != state}
        stale = copies.keys() - states.keys()
        if not missing and not stale:
            return
        size, advice = sum(infos[name].size for name in missing), "set HYBRID_CACHE to a folder on another disk"
        console.forecast(size, f"download {url}", advice, files.scratch_path(copy))
        newest = max((states[name][1] for name in missing), default=0)
        time.sleep(min(max(newest + _SECOND - time.time_ns(), 0), _SECOND) / _SECOND)  # later versions have other times
        for name in {*stale, *(copies.keys() & {MANIFEST})}:
            disk.remove(copy / name)
        for folder in sorted((path for path in (copy, *copy.rglob("*")) if path.is_dir()), reverse=True):
            with suppress(OSError):  # not empty
                folder.rmdir()
        get = partial(get_object, url, states)
        _transfer(f"download {url}", get, sorted(missing - {MANIFEST}))
        if MANIFEST in infos:
            get(MANIFEST)
        if infos and _states(objects(url)) != states:
            disk.remove(copy / MANIFEST if copy.is_dir() else copy)
            raise _refusal(url, "input-changed", "changed while it was downloaded; repeat the command", HybridError)


def get_object(url: str, states: States, name: str) -> None:
    """Download an object below a URL; its copy gets its time."""
    path = copy_of(url) / name
    for above in path.parents:
        if above.is_file():  # the copy of an object that was there before
            disk.remove(above)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        disk.remove(path)
    with files.replacing(path) as scratch:
        with disk.create(scratch) as file, _open_object(url, name) as (store, key):
            store.get_file(key, file)
        _mark(scratch, states[name])


def _refuse_pending(copy: Path) -> None:
    """Refuse to replace the copy of an output that is not uploaded, and is around `copy` or in it."""
    inside = (path.with_name(path.name[1 : -len(".upload")]) for path in copy.rglob(".*.upload"))
    for output in (copy, *(folder for folder in copy.parents if root() in folder.parents), *inside):
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


class Upload:
    """The output of a stage in a store, locked on this machine until `end`.

    Args:
        url: its URL.
        settings: settings of the command.

    Raises:
        HybridError: another process writes the output, or has written it since this copy.
    """

    def __init__(self, url: str, settings: Settings):
        self.url, self.copy, self.note = url, copy_of(url), _note_of(copy_of(url))
        self.overwrite = bool(getattr(settings, "overwrite", False))
        self.leads = os.environ.get("RANK", "0") == "0"  # of the processes of a training
        self.note.parent.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(f"{self.note}.lock", blocking=False, thread_local=False)
        try:
            if self.leads:
                self.lock.acquire()
            self._begin(settings.command)
        except Timeout:
            problem = "another process of this machine writes it; wait for it, or stop it"
            raise _refusal(url, "output-in-use", problem, HybridError) from None
        except BaseException:
            self.lock.release()
            raise

    def _begin(self, command: str) -> None:
        """Bring the copy to the state of the store, so that the checks of a local output apply, and note it."""
        before = objects(self.url)
        self.noted = _states(before)
        if _is_pending(self.copy):
            self.noted = read_object(self.note)
            self._refuse_changes(before)
            return
        _refuse_pending(self.copy)
        if before and not {"", MANIFEST} & before.keys() and command not in (*_FOLDERS, *_ENDS):
            problem = f"has no {MANIFEST}: an unfinished upload, or no artifact; remove it, or name another output"
            raise _refusal(self.url, "foreign-folder", problem)
        _copy(self.url, before)
        if self.leads:
            with files.replacing(self.note) as scratch:
                disk.write_text(scratch, json.dumps(self.noted))

    def end(self, upload: bool) -> None:
        """Upload the output if it has changed; without `upload`, it stays for a call of the same command.

        Raises:
            HybridError: another process writes the output, or has written it meanwhile.
        """
        try:
            if self.leads and upload and _is_pending(self.copy):
                self.publish()
            if self.leads and not _is_pending(self.copy):
                disk.remove(self.note)
        finally:
            self.lock.release()

    def publish(self) -> None:
        """Upload files, then manifests, that of the folder last, if no other process has written meanwhile."""
        stored, names = objects(self.url), list(_states_of_copies(self.copy))
        self._refuse_changes(stored)
        missing = [name for name in names if not self._holds(name, stored)]
        obsolete = stored.keys() - set(names)
        if missing or obsolete:
            last = {name for name in missing if PurePosixPath(name).name == MANIFEST} | ({MANIFEST} & set(names))
            for name in stored.keys() & {*last, *obsolete}:
                with _open_object(self.url, name) as (store, key):
                    store.rm_file(key)
            _transfer(f"upload {self.url}", self.put, (name for name in missing if name not in last))
            copies = _states_of_copies(self.copy)
            if _states(objects(self.url)) != {name: copies[name] for name in names if name not in last}:
                problem = "another process wrote it during the upload, so nothing was published; repeat the command"
                raise _refusal(self.url, "output-changed", problem, HybridError)
            for name in sorted(last, key=lambda name: (-name.count("/"), name)):
                self.put(name)
            text = f"uploaded to {self.url}: {console.counted(file=len(missing))}"
            console.note(text, code="uploaded", url=self.url, count=len(missing))
        with files.replacing(self.note) as scratch:
            disk.write_text(scratch, json.dumps(_states_of_copies(self.copy)))

    def _refuse_changes(self, infos: Objects) -> None:
        """Refuse to replace what another process has written since the note; `overwrite` allows it."""
        changed = [name for name, state in _states(infos).items() if state != self.noted.get(name)]
        if not self.overwrite and any(not self._holds(name, infos) for name in changed):
            problem = f"another process has written it since; pass --overwrite to replace it, or remove {self.copy}"
            raise _refusal(self.url, "output-changed", problem, HybridError)

    def _holds(self, name: str, infos: Objects) -> bool:
        """Return whether an object has the bytes of its copy, which then gets the time of the object."""
        path, state = self.copy / name, _states(infos).get(name)
        if state is None or not path.is_file() or path.stat().st_size != state[0]:
            return False
        if path.stat().st_nlink > 1 or path.stat().st_mtime_ns != state[1]:
            with (
                opened(path) as own,
                _open_object(self.url, name) as (store, key),
                store.fs.open_input_stream(key, compression=None) as other,
            ):
                while block := other.read(_BLOCK):
                    if block != own.read(len(block)):
                        return False
        _mark(path, state)
        return True

    def put(self, name: str) -> None:
        """Upload a file, which gets the time of the object; an object of a part of it is removed."""
        with opened(self.copy / name) as source, _open_object(self.url, name) as (store, key):
            try:
                with store.fs.open_output_stream(key, compression=None) as target:
                    shutil.copyfileobj(source, target, _BLOCK)
            except BaseException:  # the stream was closed
                with suppress(OSError):
                    store.rm_file(key)
                raise
            _mark(self.copy / name, _states({name: store.fs.get_file_info(key)})[name])
