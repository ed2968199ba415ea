"""The application: one command per settings class, each calling the stage of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hybrid_cli import console
from hybrid_cli.cli import startup
from hybrid_cli.cli.options import EVERYWHERE, add_command, without_types
from hybrid_cli.cli.removed import removed_error
from hybrid_cli.commands import ALL_COMMANDS, COMMANDS, READERS
from hybrid_cli.errors import InputError
from hybrid_cli.settings import Settings
from hybrid_cli.version import __version__

PLUGIN = EVERYWHERE["plugin"]
GROUPS = {"prepare": "Import a collection: `prepare SOURCE ... --output FOLDER`."}
PRINTERS = {  # command -> module:function that prints the result of its stage, and may return an exit code
    "search": "hybrid_cli.reporting.terminal:show_hits",
    "evaluate": "hybrid_cli.reporting.summary:show",
    "gate": "hybrid_cli.reporting.gate:show",
    "inspect": "hybrid_cli.reporting.inspect:show",
    "doctor": "hybrid_cli.reporting.terminal:show_checks",
}


class _Group(TyperGroup):
    """A group that builds a command when it is called; its help lists names and first lines."""

    listing = False

    def own(self) -> dict[str, type[Settings]]:
        """Return name -> settings class of the commands of this group."""
        return {
            name: kind for kind in COMMANDS for group, _, name in [kind.command.rpartition(" ")] if group == self.name
        }

    def others(self) -> dict[str, Callable[[], type[Settings]]]:
        """Return name -> function that imports the settings class, of the readers of plugins."""
        return {entry.name: partial(READERS.__getitem__, entry.name) for entry in READERS.others()}

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, without the placeholder `<bool>` in the help."""
        return without_types(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of plugins last."""
        return [*self.own(), *self.others()]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, for which no option of a command is needed."""
        self.listing = True
        super().format_help(ctx, formatter)
        self.listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a help, one of a plugin that fails is left out with a warning."""
        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        try:
            kind = self._settings_of(cmd_name)
        except InputError as error:
            console.warn(str(error), code=error.code, **error.fields)
            return None
        return kind and self._built(cmd_name, kind)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run; one of a plugin that fails, or that was removed, is an error."""
        if args and args[0] in self.others():
            return args[0], self._built(args[0], self.others()[args[0]]()), args[1:]
        words = " ".join([*ctx.command_path.split()[1:], *args[:1]])
        if args[:1] and args[0] not in self.list_commands(ctx) and not ctx.resilient_parsing:
            raise removed_error(words) or self._unknown(words, ctx)
        return super().resolve_command(ctx, args)

    def _unknown(self, words: str, ctx: Any) -> InputError:
        """Return the error about a command that does not exist; it names the most similar one."""
        *group, name = words.split(" ")
        close = get_close_matches(name, self.list_commands(ctx), n=1)
        similar = " ".join([*group, *close]) if close else None
        hint = f"did you mean `hybrid {similar}`?" if similar else f"see `{ctx.command_path} --help`"
        return InputError(f"no command {words!r}; {hint}", code="no-such-command", command=words, similar=similar)

    def _settings_of(self, name: str) -> type[Settings] | None:
        return self.own().get(name) or (self.others()[name]() if name in self.others() else None)

    def _built(self, name: str, kind: type[Settings]) -> Any:
        if self.listing:
            return TyperCommand(name, help=kind.description(), rich_help_panel=kind.panel)
        single = typer.Typer(rich_markup_mode=app.rich_markup_mode, add_completion=False)
        add_command(single, kind, run, name)
        return typer.main.get_command(single)


class _Program(_Group):
    """All commands, in the order of a pipeline."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run; `help COMMAND` is `COMMAND --help`."""
        if args == ["help"]:
            typer.echo(ctx.get_help())
            raise typer.Exit
        return super().resolve_command(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def own(self) -> dict[str, type[Settings]]:
        """Return name -> settings class of the commands outside of a group."""
        return {kind.command: kind for kind in COMMANDS if " " not in kind.command}

    def others(self) -> dict[str, Callable[[], type[Settings]]]:
        """Return name -> function that imports the settings class, of the commands of plugins."""
        return {entry.name: partial(_settings_of, entry.name) for entry in ALL_COMMANDS.others()}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands and groups."""
        return list(dict.fromkeys(name.split()[0] for name in ALL_COMMANDS))


def _settings_of(command: str) -> type[Settings]:
    return ALL_COMMANDS[command].settings


app = typer.Typer(
    name="hybrid",
    cls=_Program,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def hybrid(
    version: bool = typer.Option(False, "--version", "-V", metavar="", help="Print the version and exit."),
    plugin: PLUGIN = None,  # type: ignore[valid-type]
) -> None:
    """Train, run and analyze **hybrid first-stage retrieval**: BM25 plus dense.

    Each stage reads artifacts and writes one; stages chain in any shell. `hybrid STAGE --help` shows examples.
    """
    if version:
        typer.echo(__version__)
        raise typer.Exit


def run(settings: Settings) -> int | None:
    """Call the stage of a settings object, and print the result of commands in `PRINTERS`.

    Returns:
        The exit code of a result that is no error; None for 0.
    """
    from hybrid_cli.stages import call

    startup.keep_pandas_out()
    result = call(settings)
    if printer := PRINTERS.get(settings.command):
        module, _, function = printer.partition(":")
        code: int | None = getattr(import_module(module), function)(result, settings)
        return code
    for text in (result,) if isinstance(result, str) else result if isinstance(result, Iterator) else ():
        console.result(text)
    return None


for _name, _help in GROUPS.items():
    _panels = [kind.panel for kind in COMMANDS if kind.command.startswith(f"{_name} ")]
    app.add_typer(typer.Typer(cls=_Group, no_args_is_help=True, help=_help), name=_name, rich_help_panel=_panels[0])
