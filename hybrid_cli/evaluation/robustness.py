"""What runs lose under attacks on their queries (LITE's Table 4, methods 6.6).

A run of attacked queries is named `SYSTEM@ATTACK`; the run named `SYSTEM` is the one of the queries as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import intervals, significance
from hybrid_cli.evaluation.summary import Summary
from hybrid_cli.settings.data import Attack

MARK = "@"
_KNOWN = get_args(Attack)


@dataclass(frozen=True)
class Robustness:
    """Systems under attacks.

    Attributes:
        systems: in the order of the runs.
        attacks: those of `perturb` first, in its order.
        means: (run, measure) -> the mean over all judged queries.
        comparisons: of each attacked run with its original, as `significance.compare` returns them; a family is the
            attacks on a system.
        drops: of a query, the value of the original less the plain mean over the attacks, as a summary of its own whose
            runs are the systems.
        missing: attacked run or original -> judged queries that it has no hit for, where there are any.
    """

    systems: Sequence[str]
    attacks: Sequence[str]
    means: Mapping[tuple[str, str], float]
    comparisons: pl.DataFrame
    drops: Summary
    missing: Mapping[str, int]


def systems_and_attacks(runs: Sequence[str]) -> tuple[list[str], list[str]]:
    """The rows and columns that the names of the runs come to.

    Raises:
        InputError: no attacked run, one without its original, or a system without an attack that another has.
    """
    systems = [run for run in runs if MARK not in run]
    attacked = [run.rpartition(MARK) for run in runs if MARK in run]
    if not attacked:
        raise InputError("--robustness: none of the runs is named SYSTEM@ATTACK, such as bm25@char-swap")
    if strange := [system for system, _, _ in attacked if system not in systems]:
        raise InputError(f"--robustness: {strange[0]} has attacked runs, but none of the runs is named {strange[0]}")
    seen = list(dict.fromkeys(attack for _, _, attack in attacked))
    attacks = [*(attack for attack in _KNOWN if attack in seen), *(attack for attack in seen if attack not in _KNOWN)]
    wanted = (f"{system}{MARK}{attack}" for system in systems for attack in attacks)
    if missing := [name for name in wanted if name not in runs]:
        raise InputError(
            f"--robustness: there is no run {', '.join(missing)}; a mean drop needs the same attacks for all systems"
        )
    return systems, attacks


def under_attack(summary: Summary, baselines: Sequence[str] = ()) -> Robustness:
    """Set every system beside itself under attack, and the drops of the systems beside each other.

    Args:
        summary: of all runs, compared with nothing.
        baselines: systems whose drops the others are compared with.

    Raises:
        InputError: see `systems_and_attacks`.
    """
    systems, attacks = systems_and_attacks(summary.runs)
    settings = summary.settings
    how = {name: settings[name] for name in ("correction", "permutations", "seed")}
    frames, drops = [], []
    for system in systems:
        names = [f"{system}{MARK}{attack}" for attack in attacks]
        values = summary.values.filter(pl.col("run").is_in([system, *names]))
        frames.append(significance.compare(values, [system], **how))
        drops.append(_drops(values, system))
    values = pl.concat(drops)
    return Robustness(
        systems,
        attacks,
        summary.means,
        pl.concat(frames),
        _summary_of_drops(values, baselines, settings, how),
        {run: int(counts["missing"]) for run, counts in summary.counts.items() if counts["missing"]},
    )


def _drops(values: pl.DataFrame, system: str) -> pl.DataFrame:
    """run, measure, qid, value: what a query of a system loses, in the order of its original."""
    original = pl.col("run") == system
    attacked = values.filter(~original).group_by("measure", "qid").agg(attacked=pl.col("value").mean())
    both = values.filter(original).join(attacked, on=["measure", "qid"], how="left", maintain_order="left")
    return both.select("run", "measure", "qid", value=pl.col("value") - pl.col("attacked"))


def _summary_of_drops(
    values: pl.DataFrame, baselines: Sequence[str], settings: Mapping[str, Any], how: Mapping[str, Any]
) -> Summary:
    estimates = intervals.intervals(
        values, resamples=settings["resamples"], confidence=settings["confidence"], seed=settings["seed"]
    )
    systems: dict[str, dict[str, float]] = {system: {} for system in values["run"].unique(maintain_order=True)}
    comparisons = significance.compare(values, list(baselines), **how)
    return Summary(values, systems, comparisons, estimates, baselines, settings)
