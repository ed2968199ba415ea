"""Means over collections (`evaluate --aggregate`), as terminal tables, JSON, CSV, Markdown and LaTeX.

The parts of one collection are named COLLECTION/PART; their unweighted mean is the value of the collection, as BEIR
treats the forums of CQADupStack. `macro` is the unweighted mean over the collections (BEIR; EntityQuestions over its
relations), `micro` the mean over all queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.errors import InputError
from hybrid_cli.reporting import tables
from hybrid_cli.reporting.latex import latex_table, titled_latex
from hybrid_cli.reporting.tables import csv_text, figure, markdown, markdown_table
from hybrid_cli.settings.analysis import Evaluate
from hybrid_cli.storage import Kind

MACRO, MICRO = "macro", "micro"
_SETTINGS = ("relevance_level", "condensed")  # of all queries; hits with the id of the query differ by collection


@dataclass(frozen=True)
class Aggregate:
    """Means of every run.

    Attributes:
        table: measure, collection (or `macro`, `micro`), run, mean; in the order of the measures, collections and runs.
        queries: collection -> number of measured queries.
        parts: collection -> number of its parts.
        runs: names of the runs.
    """

    table: pl.DataFrame
    queries: Mapping[str, int]
    parts: Mapping[str, int]
    runs: Sequence[str]

    @property
    def measures(self) -> list[str]:
        """Return the measures, in order."""
        return self.table["measure"].unique(maintain_order=True).to_list()


def aggregate(settings: Evaluate) -> Aggregate:
    """Average measurements over collections.

    Args:
        settings: `inputs`, files written by `evaluate --output`; `measures`, if set.

    Raises:
        InputError: not measurements, or a collection without one of the runs or measures.
    """
    named = runs.named_once(settings.inputs)
    if any(name.split("/")[0] in (MACRO, MICRO) for name in named):
        raise InputError(
            f"--aggregate: {MACRO} and {MICRO} are names of means; rename the collection",
            code="invalid-name", option="aggregate",
        )  # fmt: skip
    _check_files(named)
    values = pl.concat([_read(name, path) for name, path in named.items()])
    if "measures" in settings.given:
        values = values.filter(pl.col("measure").is_in(list(settings.measures)))
    systems, measures = (values[name].unique(maintain_order=True).to_list() for name in ("run", "measure"))
    wanted = list(settings.measures) if "measures" in settings.given else measures
    _check(values, named, systems, wanted)
    part = pl.col("part")
    by_part = values.group_by("measure", "part", "run", maintain_order=True).agg(pl.col("value").mean())
    collection = by_part.with_columns(collection=part.str.split("/").list.first())
    by_collection = collection.group_by("measure", "collection", "run", maintain_order=True).agg(
        mean=pl.col("value").mean()
    )
    macro = by_collection.group_by("measure", "run", maintain_order=True).agg(pl.col("mean").mean())
    micro = values.group_by("measure", "run", maintain_order=True).agg(mean=pl.col("value").mean())
    columns = ["measure", "collection", "run", "mean"]
    table = pl.concat(
        [
            by_collection.select(columns),
            macro.with_columns(collection=pl.lit(MACRO)).select(columns),
            micro.with_columns(collection=pl.lit(MICRO)).select(columns),
        ]
    )
    place = pl.col("measure").replace_strict({name: n for n, name in enumerate(wanted)}, return_dtype=pl.Int32)
    counted = values.filter(run=systems[0], measure=wanted[0]).with_columns(collection=part.str.split("/").list.first())
    sizes = counted.group_by("collection", maintain_order=True).agg(pl.len(), parts=part.n_unique())
    return Aggregate(
        table.sort(place, maintain_order=True),
        dict(sizes.select("collection", "len").iter_rows()),
        dict(sizes.select("collection", "parts").iter_rows()),
        systems,
    )


def _check_files(named: Mapping[str, Path]) -> None:
    """Refuse the same measurements under two names; warn about other settings, whose values have another meaning."""
    known: dict[str, Path] = {}
    settings: dict[Path, dict[str, Any]] = {}
    for path in named.values():
        if not path.exists():
            raise InputError(
                f"{path}: no such file; --aggregate reads the files that `evaluate --output` writes",
                code="no-such-file", path=path,
            )  # fmt: skip
        if (other := known.setdefault(artifacts.fingerprint(path), path)) != path:
            raise InputError(
                f"{path}: has the same measurements as {other}; omit one of them",
                code="repeated-input", path=path, other=other,
            )  # fmt: skip
        made = artifacts.find_manifest(path)
        settings[path] = {} if made is None else {name: made.options.get(name, False) for name in _SETTINGS}
    (first, expected), *rest = settings.items()
    for path, found in rest:
        if differ := [name for name in expected if found and found[name] != expected[name]]:
            values = ", ".join(f"{name} {found[name]}, not {expected[name]}" for name in differ)
            console.warn(f"{path}: was measured with other settings than {first}: {values}; measure all in one way")


def _read(name: str, path: Path) -> pl.DataFrame:
    table = pl.read_parquet(artifacts.check_table(path, Kind.MEASUREMENTS), glob=False)
    return table.select(part=pl.lit(name), run="run", measure="measure", qid="qid", value="value")


def _check(values: pl.DataFrame, named: Mapping[str, Path], systems: Sequence[str], measures: Sequence[str]) -> None:
    """Refuse a collection without one of the runs or measures."""
    known = set(values.select("part", "run", "measure").unique().iter_rows())
    for part, path in named.items():
        for system in systems:
            for measure in measures:
                if (part, system, measure) not in known:
                    raise InputError(
                        f"{path}: has no {measure} of run '{system}'; evaluate every collection with the same runs "
                        "and measures",
                        code="no-scores", path=path, measure=measure, run=system,
                    )  # fmt: skip
    if not systems:
        raise InputError(
            f"--aggregate: no file has a value of {', '.join(measures)}",
            code="no-scores", option="aggregate", measures=list(measures),
        )  # fmt: skip


def show(found: Aggregate) -> None:
    """Print one table per measure, with a row per collection."""
    for measure in found.measures:
        tables.heading(measure)
        tables.show(*_cells(found, measure), left=1)
    tables.prose([_legend(found)])


def text(found: Aggregate, form: str) -> str:
    """Return the result as `json`, `csv`, `markdown` or `latex`."""
    if form == "json":
        content = {"queries": found.queries, "parts": found.parts, "means": found.table.to_dicts()}
        return console.json_text(content, indent=2)
    if form == "csv":
        return csv_text(found.table.to_dicts())
    if form == "latex":
        each = {measure: latex_table(*_cells(found, measure)) for measure in found.measures}
        return titled_latex(each, [_legend(found)])
    parts = (f"**{markdown(measure)}**\n\n{markdown_table(*_cells(found, measure))}" for measure in found.measures)
    return "\n\n".join([*parts, markdown(_legend(found))])


def _cells(found: Aggregate, measure: str) -> tuple[Sequence[str], list[list[str]]]:
    """Return headings and rows of a measure."""
    means = {
        (collection, run): mean
        for collection, run, mean in found.table.filter(measure=measure).select("collection", "run", "mean").iter_rows()
    }
    names = {name: name if parts == 1 else f"{name} ({parts} parts)" for name, parts in found.parts.items()}
    rows = [
        [shown, f"{found.queries[name]:,}", *(figure(means[name, run]) for run in found.runs)]
        for name, shown in names.items()
    ]
    total = f"{sum(found.queries.values()):,}"
    rows += [[name, total, *(figure(means[name, run]) for run in found.runs)] for name in (MACRO, MICRO)]
    return ["collection", "queries", *found.runs], rows


def _legend(found: Aggregate) -> str:
    count = len(found.parts)
    parts = " Parts are averaged first, without weights." if max(found.parts.values()) > 1 else ""
    return f"{MACRO}: unweighted mean over {count} collections. {MICRO}: mean over all queries.{parts}"
