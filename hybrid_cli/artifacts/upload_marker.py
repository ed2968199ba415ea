"""The marker of an unfinished upload: it names the process that writes, so that a second writer is refused.

pyarrow has no conditional put, so a marker is not a lock. Its process reads it again before each file and before the
manifest; a process whose marker was replaced stops and publishes nothing.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from hybrid_cli.artifacts import store
from hybrid_cli.artifacts.manifest import MANIFEST
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.json_files import parse_json

MARKER = ".upload.json"
HOURS = 24  # after which an upload counts as interrupted
_WRITER = "writer"  # key in the marker, next to those of the manifest


@dataclass(frozen=True)
class Marker:
    """The content of a marker.

    Attributes:
        manifest: the manifest of the folder that is uploaded.
        process: number of the process that uploads; 0 if the marker does not name it.
        host: its host.
        token: differs between all uploads.
        since: start of the upload, in nanoseconds of the clock of the store; older objects are not part of it.
        written: time of the marker; later than `since` if a process completes an interrupted upload.
    """

    manifest: dict[str, Any]
    process: int
    host: str
    token: str
    since: int = 0
    written: int = 0

    @classmethod
    def read(cls, url: str, found: Mapping[str, Any]) -> Marker | None:
        """Return the marker among the objects of an output; None if there is none, or if its upload is complete.

        Raises:
            InputError: the object is no marker.
        """
        if MARKER not in found:
            return None
        content = parse_json(b"".join(store.blocks(f"{url}/{MARKER}")), f"{url}/{MARKER}")
        if not isinstance(content, dict) or not isinstance(content.get("files"), list):
            raise InputError(f"{url}/{MARKER}: is not the marker of an upload; move it, or name another output")
        writer = content.pop(_WRITER, {})
        if MANIFEST in found and content == parse_json(b"".join(store.blocks(f"{url}/{MANIFEST}")), url):
            return None
        written = found[MARKER].mtime_ns
        process, host, token = writer.get("process", 0), writer.get("host", ""), writer.get("token", "")
        return cls(content, process, host, token, writer.get("since") or written, written)

    @classmethod
    def put(cls, url: str, manifest: dict[str, Any], since: int = 0) -> Marker:
        """Store a marker of this process.

        Args:
            url: the output.
            manifest: its manifest.
            since: start of the interrupted upload that this one completes.
        """
        made = cls(manifest, os.getpid(), socket.gethostname(), uuid4().hex, since)
        store.write(made._content(), f"{url}/{MARKER}")
        return made

    def _content(self) -> bytes:
        writer = {"process": self.process, "host": self.host, "token": self.token, "since": self.since}
        return json.dumps({**self.manifest, _WRITER: writer}).encode()

    def refuse_second_writer(self, url: str, overwrite: bool, resumes: bool) -> None:
        """Refuse to write while the process of this marker may be writing.

        Args:
            url: the output.
            overwrite: replace the marker of a process on another host.
            resumes: the caller has the same output, so that it completes the upload.

        Raises:
            HybridError: the process is running, or is on another host and may be.
        """
        if self.process == 0 or time.time() - self.written / 1e9 > HOURS * 3600:
            return
        writer = f"{url}: process {self.process} on {self.host} is uploading to it"
        advice = "repeat the command when that process has ended"
        if self.host == socket.gethostname():
            if self.process != os.getpid() and _is_running(self.process):
                raise HybridError(f"{writer}; {advice}")
        elif not (overwrite or resumes):
            raise HybridError(f"{writer}; {advice}, or pass --overwrite if that upload was interrupted")

    def check_own(self, url: str) -> None:
        """Check that no other process has replaced this marker.

        Raises:
            HybridError: another process writes the same output, or has written it.
        """
        found = store.objects(f"{url}/{MARKER}")
        if not found or b"".join(store.blocks(f"{url}/{MARKER}")) != self._content():
            other = None
            with suppress(InputError):  # replaced while it was read
                other = Marker.read(url, {MARKER: found[""]}) if found else None
            writer = f"process {other.process} on {other.host}" if other and other.process else "another process"
            raise HybridError(
                f"{url}: {writer} took over this output during the upload, so this one stopped and published nothing; "
                "repeat the command when the other has ended, or name another output"
            )


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True
