"""Measure runs in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli.collections.collection import read_qrels
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_run, mean_of
from hybrid_cli.inputs.files import DOCIDS, QIDS, fold_name
from hybrid_cli.runs import RunLike, frame_of, of_dictionary, run_table

QrelsLike = pl.DataFrame | Mapping[str, Mapping[str, int]] | str | os.PathLike[str] | Any  # Any: a pandas data frame
_GRADES = ("relevance", "rel", "score", "label", "grade")


def evaluate(run: RunLike, qrels: QrelsLike, measures: Sequence[str], *, level: int = 1) -> dict[str, float]:
    """Return the mean of each measure over all judged queries; a query without hits counts as 0.

    Args:
        run: a data frame, a dictionary `{qid: {docid: score}}` or a path; see `runs.run_table`.
        qrels: a data frame with qid, docid and relevance, a dictionary `{qid: {docid: grade}}`, or a path.
        measures: names such as `nDCG@10`, in the spelling of hybrid, ir_measures, ranx or trec_eval.
        level: lowest relevant grade; nDCG uses all grades.

    Raises:
        InputError: an unknown measure, something that is no run or no judgments, or no common query.
    """
    values = evaluate_queries(run, qrels, measures, level=level)
    return {name: mean_of(values, name) for name in values["measure"].unique(maintain_order=True)}


def evaluate_queries(run: RunLike, qrels: QrelsLike, measures: Sequence[str], *, level: int = 1) -> pl.DataFrame:
    """Return the value of each judged query: measure, qid, value; see `evaluate`."""
    if isinstance(measures, str):
        raise InputError(f"measures: needs a list, such as [{measures!r}]", code="not-a-list")
    return evaluate_run(run_table(run), qrels_table(qrels), measures, level)


def qrels_table(qrels: QrelsLike) -> pl.DataFrame:
    """Return judgments as a table: qid, docid, relevance (int32).

    Raises:
        InputError: no judgments, a grade that is no whole number of 32 bits, or two grades for one pair.
    """
    if isinstance(qrels, str | os.PathLike):
        return read_qrels(Path(qrels))
    name = "the qrels"
    frame = of_dictionary(qrels, "relevance", name) if isinstance(qrels, Mapping) else frame_of(qrels, name)
    names = {fold_name(column): column for column in reversed(frame.columns)}
    known = {"qid": QIDS, "docid": DOCIDS, "relevance": _GRADES}
    usual = {
        field: next((names[usual_name] for usual_name in known[field] if usual_name in names), None) for field in known
    }
    if lacking := [field for field, column in usual.items() if column is None]:
        raise InputError(
            f"{name}: no column {lacking[0]}; judgments need qid, docid and relevance", code="no-such-column"
        )
    try:
        table = frame.select(
            pl.col(str(usual["qid"])).cast(pl.String).alias("qid"),
            pl.col(str(usual["docid"])).cast(pl.String).alias("docid"),
            pl.col(str(usual["relevance"])).alias("relevance"),
        )
        whole = table["relevance"].cast(pl.Int32)
    except pl.exceptions.PolarsError:
        raise InputError(f"{name}: a grade is not a whole number of 32 bits", code="grade-not-a-number") from None
    if whole.is_null().any() or (whole.cast(pl.Float64) != table["relevance"].cast(pl.Float64)).any():
        raise InputError(f"{name}: a grade is not a whole number of 32 bits", code="grade-not-a-number")
    table = table.with_columns(whole).unique(maintain_order=True)
    if table.is_empty():
        raise InputError(f"{name}: no judgments", code="no-judgments")
    if table.select("qid", "docid").is_duplicated().any():
        raise InputError(f"{name}: two grades for one pair of query and document", code="two-grades")
    return table
