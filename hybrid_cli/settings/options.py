"""Declarations of options: default, help, range, choices, and the variants to which an option applies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from importlib import import_module
from typing import Any, cast

REQUIRED: Any = MISSING
GENERAL = "General"
KEY = "option"


class _Given:
    def __repr__(self) -> str:
        return "GIVEN"


GIVEN: Any = _Given()  # in `when`: the other option must be set, to any value
POSITIVE: Any = object()  # in `when`: the other option must be a number above 0


@dataclass(frozen=True)
class By:
    """A default that depends on another option.

    Attributes:
        other: name of the other option; its values are the keys of `values`.
        values: value of the other option -> default.
        otherwise: default for all other values.
    """

    other: str
    values: Mapping[Any, Any]
    otherwise: Any = None

    def resolve(self, settings: Any) -> Any:
        """Return the default under these settings."""
        return self.of(getattr(settings, self.other))

    def of(self, value: Any) -> Any:
        """Return the default for a value of the other option."""
        return self.values.get(value, self.otherwise)

    def __str__(self) -> str:
        named = [f"{shown_value(value)} for {key}" for key, value in self.values.items()]
        return "; ".join([*([] if self.otherwise is None else [shown_value(self.otherwise)]), *named])


@dataclass(frozen=True)
class Condition:
    """A condition for an option to apply: every named option (or fact) has one of the listed values."""

    allowed: Mapping[str, Any]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the condition holds; unknown facts are ignored."""
        return all(_matches(values[name], allowed) for name, allowed in self.allowed.items() if name in values)

    def joined(self, other: Condition) -> Condition:
        """Return the condition that both hold; of the values of an option in both, those that both allow."""
        allowed = {**self.allowed, **other.allowed}
        for name in self.allowed.keys() & other.allowed.keys():
            if self.allowed[name] != allowed[name]:
                own, others = _several(self.allowed[name]), _several(allowed[name])
                allowed[name] = any_of([value for value in own if value in others])
        return Condition(allowed)


Members = Sequence[str | type]  # names of options, or settings classes
Scope = tuple[Sequence[Condition], Members]
Cases = tuple[str, Sequence[tuple[tuple[Any, ...], Members]]]


def shown_value(value: Any) -> str:
    """Return a value as the help prints it: `0.05`, `1,2`."""
    if isinstance(value, tuple):
        return ",".join(map(shown_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def when(**allowed: Any) -> Condition:
    """Declare that an option applies if the named options have these values: `when(loss=("nll", "roc"))`.

    A value may be a tuple of alternatives, or `GIVEN`. A name that is not a field of the class is a fact that only the
    stage knows, such as the kind of an index; see `Settings.check_facts`. For a list option or a frozenset of facts,
    one allowed item is enough.
    """
    return Condition(allowed)


def scope(condition: Condition | Sequence[Condition], *members: str | type) -> tuple[Scope, ...]:
    """Declare that options apply only under a condition, or under one of several; see `Settings.scopes`.

    Args:
        condition: one or several conditions.
        members: names of options, or settings classes, for the options that these declare, except for those that a
            scope names.

    Returns:
        One scope; `+` joins several.
    """
    return ((in_tuple(condition), members),)


def options_by(name: str, members: Mapping[Any, Members]) -> tuple[Cases, ...]:
    """Declare which options each value of an option, or of a fact, has; see `Settings.cases`.

    Args:
        name: the option or fact.
        members: a value, or a tuple of values -> names of options, or settings classes, as for `scope`. An option in
            several rows applies in each of them; an option in none, or in the row `()`, does not depend on `name`.

    Returns:
        One table; `+` joins several.
    """
    return ((name, [(_several(values), row) for values, row in members.items()]),)


def any_of(values: Sequence[Any]) -> Any:
    """Return what a condition allows: one value, or a tuple of alternatives."""
    return values[0] if len(values) == 1 else tuple(values)


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _matches(value: Any, allowed: Any) -> bool:
    if allowed is POSITIVE:
        return value is not None and value > 0
    if allowed is GIVEN:
        return value is not None and value is not False and value != () and value != {}
    if allowed is None and value in ((), {}):
        return True
    wanted = _several(allowed)
    return not set(wanted).isdisjoint(value) if isinstance(value, frozenset | tuple) else value in wanted


@dataclass(frozen=True)
class Option:
    """Declaration of a field of a settings class, in addition to its type.

    Attributes:
        default: value, `By`, or REQUIRED.
        help: one or two lines; by default the text of the section `Attributes` of the class docstring.
        names: spellings on the command line, if different from `--field-name`; `--tied/--untied` for a flag.
        panel: group in the help.
        minimum, maximum: inclusive range of a number.
        above: exclusive lower bound of a number.
        choices: allowed values, a mapping from values to meanings, or a function that returns the values.
        parse: function from text to value, for units such as `2G`; raises ValueError with the reason.
        metavar: placeholder of the value in the help.
        shown: the default in words, if the value is not informative.
        automatic: text that selects the default, such as `auto`.
        applies: conditions, one of which must hold; empty if the option always applies.
        needed: conditions under which the option must be set.
        excluded: conditions under which the option must not be set; unlike an option that does not apply, it is
            recorded.
        recorded: the manifest stores the value, so a change makes the output out of date; None for all but paths.
        positional: an argument instead of an option.
    """

    default: Any
    help: str = ""
    names: tuple[str, ...] = ()
    panel: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: Collection[str] | Callable[[], Collection[str]] | None = None
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    shown: str | None = None
    automatic: str | None = None
    applies: Sequence[Condition] = ()
    needed: Sequence[Condition] = ()
    excluded: Sequence[Condition] = ()
    recorded: bool | None = None
    positional: bool = False

    def allowed(self) -> Collection[str] | None:
        """Return the choices; a registry is imported here."""
        return self.choices() if callable(self.choices) else self.choices


def option(default: Any, *names: str, **more: Any) -> Any:
    """Declare an option as the default of a dataclass field; see `Option`. One condition needs no tuple.

    The class docstring has its help, in the section `Attributes`.

    Args:
        default: value, `By`, or REQUIRED.
        names: spellings on the command line, if different from `--field-name`.
        more: attributes of `Option`.

    Raises:
        TypeError: a name does not start with `-`; a help is no argument.
    """
    if wrong := [name for name in names if not name.startswith("-")]:
        raise TypeError(f"option({default!r}, {wrong[0]!r}): the help belongs in the docstring of the class")
    return declare(Option(default, names=names, **in_tuples(more)))


def argument(default: Any, **more: Any) -> Any:
    """Declare a positional argument as the default of a dataclass field; see `option`."""
    return declare(Option(default, positional=True, recorded=False, **in_tuples(more)))


def inherited(*names: str, **changes: Any) -> Any:
    """Declare an option of a base class again, with some other attributes.

    An option of a dataclass of the library has its default there.
    """
    return field(metadata={KEY: {**({"names": names} if names else {}), **in_tuples(changes)}})  # see `Settings`


def redeclare(base: Any, name: str, **changes: Any) -> Any:
    """Declare an option of another command again, with some other attributes; see `Option`."""
    declared: Option = base.declared()[name]
    return declare(replace(declared, **in_tuples(changes)))


def in_tuples(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an option, single conditions as tuples."""
    return {name: in_tuple(value) for name, value in attributes.items()}


def in_tuple(value: Any) -> Any:
    """Return a single condition as a tuple; other values are unchanged."""
    return (value,) if isinstance(value, Condition) else value


def declare(declared: Option) -> Any:
    """Return the dataclass field of a declaration."""
    if declared.default is REQUIRED:
        return field(metadata={KEY: declared})
    default = None if isinstance(declared.default, dict) else declared.default  # dataclasses refuse mutable defaults
    return field(default=default, metadata={KEY: declared})


def registered(module: str, name: str, *more: str) -> Callable[[], Collection[str]]:
    """Return a function that imports a registry and returns its keys, and `more`, as choices."""
    return lambda: (*cast("Collection[str]", getattr(import_module(module), name)), *more)


def parsed_by(module: str, name: str) -> Callable[[str], Any]:
    """Return a parser of text that is imported on first use."""
    return lambda text: getattr(import_module(module), name)(text)


def alternatives(words: Sequence[str]) -> str:
    """Return alternatives in words: `hnsw, hnsw-fp16 or hnsw-sq8`."""
    *first, last = words
    return " or ".join([", ".join(first), last]) if first else last


def spelling(name: str, declared: Option, value: Any = None) -> str:
    """Return the name of an option in messages: `--rrf-k`, bare for an argument, `--no-flag` for a False flag."""
    if declared.positional:
        return name
    on, _, off = (declared.names[0] if declared.names else "--" + name.replace("_", "-")).partition("/")
    if value is False and declared.default is not False:
        return off or on.replace("--", "--no-", 1)
    return on


def bare_name(name: Any) -> str:
    """Return the common form of `--fb-terms`, `fb-terms` and `fb_terms`."""
    return str(name).lstrip("-").replace("_", "-")
