"""`fuse`: fuse runs, or tune the weights of a fusion on qrels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection
from hybrid_cli.collections.searched import check_common, refuse_other_judgments
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import check_overlap, evaluate_hits, evaluate_positions, mean_of, parse_measures
from hybrid_cli.evaluation.retrieved import retrieved
from hybrid_cli.evaluation.ties import note_ties
from hybrid_cli.fusion import features, lists, tuning
from hybrid_cli.fusion.features import Sources
from hybrid_cli.fusion.fuser import check_lengths
from hybrid_cli.fusion.lists import Lists, Scorer
from hybrid_cli.fusion.methods import LEARNED, METHODS, Recipe
from hybrid_cli.fusion.prior import prior_of
from hybrid_cli.fusion.selection import Choice, Table, Values, check_folds, select
from hybrid_cli.fusion.weights import Tuned, read_tuned, weights_file, weights_path
from hybrid_cli.indexes.exact import exact_scorer, limit_threads, texts_of
from hybrid_cli.json_files import read_json
from hybrid_cli.reporting import terminal
from hybrid_cli.runs import Run
from hybrid_cli.settings import Fuse, stage
from hybrid_cli.training.fusion_inputs import FusionInputs

_WIDE = 10.0  # ratio of the standard deviations of two lists above which one list dominates the sum


@stage(Fuse)
def fuse(settings: Fuse) -> Path:
    """Fuse runs, or with `tune` select method and weights of the fusion.

    Returns:
        Path of the fused run (Parquet), or of the weights (JSON).

    Raises:
        InputError: inputs or options cannot be used together.
    """
    job = FusionInputs.of(settings)
    qrels = collection.qrels_path(settings.qrels, settings.split) if settings.qrels is not None else None
    if settings.qrels is not None:
        refuse_other_judgments(job.runs.values(), settings.qrels)
    parse_measures([settings.measure])
    if settings.tune:
        return _tune(job, qrels)
    inputs = job.inputs() | weights_file(settings.weights)
    output = artifacts.output_of(settings, Kind.RUN, inputs, job.options())
    judged = None if qrels is None else collection.read_qrels(qrels)
    if not output.up_to_date:
        _fuse(job, output, judged)
    if judged is not None:
        _compare(job, judged)
    return settings.output


# --------------------------------------------------------------------------------------------------------------- fusing


def _fuse(job: FusionInputs, output: artifacts.Output, judged: pl.DataFrame | None) -> None:
    opened = {path: runs.open_run(path) for path in job.runs.values()}
    if judged is not None:
        for path, run in opened.items():
            check_overlap(run.qids, judged, path)
    check_common({path: run.qids for path, run in opened.items()})
    _warn_tuned(job, pl.concat([run.qids for run in opened.values()]))
    joined = Lists.of(list(opened.values()), job.settings.depth)
    if job.fuser and job.settings.model:
        check_lengths(job.fuser, job.settings.model, dict(zip(job.runs, joined.longest, strict=True)))
    elif job.recipe.missing != "exact":  # which completes the lists
        joined.note_lengths("fuse", list(job.runs))
    _check_scores(job, joined, equal=job.settings.weights is None and job.fuser is None)
    shares: list[np.ndarray] = []
    with console.progress("fuse", len(joined.qids), "queries") as advance:

        def blocks() -> Iterator[Any]:
            candidates = _candidates(job, joined, shares, job.recipe.missing == "exact")
            for run in lists.fuse(candidates, joined.qids, job.recipe, job.settings.hits, _weigher(job, joined)):
                advance(run["qid"].n_unique())
                yield run.to_arrow()

        written = output.write(blocks(), queries=len(joined.qids))
    common = _warn_disjoint(shares)
    console.note(
        f"fuse: {output.path}: {console.counted(query=len(joined.qids), hit=written.counts['rows'])} of "
        f"{len(job.runs)} runs; the runs share {common:.1%} of their documents; missing: {job.recipe.missing}"
    )


def _warn_disjoint(shares: Sequence[np.ndarray]) -> float:
    """Return the mean share of the documents that the runs have in common; warn if there is none."""
    common = float(np.concatenate(shares).mean()) if shares else 0.0
    if shares and not common:
        console.warn("the runs have no document in common; check that they are of one corpus")
    return common


def _weigher(job: FusionInputs, joined: Lists) -> lists.Weigher | None:
    """Return the weights of the queries of a block by the fuser; None for fixed weights."""
    if (fuser := job.fuser) is None:
        return None
    if not fuser.indexed or not fuser.model.trees:
        return fuser.weights_of
    limit_threads(job.settings.threads)
    sources = Sources(
        [exact_scorer(each, joined.qids, job.settings.device) for each in job.exact], *texts_of(job.exact)
    )
    weights = fuser.weights(features.collected(joined.blocks(), joined.qids, sources)[1])

    def weigh(block: pl.DataFrame) -> np.ndarray:
        numbers = block["query"].to_numpy()
        return weights[numbers.min() : numbers.max() + 1]

    return weigh


def _candidates(job: FusionInputs, joined: Lists, shares: list[np.ndarray], exact: bool) -> Iterator[pl.DataFrame]:
    """Return the blocks, with exact scores if the rule requires them; the overlap of the lists is added to `shares`."""

    def watched() -> Iterator[pl.DataFrame]:
        for block in joined.blocks():
            shares.append(lists.overlap(block, len(job.runs)))
            yield block

    if not exact:
        yield from watched()
        return
    limit_threads(job.settings.threads)
    opened = [exact_scorer(source, joined.qids, job.settings.device) for source in job.exact]
    with console.progress("score missing pairs", unit="pairs") as advance:
        yield from lists.complete(watched(), joined.qids, [_counted(scorer, advance) for scorer in opened])


def _counted(scorer: Scorer, advance: Callable[[int], None]) -> Scorer:
    def score(pairs: pl.DataFrame) -> pl.Series:
        found = scorer(pairs)
        advance(len(pairs))
        return found

    return score


def _check_scores(job: FusionInputs, joined: Lists, equal: bool) -> None:
    """Refuse distances; warn if one list dominates the sum, among those whose scores differ."""
    spreads: dict[str, float] = {}
    for number, (name, path) in enumerate(job.runs.items()):
        if joined.runs[number].rising > 0.5:
            raise InputError(f"{path}: scores rise with the rank, as distances do; negate them")
        if joined.runs[number].deviation > 0:
            spreads[name] = joined.runs[number].deviation
    if job.recipe.sums_raw_scores and equal and spreads and min(spreads.values()) * _WIDE < max(spreads.values()):
        narrow, wide = min(spreads, key=lambda name: spreads[name]), max(spreads, key=lambda name: spreads[name])
        console.warn(
            f"the standard deviation of {wide}'s scores is {spreads[wide] / spreads[narrow]:,.0f} times "
            f"that of {narrow}'s, so {wide} nearly decides alone; pass --weights, tune them with --tune, or use "
            "--method minmax"
        )


def _compare(job: FusionInputs, qrels: pl.DataFrame) -> None:
    measure = job.settings.measure
    single = {name: _alone(job, name, runs.open_run(path), qrels) for name, path in job.runs.items()}
    alone = {name: mean_of(values, measure) for name, values in single.items()}
    fused = mean_of(_values(job, "fused", runs.open_run(job.settings.output), qrels, job.settings.hits), measure)
    terminal.show_comparison(measure, alone, LEARNED if job.fuser else job.recipe.method, fused)


def _alone(job: FusionInputs, name: str, run: Run, qrels: pl.DataFrame) -> pl.DataFrame:
    """Return the value of every judged query in the hits of a run that a fusion reads and keeps."""
    return _values(job, name, run, qrels, min(job.settings.depth, job.settings.hits))


def _values(job: FusionInputs, name: str, run: Run, qrels: pl.DataFrame, hits: int) -> pl.DataFrame:
    """Return the value of every judged query, and note a range over the orders of equal scores."""
    found, measures = retrieved(run, qrels, 0, job.remove_query), [job.settings.measure]
    judged = found.judged.filter(pl.col("position") <= hits)
    note_ties(name, judged, qrels, measures)
    return evaluate_hits(judged, found.lengths["qid"], qrels, measures)


# --------------------------------------------------------------------------------------------------------------- tuning


def _tune(job: FusionInputs, judged: Path | None) -> Path:
    if judged is None:
        raise InputError("--tune: needs --qrels, a file or a collection with --split; never the queries reported on")
    settings = job.settings
    output = artifacts.open_output(
        settings.output,
        Kind.WEIGHTS,
        "fuse --tune",
        inputs=job.inputs() | {"qrels": judged},
        options=job.options(),
        overwrite=settings.overwrite,
    )
    if not output.up_to_date:
        qrels = collection.read_qrels(judged)
        queries = qrels["qid"].n_unique()
        if "folds" in settings.given:
            check_folds(settings.folds, judged, queries)
        tuned, reason = _tuned(job, qrels, judged)
        found = tuned.content() | {"no_prior": reason}
        found |= {"pseudo_queries": kind} if (kind := collection.pseudo_queries(judged)) else {}
        output.write_json(found, queries=queries, trials=len(tuned.table.choices))
    terminal.show_tuned(read_json(settings.output))
    return settings.output


def _tuned(job: FusionInputs, qrels: pl.DataFrame, judged: Path) -> tuple[Tuned, str | None]:
    """Return the result of tuning, and the reason why no prior is used."""
    settings = job.settings
    qids = qrels["qid"].unique(maintain_order=True)
    whole = [runs.open_run(path) for path in job.runs.values()]
    check_overlap(pl.concat([run.qids for run in whole]), qrels)
    opened = [run.of_queries(qids) for run in whole]
    Lists.of(opened, settings.depth).note_lengths("fuse", list(job.runs))
    alone = {
        name: _alone(job, name, run, qrels)["value"].to_numpy() for name, run in zip(job.runs, opened, strict=True)
    }
    if not any(values.any() for values in alone.values()):
        raise InputError(
            f"--tune: {settings.measure} of every run is 0 for {console.counted(**{'judged query': len(qids)})} of "
            f"{judged}; pass the judgments of these runs' queries, or another --measure"
        )
    for name, run in zip(job.runs, opened, strict=True):
        if not alone[name].any() and retrieved(run, qrels, 0).judged.is_empty():
            console.warn(f"{name}: none of its hits has a judgment; check that its documents are of this corpus")
    choices, values = _measured(job, opened, qrels)
    prior, reason = _prior(job, choices)
    table = Table(choices, values, prior, settings.prior_queries if prior is not None else 0.0)
    selected = select(table, settings.folds, settings.seed)
    chosen = choices[selected.row]
    family = next(each.recipe for each in job.families if _same(each.recipe, chosen))
    recipe = replace(family, weights=chosen.weights)
    return Tuned(
        table, selected, recipe, alone, qids.to_list(), settings.measure, settings.folds, settings.seed
    ), reason


def _same(recipe: Recipe, choice: Choice) -> bool:
    return recipe.method == choice.method and choice.rrf_k in (None, recipe.rrf_k)


def _measured(job: FusionInputs, opened: Sequence[Run], qrels: pl.DataFrame) -> tuple[list[Choice], Values]:
    """Return all choices with their values."""
    joined = Lists.of(opened, job.settings.depth)
    _check_scores(job, joined, equal=False)

    def measured(judged: pl.DataFrame) -> np.ndarray:
        return evaluate_positions(judged, [job.settings.measure])["value"].to_numpy()

    shares: list[np.ndarray] = []
    blocks = {
        exact: lists.repeated(partial(_candidates, job, joined, shares, exact), joined)
        for exact in {family.recipe.missing == "exact" for family in job.families}
    }
    choices: list[Choice] = []
    values: list[Values] = []
    with console.progress("tune", unit="sets of weights") as advance:
        for family in job.families:
            found = blocks[family.recipe.missing == "exact"]
            more, table = tuning.tabulate(
                family, found, joined.qids, qrels, job.settings.hits, measured, advance, job.remove_query
            )
            choices += more
            values.append(table)
    _warn_disjoint(shares)
    return choices, np.concatenate(values)


def _prior(job: FusionInputs, choices: Sequence[Choice]) -> tuple[Values | None, str | None]:
    """Return the prior of each choice; else None and the reason."""
    settings = job.settings
    if not settings.prior_queries:
        return None, "--prior-queries is 0"
    recipes = [family.recipe for family in job.families]
    if settings.normalize or any(recipe.missing != METHODS[recipe.method].missing for recipe in recipes):
        return None, "--normalize or --missing changes the methods"
    return prior_of(job.runs, settings.measure, choices)


def _warn_tuned(job: FusionInputs, qids: pl.Series) -> None:
    """Warn if the runs contain queries that the weights were tuned on."""
    path = weights_path(job.settings.weights) or job.settings.model
    if path is None:
        return
    tuned, asked = set(job.fuser.judged if job.fuser else read_tuned(path)["judged"]), qids.unique().to_list()
    if common := len(tuned.intersection(asked)):
        console.warn(
            f"{common:,} of the {len(asked):,} queries are those that {path} was tuned on; scores of these queries "
            "are too high to report"
        )
