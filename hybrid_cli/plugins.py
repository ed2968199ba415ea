"""Registries of everything that other people can add: one per group, for our own entries and for those of others.

A package adds entries with entry points, `[project.entry-points."hybrid_cli.losses"]` and `cosine = "package:cosine"`.
A file (`--plugin FILE`, `load`) or a notebook adds them with `register("losses", "cosine", function)`. The groups are
the keys of `REGISTRIES`. An entry has a name, an object and a docstring, whose first line is its help.

Names are known without an import; the object of an entry is imported when it is used. No artifact can load a plugin.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, overload

from hybrid_cli.errors import InputError, require_packages

T = TypeVar("T")
PREFIX = "hybrid_cli."  # of the groups of entry points
REGISTRIES = {  # group -> module and name of its registry, which holds our own entries
    "analyzers": "hybrid_cli.lexical.analysis:ANALYZERS",
    "callbacks": "hybrid_cli.training.callbacks:CALLBACKS",
    "commands": "hybrid_cli.commands:ALL_COMMANDS",
    "encoders": "hybrid_cli.encoders.models:ENCODERS",
    "engines": "hybrid_cli.exports.engine:ENGINES",
    "fusion_methods": "hybrid_cli.fusion.methods:METHODS",
    "losses": "hybrid_cli.training.options:LOSSES",
    "measures": "hybrid_cli.evaluation.measures:FAMILIES",
    "perturbations": "hybrid_cli.perturbations.attacks:ATTACKS",
    "readers": "hybrid_cli.commands.data:READERS",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*")
_MODULE = "hybrid_plugin_"  # begins the names of the modules of files
_REMEDY = "fix or uninstall it"


class Origin(NamedTuple):
    """The home of an entry: hybrid, an installed package with its version, a file, or a module of Python code."""

    name: str
    version: str = ""
    path: Path | None = None

    def __str__(self) -> str:
        return f"the plugin {self.name}" if self != HYBRID else "hybrid"


HYBRID = Origin("hybrid_cli")


class Lazy(NamedTuple):
    """An object that is imported on first use, with its help.

    Attributes:
        target: `module:attribute`.
        help: the help; that of an entry of others is the first line of its docstring.
    """

    target: str
    help: str = ""


@dataclass
class Entry:
    """An entry of a registry.

    Attributes:
        value: object, or the place to import it from; replaced by the checked object on first use.
        ready: the object was imported and checked.
        help: the help of one of ours; empty for the first line of the docstring.
        original: the object before the check, which may convert it.
    """

    group: str
    name: str
    origin: Origin
    value: Any
    ready: bool = False
    help: str = ""
    original: Any = None

    def refuse(self, fault: str, code: str, **fields: object) -> NoReturn:
        """Raise the error of an unusable entry."""
        where = {"path": self.origin.path} if self.origin.path else {}
        raise InputError(
            f"{self.origin}: '{self.name}' of {self.group} {fault}",
            code=code,
            group=self.group,
            name=self.name,
            plugin=self.origin.name,
            **where,
            **fields,
        )


class Registry(Mapping[str, T], Generic[T]):
    """The entries of one group: name -> object.

    Args:
        group: key in `REGISTRIES`.
        built_in: our own entries: objects, or `Lazy`.
        spellings: other names of our own entries, which nobody else can use.
        checked: converts the name and the object of another package, such as a function, to that of the group; raises
            ValueError with the reason for one of another kind.
    """

    def __init__(
        self,
        group: str,
        built_in: Mapping[str, T | Lazy],
        checked: Callable[[str, Any], T] | None = None,
        spellings: Iterable[str] = (),
    ):
        self.group, self._checked, self._spellings = group, checked, frozenset(spellings)
        self._entries: dict[str, Entry] = {}
        self._taken: dict[str, Entry] = {}  # names of our entries or of others that a package registers again
        self._complete = True
        for name, value in built_in.items():
            self.add(name, value, HYBRID)
        self._complete = False  # those of installed packages are added on first use

    def add(self, name: str, value: Any, origin: Origin) -> None:
        """Add an entry.

        Raises:
            InputError: the name is taken or unusable, or an object of others has no docstring or is of another kind.
        """
        entry = Entry(self.group, name, origin, value, help=value.help if isinstance(value, Lazy) else "")
        if origin != HYBRID and not _NAME.fullmatch(name):
            entry.refuse("needs a name of letters and digits, with single hyphens between them", "plugin-name")
        if origin != HYBRID and name.lower() in self._spellings:
            _refuse_taken(entry, HYBRID)
        if (before := self._known().get(name.lower())) is not None:
            if _target_of(value) in (_target_of(before.value), before.value):
                if before.origin != origin:
                    return  # the module of a package with both an entry point and a call of `register`
            else:
                _refuse_taken(entry, before.origin)
        if origin != HYBRID:
            self._prepare(entry)
        self._entries[name.lower()] = entry

    def remove(self, origin: Origin) -> None:
        """Remove the entries of a plugin."""
        self._entries = {name: entry for name, entry in self._entries.items() if entry.origin != origin}

    def __getitem__(self, name: str) -> T:
        entry = self.entry(name)
        self._prepare(entry)
        value: T = entry.value
        return value

    def entry(self, name: str) -> Entry:
        """Return an entry; its use is recorded in the manifest of the output.

        Raises:
            KeyError: no such name.
            InputError: the name was registered twice.
        """
        entry = self._known()[name.lower()]
        if entry.name != name:
            raise KeyError(name)
        if name.lower() in self._taken:
            _refuse_taken(self._taken[name.lower()], HYBRID if name.lower() in self._spellings else entry.origin)
        if entry.origin != HYBRID and (used := _used.get()) is not None:
            used[entry.origin] = entry
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter([entry.name for entry in self._known().values()])

    def __len__(self) -> int:
        return len(self._known())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (entry := self._known().get(name.lower())) is not None and entry.name == name

    def built_in(self) -> list[str]:
        """Return the names of our own entries."""
        return [entry.name for entry in self._entries.values() if entry.origin == HYBRID]

    def others(self) -> list[Entry]:
        """Return the entries of other packages and of files."""
        return [entry for entry in self._known().values() if entry.origin != HYBRID]

    def refresh(self) -> None:
        """Drop the entries of installed packages, which are added again on the next use."""
        self._entries = {name: entry for name, entry in self._entries.items() if not entry.origin.version}
        self._taken, self._complete = {}, False

    def help(self, name: str) -> str:
        """Return the help of an entry: that of a `Lazy` entry, else the first line of the docstring."""
        return self.entry(name).help or _summary(self[name])

    def _known(self) -> dict[str, Entry]:
        """Return all entries by their names in lower case."""
        if not self._complete:
            self._complete = True
            for point in _installed().get(self.group, ()):
                entry = Entry(self.group, point.name, _package(point), Lazy(point.value))
                first = self._entries.setdefault(point.name.lower(), entry)
                if first is not entry or point.name.lower() in self._spellings:
                    self._taken[point.name.lower()] = entry
        return self._entries

    def _prepare(self, entry: Entry) -> None:
        """Import the object of an entry; check one of others."""
        if entry.ready:
            return
        value = _imported(entry) if isinstance(entry.value, Lazy) else entry.value
        entry.original = value
        if entry.origin != HYBRID:
            try:
                value = self._checked(entry.name, value) if self._checked is not None else value
            except ValueError as error:
                entry.refuse(f"is unusable: {error}; {_REMEDY}", "plugin-kind")
            if not _summary(value):
                entry.refuse("has no docstring, which is its help; write one", "plugin-docstring")
        entry.value, entry.ready = value, True


def function_of(name: str, added: Any) -> Callable[..., Any]:
    """Return the entry of a group whose objects are functions.

    Raises:
        ValueError: the object cannot be called.
    """
    if not callable(added):
        raise ValueError(f"{type(added).__name__} is no function")
    function: Callable[..., Any] = added
    return function


def registry(group: str) -> Registry[Any]:
    """Return the registry of a group.

    Raises:
        InputError: no such group.
    """
    if group not in REGISTRIES:
        raise InputError(
            f"{group}: no group of plugins; groups: {', '.join(REGISTRIES)}", code="plugin-group", group=group
        )
    entries: Registry[Any] = _resolved(REGISTRIES[group])
    return entries


@overload
def register(group: str, name: str) -> Callable[[T], T]: ...


@overload
def register(group: str, name: str, value: T) -> T: ...


def register(group: str, name: str, value: Any = None) -> Any:
    """Register an object as the entry `name` of a group; without an object, return a decorator.

    Returns:
        The object unchanged.

    Raises:
        InputError: no such group, a name that is taken, or an object without a docstring.
    """
    if value is None:
        return lambda decorated: register(group, name, decorated)
    origin = _loading.get() or Origin(str(getattr(value, "__module__", "__main__")))
    registry(group).add(name, value, origin)
    return value


# -------------------------------------------------------------------------------------------------------------- files

_loading: ContextVar[Origin | None] = ContextVar("loading", default=None)
_used: ContextVar[dict[Origin, Entry] | None] = ContextVar("used", default=None)  # the last entry of each plugin
_named = set[str]()  # modules of classes that options name
_ENTRIES = "used_plugins"  # attribute of an error
_files: dict[Path, Origin] = {}  # the real path of each loaded file


def load(path: str | Path) -> None:
    """Run a file of Python code that registers entries; a file that was loaded before is left alone.

    Raises:
        InputError: the file cannot be read, fails, or registers nothing or a name that is taken.
    """
    path = Path(path)
    real = path.resolve()
    if real in _files:
        return
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"{path}: no such Python file (.py); check --plugin", code="no-such-plugin", path=path)
    if any(other.name == path.name for other in _files.values()):
        raise InputError(f"{path}: another plugin has this name; rename the file", code="plugin-name-taken", path=path)
    origin = Origin(path.name, path=path)
    module = f"{_MODULE}{path.stem}_{len(_files)}"
    token = _loading.set(origin)
    try:
        _run(path, module)
        if not any(
            origin == entry.origin for group in filter(_is_imported, REGISTRIES) for entry in registry(group).others()
        ):
            raise InputError(
                f"{path}: registers nothing; call hybrid_cli.plugins.register(GROUP, NAME, OBJECT)",
                code="plugin-empty",
                path=path,
            )
    except (Exception, SystemExit) as error:
        _unload(origin, module)
        if isinstance(error, InputError):
            raise
        raise _import_failure(f"{path}", error, path=path, line=_line_in(error, path), plugin=path.name) from error
    finally:
        _loading.reset(token)
    _files[real] = origin


def _run(path: Path, name: str) -> ModuleType:
    """Run a file of Python code as the module `name`."""
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look it up
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module


def imported(target: str) -> Any:
    """Return the object of `module:name`, or of `FILE.py:name`, a file of Python code, which is run.

    Raises:
        InputError: the module or file fails, or has no such object.
    """
    home, _, name = target.rpartition(":")
    path = Path(home)
    try:
        if path.suffix == ".py":
            return getattr(_run(path, f"{_MODULE}{path.stem}"), name)
        _named.add(home)
        return _resolved(target)
    except (Exception, SystemExit) as error:
        raise _import_failure(target, error, line=_line_in(error, path), plugin=home) from error


@contextmanager
def load_files(paths: Iterable[str | Path]) -> Iterator[None]:
    """Load files for the time of a block; their entries are removed at its end."""
    before = dict(_files)
    try:
        for path in paths:
            load(path)
        yield
    finally:
        for real in _files.keys() - before.keys():
            _unload(_files.pop(real))


def files() -> list[Path]:
    """Return the paths of the loaded files."""
    return [origin.path for origin in _files.values() if origin.path is not None]


def _unload(origin: Origin, module: str = "") -> None:
    for group in filter(_is_imported, REGISTRIES):
        registry(group).remove(origin)
    sys.modules.pop(module, None)


def _is_imported(group: str) -> bool:
    return REGISTRIES[group].partition(":")[0] in sys.modules


# ----------------------------------------------------------------------------------------------------------- packages


@contextmanager
def record_use() -> Iterator[None]:
    """Note the plugins whose entries the block uses, in addition to an enclosing block; see `used_versions`."""
    token = _used.set(dict(_used.get() or {}))
    try:
        yield
    except Exception as error:
        vars(error).setdefault(_ENTRIES, dict(_used.get() or {}))
        raise
    finally:
        _used.reset(token)


def used_versions() -> dict[str, str]:
    """Return name -> version of the installed packages whose entries were used, for the manifest."""
    return {origin.name: origin.version for origin in sorted(_used.get() or ()) if origin.version}


def installed_packages() -> dict[Origin, list[tuple[str, str]]]:
    """Return the installed packages, each with group and name of its entries; nothing is imported."""
    by_origin: dict[Origin, list[tuple[str, str]]] = {}
    for group, points in _installed().items():
        for point in points:
            by_origin.setdefault(_package(point), []).append((group, point.name))
    return by_origin


def place_of_error(error: BaseException) -> tuple[str, str, int] | None:
    """Return name, file and line of the plugin whose code raised an error, or called the code that did.

    Without such a call, as of an expression that is computed later, they are those of the function of the plugin that
    was used last; None if none was used.
    """
    packages = {point.module.partition(".")[0]: point for points in _installed().values() for point in points}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if module.startswith(_MODULE) or module in _named:
            return Path(file).name, file, line
        if (point := packages.get(module.partition(".")[0])) is not None:
            return _package(point).name, file, line
    for origin, entry in reversed(getattr(error, _ENTRIES, {}).items()):
        code = getattr(inspect.unwrap(entry.original), "__code__", None)  # of a class, none
        return origin.name, code.co_filename if code else str(origin.path), code.co_firstlineno if code else 1
    return None


@contextmanager
def calling(group: str, name: str) -> Iterator[None]:
    """Refuse an entry of a plugin that fails, or whose expression does; see `place_of_error`."""
    try:
        yield
    except Exception as error:
        entry = registry(group).entry(name)
        if entry.origin == HYBRID or isinstance(error, InputError):
            raise
        vars(error).setdefault(_ENTRIES, {entry.origin: entry})
        _, path, line = place_of_error(error) or (entry.origin.name, entry.origin.path, None)
        reason = f"fails, {path}, line {line}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        entry.refuse(reason, "plugin-fails", line=line)


def refresh() -> None:
    """Read the entry points again, after the installation of a package in a running process."""
    _installed.cache_clear()
    for group in filter(_is_imported, REGISTRIES):
        registry(group).refresh()


@cache
def _installed() -> dict[str, list[EntryPoint]]:
    """Return the entry points of installed packages by group, read once."""
    points = entry_points()
    groups = {group: list(points.select(group=f"{PREFIX}{group}")) for group in REGISTRIES}
    return {group: several for group, several in groups.items() if several}


def _package(point: EntryPoint) -> Origin:
    return Origin(point.dist.name, point.dist.version) if point.dist else Origin(point.module)


# ------------------------------------------------------------------------------------------------------------- objects


def _imported(entry: Entry) -> Any:
    try:
        with require_packages():
            return _resolved(entry.value.target)
    except (Exception, SystemExit) as error:
        if entry.origin == HYBRID or isinstance(error, InputError):
            raise
        what = f"{entry.origin}: {entry.value.target}"
        fields = {"plugin": entry.origin.name, "group": entry.group, "name": entry.name}
        raise _import_failure(what, error, **fields) from error


def _resolved(target: str) -> Any:
    """Return the object of `module:attribute`."""
    module, _, attributes = target.partition(":")
    value: Any = import_module(module.strip())
    for name in filter(None, attributes.split("[")[0].strip().split(".")):
        value = getattr(value, name)
    return value


def _target_of(value: Any) -> Lazy:
    """Return the place of a function or class; of another object, a place that equals no other."""
    return Lazy(f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', id(value))}")


def _import_failure(what: str, error: BaseException, **fields: object) -> InputError:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    at = f" in line {fields['line']}" if fields.get("line") else ""
    return InputError(f"{what} fails{at} ({reason}); {_REMEDY}", code="plugin-import", reason=reason, **fields)


def _line_in(error: BaseException, path: Path) -> int | None:
    """Return the line of a file that raised an error."""
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return frames[-1].lineno if frames else None


def _summary(value: Any) -> str:
    """Return the first line of the docstring of a function or class; empty without one.

    Another object names with `documented` the function that describes it.
    """
    described = getattr(value, "documented", value)
    text = getattr(described, "__doc__", None) if isinstance(described, type) or callable(described) else None
    if not text or (isinstance(described, type) and text.startswith(f"{described.__name__}(")):  # made by `dataclass`
        return ""
    return str(text.strip().splitlines()[0])


def _refuse_taken(entry: Entry, before: Origin) -> NoReturn:
    entry.refuse(f"is already registered by {before}; use another name", "plugin-name-taken", other=before.name)
