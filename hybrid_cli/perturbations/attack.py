"""The interface of attacks on queries: their inputs and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hybrid_cli.errors import HybridError
from hybrid_cli.perturbations.options import Perturbation

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
