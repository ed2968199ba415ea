"""Loss of effectiveness under attacks on the queries (LITE, table 4).

The run of attacked queries is named `SYSTEM@ATTACK`, that of the original queries `SYSTEM`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from hybrid_cli import console
from hybrid_cli.errors import option_error
from hybrid_cli.evaluation import significance
from hybrid_cli.perturbations.attacks import ATTACKS
from hybrid_cli.reporting.summary import Summary, legend, lettered, significant, test_in_words
from hybrid_cli.reporting.tables import Table, figure

MARK = "@"
ORIGINAL, DROP = "original", "mean drop"
_STAR = "*"


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

    def tables(self, form: str) -> list[Table]:
        """Return one table per measure, with a row per system."""
        stars, letters, drops = self._stars(), significant(self.drops), self.drops
        tables = []
        for measure in drops.measures:
            rows = []
            for system in self.systems:
                names = [system, *(f"{system}{MARK}{attack}" for attack in self.attacks)]
                cells = [figure(self.means[name, measure]) + stars.get((name, measure), " ") for name in names]
                low, high = drops.ends[system, measure]
                drop = f"{figure(drops.means[system, measure])}{letters.get((system, measure), '')}"
                rows.append([lettered(drops, system), *cells, f"{drop} ±{figure((high - low) / 2, 3)}"])
            tables.append(Table(["system", ORIGINAL, *self.attacks, DROP], rows, measure, stacked=True))
        return tables

    def _stars(self) -> dict[tuple[str, str], str]:
        """Return (attacked run, measure) -> a star if it differs from its original."""
        settings = self.drops.settings
        p = pl.col(f"p_{settings['test']}_corrected")
        differ = self.comparisons.filter(p.is_not_nan() & (p < settings["alpha"]))
        return dict.fromkeys(differ.select("run", "measure").iter_rows(), _STAR)

    def legend(self) -> list[str]:
        """Return the lines below the tables."""
        settings, correction = self.drops.settings, self.drops.settings["correction"]
        attacks = console.counted(attack=len(self.attacks))
        family = "not corrected" if correction == "none" else f"{correction.capitalize()} over the attacks on a system"
        lines = [
            f"{DROP}: original minus the mean over {attacks}, averaged over the queries. "
            f"{_STAR} differs from the original: p < {settings['alpha']:g}, two-sided {test_in_words(settings)}, "
            f"{family}.",
            *legend(self.drops, more="drops more than", less="less"),
        ]
        if self.missing:
            some = ", ".join(f"{run} {number:,}" for run, number in self.missing.items())
            lines.append(f"Judged queries without hits (scored 0): {some}.")
        return lines

    def content(self) -> dict[str, Any]:
        """Return all figures for JSON; an undefined p-value is None."""
        drops = self.drops

        def measured(system: str, name: str) -> dict[str, Any]:
            attacked = {attack: self.means[f"{system}{MARK}{attack}", name] for attack in self.attacks}
            drop = {"mean_drop": drops.means[system, name], "interval": list(drops.ends[system, name])}
            return {ORIGINAL: self.means[system, name], **attacked, **drop}

        return {
            "attacks": list(self.attacks),
            "queries": {measure: drops.queries(measure) for measure in drops.measures},
            "systems": [
                {"system": system, "measures": {name: measured(system, name) for name in drops.measures}}
                for system in self.systems
            ],
            "against_original": self.comparisons.fill_nan(None).to_dicts(),
            "drops": drops.comparisons.fill_nan(None).to_dicts(),
            "missing": dict(self.missing),
            **drops.settings,
        }

    def csv_rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per system, measure and attack (also `original` and `mean drop`), with its tests."""
        for measure in self.drops.measures:
            for system in self.systems:
                ours = {"system": system, "measure": measure}
                yield {**ours, "attack": ORIGINAL, "mean": repr(self.means[system, measure])}
                for attack in self.attacks:
                    run = f"{system}{MARK}{attack}"
                    mean = {"attack": attack, "mean": repr(self.means[run, measure])}
                    yield {**ours, **mean, **_tests(self.comparisons, run, measure)[0]}
                low, high = self.drops.ends[system, measure]
                drop = {"mean": repr(self.drops.means[system, measure]), "low": repr(low), "high": repr(high)}
                for row in _tests(self.drops.comparisons, system, measure) or [{}]:
                    yield {**ours, "attack": DROP, **drop, **row}


def _tests(comparisons: pl.DataFrame, run: str, measure: str) -> list[dict[str, Any]]:
    return comparisons.filter(run=run, measure=measure).drop("run", "measure").to_dicts()


def systems_and_attacks(runs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the names of runs into systems and attacks.

    Raises:
        InputError: no attacked run, an attacked run without its original, or systems with different attacks.
    """
    systems = [run for run in runs if MARK not in run]
    attacked = [run.rpartition(MARK) for run in runs if MARK in run]
    if not attacked:
        reason = "no run is named SYSTEM@ATTACK, such as bm25@char-swap"
        raise option_error("study", "robustness", reason, code="no-such-run")
    seen = list(dict.fromkeys(attack for _, _, attack in attacked))
    attacks = [*(attack for attack in ATTACKS if attack in seen), *(attack for attack in seen if attack not in ATTACKS)]
    wanted = [
        *(system for system, _, _ in attacked),
        *(f"{system}{MARK}{attack}" for system in systems for attack in attacks),
    ]
    if missing := list(dict.fromkeys(name for name in wanted if name not in runs)):
        reason = (
            f"missing runs {', '.join(missing)}; an attacked run needs its original, and all systems the same attacks"
        )
        raise option_error("study", "robustness", reason, code="no-such-run", run=missing[0])
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
