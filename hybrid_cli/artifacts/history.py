"""Options of artifacts that other versions of hybrid wrote: an absent option has its default."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Any

from hybrid_cli.artifacts.manifest import Manifest
from hybrid_cli.settings import COMMANDS, Settings
from hybrid_cli.settings.conversion import json_value
from hybrid_cli.settings.options import REQUIRED, By
from hybrid_cli.version import is_later


def same_call(first: Manifest, second: Manifest) -> bool:
    """Test whether two calls of a stage have equal options and inputs, in whatever versions of hybrid."""
    return add_missing_options(first, second).key() == add_missing_options(second, first).key()


def add_missing_options(manifest: Manifest, other: Manifest) -> Manifest:
    """Return a manifest with the recorded options of `other` that it lacks, see `options_of`."""
    return replace(manifest, options=options_of(manifest, other.options)) if manifest.stage == other.stage else manifest


def options_of(manifest: Manifest, names: Collection[str]) -> dict[str, Any]:
    """Return the options of a manifest, and of `names` those that it lacks, with their defaults."""
    options = dict(manifest.options)
    if (kind := _settings_of(manifest.stage)) is None:
        return options
    for name in sorted(set(names) - set(options)):
        declared = kind.declared().get(name)
        if declared is not None and declared.recorded and declared.default is not REQUIRED:
            default = declared.default
            options[name] = json_value(default.of(options.get(default.other)) if isinstance(default, By) else default)
    return options


def unknown_options(existing: Manifest) -> list[str]:
    """Return the options of an artifact of a newer hybrid that this version does not have."""
    kind = _settings_of(existing.stage)
    if kind is None or not is_later(_version(existing)):
        return []
    return sorted(set(existing.options) - set(kind.declared()))


def _version(manifest: Manifest) -> str:
    """Return the version of hybrid that wrote an artifact; empty if it is unknown."""
    return manifest.versions.get("hybrid", "")


@cache
def _commands() -> dict[str, type[Settings]]:
    return {kind.command: kind for kind in COMMANDS}


def _settings_of(stage: str) -> type[Settings] | None:
    """Return the settings class of a stage; `search --exact` is a stage of the command `search`."""
    return _commands().get(stage.partition(" --")[0])
