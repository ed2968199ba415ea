"""The result of `evaluate` in the format of `--format`; tables of --robustness and --over-seeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from hybrid_cli import console
from hybrid_cli.reporting import aggregate, summary, tables
from hybrid_cli.reporting.aggregate import Aggregate
from hybrid_cli.reporting.latex import latex_table, summary_latex, titled_latex
from hybrid_cli.reporting.over_seeds import OverSeeds
from hybrid_cli.reporting.robustness import MARK, Robustness
from hybrid_cli.reporting.summary import (
    Summary,
    legend,
    lettered,
    marks,
    marks_in_words,
    significant,
    test_in_words,
    with_letter,
)
from hybrid_cli.reporting.tables import csv_text, figure, markdown, markdown_table, without_nan
from hybrid_cli.settings.analysis import Evaluate

ORIGINAL, DROP = "original", "mean drop"
_STAR = "*"


def show(found: Summary | Robustness | OverSeeds | Aggregate, settings: Evaluate) -> None:
    """Print the result of `evaluate`."""
    if settings.form != "table":
        console.result(text(found, settings.form))
    elif isinstance(found, Robustness):
        show_robustness(found)
    elif isinstance(found, OverSeeds):
        show_seeds(found)
    elif isinstance(found, Aggregate):
        aggregate.show(found)
    else:
        summary.show(found)


def text(found: Summary | Robustness | OverSeeds | Aggregate, form: str) -> str:
    """Return the result as `json`, `csv`, `markdown` or `latex`."""
    if isinstance(found, Aggregate):
        return aggregate.text(found, form)
    if isinstance(found, Robustness):
        return {
            "json": robustness_json,
            "csv": robustness_csv,
            "markdown": robustness_markdown,
            "latex": robustness_latex,
        }[form](found)
    if isinstance(found, OverSeeds):
        return {"json": seeds_json, "csv": seeds_csv, "markdown": seeds_markdown, "latex": seeds_latex}[form](found)
    return {"json": summary.as_json, "csv": summary.as_csv, "markdown": summary.as_markdown, "latex": summary_latex}[
        form
    ](found)


# --------------------------------------------------------------------------------------------------------- robustness


def show_robustness(found: Robustness) -> None:
    """Print one table per measure, and the legend."""
    for measure in found.drops.measures:
        tables.heading(measure)
        tables.show(_columns(found), _rows(found, measure), stack=tables.at_words)
    tables.prose(list(_legend(found)))


def robustness_json(found: Robustness) -> str:
    """Return all figures as JSON; an undefined p-value is null."""
    content = {
        "attacks": list(found.attacks),
        "queries": {measure: found.drops.queries(measure) for measure in found.drops.measures},
        "systems": [
            {"system": system, "measures": {name: _of_system(found, system, name) for name in found.drops.measures}}
            for system in found.systems
        ],
        "against_original": _without_nan(found.comparisons),
        "drops": _without_nan(found.drops.comparisons),
        "missing": dict(found.missing),
        **found.drops.settings,
    }
    return console.json_text(content, indent=2)


def _of_system(found: Robustness, system: str, measure: str) -> dict[str, Any]:
    return {
        ORIGINAL: found.means[system, measure],
        **{attack: found.means[f"{system}{MARK}{attack}", measure] for attack in found.attacks},
        "mean_drop": found.drops.means[system, measure],
        "interval": list(found.drops.ends[system, measure]),
    }


def _without_nan(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [{key: without_nan(value) for key, value in row.items()} for row in frame.iter_rows(named=True)]


def robustness_csv(found: Robustness) -> str:
    """Return one row per system, measure and attack (also `original` and `mean drop`), with its tests."""
    rows = list(_csv_rows(found))
    columns = dict.fromkeys(key for row in rows for key in row)
    return csv_text([dict.fromkeys(columns, "") | row for row in rows])


def _csv_rows(found: Robustness) -> Iterator[dict[str, Any]]:
    for measure in found.drops.measures:
        for system in found.systems:
            ours = {"system": system, "measure": measure}
            yield {**ours, "attack": ORIGINAL, "mean": repr(found.means[system, measure])}
            for attack in found.attacks:
                run = f"{system}{MARK}{attack}"
                (tested,) = found.comparisons.filter(run=run, measure=measure).iter_rows(named=True)
                yield {**ours, "attack": attack, "mean": repr(found.means[run, measure]), **_tests(tested)}
            low, high = found.drops.ends[system, measure]
            drop = {"mean": repr(found.drops.means[system, measure]), "low": repr(low), "high": repr(high)}
            compared = found.drops.comparisons.filter(run=system, measure=measure)
            for row in compared.iter_rows(named=True) if len(compared) else [{}]:
                yield {**ours, "attack": DROP, **drop, **_tests(row)}


def _tests(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("run", "measure")}


def robustness_markdown(found: Robustness) -> str:
    """Return one table per measure, and the legend."""
    tables = (
        f"**{markdown(measure)}**\n\n{markdown_table(_columns(found), _rows(found, measure))}"
        for measure in found.drops.measures
    )
    return "\n\n".join([*tables, *map(markdown, _legend(found))])


def robustness_latex(found: Robustness) -> str:
    """Return one table per measure, and the legend."""
    tables = {measure: latex_table(_columns(found), _rows(found, measure)) for measure in found.drops.measures}
    return titled_latex(tables, _legend(found))


def _columns(found: Robustness) -> list[str]:
    return ["system", ORIGINAL, *found.attacks, DROP]


def _rows(found: Robustness, measure: str) -> list[list[str]]:
    """Return the cells of one measure."""
    stars, letters, drops = _stars(found), significant(found.drops), found.drops
    rows = []
    for system in found.systems:
        names = [system, *(f"{system}{MARK}{attack}" for attack in found.attacks)]
        cells = [figure(found.means[name, measure]) + stars.get((name, measure), " ") for name in names]
        low, high = drops.ends[system, measure]
        drop = f"{figure(drops.means[system, measure])}{letters.get((system, measure), '')}"
        rows.append([lettered(drops, system), *cells, f"{drop} ±{figure((high - low) / 2, 3)}"])
    return rows


def _stars(found: Robustness) -> dict[tuple[str, str], str]:
    """Return (attacked run, measure) -> a star if it differs from its original."""
    settings = found.drops.settings
    p = pl.col(f"p_{settings['test']}_corrected")
    differ = found.comparisons.filter(p.is_not_nan() & (p < settings["alpha"]))
    return dict.fromkeys(differ.select("run", "measure").iter_rows(), _STAR)


def _legend(found: Robustness) -> Iterator[str]:
    settings = found.drops.settings
    count = len(found.attacks)
    correction = settings["correction"]
    family = "not corrected" if correction == "none" else f"{correction.capitalize()} over the attacks on a system"
    yield (
        f"{DROP}: original minus the mean over {count} attack{'s' if count > 1 else ''}, averaged over the queries. "
        f"{_STAR} differs from the original: p < {settings['alpha']:g}, two-sided {test_in_words(settings)}, {family}."
    )
    yield from legend(found.drops, more="drops more than", less="less")
    if found.missing:
        some = ", ".join(f"{run} {number:,}" for run, number in found.missing.items())
        yield f"Judged queries without hits (scored 0): {some}."


# ---------------------------------------------------------------------------------------------------------- over seeds


def show_seeds(found: OverSeeds) -> None:
    """Print one row per variant, and the legend; deviations go below the means where the table would be too wide."""
    columns, rows = _seeds_cells(found, " ")
    if not tables.fits(columns, rows):
        columns, rows = _seeds_cells(found, "\n")
    tables.show(columns, rows, left=len(columns))
    tables.prose(_seeds_legend(found))


def seeds_markdown(found: OverSeeds) -> str:
    """Return one row per variant, and the legend."""
    columns, rows = _seeds_cells(found, " ")
    return "\n\n".join([markdown_table(columns, rows), *map(markdown, _seeds_legend(found))])


def seeds_latex(found: OverSeeds) -> str:
    """Return one row per variant, and the legend."""
    return titled_latex({"": latex_table(*_seeds_cells(found, " "))}, _seeds_legend(found))


def seeds_json(found: OverSeeds) -> str:
    """Return all figures as JSON."""
    content = {
        "rows": found.table.to_dicts(),
        "baselines": list(found.baselines),
        "comparisons": _without_nan(found.comparisons),
        "test": found.test,
        "correction": found.correction,
        "alpha": found.alpha,
    }
    return console.json_text(content, indent=2)


def seeds_csv(found: OverSeeds) -> str:
    """Return one row per variant and measure."""
    return csv_text(found.table.to_dicts())


def _seeds_cells(found: OverSeeds, between: str) -> tuple[list[str], list[list[str]]]:
    """Return the columns, and rows of means with marks and deviations."""
    letters = marks(found.comparisons, found.baselines, found.test, found.alpha)
    cells: dict[tuple[str, str], str] = {}
    seeds: dict[str, int] = {}
    for each in found.table.iter_rows(named=True):
        key = each["row"], each["measure"]
        deviation = "" if each["deviation"] is None else f"{between}± {figure(each['deviation'])}"
        mean = "undefined" if each["mean"] is None else figure(each["mean"])
        cells[key] = f"{mean}{letters.get(key, '')}{deviation}"
        seeds[each["row"]] = each["seeds"]
    rows = [
        [with_letter(row, found.baselines), str(seeds[row])]
        + [cells.get((row, measure), "") for measure in found.measures]
        for row in found.rows
    ]
    return ["row", "seeds", *found.measures], rows


def _seeds_legend(found: OverSeeds) -> list[str]:
    lines = ["Mean ± standard deviation over the seeds."]
    if found.table["mean"].has_nulls():
        lines.append("RoC is undefined where a seed has no query with a relevant document in its top hits.")
    if found.baselines:
        test = {"t": "paired t-test", "permutation": "sign-flip permutation test"}[found.test]
        correction = "not corrected" if found.correction == "none" else f"{found.correction.capitalize()} per measure"
        lines.append(
            f"{marks_in_words(found.baselines)}: p < {found.alpha:g}, two-sided {test} on each query's mean over the "
            f"seeds, {correction}."
        )
    return lines
