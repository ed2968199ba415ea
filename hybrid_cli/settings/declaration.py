"""What an option declares: default, help, range, choices, and the variants that it applies to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from importlib import import_module
from typing import Any, cast

REQUIRED: Any = MISSING
GENERAL = "General"
KEY = "option"


class _Given:
    def __repr__(self) -> str:
        return "GIVEN"


GIVEN: Any = _Given()  # in `when`: the other option must be set, to whatever value


@dataclass(frozen=True)
class By:
    """A default that another option decides.

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
        return self.values.get(getattr(settings, self.other), self.otherwise)

    def __str__(self) -> str:
        named = [f"{shown_value(value)} for {key}" for key, value in self.values.items()]
        return "; ".join([*([] if self.otherwise is None else [shown_value(self.otherwise)]), *named])


@dataclass(frozen=True)
class Condition:
    """One way in which an option applies: every named option (or fact) has one of the listed values."""

    allowed: Mapping[str, Any]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Test the condition; a fact that is not known yet does not count against it."""
        return all(_matches(values[name], allowed) for name, allowed in self.allowed.items() if name in values)


def shown_value(value: Any) -> str:
    """Return a value as the help prints it: `0.05`, `1,2`."""
    if isinstance(value, tuple):
        return ",".join(map(shown_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def when(**allowed: Any) -> Condition:
    """Declare that an option applies where the named options have these values: `when(loss=("nll", "roc"))`.

    A value may be a tuple of alternatives, or `GIVEN`. A name that is no field of the class is a fact that only the
    stage knows, such as the kind of an index; see `Settings.check_facts`. Of a list option, and of a fact that is a
    frozenset, one item must be allowed.
    """
    return Condition(allowed)


def _matches(value: Any, allowed: Any) -> bool:
    if allowed is GIVEN:
        return value is not None and value is not False and value != () and value != {}
    wanted = allowed if isinstance(allowed, tuple) else (allowed,)
    return not set(wanted).isdisjoint(value) if isinstance(value, frozenset | tuple) else value in wanted


@dataclass(frozen=True)
class Option:
    """What a field of a settings class declares besides its type.

    Attributes:
        default: value, `By`, or REQUIRED.
        help: one line; a sentence that stands alone.
        names: spellings on the command line, if not `--field-name`; `--tied/--untied` for a switch.
        panel: group in the help.
        minimum, maximum, above: inclusive range, and exclusive lower bound, of numbers.
        choices: allowed values, their meaning where it is a mapping, or a function that returns them.
        parse: text to value, for units such as `2G`; raises ValueError with the reason.
        metavar: placeholder of the value in the help.
        shown: the default in words, where the value would not say it.
        applies: conditions, one of which must hold; empty if the option always applies.
        recorded: the value is part of the manifest's options (and so decides whether an output is up to date).
        positional: an argument, not an option.
    """

    default: Any
    help: str
    names: tuple[str, ...] = ()
    panel: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: Collection[str] | Callable[[], Collection[str]] | None = None
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    shown: str | None = None
    applies: tuple[Condition, ...] = ()
    recorded: bool = True
    positional: bool = False

    def allowed(self) -> Collection[str] | None:
        """Return the choices, reading a registry only now."""
        return self.choices() if callable(self.choices) else self.choices


def option(default: Any, help: str, *names: str, applies: Condition | Sequence[Condition] = (), **more: Any) -> Any:
    """Declare an option as the default of a dataclass field; see `Option`."""
    conditions = (applies,) if isinstance(applies, Condition) else tuple(applies)
    return declare(Option(default, help, names, applies=conditions, **more))


def argument(default: Any, help: str, **more: Any) -> Any:
    """Declare a positional argument as the default of a dataclass field; see `Option`."""
    return declare(Option(default, help, positional=True, recorded=False, **more))


def declare(declared: Option) -> Any:
    """Return the dataclass field of a declaration."""
    if declared.default is REQUIRED:
        return field(metadata={KEY: declared})
    default = None if isinstance(declared.default, dict) else declared.default  # a dataclass refuses mutable defaults
    return field(default=default, metadata={KEY: declared})


def registered(module: str, name: str) -> Callable[[], Collection[str]]:
    """Return choices that live in a registry next to the functions they name, imported only when needed."""
    return lambda: cast("Collection[str]", getattr(import_module(module), name))


def parsed_by(module: str, name: str) -> Callable[[str], Any]:
    """Return a parser of text that is imported only when needed."""
    return lambda text: getattr(import_module(module), name)(text)


def spelling(name: str, declared: Option, value: Any = None) -> str:
    """Return the name that messages use: `--rrf-k`, or the bare name of an argument; `--no-flag` for a value False."""
    if declared.positional:
        return name
    on, _, off = (declared.names[0] if declared.names else "--" + name.replace("_", "-")).partition("/")
    if value is False and declared.default is not False:
        return off or on.replace("--", "--no-", 1)
    return on
