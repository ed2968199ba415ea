"""Names of runs, given on the command line or taken from their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid_cli.errors import InputError, path_error


def name_runs(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Name runs: by the name of `name=path`, or by the file's stem, with parent folders where stems are equal.

    Raises:
        InputError: two runs have the same name, or a path names no file.
    """
    given = [name_and_path(str(path)) for path in paths]
    plain = [path.with_suffix("") for name, path in given if name is None]
    taken: dict[str, Path] = {}
    for name, path in given:
        chosen = name if name is not None else _short(path.with_suffix(""), plain)
        if taken.get(chosen) == path:
            raise path_error(path, "is listed twice; list each file once", code="repeated-input")
        if chosen in taken:
            problem = f"two runs are named '{chosen}' ({taken[chosen]} and {path}); write name={path}"
            raise InputError(problem, code="duplicate-name", path=path, name=chosen)
        taken[chosen] = path
    return taken


def named_once(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Name runs that are combined; see `name_runs`.

    Raises:
        InputError: two runs have the same name, or one file has two names.
    """
    by_name = name_runs(paths)
    for path in by_name.values():
        if list(by_name.values()).count(path) > 1:
            raise path_error(path, "is listed twice; list each file once", code="repeated-input")
    return by_name


def pick(given: str, known: Mapping[str, Path], option: str) -> Path:
    """Find a run by its name in `known`, or by a path or `name=path`.

    Raises:
        InputError: no such run or file; the message names `option`.
    """
    path = known[given] if given in known else next(iter(name_runs([given]).values()))
    if not path.exists():
        problem = f"{option} {given}: no such run or file; the runs are {', '.join(known) or 'none'}"
        raise InputError(problem, code="no-such-file", path=path, option=option, value=given)
    return path


def name_and_path(text: str) -> tuple[str | None, Path]:
    """Return name and path of a run: `name=path`, or a path."""
    name, mark, path = text.partition("=")
    if not (name and mark and path) or Path(text).exists():
        name, path = "", text
    if not Path(path).name:  # an empty text, such as an unset variable of a shell, or `.`
        raise InputError(f"run '{text}': needs the path of a file", code="invalid-name", value=text)
    return name or None, Path(path)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the last name of each path, with parent folders where these are equal."""
    return [_short(path, paths) for path in paths]


def _short(path: Path, others: Sequence[Path]) -> str:
    """Return the shortest end of `path` that distinguishes it from the other paths."""
    for length in range(1, len(path.parts) + 1):
        end = path.parts[-length:]
        if sum(other.parts[-length:] == end for other in others) == 1:
            return "/".join(end)
    return path.name
