"""`fuse`: fuse runs, or tune the weights of a fusion on qrels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection
from hybrid_cli.collections.searched import check_common, refuse_mixed
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_positions, evaluate_run, mean_of, parse_measures
from hybrid_cli.fusion import lists, tuning
from hybrid_cli.fusion.lists import Lists, Scorer
from hybrid_cli.fusion.methods import METHODS, Recipe
from hybrid_cli.fusion.tuning import chosen_weights, content, weights_file
from hybrid_cli.indexes.exact import ExactSource, exact_scorer, exact_source
from hybrid_cli.reporting import terminal
from hybrid_cli.settings import Fuse, stage

_WIDE = 10.0  # ratio of the standard deviations of two lists above which one list dominates the sum


@stage(Fuse)
def fuse(settings: Fuse) -> Path:
    """Fuse runs, or with `tune` select the weights of the fusion.

    Returns:
        Path of the fused run (Parquet), or of the weights (JSON).

    Raises:
        InputError: inputs or options cannot be used together.
    """
    job = _Job.of(settings)
    qrels = collection.qrels_path(settings.qrels, settings.split) if settings.qrels is not None else None
    parse_measures([settings.measure])
    if settings.tune:
        return _tune(job, qrels)
    output = artifacts.output_of(
        settings,
        Kind.RUN,
        job.inputs() | weights_file(settings.weights),
        job.options() | {"weights": list(job.recipe.weights)},
    )
    if not output.up_to_date:
        _fuse(job, output)
    if qrels is not None:
        _compare(job, collection.read_qrels(qrels))
    return settings.output


@dataclass(frozen=True)
class _Job:
    """The runs to fuse, the recipe, and the sources of exact scores."""

    settings: Fuse
    runs: dict[str, Path]
    recipe: Recipe
    exact: list[ExactSource]

    @classmethod
    def of(cls, settings: Fuse) -> _Job:
        named = runs.named(settings.runs)
        if len(named) < 2:
            raise InputError("fuse: needs two or more runs, got 1")
        missing = settings.missing or METHODS[settings.method].missing
        recipe = Recipe(settings.method, (1.0,) * len(named), missing, settings.normalize, settings.rrf_k)
        settings.check_facts(f"--missing is {missing}", rule=f"--missing {missing}")
        recipe = chosen_weights(settings.weights, recipe, list(named))
        refuse_mixed(named)
        return cls(settings, named, recipe, _exact_sources(named, recipe, settings))

    def inputs(self) -> dict[str, Path]:
        """Return the inputs that affect the result, by role with the position of the run."""
        files = {f"run {number}": path for number, path in enumerate(self.runs.values(), 1)}
        for number, source in enumerate(self.exact, 1):
            files |= {f"index {number}": source.index, f"queries {number}": source.queries}
        return files

    def options(self) -> dict[str, Any]:
        """Return the recorded options; `measure` and `split` affect only tuning."""
        recorded = self.settings.recorded() | {"missing": self.recipe.missing}
        unused = () if self.settings.tune else ("measure", "split", "tune")
        return {name: value for name, value in recorded.items() if name not in unused}


def _exact_sources(named: Mapping[str, Path], recipe: Recipe, settings: Fuse) -> list[ExactSource]:
    """Return one source of exact scores per run; empty for other rules for missing documents."""
    indexes = settings.index
    if recipe.missing != "exact":
        return []
    if not indexes:
        raise InputError(
            f"--method {recipe.method} --missing exact: needs the index of each run, in order (--index A,B); or use "
            "--missing min (the list's lowest score), zero, ignore, or drop (keep only documents in all lists)"
        )
    if len(indexes) != len(named):
        raise InputError(f"--index: {len(indexes)} indexes for {len(named)} runs; give one per run, in order")
    override = collection.queries_path(settings.queries, settings.split) if settings.queries is not None else None
    return [exact_source(run, index, override) for run, index in zip(named.values(), indexes, strict=True)]


# --------------------------------------------------------------------------------------------------------------- fusing


def _fuse(job: _Job, output: artifacts.Output) -> None:
    opened = {path: runs.open_run(path) for path in job.runs.values()}
    check_common({path: run.qids for path, run in opened.items()})
    joined = Lists.of(list(opened.values()), job.settings.depth)
    _check_scores(job, joined, equal=job.settings.weights is None)
    shares: list[np.ndarray] = []
    with console.progress("fuse", len(joined.qids), "queries") as advance:

        def blocks() -> Iterator[Any]:
            for run in lists.fuse(_candidates(job, joined, shares), joined.qids, job.recipe, job.settings.hits):
                advance(run["qid"].n_unique())
                yield run.to_arrow()

        written = output.write(blocks(), queries=len(joined.qids))
    common = float(np.concatenate(shares).mean()) if shares else 0.0
    console.note(
        f"fuse: {output.path}: {len(joined.qids):,} queries, {written.counts['rows']:,} hits of {len(job.runs)} runs; "
        f"the runs share {common:.1%} of their documents; missing: {job.recipe.missing}"
    )


def _candidates(job: _Job, joined: Lists, shares: list[np.ndarray]) -> Iterable[pl.DataFrame]:
    """Return the blocks, with exact scores if the rule requires them; the overlap of the lists is added to `shares`."""

    def watched() -> Iterator[pl.DataFrame]:
        for block in joined.blocks():
            shares.append(lists.overlap(block, len(job.runs)))
            yield block

    if not job.exact:
        return watched()
    with console.progress("score missing pairs", unit="pairs") as advance:
        scorers = [_counted(exact_scorer(source, job.settings.device), advance) for source in job.exact]
        return lists.complete(watched(), joined.qids, scorers)


def _counted(scorer: Scorer, advance: Callable[[int], None]) -> Scorer:
    def score(pairs: pl.DataFrame) -> pl.Series:
        found = scorer(pairs)
        advance(len(pairs))
        return found

    return score


def _check_scores(job: _Job, joined: Lists, equal: bool) -> None:
    """Refuse distances; warn if one list dominates the sum."""
    spreads: dict[str, float] = {}
    for number, (name, path) in enumerate(job.runs.items()):
        if joined.runs[number].rising > 0.5:
            raise InputError(f"{path}: scores rise with the rank, as distances do; negate them")
        spreads[name] = joined.runs[number].deviation
    if job.recipe.sums_raw_scores and equal and min(spreads.values()) * _WIDE < max(spreads.values()):
        narrow, wide = min(spreads, key=lambda name: spreads[name]), max(spreads, key=lambda name: spreads[name])
        console.warn(
            f"the standard deviation of {wide}'s scores is {spreads[wide] / max(spreads[narrow], 1e-9):,.0f} times "
            f"that of {narrow}'s, so {wide} nearly decides alone; pass --weights, tune them with --tune, or use "
            "--method minmax"
        )


def _compare(job: _Job, qrels: pl.DataFrame) -> None:
    measure = job.settings.measure
    alone = {name: _score(runs.read_run(path), qrels, measure) for name, path in job.runs.items()}
    fused = _score(runs.read_run(job.settings.output), qrels, measure)
    terminal.show_comparison(measure, alone, job.recipe.method, fused)


def _score(run: pl.DataFrame, qrels: pl.DataFrame, measure: str) -> float:
    return mean_of(evaluate_run(run, qrels, [measure]), measure)


# --------------------------------------------------------------------------------------------------------------- tuning


def _tune(job: _Job, judged: Path | None) -> Path:
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
        if "folds" in settings.given and settings.folds > queries:
            raise InputError(
                f"--folds {settings.folds}: {judged} has {queries:,} judged queries; pass at most {queries}"
            )
        frames = [
            runs.read_run(path).filter(pl.col("qid").is_in(qrels["qid"].unique().implode()))
            for path in job.runs.values()
        ]
        alone = {name: _score(run, qrels, settings.measure) for name, run in zip(job.runs, frames, strict=True)}
        tuned = _search(job, frames, qrels)
        content_ = content(tuned, alone, settings.measure)
        content_ |= {"pseudo_queries": kind} if (kind := collection.pseudo_queries(judged)) else {}
        output.write_json(content_, queries=queries, trials=len(tuned.trials))
    terminal.show_weights(json.loads(settings.output.read_text("utf-8")))
    return settings.output


def _search(job: _Job, frames: Sequence[pl.DataFrame], qrels: pl.DataFrame) -> tuning.Tuned:
    joined = Lists.of(frames, job.settings.depth)
    _check_scores(job, joined, equal=False)

    def measured(judged: pl.DataFrame) -> np.ndarray:
        return evaluate_positions(judged, [job.settings.measure])["value"].to_numpy()

    with console.progress("tune", unit="sets of weights") as advance:
        return tuning.tune(
            _candidates(job, joined, []),
            joined.qids,
            qrels,
            job.recipe,
            job.settings.hits,
            measured,
            job.settings,
            advance,
        )
