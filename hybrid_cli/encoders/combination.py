"""Two encoders as one (SPAR, methods 7.2): their vectors side by side, or added; the weight on the query side only.

    concat: q = [Q, mu Q'],  p = [P, P']    q . p = Q . P + mu Q' . P'
    sum:    q = Q + mu Q',   p = P + P'     q . p = Q . P + mu Q' . P' + Q . P' + mu Q' . P

So an index does not depend on mu. On disk it is a folder of both encoders and `encoder.json`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hybrid_cli import artifacts
from hybrid_cli.config import Combine
from hybrid_cli.encoders.contract import FILE
from hybrid_cli.errors import InputError

if TYPE_CHECKING:
    from hybrid_cli.encoders.encoder import Encoder

KIND = "combination"
_PARTS = ("part-1", "part-2")


@dataclass(frozen=True)
class Recipe:
    """How two encoders meet: `how`, the weight of the second, and what of each one's contract is changed."""

    how: Combine = "concat"
    weight: float = 1.0
    changes: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})


class Combination:
    """Two encoders whose scores add up.

    Args:
        recipe: as it is on disk.
        parts: the two encoders.
        weight: instead of the recipe's.

    Raises:
        InputError: a weight that is not a number, or a sum of vectors of two lengths.
    """

    def __init__(self, recipe: Recipe, parts: Sequence[Encoder], weight: float | None = None):
        self.recipe = recipe if weight is None else replace(recipe, weight=weight)
        self.first, self.second = parts
        check(self.recipe, self.first.dim, self.second.dim)
        # the weight is no part of it, since it changes no document's vector
        whole = "\0".join((recipe.how, self.first.fingerprint, self.second.fingerprint))
        self.fingerprint = hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self.first.dim + self.second.dim if self.recipe.how == "concat" else self.first.dim

    @property
    def device(self) -> torch.device:
        """Where the first encoder's weights are."""
        return self.first.device

    @property
    def truncated(self) -> int:
        """How many texts the encoder that reads less has cut so far."""
        return max(self.first.truncated, self.second.truncated)

    def describe(self) -> dict[str, Any]:
        """The contract, as manifests hold it."""
        parts = {name: part.describe() for name, part in zip(_PARTS, (self.first, self.second), strict=True)}
        return {"kind": KIND, "how": self.recipe.how, "weight": self.recipe.weight, **parts}

    def query_parts(self, texts: Sequence[str], *batch_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Two halves [n, dim] of the queries' vectors; the vector is the first plus `weight` times the second."""
        first, second = (part.encode_queries(texts, *batch_tokens) for part in (self.first, self.second))
        if self.recipe.how == "sum":
            return first, second
        return _padded(first, after=self.second.dim), _padded(second, before=self.first.dim)

    def encode_queries(self, texts: Sequence[str], *batch_tokens: int) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`."""
        first, second = self.query_parts(texts, *batch_tokens)
        found: np.ndarray = first + np.float32(self.recipe.weight) * second
        return found

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], *batch_tokens: int) -> np.ndarray:
        """Vectors [n, dim], float32, in the order of `texts`."""
        first, second = (part.encode_documents(titles, texts, *batch_tokens) for part in (self.first, self.second))
        return np.hstack([first, second]) if self.recipe.how == "concat" else first + second


def check(recipe: Recipe, first: int, second: int) -> None:
    """Refuse what cannot be combined: vectors of lengths `first` and `second` under `recipe`.

    Raises:
        InputError: it cannot.
    """
    if not math.isfinite(recipe.weight):
        raise InputError(f"--weight {recipe.weight}: must be a finite number")
    if recipe.how == "sum" and first != second:
        raise InputError(f"--combine sum: adds vectors of one length, these have {first} and {second}; use concat")


def write(folder: Path, models: Sequence[Path], recipe: Recipe) -> None:
    """Write a combination of two model folders; their files are shared, not copied, where the file system can."""
    folder.mkdir(exist_ok=True)
    for model, place in zip(models, parts(folder), strict=True):
        artifacts.hard_link(model, place)
    (folder / FILE).write_text(json.dumps({"kind": KIND, **asdict(recipe)}, indent=2) + "\n", "utf-8")


def read(folder: Path) -> Recipe:
    """The recipe of the combination in `folder`."""
    stored = json.loads((folder / FILE).read_text("utf-8"))
    return Recipe(stored["how"], stored["weight"], tuple(stored["changes"]))


def parts(folder: Path) -> list[Path]:
    """Where its two encoders stand."""
    return [folder / name for name in _PARTS]


def _padded(vectors: np.ndarray, before: int = 0, after: int = 0) -> np.ndarray:
    return np.pad(vectors, ((0, 0), (before, after)))
