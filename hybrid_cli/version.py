"""The version of the package, which manifests record, and the order of versions."""

from __future__ import annotations

import re

__version__ = "0.3.0.dev0"


_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(dev|a|b|rc)(\d+))?")
_STAGES = ("dev", "a", "b", "rc", None)


def parse_version(version: object) -> tuple[int, ...] | None:
    """Return the numbers by which versions of this package are ordered; None for other texts and values."""
    match = _VERSION.fullmatch(str(version))
    return match and (*(int(number or 0) for number in match.groups()[:3]), _STAGES.index(match[4]), int(match[5] or 0))


def is_later(version: object, other: object = __version__) -> bool:
    """Return whether a version is later than another one; unknown versions are not."""
    first, second = parse_version(version), parse_version(other)
    return first is not None and second is not None and first > second
