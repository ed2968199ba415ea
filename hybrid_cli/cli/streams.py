"""Standard streams that may be closed, or unable to print every character."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from typing import NoReturn

from hybrid_cli.console import plain
from hybrid_cli.errors import HybridError
from hybrid_cli.interrupts import interruptible

STDOUT = "standard output"


class _Stdout(io.TextIOWrapper):
    """Stdout, whose errors name it."""

    def write(self, text: str) -> int:
        """Write a text."""
        try:
            return super().write(text)
        except OSError as error:
            error.filename = STDOUT
            raise

    def flush(self) -> None:
        """Write the texts so far to the file or terminal."""
        try:
            super().flush()
        except OSError as error:
            error.filename = STDOUT
            raise


class _Closed(io.TextIOBase):
    """A closed stdout: results cannot be printed, so a command that prints one fails."""

    def write(self, text: str) -> NoReturn:
        """Refuse the result."""
        problem = "stdout is closed, so the result cannot be printed; redirect it to a file or to /dev/null"
        raise HybridError(problem, code="stdout-closed")


class _Record(logging.LogRecord):
    """A log message of a library, which may quote a file, that cannot control a terminal."""

    def getMessage(self) -> str:
        """Return the message."""
        return plain(super().getMessage())


_format_warning = warnings.formatwarning


def _plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return the text of a warning of a library, which may quote a file, that cannot control a terminal."""
    return plain(_format_warning(message, category, filename, lineno, line))


def prepare() -> None:
    """Make the standard streams usable, and what libraries print there safe.

    Characters that a stream cannot encode are printed as `\\u00e9`; bytes of standard input that are not valid are kept
    as surrogates. Descriptors that are closed are opened on the null device: otherwise the next file would get the
    number of stdout, and Java would print into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout if sys.stdout is not None else _Closed()
    sys.stderr = sys.stderr if sys.stderr is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if type(sys.stdout) is io.TextIOWrapper:
        encoding, line_buffering = sys.stdout.encoding, sys.stdout.line_buffering
        sys.stdout = _Stdout(sys.stdout.detach(), encoding, line_buffering=line_buffering)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.setLogRecordFactory(_Record)
    warnings.formatwarning = _plain_warning
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.closed:
        sys.stdin.reconfigure(errors="surrogateescape")
        sys.stdin = interruptible(sys.stdin)


def drop_stdout() -> None:
    """Discard the buffered rest of stdout, so that the end of Python does not print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
