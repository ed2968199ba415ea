"""Text files and HTML pages, a document each: the id is the path in the folder, or the name of a single page.

The title of a text is a heading at its beginning; that of Markdown is the title in its front matter, or its first
heading; that of a page its title, or its first heading.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from hybrid_cli import console
from hybrid_cli.collections.options import OnError, is_column_name
from hybrid_cli.collections.readers.html_pages import HTML, decode_page, read_page
from hybrid_cli.collections.readers.tables import (
    Layout,
    cell,
    metadata_types,
    metadata_values,
    open_table,
    typed_text,
)
from hybrid_cli.collections.sentences import HEADING, heading
from hybrid_cli.collections.source import Document, Location
from hybrid_cli.errors import InputError, path_error, refuse_missing
from hybrid_cli.inputs.files import DOCIDS, files_of_folder, read_bytes, read_text
from hybrid_cli.inputs.json_values import without_surrogates
from hybrid_cli.inputs.rows import InputFile, Number, Table

MARKDOWN = (".md", ".markdown")
TEXTS = (".txt", *MARKDOWN, ".rst", *HTML)
OFFICE = {".pdf": b"%PDF", ".docx": b"PK", ".pptx": b"PK", ".xlsx": b"PK"}  # suffix -> first bytes
_FRONT_MATTER = re.compile(
    r"---[ \t]*\n(?=[\"']?[\w-]+[\"']?[ \t]*:|\#)(.{0,65536}?)\n(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL
)
_FENCED = re.compile(r"^ {0,3}(```+|~~~+).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)  # code in Markdown
PATHS = ("path", "file", "filename", "file_name", "name", *DOCIDS)  # columns of a table of metadata
_LISTED = 5  # names in a warning
_BLOCK = 1000  # files that a process reads at a time


def text_documents(folder: Path, on_error: OnError) -> list[Callable[[], Iterator[Document]]]:
    """Return functions that read the text files of a folder, at any depth, in the order of their paths.

    Hidden files and symbolic links are left out; see `files_of_folder`.

    Args:
        folder: folder of text files and HTML pages.
        on_error: for a file that cannot be read as text: stop, or skip it with a warning.

    Raises:
        InputError: the folder is an artifact, or has no text files, or the name of one is not UTF-8; every file is
            skipped.
        PackageError: HTML pages, without the extra `documents`.
    """
    if (folder / "manifest.json").is_file():
        problem = "is an artifact of hybrid; pass its files, such as corpus.parquet, --queries and --qrels"
        raise path_error(folder, problem, code="is-an-artifact")
    files = files_of_folder(folder)
    names = [path.relative_to(folder) for path in files.paths]
    texts = _texts(names)
    if not texts:
        tables = "; of BEIR: corpus.jsonl --queries queries.jsonl --qrels qrels/test.tsv"
        problem = f"has no text files ({', '.join(TEXTS)}); pass tables or JSON lines as files{files.note()}{tables}"
        raise path_error(folder, problem, code="no-text-files")
    if wrong := [name for name in texts if name.encode(errors="replace") != name.encode(errors="surrogateescape")]:
        raise path_error(folder, f"the file name {wrong[0]!r} is not UTF-8; rename the file", code="not-utf-8")
    if any(map(is_page, names)):
        refuse_missing("selectolax")
    others = Counter(name.suffix.lower() or "no suffix" for name in names if name.suffix.lower() not in _kinds())
    rest = ", ".join(f"{suffix} {count:,}" for suffix, count in others.most_common(5))
    left_out = f"; left out: {console.counted(file=others.total())} of other kinds ({rest})" if others else ""
    left_out += "; the extra office reads " + ", ".join(sorted(some)) if (some := others.keys() & OFFICE.keys()) else ""
    text = f"{folder}: {console.counted(document=len(texts))}, one for each text file{left_out}{files.note()}"
    console.note(text, code="text-files", path=folder, count=len(texts), left_out=dict(others), links=files.left_out)
    texts = _readable(folder, texts) if on_error == "skip" else texts
    return [partial(_read, folder, texts[begin : begin + _BLOCK]) for begin in range(0, len(texts), _BLOCK)]


def _texts(names: Iterable[Path]) -> list[str]:
    return sorted(name.as_posix() for name in names if name.suffix.lower() in _kinds())


def _kinds() -> tuple[str, ...]:
    """Return the suffixes of files that can be read; those of PDF and office documents with the extra `office`."""
    return (*TEXTS, *OFFICE) if find_spec("markitdown") else TEXTS


def folder_table(folder: Path, file: Path | None = None) -> Table:
    """Return the metadata of the text files of a folder, a row each.

    Columns are `folder` (that of the file), `modified` (date and time in UTC), those of the front matter of Markdown,
    and those of a table next to the folder.

    Args:
        folder: folder of text files.
        file: table whose column `path` (or `file`, `filename`, `docid`, ...) has paths in the folder; None for none.

    Raises:
        InputError: a table without such a column, or with the paths of no file.
    """
    given = {} if file is None else _described(file)
    rows: dict[str, dict[str, Any]] = {}
    for name in _texts(path.relative_to(folder) for path in files_of_folder(folder).paths):
        path = folder / name
        modified = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        own = _front_matter(path) if path.suffix.lower() in MARKDOWN else {}
        place = name.rpartition("/")[0]
        rows[name] = {"docid": name, "folder": place, "modified": modified, **own, **given.get(name, {})}
    if file is not None:
        others = given.keys() - rows.keys()
        if len(others) == len(given):
            problem = f"has the paths of no text file in {folder}, such as {next(iter(rows), 'guide/start.md')}"
            raise path_error(file, problem, code="no-such-document")
        text = f"{file}: metadata of {len(given) - len(others):,} of {console.counted(document=len(rows))}"
        text += f"; {console.counted(row=len(others))} of other files left out" if others else ""
        console.note(text, code="metadata-file", path=file, documents=len(rows), left_out=len(others))
    columns = tuple(dict.fromkeys(name for row in rows.values() for name in row if name != "docid"))
    return Table(
        InputFile(folder, "json", ""),
        columns,
        header=True,
        rows=lambda names: ((Location(folder / name, 1), row) for name, row in rows.items()),
    )


def _described(file: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a table by path, with numbers and truth values of texts."""
    layout = Layout("--metadata-file", {"path": PATHS}, frozenset(), {}, advice="name a column `path`")
    table = open_table(InputFile.of(file), layout, {}, header=True, quoted=None)
    names = [name for name in table.names if name != table.columns["path"] and is_column_name(name)]
    types = metadata_types(names, [table])
    rows: dict[str, dict[str, Any]] = {}
    for location, row in table.rows([table.columns["path"], *names]):
        path = cell(row, table.columns["path"], location).removeprefix("./")
        if path in rows:
            raise location.error(f"{path} has two rows", code="duplicate-id", id=path)
        values = metadata_values(row, types, table.is_delimited)
        known = {name: value for name, value in zip(types, values, strict=True) if value is not None}
        rows[path] = {name: Number(v) if type(v) in (int, float) else v for name, v in known.items()}
    return rows


def _front_matter(path: Path) -> dict[str, Any]:
    """Return texts, numbers, truth values and lists of texts in the front matter of Markdown, without the title."""
    try:
        facts = _parsed(_FRONT_MATTER.match(read_text(path).replace("\r\n", "\n").strip()))
    except InputError:  # of the text, for which `--on-error` is
        return {}
    values = {
        str(name): _value(value) for name, value in facts.items() if name != "title" and is_column_name(str(name))
    }
    return {name: value for name, value in values.items() if value is not None}


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [without_surrogates(each) for each in value if isinstance(each, str)]
    if not isinstance(value, str) or value in ("", "~", "null"):
        return None
    return typed_text(without_surrogates(value))


def is_page(path: Path) -> bool:
    """Test whether a file is an HTML page, by the suffix of its name."""
    return path.suffix.lower() in HTML


def page_document(path: Path, on_error: OnError) -> list[Callable[[], Iterator[Document]]]:
    """Return functions that read an HTML page as a document whose id is the name of the file; see `text_documents`."""
    refuse_missing("selectolax")
    names = _readable(path.parent, [path.name]) if on_error == "skip" else [path.name]
    return [partial(_read, path.parent, names)]


def _readable(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the files that can be read as text, and warn about the others.

    Raises:
        InputError: there is no other one in the folder.
    """
    skipped: dict[str, InputError] = {}
    for name in names:
        try:
            _content(folder / name)
        except InputError as error:
            skipped[name] = error
    if not skipped:
        return list(names)
    first, reason = next(iter(skipped.items()))
    if len(skipped) == len(names) > 1:
        problem = f"none of {console.counted(file=len(names))} can be read as text; the first error is: {reason}"
        raise path_error(folder, problem, code="no-text-files")
    listed = ", ".join(list(skipped)[:_LISTED]) + (", ..." if len(skipped) > _LISTED else "")
    text = f"{folder}: {console.counted(file=len(skipped))} skipped, no texts: {listed}; {reason}"
    facts = {"path": folder, "count": len(skipped), "files": list(skipped), "first": first, "reason": reason.code}
    console.warn(text, code="files-skipped", **facts)
    return [name for name in names if name not in skipped]


def _content(path: Path) -> str:
    """Return the text of a file; a page is decoded as by a browser."""
    if is_page(path):
        return decode_page(read_bytes(path))
    return _office_text(path) if path.suffix.lower() in OFFICE else read_text(path)


def _office_text(path: Path) -> str:
    """Return the text of a PDF or office document as Markdown, without pictures; empty for a scan.

    Raises:
        InputError: a damaged or encrypted file.
    """
    from markitdown import MarkItDown, MarkItDownException

    first, why = OFFICE[path.suffix.lower()], "another format than its name says"
    if read_bytes(path).startswith(first):
        try:
            text = str(MarkItDown(enable_plugins=False).convert_local(path).markdown)
        except MarkItDownException as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
        else:
            if not text.startswith(first.decode()):  # a damaged file is returned as it is
                return str(without_surrogates(text))
            why = "damaged"
    raise path_error(path, f"cannot be read ({why})", code="not-a-document")


def _read(folder: Path, names: Sequence[str]) -> Iterator[Document]:
    for name in names:
        path = folder / name
        try:
            content = _content(path)
        except InputError as error:
            problem = f"{error}, or pass --on-error skip"
            raise InputError(problem, code=error.code, option="on_error", **error.fields) from None
        if is_page(path):
            page = read_page(content)
            yield Document(name, page.title, page.text, Location(path, 1))
            continue
        title, text = "", content.replace("\r\n", "\n").strip()
        if path.suffix.lower() in MARKDOWN:
            title, text = _after_front_matter(text)
        if not title and (first := HEADING.match(text)):
            title, text = heading(first), text[first.end() :].strip()
        elif (
            not title
            and path.suffix.lower() in (*MARKDOWN, *OFFICE)
            and (first := HEADING.search(_FENCED.sub("", text)))
        ):
            title = heading(first)
        yield Document(name, title, text, Location(path, 1))


def _after_front_matter(text: str) -> tuple[str, str]:
    """Return the title in the YAML front matter of a text, and the text after it."""
    front = _FRONT_MATTER.match(text)
    if front is None:
        return "", text
    title = _parsed(front).get("title")
    title = " ".join(without_surrogates(title).split()) if isinstance(title, str) else ""
    return "" if title in ("~", "null") else title, text[front.end() :].strip()


def _parsed(front: re.Match[str] | None) -> dict[Any, Any]:
    """Return the front matter; empty if there is none, or none that can be read."""
    try:
        facts = None if front is None else yaml.load(front[1], yaml.BaseLoader)  # texts alone, and no merged mappings
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
