"""What an attack on queries is: what it reads, and what becomes of one query."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hybrid_cli.config import Perturbation
from hybrid_cli.errors import HybridError

if TYPE_CHECKING:
    import polars as pl

Need = Literal["qrels", "corpus", "synonyms", "translation"]


class Lacking(HybridError):
    """What an attack draws from is not on this machine, and nobody named it. Its exit status tells it from a crash."""

    exit_code = 3


@dataclass(frozen=True)
class Attacked:
    """A query's new text, and what an attack counts of its own: name -> number, the same names for every query."""

    text: str
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """What an attack begins with.

    Attributes:
        queries: all of them, as `read_queries` returns them.
        files: role -> path, of what the attack needs.
        device: of models.
    """

    queries: pl.DataFrame
    files: Mapping[str, Path] = field(default_factory=dict)
    how: Perturbation = field(default_factory=Perturbation)
    device: str = "auto"


Draw = Callable[[str], int]  # a number for a name; the only chance that an attack may take
Rewrite = Callable[[str, str, Draw], Attacked]  # qid, text


@dataclass(frozen=True)
class Attack:
    """One way to make queries harder.

    Attributes:
        begin: from all queries and the files that it needs, what rewrites each of them.
        needs: what it reads besides the queries.
        settings: the fields of `Perturbation`, besides the seed, that its result depends on.
    """

    begin: Callable[[Given], Rewrite]
    needs: tuple[Need, ...] = ()
    settings: tuple[str, ...] = ()


def of_words(change: Callable[[str, Draw], str]) -> Attack:
    """An attack that needs nothing but a query's words."""
    return Attack(lambda given: lambda qid, text, draw: Attacked(change(text, draw)))


def draw(seed: int, attack: str, qid: str, name: str) -> int:
    """A number that depends on nothing else: not on other draws, nor on the order of the queries."""
    key = "\0".join((str(seed), attack, qid, name))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
