"""The papers' tables next to the figures of one collection, from the runs that the pipelines wrote.

    python studies/tables.py DATA OUT [--split test] [--no-costs]

Prints Markdown, and writes `OUT/tables/tables.md` and `OUT/tables/cells.csv`. A cell is the mean over the queries with
its 95% t-interval, of the means over the seeds if there are several runs. `*` marks p < .05 of a paired t-test against
the first row, with Bonferroni's correction for the rows. cells.csv names the runs of each cell and their
fingerprints, which `hybrid inspect RUN` traces to indexes, encoders and settings. Rows without a run are listed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from hybrid_cli import storage
from hybrid_cli.collections.collection import document_count
from hybrid_cli.errors import InputError
from hybrid_cli.reporting.tables import figure
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.stages.inspect import inspect

CONFIDENCE, LEVEL = 0.95, 0.05
ROC, _BEHIND_ROC = "RoC@10", "Success@10"
RBO = "RBO"  # rank-biased overlap with BM25
BYTES, LATENCY, ATTACKED, DROP = "bytes per passage", "latency p50 (ms)", "Success@100", "mean drop"
Values = dict[str, np.ndarray]  # measure -> value of each query


@dataclass(frozen=True)
class Row:
    """A system of a table.

    Attributes:
        name: name in the table.
        run: path of its run below OUT, `.test.parquet` if it has no suffix; `*` stands for the seed.
        paper: published figures, in the order of the columns of the paper; None where none is printed.
    """

    name: str
    run: str
    paper: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        title: paper and table.
        columns: our measures.
        published: names of the columns of the paper.
        rows: systems; the first is the baseline of the tests.
    """

    title: str
    columns: tuple[str, ...]
    published: tuple[str, ...]
    rows: tuple[Row, ...]


CLEAR_RUNS, ROC_RUNS, SPAR_RUNS, LITE_RUNS = "ablations/seed-*/", "roc/seed-*/", "spar/seed-*/", "lite/seed-*/"
TABLES = (
    Table(
        "DualRM, table 2 (MS MARCO dev; TREC DL 2019)",
        ("MRR@10", "R@1000", "nDCG@10", "MAP"),
        ("MRR@10", "R@1k", "DL19 nDCG@10", "DL19 MAP"),
        (
            Row("BM25", "bm25", (0.191, 0.864, 0.506, 0.377)),
            Row("BM25+RM3", "bm25+rm3", (0.166, 0.861, 0.555, 0.452)),
            Row("DeepCT", "sparse/deepct", (0.243, 0.913, 0.551, 0.422)),
            Row("DeepCT+RM3", "sparse/deepct-rm3", (0.232, 0.914, 0.601, 0.481)),
            Row("start model, untrained", "before"),
            Row("BM25 + start model, min-max", "bm25+before.minmax"),
            Row("BM25 + start model, tuned sum", "bm25+before"),
            Row("neural only", CLEAR_RUNS + "constant", (0.308, 0.928, 0.594, 0.307)),
            Row("CLEAR / DualRM", CLEAR_RUNS + "bm25+residual", (0.338, 0.969, 0.699, 0.511)),
            Row("random negatives", CLEAR_RUNS + "bm25+random", (0.241, 0.926, 0.553, 0.409)),
            Row("constant margin", CLEAR_RUNS + "bm25+constant", (0.314, 0.955, 0.664, 0.455)),
        ),
    ),
    Table(
        "DualRM, table 4: reranking (MS MARCO dev; TREC DL 2019)",
        ("MRR@10", "nDCG@10"),
        ("MRR@10", "DL19 nDCG@10"),
        (
            Row("BM25", "bm25", (0.191, 0.506)),
            Row("BM25 + BERT, pointwise", "rerank/bm25.pointwise.parquet", (0.345, 0.707)),
            Row("BM25 + BERT large, pointwise", "rerank/bm25.large.parquet", (0.370, 0.737)),
            Row("BM25 + BERT, listwise", "rerank/bm25.listwise.parquet"),
            Row("CLEAR / DualRM", "bm25+after", (0.338, 0.699)),
            Row("CLEAR / DualRM + BERT, pointwise", "rerank/bm25+after.pointwise.parquet", (0.360, 0.719)),
            Row("CLEAR / DualRM + BERT large, pointwise", "rerank/bm25+after.large.parquet", (0.380, 0.752)),
            Row("CLEAR / DualRM + BERT, listwise", "rerank/bm25+after.listwise.parquet"),
        ),
    ),
    Table(
        "RoC, table 6: input orthogonality of other rankers (NQ, percent)",
        ("MAP",),
        ("MAP",),
        (
            Row("BM25", "bm25", (26.59,)),
            Row("SparTerm", "sparse/sparterm", (26.33,)),
            Row("SparTerm + I", "sparse/sparterm-i", (26.78,)),
            Row("interactive BERT", "rerank/bm25.pointwise.parquet", (41.76,)),
            Row("interactive BERT + I", "rerank/bm25.masked.parquet", (42.20,)),
        ),
    ),
    Table(
        "RoC, tables 3 to 5 (NQ, percent; RoC of table 5 with coCondenser)",
        ("MAP", "Success@20", "Success@100", ROC),
        ("MAP", "R@20", "R@100", "RoC"),
        (
            Row("DPR + BM25", ROC_RUNS + "bm25+dense", (33.56, 78.92, 86.77, None)),
            Row("BM25", "bm25", (26.59, None, 73.70, None)),
            Row("DPR", ROC_RUNS + "dense", (33.08, None, 85.38, 0.32)),
            Row("CLEAR + BM25", ROC_RUNS + "bm25+clear", (33.17, None, 87.23, None)),
            Row("CLEAR, dense", ROC_RUNS + "clear"),
            Row("E + BM25", ROC_RUNS + "bm25+E", (None, 80.87, None, None)),
            Row("E, dense", ROC_RUNS + "E", (None, None, None, 0.42)),
            Row("I + BM25", ROC_RUNS + "bm25+I", (None, 79.24, None, None)),
            Row("I, dense", ROC_RUNS + "I", (None, None, None, 0.38)),
            Row("E and I + BM25", ROC_RUNS + "bm25+EI", (34.15, 81.28, 87.89, None)),
            Row("E and I, dense", ROC_RUNS + "EI", (None, None, None, 0.47)),
        ),
    ),
    Table(
        "SPAR, tables 1 and 2 (NQ, percent)",
        ("Success@20", "Success@100", "MRR@10"),
        ("Acc@20", "Acc@100"),
        (
            Row("DPR + BM25", SPAR_RUNS + "bm25+dense", (80.9, 87.9)),
            Row("BM25", "bm25", (62.9, 78.3)),
            Row("Lambda", SPAR_RUNS + "lambda", (62.0, 77.4)),
            Row("static Lambda", SPAR_RUNS + "static"),
            Row("DPR", SPAR_RUNS + "dense", (78.3, 85.6)),
            Row("2 DPRs", SPAR_RUNS + "two", (79.8, 86.4)),
            Row("SPAR, initialization", SPAR_RUNS + "init", (78.1, 86.3)),
            Row("SPAR, joint training", SPAR_RUNS + "joint", (79.2, 86.6)),
            Row("SPAR, weighted sum", SPAR_RUNS + "sum", (81.3, 88.0)),
            Row("SPAR, weighted concatenation", SPAR_RUNS + "concat", (82.2, 88.3)),
            Row("DPR and static Lambda", SPAR_RUNS + "static+dense"),
        ),
    ),
    Table(
        "SPAR, table 3, and learned sparse retrieval (MS MARCO dev, percent)",
        ("MRR@10", "R@50", "R@1000"),
        ("MRR@10", "R@50", "R@1000"),
        (
            Row("BM25", "bm25", (18.7, 59.2, 85.7)),
            Row("UniCOIL", "sparse/unicoil", (35.2, 80.7, 95.8)),
            Row("Lambda taught by BM25", SPAR_RUNS + "lambda", (17.3, 56.3, 83.1)),
            Row("Lambda taught by UniCOIL", "sparse/unicoil-lambda", (34.1, 82.1, 97.0)),
            Row("SPLADE", "sparse/splade"),
            Row("dense", "sparse/dense"),
            Row("SPLADE + dense, min-max", "sparse/splade+dense"),
        ),
    ),
    Table(
        "SPAR, table 6: overlap with BM25 (NQ dev)",
        (RBO,),
        ("RBO",),
        (
            Row("DPR", SPAR_RUNS + "dense", (0.104,)),
            Row("Lambda", SPAR_RUNS + "lambda", (0.508,)),
            Row("static Lambda", SPAR_RUNS + "static"),
        ),
    ),
    Table(
        "SPAR, table 7: shuffled words in the queries (NQ dev, percent)",
        ("Success@20", "Success@100"),
        ("Acc@20", "Acc@100"),
        (
            Row("BM25", "bm25", (62.3, 76.0)),
            Row("BM25, shuffled", "spar/bm25.shuffled.parquet", (62.3, 76.0)),
            Row("DPR", SPAR_RUNS + "dense", (77.4, 84.7)),
            Row("DPR, shuffled", SPAR_RUNS + "dense.shuffled.parquet", (69.4, 80.1)),
            Row("Lambda", SPAR_RUNS + "lambda", (60.9, 74.9)),
            Row("Lambda, shuffled", SPAR_RUNS + "lambda.shuffled.parquet", (60.8, 74.7)),
            Row("static Lambda", SPAR_RUNS + "static"),
            Row("static Lambda, shuffled", SPAR_RUNS + "static.shuffled.parquet"),
        ),
    ),
    Table(
        "SPAR, table 8: SPAR and BM25 (NQ, percent)",
        ("Success@20", "Success@100"),
        ("Acc@20", "Acc@100"),
        (
            Row("DPR", SPAR_RUNS + "dense", (79.5, 86.1)),
            Row("DPR + BM25", SPAR_RUNS + "bm25+dense", (82.6, 88.6)),
            Row("SPAR", SPAR_RUNS + "concat", (83.0, 88.8)),
            Row("SPAR + BM25", SPAR_RUNS + "bm25+concat", (82.9, 88.9)),
        ),
    ),
    Table(
        "LITE, tables 2 and 5 (NQ, percent; memory in GB on 21 million passages)",
        ("Success@20", "Success@100"),
        ("R@20", "R@100", "GB"),
        (
            Row("BM25+DPR", LITE_RUNS + "bm25+dpr.minmax", (82.6, 88.6, 63.9)),
            Row("BM25", "bm25", (63.9, 78.8, 2.4)),
            Row("DPR", LITE_RUNS + "dpr", (79.5, 86.1, 61.5)),
            Row("BPR", LITE_RUNS + "bpr", (77.9, 85.7, 2.0)),
            Row("SPAR", LITE_RUNS + "spar", (83.6, 88.8, 123.0)),
            Row("start model, untrained", "before"),
            Row("BM25 + start model, min-max", "bm25+before.minmax"),
            Row("DPR32", LITE_RUNS + "dpr32", (70.4, 80.0, 2.5)),
            Row("DrBoost-2", LITE_RUNS + "drboost-2", (77.3, 84.5, 5.1)),
            Row("LITE", LITE_RUNS + "lite", (75.1, 83.4, 2.5)),
            Row("R-DrBoost-2", LITE_RUNS + "r-drboost-2", (75.6, 83.9, None)),
            Row("L-DrBoost-2", LITE_RUNS + "l-drboost-2", (77.9, 84.7, None)),
            Row("Hybrid-DPR32", LITE_RUNS + "bm25+dpr32.minmax", (77.7, 86.2, 4.9)),
            Row("Hybrid-LITE", LITE_RUNS + "bm25+lite.minmax", (79.9, 87.2, 4.9)),
            Row("Hybrid-DrBoost-2", LITE_RUNS + "bm25+drboost-2.minmax", (80.4, 87.5, 7.5)),
            Row("Hybrid-L-DrBoost-2", LITE_RUNS + "bm25+l-drboost-2.minmax", (81.0, 87.5, None)),
        ),
    ),
    Table(
        "LITE, table 6: fusion of DrBoost-2 and BM25 (NQ, percent)",
        ("Success@20", "Success@100"),
        ("R@20", "R@100"),
        (
            Row("sum of min-max", LITE_RUNS + "bm25+drboost-2.minmax", (80.41, 87.47)),
            Row("sum of scores", LITE_RUNS + "bm25+drboost-2.sum", (79.03, 84.63)),
            Row("product of scores", LITE_RUNS + "bm25+drboost-2.product", (79.03, 84.63)),
        ),
    ),
)
ROBUSTNESS = "LITE, table 4: robustness (NQ, R@100 and its mean drop under six attacks, percent)"
DROPS = {  # row of `make robustness` -> R@100, mean drop recomputed from the printed cells
    "bm25": (78.8, 5.3),
    "dpr32": (80.8, 10.2),
    "lite": (83.4, 7.4),
    "drboost-2": (84.5, 6.6),
    "dpr": (86.1, 5.3),
    "bm25+dpr32": (86.2, 5.9),
    "bm25+lite": (87.2, 5.4),
    "bm25+drboost-2": (87.5, 4.5),
    "bm25+dpr": (88.3, 4.3),
}


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

    def text(self) -> str:
        """Return the cell as Markdown."""
        if self.column in (BYTES, LATENCY):
            return f"{self.mean:,.0f}" if self.column == BYTES else f"{self.mean:.1f}"
        ends = "" if np.isnan(self.low) else f" [{figure(self.low)}, {figure(self.high)}]"
        return f"{figure(self.mean)}{ends}{'*' if self.p < LEVEL else ''}"


@dataclass(frozen=True)
class Collection:
    """A collection, the folder of its outputs, and the split that is evaluated."""

    data: Path
    out: Path
    split: str

    def runs_of(self, row: Row) -> tuple[Path, ...]:
        """Return the runs of a row, one per seed."""
        pattern = row.run if row.run.endswith(".parquet") else f"{row.run}.test.parquet"
        return tuple(sorted(self.out.glob(pattern)))


def measured(where: Collection, name: str, runs: Sequence[Sequence[Path]], measures: Sequence[str]) -> list[Values]:
    """Return the value of each query for every row, as mean over the seeds; unchanged runs are not measured again."""
    named = [f"r{row}~{seed}={path}" for row, paths in enumerate(runs) for seed, path in enumerate(paths)]
    output = where.out / "tables" / f"{name}.parquet"
    overlap = {"overlap_with": str(where.out / "bm25.test.parquet")} if RBO in measures else {}
    computed = [measure for measure in measures if measure != RBO] or ["MRR@10"]  # `evaluate` needs one
    options: dict[str, Any] = {"split": where.split, "measures": computed, "output": output, **overlap}
    with redirect_stdout(StringIO()):
        try:
            evaluate([where.data, *named], **options)
        except InputError:  # other runs than before
            evaluate([where.data, *named], **options, overwrite=True)
    values = pl.read_parquet(output).with_columns(row=pl.col("run").str.extract(r"^r(\d+)~").cast(pl.Int64))
    means = values.group_by("row", "measure", "qid").agg(pl.col("value").mean()).sort("qid")
    return [
        {each: means.filter(row=row, measure=each)["value"].to_numpy() for each in measures} for row in range(len(runs))
    ]


def cells(where: Collection, table: Table, name: str) -> Iterator[Cell]:
    """Yield the cells of a table, for the rows with runs; the first such row is the baseline of the tests."""
    rows = [(row, runs) for row in table.rows if (runs := where.runs_of(row))]
    sparse = where.runs_of(Row("BM25", "bm25"))
    wanted = [column for column in table.columns if column != ROC]
    with_roc = ROC in table.columns and bool(sparse)
    if not rows:
        return
    measures = [*wanted, *([_BEHIND_ROC] if with_roc else [])]
    values = measured(where, name, [*(runs for _, runs in rows), *([sparse] if with_roc else [])], measures)
    for number, (row, runs) in enumerate(rows):
        for column in wanted:
            own, base = values[number][column], values[0][column]
            spread = stats.t.ppf(0.5 + CONFIDENCE / 2, len(own) - 1) * own.std(ddof=1) / len(own) ** 0.5
            p = 1.0 if np.allclose(own, base) else min(1.0, stats.ttest_rel(own, base).pvalue * (len(rows) - 1))
            mean = float(own.mean())
            ends = max(0.0, mean - spread), min(1.0, mean + spread)  # every measure is between 0 and 1
            yield Cell(table.title, row.name, column, mean, *ends, float(p), len(own), runs)
        if with_roc and "bm25" not in row.run:
            dense, lexical = values[number][_BEHIND_ROC], values[-1][_BEHIND_ROC]
            share = float((dense * (1 - lexical)).sum() / dense.sum()) if dense.sum() else float("nan")
            yield Cell(table.title, row.name, ROC, share, queries=len(dense), runs=runs)


def costs(where: Collection, table: Table) -> Iterator[Cell]:
    """Yield bytes per passage and median latency of the rows of a table, for the first seed of each."""
    rows = {row.name: runs[:1] for row in table.rows if (runs := where.runs_of(row))}
    if not rows:
        return
    output = where.out / "tables" / "costs.parquet"
    if not output.exists() or set(pl.read_parquet(output)["run"]) != set(rows):
        named = [f"{name}={runs[0]}" for name, runs in rows.items()]
        inspect(named, memory_table=where.data, split=where.split, output=output, overwrite=True)
    passages = document_count(where.data)
    for row in pl.read_parquet(output).iter_rows(named=True):
        runs = rows[row["run"]]
        yield Cell(table.title, row["run"], BYTES, row["bytes"] / passages, runs=runs)
        yield Cell(table.title, row["run"], LATENCY, row["total p50"], runs=runs)


def robustness(where: Collection) -> Iterator[Cell]:
    """Yield Success@100 with the original queries, and its mean drop over the attacks, for the rows of the pipeline."""
    folder = where.out / "robustness"
    rows = {file.stem: sorted(folder.glob(f"{file.stem}@*.parquet")) for file in sorted(folder.glob("*.parquet"))}
    rows = {name: attacked for name, attacked in rows.items() if attacked and "@" not in name}
    if not rows:
        return
    files = [[folder / f"{name}.parquet"] for name in rows] + [[file] for each in rows.values() for file in each]
    values = [each[ATTACKED] for each in measured(where, "robustness", files, [ATTACKED])]
    rest = iter(values[len(rows) :])
    for (name, attacked), original in zip(rows.items(), values, strict=False):
        drops = [float(original.mean() - next(rest).mean()) for _ in attacked]
        runs = (folder / f"{name}.parquet", *attacked)
        yield Cell(ROBUSTNESS, name, ATTACKED, float(original.mean()), queries=len(original), runs=runs[:1])
        yield Cell(ROBUSTNESS, name, DROP, float(np.mean(drops)), queries=len(original), runs=runs)


def markdown(
    title: str, columns: Sequence[str], published: Sequence[str], rows: Sequence[Row], found: Sequence[Cell]
) -> str:
    """Return a table: our figures, then those of the paper; rows without a run are named below it."""
    by_place = {(cell.row, cell.column): cell for cell in found}
    present = [row for row in rows if any((row.name, column) in by_place for column in columns)]
    lines = [f"## {title}", ""]
    if present:
        lines += [f"| | {' | '.join([*columns, *(f'paper: {name}' for name in published)])} |"]
        lines += ["|---" * (1 + len(columns) + len(published)) + "|"]
    for row in present:
        ours = [by_place[row.name, column].text() if (row.name, column) in by_place else "" for column in columns]
        paper = ["" if value is None else _printed(value) for value in (*row.paper, *([None] * len(published)))]
        lines.append(f"| {row.name} | {' | '.join([*ours, *paper[: len(published)]])} |")
    absent = [row.name for row in rows if row not in present]
    return "\n".join([*lines, *([f"\nWithout a run: {'; '.join(absent)}."] if absent else [])]) + "\n"


def _printed(value: float) -> str:
    """Return a published figure as papers print it: `.191`, `73.7`."""
    return f"{value:.3f}".lstrip("0") if value < 1 else f"{value:g}"


def page(where: Collection, with_costs: bool = True) -> str:
    """Return all tables; write the page and its cells below `OUT/tables`."""
    (where.out / "tables").mkdir(parents=True, exist_ok=True)
    documents = document_count(where.data)
    parts = [f"# {where.data.name}, split {where.split}, {documents:,} documents\n"]
    every: list[Cell] = []
    for number, table in enumerate(TABLES):
        own = list(cells(where, table, f"table-{number}"))
        costed = with_costs and table.title.startswith("LITE, tables 2")
        own += costs(where, table) if costed else ()
        columns = (*table.columns, *((BYTES, LATENCY) if costed else ()))
        parts.append(markdown(table.title, columns, table.published, table.rows, own))
        every += own
    attacked = list(robustness(where))  # rows by their names in the pipeline
    names = list(dict.fromkeys([*(cell.row for cell in attacked), *DROPS]))
    rows = [Row(name, "", DROPS.get(name, ())) for name in names]
    parts.append(markdown(ROBUSTNESS, (ATTACKED, DROP), ("R@100", "drop"), rows, attacked))
    write_cells(where.out / "tables" / "cells.csv", every + attacked)
    text = "\n".join(parts)
    (where.out / "tables" / "tables.md").write_text(text, "utf-8")
    return text


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
    parser.add_argument("--no-costs", action="store_true", help="leave out memory and latency")
    given = parser.parse_args(arguments)
    sys.stdout.write(page(Collection(given.data, given.out, given.split), not given.no_costs))


if __name__ == "__main__":
    main()
