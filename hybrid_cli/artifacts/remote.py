"""Object storage: paths `s3://BUCKET/KEY` and `gs://BUCKET/KEY` are mirrored in a local folder while a stage runs.

Inputs are downloaded before the stage, and inputs that their manifests record when the stage asks for them; files with
the size and the time of the object are kept. The output is written in the mirror, with all guarantees of a local one,
and uploaded when the stage ends: a marker, the files, `manifest.json`. A folder without `manifest.json` is no artifact;
the same command completes the upload. A second writer of the same output is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from hybrid_cli import cluster, console
from hybrid_cli.artifacts import disk, files, layout, manifest, store, unsent
from hybrid_cli.artifacts.checks import existing_manifest
from hybrid_cli.artifacts.download import fetch, has_pattern, mirror_objects, transfer
from hybrid_cli.artifacts.manifest import MANIFEST
from hybrid_cli.artifacts.mirror import bucket, disk_of, place_of, root, shown_as_url, url_of
from hybrid_cli.artifacts.upload_marker import MARKER, Marker
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.input_files import read_bytes
from hybrid_cli.json_files import parse_json
from hybrid_cli.settings.conversion import URL, has_url
from hybrid_cli.settings.options import Settings

S = TypeVar("S", bound=Settings)

_UPLOADING = ("auto", "judge")  # upload parts of their output while they run
_FOREIGN_OUTPUTS = ("export", "inspect")  # whose output may be a folder without manifest
_ARTIFACTS = (
    "index",
    "dense",
    "model",
    "models",
    "run",
    "runs",
    "training_examples",
)  # options; a model may be foreign
_KNOWN_BY = (MANIFEST, MARKER, "config.json", layout.CONTRACT, layout.MODULES)
_COUNT = re.compile(r":\d+$")  # of `run:PATH:COUNT`


@contextmanager
def mirrored(settings: S) -> Iterator[S]:
    """Yield settings with local paths in place of URLs; upload the output if the block succeeds.

    Raises:
        InputError: no such bucket, no access, or a remote output that hybrid did not write.
        HybridError: the store does not answer, or fails during a transfer.
    """
    target = getattr(settings, "output", None)
    output = str(target) if has_url(target) and settings.command not in _UPLOADING else None
    if output is not None and os.environ.get("WORLD_SIZE", "1") != os.environ.get("LOCAL_WORLD_SIZE", "1"):
        raise InputError(
            f"--output {_spelled(output)}: the processes of several machines share the unfinished output; name a "
            "folder on a file system that all of them read"
        )
    given = {name: getattr(settings, name) for name in settings.given if has_url(getattr(settings, name))}
    inputs = [url for name, value in given.items() if name != "output" for url in _urls(value)]
    before = manifest.fetch_input, cluster.before_start, console.shown
    console.shown = shown_as_url
    try:
        for url in (url for name in _ARTIFACTS for url in _urls(given.get(name))):
            _refuse_other_folder(url, _KNOWN_BY, f"has no {MANIFEST} and no files of a model; name an artifact in it")
        if output is not None and settings.command not in _FOREIGN_OUTPUTS:
            wrong = "is a folder that hybrid did not write; remove it, or name another"
            _refuse_other_folder(_spelled(output), (MANIFEST, MARKER), wrong)
        fetch_all(str(root()), inputs)
        cluster.before_start = partial(fetch_all, str(root()), inputs)
        overwrite = bool(getattr(settings, "overwrite", False))
        upload = Upload.of(_spelled(output), overwrite) if output is not None else None
        yield settings.changed(**{name: _localized(value) for name, value in given.items()})
        if upload is not None and os.environ.get("RANK", "0") == "0":  # of the processes of a training
            upload.finish()
    except HybridError as error:
        error.args = (shown_as_url(_naming_the_disk(str(error))),)
        raise
    finally:
        manifest.fetch_input, cluster.before_start, console.shown = before


def _naming_the_disk(text: str) -> str:
    """Return a message with HYBRID_CACHE in place of a folder of the mirror without space for downloads or outputs."""
    folder = re.compile(
        rf"(not enough disk space: .*, and ){re.escape(str(root()))}(?:/.*)?( has .*); free space, or .*"
    )
    found = folder.fullmatch(text)
    if found is None:
        return text
    return f"{found[1]}{disk_of(root())}{found[2]}; free space there, or set HYBRID_CACHE to a folder on another disk"


def _refuse_other_folder(url: str, names: Sequence[str], problem: str) -> None:
    """Refuse, before a download, a folder of objects without any of these names; patterns are not checked.

    Raises:
        InputError: the folder is no artifact.
    """
    found = {} if has_pattern(url) else store.objects(url)
    if found and not {"", *names} & set(found):
        raise InputError(f"{url.rstrip('/')}: {problem}")


def fetch_all(folder: str, urls: Iterable[str]) -> None:
    """Download inputs into the mirror `folder`, in this process or in one of a cluster."""
    os.environ["HYBRID_CACHE"] = folder
    urls = list(urls)
    manifest.fetch_input = partial(_fetch_recorded, {bucket(url) for url in urls})
    for url in urls:
        fetch(url)


def local_copies(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return paths, with those of their downloaded copies in place of URLs; for callers without settings."""
    urls = {os.fspath(path): _spelled(os.fspath(path)) for path in paths if has_url(os.fspath(path))}
    fetch_all(str(root()), urls.values())
    return [place_of(urls[os.fspath(path)]) if os.fspath(path) in urls else Path(path) for path in paths]


def _fetch_recorded(buckets: Container[str], path: Path) -> None:
    """Download an input that a manifest in the mirror records, from the buckets of the given inputs.

    The manifest of an artifact that was copied to a bucket records a path that may name any other one.
    """
    url = url_of(path)
    if url is not None and bucket(url) in buckets:
        fetch(url)


def _urls(value: Any) -> Iterator[str]:
    """Yield the URLs in the value of an option."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    for each in value if isinstance(value, tuple) else (value,):
        if has_url(each):
            yield _COUNT.sub("", _spelled(str(each)))


def _spelled(text: str) -> str:
    """Return the URL in a text such as `run:s3://BUCKET/KEY`, also if a Path has lost its second slash."""
    found = URL.fullmatch(text)
    assert found is not None  # `has_url`
    return f"{found['scheme']}://{found['key']}"


def _localized(value: Any) -> Any:
    """Return the value of an option with paths in the mirror in place of URLs."""
    if isinstance(value, Mapping):
        return {name: _localized(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_localized, value))
    if not has_url(value):
        return value
    found = URL.fullmatch(str(value))
    assert found is not None
    return type(value)(f"{found['before'] or ''}{place_of(_spelled(str(value)))}")


# -------------------------------------------------------------------------------------------------------------- output


@dataclass
class Upload:
    """The output of a stage in the store.

    Attributes:
        url: its URL.
        place: its path in the mirror.
        replaced: names of the objects that it replaces.
        published: identity of the complete output in the mirror before the stage; None if the store has none.
        time: time of the output in the store before the stage; None if the store has none.
        overwrite: replace the output of another process.
    """

    url: str
    place: Path
    replaced: frozenset[str] = frozenset()
    published: int | None = None
    time: int | None = None
    overwrite: bool = False

    @classmethod
    def of(cls, url: str, overwrite: bool) -> Upload:
        """Bring the mirror to the state of the store, so that the checks of a local output apply.

        Raises:
            InputError: files that hybrid did not write, next to those of an unfinished upload.
            HybridError: another process is uploading to this output.
        """
        lock = root() / f".{bucket(url).partition('://')[2]}.output.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):  # the processes of a training call this at the same time
            return cls._of(url.rstrip("/"), overwrite)

    @classmethod
    def _of(cls, url: str, overwrite: bool) -> Upload:
        place = place_of(url)
        found = store.objects(url)
        marker = Marker.read(url, found)
        if marker is not None:
            resumes = marker.manifest in map(_manifest_of, (place, files.scratch_path(place)))
            marker.refuse_second_writer(url, overwrite, resumes)
        if marker is not None and MANIFEST not in found:
            known = frozenset(marker.manifest["files"])
            if foreign := sorted(found.keys() - known - {MARKER}):
                raise InputError(f"{url}: {foreign[0]} is not part of the unfinished upload; move it, or name another")
            _prepare(url, found, overwrite)
            return cls(url, place, known, overwrite=overwrite)
        _prepare(url, found, overwrite)
        if not found:
            return cls(url, place, overwrite=overwrite)
        return cls(url, place, frozenset(found) - {MARKER}, unsent.identity(place), _time(found), overwrite)

    def finish(self) -> None:
        """Upload the output, unless the stage found it up to date."""
        self._upload()
        unsent.forget(self.url)

    def _upload(self) -> None:
        if not self.place.exists():
            return
        if self.published == unsent.identity(self.place):
            found = store.objects(self.url)
            for name in {"", MANIFEST} & set(found):  # `open_output` touched it
                os.utime(self.place / name, ns=(found[name].mtime_ns, found[name].mtime_ns))
        elif self.place.is_file():
            self._checked(store.objects(self.url))
            transfer(f"upload {self.url}", [partial(store.put, self.place, self.url)])
            self._keep([""])
            console.note(f"uploaded to {self.url}")
        else:
            self._upload_folder()

    def _upload_folder(self) -> None:
        found = store.objects(self.url)
        names = manifest.file_names(self.place)
        made = _manifest_of(self.place)
        replaced, uploaded, marker = self.replaced, set[str](), None
        if made is not None:
            before = self._checked(found, made)
            replaced |= frozenset(before.manifest["files"]) if before is not None else frozenset()
            since = before.since if before is not None and before.manifest == made else 0
            uploaded = {name for name in names if since and self._is_uploaded(name, found, since)}
            marker = Marker.put(self.url, made, since)
        if MANIFEST in found:
            store.delete(f"{self.url}/{MANIFEST}")
        sent: dict[str, Any] = {name: found[name] for name in uploaded}
        missing = [name for name in names if name not in uploaded]
        transfer(f"upload {self.url}", [partial(self._send, name, marker, sent) for name in missing])
        for name in (found.keys() & replaced) - {*names, MANIFEST}:
            store.delete(f"{self.url}/{name}")
        if marker is not None:
            self._refuse_changes(sent)
            marker.check_own(self.url)
            store.put(self.place / MANIFEST, f"{self.url}/{MANIFEST}")
            store.delete(f"{self.url}/{MARKER}")
        self._keep([*names, MANIFEST])
        count = len(names) + (made is not None)
        rest = f"; {len(uploaded):,} of them by an interrupted call" if uploaded else ""
        console.note(f"uploaded to {self.url}: {console.counted(file=count)}{rest}")

    def _checked(self, found: Mapping[str, Any], made: dict[str, Any] | None = None) -> Marker | None:
        """Return the marker of an interrupted upload; refuse the output of a process that wrote during the stage."""
        marker = Marker.read(self.url, found)
        if marker is not None:
            marker.refuse_second_writer(self.url, self.overwrite, resumes=marker.manifest == made)
        if _time(found) not in (None, self.time) and not self.overwrite:
            raise HybridError(
                f"{self.url}: another process wrote this output while this command ran; name another output, or pass "
                "--overwrite to replace it"
            )
        return marker

    def _send(self, name: str, marker: Marker | None, sent: dict[str, Any]) -> None:
        """Upload a file, and note size and time of its object in `sent`."""
        if marker is not None:
            marker.check_own(self.url)
        store.put(self.place / name, f"{self.url}/{name}")
        sent[name] = store.objects(f"{self.url}/{name}").get("")

    def _refuse_changes(self, sent: Mapping[str, Any]) -> None:
        """Refuse to publish files that another process has replaced since this one uploaded them."""
        found = store.objects(self.url)
        for name, each in sorted(sent.items()):
            if store.state(each) != store.state(found.get(name)) or each is None:
                raise HybridError(
                    f"{self.url}: another process replaced {name} during the upload, so nothing was published; repeat "
                    "the command when no other process writes this output"
                )

    def _is_uploaded(self, name: str, found: Mapping[str, Any], since: int) -> bool:
        return name in found and (
            found[name].size == (self.place / name).stat().st_size and found[name].mtime_ns >= since
        )

    def _keep(self, names: Iterable[str]) -> None:
        """Give the files of the mirror the times of their objects, so that they are not downloaded.

        A file that an input shares has the time of the input's object, so it is copied.
        """
        found = store.objects(self.url)
        for name in names:
            if name in found:
                if (self.place / name).stat().st_nlink > 1:
                    with files.replacing(self.place / name) as scratch:
                        disk.copy(self.place / name, scratch)
                os.utime(self.place / name, ns=(found[name].mtime_ns, found[name].mtime_ns))


def _manifest_of(place: Path) -> dict[str, Any] | None:
    """Return the manifest of a folder in the mirror as it is stored; None if it has none."""
    file = place / MANIFEST
    content: dict[str, Any] | None = parse_json(read_bytes(file), file) if file.is_file() else None
    return content


def _time(found: Mapping[str, Any]) -> int | None:
    """Return the time of the complete output among the objects of a URL; None if there is none."""
    return next((int(found[name].mtime_ns) for name in (MANIFEST, "") if name in found), None)


def _prepare(url: str, found: Mapping[str, Any], overwrite: bool) -> None:
    """Bring an output in the mirror to the state of the store, and note it; one to upload is kept for an equal call.

    With a complete output in the store, or `overwrite`, it has the name of an unfinished one; else it keeps its own, so
    that another call does not discard it.
    """
    place, complete = place_of(url), bool({MANIFEST, ""} & set(found))
    waiting = unsent.is_unsent(url, found)
    if waiting and not complete and not overwrite and existing_manifest(place) is not None:
        return
    if waiting or not complete:
        unsent.set_aside(place)
    if found and (complete or MARKER not in found):
        mirror_objects(url, found)
    if os.environ.get("RANK", "0") == "0":  # it uploads
        unsent.note(url)
