"""The papers' tables next to the figures of one collection, from the runs that the pipelines wrote.

    python studies/tables.py DATA OUT [--split test] [--no-costs] [--latex]
    python studies/tables.py DATA OUT --collection msmarco [--check]

Prints Markdown, and writes `tables.md`, `tables.tex` and `tables.csv` (with --collection: `msmarco.md`, ...) to
`OUT/tables`. The published figures, their sources and the runs of each row are in published.yaml. A cell is the mean
over the queries with its 95% t-interval, of the means over the seeds if there are several runs. `*` marks p < .05 of a
paired t-test against the first row, with Bonferroni's correction for the rows. The CSV file names the runs of each cell
and their fingerprints, which `hybrid inspect RUN` traces to indexes, encoders and settings. Rows without a run are
listed. --check compares with the published figures of as many documents and queries, under the same attacks.

Questions that have answers in place of judgments: Success, MRR and RoC follow from the first hit with an answer. MAP
needs all relevant documents: the first 1000 hits with an answer of the runs that the table names as its pool (of the
first seed), whatever other rows exist. Without these runs, it is left out.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from scipy import stats

from hybrid_cli import runs, storage
from hybrid_cli.artifacts import find_manifest
from hybrid_cli.artifacts.lineage import indexes_of
from hybrid_cli.collections.collection import corpus_path, document_count, queries_path, read_queries
from hybrid_cli.commands.analysis import Evaluate
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.evaluation.accuracy import answer_qrels, passages, with_answers
from hybrid_cli.reporting import tables as reporting
from hybrid_cli.reporting.studies import MACRO, MICRO, aggregate
from hybrid_cli.reporting.tables import figure, with_sign
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.inspect import inspect

PUBLISHED = Path(__file__).with_name("published.yaml")
CONFIDENCE, LEVEL, HITS = 0.95, 0.05, 1000
ROC, _BEHIND_ROC, ROC_PARTS = "RoC@10", "Success@10", ("D only@10", "S only@10", "Fail@10")
RBO = "RBO"  # rank-biased overlap with BM25
BYTES, LATENCY, ATTACKED, DROP = "bytes per passage", "latency p50 (ms)", "Success@100", "mean drop"
_FIRST_HIT = ("Success", "MRR", RBO)  # measures that the other relevant documents do not change
Values = dict[str, np.ndarray]  # measure -> value of each query


@dataclass(frozen=True)
class Row:
    """A system of a table.

    Attributes:
        name: name in the table.
        run: path of its run below the folder of the table, without the split; `*` stands for the seed.
        paper: column -> published figure, in the unit of the table.
    """

    name: str
    run: str
    paper: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        title: paper, table and collection.
        collection: target of `make` that reproduces it.
        folder: folder of the runs below the outputs of this target.
        columns: our measure -> name in the paper, None where the paper has none.
        rows: systems; the first is the baseline of the tests.
        unit: 1 for fractions, 100 for percent.
        tolerance: largest accepted difference, in this unit.
        split: split, if not that of the call.
        documents: number of documents of the published figures; None if the parts of the collection vary.
        queries: number of queries of the published figures; None if it is not known.
        parts: number of parts of the collection; 0 if it is one.
        pool: runs whose hits with an answer are relevant, where questions have answers in place of judgments.
        attacks: attacks of the mean drop.
        notes: remarks on the published figures, below the table.
        same: rows with the same ranking by construction.
    """

    title: str
    collection: str
    folder: str
    columns: dict[str, str | None]
    rows: tuple[Row, ...]
    unit: int
    tolerance: float
    split: str | None = None
    documents: int | None = None
    queries: int | None = None
    parts: int = 0
    pool: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    same: tuple[tuple[str, ...], ...] = ()

    @property
    def expected(self) -> list[str]:
        """Return the rows that `make COLLECTION` runs: those with published figures, or all where none is printed."""
        return [row.name for row in self.rows if row.paper] or [row.name for row in self.rows]


def _printed(value: float) -> str:
    """Return a published figure as papers print it: `.191`, `73.7`."""
    return f"{value:.3f}".lstrip("0") if value < 1 else f"{value:g}"


def published(file: Path = PUBLISHED) -> tuple[Table, ...]:
    """Return the tables of the file of published figures.

    Raises:
        InputError: a table without a tolerance, or a row with more figures than columns.
    """
    content = yaml.safe_load(file.read_text("utf-8"))
    found = []
    for given in content["tables"]:
        printed = [column for column, name in given["columns"].items() if name is not None]
        rows, lists = [], {name: tuple(given.pop(name, ())) for name in ("pool", "notes", "same")}
        for name, (run, *paper) in given.pop("rows").items():
            place = f"{file.name}: {given['title']}: {name}"
            if paper and "tolerance" not in given:
                raise InputError(f"{place}: figures without a tolerance; add `tolerance` to the table")
            if len(paper) > len(printed):
                raise InputError(f"{place}: {len(paper)} figures for {len(printed)} columns with a name")
            figures = {column: value for column, value in zip(printed, paper, strict=False) if value is not None}
            if run is None:
                text = ", ".join(f"{given['columns'][column]} {_printed(value)}" for column, value in figures.items())
                lists["notes"] += (f"Published only: {name}: {text}.",)
            else:
                rows.append(Row(name, run, figures))
        whole = content["collections"][given["collection"]] | {"attacks": tuple(content["attacks"])} | given | lists
        found.append(Table(folder=whole.pop("from"), rows=tuple(rows), **{"tolerance": 0.0, **whole}))
    return tuple(found)


try:
    TABLES = published()
except InputError as error:
    sys.exit(f"tables.py: {error}")


@dataclass(frozen=True)
class Cell:
    """A figure with its evidence: interval over the queries, p against the baseline, and its runs."""

    table: str
    row: str
    column: str
    mean: float
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")
    queries: int = 0
    runs: tuple[Path, ...] = ()
    comparable: bool = True  # with the published figure

    def text(self, unit: int) -> str:
        """Return the figure with its interval, in the unit of its table."""
        if self.column in (BYTES, LATENCY):
            return f"{self.mean:,.0f}" if self.column == BYTES else f"{self.mean:.1f}"
        digits = 4 if unit == 1 else 2
        mean, low, high = (figure(unit * value, digits) for value in (self.mean, self.low, self.high))
        return f"{mean}{'' if np.isnan(self.low) else f' [{low}, {high}]'}{'*' if self.p < LEVEL else ''}"


@dataclass(frozen=True)
class Collection:
    """A collection, the folder of its outputs, and the split that is evaluated."""

    data: Path
    out: Path
    split: str
    name: str = "tables"  # of the files in OUT/tables
    residual: Path | None = None  # judgments of an earlier round

    def runs_of(self, row: Row) -> tuple[Path, ...]:
        """Return the runs of a row, one per seed."""
        pattern = row.run if row.run.endswith(".parquet") else f"{row.run}.{self.split}.parquet"
        return tuple(sorted(self.out.glob(pattern)))

    def below(self, table: Table) -> Collection:
        """Return the folder of a table, which may have its own collection, and its split."""
        out = self.out / table.folder
        own = out / "data" if (out / "data").is_dir() else self.data
        return replace(self, data=own, out=out, split=table.split or self.split)

    @property
    def measured_by_answers(self) -> bool:
        """Return whether the questions have answers in place of judgments."""
        return not (self.data / f"qrels.{self.split}.parquet").exists()


def measured(
    where: Collection,
    name: str,
    runs: Sequence[Sequence[Path]],
    measures: Sequence[str],
    pool: Sequence[Path] = (),
) -> list[Values]:
    """Return the value of each query for every row, as mean over the seeds; unchanged runs are not measured again.

    Without judgments, the hits of the pool that have an answer are relevant; without a pool, those of all runs.
    """
    named = [f"r{row}~{seed}={path}" for row, paths in enumerate(runs) for seed, path in enumerate(paths)]
    output = where.out / "tables" / f"{name}.parquet"
    options: dict[str, Any] = {"output": output, "split": where.split}
    options |= {"overlap_with": str(where.out / f"bm25.{where.split}.parquet")} if RBO in measures else {}
    options |= {"measure": [measure for measure in measures if measure != RBO] or ["MRR@10"]}  # `evaluate` needs one
    options |= {"residual_qrels": where.residual} if where.residual else {}
    judged = where.data
    if where.measured_by_answers:
        judged = where.out / "tables" / f"{name}.qrels.tsv"
        depth = max(int(name.partition("@")[2] or HITS) for name in options["measure"])
        _write_answered(where, pool or [path for paths in runs for path in paths], HITS if pool else depth, judged)
        options = {option: value for option, value in options.items() if option != "split"}
    with redirect_stdout(StringIO()):
        try:
            evaluate([judged, *named], **options)
        except InputError:  # other runs than before
            evaluate([judged, *named], **options, overwrite=True)
    values = pl.read_parquet(output).with_columns(row=pl.col("run").str.extract(r"^r(\d+)~").cast(pl.Int64))
    means = values.group_by("row", "measure", "qid").agg(pl.col("value").mean()).sort("qid")
    return [
        {each: means.filter(row=row, measure=each)["value"].to_numpy() for each in measures} for row in range(len(runs))
    ]


def _write_answered(where: Collection, files: Sequence[Path], depth: int, output: Path) -> None:
    """Write judgments: the first hits of the runs are relevant if they have an answer; other questions keep a row."""
    ranked = (runs.read_run(file).filter(pl.col("rank") <= depth) for file in files)
    hits = pl.concat([run.select("qid", "docid") for run in ranked]).unique(maintain_order=True)
    queries = with_answers(read_queries(queries_path(where.data, where.split)))
    corpus = pl.scan_parquet(corpus_path(where.data)).select("docid", "text")
    texts = passages(corpus.join(hits.lazy().select("docid").unique(), on="docid", how="semi").collect())
    judged = answer_qrels(hits, queries, texts).sort("qid", "docid", nulls_last=True)
    judged = judged.filter(pl.col("docid").is_not_null() | ~pl.col("qid").is_in(judged.drop_nulls()["qid"].implode()))
    rows = judged.select("qid", iteration=pl.lit("0"), docid=pl.col("docid").fill_null("none"), relevance="relevance")
    rows.write_csv(output, separator="\t", include_header=False)


def cells(where: Collection, table: Table, name: str) -> Iterator[Cell]:
    """Yield the cells of a table, for the rows with runs; the first such row is the baseline of the tests."""
    rows = [(row, runs) for row in table.rows if (runs := where.runs_of(row))]
    sparse = where.runs_of(Row("BM25", "bm25"))
    columns = [column for column in table.columns if column not in (ROC, *ROC_PARTS, BYTES, LATENCY)]
    with_roc = ROC in table.columns and bool(sparse)
    if not rows:
        return
    pooled = [each for each in columns if where.measured_by_answers and not each.startswith(_FIRST_HIT)]
    pool = [paths[0] for run in table.pool if (paths := where.runs_of(Row(run, run)))]
    if pooled and (not pool or len(pool) < len(table.pool)):
        columns, pooled = [each for each in columns if each not in pooled], []
    files = [*(runs for _, runs in rows), *([sparse] if with_roc else [])]
    measures = list(dict.fromkeys([*(each for each in columns if each not in pooled), *([_BEHIND_ROC] * with_roc)]))
    values = measured(where, name, files, measures) if measures else [{} for _ in files]
    if pooled:
        values = [a | b for a, b in zip(values, measured(where, f"{name}-pool", files, pooled, pool), strict=True)]
    for (row, runs), own in zip(rows, values, strict=False):
        for column in columns:
            base = values[0][column]
            p = 1.0 if np.allclose(own[column], base) else stats.ttest_rel(own[column], base).pvalue * (len(rows) - 1)
            low, high = _interval(own[column], float(own[column].mean()))
            mean, queries = float(own[column].mean()), len(base)
            yield Cell(table.title, row.name, column, mean, low, high, float(min(1.0, p)), queries, runs)
        if with_roc and row.run != "bm25":
            yield from _roc(table, row, runs, own[_BEHIND_ROC], values[-1][_BEHIND_ROC])


def _interval(values: np.ndarray, mean: float) -> tuple[float, float]:
    """Return the t-interval of a mean; every measure is between 0 and 1."""
    half = stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return max(0.0, mean - float(half)), min(1.0, mean + float(half))


def _roc(table: Table, row: Row, runs: tuple[Path, ...], dense: np.ndarray, sparse: np.ndarray) -> Iterator[Cell]:
    """Yield RoC (RoC, section 3.1) and the shares of the queries that it is made of.

    The interval of the ratio is that of its linearization: the mean of (only - ratio * dense) / mean(dense).
    """
    only, queries = dense * (1 - sparse), len(dense)
    if dense.sum():
        ratio = float(only.sum() / dense.sum())
        low, high = _interval((only - ratio * dense) / dense.mean(), ratio)
        yield Cell(table.title, row.name, ROC, ratio, low, high, queries=queries, runs=runs)
    for name, part in zip(ROC_PARTS, (only, sparse * (1 - dense), (1 - dense) * (1 - sparse)), strict=True):
        mean = float(part.mean())
        yield Cell(table.title, row.name, name, mean, *_interval(part, mean), queries=queries, runs=runs)


def part_cells(where: Collection, table: Table) -> Iterator[Cell]:
    """Yield the cells of a table with parts: relations, or collections of BEIR.

    `OUT/PART/measurements.parquet` has the values of the queries of a part. A mean over parts needs all parts.
    """
    files = {str(file.parent.relative_to(where.out)): file for file in sorted(where.out.rglob("measurements.parquet"))}
    named = {part for part, _ in map(str.split, table.columns)} - {MACRO, MICRO}
    files = {part: file for part, file in files.items() if not named or part.split("/")[0] in named}
    if not files:
        return
    runs = {row.run for row in table.rows}
    measures = tuple(dict.fromkeys(measure for _, measure in map(str.split, table.columns)))
    frames = [pl.read_parquet(file, columns=["run"]) for file in files.values()]
    common = set.intersection(*(set(frame["run"]) for frame in frames)) & runs
    chosen: dict[str, Any] = (
        {} if RBO in measures else {"measure": measures}
    )  # RBO is no option of `evaluate --measure`
    found = aggregate(Evaluate([f"{part}={file}" for part, file in files.items()], **chosen)).content
    means = {(row["collection"], row["run"], row["measure"]): row["mean"] for row in found["means"]}
    complete = len(found["parts"]) == table.parts
    for row in (row for row in table.rows if row.run in common):
        for column in table.columns:
            part, measure = column.split()
            queries = sum(found["queries"].values()) if part in (MACRO, MICRO) else found["queries"].get(part, 0)
            if complete if part in (MACRO, MICRO) else queries:
                paths = tuple(file for name, file in files.items() if part in (MACRO, MICRO, name.split("/")[0]))
                mean = means[part, row.run, measure]
                yield Cell(table.title, row.name, column, mean, queries=queries, runs=paths)


def costs(where: Collection, table: Table, name: str) -> Iterator[Cell]:
    """Yield bytes per passage and latencies of the rows of a table, for the first seed of each.

    Questions without judgments are timed on those of dev, if these have some.
    """
    rows = {row.name: runs[:1] for row in table.rows if (runs := where.runs_of(row))}
    passages = document_count(where.data)
    for row, files in rows.items():
        size = sum(held.size for held in indexes_of(files[0]).values())
        yield Cell(table.title, row, BYTES, size / passages, runs=files)
    judged = [each for each in (where.split, "dev") if (where.data / f"qrels.{each}.parquet").exists()]
    if not rows or not judged:  # `inspect` needs judgments
        return
    output = where.out / "tables" / f"{name}-costs.parquet"
    if not output.exists() or set(pl.read_parquet(output)["run"]) != set(rows):
        named = [f"{name}={runs[0]}" for name, runs in rows.items()]
        inspect(named, memory_table=where.data, split=judged[0], output=output, overwrite=True)
    for line in pl.read_parquet(output).iter_rows(named=True):
        yield Cell(table.title, line["run"], LATENCY, line["total p50"], runs=rows[line["run"]])


def robustness(where: Collection, table: Table) -> Iterator[Cell]:
    """Yield Success@100 with the original queries, under each attack, and its mean drop, for the rows with such runs.

    The mean drop is comparable with the published one only over the attacks of the paper.
    """
    rows = [(row, runs[0]) for row in table.rows if (runs := where.runs_of(row))]
    attacked = {row.name: sorted(run.parent.glob(f"{run.stem}@*.parquet")) for row, run in rows}
    rows = [(row, run) for row, run in rows if attacked[row.name]]
    if not rows:
        return
    files = [[run] for _, run in rows] + [[file] for row, _ in rows for file in attacked[row.name]]
    values = [each[ATTACKED] for each in measured(where, "robustness", files, [ATTACKED])]
    rest = iter(values[len(rows) :])
    for (row, run), original in zip(rows, values, strict=False):
        count, base = len(original), float(original.mean())
        yield Cell(table.title, row.name, ATTACKED, base, queries=count, runs=(run,))
        means = {file.stem.partition("@")[2]: (float(next(rest).mean()), file) for file in attacked[row.name]}
        for attack, (mean, file) in means.items():
            if attack in table.columns:
                yield Cell(table.title, row.name, attack, mean, queries=count, runs=(file,))
        drop = base - float(np.mean([mean for mean, _ in means.values()]))
        same = set(means) == set(table.attacks)
        yield Cell(table.title, row.name, DROP, drop, queries=count, runs=(run, *attacked[row.name]), comparable=same)


def difference(table: Table, row: Row, cell: Cell) -> float | None:
    """Return our figure less the published one, in the unit of the table; None where they are not comparable."""
    paper = row.paper.get(cell.column)
    costs = cell.column in (BYTES, LATENCY)  # of other units, or of another machine
    return None if paper is None or costs or not cell.comparable else table.unit * cell.mean - paper


def with_paper(table: Table, found: Sequence[Cell]) -> reporting.Table:
    """Return our figures, the published ones and the differences; rows without a run are named below the table."""
    by_place = {(cell.row, cell.column): cell for cell in found}
    measures = [name for name in table.columns if any(name == cell.column for cell in found)]
    present = [row for row in table.rows if any(row.name == cell.row for cell in found)]
    columns = [""]
    for name in measures:
        paper = table.columns.get(name)
        columns += [
            name,
            *([f"paper: {paper}", *(["difference"] if name not in (BYTES, LATENCY) else [])] if paper else []),
        ]
    rows = []
    for row in present:
        line = [row.name]
        for name in measures:
            cell = by_place.get((row.name, name))
            line.append("" if cell is None else cell.text(table.unit))
            if table.columns.get(name):
                differs = None if cell is None else difference(table, row, cell)
                line.append("" if name not in row.paper else _printed(row.paper[name]))
                digits = 3 if table.unit == 1 else 2
                line += [] if name in (BYTES, LATENCY) else ["" if differs is None else with_sign(differs, digits)]
        rows.append(line)
    absent = [row.name for row in table.rows if row.paper and row not in present]
    notes = [*table.notes, *([f"Without a run: {'; '.join(absent)}."] if absent else [])]
    if other := sorted({_attacks(cell) for cell in found if not cell.comparable}):
        notes.append(f"Mean drop over {' and over '.join(other)}; the paper's is over {', '.join(table.attacks)}.")
    return reporting.Table(columns, rows, table.title, notes)


def _attacks(cell: Cell) -> str:
    """Return the attacks of a mean drop."""
    return ", ".join(sorted(run.stem.partition("@")[2] for run in cell.runs if "@" in run.stem))


def all_cells(where: Collection, tables: Sequence[Table], with_costs: bool = True) -> list[list[Cell]]:
    """Return the cells of each table; write them to `OUT/tables/NAME.csv`."""
    found = []
    for number, table in enumerate(tables):
        folder = where.below(table)
        (folder.out / "tables").mkdir(parents=True, exist_ok=True)
        if table.parts:
            own = list(part_cells(folder, table))
        elif DROP in table.columns:
            own = list(robustness(folder, table))
        else:
            own = list(cells(folder, table, f"{where.name}-{number}"))
            own += costs(folder, table, f"{where.name}-{number}") if with_costs and BYTES in table.columns else ()
        found.append(own)
    (where.out / "tables").mkdir(parents=True, exist_ok=True)
    write_cells(where.out / "tables" / f"{where.name}.csv", [cell for own in found for cell in own])
    return found


def page(where: Collection, with_costs: bool = True, tables: Sequence[Table] | None = None, latex: bool = False) -> str:
    """Return all tables; write the page, as Markdown and LaTeX, and its cells below `OUT/tables`.

    Without `tables`, the runs of all papers are below OUT, of one collection without parts.
    """
    if tables is None:
        tables = [replace(table, folder="", split=None) for table in TABLES if not table.parts]
    found = all_cells(where, tables, with_costs)
    shown = [with_paper(table, own) for table, own in zip(tables, found, strict=True)]
    name = where.data.name if where.name == "tables" else where.name
    title = f"{name}, split {where.split}, {document_count(where.data):,} documents"
    markdown = "\n\n".join([f"# {title}", *(reporting.markdown_table(each, "## {}") for each in shown)]) + "\n"
    tex = "\n\n".join([f"% {title}", *map(reporting.latex_table, shown)]) + "\n"
    (where.out / "tables" / f"{where.name}.md").write_text(markdown, "utf-8")
    (where.out / "tables" / f"{where.name}.tex").write_text(tex, "utf-8")
    return tex if latex else markdown


def check(where: Collection, tables: Sequence[Table]) -> tuple[str, bool]:
    """Compare the measured cells with the published figures.

    Returns:
        One line per cell that differs by more than the tolerance or is not comparable, and a summary; whether there are
        figures to compare, and all agree. Collections of another size, such as samples, are not compared.
    """
    lines, compared, agree = [], 0, 0
    for table, own in zip(tables, all_cells(where, tables, with_costs=False), strict=True):
        rows, command = {row.name: row for row in table.rows}, f"`make {table.collection}`"
        if absent := [name for name, row in rows.items() if row.paper and name not in {cell.row for cell in own}]:
            lines.append(f"{table.title}: without a run: {'; '.join(absent)}: {command}")
        if own and (other := _other_size(where.below(table), table, own)):
            lines.append(f"{table.title}: not comparable: {other}: {command} with the whole collection")
            continue
        measured = {cell.column for cell in own}
        printed = {column for row in table.rows for column in row.paper} - {BYTES, LATENCY}
        if own and (missing := [column for column in table.columns if column in printed - measured]):
            needs = f" (the pool is {', '.join(table.pool)})" if table.pool else ""
            lines.append(f"{table.title}: not measured: {', '.join(missing)}{needs}: {command}")
        for cell in own:
            differs = difference(table, rows[cell.row], cell)
            compared += differs is not None
            if differs is not None and abs(differs) <= table.tolerance:
                agree += 1
            elif differs is not None:
                text, paper = cell.text(table.unit), _printed(rows[cell.row].paper[cell.column])
                lines.append(
                    f"{table.title}: {cell.row}: {cell.column} is {text}, published {paper}, "
                    f"tolerance {table.tolerance:g}"
                )
            elif not cell.comparable:
                lacking = ", ".join(sorted(set(table.attacks) - set(_attacks(cell).split(", "))))
                lines.append(
                    f"{table.title}: {cell.row}: {cell.column} lacks {lacking}: {command} (TRANSLATION, WordNet)"
                )
    lines.append(f"{agree} of {compared} figures agree with the published ones.")
    if not compared:
        commands = ", ".join(dict.fromkeys(f"`make {table.collection}`" for table in tables))
        lines.append(f"No figure of {where.out} is comparable: {commands} with the whole collection, then check again.")
    return "\n".join(lines) + "\n", 0 < compared == agree


def _other_size(where: Collection, table: Table, own: Sequence[Cell]) -> str:
    """Return the numbers of documents or queries, if they are not those of the published figures."""
    documents = document_count(where.data)
    if table.documents not in (None, documents):
        return f"{documents:,} documents, published {table.documents:,}"
    queries = {cell.queries for cell in own if cell.queries}
    if table.queries is not None and queries - {table.queries}:
        return f"{', '.join(map(str, sorted(queries)))} queries, published {table.queries:,}"
    return ""


def check_sample(where: Collection, tables: Sequence[Table]) -> tuple[str, bool]:
    """Check the rows of a sample, whose figures have no published counterpart.

    No two rows of a table have the same rankings, apart from those that must (`same`), and behind the run of a row are
    the stages and settings of its name (`settings` in the file of published figures).

    Returns:
        One line per problem, rows without a run included; whether there is none.
    """
    lines, rules = [], yaml.safe_load(PUBLISHED.read_text("utf-8"))["settings"]
    for table in tables:
        here = where.below(table)
        runs_of = {row.name: paths for row in table.rows if (paths := rankings(here, table, row))}
        if absent := [name for name in table.expected if name not in runs_of]:
            lines.append(f"{table.title}: without a run: {'; '.join(absent)}: `make {table.collection} SCALE=small`")
        of_ranking: dict[str, list[str]] = {}
        for name, paths in runs_of.items():
            of_ranking.setdefault(_ranking(paths), []).append(name)
        alike = {frozenset(names) for names in of_ranking.values() if len(names) > 1}
        expected = {frozenset(names) for names in table.same if set(names) <= set(runs_of)}
        lines += [f"{table.title}: rows coincide: {'; '.join(sorted(names))}" for names in alike - expected]
        lines += [f"{table.title}: rows must coincide: {'; '.join(sorted(names))}" for names in expected - alike]
        for row, paths in runs_of.items():
            broken = broken_rules(row, settings_behind(paths[0]), rules)
            lines += [f"{table.title}: {row}: behind {paths[0]}: {rule}" for rule in broken]
    return "\n".join([*lines, f"{len(lines)} problems in {len(tables)} tables of the sample."]) + "\n", not lines


def broken_rules(row: str, behind: str, rules: Sequence[tuple[str, str]]) -> list[str]:
    """Return the rules for the name of a row (`settings` in the file of published figures) that its settings break."""
    own = [rule for name, rule in rules if re.search(name, row)]
    return [rule for rule in own if bool(re.search(rule.removeprefix("no "), behind, re.M)) == rule.startswith("no ")]


def settings_behind(run: Path) -> str:
    """Return lines `STAGE>SOURCE OPTION=VALUE` of a run and all that it was made of; STAGE has read SOURCE."""
    return "\n".join(dict.fromkeys(_settings(run, "")))


def _settings(path: Path, stage: str) -> Iterator[str]:
    places = (path, *path.parents[:2]) if path.exists() else ()  # a learner or an epoch is a part of its encoder
    place, manifest = next(((place, made) for place in places if (made := find_manifest(place))), (path, None))
    if manifest is None or place != path:
        yield f"{stage}>{'part' if manifest else 'model'} {path.name}"
    if manifest is None:
        return
    yield f"{stage}>{manifest.stage}"
    yield from (f"{stage}>{manifest.stage} {name}={value}" for name, value in manifest.options.items())
    for role in manifest.inputs:
        source = manifest.input_path(role)
        if source is not None and not role.startswith(("corpus", "qrels", "dev")):
            yield from _settings(source, manifest.stage)


def rankings(where: Collection, table: Table, row: Row) -> tuple[Path, ...]:
    """Return the runs of a row; in a table with parts, those of all parts."""
    return where.runs_of(row) if not table.parts else tuple(sorted(where.out.rglob(f"{row.run}.*.parquet")))


def _ranking(files: Sequence[Path]) -> str:
    """Return a digest of the documents of runs, in their order."""
    digest = sha256()
    for file in files:
        digest.update(runs.read_run(file).sort("qid", "rank").select("qid", "docid").write_ipc(None).getvalue())
    return digest.hexdigest()


def write_cells(file: Path, found: Sequence[Cell]) -> None:
    """Write one line per cell and run: the figure, and the run with its fingerprint."""
    with file.open("w", encoding="utf-8", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(["table", "row", "column", "mean", "low", "high", "p", "queries", "run", "fingerprint"])
        for cell in found:
            figures = [cell.mean, cell.low, cell.high, cell.p, cell.queries]
            for run in cell.runs:
                rows.writerow([cell.table, cell.row, cell.column, *figures, run, storage.fingerprint(run)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--collection", choices=sorted({table.collection for table in TABLES}), help="its tables only")
    parser.add_argument("--residual-qrels", type=Path, help="judgments of an earlier round, left out")
    checks = parser.add_mutually_exclusive_group()
    checks.add_argument("--check", action="store_true", help="exit with 1 if figures differ from the published ones")
    checks.add_argument(
        "--check-sample", action="store_true", help="exit with 1 if rows of a sample have equal rankings"
    )
    parser.add_argument("--no-costs", action="store_true", help="leave out memory and latency")
    parser.add_argument("--latex", action="store_true", help="print LaTeX")
    given = parser.parse_args(arguments)
    if given.collection and not (given.data / "manifest.json").is_file():
        command = f"make {given.collection}"
        sys.exit(
            f"tables.py: {given.data}: no finished collection; run `{command}`, or repeat it after an interruption"
        )
    where = Collection(given.data, given.out, given.split, given.collection or "tables", given.residual_qrels)
    chosen = [table for table in TABLES if table.collection == given.collection] if given.collection else None
    if given.check or given.check_sample:
        text, agree = (check if given.check else check_sample)(where, TABLES if chosen is None else chosen)
        sys.stdout.write(text)
        sys.exit(not agree)
    sys.stdout.write(page(where, not given.no_costs, chosen, given.latex))


if __name__ == "__main__":
    try:
        main()
    except HybridError as error:
        sys.exit(f"tables.py: {error}")
