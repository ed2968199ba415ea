"""Loss of effectiveness under attacks on the queries (LITE, table 4).

The run of attacked queries is named `SYSTEM@ATTACK`, that of the original queries `SYSTEM`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import significance
from hybrid_cli.perturbations.attacks import ATTACKS
from hybrid_cli.reporting.summary import Summary

MARK = "@"


@dataclass(frozen=True)
class Robustness:
    """Systems under attacks.

    Attributes:
        systems: names in the order of the runs.
        attacks: names; the attacks of `perturb` first, in its order.
        means: (run, measure) -> mean over all judged queries.
        comparisons: attacked runs against their originals; see `significance.compare`. The attacks on one system are
            one family.
        drops: summary of the drop of each query: value of the original run minus the mean over the attacks.
        missing: run -> number of judged queries without hits, if any.
    """

    systems: Sequence[str]
    attacks: Sequence[str]
    means: Mapping[tuple[str, str], float]
    comparisons: pl.DataFrame
    drops: Summary
    missing: Mapping[str, int]


def systems_and_attacks(runs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the names of runs into systems and attacks.

    Raises:
        InputError: no attacked run, an attacked run without its original, or systems with different attacks.
    """
    systems = [run for run in runs if MARK not in run]
    attacked = [run.rpartition(MARK) for run in runs if MARK in run]
    if not attacked:
        raise InputError(
            "--robustness: no run is named SYSTEM@ATTACK, such as bm25@char-swap",
            code="no-such-run", option="robustness",
        )  # fmt: skip
    if strange := [system for system, _, _ in attacked if system not in systems]:
        raise InputError(
            f"--robustness: no run is named {strange[0]}, the original of its attacked runs",
            code="no-such-run", option="robustness", run=strange[0],
        )  # fmt: skip
    seen = list(dict.fromkeys(attack for _, _, attack in attacked))
    attacks = [*(attack for attack in ATTACKS if attack in seen), *(attack for attack in seen if attack not in ATTACKS)]
    wanted = (f"{system}{MARK}{attack}" for system in systems for attack in attacks)
    if missing := [name for name in wanted if name not in runs]:
        raise InputError(
            f"--robustness: missing runs {', '.join(missing)}; all systems need the same attacks",
            code="no-such-run", option="robustness", run=missing[0],
        )  # fmt: skip
    return systems, attacks


def under_attack(summary: Summary, baselines: Sequence[str] = ()) -> Robustness:
    """Compare every system with itself under attack, and the drops of the systems with each other.

    Args:
        summary: summary of all runs, without baselines.
        baselines: systems with which the drops of the others are compared.

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
    """Return run, measure, qid, value: the drop of each query, in the order of the original run."""
    original = pl.col("run") == system
    attacked = values.filter(~original).group_by("measure", "qid").agg(attacked=pl.col("value").mean())
    both = values.filter(original).join(attacked, on=["measure", "qid"], how="left", maintain_order="left")
    return both.select("run", "measure", "qid", value=pl.col("value") - pl.col("attacked"))


def _summary_of_drops(
    values: pl.DataFrame, baselines: Sequence[str], settings: Mapping[str, Any], how: Mapping[str, Any]
) -> Summary:
    estimates = significance.intervals(
        values, resamples=settings["resamples"], confidence=settings["confidence"], seed=settings["seed"]
    )
    systems: dict[str, dict[str, float]] = {system: {} for system in values["run"].unique(maintain_order=True)}
    comparisons = significance.compare(values, list(baselines), **how)
    return Summary(values, systems, comparisons, estimates, baselines, settings)
