"""Folders of text files, a document each: the id is the path in the folder, the title a heading at the beginning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from hybrid_cli import console
from hybrid_cli.collections.headings import HEADING, heading
from hybrid_cli.collections.source import Document, Location
from hybrid_cli.errors import InputError
from hybrid_cli.input_files import files_of_folder, read_text

TEXTS = (".txt", ".md", ".markdown", ".rst")
_BLOCK = 1000  # files that a process reads at a time


def text_documents(folder: Path) -> list[Callable[[], Iterator[Document]]]:
    """Return functions that read the text files of a folder, at any depth, in the order of their paths.

    Hidden files and symbolic links are left out; see `files_of_folder`.

    Raises:
        InputError: the folder is an artifact, or has no text files, or the name of one is not UTF-8.
    """
    if (folder / "manifest.json").is_file():
        raise InputError(
            f"{folder}: is an artifact of hybrid; pass its files: the documents (corpus.parquet of a collection), "
            "--queries and --qrels",
            code="is-an-artifact", path=folder,
        )  # fmt: skip
    files = files_of_folder(folder)
    names = [path.relative_to(folder) for path in files.paths]
    texts = sorted(name.as_posix() for name in names if name.suffix.lower() in TEXTS)
    if not texts:
        raise InputError(
            f"{folder}: has no text files ({', '.join(TEXTS)}); other documents need a row of a table or a JSON line "
            f"each{files.note()}",
            code="no-text-files", path=folder,
        )  # fmt: skip
    if wrong := [name for name in texts if name.encode(errors="replace") != name.encode(errors="surrogateescape")]:
        raise InputError(
            f"{folder}: the file name {wrong[0]!r} is not UTF-8; rename the file",
            code="not-utf-8", path=folder, file=wrong[0],
        )  # fmt: skip
    others = Counter(name.suffix.lower() or "no suffix" for name in names if name.suffix.lower() not in TEXTS)
    rest = ", ".join(f"{suffix} {count:,}" for suffix, count in others.most_common(5))
    left_out = f"; left out: {console.counted(file=others.total())} of other kinds ({rest})" if others else ""
    console.note(
        f"{folder}: {console.counted(document=len(texts))}, one for each text file{left_out}{files.note()}",
        code="text-files", path=folder, count=len(texts), left_out=dict(others), links=files.left_out,
    )  # fmt: skip
    return [partial(_read, folder, texts[begin : begin + _BLOCK]) for begin in range(0, len(texts), _BLOCK)]


def _read(folder: Path, names: Sequence[str]) -> Iterator[Document]:
    for name in names:
        path = folder / name
        text = read_text(path).replace("\r\n", "\n").strip()
        first = HEADING.match(text)
        title = heading(first) if first else ""
        yield Document(name, title, text[first.end() :].strip() if first else text, Location(path, 1))
