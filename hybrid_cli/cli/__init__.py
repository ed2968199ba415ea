"""The command line: one file per panel of the help, one function per command, one call in each."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from hybrid_cli import __version__
from hybrid_cli.cli import analysis, data, distillation, fusion, imitation, lexical, retrieval, training
from hybrid_cli.errors import HybridError

_UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]  # Typer names only this child of it
_FILE_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
_SHORT_WRITES = ("requested and", "inline_container")  # numpy and torch do not say why less was written than asked for

PANELS = (data, lexical, training, imitation, distillation, retrieval, fusion, analysis)


class _InPipelineOrder(TyperGroup):
    """Lists commands as the panels stand, `prepare` first; Typer puts commands with sub-commands last."""

    def list_commands(self, ctx: Any) -> list[str]:
        panels = [panel.PANEL for panel in PANELS]

        def place(name: str) -> tuple[int, bool]:
            found: Any = self.commands[name]
            return panels.index(found.rich_help_panel), not hasattr(found, "commands")

        return sorted(super().list_commands(ctx), key=place)


app = typer.Typer(
    name="hybrid",
    cls=_InPipelineOrder,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for panel in PANELS:
    panel.register(app)


@app.callback(invoke_without_command=True)
def hybrid(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    """Train, run and explain **hybrid first-stage retrieval**: BM25 plus dense.

    Each stage reads artifacts and writes one; stages chain in any shell. `hybrid STAGE --help` shows an example.
    """
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run one command; what a person can mend is one line on stderr, a bug keeps its traceback with `--debug`."""
    debug = "--debug" in sys.argv
    try:
        raise SystemExit(app(prog_name="hybrid", standalone_mode=False))
    except _UsageError as error:
        _refuse_usage(error)
    except HybridError as error:
        _stop(str(error), error.exit_code, error, debug)
    except Exception as error:
        if reason := _trouble_with_files(error):
            where = getattr(error, "filename", None) or "the output"
            _stop(f"{where}: {reason}; nothing was replaced", 1, error, debug)
        _stop(f"a bug in hybrid: {type(error).__name__}: {error} (--debug shows where)", 1, error, debug)


def _trouble_with_files(error: Exception) -> str | None:
    """What the disk or its permissions have to do with an error; each library has a class of its own for that."""
    text = str(error)
    if isinstance(error, OSError | RuntimeError) and any(words in text for words in _SHORT_WRITES):
        return os.strerror(errno.ENOSPC).lower()
    return next((os.strerror(code).lower() for code in _FILE_TROUBLE if os.strerror(code) in text), None)


def _refuse_usage(error: typer.BadParameter) -> None:
    """One line too; where no argument was given, the help has been printed already and the message is empty."""
    message = error.format_message().rstrip(".")
    if message:
        command = error.ctx.command_path if error.ctx else "hybrid"
        typer.echo(f"hybrid: {_one_line(message)}; see `{command} --help`", err=True)
    raise SystemExit(error.exit_code)


def _stop(message: str, code: int, error: BaseException, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    typer.echo(f"hybrid: {_one_line(message)}", err=True)
    raise SystemExit(code)


def _one_line(message: str) -> str:
    """What libraries say may go over several lines."""
    return " ".join(line.strip() for line in message.splitlines() if line.strip())
