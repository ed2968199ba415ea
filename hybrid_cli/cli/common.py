"""What all commands share: the options that each of them has, and the aliases that several use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid_cli import artifacts, console
from hybrid_cli.errors import HybridError, InputError

GENERAL = "General"

Output = Annotated[Path, typer.Option("--output", "-o", help="Where the artifact will stand.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", rich_help_panel=GENERAL)]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads; all cores if not given.", rich_help_panel=GENERAL, show_default=False),
]
Device = Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.", rich_help_panel=GENERAL)]
Hits = Annotated[int, typer.Option("--hits", "-k", min=1, help="Documents kept for each query.")]
Split = Annotated[str | None, typer.Option(help="The split of a collection: train, dev, test, ...", show_default=False)]


def option(panel: str, text: str, *names: str, **limits: Any) -> Any:
    """An option with its panel in the help; `names` where it is not called as its parameter."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **limits)


class Interrupted(HybridError):
    """Ctrl-C. Typer would turn a KeyboardInterrupt into an exit without a word."""

    exit_code = 130


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Let a YAML file of `option: value` give defaults; the command line wins."""
    if path is None:
        return None
    import yaml

    try:
        content = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{path}: is not a readable YAML file ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: needs lines of 'option: value'")
    known = {_plain(name): parameter for parameter in context.command.params for name in parameter.opts}
    if unknown := sorted(str(name) for name in content if _plain(name) not in known):
        raise InputError(f"{path}: `{context.command_path}` has no option {', '.join(unknown)}")
    settings = {}
    for name, value in content.items():
        parameter: Any = known[_plain(name)]
        several = getattr(parameter, "multiple", False) or parameter.nargs != 1
        joined = isinstance(value, list) and not several
        settings[parameter.name] = ",".join(map(str, value)) if joined else value
    context.default_map = {**(context.default_map or {}), **settings}
    return path


def _plain(name: Any) -> str:
    """`--fb-terms`, `fb-terms` and `fb_terms` are one option."""
    return str(name).lstrip("-").replace("_", "-")


_EVERYWHERE: dict[str, Any] = {
    "config": Annotated[
        Path | None,
        typer.Option(
            "--config", callback=_read_config, is_eager=True, show_default=False, rich_help_panel=GENERAL,
            help="YAML file of `option: value`; the command line wins.",
        ),
    ],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=GENERAL, help="Only warnings and results.")],
    "debug": Annotated[bool, typer.Option("--debug", rich_help_panel=GENERAL, help="Show the traceback of an error.")],
}  # fmt: skip
_WRITING: dict[str, Any] = {
    "overwrite": Annotated[
        bool, typer.Option("--overwrite", rich_help_panel=GENERAL, help="Replace the output that is there.")
    ],
    "dry_run": Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=GENERAL, help="Check everything, print the settings, stop.")
    ],
}


def command(
    app: typer.Typer, panel: str, *, writes: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command with the options that all commands have.

    A command that writes an artifact takes `overwrite: bool` as its last parameter, not declared as an option.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        shared = {**(_WRITING if writes else {}), **_EVERYWHERE}
        own = [parameter for parameter in signature.parameters.values() if parameter.name not in shared]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None if name == "config" else False, annotation=kind
            )
            for name, kind in shared.items()
        ]

        @functools.wraps(function)
        def wrapped(**values: Any) -> None:
            console.set_quiet(values.pop("quiet"))
            values.pop("debug")  # read by main, before parsing could fail
            values.pop("config")  # has done its work in the callback
            dry = writes and values.pop("dry_run")
            try:
                with artifacts.dry_run(dry):
                    function(**values)
            except artifacts.DryRun as stopped:
                _print_settings(stopped.output)
            except KeyboardInterrupt:
                raise Interrupted("interrupted; the same command goes on where it can") from None

        wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
        app.command(function.__name__.replace("_", "-").rstrip("-"), rich_help_panel=panel)(wrapped)
        return function

    return register


def _print_settings(claim: artifacts.Output) -> None:
    state = "up to date" if claim.up_to_date else "would be written"
    rows = [("output", f"{claim.path} ({state})")]
    manifest = claim.manifest
    rows += [(role, f"{manifest.input_label(role)} ({source['kind']})") for role, source in manifest.inputs.items()]
    rows += [(name, str(value)) for name, value in claim.manifest.options.items()]
    for name, value in rows:
        typer.echo(f"{name:24} {value}")


def numbers(option: str, value: str | None) -> tuple[int, ...]:
    """`32,64` as whole numbers; nothing as none."""
    try:
        return tuple(int(item) for item in comma_separated(value))
    except ValueError:
        raise InputError(f"{option} {value}: needs whole numbers, as in 32,64,128") from None


def comma_separated(value: str | None) -> list[str]:
    """`a,b,c` as a list; nothing as an empty one."""
    return [item.strip() for item in value.split(",") if item.strip()] if value else []
