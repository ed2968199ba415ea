"""The application: one command per settings class, each calling the stage of its name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from hybrid_cli.cli.options import add_command, without_types
from hybrid_cli.settings import COMMANDS, Settings
from hybrid_cli.stages import call
from hybrid_cli.version import __version__

GROUPS = {"prepare": "Import a collection: `prepare SOURCE ... --output FOLDER`."}
PRINTERS = {  # command -> module:function that prints the result of its stage
    "search": "hybrid_cli.reporting.terminal:show_hits",
    "evaluate": "hybrid_cli.reporting.evaluate:show",
    "inspect": "hybrid_cli.reporting.inspect:show",
    "verify": "hybrid_cli.reporting.verify:show",
    "presets": "hybrid_cli.reporting.terminal:show_presets",
    "doctor": "hybrid_cli.reporting.terminal:show_checks",
}


class _Group(TyperGroup):
    """A group whose help shows flags without `<bool>`."""

    def get_params(self, ctx: Any) -> Any:
        return without_types(super().get_params(ctx))


class _InPipelineOrder(_Group):
    """A group that lists commands in the order of `COMMANDS`; Typer would list groups last."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = list(dict.fromkeys(kind.command.split()[0] for kind in COMMANDS))
        return sorted(super().list_commands(ctx), key=lambda name: order.index(name) if name in order else -1)


app = typer.Typer(
    name="hybrid",
    cls=_InPipelineOrder,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def hybrid(version: bool = typer.Option(False, "--version", metavar="", help="Print the version and exit.")) -> None:
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


def run(settings: Settings) -> None:
    """Call the stage of a settings object, and print the result of commands in `PRINTERS`."""
    found = call(settings)
    if printer := PRINTERS.get(settings.command):
        module, _, function = printer.partition(":")
        getattr(import_module(module), function)(found, settings)


_register()
