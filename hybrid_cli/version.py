"""The version of the package, which manifests record, and the order of versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version

__version__ = "0.3.0.dev0"


def parse_version(version: object) -> Version | None:
    """Return a version that can be compared with others; None for other texts and values."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(str(version))
    except InvalidVersion:
        return None


def is_later(version: object, other: object = __version__) -> bool:
    """Return whether a version is later than another one; unknown versions are not."""
    first, second = parse_version(version), parse_version(other)
    return first is not None and second is not None and first > second
