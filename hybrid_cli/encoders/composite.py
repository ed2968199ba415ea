"""Encoders made of two encoders: combinations, ensembles and pairs.

A combination adds the scores of two encoders (SPAR, section 4.2, eq. 1):

    concat: q = [Q, mu Q'],  p = [P, P']    q . p = Q . P + mu Q' . P'
    sum:    q = Q + mu Q',   p = P + P'     q . p = Q . P + mu Q' . P' + Q . P' + mu Q' . P

The weight mu is on the query side only, so one index serves every weight. An ensemble of small learners (LITE, section
3.1) is a combination by concatenation with weight 1, whose first part may be an ensemble itself.

A pair encodes queries with one encoder and documents with another: a small student queries the index of an ensemble
(LITE, section 4, query-side distillation of DrBoost).

Each is stored as a folder of both encoders and `encoder.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hybrid_cli import storage
from hybrid_cli.encoders.contract import COMBINATION, ENDPOINT, PAIR, Encoder, contract_to_store
from hybrid_cli.encoders.models import Known, open_encoder, refuse_changes, resolve
from hybrid_cli.encoders.options import Combining, Precision
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.inputs.json_values import make_typed, read_object
from hybrid_cli.storage import disk
from hybrid_cli.storage.layout import COMBINATION_PARTS, CONTRACT, PAIR_SIDES

Link: TypeAlias = Callable[[Path, Path], None]  # links or copies a folder


@dataclass(frozen=True)
class CombinationRecipe(Combining):
    """Parameters of a combination of two encoders; see `Combining` for the others.

    Attributes:
        changes: fields that override the contracts of both encoders.
        contracts: contracts of encoders of another tool; empty for others.
    """

    changes: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    contracts: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})


class Combination:
    """Two encoders whose scores are added.

    Args:
        recipe: parameters of the combination.
        parts: the two encoders.
        weight: overrides the weight of the recipe.

    Attributes:
        fingerprint: hash of both encoders, independent of the weight, which does not affect document vectors.
        dim: length of the vectors.
        device: device of the first encoder's weights.

    Raises:
        InputError: the vectors cannot be combined.
    """

    def __init__(self, recipe: CombinationRecipe, parts: Sequence[Encoder], weight: float | None = None):
        self.recipe = recipe if weight is None else replace(recipe, weight=weight)
        self.first, self.second = parts
        lengths = {part.dim for part in parts}
        if recipe.combine == "sum" and len(lengths) > 1:
            raise option_error("combine", "sum", f"vectors of {lengths} values; use concat", code="other-width")
        self.dim = sum(part.dim for part in parts) if recipe.combine == "concat" else self.first.dim
        self.device = self.first.device
        whole = "\0".join((recipe.combine, self.first.fingerprint, self.second.fingerprint))
        self.fingerprint = hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

    @property
    def truncated(self) -> int:
        """Number of texts cut so far, by the encoder that cut more."""
        return max(self.first.truncated, self.second.truncated)

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        parts = {name: part.describe() for name, part in zip(COMBINATION_PARTS, (self.first, self.second), strict=True)}
        return {"kind": COMBINATION, "combine": self.recipe.combine, "weight": self.recipe.weight, **parts}

    def query_parts(self, texts: Sequence[str], *batch_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Return both terms [n, dim] of the query vectors: the vector is the first plus `weight` times the second."""
        first, second = (part.encode_queries(texts, *batch_tokens) for part in (self.first, self.second))
        if self.recipe.combine == "sum":
            return first, second
        return np.pad(first, ((0, 0), (0, self.second.dim))), np.pad(second, ((0, 0), (self.first.dim, 0)))

    def encode_queries(self, texts: Sequence[str], *batch_tokens: int) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        first, second = self.query_parts(texts, *batch_tokens)
        vectors: np.ndarray = first + np.float32(self.recipe.weight) * second
        return vectors

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], *batch_tokens: int) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        return self.document_vectors(
            *(part.encode_documents(titles, texts, *batch_tokens) for part in (self.first, self.second))
        )

    def document_vectors(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Combine the document vectors of both encoders."""
        return np.hstack([first, second]) if self.recipe.combine == "concat" else first + second


def refuse_equal(parts: Sequence[Encoder], names: Sequence[Any]) -> None:
    """Refuse to combine an encoder with itself, whose combination has the ranking of the encoder."""
    if behind := [str(name) for name, part in zip(names, parts, strict=True) if hasattr(part, "limit")]:
        reason = f"{behind[0]} is behind an API, and not combined; search both indexes, and fuse the runs"
        raise option_error("model", names, reason, code="other-kind", kind=ENDPOINT)
    first, second = parts
    if first.fingerprint == second.fingerprint:
        raise InputError(f"{names[0]} and {names[1]}: the same encoder; name another", code="repeated-input")


def write_combination(
    folder: Path,
    models: Sequence[Path],
    recipe: CombinationRecipe,
    link: Link = storage.hard_link,
) -> None:
    """Write the combination of two model folders; `link` links or copies a folder."""
    folder.mkdir(exist_ok=True)
    for model, target in zip(models, parts(folder), strict=True):
        link(model, target)
    first, second = map(contract_to_store, models)
    _write_recipe(folder, replace(recipe, contracts=(first, second)))


def add_part(folder: Path, model: str, encoder: Any, recipe: CombinationRecipe, link: Link) -> None:
    """Write the combination of a model and an encoder that is saved here; see `write_combination`."""
    added = parts(folder)[1]
    encoder.save(added)
    write_combination(folder, [resolve(model), added], recipe, link)


def _write_recipe(folder: Path, recipe: CombinationRecipe) -> None:
    kept = {name: value for name, value in asdict(recipe).items() if name != "contracts" or any(value)}
    stored = {"kind": COMBINATION, **kept}
    disk.write_text(folder / CONTRACT, json.dumps(stored, indent=2) + "\n")


def learners(folder: Path, count: int) -> list[Path]:
    """Return the folders of the learners of an ensemble, in order: each level combines those before with the next."""
    before, last = parts(folder)
    return [folder] if count == 1 else [*learners(before, count - 1), last]


def write_ensemble(folder: Path, count: int, contract: Mapping[str, Any]) -> None:
    """Write the recipes of an ensemble whose learners are in their folders.

    Args:
        folder: folder of the ensemble.
        count: number of learners, at least 2.
        contract: fields that override the contracts of all learners.
    """
    _write_recipe(folder, CombinationRecipe(changes=(contract if count == 2 else {}, contract)))
    if count > 2:
        write_ensemble(parts(folder)[0], count - 1, contract)


def read_recipe(folder: Path) -> CombinationRecipe:
    """Read the recipe of the combination in `folder`.

    Raises:
        InputError: `encoder.json` has other fields.
    """
    stored = read_object(folder / CONTRACT)
    stored.pop("kind", None)
    if lacking := [name for name in ("combine", "weight", "changes") if name not in stored]:
        raise path_error(folder / CONTRACT, f"has no field '{lacking[0]}'; rebuild the combination", code="damaged")
    return make_typed(CombinationRecipe, stored, folder / CONTRACT)


def parts(folder: Path) -> list[Path]:
    """Return the folders of both encoders of a combination."""
    return [folder / name for name in COMBINATION_PARTS]


class Pair:
    """One encoder for queries and another for documents.

    Attributes:
        fingerprint: fingerprint of the document encoder; an index does not depend on the query encoder.
        dim: length of the vectors.
        device: device of the query encoder's weights.

    Raises:
        InputError: the lengths of their vectors differ.
    """

    def __init__(self, queries: Encoder, documents: Encoder):
        if queries.dim != documents.dim:
            raise InputError(f"vectors of {queries.dim} and {documents.dim} values are no pair", code="other-width")
        self.queries, self.documents = queries, documents
        self.fingerprint, self.dim, self.device = documents.fingerprint, documents.dim, queries.device

    @property
    def truncated(self) -> int:
        """Number of texts cut so far."""
        return self.queries.truncated + self.documents.truncated

    def describe(self) -> dict[str, Any]:
        """Return the contract as JSON values, as manifests store it."""
        return {"kind": PAIR, "queries": self.queries.describe(), "documents": self.documents.describe()}

    def encode_queries(self, texts: Sequence[str], *batch_tokens: int) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        return self.queries.encode_queries(texts, *batch_tokens)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], *batch_tokens: int) -> np.ndarray:
        """Return vectors [n, dim], float32, in the order of `texts`."""
        return self.documents.encode_documents(titles, texts, *batch_tokens)


def write_pair(folder: Path, documents: Path, link: Link = storage.hard_link) -> None:
    """Add the document encoder to a folder that contains the query encoder; `link` links or copies a folder."""
    link(documents, folder / PAIR_SIDES[1])
    own = contract_to_store(documents)
    disk.write_text(
        folder / CONTRACT, json.dumps({"kind": PAIR, **({"documents": own} if own else {})}, indent=2) + "\n"
    )


def open_combination(
    folder: Path, device: str, dtype: Precision, known: Known = None, weight: float | None = None, **changes: Any
) -> Encoder:
    """Open a combination; `weight` replaces its own."""
    refuse_changes(folder, changes, COMBINATION)
    recipe = read_recipe(folder)
    encoders = [
        open_encoder(part, device=device, dtype=dtype, overrides=changed, known=contract or None)
        for part, changed, contract in zip(parts(folder), recipe.changes, recipe.contracts, strict=True)
    ]
    return Combination(recipe, encoders, weight)


def open_pair(folder: Path, device: str, dtype: Precision, known: Known = None, **changes: Any) -> Encoder:
    """Open a pair of encoders."""
    refuse_changes(folder, changes, PAIR)
    contracts = (None, read_object(folder / CONTRACT).get("documents"))
    sides = zip(PAIR_SIDES, contracts, strict=True)
    return Pair(*(open_encoder(folder / side, device=device, dtype=dtype, known=own) for side, own in sides))
