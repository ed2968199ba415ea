"""Settings of splitting collections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from hybrid_cli.settings.common import Seeded, Writes
from hybrid_cli.settings.data import DATA
from hybrid_cli.settings.options import REQUIRED, argument, option, redeclare, when


@dataclass(frozen=True)
class Split(Seeded, Writes):
    """Split the judged queries into folds for cross-validation.

    Writes a collection over the same documents with the splits `test-1`, `dev-1`, `train-1`, `test-2`, ... Split
    `test-i` is fold i of the queries, `dev-i` the next fold, `train-i` all other folds. Split `all` contains all judged
    queries. One index serves all folds.

    With `--no-dev`, `train-i` contains all queries outside of fold i: 200 of 250 with five folds (RoC on Robust04).
    """

    command = "split"
    panel = DATA
    examples = ("hybrid split data/robust04 --folds 5 --output out/folds",)

    collection: Path = argument(REQUIRED, "Collection with judgments.")
    _: KW_ONLY
    folds: int = option(5, "Number of folds; with `--folds-file`, the number of folds required in the file.", minimum=2)
    folds_file: Path | None = option(
        None, "Predefined folds: a JSON list of lists of query ids, or lines of query id and fold.", recorded=False
    )
    splits: Sequence[str] = option(
        (), "Splits whose queries are divided, or `all`.", "--split", shown="the only split", recorded=False
    )
    dev: bool = option(True, "Use the fold after the test fold as dev split; else it is part of the training split.")
    seed: int = redeclare(Seeded, "seed", help="Random seed of the folds.", applies=when(folds_file=None))
