"""Input files of any origin: regular files only, decompressed by their content, in pieces of bounded size.

Stages read an input more than once, so a pipe is no input. `Limits` bound the memory for a file that anyone may have
made: every reader of text gets its bytes from `open_binary`, `byte_lines`, `read_bytes` or `read_text`.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import os
import re
import stat
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from hybrid_cli.errors import InputError, path_error

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER = 1 << 16  # bytes
PARQUET = (".parquet", ".pq")
COMPRESSED = (".gz", ".bz2", ".xz", ".lzma", ".zst", ".zstd", ".lz4")  # suffixes before which a format has its own
# Usual names of the columns of ids, as `fold_name` returns them, the most specific first.
QIDS = ("qid", "q_id", "query_id", "queryid", "question_id", "topic_id")
DOCIDS = ("pid", "docid", "doc_id", "docno", "document_id", "corpus_id", "passage_id")
_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_UNSAFE = re.compile(r"[\\\0]|^[A-Za-z]:")  # in a part of a path


def fold_name(name: str) -> str:
    """Return the name of a column in lower case with `_`: `corpus_id` for `Corpus-ID`."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


class Location(NamedTuple):
    """Location of a row, as messages print it."""

    file: Path | str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"

    @property
    def fields(self) -> dict[str, object]:
        """The location as fields of an error: `path`, and `line` or the name of another unit."""
        return {"path": self.file, self.unit: self.number}

    def error(self, reason: str, code: str, **fields: object) -> InputError:
        """Return the error `file, line 3: reason`; see `errors.path_error`."""
        return InputError(f"{self}: {reason}", code=code, **self.fields, **fields)


def special(path: Path) -> str | None:
    """Return `a pipe`, `a socket` or `a device`; None for a file, a folder and a missing path."""
    try:
        return _SPECIAL.get(stat.S_IFMT(os.stat(path).st_mode))
    except OSError:
        return None


def refuse_special(path: Path) -> None:
    """Refuse an input that is a pipe, a socket or a device, which may never end; a missing path passes.

    Raises:
        InputError: such a path.
    """
    if kind := special(path):
        problem = f"is {kind}, not a regular file; save its content to a file and pass that file"
        raise path_error(path, problem, code="not-a-regular-file")


def refuse_unsafe_name(name: str, source: object) -> None:
    """Refuse a relative path that could lead out of its folder, or names no file on some system.

    Args:
        name: the path, with forward slashes, as a manifest, an archive or an object store supplies it.
        source: where it comes from, for the message.

    Raises:
        InputError: an empty part, `.`, `..`, an absolute path, a drive, a backslash or a NUL.
    """
    if any(part in ("", ".", "..") or _UNSAFE.search(part) for part in name.split("/")):
        problem = f"{source}: the name {name!r} could lead out of its folder, or is none on some systems; rename it"
        raise InputError(problem, code="unsafe-name", path=str(source), value=name)


class _Input(io.FileIO):
    """A file that is read; an error of its disk names it."""

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            message = f"{os.fsdecode(str(self.name))}: cannot be read: {reason}; check the disk, or restore a copy"
            raise InputError(message, code="unreadable-file", path=self.name) from error

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        with self._named():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with self._named():
            return super().readall()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        with self._named():
            return super().seek(offset, whence)


def opened(path: Path) -> BufferedReader:
    """Open an input file for reading bytes.

    Raises:
        InputError: the path is missing, not a regular file, or not readable; also when it is read.
    """
    refuse_special(path)
    try:
        return BufferedReader(_Input(path), _BUFFER)
    except IsADirectoryError:
        raise path_error(path, "is a folder; a file is needed", code="is-a-folder") from None
    except PermissionError:
        problem = "permission denied; change the permissions of the file"
        raise path_error(path, problem, code="permission-denied") from None
    except OSError:
        if path.exists():
            raise
        raise path_error(path, "no such file", code="no-such-file") from None


# ------------------------------------------------------------------------------------------------------------- limits


@dataclass(frozen=True)
class Limits:
    """Bounds on what one input file may hold in memory; `--limits` raises them.

    Attributes:
        line: bytes of a line, of a row with line ends in quotes, of a JSON value, and of a file that is read whole.
        columns: columns of a table, and fields of a JSON object.
        expansion: bytes of the content per byte of the file that was read, after `FREE` bytes of content.
    """

    line: int = 32 << 20
    columns: int = 1000
    expansion: int = 100

    def refuse_line(self, location: object, path: Path, size: int, what: str = "line") -> None:
        """Refuse a piece of a file of more bytes than `line`."""
        if size > self.line:
            self._refuse("line", "line-too-long", path, f"{location}: a {what} of more than {self.line:,} bytes")

    def refuse_columns(self, location: object, path: Path, count: int, what: str = "columns") -> None:
        """Refuse more columns than `columns`."""
        if count > self.columns:
            self._refuse("columns", "too-many-columns", path, f"{location}: more than {self.columns:,} {what}")

    def refuse_expansion(self, path: Path, size: int, stored: int) -> None:
        """Refuse a content so far that is much larger than the bytes of the file that hold it."""
        if size > max(FREE, self.expansion * stored):
            problem = f"{path}: its first {stored:,} bytes unpack to more than {self.expansion:,} times as many"
            self._refuse("expansion", "expands-too-much", path, problem)

    def _refuse(self, name: str, code: str, path: Path, problem: str) -> NoReturn:
        advice = f"if the file is right, pass a larger --limits {name}=N"
        raise InputError(f"{problem}; {advice}", code=code, path=path, limit=getattr(self, name))


FREE = 256 << 20  # bytes of a content that may have any expansion
_limits: ContextVar[Limits | None] = ContextVar("limits", default=None)  # of the running stage; None: the defaults


def limits() -> Limits:
    """Return the limits of the running stage."""
    return _limits.get() or Limits()


@contextmanager
def change_limits(changes: Mapping[str, int]) -> Iterator[None]:
    """Change limits by name while the block runs."""
    token = _limits.set(replace(limits(), **changes))
    try:
        yield
    finally:
        _limits.reset(token)


# -------------------------------------------------------------------------------------------------------- compression


class _Form(NamedTuple):
    """A form of compression.

    Attributes:
        name: the name of the form, for messages.
        magic: first bytes of a file.
        open: function from an open file to the stream of its content.
    """

    name: str
    magic: bytes
    open: Callable[[Any], Any]


def _arrow(codec: str, file: Any) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)


_FORMS = (
    _Form("gzip", b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    _Form("bzip2", b"BZh", bz2.BZ2File),
    _Form("xz", b"\xfd7zXZ\0", lzma.LZMAFile),
    _Form("lzma", b"\x5d\0\0", lzma.LZMAFile),
    _Form("zstandard", b"\x28\xb5\x2f\xfd", partial(_arrow, "zstd")),
    _Form("lz4", b"\x04\x22\x4d\x18", partial(_arrow, "lz4")),
)
_BZIP2_BLOCKS = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90")  # of data; the end of an empty file
_OTHERS = (  # name, code, position and bytes of contents that are no text
    ("a zip archive; unpack it, and pass the files in it", "is-archive", 0, b"PK\x03\x04"),
    ("an empty zip archive", "is-archive", 0, b"PK\x05\x06"),
    ("a tar archive; unpack it, and pass the files in it", "is-archive", 257, b"ustar"),
    ("a 7z archive; unpack it, and pass the files in it", "is-archive", 0, b"7z\xbc\xaf\x27\x1c"),
    ("a rar archive; unpack it, and pass the files in it", "is-archive", 0, b"Rar!"),
    ("packed with `compress`; unpack it with gunzip", "is-archive", 0, b"\x1f\x9d"),
    ("a PDF file; extract its text", "not-text", 0, b"%PDF-"),
    ("a Parquet file; a text is needed here", "not-text", 0, b"PAR1"),
    ("UTF-32; convert it to UTF-8: iconv -f UTF-32 -t UTF-8", "not-utf-8", 0, b"\xff\xfe\0\0"),
    ("UTF-32; convert it to UTF-8: iconv -f UTF-32 -t UTF-8", "not-utf-8", 0, b"\0\0\xfe\xff"),
    ("UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8", "not-utf-8", 0, b"\xff\xfe"),
    ("UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8", "not-utf-8", 0, b"\xfe\xff"),
)
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, ValueError)  # pyarrow's errors are ValueErrors


class _Unpacked(RawIOBase):
    """The content of a compressed file, whose size is limited."""

    def __init__(self, path: Path, file: BufferedReader, form: _Form):
        self._path, self._file, self._form = path, file, form
        self._stream, self._size = form.open(file), 0

    def readable(self) -> bool:
        return True

    def consumed(self) -> int:
        """Return the bytes of the file that were read."""
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except _BROKEN as error:
            raise self._damaged(error) from None
        except OSError as error:
            if error.errno is not None:  # of the device
                raise
            raise self._damaged(error) from None
        self._size += len(data)
        limits().refuse_expansion(self._path, self._size, self.consumed())
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._file.close()
        super().close()

    def _damaged(self, error: Exception) -> InputError:
        problem = f"damaged {self._form.name} file ({str(error).splitlines()[0]}); download it again"
        return path_error(self._path, problem, code="damaged-compression")


def _form_of(head: bytes) -> _Form | None:
    form = next((form for form in _FORMS if head.startswith(form.magic)), None)
    if form is not None and form.name == "bzip2" and head[4:10] not in _BZIP2_BLOCKS:  # a text may begin with BZh
        return None
    return form


def open_binary(path: Path) -> IO[bytes]:
    """Open a text for reading bytes; gzip, bzip2, xz, zstandard and lz4 are unpacked, whatever the name of the file.

    Raises:
        InputError: see `opened`; an archive, a binary file, or UTF-16. While bytes are read: damaged compression, or
            a content that is too large for the limits.
    """
    file = opened(path)
    head = file.peek(512)
    form = _form_of(head)
    if form is None:
        _refuse_content(path, head)
        return file
    unpacked = BufferedReader(_Unpacked(path, file, form), 1 << 20)
    head = unpacked.peek(512)
    if again := _form_of(head):
        raise path_error(path, f"is compressed twice ({form.name}, {again.name}); unpack it", code="is-archive")
    _refuse_content(path, head)
    return cast(IO[bytes], unpacked)


def _refuse_content(path: Path, head: bytes) -> None:
    """Refuse a content that is no UTF-8 text, by its first bytes."""
    for what, code, position, magic in _OTHERS:
        if head[position : position + len(magic)] == magic:
            raise path_error(path, f"is {what}", code=code)
    if len(head) > 3 and (head[:4:2] == b"\0\0" or head[1:4:2] == b"\0\0"):
        problem = "is a binary file, or UTF-16; convert a text to UTF-8: iconv -f UTF-16 -t UTF-8"
        raise path_error(path, problem, code="not-utf-8")


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed, by its content."""
    with opened(path) as file:
        return _form_of(file.peek(512)) is not None


def is_parquet(path: Path) -> bool:
    """Return whether a file is Parquet, by its name or its content."""
    if path.suffix in PARQUET or not path.is_file():
        return path.suffix in PARQUET
    with opened(path) as file:
        return file.read(4) == b"PAR1"


def plain_suffix(path: Path) -> str:
    """Return the suffix of the format: `.jsonl` for `queries.jsonl.gz`."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


# ------------------------------------------------------------------------------------------------------------ content


def byte_lines(path: Path) -> Iterator[bytes]:
    """Yield each line with its line end, a line feed.

    Raises:
        InputError: see `open_binary`; a line that is too long for the limits.
    """
    bound = limits()
    with open_binary(path) as file:
        for number, raw in enumerate(iter(partial(file.readline, bound.line + 1), b""), 1):
            if len(raw) > bound.line:
                bound.refuse_line(f"{path}, line {number}", path, len(raw))
            yield raw


def located_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[Location, str]]:
    """Yield each line with its location and its line end.

    Raises:
        InputError: see `byte_lines`; not valid in the encoding.
    """
    for number, raw in enumerate(byte_lines(path), 1):
        location = Location(path, number)
        yield location, decode_text(raw, location, encoding)


def text_lines(path: Path) -> list[str]:
    """Return the lines in UTF-8 without their ends, as a list: of ids, of options; see `located_lines`."""
    return [line.rstrip("\r\n") for _, line in located_lines(path)]


def csv_rows(path: Path, separator: str) -> Iterator[tuple[Location, list[str]]]:
    """Yield the fields of each row that is not blank; a field in double quotes may contain separators and line ends.

    Raises:
        InputError: a quote is not closed, or text follows a closing quote; the message names the first line of the row.
    """
    bound = limits()
    csv.field_size_limit(bound.line + 1)  # `row` refuses longer rows
    location, length = Location(path, 1), 0

    def row(line: str) -> str:
        nonlocal length
        length += len(line)
        bound.refuse_line(location, path, length, "row")
        return line

    reader = csv.reader((row(line) for _, line in located_lines(path)), delimiter=separator, strict=True)
    try:
        for fields in reader:
            if fields and not (len(fields) == 1 and fields[0].isspace()):
                bound.refuse_columns(location, path, len(fields))
                yield location, fields
            location, length = Location(path, reader.line_num + 1), 0
    except csv.Error as error:
        raise location.error(f"{error}; a quote inside a quoted field is written twice", code="not-csv") from None


def decode_text(raw: bytes, location: Location | Path, encoding: str = "utf-8") -> str:
    """Return bytes of a file as text: of a line, or of the whole file; without a byte order mark at its beginning.

    Raises:
        InputError: not valid in the encoding.
    """
    whole = Location(location, 1) if isinstance(location, Path) else location
    try:
        return (raw.removeprefix(BOM_UTF8) if whole.number == 1 else raw).decode(encoding)
    except UnicodeError as error:
        byte = f"byte {error.start + 1:,}" if isinstance(error, UnicodeDecodeError) else "the text"
        problem = f"{location}: {byte} is not valid {encoding}; convert the file to UTF-8"
        fields = {"path": location} if isinstance(location, Path) else location.fields
        raise InputError(problem, code="not-utf-8", **fields) from None


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Return the content of an input file, as it is stored; see `opened`.

    Args:
        path: the file.
        most: largest number of bytes; the limit of a line by default.

    Raises:
        InputError: a larger file.
    """
    with opened(path) as file:
        return _content(file, path, most)


def read_text(path: Path, most: int | None = None) -> str:
    """Return the content of an input file in UTF-8, unpacked, without a byte order mark; see `read_bytes`.

    Raises:
        InputError: see `open_binary`; not valid UTF-8.
    """
    with open_binary(path) as file:
        return decode_text(_content(file, path, most), path)


def _content(file: IO[bytes], path: Path, most: int | None) -> bytes:
    bound = limits().line if most is None else most
    content = file.read(bound + 1)
    if len(content) > bound:
        advice = "; if it is right, pass a larger --limits line=BYTES" if most is None else ""
        raise path_error(path, f"has more than {bound:,} bytes{advice}", code="file-too-large")
    return content


# ------------------------------------------------------------------------------------------------------------ folders


class Files(NamedTuple):
    """The files of a folder.

    Attributes:
        paths: regular files, in the order of their paths.
        left_out: reason -> number of other entries.
    """

    paths: list[Path]
    left_out: dict[str, int]

    def note(self) -> str:
        """Return the end of a line about the folder: `; left out: 2 symbolic links that leave the folder`."""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items())
        return f"; left out: {reasons}" if reasons else ""


_LEAVING, _AGAIN = "symbolic links that leave the folder", "symbolic links to files that are read"


def files_of_folder(folder: Path) -> Files:
    """Return the files of a folder that someone else may have made, at any depth.

    Hidden files and folders are ignored. A symbolic link that leaves the folder is left out: it would import another
    file of this machine. So is a link to a file or folder inside, which is read once; a link to a hidden file inside,
    as git-annex makes them, is read under its own name. Pipes, sockets and devices are left out.
    """
    paths, left_out, root = [], dict[str, int](), Path(os.path.realpath(folder))
    for parent, folders, names in os.walk(folder, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in [Path(parent, name) for name in (*folders, *names) if not name.startswith(".")]:
            reason = _reason_to_leave_out(path, root)
            if reason:
                left_out[reason] = left_out.get(reason, 0) + 1
            elif not path.is_dir():
                paths.append(path)
    return Files(sorted(paths), left_out)


def _refuse_folder(error: OSError) -> None:
    problem = f"{(error.strerror or 'is not readable').lower()}; change the permissions of the folder"
    raise path_error(error.filename, problem, code="unreadable-folder")


def _reason_to_leave_out(path: Path, root: Path) -> str:
    """Return why a file or folder is left out; empty for a regular file and for a folder."""
    if path.is_symlink():
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(root):
            return _LEAVING
        if not target.exists():
            return "broken symbolic links"
        hidden = any(part.startswith(".") for part in target.relative_to(root).parts)
        return "" if hidden and target.is_file() else _AGAIN
    return "pipes, sockets and devices" if special(path) else ""


def refuse_link_out(path: Path, folder: Path) -> Path:
    """Return a file of a folder that someone else may have made; refuse a symbolic link that leaves the folder."""
    if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        problem = "is a symbolic link that leaves the folder; if you trust it, copy the folder with `cp -rL`"
        raise path_error(path, problem, code="link-leaves-folder")
    return path
