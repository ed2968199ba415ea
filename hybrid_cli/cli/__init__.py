"""The command line: one command per settings class."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from difflib import get_close_matches
from typing import Any

import typer

from hybrid_cli import console
from hybrid_cli.cli import signals
from hybrid_cli.cli.app import app
from hybrid_cli.errors import HybridError

# Idle OpenMP threads sleep instead of spinning: if other processes use the cores too, a spinning thread takes time from
# the thread that it waits for. OpenMP reads the variable when torch or FAISS loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]  # the only child of it that Typer exports
_INTERRUPTED = 130
_FILE_TROUBLE = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
)  # fmt: skip
_SHORT_WRITES = ("requested and", "inline_container")  # messages of numpy and torch about a full disk


def main() -> None:
    """Run one command; an error is one line on stderr, and `--debug` adds the traceback."""
    debug = "--debug" in sys.argv
    _keep_pandas_out()
    try:
        with signals.raised() as ended:
            code = app(prog_name="hybrid", standalone_mode=False)
            if code == _INTERRUPTED:
                raise KeyboardInterrupt  # Typer caught it before the stage started
            raise SystemExit(code)
    except (KeyboardInterrupt, typer.Abort) as error:
        stopped = signals.Interrupted(ended[0] if ended else KeyboardInterrupt())
        _stop(str(stopped), stopped.exit_code, error, debug)
    except _UsageError as error:
        _refuse_usage(error)
    except HybridError as error:
        _stop(str(error), error.exit_code, error, debug)
    except Exception as error:
        if reason := _trouble_with_files(error):
            where = getattr(error, "filename", None) or "the output"
            _stop(f"{where}: {reason}; nothing was replaced", 1, error, debug)
        _stop(f"a bug in hybrid: {type(error).__name__}: {error} (--debug shows where)", 1, error, debug)


class _NoPandas:
    """Finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Refuse pandas; leave other modules to the finders that follow."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _keep_pandas_out() -> None:
    """Let pyarrow look for pandas now, in vain. It would import it to recognize its objects, which takes as long as all
    other imports of a search; hybrid has no such objects. Later imports of pandas are not affected.
    """
    import pyarrow as pa

    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.array([])
        finally:
            sys.meta_path.remove(_NoPandas)


def _trouble_with_files(error: Exception) -> str | None:
    """Return the disk or permission problem that caused an error; libraries raise many exception classes for one."""
    text = str(error)
    if isinstance(error, OSError | RuntimeError) and any(words in text for words in _SHORT_WRITES):
        return os.strerror(errno.ENOSPC).lower()
    return next((os.strerror(code).lower() for code in _FILE_TROUBLE if os.strerror(code) in text), None)


def _refuse_usage(error: typer.BadParameter) -> None:
    """Print a usage error in one line; the message is empty if Typer has printed the help instead."""
    message = error.format_message().rstrip(".")
    if (name := getattr(error, "option_name", None)) and error.ctx and not isinstance(error, typer.BadParameter):
        message = f"no option {name}" + _suggestion(name, error.ctx.command)
    if message:
        command = error.ctx.command_path if error.ctx else "hybrid"
        typer.echo(f"hybrid: {_one_line(message)}; see `{command} --help`", err=True)
    raise SystemExit(error.exit_code)


def _suggestion(name: str, command: Any) -> str:
    """Return the option of the command that is most similar to `name`, if any is similar."""
    known = [spelled for parameter in command.params for spelled in (*parameter.opts, *parameter.secondary_opts)]
    close = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def _stop(message: str, code: int, error: BaseException, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    console.log("error", _one_line(message))
    if not isinstance(error, HybridError):
        console.log("error", "".join(traceback.format_exception(error)).rstrip())
    typer.echo(f"hybrid: {_one_line(message)}", err=True)
    raise SystemExit(code)


def _one_line(message: str) -> str:
    """Join the lines of a message from a library."""
    return " ".join(line.strip() for line in message.splitlines() if line.strip())
