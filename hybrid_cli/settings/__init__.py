"""The base of all settings classes: every option is declared once, and every value is converted and checked.

A settings class is a frozen dataclass. Each field carries its type, default, range, help, panel of the help, and the
variants to which it applies. The command line, `--config`, the Python API, the manifest and the reference of commands
read these declarations. (Dataclasses rather than pydantic: `hybrid --help` imports nothing heavy, values stay plain,
and an error names the option in one line.)
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any, ClassVar, Self, get_args, get_type_hints

from hybrid_cli import plugins
from hybrid_cli.errors import InputError, keyword_error
from hybrid_cli.inputs import files as input_files
from hybrid_cli.settings.conversion import bare_type, byte_count, converted, is_pair, json_value
from hybrid_cli.settings.options import (
    GENERAL,
    GIVEN,
    KEY,
    POSITIVE,
    REQUIRED,
    By,
    Cases,
    Condition,
    Members,
    Option,
    Scope,
    alternatives,
    any_of,
    declare,
    option,
    spelling,
)
from hybrid_cli.settings.paths import InheritedPath, OptionalPath

ATTRIBUTES = "\n    Attributes:\n"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings classes: the constructor converts and checks values.

    The class docstring is the help of the command and, in its section `Attributes`, of the options. None means that an
    option is not set.

    Attributes:
        given: names of the options that were set explicitly.
        scopes: conditions, and the options that apply only under them; see `scope`. An option of several scopes
            applies in each. A subclass that declares an option again, with `applies`, replaces its scopes.
        cases: options by the value of another one, in addition to the scopes; see `options_by`.
        option_panel: panel of the options that the class declares, without a panel of their own.
        result_functions: options with a result of another type -> the function of the stage's module that returns it.
    """

    command: ClassVar[str] = ""
    panel: ClassVar[str] = ""
    examples: ClassVar[tuple[str, ...]] = ()
    given: ClassVar[frozenset[str]] = frozenset()
    scopes: ClassVar[tuple[Scope, ...]] = ()
    cases: ClassVar[tuple[Cases, ...]] = ()
    option_panel: ClassVar[str] = ""
    result_functions: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        """Complete the declarations of a class, before the dataclass reads them."""
        super().__init_subclass__(**more)
        for name, value in list(vars(cls).items()):
            if isinstance(value, Field) and KEY in value.metadata:
                declared = value.metadata[KEY]
                declared = declared if isinstance(declared, Option) else _inherited(cls, name, declared)
                if not (declared.panel or declared.positional):
                    declared = replace(declared, panel=vars(cls).get("option_panel", ""))
                setattr(cls, name, declare(declared))

    def __new__(cls, *args: Any, **values: Any) -> Self:
        """Record the names of the set options; the dataclass constructor then assigns the values."""
        made = super().__new__(cls)
        positional = [field.name for field in fields(cls) if field.init and not field.kw_only]
        named = {**dict(zip(positional, args, strict=False)), **values}
        declared = cls.declared()
        given = (name for name, value in named.items() if not _is_unset(value, declared.get(name)))
        object.__setattr__(made, "given", frozenset(given))
        return made

    def __post_init__(self) -> None:
        """Convert each value to the declared type, fill in defaults, and refuse invalid values and options."""
        types = self.types()
        for name, declared in self.declared().items():
            value = getattr(self, name)
            if name in self.given:
                value = converted(name, declared, types[name], value)
            elif declared.default is REQUIRED:
                problem = f"{spelling(name, declared)}: needs at least one value"
                raise InputError(problem, code="missing-value", option=name)
            elif _is_unset(value, declared) and not isinstance(declared.default, By):
                value = declared.default
            object.__setattr__(self, name, value)
        for name, declared in self.declared().items():
            if name not in self.given and isinstance(declared.default, By):
                object.__setattr__(self, name, declared.default.resolve(self))
        self.check_facts()
        self._check_rules()
        self.check()

    def check(self) -> None:
        """Refuse values that do not fit together, beyond the rules of the declarations."""

    def _check_rules(self) -> None:
        """Refuse an option that is needed and not set, or excluded and set."""
        values = self.values()

        def holding(conditions: Iterable[Condition]) -> Iterator[tuple[Condition, list[str], list[str]]]:
            for condition in conditions:
                if condition.allowed.keys() <= values.keys() and condition.holds(values):
                    yield condition, *self._in_words(condition)

        for name, declared in self.declared().items():
            flag = name.upper() if declared.positional else spelling(name, declared)
            for condition, others, _ in holding(declared.excluded if name in self.given else ()):
                problem = f"{flag}: not with {' and '.join(others)}"
                raise InputError(problem, code="conflicting-options", option=name, others=tuple(condition.allowed))
            for condition, others, unset in holding(() if values[name] else declared.needed):
                raise InputError(
                    f"{' and '.join(others) or self.command}: needs {alternatives([flag, *unset])}",
                    code="missing-option",
                    option=name,
                    needed_by=next(iter(condition.allowed)) if others else self.command,
                )

    def check_facts(self, subject: str = "", **facts: Any) -> None:
        """Refuse options that were set but do not apply.

        Args:
            subject: phrase for the message: `out/dense is a dense index`.
            facts: facts that only the stage knows, by the names used in `when`.

        Raises:
            InputError: an option does not apply; the message names the variants to which it belongs.
        """
        known = {**self.values(), **facts}
        for name in sorted(self.given):
            if not self.applies(name, **known):
                problem = (
                    f"{spelling(name, self.declared()[name], getattr(self, name))}: "
                    f"{self.variants(name)}{self._here(name, subject)}"
                )
                raise InputError(problem, code="option-does-not-apply", option=name)

    @classmethod
    def variants(cls, name: str) -> str:
        """Return the variants of an option in words: `only with --loss margin or residual-margin`; empty if all."""
        first, *others = [cls._variant(condition) for condition in cls.declared()[name].applies] or [""]
        if not all((first, *others)):  # one condition always holds
            return ""
        joint = ", except " if first.startswith("not") else ", or "
        return joint.join([first, *(other.removeprefix("only ") for other in others)])

    @classmethod
    def _variant(cls, condition: Condition) -> str:
        wanted, unset = cls._in_words(condition)
        parts = [f"only with {' and '.join(wanted)}"] if wanted else []
        return ", ".join([*parts, *([f"not with {alternatives(unset)}"] if unset else [])])

    @classmethod
    def _in_words(cls, condition: Condition) -> tuple[list[str], list[str]]:
        """Return the options of a condition with their values, and the options that must not be set."""
        wanted, unset = [], []
        for name, allowed in condition.allowed.items():
            other = cls.declared().get(name)
            if other is None and (allowed is GIVEN or allowed is None or isinstance(allowed, bool)):
                continue  # an option that only subclasses have
            label = "" if other is None else name.upper() if other.positional else spelling(name, other)
            if other and (allowed is None or allowed is False):
                unset.append(label)
            elif other and (allowed is GIVEN or allowed is True):
                wanted.append(label)
            else:
                values = allowed if isinstance(allowed, tuple) else ("above 0" if allowed is POSITIVE else allowed,)
                named = f"{label} {alternatives([str(value) for value in values if value is not None])}".strip()
                wanted.append(f"no {label}, or {named}" if None in values else named)
        return wanted, unset

    def _here(self, name: str, subject: str) -> str:
        """Return the current values of the options in the condition, for the message."""
        if subject:
            return f"; {subject}"
        others = {other for condition in self.declared()[name].applies for other in condition.allowed}
        known = ((other, getattr(self, other)) for other in sorted(others & set(self.declared())))
        texts = ((other, ",".join(map(str, value)) if isinstance(value, tuple) else value) for other, value in known)
        return "".join(
            f"; {spelling(other, self.declared()[other])} is {text}"
            for other, text in texts
            if isinstance(text, str) and text
        )

    def applies(self, name: str, **facts: Any) -> bool:
        """Return whether an option applies under these settings and facts."""
        conditions = self.declared()[name].applies
        known = {**self.values(), **facts}
        return not conditions or any(condition.holds(known) for condition in conditions)

    def values(self) -> dict[str, Any]:
        """Return every field by name."""
        return {name: getattr(self, name) for name in self.declared()}

    def recorded(self, **facts: Any) -> dict[str, Any]:
        """Return the options that apply, as JSON values, for the manifest."""
        self.check_facts(**facts)
        return {
            name: json_value(getattr(self, name))
            for name, declared in self.declared().items()
            if declared.recorded and self.applies(name, **facts)
        }

    def changed(self, **values: Any) -> Self:
        """Return these settings with other values; None resets an option to its default."""
        return type(self)(**{**{name: getattr(self, name) for name in self.given}, **values})

    @classmethod
    def by_field(cls, keywords: Mapping[str, Any], more: Iterable[str] = ()) -> dict[str, Any]:
        """Return the values of keywords by field name; a keyword is a field, or a spelling of its option.

        Args:
            keywords: `lr=1e-3` for `--lr 1e-3`, `no_in_batch=True` for `--no-in-batch`.
            more: further names, which are kept.

        Raises:
            InputError: an unknown keyword; names the most similar one.
        """
        known = {name: (name, True) for name in (*cls.declared(), *more)}
        for name, declared in cls.declared().items():
            for position, spelled in ((at, part) for flag in declared.names for at, part in enumerate(flag.split("/"))):
                known.setdefault(spelled.lstrip("-").replace("-", "_"), (name, position == 0))
            if bare_type(cls.types()[name]) is bool:
                known.setdefault(f"no_{name}", (name, False))
        if unknown := next((keyword for keyword in keywords if keyword not in known), None):
            raise keyword_error(cls.command or "opening an index", unknown, known)
        named = ((known[keyword], value) for keyword, value in keywords.items())
        return {name: value if same or value is None else not value for (name, same), value in named}

    @classmethod
    def description(cls) -> str:
        """Return the help of the command: the docstring without the help of its options."""
        return inspect.cleandoc((cls.__doc__ or "").partition(ATTRIBUTES)[0])

    @classmethod
    def declared(cls) -> Mapping[str, Option]:
        """Return the declarations by field name."""
        return _declared(cls)  # type: ignore[arg-type]

    @classmethod
    def types(cls) -> Mapping[str, Any]:
        """Return the resolved types by field name."""
        return _types(cls)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class ReadsFiles(Settings):
    """A command that reads files of other tools.

    Attributes:
        limits: Limits of an input file: `line`, bytes of a line (32Mi); `columns` of a table (1000); `expansion` of a
            compressed file after 256 MiB of its content (100 times).
    """

    limits: Mapping[str, int] = option(
        {},
        panel=GENERAL,
        minimum=1,
        parse=byte_count,
        metavar="NAME=N",
        recorded=False,
        choices=[field.name for field in fields(input_files.Limits)],
    )


@dataclass(frozen=True, kw_only=True)
class Overwrites(ReadsFiles):
    """A command that can write an artifact.

    Attributes:
        overwrite: Replace an existing output.
    """

    overwrite: bool = option(False, panel=GENERAL, recorded=False)


@dataclass(frozen=True, kw_only=True)
class Writes(Overwrites):
    """A command that always writes an artifact.

    Attributes:
        output: Output path.
    """

    output: InheritedPath = option(REQUIRED, "--output", "-o")


@dataclass(frozen=True, kw_only=True)
class MayWrite(Overwrites):
    """A command that prints its result, and writes it with `--output`.

    Attributes:
        output: Output path.
    """

    output: OptionalPath = option(None, "--output", "-o")


@dataclass(frozen=True, kw_only=True)
class Seeded(Settings):
    """A command that draws random numbers.

    Attributes:
        seed: Random seed.
    """

    seed: int = option(42, panel=GENERAL, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Threaded(Settings):
    """A command that computes on several CPU threads.

    Attributes:
        threads: CPU threads.
    """

    threads: int | None = option(None, panel=GENERAL, minimum=1, maximum=1024, shown="all cores", recorded=False)


def _is_unset(value: Any, declared: Option | None) -> bool:
    if declared is not None and declared.automatic is not None and value == declared.automatic:
        return True
    return value is None or (isinstance(value, list | tuple | dict) and not value)


@cache
def _declared(kind: Any) -> Mapping[str, Option]:
    options, types = _applied(kind), _types(kind)
    recorded = {name: not _is_path(types[name]) if (own := options[name].recorded) is None else own for name in options}
    return {
        name: replace(declared, recorded=recorded[name], help=_help(kind, name) or declared.help)
        for name, declared in options.items()
    }


def _help(kind: type, name: str) -> str:
    """Return the help of an option from the docstring of the class, or of the first base class that has one."""
    texts = (attributes_of(base).get(name, "") for base in kind.__mro__)
    text = next(filter(None, texts), "")
    return re.sub(r"^[a-z]+(?=[ ,:;])", lambda word: word[0].capitalize(), text)


@cache
def attributes_of(kind: type) -> Mapping[str, str]:
    """Return the section `Attributes` of a class docstring by name; empty without one."""
    *_, section = (vars(kind).get("__doc__") or "").partition(ATTRIBUTES)
    entries = re.findall(r"^ {8}(\w+): (.*(?:\n {9,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


@cache
def _applied(kind: Any) -> Mapping[str, Option]:
    """Return the declarations with the conditions of their scopes and cases."""
    final = _in_order(kind)
    options = dict(final)
    for base in (base for base in reversed(kind.__mro__) if issubclass(base, Settings)):
        for name, conditions in _conditions(base, final):
            own = options[name].applies or (Condition({}),)
            both = (one.joined(other) for other in conditions for one in own)
            options[name] = replace(options[name], applies=tuple(both))
    return options


def _conditions(base: type[Settings], final: Mapping[str, Option]) -> Iterator[tuple[str, Sequence[Condition]]]:
    """Yield the options of the scopes and cases of a class, unless a subclass declares them again, with conditions."""

    def by_name(rows: Sequence[tuple[Sequence[Any], Members]]) -> dict[str, list[Any]]:
        named = {member for _, members in rows for member in members if isinstance(member, str)}
        found: dict[str, list[Any]] = {}
        for values, members in rows:
            for member in members:
                declared = _in_order(base if isinstance(member, str) else member)  # type: ignore[arg-type]
                for name in [member] if isinstance(member, str) else declared.keys() - named:
                    if final[name].applies == declared[name].applies:
                        found.setdefault(name, []).extend(values)
        return found

    for other, rows in vars(base).get("cases", ()):
        yield from ((name, [Condition({other: any_of(values)})]) for name, values in by_name(rows).items() if values)
    yield from by_name(vars(base).get("scopes", ())).items()


def _in_order(kind: type[Settings]) -> dict[str, Option]:
    """Return the declarations in the order of the settings classes, which inherit fields of the library too."""
    declared: dict[str, Option] = {field.name: field.metadata[KEY] for field in fields(kind) if KEY in field.metadata}
    names = (name for base in reversed(kind.__mro__) if issubclass(base, Settings) for name in get_annotations(base))
    return {name: declared[name] for name in dict.fromkeys(names) if name in declared}


def _is_path(kind: Any) -> bool:
    """Return whether a type is a path, or has paths."""
    return kind is Path or any(map(_is_path, get_args(kind)))


@cache
def _types(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _inherited(kind: type[Settings], name: str, changes: Mapping[str, Any]) -> Option:
    """Return an option that a base class declares, with changes; a default of the library takes precedence."""
    libraries = [parent for parent in kind.__bases__ if not issubclass(parent, Settings) and hasattr(parent, name)]
    default = {"default": getattr(libraries[0], name)} if libraries else {}
    bases: Iterator[Any] = (parent for parent in kind.__mro__[1:] if issubclass(parent, Settings))
    declared = next((_applied(parent)[name] for parent in bases if name in _applied(parent)), None)
    values = {**default, **changes}
    return Option(**values) if declared is None else replace(declared, **values)


def command_line(settings: Settings) -> str:
    """Return `hybrid COMMAND ...` with the arguments and the options that were set, to paste into a shell."""
    arguments, options = [], []
    for name, declared in settings.declared().items():
        if name not in settings.given:
            continue
        value = getattr(settings, name)
        if declared.positional:
            arguments += list(map(_text, value)) if isinstance(value, tuple) else [str(value)]
        else:
            options += list(_words(spelling(name, declared, value), value, is_pair(bare_type(settings.types()[name]))))
    for path in plugins.files():
        options += ["--plugin", str(path)]
    return shlex.join(["hybrid", *settings.command.split(), *arguments, *options])


def _words(name: str, value: Any, pair: bool) -> Iterator[str]:
    """Yield the words of one option."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from (name, f"{key}={item}")
    elif isinstance(value, bool):
        yield name
    elif pair:
        yield from (name, *map(_text, value))
    else:
        yield from (name, ",".join(map(_text, value)) if isinstance(value, tuple) else _text(value))


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
