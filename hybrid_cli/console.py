"""Terminal output: notes and progress on stderr, results on stdout; and the log file."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_cli import memory
from hybrid_cli.errors import InputError
from hybrid_cli.input_files import special

if TYPE_CHECKING:
    from rich.console import Console

HEARTBEAT_SECONDS = 30.0
WORTH_A_LINE_SECONDS = 2.0
_LOG_START = 40  # bytes: at least time and level of a line
MUCH = 1 << 29  # bytes; forecasts of less are not printed

_quiet = False
_verbose = False
_log: Path | None = None


def set_quiet(quiet: bool) -> None:
    """Turn notes and progress off or on; warnings and results are always printed."""
    global _quiet
    _quiet = quiet


def set_verbose(verbose: bool) -> None:
    """Turn details off or on."""
    global _verbose
    _verbose = verbose


def log_to(path: Path | None) -> None:
    """Append every message to a file, details too, whatever is printed; None ends this.

    Raises:
        InputError: the file cannot be written, or is no log.
    """
    global _log
    _log = None
    if path is None:
        return
    if kind := special(path):
        raise InputError(f"--log-file {path}: is {kind}, not a regular file; pass another path")
    try:
        if path.exists() and not _is_log(path):
            raise InputError(f"--log-file {path}: exists and is not a log of hybrid; pass another path")
        with path.open("a", encoding="utf-8"):
            _log = path
    except OSError as error:
        raise InputError(f"--log-file {path}: {(error.strerror or str(error)).lower()}; pass another path") from None


def _is_log(path: Path) -> bool:
    """Return whether a file is empty, or begins with a line of `log`; text at the end of other files damages them."""
    with path.open("rb") as file:
        start = file.read(_LOG_START)
    return not start or re.match(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [a-z]+ ", start) is not None


def log(level: str, message: str) -> None:
    """Append a message to the log file, if there is one, with the time (UTC) and its level."""
    if _log is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with _log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{now} {level} {message}\n")


def detail(message: str) -> None:
    """Print a detail on stderr if the command is verbose."""
    log("detail", message)
    if _verbose:
        _print(message)


def note(message: str) -> None:
    """Print a note on stderr."""
    log("note", message)
    if not _quiet:
        _print(message)


def warn(message: str) -> None:
    """Print a warning on stderr, also when quiet."""
    log("warning", message)
    _print(f"warning: {message}")


def _print(message: str) -> None:
    """Print a message on stderr without control characters, which names of files and ids may contain."""
    text = "".join(each if each.isprintable() or each == "\n" else " " for each in message)
    print(text, file=sys.stderr, flush=True)


def forecast(needed: int, purpose: str, remedy: str = "", place: Path | None = None) -> None:
    """Print how much memory or disk space work will need, if it is much, and refuse work that does not fit.

    Args:
        needed: bytes of memory in addition to those in use, or bytes of all files that the work writes.
        purpose: subject of the message.
        remedy: option that needs less.
        place: file or folder that is written; None for memory.

    Raises:
        HybridError: less is available.
    """
    if place is None:
        memory.require(needed, purpose, remedy=remedy)
    else:
        memory.require_space(needed, place, purpose, remedy)
    if needed >= MUCH:
        note(f"{purpose}: needs about {memory.shown(needed)} of {'memory' if place is None else 'disk space'}")


def prompt(text: str) -> None:
    """Ask for a line on stderr, where both standard input and stderr are a terminal."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)


def counted(**counts: int) -> str:
    """Format counts by their nouns in the singular: `1 query, 2,567 hits` for `query=1, hit=2567`."""
    return ", ".join(f"{count:,} {noun if count == 1 else _plural(noun)}" for noun, count in counts.items())


def _plural(noun: str) -> str:
    return f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"


def duration(seconds: float) -> str:
    """Format a duration: `4.2s`, `1m 36s`, `2h 05m`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def size(count: float) -> str:
    """Format a number of bytes in decimal units: `640 bytes`, `12.3 MB`."""
    from rich.filesize import decimal

    return decimal(round(count))


@contextmanager
def progress(
    what: str, total: int | None = None, unit: str = "items", detail: Callable[[], str] = str, done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Yield `advance(n)`: a progress bar on a terminal; elsewhere a line every 30 s and one at the end.

    Args:
        what: name of the step ("encode"), the start of each line.
        total: number of units, if known.
        unit: name of the units, in the plural ("passages").
        detail: returns text for the end of the bar, or of the lines.
        done: units that an interrupted call has done; they count for the share, not for the rate.
    """
    count, start = done, time.monotonic()

    def rate() -> str:
        seconds = time.monotonic() - start
        each = (count - done) / max(seconds, 1e-9)
        return f"{count - done:,} {unit} in {duration(seconds)} ({each:,.{0 if each >= 10 else 1}f}/s)"

    def ending() -> str:
        return f"; {text}" if (text := detail()) else ""

    if sys.stderr.isatty() and not _quiet:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        last = TextColumn("{task.fields[detail]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), last)
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total, completed=done, detail="")

            def advance(n: int = 1) -> None:
                nonlocal count
                count += n
                bar.update(task, advance=n, detail=detail())

            yield advance
    else:
        beat = start

        def advance(n: int = 1) -> None:
            nonlocal count, beat
            count += n
            if count != total and time.monotonic() - beat > HEARTBEAT_SECONDS:  # the last line comes at the end
                beat = time.monotonic()
                note(f"{what}: {rate()}" + (f", {count / total:.0%}" if total else "") + ending())

        yield advance
    if count > done and time.monotonic() - start > WORTH_A_LINE_SECONDS:
        note(f"{what}: {rate()}{ending()}")


def result(text: str) -> None:
    """Print the result of a command on stdout, unchanged."""
    print(text, flush=True)


def stdout(piped_width: int = 200) -> Console:
    """Return a Rich console for results, as wide as the terminal, or `piped_width` columns when piped."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else piped_width)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, left: Sequence[str] = ()
) -> None:
    """Print a table on stdout; the first column and those in `left` are left-aligned, the others right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for position, column in enumerate(columns):
        words = position == 0 or column in left
        drawn.add_column(column, justify="left" if words else "right", no_wrap=not words)
    for row in rows:
        drawn.add_row(*map(escape, row))
    stdout().print(drawn)
