"""Options of artifacts that other versions of hybrid wrote: an absent option has the default that it had."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Any

from hybrid_cli.artifacts.manifest import Manifest
from hybrid_cli.settings import COMMANDS, Settings
from hybrid_cli.settings.conversion import plain
from hybrid_cli.settings.declaration import REQUIRED, shown_value, spelling
from hybrid_cli.version import is_later


def same_call(first: Manifest, second: Manifest) -> bool:
    """Test whether two calls of a stage have equal options and inputs, in whatever versions of hybrid."""
    return completed(first, second).key() == completed(second, first).key()


def completed(manifest: Manifest, other: Manifest) -> Manifest:
    """Return a manifest with the recorded options of `other` that it lacks, see `options_of`."""
    return replace(manifest, options=options_of(manifest, other.options)) if manifest.stage == other.stage else manifest


def options_of(manifest: Manifest, names: Collection[str]) -> dict[str, Any]:
    """Return the options of a manifest, and of `names` those that it lacks, with their default when it was written."""
    options = dict(manifest.options)
    if (kind := _settings_of(manifest.stage)) is None:
        return options
    for name in sorted(set(names) - set(options)):
        declared = kind.declared().get(name)
        if declared is not None and declared.recorded and declared.default is not REQUIRED:
            options[name] = kind.default_in(_version(manifest), name, options)
        elif name in kind.absent:
            options[name] = plain(kind.absent[name])
    return options


def changed_defaults(existing: Manifest, wanted: Manifest) -> dict[str, str]:
    """Return name -> sentence of each option that had its default in `existing`, has it now, and differs."""
    sentences: dict[str, str] = {}
    version = _version(existing)
    if (kind := _settings_of(wanted.stage)) is None:
        return sentences
    for name, declared in kind.declared().items():
        if not (changes := declared.changes_after(version)) or name not in wanted.options:
            continue
        defaults = [kind.default_in(release, name, wanted.options) for release in (version, "")]
        values = [release.options.get(name) for release in (existing, wanted)]
        if defaults == values and values[0] != values[1]:
            old, new = (shown_value(tuple(release) if isinstance(release, list) else release) for release in values)
            option = spelling(name, declared, values[0])
            keep = option if isinstance(values[0], bool) else f"{option} {old}"
            sentences[name] = (
                f"the default of {spelling(name, declared)} changed from {old} to {new} in {changes[-1]}: "
                f"{keep} keeps the output"
            )
    return sentences


def unknown_options(existing: Manifest) -> list[str]:
    """Return the options of an artifact of a newer hybrid that this version does not have."""
    kind = _settings_of(existing.stage)
    if kind is None or not is_later(_version(existing)):
        return []
    return sorted(set(existing.options) - set(kind.declared()) - set(kind.absent))


def _version(manifest: Manifest) -> str:
    """Return the version of hybrid that wrote an artifact; empty if it is unknown."""
    return manifest.versions.get("hybrid", "")


@cache
def _commands() -> dict[str, type[Settings]]:
    return {kind.command: kind for kind in COMMANDS}


def _settings_of(stage: str) -> type[Settings] | None:
    """Return the settings class of a stage; `search --exact` is a stage of the command `search`."""
    return _commands().get(stage.partition(" --")[0])
