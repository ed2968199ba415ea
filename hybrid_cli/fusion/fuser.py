"""The artifact of `train-fusion`: a fusion of two runs with one weight per query, and the pair of systems it is for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, disk, layout
from hybrid_cli.artifacts.lineage import System, system_of
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.features import Matrix, of_lists
from hybrid_cli.fusion.learned import Model, read_model
from hybrid_cli.fusion.methods import METHODS, Recipe, weighted_mean, weighted_sum
from hybrid_cli.fusion.selection import Values
from hybrid_cli.json_files import mismatch_of_fields, read_object
from hybrid_cli.settings.fusion import Missing

LINEAR = (weighted_mean, weighted_sum)  # rules whose weights may differ between queries
_LONGER = 2  # ratio of the lengths of lists above which the features differ
FUSER_ROLE = "fuser"  # of the fuser among the inputs of a fused run
_STORED: dict[str, Any] = {
    "runs": list[str],
    "systems": list[dict[str, Any]],
    "lengths": list[int],
    "method": str,
    "missing": str,
    "rrf_k": float | None,
    "shares": list[float],
    "features": list[str],
    "indexed": bool,
    "judged": list[str],
}


@dataclass(frozen=True)
class Fuser:
    """A method, and a model that predicts the weight of each query.

    Attributes:
        runs: names of the two runs.
        systems: index and search options of each run.
        lengths: number of hits of the longest list of each run.
        method, missing, rrf_k: see `Recipe`.
        shares: weights of the second run among which the model chooses; the first run has the rest.
        features: names of the features.
        indexed: some features need the indexes of the runs.
        judged: ids of the queries that the model was trained on.
        model: the model.
    """

    runs: Sequence[str]
    systems: Sequence[System]
    lengths: Sequence[int]
    method: str
    missing: Missing
    rrf_k: float | None
    shares: Sequence[float]
    features: Sequence[str]
    indexed: bool
    judged: Sequence[str]
    model: Model

    @property
    def fixed(self) -> float:
        """Return the fixed weight of the second run."""
        return self.shares[self.model.fixed]

    @property
    def recipe(self) -> Recipe:
        """Return the method with the fixed weights."""
        k = Recipe.rrf_k if self.rrf_k is None else self.rrf_k
        return Recipe(self.method, (1 - self.fixed, self.fixed), self.missing, None, k)

    def weights(self, features: Matrix) -> Values:
        """Return the weight of the second run for each query, [queries].

        Args:
            features: [queries, features].
        """
        return np.array(self.shares)[self.model.rows(features)]

    def weights_of(self, block: pl.DataFrame) -> Values:
        """Return the weight of the second run for each query of a block, from the features of the lists alone."""
        if not self.model.trees:
            numbers: NDArray[np.int64] = block["query"].to_numpy().astype(np.int64)
            return np.full(int(numbers.max() - numbers.min()) + 1, self.fixed)
        return self.weights(of_lists(block)[1])

    def save(self, folder: Path, report: Mapping[str, Any]) -> None:
        """Write the fuser and a report of its training, which `inspect` shows, as JSON."""
        stored = {name: getattr(self, name) for name in _STORED if name != "systems"}
        stored |= {"systems": [asdict(system) for system in self.systems]}
        model = {
            "means": self.model.means.tolist(),
            "curves": self.model.curves.round(8).tolist(),
            "fixed": self.model.fixed,
            "shrinkage": self.model.shrinkage,
            "trees": [tree.content() for tree in self.model.trees],
        }
        disk.write_text(folder / layout.FUSER, json.dumps({**stored, "report": dict(report), **model}) + "\n")


def read_fuser(folder: Path) -> tuple[Fuser, dict[str, Any]]:
    """Read a fuser and the report of its training.

    Raises:
        InputError: not a fuser.
        DamageError: the file differs from its manifest.
    """
    artifacts.read_manifest(folder, Kind.FUSER)
    artifacts.check_parts(folder, layout.FUSER)
    path = folder / layout.FUSER
    found = read_object(path)
    if wrong := mismatch_of_fields(found, {**_STORED, "report": dict[str, Any] | None}):
        raise InputError(
            f"{path}: damaged fuser; {wrong}; train again", code="damaged-fuser", path=path, **wrong.fields
        )
    known = {"method": METHODS, "missing": get_args(Missing)}
    if unknown := [name for name, allowed in known.items() if found[name] not in allowed]:
        raise InputError(f"{path}: damaged fuser; '{unknown[0]}' is {found[unknown[0]]}; train again")
    if not len(found["runs"]) == len(found["systems"]) == len(found["lengths"]) == 2:
        raise InputError(f"{path}: damaged fuser; it is not for two runs; train again")
    try:
        systems = [System(**each) for each in found["systems"]]
    except TypeError:
        raise InputError(f"{path}: damaged fuser; its systems have other fields; train again") from None
    model = read_model(found, len(found["features"]), len(found["shares"]), path)
    plain = {name: found[name] for name in _STORED if name != "systems"}
    return Fuser(**plain, systems=systems, model=model), dict(found.get("report") or {})


def check_pair(fuser: Fuser, path: Path, runs: Mapping[str, Path], force: bool) -> None:
    """Refuse runs of other systems than those of the training; warn about another index.

    Args:
        fuser: the fuser.
        path: its path, for messages.
        runs: name -> path of the runs to fuse.
        force: warn instead of refusing.

    Raises:
        InputError: not two runs, runs in another order, or runs of other systems.
    """
    if len(runs) != 2:
        raise InputError(f"{path}: is a fuser for two runs, got {len(runs)}")
    systems = [system_of(run) for run in runs.values()]
    if not force and _fit(fuser, systems[::-1]):
        order = list(runs)[::-1]
        if list(fuser.runs) == order or not _fit(fuser, systems):
            raise InputError(f"{path}: was trained for the other order of the runs; pass {' and then '.join(order)}")
    for number, (trained, here, name) in enumerate(zip(fuser.systems, systems, runs, strict=True), 1):
        if difference := trained.difference(here):
            problem = f"{path}: was trained for {difference} as run {number} ({name})"
            if not force:
                raise InputError(f"{problem}; train again (`train-fusion`), or pass --force to use it anyway")
            console.warn(f"{problem}; its weights are not reliable for these runs")
        elif trained.index and here.index and trained.index != here.index:
            console.warn(
                f"{path}: was trained on another index than that of {name}; train it on judged queries of this one"
            )


def _fit(fuser: Fuser, systems: Sequence[System]) -> bool:
    return not any(map(System.difference, fuser.systems, systems))


def check_lengths(fuser: Fuser, path: Path, lengths: Mapping[str, int]) -> None:
    """Warn about lists that are much longer or shorter than those of the training: scores are normalized per list."""
    for trained, (name, here) in zip(fuser.lengths, lengths.items(), strict=True):
        if trained and here and max(trained, here) >= _LONGER * min(trained, here):
            console.warn(
                f"{path}: was trained on lists of up to {trained:,} hits, {name} has up to {here:,}; the weights may "
                "be wrong"
            )
