"""The details of a command that `--verbose` prints and `--log-file` stores."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Iterator

from hybrid_cli import console
from hybrid_cli.settings import Settings
from hybrid_cli.settings.conversion import plain
from hybrid_cli.version import __version__


def before(settings: Settings) -> Iterator[str]:
    """Yield the versions and the value of every option that applies."""
    yield f"hybrid {__version__}, Python {platform.python_version()}, {platform.platform()}"
    for name, value in settings.values().items():
        if name in settings.declared() and settings.applies(name):
            yield f"{settings.command}: {name} = {plain(value)}{'' if name in settings.given else ' (default)'}"


def after(seconds: float) -> str:
    """Return the time and the peak memory of this process."""
    took = f"done in {console.duration(seconds)}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return f"{took}, peak memory {console.size(peak * (1 if sys.platform == 'darwin' else 1024))}"
