"""Write docs/commands.md from the commands' own declarations; `tests/test_docs.py` holds the file to them.

python docs/write_commands.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from typer import Typer
from typer.models import ArgumentInfo, OptionInfo

from hybrid_cli.cli import app
from hybrid_cli.cli.common import GENERAL

PAGE = Path(__file__).parent / "commands.md"
_EXAMPLES = re.compile(r"\n\s*Examples?:(\s*`[^`]+`)+\s*$")
_TYPES = {Path: "PATH", int: "INTEGER", float: "NUMBER", str: "TEXT", bool: ""}


@dataclass(frozen=True)
class Parameter:
    """One argument or option as the help shows it.

    Attributes:
        spelling: `--hits, -k`, or the name of an argument.
        value: what it takes; empty for a flag.
        default: in code where one could type it, else in words; empty where there is none.
        panel: the group of the help it stands in.
    """

    spelling: str
    value: str
    default: str
    help: str
    panel: str
    required: bool
    argument: bool


@dataclass(frozen=True)
class Command:
    """One command: its whole name, its panel, its help without the examples, the examples, its parameters."""

    name: str
    panel: str
    help: str
    examples: tuple[str, ...]
    parameters: tuple[Parameter, ...]


def commands(typer: Typer = app, prefix: str = "hybrid", panel: str = "") -> Iterator[Command]:
    """All commands, those of groups first, in the order in which they are registered."""
    for group in typer.registered_groups:
        if group.typer_instance:
            yield from commands(group.typer_instance, f"{prefix} {group.name}", str(group.rich_help_panel))
    for info in typer.registered_commands:
        if info.callback is None:
            continue
        text = inspect.getdoc(info.callback) or ""
        found = _EXAMPLES.search(text)
        examples = tuple(" ".join(line.split()) for line in re.findall(r"`([^`]+)`", found[0])) if found else ()
        declared = inspect.signature(info.callback).parameters.values()
        yield Command(
            f"{prefix} {info.name}",
            panel or str(info.rich_help_panel),
            _EXAMPLES.sub("", text),
            examples,
            tuple(map(parameter, declared)),
        )


def parameter(declared: inspect.Parameter) -> Parameter:
    """An argument or option from its place in a command's signature: `name: Annotated[type, Option] = default`."""
    kind, info = get_args(declared.annotation)[:2]
    argument = isinstance(info, ArgumentInfo)
    assert isinstance(info, OptionInfo | ArgumentInfo), f"{declared.name} is declared without typer.Option"
    # in `Annotated`, typer keeps the first spelling as the default of the declaration
    names = [name for name in map(str, (info.default, *(info.param_decls or ()))) if name.startswith("-")]
    if argument:
        names = [info.metavar or declared.name]
    elif not names:
        names = [f"--{declared.name.replace('_', '-')}"]
    required = declared.default is inspect.Parameter.empty
    default = "" if required else _spelt(declared.default, names)
    if isinstance(info.show_default, str):
        default = f"({info.show_default})"
    value = "" if argument else info.metavar or _value(kind, info)
    return Parameter(
        ", ".join(names),
        value,
        default,
        " ".join((info.help or "").split()),
        info.rich_help_panel or "",
        required,
        argument,
    )


def _value(kind: Any, info: OptionInfo | ArgumentInfo) -> str:
    if get_origin(kind) in (Union, UnionType):
        return _value(next(arm for arm in get_args(kind) if arm is not NoneType), info)
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is list:
        return f"{_value(get_args(kind)[0], info)} (repeatable)"
    least = f" from {info.min:g}" if info.min is not None else ""
    most = f" to {info.max:g}" if info.max is not None else ""
    return f"{_TYPES[kind]}{least}{most}"


def _spelt(value: Any, names: list[str]) -> str:
    if value is None or value is False:
        return ""
    if value is True:  # of `--tied/--untied`, the first
        value = names[0].split("/")[0]
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


# ------------------------------------------------------------------------------------------------------------ the page


def page() -> str:
    """The whole of docs/commands.md."""
    found = list(commands())
    shared = _shared(found)
    panels = list(dict.fromkeys(command.panel for command in found))
    parts = [
        "# Commands",
        "Written by `make docs` from the help of the commands; a test fails where the two differ. "
        "`hybrid STAGE --help` prints the same.",
        _contents(found, panels),
        "## Options of every command",
        "`--overwrite` and `--dry-run` belong to the commands that write an artifact; the others are everywhere.",
        _table(shared),
    ]
    for panel in panels:
        parts.append(f"## {panel}")
        for command in (command for command in found if command.panel == panel):
            parts += _section(command, shared)
    return "\n\n".join(parts) + "\n"


def _shared(found: list[Command]) -> tuple[Parameter, ...]:
    """The general options of all commands that write."""
    writing = [command for command in found if any(each.spelling == "--overwrite" for each in command.parameters)]
    return tuple(
        each
        for each in writing[0].parameters
        if each.panel == GENERAL and all(each in command.parameters for command in writing)
    )


def _contents(found: list[Command], panels: list[str]) -> str:
    rows = ["| Panel | Command | |", "|---|---|---|"]
    for panel in panels:
        for command in (command for command in found if command.panel == panel):
            first = command.help.partition("\n\n")[0].replace("\n", " ")
            rows.append(f"| {panel} | [`{command.name}`](#{command.name.replace(' ', '-')}) | {_cell(first)} |")
    return "\n".join(rows)


def _section(command: Command, shared: tuple[Parameter, ...]) -> Iterator[str]:
    yield f"### {command.name}"
    yield command.help
    yield "\n".join(["```sh", *command.examples, "```"])
    own = [each for each in command.parameters if each not in shared]
    groups = dict.fromkeys("" if each.argument else each.panel for each in own)
    for group in sorted(groups, key=lambda name: (name == GENERAL, name != "")):
        rows = [each for each in own if ("" if each.argument else each.panel) == group]
        yield (f"*{group}*\n\n" if group else "") + _table(rows)


def _table(rows: tuple[Parameter, ...] | list[Parameter]) -> str:
    lines = ["| | Takes | Default | |", "|---|---|---|---|"]
    for each in rows:
        takes = "" if not each.value else f"`{each.value}`"
        default = "required" if each.required else each.default
        lines.append(f"| `{_cell(each.spelling)}` | {_cell(takes)} | {_cell(default)} | {_cell(each.help)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
