"""Options from the parameters of a function of a plugin: types and defaults from its signature, help from `Args`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, make_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from hybrid_cli.errors import InputError
from hybrid_cli.settings import Settings
from hybrid_cli.settings.conversion import bare_type, converted, is_list, is_mapping
from hybrid_cli.settings.options import REQUIRED, Option, declare

S = TypeVar("S", bound=Settings)
_PLAIN = (str, int, float, bool, Path)
_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n {8,}.+)*)", re.MULTILINE)


def settings_of(function: Callable[..., Any], base: type[S], name: str, **attributes: Any) -> type[S]:
    """Return a settings class with an argument for each required parameter, and an option for each other one.

    Args:
        function: function of a plugin; its docstring is the help of the command.
        base: class with the options that all commands of this sort have.
        name: name of the class.
        attributes: other attributes of the class, such as `command`.

    Raises:
        ValueError: the function has a parameter without type or description, or with the name of another option.
    """
    options = options_of(function)
    if taken := sorted(options.keys() & base.declared().keys()):
        raise ValueError(f"parameter {taken[0]}: is an option of every such command; rename it")
    types = _types(function)
    order = sorted(options, key=lambda name: not options[name].positional)
    arguments = [(name, types[name], declare(options[name])) for name in order if options[name].positional]
    others = [(name, types[name], declare(options[name])) for name in order if not options[name].positional]
    text = inspect.getdoc(function) or ""
    usage = " ".join(["hybrid", attributes["command"], *(name.upper() for name, *_ in arguments)])
    namespace = {
        "__module__": function.__module__,
        "__doc__": re.split(r"^(?:Args|Returns|Raises|Yields):$", text, maxsplit=1, flags=re.MULTILINE)[0].strip(),
        "examples": (f"{usage} --output out/{name.lower()}",),
        **attributes,
    }
    made: type[S] = make_dataclass(
        name, [*arguments, ("_", KW_ONLY), *others], bases=(base,), namespace=namespace, frozen=True
    )
    return made


def options_of(function: Callable[..., Any], besides: Set[str] = frozenset()) -> dict[str, Option]:
    """Return the declared options of the parameters of a function.

    Args:
        function: the function.
        besides: parameters that are no options.

    Raises:
        ValueError: a parameter without type or description.
    """
    described, types = _descriptions(function), _types(function)
    options = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in besides:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(f"parameter *{name}: options need a name each")
        if name not in types or not _is_usable(types[name]):
            raise ValueError(f"parameter {name}: needs a type: text, number, bool, Path, Literal, or several of them")
        if name not in described:
            raise ValueError(f"parameter {name}: needs a line `{name}: MEANING` below `Args:` in the docstring")
        required = parameter.default is parameter.empty
        options[name] = Option(
            REQUIRED if required else parameter.default,
            described[name],
            recorded=Path not in _parts(types[name]),
            positional=required and parameter.kind is not parameter.KEYWORD_ONLY,
        )
    return options


def values_of(function: Callable[..., Any], texts: Mapping[str, Any], option: str, besides: Set[str]) -> dict[str, Any]:
    """Return the values of parameters that an option such as `--loss-option` sets by name, converted and checked.

    Args:
        function: function with the parameters.
        texts: name -> value, as text or already converted.
        option: spelling of the option, for messages.
        besides: parameters that have a value from elsewhere.

    Raises:
        InputError: no such parameter, one without a value, or a value of another type.
    """
    known = {
        name: parameter for name, parameter in inspect.signature(function).parameters.items() if name not in besides
    }
    if unknown := [name for name in texts if name not in known]:
        choices = f"it has {', '.join(known)}" if known else "it has none"
        problem = f"{option} {unknown[0]}: unknown parameter of {function.__name__}; {choices}"
        raise InputError(problem, code="unknown-parameter", name=unknown[0], choices=[*known])
    if missing := [
        name for name, parameter in known.items() if parameter.default is parameter.empty and name not in texts
    ]:
        problem = f"{option}: {function.__name__} needs {missing[0]}; pass {option} {missing[0]}=VALUE"
        raise InputError(problem, code="missing-parameter", name=missing[0])
    hints = _types(function) if texts else {}
    values = {}
    for name, value in texts.items():
        declared, kind = Option(None, "", names=(f"{option} {name}",)), hints.get(name, type(known[name].default))
        values[name] = converted(name, declared, kind, _from_text(kind, value))
    return values


def _from_text(kind: Any, value: Any) -> Any:
    return {"true": True, "false": False}.get(value, value) if bare_type(kind) is bool else value


def _types(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError as error:
        raise ValueError(f"type {error.name}: is imported for type checks only; import it outside of them") from None


def _is_usable(kind: Any) -> bool:
    bare = bare_type(kind)
    return bare in _PLAIN or get_origin(bare) is Literal or (is_list(bare) or is_mapping(bare))


def _parts(kind: Any) -> Sequence[Any]:
    """Return a type, and those of its values."""
    bare = bare_type(kind)
    return [bare, *get_args(bare)]


def _descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each parameter below `Args:` in a docstring, as a sentence."""
    text = inspect.getdoc(function) or ""
    section = re.split(r"^\w+:$", text.partition("\nArgs:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    joined = {name: " ".join(words.split()) for name, words in _ARGUMENT.findall(section)}
    return {name: f"{words[0].upper()}{words[1:].removesuffix('.')}." for name, words in joined.items()}
