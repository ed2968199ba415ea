"""The prior of `fuse --tune`: mean values of each method by the weight of the dense run, on other collections.

`prior.json` is rebuilt by `make prior` and holds the curves of every collection, so that an evaluation can leave a
collection out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.fusion.selection import Choice, Values

FILE = Path(__file__).with_name("prior.json")
MEASURES = ("nDCG@10", "MRR@10")


@dataclass(frozen=True)
class Prior:
    """Mean curves over collections.

    Attributes:
        shares: weights of the dense run, of a sum of 1, ascending; for sums of raw scores, in units of the standard
            deviations of the runs.
        curves: family of choices -> mean value at each of `shares`.
        measure: measure of the values.
        collections: names of the collections.
    """

    shares: Values
    curves: Mapping[str, Values]
    measure: str
    collections: Sequence[str]

    def values(self, choices: Sequence[Choice], dense: int) -> Values | None:
        """Return the prior of each choice, [choices], interpolated; None if it does not cover one of them.

        Args:
            choices: choices for two runs.
            dense: number of the dense run.
        """
        if self.uncovered(choices):
            return None
        return np.array(
            [np.interp(choice.proportions[dense], self.shares, self.curves[choice.family]) for choice in choices]
        )

    def uncovered(self, choices: Sequence[Choice]) -> list[str]:
        """Return what has no curve: methods, and weights of raw scores without shares, which depend on the scales."""
        missing = {choice.family for choice in choices if choice.family not in self.curves}
        unscaled = {
            f"{choice.family} with another grid than scaled"
            for choice in choices
            if choice.family in self.curves and not choice.shares and METHODS[choice.method].normalization == "none"
        }
        return sorted(missing | unscaled)


def read_prior(measure: str, leave_out: Collection[str] = ()) -> Prior | None:
    """Return the prior for a measure; other measures than `MEASURES` use nDCG@10.

    Args:
        measure: name of the measure.
        leave_out: names of collections that are not used.

    Returns:
        None if no collection is left.
    """
    stored = _stored()
    used = measure if measure in MEASURES else MEASURES[0]
    kept = [curves_of for curves_of in stored["collections"] if curves_of["name"] not in leave_out]
    if not kept:
        return None
    curves = {
        family: np.mean([curves_of["curves"][used][family] for curves_of in kept], axis=0)
        for family in kept[0]["curves"][used]
    }
    return Prior(np.array(stored["shares"]), curves, used, [curves_of["name"] for curves_of in kept])


def prior_of(dense: int | None, measure: str, choices: Sequence[Choice]) -> tuple[Values | None, str | None]:
    """Return the prior of each choice for some runs, [choices]; else None and the reason.

    Args:
        dense: number of the dense run of two, of which the other is lexical; None for other runs.
        measure: name of the measure.
        choices: choices for these runs.
    """
    if dense is None:
        return None, "it is for two runs, one of a lexical and one of a dense index"
    prior = read_prior(measure)
    if prior is None:
        return None, "no collection has curves"
    if uncovered := prior.uncovered(choices):
        return None, f"it does not cover {', '.join(uncovered)}"
    return prior.values(choices, dense), None


@cache
def _stored() -> Mapping[str, Any]:
    stored: Mapping[str, Any] = json.loads(FILE.read_text("utf-8"))
    return stored
