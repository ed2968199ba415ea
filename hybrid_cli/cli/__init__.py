"""The command line: one command per settings class."""

from __future__ import annotations

import hybrid_cli.cli.startup  # noqa: F401

# isort: split
import errno
import os
import signal
import sys
import traceback
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import typer

from hybrid_cli import console, interrupts, memory, plugins
from hybrid_cli.cli import options, startup, streams
from hybrid_cli.cli.app import app
from hybrid_cli.cli.removed import removed_error
from hybrid_cli.errors import HybridError, InputError, path_error, require_packages

_UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]  # the only child of it that Typer exports
_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK = (*_FULL, errno.EFBIG, errno.EROFS, errno.EIO)
_UNUSABLE = "unusable-file"
_SHORT_WRITES = ("requested and", "inline_container")  # messages of numpy and torch about a full disk


def run() -> NoReturn:
    """Run one command, and end the process."""
    code: object = None
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code
    startup.end(code)


def main() -> None:
    """Run one command; an error is one line on stderr, and `--debug` adds the traceback."""
    debug = "--debug" in sys.argv
    streams.prepare()
    try:
        with (
            interrupts.raise_on_signals() as ended,
            plugins.load_files(options.requested_plugins(sys.argv[1:])),
            require_packages(),
        ):
            words = options.without(sys.argv[1:], "--plugin")  # which may be anywhere
            code = _program()(words, prog_name="hybrid", standalone_mode=False)
            if code == _INTERRUPTED:
                raise KeyboardInterrupt  # Typer caught it before the stage started
            sys.stdout.flush()
            raise SystemExit(code)
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # of a library that reads a file; Typer takes it for Ctrl-D
            _stop_at(error.__cause__, debug)
        stopped = interrupts.Interrupted(ended[0] if ended else KeyboardInterrupt())
        _stop(stopped, error, debug)
    except _UsageError as error:
        _refuse_usage(error, debug)
    except HybridError as error:
        _stop(error, error, debug)
    except BrokenPipeError:  # `hybrid inspect ... | head`: the reader has seen enough
        streams.drop_stdout()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except Exception as error:
        _stop_at(error, debug)


def _stop_at(error: Exception, debug: bool) -> NoReturn:
    """Print the line of an error that is none of hybrid's own, and exit."""
    if memory.is_allocation_failure(error):
        detail = f" ({str(error).splitlines()[0]})" if str(error) else ""
        text = f"not enough memory{detail}; free memory, or use smaller batches, inputs or models"
        line = HybridError(text, code="no-memory")
    elif explained := file_problem(error):
        line = explained
    else:
        plugin, path, number = plugins.place_of_error(error) or ("", None, None)
        home = f"the plugin {plugin} fails, {path}, line {number}" if plugin else "a bug in hybrid"
        text = f"{home}: {type(error).__name__}: {error} (--debug shows where)"
        line = HybridError(text, code="bug", plugin=plugin, path=path, line=number)
    _stop(line, error, debug)


@cache
def _program() -> Any:
    """Return the parser of all commands, made once per process."""
    return typer.main.get_command(app)


def file_problem(error: Exception) -> HybridError | None:
    """Return the error for people about a disk, a path or its permissions; libraries wrap these. Its `role` is input or
    output, where that is known."""
    from hybrid_cli.storage import disk

    text, path = str(error), getattr(error, "filename", None)
    reasons = [os.strerror(code) for code in _DISK if os.strerror(code) in text]
    if path == streams.STDOUT and reasons:
        return _of_output(f"{path}: {reasons[0].lower()}; free space, and repeat the command", path=path)
    if isinstance(error, OSError | RuntimeError) and any(words in text for words in _SHORT_WRITES):
        reasons = [os.strerror(errno.ENOSPC)]
    removed, written = _noted_path(error, disk.REMOVED), _noted_path(error, disk.WRITTEN)
    if reasons and removed is not None:
        return _of_output(f"{removed}: cannot be removed: {reasons[0].lower()}; check the disk", removed=removed)
    if reasons == [os.strerror(errno.EIO)] and written is None:
        name = "an input" if path is None else os.fsdecode(path)
        message = f"{name}: cannot be read: input/output error; check the disk, or restore a copy"
        return InputError(message, code=_UNUSABLE, role="input", path=path)
    if reasons:
        message = f"{path or 'the output'}: {reasons[0].lower()}; nothing was replaced"
        full = reasons[0] in map(os.strerror, _FULL)
        folder = _folder_of(written) if written else None
        disk_of_output = f" on the disk of {folder}" if folder else ""
        message += f"; free space{disk_of_output}, and repeat the command" if full else ""
        return _of_output(message, path=path, folder=folder)
    if type(error).__module__.startswith(("polars.", "pyarrow.")) and "parquet" in text.lower():
        message = f"a Parquet file is not readable ({text.splitlines()[0]}); write it again, or restore a copy"
        return InputError(message, code=_UNUSABLE, role="input")
    if isinstance(error, OSError) and path is not None and error.strerror:
        return path_error(os.fsdecode(path), error.strerror.lower(), code=_UNUSABLE)
    wrapped = isinstance(error, OSError) or any(os.strerror(code) in text for code in (errno.EACCES, errno.EPERM))
    return InputError(f"a file cannot be used: {text}", code=_UNUSABLE) if wrapped else None


def _of_output(message: str, **fields: object) -> HybridError:
    return HybridError(message, code=_UNUSABLE, role="output", **fields)


def _noted_path(error: Exception, doing: str) -> Path | None:
    """Return the file that was written or removed when an error was raised; None if it is not known, or there was none.

    Args:
        error: the error.
        doing: `disk.WRITTEN` or `disk.REMOVED`.
    """
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(doing)]
    return Path(notes[0].removeprefix(doing)) if notes else None


def _folder_of(path: Path) -> Path:
    """Return the folder of an output, a part of which was written."""
    unfinished = (parent.parent for parent in reversed((path, *path.parents)) if parent.name.endswith(".partial"))
    return next(unfinished, path.parent)


def _refuse_usage(error: typer.BadParameter, debug: bool) -> None:
    """Print a usage error in one line; the message is empty if Typer has printed the help instead."""
    message = error.format_message().rstrip(".")
    words = f"{error.ctx.command_path} {getattr(error, 'option_name', None)}" if error.ctx else ""
    if removed := removed_error(words.removeprefix("hybrid ")):
        _stop(removed, removed, debug)
    if (name := getattr(error, "option_name", None)) and error.ctx and not isinstance(error, typer.BadParameter):
        message = f"no option {name}" + _suggestion(name, error.ctx.command)
    if message:
        command = error.ctx.command_path if error.ctx else "hybrid"
        fields = {"option": name} if name else {}
        _print(HybridError(f"{message}; see `{command} --help`", code="no-such-option" if name else "usage", **fields))
    raise SystemExit(error.exit_code)


def _suggestion(name: str, command: Any) -> str:
    """Return the option of the command that is most similar to `name`, if any is similar."""
    known = [spelled for parameter in command.params for spelled in (*parameter.opts, *parameter.secondary_opts)]
    close = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def _print(error: HybridError) -> None:
    """Print the line of an error: a JSON object if the command was asked for JSON."""
    as_json = "json" in options.values_of(sys.argv[1:], "--format")
    console.error(str(error), error.code, error.fields, as_json)


def _stop(line: HybridError, error: BaseException, debug: bool) -> NoReturn:
    """Print the line that explains an error, and exit."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    if debug:
        console.trace(trace)
    console.log("error", console.shorten(str(line)))
    if not isinstance(error, HybridError):
        console.log("error", trace)
    _print(line)
    raise SystemExit(line.exit_code)
