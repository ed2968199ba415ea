"""The base of all settings classes: every option is declared once, and every value is converted and checked.

A settings class is a frozen dataclass. Each field carries its type, default, range, help, panel of the help, and the
variants to which it applies. The command line, `--config`, the Python API, the manifest and the reference of commands
read these declarations. (Dataclasses rather than pydantic: `hybrid --help` imports nothing heavy, values stay plain,
and an error names the option in one line.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from inspect import get_annotations
from typing import Any, ClassVar, Self, get_type_hints

from hybrid_cli.errors import InputError
from hybrid_cli.settings.conversion import byte_count, converted, plain
from hybrid_cli.settings.declaration import (
    GENERAL,
    GIVEN,
    KEY,
    REQUIRED,
    By,
    Condition,
    Option,
    alternatives,
    argument,
    declare,
    option,
    parsed_by,
    registered,
    spelling,
    when,
)

__all__ = [
    "GENERAL",
    "GIVEN",
    "REQUIRED",
    "By",
    "Option",
    "Settings",
    "argument",
    "byte_count",
    "option",
    "parsed_by",
    "redeclare",
    "registered",
    "when",
]

_INHERITED: Any = object()  # in `redeclare`: the default stays


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings classes: the constructor converts and checks values.

    The class docstring is the command's help. None means that an option is not set.

    Attributes:
        given: names of the options that were set explicitly.
        restricted: mixin -> condition under which the options of the mixin apply. Redeclared options keep their own
            `applies`.
        absent: recorded name that is no option, or no longer one -> value that fits manifests without the name: of a
            fact that a later version began to record, or of an option that was removed.
    """

    command: ClassVar[str] = ""
    panel: ClassVar[str] = ""
    examples: ClassVar[tuple[str, ...]] = ()
    given: ClassVar[frozenset[str]] = frozenset()
    restricted: ClassVar[Mapping[type[Settings], Condition]] = {}
    absent: ClassVar[Mapping[str, Any]] = {}

    def __new__(cls, *args: Any, **values: Any) -> Self:
        """Record the names of the set options; the dataclass constructor then assigns the values."""
        made = super().__new__(cls)
        positional = [each.name for each in fields(cls) if each.init and not each.kw_only]
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
                raise InputError(
                    f"{spelling(name, declared)}: needs at least one value", code="missing-value", option=name
                )
            elif _is_unset(value, declared) and not isinstance(declared.default, By):
                value = declared.default
            object.__setattr__(self, name, value)
        for name, declared in self.declared().items():
            if name not in self.given and isinstance(declared.default, By):
                object.__setattr__(self, name, declared.default.resolve(self))
        self.check_facts()
        self.check()

    def check(self) -> None:
        """Refuse options that exclude each other; commands with such rules override this method."""

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
            conditions = self.declared()[name].applies
            if conditions and not any(condition.holds(known) for condition in conditions):
                raise InputError(
                    f"{spelling(name, self.declared()[name], getattr(self, name))}: "
                    f"{self.variants(name)}{self._here(name, subject)}",
                    code="option-does-not-apply", option=name,
                )  # fmt: skip

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
        wanted, excluded = [], []
        for name, allowed in condition.allowed.items():
            other = cls.declared().get(name)
            if other is None and (allowed is GIVEN or allowed is None or isinstance(allowed, bool)):
                continue  # an option that only subclasses have
            label = "" if other is None else name.upper() if other.positional else spelling(name, other)
            if other and allowed in (False, None):
                excluded.append(label)
            elif other and (allowed is GIVEN or allowed is True):
                wanted.append(label)
            else:
                wanted.append(f"{label} {alternatives(allowed if isinstance(allowed, tuple) else (allowed,))}".strip())
        parts = [f"only with {' and '.join(wanted)}"] if wanted else []
        return ", ".join([*parts, *([f"not with {alternatives(excluded)}"] if excluded else [])])

    def _here(self, name: str, subject: str) -> str:
        """Return the current values of the options in the condition, for the message."""
        if subject:
            return f"; {subject}"
        others = {other for each in self.declared()[name].applies for other in each.allowed}
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
            name: plain(getattr(self, name))
            for name, declared in self.declared().items()
            if declared.recorded and self.applies(name, **facts)
        }

    @classmethod
    def default_in(cls, version: str, name: str, options: Mapping[str, Any]) -> Any:
        """Return the default of an option in a version of hybrid, as a JSON value.

        Args:
            version: the version; empty if unknown.
            name: name of the option.
            options: values of the other options, which may decide the default.
        """
        default = cls.declared()[name].default_in(version)
        return plain(default.of(options.get(default.other)) if isinstance(default, By) else default)

    def changed(self, **values: Any) -> Self:
        """Return these settings with other values; None resets an option to its default."""
        return type(self)(**{**{name: getattr(self, name) for name in self.given}, **values})

    @classmethod
    def declared(cls) -> Mapping[str, Option]:
        """Return the declarations by field name."""
        return _declared(cls)  # type: ignore[arg-type]

    @classmethod
    def types(cls) -> Mapping[str, Any]:
        """Return the resolved types by field name."""
        return _types(cls)  # type: ignore[arg-type]


def _is_unset(value: Any, declared: Option | None) -> bool:
    if declared is not None and declared.automatic is not None and value == declared.automatic:
        return True
    return value is None or (isinstance(value, list | tuple | dict) and not value)


@cache
def _declared(kind: Any) -> Mapping[str, Option]:
    found = _in_order(kind)
    for mixin, condition in kind.restricted.items():
        for name, inherited in mixin.declared().items():
            if found[name] is inherited:
                both = [Condition({**each.allowed, **condition.allowed}) for each in inherited.applies]
                found[name] = replace(inherited, applies=tuple(both) or (condition,))
    return found


def _in_order(kind: type[Settings]) -> dict[str, Option]:
    """Return the declarations in the order of the settings classes, which inherit fields of the library too."""
    declared: dict[str, Option] = {each.name: each.metadata[KEY] for each in fields(kind) if KEY in each.metadata}
    names = (name for each in reversed(kind.__mro__) if issubclass(each, Settings) for name in get_annotations(each))
    return {name: declared[name] for name in dict.fromkeys(names) if name in declared}


@cache
def _types(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def redeclare(base: type[Settings], name: str, default: Any = _INHERITED, **more: Any) -> Any:
    """Declare an option of a base class, or of another command, again.

    Args:
        base: class with the option.
        name: field of the option.
        default: another default.
        more: other attributes of `Option`; `applies` as in `option`.
    """
    if default is not _INHERITED:
        more["default"] = default
    if isinstance(more.get("applies"), Condition):
        more["applies"] = (more["applies"],)
    return declare(replace(base.declared()[name], **more))
