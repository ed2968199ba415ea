"""The application: one command per settings class, each calling the stage of its name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from hybrid_cli import console
from hybrid_cli.cli.options import EVERYWHERE, add_command, without_types
from hybrid_cli.errors import InputError
from hybrid_cli.settings import ALL_COMMANDS, COMMANDS, READERS, Settings, command_names
from hybrid_cli.stages import call
from hybrid_cli.version import __version__

PLUGIN = EVERYWHERE["plugin"]
GROUPS = {"prepare": "Import a collection: `prepare SOURCE ... --output FOLDER`."}
PRINTERS = {  # command -> module:function that prints the result of its stage, and may return an exit code
    "search": "hybrid_cli.reporting.terminal:show_hits",
    "evaluate": "hybrid_cli.reporting.evaluate:show",
    "gate": "hybrid_cli.reporting.gate:show",
    "inspect": "hybrid_cli.reporting.inspect:show",
    "verify": "hybrid_cli.reporting.inspect:show_verified",
    "presets": "hybrid_cli.reporting.terminal:show_presets",
    "doctor": "hybrid_cli.reporting.terminal:show_checks",
}


class _Group(TyperGroup):
    """A group with the commands of plugins, whose settings are imported for a help or when they are run."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, without the placeholder `<bool>` in the help."""
        return without_types(super().get_params(ctx))

    def others(self) -> dict[str, Callable[[], type[Settings]]]:
        """Return name -> function that imports the settings class, of the readers of plugins."""
        return {entry.name: partial(READERS.__getitem__, entry.name) for entry in READERS.others()}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of plugins last."""
        return [*super().list_commands(ctx), *self.others()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a help, one of a plugin that fails is left out with a warning."""
        if (command := super().get_command(ctx, cmd_name)) is not None or cmd_name not in self.others():
            return command
        try:
            return self._added(cmd_name)
        except InputError as error:
            console.warn(str(error), code=error.code, **error.fields)
            return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run; one of a plugin that fails is an error."""
        if args and args[0] in self.others():
            return args[0], self._added(args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def _added(self, name: str) -> Any:
        single = typer.Typer(rich_markup_mode=app.rich_markup_mode, add_completion=False)
        add_command(single, self.others()[name](), run, name)
        return typer.main.get_command(single)


class _InPipelineOrder(_Group):
    """A group that lists commands in the order of `COMMANDS`; Typer would list groups last."""

    def others(self) -> dict[str, Callable[[], type[Settings]]]:
        """Return name -> function that imports the settings class, of the commands of plugins."""
        return {entry.name: partial(_settings_of, entry.name) for entry in ALL_COMMANDS.others()}

    def list_commands(self, ctx: Any) -> list[str]:
        order = list(dict.fromkeys(name.split()[0] for name in command_names()))
        return sorted(super().list_commands(ctx), key=lambda name: order.index(name) if name in order else -1)


def _settings_of(command: str) -> type[Settings]:
    return ALL_COMMANDS[command].settings


app = typer.Typer(
    name="hybrid",
    cls=_InPipelineOrder,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def hybrid(
    version: bool = typer.Option(False, "--version", metavar="", help="Print the version and exit."),
    plugin: PLUGIN = None,  # type: ignore[valid-type]
) -> None:
    """Train, run and analyze **hybrid first-stage retrieval**: BM25 plus dense.

    Each stage reads artifacts and writes one; stages chain in any shell. `hybrid STAGE --help` shows examples.
    """
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _register() -> None:
    groups: dict[str, typer.Typer] = {}
    for kind in COMMANDS:
        group, _, name = kind.command.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(cls=_Group, no_args_is_help=True, help=GROUPS[group])
            app.add_typer(groups[group], name=group, rich_help_panel=kind.panel)
        add_command(groups.get(group, app), kind, run, name)


def run(settings: Settings) -> int | None:
    """Call the stage of a settings object, and print the result of commands in `PRINTERS`.

    Returns:
        The exit code of a result that is no error; None for 0.
    """
    result = call(settings)
    if printer := PRINTERS.get(settings.command):
        module, _, function = printer.partition(":")
        code: int | None = getattr(import_module(module), function)(result, settings)
        return code
    if isinstance(result, str):  # of a command of a plugin
        console.result(result)
    return None


_register()
