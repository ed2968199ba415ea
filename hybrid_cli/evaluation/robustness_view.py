"""The table of what systems lose under attacks, in the four forms that people and programs read."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from typing import Any

import polars as pl

from hybrid_cli import console
from hybrid_cli.evaluation import layout
from hybrid_cli.evaluation.robustness import MARK, Robustness
from hybrid_cli.evaluation.summary import Format, legend, lettered, significant, test_in_words

ORIGINAL, DROP = "original", "mean drop"
_STAR = "*"


def show(found: Robustness, form: Format = "table") -> None:
    """Print the table on stdout."""
    if form == "json":
        console.result(as_json(found))
    elif form == "csv":
        console.result(as_csv(found))
    elif form == "markdown":
        console.result(as_markdown(found))
    else:
        for measure in found.drops.measures:
            console.table(_columns(found), _rows(found, measure), title=measure)
        for line in _legend(found):
            console.stdout().print(line, markup=False, highlight=False)


# ----------------------------------------------------------------------------------------------------------- programs


def as_json(found: Robustness) -> str:
    """Everything, for programs; a p-value that does not exist is null."""
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
    return json.dumps(content, indent=2, ensure_ascii=False)


def _of_system(found: Robustness, system: str, measure: str) -> dict[str, Any]:
    return {
        ORIGINAL: found.means[system, measure],
        **{attack: found.means[f"{system}{MARK}{attack}", measure] for attack in found.attacks},
        "mean_drop": found.drops.means[system, measure],
        "interval": list(found.drops.ends[system, measure]),
    }


def _without_nan(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        for row in frame.iter_rows(named=True)
    ]


def as_csv(found: Robustness) -> str:
    """A row for each system, measure and attack (`original`, `mean drop` too), with its tests."""
    rows = list(_csv_rows(found))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().removesuffix("\n")


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


# ------------------------------------------------------------------------------------------------------------- people


def as_markdown(found: Robustness) -> str:
    """A table for each measure, and the legend."""
    tables = (
        f"**{measure}**\n\n{layout.markdown_table(_columns(found), _rows(found, measure))}"
        for measure in found.drops.measures
    )
    return "\n\n".join([*tables, *_legend(found)])


def _columns(found: Robustness) -> list[str]:
    return ["system", ORIGINAL, *found.attacks, DROP]


def _rows(found: Robustness, measure: str) -> list[list[str]]:
    """The cells of one measure's table."""
    stars, letters, drops = _stars(found), significant(found.drops), found.drops
    rows = []
    for system in found.systems:
        names = [system, *(f"{system}{MARK}{attack}" for attack in found.attacks)]
        cells = [layout.figure(found.means[name, measure]) + stars.get((name, measure), " ") for name in names]
        low, high = drops.ends[system, measure]
        drop = f"{layout.figure(drops.means[system, measure])}{letters.get((system, measure), '')}"
        rows.append([lettered(drops, system), *cells, f"{drop} ±{layout.figure((high - low) / 2, 3)}"])
    return rows


def _stars(found: Robustness) -> dict[tuple[str, str], str]:
    """(attacked run, measure) -> a star where it differs from its original."""
    settings = found.drops.settings
    p = pl.col(f"p_{settings['test']}_corrected")
    differ = found.comparisons.filter(p.is_not_nan() & (p < settings["alpha"]))
    return dict.fromkeys(differ.select("run", "measure").iter_rows(), _STAR)


def _legend(found: Robustness) -> Iterator[str]:
    settings = found.drops.settings
    count = len(found.attacks)
    yield (
        f"{DROP}: the original less the plain mean of {count} attack{'s' if count > 1 else ''}, query by query. "
        f"{_STAR} differs from the original: p < {settings['alpha']:g}, two-sided {test_in_words(settings)}, "
        f"correction over the attacks on a system: {settings['correction']}."
    )
    yield from legend(found.drops, more="loses more than", less="loses less")
    if found.missing:
        some = ", ".join(f"{run} {number:,}" for run, number in found.missing.items())
        yield f"Judged queries without a hit, which count as 0: {some}."
