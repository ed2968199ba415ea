"""The command line: one file per panel of the help, one function per command, one call in each."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from hybrid_cli import __version__
from hybrid_cli.cli import analysis, data, lexical, retrieval, training
from hybrid_cli.errors import HybridError

PANELS = (data, lexical, training, retrieval, analysis)


class _InPipelineOrder(TyperGroup):
    """Lists commands as the panels stand; Typer itself puts commands with sub-commands last."""

    def list_commands(self, ctx: Any) -> list[str]:
        panels = [panel.PANEL for panel in PANELS]
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: panels.index(getattr(self.commands[name], "rich_help_panel", "")))


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
        app()
    except HybridError as error:
        _stop(str(error), error.exit_code, error, debug)
    except KeyboardInterrupt as error:
        _stop("interrupted; the same command goes on where it can", 130, error, debug)
    except BrokenPipeError:  # the reader of our output (`head`) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT):
            _stop(f"{type(error).__name__}: {error} (--debug shows where)", 1, error, debug)
        _stop(
            f"{error.filename or 'writing'}: {(error.strerror or str(error)).lower()}; nothing was changed",
            1,
            error,
            debug,
        )
    except Exception as error:
        _stop(f"a bug in hybrid: {type(error).__name__}: {error} (--debug shows where)", 1, error, debug)


def _stop(message: str, code: int, error: BaseException, debug: bool) -> None:
    if debug:
        raise error
    typer.echo(f"hybrid: {message}", err=True)
    raise SystemExit(code)
