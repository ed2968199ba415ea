"""Attacks on queries: their inputs and results, and their registry.

A new attack is a function and a line here, or in another package (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hybrid_cli.errors import HybridError
from hybrid_cli.perturbations.options import Perturbation
from hybrid_cli.plugins import Lazy, Registry

if TYPE_CHECKING:
    import polars as pl

Need = Literal["qrels", "corpus", "synonyms", "translation"]


class MissingResource(HybridError):
    """Raised if a resource of an attack is not installed and no path is given; it has an exit code of its own."""

    exit_code = 3


@dataclass(frozen=True)
class Attacked:
    """A rewritten query.

    Attributes:
        text: the new text.
        counts: name -> number, with the same names for every query of an attack.
    """

    text: str
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """Inputs of an attack.

    Attributes:
        queries: all queries, as returned by `read_queries`.
        files: role -> path, for each role in `Attack.needs`.
        options: how queries are perturbed.
    """

    queries: pl.DataFrame
    files: Mapping[str, Path]
    options: Perturbation


Draw = Callable[[str], int]  # a number for a name; the only source of randomness of an attack
Rewrite = Callable[[str, str, Draw], Attacked]  # qid, text


@dataclass(frozen=True)
class Attack:
    """An attack: a method that perturbs queries.

    Attributes:
        start: returns the function that rewrites each query.
        needs: roles of the files that the attack reads besides the queries.
        function: function whose docstring is the help of an attack of a plugin; None for `start`.
    """

    start: Callable[[Inputs], Rewrite]
    needs: tuple[Need, ...] = ()
    function: Callable[..., object] | None = None

    @property
    def documented(self) -> Callable[..., object]:
        """The function whose docstring is the help."""
        return self.function or self.start


def of_text(change: Callable[[str, Draw], str]) -> Attack:
    """Return an attack that reads only the text of a query."""
    return Attack(lambda inputs: lambda qid, text, draw: Attacked(change(text, draw)), function=change)


def as_attack(name: str, added: Any) -> Attack:
    """Return the attack of a plugin: an `Attack`, or a function of a text and a source of random numbers.

    Raises:
        ValueError: neither of them.
    """
    if not isinstance(added, Attack) and not callable(added):
        raise ValueError(f"{type(added).__name__} is neither an Attack nor a function")
    return added if isinstance(added, Attack) else of_text(added)


_LITE = {
    "char-swap": "edits:CHARACTERS",
    "word-deletion": "edits:DELETION",
    "synonym-replacement": "synonyms:REPLACEMENT",
    "word-order-swap": "edits:ORDER",
    "synonym-insertion": "synonyms:INSERTION",
    "back-translation": "translation:BACK",
}
_OTHERS = {"shuffle": "edits:SHUFFLE", "synonym-adversary": "synonyms:ADVERSARY"}
SETS = {"lite": tuple(_LITE), "all": (*_LITE, *_OTHERS)}
ATTACKS: Registry[Attack] = Registry(
    "perturbations",
    {name: Lazy(f"hybrid_cli.perturbations.{home}") for name, home in (_LITE | _OTHERS).items()},
    as_attack,
    SETS,
)
