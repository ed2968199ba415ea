"""The prior of tuning: the gains of every weight over the untuned one, on other collections.

`prior.json` is rebuilt by `make prior`. It names its encoder and its collections, and holds the curve of each one, so
that an evaluation can leave a collection out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_cli.fusion.selection import Choice, Gains, Trials, Values, row_of

FILE = Path(__file__).with_name("prior.json")
MEASURES = ("nDCG@10", "MRR@10")
_NEW, _WIDTH = 0.001, 0.15  # a new curve is not quite a mix of the known ones: variance, and width in shares


def prior_of(
    family: str, shares: Sequence[float], untuned: float, measure: str, leave_out: Collection[str] = ()
) -> Gains | None:
    """Return the prior of choices of one family; None if the file has no such curves, of two or more collections.

    Args:
        family: see `selection.Choice.family`.
        shares: share of the dense run of each choice; of raw scores, in units of their deviations over the collection.
        untuned: share of the dense run of the untuned choice.
        measure: name of the measure; others than `MEASURES` use nDCG@10.
        leave_out: names of collections that are not used.
    """
    stored = _stored()
    used = measure if measure in MEASURES else MEASURES[0]
    kept = [each for each in stored["collections"] if each["name"] not in leave_out]
    if family not in stored["families"] or len(kept) < 2:
        return None
    grid = np.array(stored["shares"])
    at = np.stack([np.interp(shares, grid, unit) for unit in np.eye(len(grid))], axis=1)
    at -= np.array([np.interp(untuned, grid, unit) for unit in np.eye(len(grid))])
    curves = np.array([each["curves"][used][family] for each in kept]) @ at.T
    noise = np.mean([_symmetric(each["noise"][used][family], len(grid)) for each in kept], axis=0)
    distance = np.array(shares) - untuned
    near = np.exp(-(((distance[:, None] - distance) / _WIDTH) ** 2) / 2)
    new = _NEW * near * np.abs(distance[:, None] * distance)
    rows = sorted({int(np.abs(np.array(shares) - share).argmin()) for share in grid})
    return Gains(curves.mean(0), np.cov(curves, rowvar=False) + new, at @ noise @ at.T, rows)


def shrunk(
    choices: Sequence[Choice], values: Values, untuned: Sequence[float], dense: int | None, measure: str
) -> Trials:
    """Return the values of the choices of one family, which shrink towards the untuned one by other collections.

    Args:
        choices, values: see `Trials`.
        untuned: shares of the untuned fusion.
        dense: number of the dense run of two, of which the other is lexical; None for other runs, without a prior.
        measure: name of the measure.
    """
    row, prior = row_of(choices, untuned), None
    if dense is not None and row is not None:
        shares = [float(choice.proportions[dense]) for choice in choices]
        prior = prior_of(choices[0].family, shares, shares[row], measure)
    return Trials(choices, values, row, prior)


def triangle(matrix: Values) -> list[float]:
    """Return the lower triangle of a symmetric matrix, as the file has it."""
    return [float(f"{value:.3g}") for value in matrix[np.tril_indices(len(matrix))]]


def _symmetric(values: Sequence[float], size: int) -> Values:
    lower = np.zeros((size, size))
    lower[np.tril_indices(size)] = values
    return lower + np.tril(lower, -1).T


@cache
def _stored() -> Mapping[str, Any]:
    stored: Mapping[str, Any] = json.loads(FILE.read_text("utf-8"))
    return stored
