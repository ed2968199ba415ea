"""`fuse`: fuse runs, or tune the weights of a fusion on qrels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.artifacts.lineage import system_of
from hybrid_cli.collections import collection
from hybrid_cli.collections.searched import check_common, refuse_mixed, refuse_other_judgments
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import check_overlap, evaluate_hits, evaluate_positions, mean_of, parse_measures
from hybrid_cli.evaluation.retrieved import retrieved
from hybrid_cli.evaluation.ties import note_ties
from hybrid_cli.fusion import features, lists, tuning
from hybrid_cli.fusion.features import Sources
from hybrid_cli.fusion.fuser import FUSER_ROLE, Fuser, check_lengths, check_pair, read_fuser
from hybrid_cli.fusion.lists import Lists, Scorer
from hybrid_cli.fusion.methods import LEARNED, METHODS, Recipe
from hybrid_cli.fusion.prior import prior_of
from hybrid_cli.fusion.selection import Choice, Table, Values, check_folds, select
from hybrid_cli.fusion.tuning import Family
from hybrid_cli.fusion.weights import (
    Tuned,
    chosen_weights,
    read_tuned,
    refuse_other_order,
    stored_recipe,
    weights_file,
    weights_path,
)
from hybrid_cli.indexes.exact import ExactSource, exact_scorer, exact_sources, limit_threads, texts_of
from hybrid_cli.json_files import read_json
from hybrid_cli.reporting import terminal
from hybrid_cli.runs import Run
from hybrid_cli.settings import Fuse, stage

_PARAMETERS = ("method", "missing", "normalize", "rrf_k")
_WIDE = 10.0  # ratio of the standard deviations of two lists above which one list dominates the sum


@stage(Fuse)
def fuse(settings: Fuse) -> Path:
    """Fuse runs, or with `tune` select method and weights of the fusion.

    Returns:
        Path of the fused run (Parquet), or of the weights (JSON).

    Raises:
        InputError: inputs or options cannot be used together.
    """
    job = _Job.of(settings)
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


@dataclass(frozen=True)
class _Job:
    """The runs to fuse, the recipe or the methods to try, and the sources of exact scores."""

    settings: Fuse
    runs: dict[str, Path]
    families: list[Family]
    exact: list[ExactSource]
    fuser: Fuser | None = None

    @classmethod
    def of(cls, settings: Fuse) -> _Job:
        named = runs.named_once(settings.runs)
        if len(named) < 2:
            raise InputError("fuse: needs two or more runs, got 1")
        fuser = _fuser(settings, named)
        families = (
            tuning.families(settings, len(named))
            if settings.tune
            else [Family(fuser.recipe if fuser else _recipe(settings, named), "linear")]
        )
        rules = dict.fromkeys(family.recipe.missing for family in families)
        rule = "exact" if "exact" in rules else next(iter(rules))
        settings.check_facts(f"--missing is {rule}", rule=f"--missing {rule}")
        refuse_mixed(named)
        return cls(settings, named, families, _exact_sources(named, families, settings, fuser), fuser)

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of a fusion; of a tuning, the first method."""
        return self.families[0].recipe

    def inputs(self) -> dict[str, Path]:
        """Return the inputs that affect the result, by role with the position of the run."""
        files = {f"run {number}": path for number, path in enumerate(self.runs.values(), 1)}
        for number, source in enumerate(self.exact, 1):
            files |= {f"index {number}": source.index, f"queries {number}": source.queries}
        return files | ({FUSER_ROLE: self.settings.model} if self.settings.model else {})

    def options(self) -> dict[str, Any]:
        """Return the recorded options; `measure` and `split` affect only tuning."""
        recorded = self.settings.recorded()
        if self.settings.tune:
            unused: tuple[str, ...] = _PARAMETERS
            recipes = [family.recipe for family in self.families]
            used = {
                "methods": [_parameters(recipe) for recipe in recipes],
                "grid": [each.grid for each in self.families],
            }
        else:
            unused, used = ("measure", "split", "tune"), _parameters(self.recipe)
            used |= {"method": LEARNED} if self.fuser else {"weights": list(self.recipe.weights)}
        return {name: value for name, value in recorded.items() if name not in unused} | used


def _recipe(settings: Fuse, named: Mapping[str, Path]) -> Recipe:
    """Return the recipe of the options, or of `--weights @FILE`."""
    if path := weights_path(settings.weights):
        values = settings.values()
        given = {name: values[name] for name in sorted(settings.given) if name in _PARAMETERS}
        recipe = stored_recipe(path, list(named), given)
        refuse_other_order(path, [system_of(run).kind for run in named.values()])
        return recipe
    missing = settings.missing or METHODS[settings.method].missing
    recipe = Recipe(settings.method, (1.0,) * len(named), missing, settings.normalize, settings.rrf_k)
    return chosen_weights(settings.weights, recipe, list(named))


def _fuser(settings: Fuse, named: Mapping[str, Path]) -> Fuser | None:
    """Return the fuser of `--model`, if it fits the runs."""
    if settings.model is None:
        return None
    fuser, _ = read_fuser(settings.model)
    check_pair(fuser, settings.model, named, settings.force)
    if fuser.indexed and not settings.index:
        raise InputError(f"{settings.model}: was trained with --index; pass the index of each run, in order")
    if settings.index and not fuser.indexed:
        raise InputError(f"--index: {settings.model} was trained without it; omit it, or train again with --index")
    return fuser


def _parameters(recipe: Recipe) -> dict[str, Any]:
    found = {"method": recipe.method, "missing": recipe.missing, "normalize": recipe.normalization}
    return found | ({"rrf_k": recipe.rrf_k} if recipe.method == "rrf" else {})


def _exact_sources(
    named: Mapping[str, Path], families: Sequence[Family], settings: Fuse, fuser: Fuser | None
) -> list[ExactSource]:
    """Return one source of exact scores per run; empty for other rules for missing documents."""
    recipe = next((family.recipe for family in families if family.recipe.missing == "exact"), None)
    if recipe is not None and not settings.index:
        raise InputError(
            f"--method {recipe.method} --missing exact: needs the index of each run, in order (--index A,B); or use "
            "--missing min (the list's lowest score), zero, ignore, or drop (keep only documents in all lists)"
        )
    if recipe is None and not (fuser and fuser.indexed):
        return []
    override = collection.queries_path(settings.queries, settings.split) if settings.queries is not None else None
    return exact_sources(named, settings.index, override)


# --------------------------------------------------------------------------------------------------------------- fusing


def _fuse(job: _Job, output: artifacts.Output, judged: pl.DataFrame | None) -> None:
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
    common = float(np.concatenate(shares).mean()) if shares else 0.0
    if shares and not common:
        console.warn("the runs have no document in common; check that they are of one corpus")
    console.note(
        f"fuse: {output.path}: {console.counted(query=len(joined.qids), hit=written.counts['rows'])} of "
        f"{len(job.runs)} runs; the runs share {common:.1%} of their documents; missing: {job.recipe.missing}"
    )


def _weigher(job: _Job, joined: Lists) -> lists.Weigher | None:
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


def _candidates(job: _Job, joined: Lists, shares: list[np.ndarray], exact: bool) -> Iterator[pl.DataFrame]:
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
    alone = {name: _score(name, path, qrels, measure) for name, path in job.runs.items()}
    fused = _score("fused", job.settings.output, qrels, measure)
    terminal.show_comparison(measure, alone, LEARNED if job.fuser else job.recipe.method, fused)


def _score(name: str, path: Path, qrels: pl.DataFrame, measure: str) -> float:
    """Return the mean of a run."""
    return mean_of(_values(name, runs.open_run(path), qrels, measure), measure)


def _values(name: str, run: Run, qrels: pl.DataFrame, measure: str) -> pl.DataFrame:
    """Return the value of every judged query, and note a range over the orders of equal scores."""
    found = retrieved(run, qrels, 0)
    note_ties(name, found.judged, qrels, [measure])
    return evaluate_hits(found.judged, found.lengths["qid"], qrels, [measure])


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
        if "folds" in settings.given:
            check_folds(settings.folds, judged, queries)
        tuned, reason = _tuned(job, qrels, judged)
        found = tuned.content() | {"no_prior": reason}
        found |= {"pseudo_queries": kind} if (kind := collection.pseudo_queries(judged)) else {}
        output.write_json(found, queries=queries, trials=len(tuned.table.choices))
    terminal.show_tuned(read_json(settings.output))
    return settings.output


def _tuned(job: _Job, qrels: pl.DataFrame, judged: Path) -> tuple[Tuned, str | None]:
    """Return the result of tuning, and the reason why no prior is used."""
    settings = job.settings
    qids = qrels["qid"].unique(maintain_order=True)
    whole = [runs.open_run(path) for path in job.runs.values()]
    check_overlap(pl.concat([run.qids for run in whole]), qrels)
    opened = [run.of_queries(qids) for run in whole]
    Lists.of(opened, settings.depth).note_lengths("fuse", list(job.runs))
    alone = {
        name: _values(name, run, qrels, settings.measure)["value"].to_numpy()
        for name, run in zip(job.runs, opened, strict=True)
    }
    if not any(values.any() for values in alone.values()):
        raise InputError(
            f"--tune: {settings.measure} of every run is 0 for {console.counted(**{'judged query': len(qids)})} of "
            f"{judged}; pass the judgments of these runs' queries, or another --measure"
        )
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


def _measured(job: _Job, opened: Sequence[Run], qrels: pl.DataFrame) -> tuple[list[Choice], Values]:
    """Return all choices with their values."""
    joined = Lists.of(opened, job.settings.depth)
    _check_scores(job, joined, equal=False)

    def measured(judged: pl.DataFrame) -> np.ndarray:
        return evaluate_positions(judged, [job.settings.measure])["value"].to_numpy()

    blocks = {
        exact: lists.repeated(partial(_candidates, job, joined, [], exact), joined)
        for exact in {family.recipe.missing == "exact" for family in job.families}
    }
    choices: list[Choice] = []
    values: list[Values] = []
    with console.progress("tune", unit="sets of weights") as advance:
        for family in job.families:
            found = blocks[family.recipe.missing == "exact"]
            more, table = tuning.tabulate(family, found, joined.qids, qrels, job.settings.hits, measured, advance)
            choices += more
            values.append(table)
    return choices, np.concatenate(values)


def _prior(job: _Job, choices: Sequence[Choice]) -> tuple[Values | None, str | None]:
    """Return the prior of each choice; else None and the reason."""
    settings = job.settings
    if not settings.prior_queries:
        return None, "--prior-queries is 0"
    if settings.normalize or settings.missing:
        return None, "--normalize or --missing changes the methods"
    return prior_of(job.runs, settings.measure, choices)


def _warn_tuned(job: _Job, qids: pl.Series) -> None:
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
