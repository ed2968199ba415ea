"""`evaluate`: measure runs, and compare them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.judged import reused, warn_raters
from hybrid_cli.commands import Evaluate
from hybrid_cli.evaluation.measures import SUCCESS, Measure
from hybrid_cli.reporting import studies
from hybrid_cli.reporting.agreement import machine_labels, people_agreement
from hybrid_cli.reporting.complement import Texts, complement
from hybrid_cli.reporting.plan import EvaluationPlan, judgments, measure, text_files, with_searched
from hybrid_cli.reporting.summary import Summary, chosen_baselines, summarize
from hybrid_cli.stages import call, stage
from hybrid_cli.storage import Kind


@stage(Evaluate)
def evaluate(settings: Evaluate) -> Summary:
    """Measure runs.

    Returns:
        A `Summary`; with `study` or `machine`, its `content` and tables are those of the study.

    Raises:
        InputError: unknown measure, missing file, or unknown run.
    """
    if settings.study == "aggregate":
        return Summary.of_study(studies.aggregate(settings))
    if settings.study == "agreement":
        return Summary.of_study(people_agreement([Path(path) for path in settings.inputs]))
    with tempfile.TemporaryDirectory() as folder:
        return _evaluated(with_searched(settings, Path(folder), call))


def _evaluated(settings: Evaluate) -> Summary:
    plan = EvaluationPlan.of(settings, settings.overlap_with, settings.condensed)
    if settings.machine is None and plan.qrels is not None:
        warn_raters(plan.qrels)
    too_high = reused(plan.runs, plan.qrels)
    for reuse in too_high:
        reuse.warn()
    if settings.machine is not None:
        return Summary.of_study(machine_labels(plan, settings.machine))
    if settings.study == "answerable":
        queries, *_ = text_files(judgments(settings), settings, plan.runs.values())
        return Summary.of_study(studies.answerable(plan, queries))
    if settings.study == "over-seeds":
        studies.check_rows(list(plan.runs), settings)
        against = settings.roc_against
        if against and plan.qrels is not None and not any(measure.family == SUCCESS for measure in plan.measures):
            plan = replace(plan, measures=[*plan.measures, Measure(f"{SUCCESS}@10", SUCCESS, 10, plan.level)])
        values = _measured(plan, settings)[0]
        return Summary.of_study(studies.over_seeds(values, settings, [studies.roc(values, against)] if against else []))
    if settings.study == "robustness":
        systems, _ = studies.systems_and_attacks(list(plan.runs))
        baselines = chosen_baselines(settings.baseline, systems)
        summary = summarize(plan, *_measured(plan, settings), settings, ())
        return Summary.of_study(studies.robustness(summary, baselines))
    baselines = chosen_baselines(settings.baseline, list(plan.runs), plan.pair or ())
    if plan.pair is None:
        return summarize(plan, *_measured(plan, settings), settings, baselines, reused=bool(too_high))
    values, facts = _measured(plan.with_reciprocal_rank(), settings)
    values = values.filter(pl.col("measure").is_in(plan.columns))
    compared = complement(plan, values, Texts.of(settings, plan), settings.show_queries)
    return summarize(plan, values, facts, settings, baselines, compared, bool(too_high))


def _measured(plan: EvaluationPlan, settings: Evaluate) -> tuple[pl.DataFrame, Mapping[str, Any]]:
    """Return values and counts; read them from the output if it is up to date."""
    if settings.output is None:
        return measure(plan)
    output = artifacts.output_of(settings, Kind.MEASUREMENTS, plan.inputs(), plan.options())
    if output.up_to_date:
        return pl.read_parquet(output.path, glob=False), artifacts.read_manifest(output.path, Kind.MEASUREMENTS).counts
    values, summary = measure(plan)
    output.write([values.to_arrow()], **summary)
    output.note(f"{console.counted(value=len(values))} of {console.counted(run=len(plan.runs))}")
    return values, summary
