"""The terminal: notes and progress on stderr, results on stdout, lines of standard input; and the log file.

Ids, titles, texts and names of files come from anyone. Everything that is printed or logged passes `plain`, so no text
can move the cursor, change the title of the window, write to the clipboard or reverse the order of letters.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_cli import interrupts, memory
from hybrid_cli.errors import InputError
from hybrid_cli.inputs.files import special

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
    from rich.measure import Measurement
    from rich.text import Text

HEARTBEAT_SECONDS = 30.0
WORTH_A_LINE_SECONDS = 2.0
_LOG_START = 40  # bytes: at least time and level of a line
MUCH = 1 << 29  # bytes; forecasts of less are not printed
_BREAKS = re.compile("[\t\n]")
_LONGEST_WORD, _LONGEST_MESSAGE = 240, 4000  # characters
_MARKS = re.compile("[\u200e\u200f\u061c]")  # directions of neighbouring punctuation; common in Arabic and Hebrew
# Controls (C0 without tab and line feed, DEL, C1), line separators, embeddings, overrides and isolates of directions,
# and bytes of names that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_verbose: ContextVar[bool] = ContextVar("verbose", default=False)
_log: ContextVar[Path | None] = ContextVar("log", default=None)
_listeners: ContextVar[tuple[list[Notice], ...]] = ContextVar("listeners", default=())


@dataclass(frozen=True)
class Notice:
    """A warning, a note, or the error that ends a command.

    Attributes:
        level: `warning`, `note` or `error`.
        message: sentence for people; its wording may change in any release.
        code: name of the kind of warning, such as `truncated-documents`; a note may have none. Programs and tests
            compare the code and the fields, as with errors (`errors.HybridError`).
        fields: facts of the message by name: `path`, `option`, `count` and others.
    """

    level: str
    message: str
    code: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)


@contextmanager
def heard() -> Iterator[list[Notice]]:
    """Yield the list of the notices of this context, also of notes that quiet commands do not print.

    Threads started within it by `threads.ThreadPool` belong to the context; other threads do not.
    """
    notices: list[Notice] = []
    token = _listeners.set((*_listeners.get(), notices))
    try:
        yield notices
    finally:
        _listeners.reset(token)


def plain(text: str) -> str:
    """Return a text that cannot control a terminal: `\\u001b[2J` for an escape sequence.

    Line feeds and tabs stay, and so do letters of every script, combining marks and joined emoji. Marks of direction
    (U+200E, U+200F, U+061C), which are invisible, are removed. The result is unchanged by a second call.
    """
    return _escaped(_UNSAFE, _MARKS.sub("", text.replace("\r\n", "\n")))


def escape(text: str) -> str:
    """Return a text for programs that is safe to print: as `plain`, with marks of direction escaped too."""
    return _escaped(_MARKS, _escaped(_UNSAFE, text))


def _escaped(unsafe: re.Pattern[str], text: str) -> str:
    return unsafe.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str) -> str:
    """Return a text as `plain`, in one line; each tab and line feed is a space."""
    return _BREAKS.sub(" ", plain(text))


def shorten(message: str) -> str:
    """Return a message in one line; very long words, such as paths and numbers, and the middle of it are shortened."""
    words = (w if len(w) <= _LONGEST_WORD else f"{w[:100]}...{w[-20:]}" for w in plain(message).split())
    line = " ".join(words)
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 500]} ... {line[-500:]}"


def set_quiet(quiet: bool) -> None:
    """Turn notes and progress off or on; warnings and results are always printed."""
    _quiet.set(quiet)


@contextmanager
def quiet() -> Iterator[None]:
    """Within this context, notes and progress are not printed."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def set_verbose(verbose: bool) -> None:
    """Turn details off or on."""
    _verbose.set(verbose)


def log_to(path: Path | None) -> None:
    """Append every message to a file, details too, whatever is printed; None ends this.

    Raises:
        InputError: the file cannot be written, or is no log.
    """
    _log.set(None)
    if path is None:
        return
    if kind := special(path):
        raise InputError(
            f"--log-file {path}: is {kind}, not a regular file; pass another path",
            code="not-a-regular-file",
            option="log_file",
            path=path,
        )
    try:
        if path.exists() and not _is_log(path):
            raise InputError(
                f"--log-file {path}: exists and is not a log of hybrid; pass another path",
                code="foreign-file",
                option="log_file",
                path=path,
            )
        with path.open("a", encoding="utf-8"):
            _log.set(path)
    except OSError as error:
        raise InputError(
            f"--log-file {path}: {(error.strerror or str(error)).lower()}; pass another path",
            code="not-writable",
            option="log_file",
            path=path,
        ) from None


def _is_log(path: Path) -> bool:
    """Return whether a file is empty, or begins with a line of `log`; text at the end of other files damages them."""
    with path.open("rb") as file:
        start = file.read(_LOG_START)
    return not start or re.match(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [a-z]+ ", start) is not None


def log(level: str, message: str) -> None:
    """Append a message to the log file, if there is one, with the time (UTC) and its level."""
    if (path := _log.get()) is None:
        return
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{now} {level} {plain(message)}\n")
    except OSError as error:
        _log.set(None)
        reason = (error.strerror or str(error)).lower()
        warn(f"--log-file {path}: {reason}; later messages are not logged", code="log-not-written", path=path)


def detail(message: str) -> None:
    """Print a detail on stderr if the command is verbose."""
    log("detail", message)
    if _verbose.get():
        _print(message)


def note(message: str, /, *, code: str = "", **fields: object) -> None:
    """Print a note on stderr; see `Notice` for its code and fields."""
    log("note", message)
    _hear(Notice("note", message, code, fields))
    if not _quiet.get():
        _print(message)


def warn(message: str, /, *, code: str, **fields: object) -> None:
    """Print a warning on stderr, also when quiet; see `Notice` for its code and fields."""
    log("warning", message)
    _hear(Notice("warning", message, code, fields))
    _print(f"warning: {message}")


def _hear(notice: Notice) -> None:
    for notices in _listeners.get():
        notices.append(notice)


def _print(message: str) -> None:
    """Print a message on stderr."""
    print(plain(message), file=sys.stderr, flush=True)


def error(message: str, code: str = "", fields: Mapping[str, object] | None = None, as_json: bool = False) -> None:
    """Print the error that ends the command, in one line on stderr: for people, or as a JSON object for programs."""
    _hear(Notice("error", message, code, fields or {}))
    content = {"error": shorten(message), "code": code, **(fields or {})}
    print(json_text(content) if as_json else f"hybrid: {shorten(message)}", file=sys.stderr, flush=True)


def trace(text: str) -> None:
    """Print a traceback on stderr."""
    _print(text)


def forecast(needed: int, purpose: str, remedy: str = "", path: Path | None = None) -> None:
    """Print how much memory or disk space work will need, if it is much, and refuse work that does not fit.

    Args:
        needed: bytes of memory in addition to those in use, or bytes of all files that the work writes.
        purpose: subject of the message.
        remedy: option that needs less.
        path: file or folder that is written; None for memory.

    Raises:
        HybridError: less is available.
    """
    if path is None:
        memory.require(needed, purpose, remedy=remedy)
    else:
        memory.require_space(needed, path, purpose, remedy)
    if needed >= MUCH:
        resource = "memory" if path is None else "disk space"
        needs = f"{purpose}: needs about {memory.format_bytes(needed)} of {resource}"
        note(needs, code="forecast", purpose=purpose, bytes=needed, resource=resource)


def ask(prompt: str) -> str:
    """Return the next line of standard input, as `read_line`; on a terminal with a prompt, line editing and history."""
    if not asks() or not sys.stdout.isatty():
        if asks() and sys.stderr.isatty():
            print(plain(prompt), end="", file=sys.stderr, flush=True)
        return read_line()
    with suppress(ImportError):  # Python may be built without it
        import readline  # noqa: F401 (`input` uses it)
    try:
        return f"{input(plain(prompt))}\n"
    except EOFError:
        return ""


def asks() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def read_line() -> str:
    """Return the next line of standard input; empty at its end.

    Raises:
        InputError: standard input is closed, or cannot be read.
    """
    try:
        if sys.stdin is None or sys.stdin.closed:
            raise InputError("standard input is closed; pass a file, or /dev/null for no lines", code="stdin-closed")
        return (interrupts.interruptible(sys.stdin) if asks() else sys.stdin).readline()
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not valid {error.encoding}; convert it", code="not-utf-8") from None
    except OSError as error:  # among them: not open for reading
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"standard input: {reason}; pass a file, or a terminal", code="stdin-unreadable") from None


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
        per_second = (count - done) / max(seconds, 1e-9)
        return f"{count - done:,} {unit} in {duration(seconds)} ({per_second:,.{0 if per_second >= 10 else 1}f}/s)"

    def ending() -> str:
        return f"; {text}" if (text := detail()) else ""

    if sys.stderr.isatty() and not _quiet.get():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        first, last = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[detail]"))
        columns = (first, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), last)
        with Progress(*columns, console=_rich(stderr=True), transient=True) as bar:
            task = bar.add_task(one_line(what), total=total, completed=done, detail="")

            def advance(n: int = 1) -> None:
                nonlocal count
                count += n
                bar.update(task, advance=n, detail=one_line(detail()))

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
    """Print the result of a command on stdout."""
    print(plain(text), flush=True)


def result_json(content: Any, indent: int | None = None) -> None:
    """Print the result of a command as JSON, with escapes of unsafe characters that a parser resolves."""
    print(json_text(content, indent), flush=True)


def json_text(content: Any, indent: int | None = None) -> str:
    """Return JSON that is safe to print."""
    return escape(json.dumps(content, indent=indent, ensure_ascii=False, default=str))


def stdout(piped_width: int = 200) -> Console:
    """Return a Rich console for results, as wide as the terminal, or `piped_width` columns when piped.

    Texts are printed as they are: `[b]` is no markup, and `:100:` no emoji.
    """
    return _rich(width=None if sys.stdout.isatty() else piped_width, force_jupyter=False)


def _rich(**options: Any) -> Console:
    """Return a Rich console that prints no text without `plain`."""
    from rich.console import Console, RenderHook

    class Safe(RenderHook):
        """Wraps everything that is printed."""

        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [_Safe(renderable) for renderable in renderables]

    console = Console(**options, markup=False, emoji=False, highlight=False)
    console.push_render_hook(Safe())
    return console


class _Safe:
    """Anything that Rich prints, whose texts pass `plain`; control codes of Rich itself are kept."""

    def __init__(self, renderable: ConsoleRenderable):
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for text, style, control in console.render(self._renderable, options):
            yield Segment(text if control else plain(text), style, control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement.get(console, options, self._renderable)


def styled(text: str, style: str = "") -> Text:
    """Return a text with a style for a Rich console or table; its width is that of the printed text."""
    from rich.text import Text

    return Text(plain(text), style)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, left: Sequence[str] = ()
) -> None:
    """Print a table on stdout; the first column and those in `left` are left-aligned, the others right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    drawn = Table(title=styled(title) if title else None, box=SIMPLE_HEAD, title_justify="left")
    for position, column in enumerate(columns):
        words = position == 0 or column in left
        drawn.add_column(styled(one_line(column)), justify="left" if words else "right", no_wrap=not words)
    for row in rows:
        drawn.add_row(*(styled(one_line(cell)) for cell in row))
    stdout().print(drawn)
