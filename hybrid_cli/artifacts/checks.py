"""Checks of an output path before the work: its name, its folder, and an existing file or folder of that name."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hybrid_cli import plugins
from hybrid_cli.artifacts.inputs import Input
from hybrid_cli.artifacts.manifest import Manifest, find_manifest, foreign_file
from hybrid_cli.errors import DamageError, InputError, path_error
from hybrid_cli.inputs.files import read_bytes
from hybrid_cli.settings import Settings
from hybrid_cli.settings.conversion import json_value
from hybrid_cli.settings.options import REQUIRED, By
from hybrid_cli.storage import SCHEMAS, Kind
from hybrid_cli.storage.files import is_empty_folder, lock_file
from hybrid_cli.storage.integrity import quick_damage
from hybrid_cli.storage.records import MANIFEST
from hybrid_cli.version import is_later

_SUFFIXES = {Kind.WEIGHTS: ".json", Kind.REPORT: ".html", Kind.LABELS: ""}  # teacher labels are a folder of tables
_LONG_NAME = 60  # characters shown of a name that is too long
_keeping: ContextVar[bool] = ContextVar("keeping", default=False)


def check_replaceable(
    path: Path, existing: Manifest | None, wanted: Manifest, overwrite: bool, foreign: bool, compare: bool = False
) -> None:
    """Refuse to replace a file or folder at `path` that the user did not mean, or that hybrid did not write.

    Args:
        path: output path.
        existing: manifest of the artifact at `path`, if there is one.
        wanted: manifest of the output.
        overwrite: the user allows to replace the artifact.
        foreign: the output has the format of another tool.
        compare: an existing output is compared with the new one before it is refused.

    Raises:
        InputError: `path` may not be replaced.
    """
    refuse_foreign_file(path, existing)
    special = path.exists() and not path.is_file() and not path.is_dir()
    if special or (foreign and not compare and path.is_dir() and not is_empty_folder(path)):
        problem = "not a regular file, and --overwrite replaces files only; name another output"
        raise path_error(path, problem, code="not-a-regular-file")
    if compare:
        return
    if existing is not None and (foreign or existing.kind != wanted.kind):
        replaced = "files of other tools" if foreign else wanted.kind.phrase
        problem = f"{existing.kind.predicate}; --overwrite replaces {replaced} only; name another output"
        raise path_error(path, problem, code="other-kind", kind=existing.kind, expected=wanted.kind)
    if existing is None and path.is_dir() and not is_empty_folder(path):
        if (path / MANIFEST).exists():
            problem = f"is a folder whose {MANIFEST} cannot be read; restore it, remove the folder, or name another"
            raise path_error(path, problem, code="damaged-manifest")
        problem = "is a folder that hybrid did not write; remove it, or name another"
        raise path_error(path, problem, code="foreign-output")
    if existing is None and path.is_file() and not foreign and not _suffix(wanted.kind):
        problem = "is a file that hybrid did not write, and the output is a folder; name another"
        raise path_error(path, problem, code="foreign-output")
    if path.exists() and not overwrite:
        code, difference, fields = _difference(path, existing, wanted)
        raise path_error(path, f"{difference}; pass --overwrite to replace it, or name another", code=code, **fields)


def refuse_foreign_file(path: Path, existing: Manifest | None) -> None:
    """Refuse to replace a folder with files that hybrid did not write."""
    if existing is not None and (name := foreign_file(path, existing)):
        problem = f"{name} is not part of the {existing.kind}; move it, or name another output"
        raise path_error(path, problem, code="foreign-file")


def _refuse_inside(path: Path) -> None:
    """Refuse to change a folder artifact: the rest would not fit a replaced file, and another file is foreign in it."""
    real = Path(os.path.realpath(path))
    for folder in real.parents:
        if not (folder / MANIFEST).is_file():
            continue
        try:
            whole = find_manifest(folder, any_format=True)
        except DamageError as error:
            if b'"checksum"' in read_bytes(folder / MANIFEST):  # else it belongs to another tool
                problem = f"may be a part of an artifact ({error}); name another output"
                raise path_error(path, problem, code="inside-artifact") from None
            continue
        except InputError:
            continue
        if whole is not None:
            where = "a part of" if real.relative_to(folder).as_posix() in (whole.files or ()) else "inside"
            problem = f"is {where} the {whole.kind} {folder}; name an output next to it"
            raise path_error(path, problem, code="inside-artifact", artifact=folder)


def target_of(path: Path) -> Path:
    """Return the path that is written for an output: the target of a symbolic link, or the path itself.

    Raises:
        InputError: the path is no name for a file or folder.
    """
    if path.name in ("", ".."):
        raise path_error(path, "names a folder only; add a name, as in FOLDER/NAME", code="invalid-name")
    for folder in reversed(path.parents):
        if folder.name == ".." and not folder.parent.exists():
            raise path_error(path, f"no such folder: {folder.parent}; name another output", code="no-such-folder")
    try:
        str(path).encode()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.stat(path)
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.lstat(lock_file(target))  # the longest name that is written next to an output
    except UnicodeEncodeError:
        problem = f"{str(path)!a}: the name is not valid UTF-8; name another output"
        raise InputError(problem, code="not-utf-8", path=path) from None
    except OSError as error:
        shown = path if len(str(path)) < _LONG_NAME else f"{str(path)[:_LONG_NAME]}..."
        problem = f"{shown}: {(error.strerror or str(error)).lower()}; name another output"
        raise InputError(problem, code="invalid-name", path=path) from None
    return target


def check_name(path: Path, kind: Kind) -> None:
    """Refuse a file extension that does not match the kind: readers locate the manifest by the extension."""
    suffix = _suffix(kind)
    if not path.name.endswith(suffix):
        problem = f"the name must end with {suffix}; the output is of the kind {kind}"
        raise path_error(path, problem, code="other-suffix", expected=suffix)


def _suffix(kind: Kind) -> str:
    """Return the extension of a kind of files; empty for a kind of folders."""
    return _SUFFIXES.get(kind, ".parquet" if kind in SCHEMAS else "")


def check_output_path(path: Path, inputs: Mapping[str, Input]) -> None:
    """Refuse an output that cannot be written, would replace an input, or is inside an artifact or an input."""
    resolved = path.resolve()
    for role, source in inputs.items():
        source_path = source if isinstance(source, Path) else source.path
        if source_path.resolve().is_relative_to(resolved):
            problem = f"replacing it would remove the input '{role}' ({source_path}); name another output"
            raise path_error(path, problem, code="replaces-input", role=role)
        if source_path.is_dir() and resolved.is_relative_to(source_path.resolve()):
            problem = f"is inside the input '{role}' ({source_path}), which would change; name another output"
            raise path_error(path, problem, code="inside-input", role=role, input=source_path)
    _refuse_inside(path)
    folder = next(parent for parent in resolved.parents if parent.exists())
    if not folder.is_dir():
        raise path_error(folder, f"is a file, so it cannot contain {path}; name another output", code="not-a-folder")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        problem = "not writable; name another output, or change the permissions of the folder"
        raise path_error(folder, problem, code="not-writable")


def existing_manifest(path: Path) -> Manifest | None:
    """Return the manifest of an existing output; None if there is none, or it is not readable."""
    if not path.exists():
        return None
    try:
        return find_manifest(path, any_format=True)
    except InputError:
        return None


@contextmanager
def keeping_equal_outputs() -> Iterator[None]:
    """Within this context, `overwrite` keeps the output of an equal call."""
    token = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(token)


def is_kept(path: Path, target: Path, existing: Manifest | None, wanted: Manifest, overwrite: bool) -> bool:
    """Return whether an existing output is that of an equal call, and not to be replaced.

    Args:
        path: the output, as given.
        target: the path that is written, with symbolic links resolved.
        existing: its manifest.
        wanted: the manifest of the call.
        overwrite: replace it, except within `keeping_equal_outputs`.

    Raises:
        DamageError: a file of it is missing, changed or cut, without `overwrite`.
    """
    if existing is None or not same_call(existing, wanted) or (overwrite and not _keeping.get()):
        return False
    problem = quick_damage(target, existing)
    if problem is not None and not overwrite:
        raise DamageError(f"{problem}, or pass --overwrite to write {path} again", code="damaged-output", path=path)
    return problem is None


def _difference(path: Path, existing: Manifest | None, wanted: Manifest) -> tuple[str, str, dict[str, Any]]:
    """Return the difference between the existing output and the requested one: its code, words and fields."""
    if existing is None:
        try:
            find_manifest(path, any_format=True)
        except DamageError as error:
            return "output-exists", f"already exists, and is damaged ({error})", {}
        except InputError:
            pass
        return "output-exists", "already exists, without a manifest of hybrid", {}
    if existing.stage != wanted.stage:
        words = f"already exists: {existing.kind.phrase} made by `{existing.stage}`"
        return "output-of-another-stage", words, {"stage": existing.stage}
    if existing.format != wanted.format:
        words = f"already exists, written by an older hybrid (manifest format {existing.format}, now {wanted.format})"
        return "output-of-an-older-format", words, {"format": existing.format}
    if unknown := unknown_options(existing):
        version = existing.versions["hybrid"]
        words = f"already exists, written by hybrid {version} with {', '.join(unknown)}, which this version lacks"
        return "output-of-a-newer-version", words, {"version": version, "options": unknown}
    before, now = add_missing_options(existing, wanted), add_missing_options(wanted, existing)
    changes, fields = changed_between(before.key(), now.key())
    return "output-differs", f"already exists with other options or inputs: {changes}", fields


def changed_between(before: str, now: str) -> tuple[str, dict[str, list[str]]]:
    """Return the options and inputs that differ between the keys of two calls of a stage, in words and by name."""
    (*_, options, inputs), (*_, new_options, new_inputs) = json.loads(before), json.loads(now)
    names, roles = _unequal(options, new_options), _unequal(inputs, new_inputs)
    words = [f"{name}={options.get(name)!r}, now {new_options.get(name)!r}" for name in names]
    words += [f"input '{role}' has changed" for role in roles]
    return "; ".join(words) or "another command, or another version", {"options": names, "inputs": roles}


def _unequal(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {**before, **now} if before.get(name) != now.get(name))


# -------------------------------------------------------------------------------------------------- options of versions


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
    if kind is None or not is_later(existing.versions.get("hybrid", "")):
        return []
    return sorted(set(existing.options) - set(kind.declared()))


@cache
def _settings_of(stage: str) -> type[Settings] | None:
    """Return the settings class of a stage; `search --exact` is a stage of the command `search`."""
    commands, name = plugins.registry("commands"), stage.partition(" --")[0]
    return commands[name].settings if name in commands.built_in() else None
