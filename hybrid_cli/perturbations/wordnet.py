"""Synonyms of WordNet, read from its database files (manual pages wndb(5WN) and morphy(7WN)).

Our own reader: the reader of nltk requires a file `lexnames`, which Debian's `wordnet-base` does not contain.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid_cli.errors import path_error

DEBIAN = Path("/usr/share/wordnet")
_NLTK = ("corpora/wordnet", "corpora/wordnet.zip")
HOW_TO_INSTALL = "apt-get install wordnet-base, python -m nltk.downloader wordnet, or --wordnet PATH"
# Endings that morphy removes, and their replacements.
_ENDINGS = {
    "noun": (
        *(("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z")),
        *(("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y")),
    ),
    "verb": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}


def find(named: Path | None = None) -> Path | None:
    """Return the folder or zip file of WordNet: the given path, or the data of NLTK or Debian; None if there is none.

    Raises:
        InputError: the given path does not contain WordNet.
    """
    if named is not None:
        if not _database(named):
            raise path_error(named, f"contains no WordNet (index.noun, data.noun); {HOW_TO_INSTALL}", code="no-wordnet")
        return named
    return next((path for path in search_paths() if _database(path)), None)


def search_paths() -> Iterator[Path]:
    """Yield the paths where nltk searches its data, then that of Debian."""
    listed = [Path(folder) for folder in os.environ.get("NLTK_DATA", "").split(os.pathsep) if folder]
    prefixes = [Path(sys.prefix), *(Path(sys.prefix, name) for name in ("share", "lib")), Path.home()]
    system = [Path(name) for name in ("/usr/share", "/usr/local/share", "/usr/lib", "/usr/local/lib")]
    for folder in [*listed, *(prefix / "nltk_data" for prefix in (*prefixes, *system))]:
        yield from (folder / name for name in _NLTK)
    yield DEBIAN


def _database(path: Path) -> Path | zipfile.Path | None:
    """Return the folder of the files, which may be inside a zip file; None if there is none."""
    if path.is_dir():
        return path if (path / "index.noun").is_file() else None
    if not zipfile.is_zipfile(path):
        return None
    root = zipfile.Path(path)
    return next((folder for folder in (root, *root.iterdir()) if (folder / "index.noun").is_file()), None)


def base_forms(word: str, known: Container[str]) -> list[str]:
    """Return the words of `known` of which `word` is a regular form, of any part of speech, and `word` itself."""
    cut = (form for endings in _ENDINGS.values() for form in _without_endings(word, endings))
    return [form for form in dict.fromkeys((word, *cut)) if form in known]


def _without_endings(word: str, endings: Sequence[tuple[str, str]]) -> list[str]:
    return [word.removesuffix(ending) + instead for ending, instead in endings if word.endswith(ending)]


@dataclass(frozen=True)
class _PartOfSpeech:
    """The files of nouns, verbs, adjectives or adverbs.

    Attributes:
        index: lemma, in lower case -> offsets in `data` of its synsets.
        data: one line per synset.
        exceptions: irregular form -> base forms.
    """

    index: dict[str, list[int]]
    data: bytes
    exceptions: dict[str, list[str]]
    endings: tuple[tuple[str, str], ...]

    def bases(self, word: str) -> list[str]:
        """Return `word` and the lemmas of which it may be an inflected form."""
        forms = dict.fromkeys((word, *self.exceptions.get(word, _without_endings(word, self.endings))))
        return [form for form in forms if form in self.index]

    def lemmas(self, base: str) -> Iterator[str]:
        """Yield all lemmas of all synsets of `base`, with spaces for underscores."""
        for offset in self.index[base]:
            fields = self.data[offset : self.data.index(b"\n", offset)].decode().split(" ")
            words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]  # each is followed by a number
            yield from (word.partition("(")[0].replace("_", " ") for word in words)  # adjectives: `galore(ip)`


class WordNet:
    """The database at a path that `find` returned."""

    def __init__(self, path: Path):
        folder = _database(path)
        assert folder is not None
        self._parts = [_read(folder, name) for name in _ENDINGS]

    def synonyms(self, word: str) -> list[str]:
        """Return the lemmas without the word and its base forms."""
        own = {word.lower()}.union(*(part.bases(word.lower()) for part in self._parts))
        return [lemma for lemma in self.lemmas(word) if lemma.lower() not in own]

    def lemmas(self, word: str) -> list[str]:
        """Return the lemmas of all synsets of `word` or a base form, of any part of speech and sense, sorted.

        A lemma has one or several words, with the spelling of WordNet.
        """
        parts = ((part, part.bases(word.lower())) for part in self._parts)
        return sorted({lemma for part, bases in parts for base in bases for lemma in part.lemmas(base)})


def _read(folder: Path | zipfile.Path, name: str) -> _PartOfSpeech:
    index = {}
    for line in _lines(folder / f"index.{name}"):
        fields = line.split()
        index[fields[0]] = [int(offset) for offset in fields[-int(fields[2]) :]]
    exceptions = {form: bases for form, *bases in map(str.split, _lines(folder / f"{name}.exc"))}
    return _PartOfSpeech(index, (folder / f"data.{name}").read_bytes(), exceptions, _ENDINGS[name])


def _lines(file: Path | zipfile.Path) -> list[str]:
    """Return the lines of a file without the license, which is indented."""
    return [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")]
