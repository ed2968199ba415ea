"""A file that a stage changes in place, and its object in a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hybrid_cli.artifacts.mirror import url_of
from hybrid_cli.errors import HybridError


class StoredFile:
    """A file in the mirror that has the content of its object; a path outside of the mirror has no object.

    Args:
        path: the file; the object is downloaded, and without one, the file is removed.

    Raises:
        HybridError: the store does not answer.
    """

    def __init__(self, path: Path):
        self.path, self.url = path, url_of(path)
        if self.url is not None:
            from hybrid_cli.artifacts import download

            download.fetch(self.url)
            self._known = self._found()

    def upload(self) -> None:
        """Replace the object by the file.

        Raises:
            HybridError: another process replaced the object, or the store does not answer.
        """
        if self.url is None:
            return
        from hybrid_cli.artifacts import store

        if store.state(self._found()) != store.state(self._known):
            raise HybridError(
                f"{self.url}: another process changed it; repeat the command to continue with its content"
            )
        store.put(self.path, self.url)
        self._known = self._found()
        if self._known is not None:  # not downloaded by the next command
            os.utime(self.path, ns=(self._known.mtime_ns, self._known.mtime_ns))

    def _found(self) -> Any:
        """Return size and time of the object; None if there is none."""
        from hybrid_cli.artifacts import store

        assert self.url is not None
        return store.objects(self.url).get("")
