"""WordNet's synonyms, read from its own database files (wndb(5WN), morphy(7WN)).

A reader of our own: nltk's wants a file `lexnames`, which Debian's `wordnet-base` leaves out.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hybrid_cli.errors import InputError
from hybrid_cli.perturbations.attack import Lacking

_DEBIAN = Path("/usr/share/wordnet")
_NLTK = ("corpora/wordnet", "corpora/wordnet.zip")
_HOW_TO_GET_IT = (
    "`apt-get install wordnet-base` on Debian and Ubuntu, `python -m nltk.downloader wordnet` where nltk is installed, "
    "or --wordnet PATH for a folder or zip file with index.noun, data.noun, ..."
)
# Endings that morphy takes off, and what it puts there instead.
_ENDINGS = {
    "noun": (("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
             ("ies", "y")),
    "verb": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}  # fmt: skip


def find(named: Path | None = None) -> Path:
    """The folder or zip file of WordNet: the one named, else NLTK's data or Debian's.

    Raises:
        InputError: what was named is no WordNet.
        Lacking: none was named, and there is none on this machine.
    """
    if named is not None:
        if not _database(named):
            raise InputError(f"{named}: holds no WordNet (index.noun, data.noun, ...); {_HOW_TO_GET_IT}")
        return named
    for path in _places():
        if _database(path):
            return path
    raise Lacking(f"WordNet, which has the synonyms, is not on this machine: {_HOW_TO_GET_IT}")


def _places() -> Iterator[Path]:
    """Where nltk looks for its data, then where Debian puts WordNet."""
    listed = [Path(folder) for folder in os.environ.get("NLTK_DATA", "").split(os.pathsep) if folder]
    prefixes = [Path(sys.prefix), *(Path(sys.prefix, name) for name in ("share", "lib")), Path.home()]
    system = [Path(name) for name in ("/usr/share", "/usr/local/share", "/usr/lib", "/usr/local/lib")]
    for folder in [*listed, *(prefix / "nltk_data" for prefix in (*prefixes, *system))]:
        yield from (folder / name for name in _NLTK)
    yield _DEBIAN


def _database(path: Path) -> Path | zipfile.Path | None:
    """Where the files themselves are: the folder, or the one inside a zip file."""
    if path.is_dir():
        return path if (path / "index.noun").is_file() else None
    if not zipfile.is_zipfile(path):
        return None
    root = zipfile.Path(path)
    return next((folder for folder in (root, *root.iterdir()) if (folder / "index.noun").is_file()), None)


@dataclass(frozen=True)
class _PartOfSpeech:
    """The files of nouns, verbs, adjectives or adverbs.

    Attributes:
        index: lemma, in lower case -> the places in `data` of the synsets that it belongs to.
        data: one line a synset.
        exceptions: irregular form -> base forms.
    """

    index: dict[str, list[int]]
    data: bytes
    exceptions: dict[str, list[str]]
    endings: tuple[tuple[str, str], ...]

    def bases(self, word: str) -> list[str]:
        """The lemmas that `word` may be a form of, itself included."""
        cut = [word.removesuffix(ending) + instead for ending, instead in self.endings if word.endswith(ending)]
        forms = dict.fromkeys((word, *self.exceptions.get(word, cut)))
        return [form for form in forms if form in self.index]

    def lemmas(self, base: str) -> Iterator[str]:
        """All lemmas of all synsets of `base`, spaces for underscores."""
        for place in self.index[base]:
            fields = self.data[place : self.data.index(b"\n", place)].decode().split(" ")
            words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]  # each is followed by a number
            yield from (word.partition("(")[0].replace("_", " ") for word in words)  # adjectives: `galore(ip)`


class WordNet:
    """The database at a path that `find` found."""

    def __init__(self, path: Path):
        folder = _database(path)
        if folder is None:
            raise InputError(f"{path}: holds no WordNet")
        self._parts = [_read(folder, name) for name in _ENDINGS]

    def synonyms(self, word: str) -> list[str]:
        """The lemmas without the word and its base forms."""
        own = {word.lower()}.union(*(part.bases(word.lower()) for part in self._parts))
        return [lemma for lemma in self.lemmas(word) if lemma.lower() not in own]

    def lemmas(self, word: str) -> list[str]:
        """The lemmas of all synsets of `word` or of a base form of it, of any part of speech and sense, in order.

        One word or several; spelt as WordNet spells them.
        """
        parts = ((part, part.bases(word.lower())) for part in self._parts)
        return sorted({lemma for part, bases in parts for base in bases for lemma in part.lemmas(base)})


def _read(folder: Path | zipfile.Path, name: str) -> _PartOfSpeech:
    index = {}
    for line in _lines(folder / f"index.{name}"):
        fields = line.split()
        index[fields[0]] = [int(place) for place in fields[-int(fields[2]) :]]
    exceptions = {form: bases for form, *bases in map(str.split, _lines(folder / f"{name}.exc"))}
    return _PartOfSpeech(index, (folder / f"data.{name}").read_bytes(), exceptions, _ENDINGS[name])


def _lines(file: Path | zipfile.Path) -> list[str]:
    """The lines of a file without the licence, which is indented."""
    return [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")]
