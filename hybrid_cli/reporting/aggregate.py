"""Means over collections (`evaluate --study aggregate`).

The parts of one collection are named COLLECTION/PART; their unweighted mean is the value of the collection, as BEIR
treats the forums of CQADupStack. `macro` is the unweighted mean over the collections (BEIR; EntityQuestions over its
relations), `micro` the mean over all queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console, runs, storage
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.reporting.tables import Table, figure
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

    def tables(self, form: str) -> list[Table]:
        """Return one table per measure, with a row per collection."""
        return [self._table(measure) for measure in self.measures]

    def _table(self, measure: str) -> Table:
        values = self.table.filter(measure=measure).select("collection", "run", "mean").iter_rows()
        means = {(collection, run): mean for collection, run, mean in values}
        names = {name: name if parts == 1 else f"{name} ({parts} parts)" for name, parts in self.parts.items()}
        queries = {**self.queries, **dict.fromkeys((MACRO, MICRO), sum(self.queries.values()))}
        rows = [
            [names.get(name, name), f"{count:,}", *(figure(means[name, run]) for run in self.runs)]
            for name, count in queries.items()
        ]
        return Table(["collection", "queries", *self.runs], rows, measure)

    def legend(self) -> list[str]:
        """Return the line below the tables."""
        parts = " Parts are averaged first, without weights." if max(self.parts.values()) > 1 else ""
        return [f"{MACRO}: unweighted mean over {len(self.parts)} collections. {MICRO}: mean over all queries.{parts}"]

    def content(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        return {"queries": self.queries, "parts": self.parts, "means": self.csv_rows()}

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return one row per measure, collection and run."""
        return self.table.to_dicts()


def aggregate(settings: Evaluate) -> Aggregate:
    """Average measurements over collections.

    Args:
        settings: `inputs`, files written by `evaluate --output`; `measures`, if set.

    Raises:
        InputError: not measurements, or a collection without one of the runs or measures.
    """
    named = runs.named_once(settings.inputs)
    if any(name.split("/")[0] in (MACRO, MICRO) for name in named):
        reason = f"{MACRO} and {MICRO} are names of means; rename the collection"
        raise option_error("study", "aggregate", reason, code="invalid-name")
    _check_files(named)
    values = pl.concat([_read(name, path) for name, path in named.items()])
    if "measure" in settings.given:
        values = values.filter(pl.col("measure").is_in(list(settings.measure)))
    systems, measures = (values[name].unique(maintain_order=True).to_list() for name in ("run", "measure"))
    wanted = list(settings.measure) if "measure" in settings.given else measures
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
    rank = pl.col("measure").replace_strict({name: n for n, name in enumerate(wanted)}, return_dtype=pl.Int32)
    counted = values.filter(run=systems[0], measure=wanted[0]).with_columns(collection=part.str.split("/").list.first())
    sizes = counted.group_by("collection", maintain_order=True).agg(pl.len(), parts=part.n_unique())
    return Aggregate(
        table.sort(rank, maintain_order=True),
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
            problem = f"{path}: no such file; --study aggregate reads the files that `evaluate --output` writes"
            raise InputError(problem, code="no-such-file", path=path)
        if (other := known.setdefault(storage.fingerprint(path), path)) != path:
            problem = f"{path}: has the same measurements as {other}; omit one of them"
            raise InputError(problem, code="repeated-input", path=path)
        made = artifacts.find_manifest(path)
        settings[path] = {} if made is None else {name: made.options.get(name, False) for name in _SETTINGS}
    (first, expected), *rest = settings.items()
    for path, queries in rest:
        if differ := [name for name in expected if queries and queries[name] != expected[name]]:
            values = ", ".join(f"{name} {queries[name]}, not {expected[name]}" for name in differ)
            console.warn(
                f"{path}: was measured with other settings than {first}: {values}; measure all in one way",
                code="other-settings",
                path=path,
                expected=first,
                options=differ,
            )


def _read(name: str, path: Path) -> pl.DataFrame:
    table = pl.read_parquet(storage.check_table(path, Kind.MEASUREMENTS), glob=False)
    return table.select(part=pl.lit(name), run="run", measure="measure", qid="qid", value="value")


def _check(values: pl.DataFrame, named: Mapping[str, Path], systems: Sequence[str], measures: Sequence[str]) -> None:
    """Refuse a collection without one of the runs or measures."""
    known = set(values.select("part", "run", "measure").unique().iter_rows())
    if not systems:
        raise option_error("study", "aggregate", f"no file has a value of {', '.join(measures)}", code="no-scores")
    for (part, path), system, measure in product(named.items(), systems, measures):
        if (part, system, measure) not in known:
            problem = (
                f"{path}: has no {measure} of run '{system}'; evaluate all collections with the same runs and measures"
            )
            raise InputError(problem, code="no-scores", path=path, measure=measure, run=system)
