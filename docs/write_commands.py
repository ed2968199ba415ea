"""Write the reference of the commands from the settings classes: an index, and one page per command.

python docs/write_commands.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from hybrid_cli.cli.options import DRY_RUN, EVERYWHERE, help_text, in_help_order, metavar, spellings
from hybrid_cli.commands import COMMANDS
from hybrid_cli.settings import Overwrites, Settings
from hybrid_cli.settings.conversion import default_text
from hybrid_cli.settings.options import GENERAL, REQUIRED, Option, spelling

_HEADING = ("| Option | Value | Default | Description |", "|---|---|---|---|")
_WRITING = "Commands that write an artifact."


def pages() -> dict[str, str]:
    """Return the text of each page by its file name, the index first."""
    index = [
        "# Commands",
        "`hybrid STAGE --help` prints the same.",
        _contents(),
        "## Options of every command",
        _shared(),
        "An option marked `only with` or `not with` is an error otherwise. A list is `A,B` or a repeated option "
        "(`-m A -m B`).",
    ]
    return {"index.md": _text(index)} | {name_of(kind): _text(_page(kind)) for kind in COMMANDS}


def name_of(kind: type[Settings]) -> str:
    """Return the file name of the page of a command."""
    return f"{kind.command.replace(' ', '-')}.md"


def _text(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _shared() -> str:
    """Return the table of the options that are declared once for all commands."""
    overwrite = f"{help_text(Overwrites, 'overwrite', default=False)} {_WRITING}"
    lines = [*_HEADING, f"| `--overwrite` |  |  | {_cell(overwrite)} |"]
    for declared in (DRY_RUN, *EVERYWHERE.values()):
        info = get_args(declared)[1]
        text = f"{info.help} {_WRITING}" if declared is DRY_RUN else info.help
        spelled = ", ".join((info.default, *info.param_decls))  # Typer keeps the first spelling in `default`
        lines.append(f"| {_code(spelled)} | {_code(info.metavar)} |  | {_cell(text)} |")
    return "\n".join(lines)


def _contents() -> str:
    rows = ["| Panel | Command | Description |", "|---|---|---|"]
    for kind in COMMANDS:
        name = f"hybrid {kind.command}"
        summary = _help(kind).partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| {kind.panel} | [`{name}`]({name_of(kind)}) | {_cell(summary)} |")
    return "\n".join(rows)


def _help(kind: type[Settings]) -> str:
    return kind.description()


def _page(kind: type[Settings]) -> Iterator[str]:
    yield f"# hybrid {kind.command}"
    yield _help(kind)
    yield "\n".join(["```sh", *kind.examples, "```"])
    own = [(name, declared) for name, declared in in_help_order(kind) if not _is_shared(kind, name)]
    groups = dict.fromkeys("" if declared.positional else declared.panel for _, declared in own)
    for group in sorted(groups, key=lambda name: (name == GENERAL, name != "")):
        rows = [(name, each) for name, each in own if ("" if each.positional else each.panel) == group]
        yield (f"*{group}*\n\n" if group else "") + _table(kind, rows)


def _is_shared(kind: type[Settings], name: str) -> bool:
    return name == "overwrite" and issubclass(kind, Overwrites)


def _table(kind: type[Settings], rows: list[tuple[str, Option]]) -> str:
    lines = [*_HEADING]
    for name, declared in rows:
        spelled = name.upper() if declared.positional else ", ".join(declared.names or (_switch(kind, name, declared),))
        value = metavar(declared, kind.types()[name])
        cells = (_code(spelled), _code(value), _default(declared), _cell(help_text(kind, name, default=False)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _switch(kind: type[Settings], name: str, declared: Option) -> str:
    """Return the spelling of an option, with its negation if it has one."""
    spelled = spelling(name, declared)
    negated = f"--no-{spelled.removeprefix('--')}"
    return f"{spelled}/{negated}" if negated in spellings(kind) else spelled


def _default(declared: Option) -> str:
    if declared.default is REQUIRED:
        return "required"
    text = default_text(declared)
    return text if declared.shown is not None else _code(text)


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|")


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
