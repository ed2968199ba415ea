"""Runs and judgements to measures of every query, their means, the significance of the differences, complementarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, config, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.config import AnswerMatch, Correction, SignificanceTest
from hybrid_cli.evaluation.complement import Texts, names_of, set_beside, with_pair, with_reciprocal_rank
from hybrid_cli.evaluation.plan import Comparing, Plan, measure, summarize
from hybrid_cli.evaluation.robustness import Robustness, systems_and_attacks, under_attack
from hybrid_cli.evaluation.summary import Summary

_DEFAULT = config.Evaluation()


def evaluate(
    inputs: Sequence[str | Path],
    *,
    split: str | None = None,
    qrels: Path | None = None,
    queries: Path | None = None,
    corpus: Path | None = None,
    measures: Sequence[str] = _DEFAULT.measures,
    relevance_level: int = _DEFAULT.relevance_level,
    baselines: Sequence[str] = (),
    test: SignificanceTest = _DEFAULT.test,
    correction: Correction = _DEFAULT.correction,
    answer_match: AnswerMatch = _DEFAULT.answer_match,
    remove_query: bool = False,
    overlap_with: str | None = None,
    complement: tuple[str, str] | None = None,
    changed: int = config.Complementarity.changed,
    seed: int = _DEFAULT.seed,
    output: Path | None = None,
    overwrite: bool = False,
) -> Summary:
    """Measure runs.

    Args:
        inputs, split, qrels, queries, corpus, measures, relevance_level, answer_match, remove_query, overlap_with:
            see `Plan.of`.
        baselines, test, correction, seed: see `Comparing`; with `complement` its two runs are the baselines if none
            is named.
        complement: two runs, by name or path, that are set beside each other: the one whose own finds are measured
            (normally the dense run), then the other (normally BM25). A path that is no run yet joins the runs.
        changed: queries hurt most and queries helped most that are shown of each other run.
        output: where the values of every query will stand, if anywhere.

    Raises:
        InputError: an unusable measure, file or name.
    """
    inputs, sides = with_pair(inputs, qrels, complement or ())
    plan = Plan.of(
        inputs,
        split=split,
        qrels=qrels,
        queries=queries,
        corpus=corpus,
        measures=measures,
        relevance_level=relevance_level,
        answer_match=answer_match,
        remove_query=remove_query,
        overlap_with=overlap_with,
    )
    pair = names_of(sides, plan) if complement else ()
    how = Comparing(baselines or pair, test, correction, seed).checked(list(plan.runs))
    if not pair:
        return summarize(plan, *_measured(plan, output, overwrite), how)
    values, found = _measured(with_reciprocal_rank(plan), output, overwrite)
    values = values.filter(pl.col("measure").is_in(plan.columns))
    texts = Texts.of(qrels or Path(inputs[0]), split, queries, corpus)
    beside = set_beside(plan, values, pair, texts, config.Complementarity(changed=changed))
    return replace(summarize(plan, values, found, how), complement=beside)


def robustness(
    inputs: Sequence[str | Path],
    *,
    split: str | None = None,
    qrels: Path | None = None,
    queries: Path | None = None,
    corpus: Path | None = None,
    measures: Sequence[str] = _DEFAULT.measures,
    relevance_level: int = _DEFAULT.relevance_level,
    baselines: Sequence[str] = (),
    test: SignificanceTest = _DEFAULT.test,
    correction: Correction = _DEFAULT.correction,
    answer_match: AnswerMatch = _DEFAULT.answer_match,
    remove_query: bool = False,
    overlap_with: str | None = None,
    seed: int = _DEFAULT.seed,
    output: Path | None = None,
    overwrite: bool = False,
) -> Robustness:
    """Measure runs of queries as they were and of attacked ones, the latter named `SYSTEM@ATTACK`.

    Args:
        inputs: see `Plan.of`, as all that `evaluate` has too.
        baselines: systems with whose drops those of the others are compared; the first if none is named.

    Raises:
        InputError: an unusable measure, file or name, or a system without an attack that another has.
    """
    plan = Plan.of(
        inputs,
        split=split,
        qrels=qrels,
        queries=queries,
        corpus=corpus,
        measures=measures,
        relevance_level=relevance_level,
        answer_match=answer_match,
        remove_query=remove_query,
        overlap_with=overlap_with,
    )
    systems, _ = systems_and_attacks(list(plan.runs))
    how = Comparing(baselines, test, correction, seed).checked(systems)
    summary = summarize(plan, *_measured(plan, output, overwrite), replace(how, baselines=()))
    return under_attack(summary, how.baselines)


def _measured(plan: Plan, output: Path | None, overwrite: bool) -> tuple[pl.DataFrame, Mapping[str, Any]]:
    """Values and counts, from `output` where they stand there already."""
    if output is None:
        return measure(plan)
    claim = artifacts.open_output(
        output, Kind.MEASUREMENTS, "evaluate", inputs=plan.inputs(), options=plan.options(), overwrite=overwrite
    )
    if claim.up_to_date:
        return pl.read_parquet(output), artifacts.read_manifest(output, Kind.MEASUREMENTS).counts
    values, found = measure(plan)
    claim.write([values.to_arrow()], **found)
    console.note(f"evaluate: {len(values):,} values of {len(plan.runs)} runs -> {output}")
    return values, found
