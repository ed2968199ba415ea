"""`fuse`: fuse runs, or tune the weights of a fusion on qrels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import lineage
from hybrid_cli.artifacts.belonging import belongs_together, check_common, check_systems
from hybrid_cli.artifacts.exact import SearchedIndex, exact_sources
from hybrid_cli.artifacts.judged import BothJudged, judgments_of, missing_split, warn_raters
from hybrid_cli.artifacts.lineage import system_of
from hybrid_cli.artifacts.opening import limit_threads
from hybrid_cli.artifacts.output import is_nested
from hybrid_cli.artifacts.retrievers import check_indexes, index_paths, is_retriever, read_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Compose, Fuse
from hybrid_cli.commands.fusion import RRF
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.measures import (
    check_overlap,
    evaluate_hits,
    evaluate_positions,
    mean_of,
    note_ties,
    parse_measures,
)
from hybrid_cli.evaluation.prediction_powered import LEAST_QUERIES, rectified
from hybrid_cli.evaluation.retrieved import removes_query, retrieved
from hybrid_cli.evaluation.sequential import Evidence
from hybrid_cli.fusion import lists, tuning
from hybrid_cli.fusion.lists import Lists, Scorer
from hybrid_cli.fusion.methods import METHODS, FusionRecipe, method_name
from hybrid_cli.fusion.prior import prior_of
from hybrid_cli.fusion.selection import Choice, Trials, Values, check_folds, select
from hybrid_cli.fusion.tuning import MethodGrid
from hybrid_cli.fusion.weights import (
    ByPeople,
    Tuned,
    chosen_weights,
    read_tuned,
    stored_recipe,
    weights_file,
    weights_path,
)
from hybrid_cli.inputs.json_values import read_json
from hybrid_cli.reporting import terminal
from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.runs import Run
from hybrid_cli.settings import command_line
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind

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
    settings = _with_split(_with_retriever(settings))
    job = FusionInputs.of(settings)
    qrels = collections.qrels_path(settings.qrels, settings.split) if settings.qrels is not None else None
    if settings.qrels is not None and settings.machine is None:
        warn_raters(settings.qrels)
    parse_measures([settings.measure])
    if settings.tune:
        return _tune(job, qrels)
    inputs = job.inputs() | weights_file(settings.weights)
    output = artifacts.output_of(settings, Kind.RUN, inputs, job.options())
    judged = None if qrels is None else judgments_of(qrels, job.runs)
    if not output.up_to_date:
        _fuse(job, output, judged)
    if judged is not None:
        _compare(job, judged)
    return settings.output


# --------------------------------------------------------------------------------------------------------------- inputs


def _with_retriever(settings: Fuse) -> Fuse:
    """Return the settings with depth and indexes of the retriever in `--weights @RETRIEVER`, unless they are given."""
    path = weights_path(settings.weights)
    if path is None or not is_retriever(path):
        return settings
    stored = read_retriever(path)
    if "depth" not in settings.given:
        settings = settings.changed(depth=stored.depth)
    if stored.missing == "exact" and not settings.index:
        settings = settings.changed(index=index_paths(path, stored))
    return settings


def _with_split(settings: Fuse) -> Fuse:
    """Return the settings with the judgments that were left out: of the split that the runs were searched on."""
    if settings.qrels is None and not settings.tune:
        return settings
    paths = list(runs.name_runs(settings.runs).values())
    known = missing_split("fuse", settings.qrels, settings.split, paths)
    return settings if known is None else settings.changed(qrels=known.collection, split=known.name)


@dataclass(frozen=True)
class FusionInputs:
    """The runs to fuse, the recipe or the methods to try, and the sources of exact scores.

    Attributes:
        remove_query: remove hits whose docid is the qid where runs are measured.
    """

    settings: Fuse
    runs: dict[str, Path]
    families: list[MethodGrid]
    exact: list[SearchedIndex]
    remove_query: bool = False

    @classmethod
    def of(cls, settings: Fuse) -> FusionInputs:
        """Check the runs and the options."""
        named = runs.named_once(settings.runs)
        if len(named) < 2:
            raise InputError("fuse: needs two or more runs, got 1", code="too-few-runs", option="runs", value=1)
        families = (
            families_to_try(settings, len(named)) if settings.tune else [MethodGrid(_recipe(settings, named), "linear")]
        )
        rules = dict.fromkeys(family.recipe.missing for family in families)
        rule = "exact" if "exact" in rules else next(iter(rules))
        settings.check_facts(f"--missing is {rule}", rule=f"--missing {rule}")
        judged = settings.qrels
        corpus = collections.corpus_path(judged) if judged is not None and judged.is_dir() else None
        belongs_together(named.values(), corpus=corpus, queries=True)
        exact = _exact_sources(named, families, settings)
        return cls(settings, named, families, exact, removes_query(settings.qrels, settings.split))

    @property
    def recipe(self) -> FusionRecipe:
        """Return the recipe of a fusion; of a tuning, the first method."""
        return self.families[0].recipe

    def inputs(self) -> dict[str, Path]:
        """Return the inputs that affect the result, by role with the position of the run."""
        files = {f"run {number}": path for number, path in enumerate(self.runs.values(), 1)}
        for number, source in enumerate(self.exact, 1):
            files |= {f"index {number}": source.index, f"queries {number}": source.queries}
        return files

    def options(self) -> dict[str, Any]:
        """Return the recorded options; `measure` and `split` affect only tuning."""
        recorded = self.settings.recorded()
        if self.settings.tune:
            unused: tuple[str, ...] = _PARAMETERS
            recipes = [family.recipe for family in self.families]
            used = {
                "methods": [_parameters(recipe) for recipe in recipes],
                "grid": [family.grid for family in self.families],
                "choice": "middle of the plateau",  # before, sometimes a single run
            } | ({"remove_query": True} if self.remove_query else {})
        else:
            unused, used = ("measure", "split", "tune"), _parameters(self.recipe)
            used |= {"weights": list(self.recipe.weights)}
        return {name: value for name, value in recorded.items() if name not in unused} | used


def families_to_try(settings: Fuse, runs: int) -> list[MethodGrid]:
    """Return the methods that `fuse --tune` tries.

    Args:
        settings: `--method` if it was given, else `--methods`: `auto` is min-max, z-score and RRF with k 60 and 10, and
            with `--index` the weighted sum of exact scores.
        runs: number of runs.

    Raises:
        InputError: an unknown method, or options that exclude each other.
    """
    recipes, methods = [], _methods(settings)
    settings.check_facts(f"--tune tries {', '.join(methods)}", tried=RRF if "rrf" in methods else "")
    for method in methods:
        constants = (settings.rrf_k,) if "rrf_k" in settings.given or method != "rrf" else tuning.RRF_CONSTANTS
        missing = settings.missing or METHODS[method].missing
        recipes += [FusionRecipe(method, (1.0,) * runs, missing, settings.normalize, k) for k in constants]
    return [
        MethodGrid(recipe, tuning.default_grid(recipe) if settings.grid == "auto" else settings.grid, settings.step)
        for recipe in recipes
    ]


def _methods(settings: Fuse) -> list[str]:
    if "method" in settings.given:
        return [settings.method]
    if "normalize" in settings.given:
        reason = "needed with --tune and --normalize; other methods have a fixed normalization"
        raise option_error("method", None, reason, code="missing-option")
    if list(settings.methods) == ["auto"]:
        return [*tuning.AUTO, *(["weighted-sum"] if settings.index else [])]
    return list(dict.fromkeys(method_name(name, "--methods") for name in settings.methods))


def _recipe(settings: Fuse, named: Mapping[str, Path]) -> FusionRecipe:
    """Return the recipe of the options, or of `--weights @FILE`."""
    path = weights_path(settings.weights)
    if path is not None and is_retriever(path):
        stored = read_retriever(path)
        check_indexes(path, stored, list(named.values()))
        return stored.recipe
    if path is not None:
        values = settings.values()
        given = {name: values[name] for name in sorted(settings.given) if name in _PARAMETERS}
        recipe = stored_recipe(path, list(named), given)
        check_systems(path, [system_of(run) for run in named.values()])
        return recipe
    missing = settings.missing or METHODS[settings.method].missing
    recipe = FusionRecipe(settings.method, (1.0,) * len(named), missing, settings.normalize, settings.rrf_k)
    return chosen_weights(settings.weights, recipe, list(named))


def _parameters(recipe: FusionRecipe) -> dict[str, Any]:
    parameters = {"method": recipe.method, "missing": recipe.missing, "normalize": recipe.normalization}
    return parameters | ({"rrf_k": recipe.rrf_k} if recipe.method == "rrf" else {})


def _exact_sources(named: Mapping[str, Path], families: Sequence[MethodGrid], settings: Fuse) -> list[SearchedIndex]:
    """Return one source of exact scores per run; empty for other rules for missing documents."""
    recipe = next((family.recipe for family in families if family.recipe.missing == "exact"), None)
    if recipe is None:
        return []
    if not settings.index:
        reason = f"--method {recipe.method} --missing exact needs the index of each run, in order (--index A,B)"
        if not weights_path(settings.weights):
            reason += "; or use --missing min (lowest score of the list), zero, ignore, or drop (only common documents)"
        raise option_error("index", None, reason, code="missing-option")
    override = collections.queries_path(settings.queries, settings.split) if settings.queries is not None else None
    return exact_sources(named, settings.index, override)


# --------------------------------------------------------------------------------------------------------------- fusing


def _fuse(job: FusionInputs, output: artifacts.Output, judged: pl.DataFrame | None) -> None:
    opened = {path: runs.open_run(path) for path in job.runs.values()}
    if judged is not None:
        for path, run in opened.items():
            check_overlap(run.qids, judged, path)
    check_common({path: run.qids for path, run in opened.items()})
    _warn_tuned(job, pl.concat([run.qids for run in opened.values()]))
    joined = Lists.of(list(opened.values()), job.settings.depth)
    if job.recipe.missing != "exact":  # which completes the lists
        joined.note_lengths("fuse", list(job.runs))
    _check_scores(job, joined, equal=job.settings.weights is None)
    shares: list[np.ndarray] = []
    with console.progress("fuse", len(joined.qids), "queries") as advance:

        def blocks() -> Iterator[Any]:
            candidates = _candidates(job, joined, shares, job.recipe.missing == "exact")
            for run in lists.fuse_blocks(candidates, joined.qids, job.recipe, job.settings.hits):
                advance(run["qid"].n_unique())
                yield run.to_arrow()

        written = output.write(blocks(), queries=len(joined.qids))
    common = _warn_disjoint(shares)
    queries, hits = len(joined.qids), written.counts["rows"]
    text = f"{console.counted(query=queries, hit=hits)} of {len(job.runs)} runs; the runs share {common:.1%} of their"
    output.note(f"{text} documents; missing: {job.recipe.missing}", queries=queries, hits=hits)


def _warn_disjoint(shares: Sequence[np.ndarray]) -> float:
    """Return the mean share of the documents that the runs have in common; warn if there is none."""
    common = float(np.concatenate(shares).mean()) if shares else 0.0
    if shares and not common:
        problem = "the runs have no document in common; check that they are of one corpus"
        console.warn(problem, code="no-common-document")
    return common


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
    opened = [source.scorer(joined.qids, job.settings.device) for source in job.exact]
    with console.progress("score missing pairs", unit="pairs") as advance:
        yield from lists.complete(watched(), joined.qids, [_counted(scorer, advance) for scorer in opened])


def _counted(scorer: Scorer, advance: Callable[[int], None]) -> Scorer:
    def score(pairs: pl.DataFrame) -> pl.Series:
        scores = scorer(pairs)
        advance(len(pairs))
        return scores

    return score


def _check_scores(job: FusionInputs, joined: Lists, equal: bool) -> None:
    """Refuse distances; warn if one list dominates the sum, among those whose scores differ."""
    spreads: dict[str, float] = {}
    for number, (name, path) in enumerate(job.runs.items()):
        if joined.runs[number].rising > 0.5:
            problem = f"{path}: scores rise with the rank, as distances do; negate them"
            raise InputError(problem, code="scores-rise", path=path, run=name)
        if joined.runs[number].deviation > 0:
            spreads[name] = joined.runs[number].deviation
    if job.recipe.sums_raw_scores and equal and spreads and min(spreads.values()) * _WIDE < max(spreads.values()):
        narrow, wide = min(spreads, key=lambda name: spreads[name]), max(spreads, key=lambda name: spreads[name])
        text = f"the standard deviation of {wide}'s scores is {spreads[wide] / spreads[narrow]:,.0f} times that of"
        text = f"{text} {narrow}'s, so {wide} nearly decides alone; pass --weights, tune them with --tune, or use"
        console.warn(f"{text} --method minmax", code="unequal-spread", run=wide, other=narrow)


def _compare(job: FusionInputs, qrels: pl.DataFrame) -> None:
    measure = job.settings.measure
    single = {name: _alone(job, name, runs.open_run(path), qrels) for name, path in job.runs.items()}
    alone = {name: mean_of(values, measure) for name, values in single.items()}
    fused = mean_of(_values(job, "fused", runs.open_run(job.settings.output), qrels, job.settings.hits), measure)
    terminal.show_comparison(measure, alone, job.recipe.method, fused)


def _alone(job: FusionInputs, name: str, run: Run, qrels: pl.DataFrame) -> pl.DataFrame:
    """Return the value of every judged query in the hits of a run that a fusion reads and keeps."""
    return _values(job, name, run, qrels, min(job.settings.depth, job.settings.hits))


def _values(job: FusionInputs, name: str, run: Run, qrels: pl.DataFrame, hits: int) -> pl.DataFrame:
    """Return the value of every judged query, and note a range over the orders of equal scores."""
    hits_of_run, measures = retrieved(run, qrels, 0, job.remove_query), [job.settings.measure]
    judged = hits_of_run.judged.filter(pl.col("position") <= hits)
    note_ties(name, judged, qrels, measures)
    return evaluate_hits(judged, hits_of_run.lengths["qid"], qrels, measures)


# --------------------------------------------------------------------------------------------------------------- tuning


def _tune(job: FusionInputs, judged: Path | None) -> Path:
    if judged is None:
        problem = "--tune: needs --qrels, a file or a collection with --split; never the queries reported on"
        raise InputError(problem, code="missing-option", option="qrels")
    settings, inputs = job.settings, job.inputs() | {"qrels": judged}
    inputs |= {} if settings.machine is None else {"machine": settings.machine}
    output = artifacts.output_of(settings, Kind.WEIGHTS, inputs, job.options(), "fuse --tune")
    if not output.up_to_date:
        judgments = _judgments(job, judged)
        queries = judgments[0]["qid"].n_unique()
        if "folds" in settings.given:
            check_folds(settings.folds, judged, queries)
        tuned, reason = _tuned(job, judgments, judged)
        content = tuned.content() | {"no_prior": reason}
        sides = lineage.sides(job.runs)
        baseline = sides[1] if sides else content["best_single"]
        gains = tuned.gains_by_people
        compared = (baseline, tuned.alone[baseline]), ("hybrid", tuned.fair)
        verdict = Verdict.of(settings.measure, *compared, gains[baseline])
        content |= {"verdict": None if lineage.pseudo_queries(judged) else verdict.content()}
        looks = [Evidence.of(name, values).content() for name, values in gains.items()]
        content |= {"evidence": [] if lineage.pseudo_queries(judged) else looks}
        content |= {"pseudo_queries": kind} if (kind := lineage.pseudo_queries(judged)) else {}
        output.write_json(content, queries=queries, trials=len(tuned.table.choices))
    terminal.show_tuned(read_json(settings.output))
    if not is_nested():
        _note_next(job)
    return settings.output


def _judgments(job: FusionInputs, judged: Path) -> list[pl.DataFrame]:
    """Return the judgments of people, and those of a machine if it judged enough of the same queries.

    Those of the machine then begin with the queries of people, in the same order.
    """
    if job.settings.machine is None:
        return [judgments_of(judged, job.runs)]
    found = BothJudged.read("fuse", judged, job.settings.machine, job.runs)
    if len(found.both) < LEAST_QUERIES:
        return [found.people]
    frames = (found.of_both("fuse"), found.both), (found.machine, [*found.both, *found.others])
    return [pl.DataFrame({"qid": qids}).join(frame, on="qid", maintain_order="left") for frame, qids in frames]


def _note_next(job: FusionInputs) -> None:
    """Print the command that uses the weights: a retriever of the indexes of the runs, or, if unknown, a fused run."""
    settings, weights = job.settings, f"@{job.settings.output}"
    indexes = lineage.searched_indexes(job.runs.values())
    if len(indexes) > 1:
        output = settings.output.with_name(f"{settings.output.stem}-retriever")
        command = command_line(Compose(indexes, weights=weights, output=output))
    else:
        output = settings.output.with_name(f"{settings.output.stem}-fused.parquet")
        command = command_line(Fuse(settings.runs, weights=weights, output=output))
    console.note(f"fuse: to use these weights:\n{command}", code="next-command", command=command)


@dataclass(frozen=True)
class ByRater:
    """Values by the judgments of people, or of a machine.

    Attributes:
        choices: [choices, queries].
        runs: [runs, queries], of each run alone.
    """

    choices: Values
    runs: Values


def _tuned(job: FusionInputs, judgments: Sequence[pl.DataFrame], judged: Path) -> tuple[Tuned, str | None]:
    """Return the result of tuning, and the reason why no prior is used."""
    settings, qrels = job.settings, pl.concat(judgments)
    qids = qrels["qid"].unique(maintain_order=True)
    whole = [runs.open_run(path) for path in job.runs.values()]
    check_overlap(pl.concat([run.qids for run in whole]), qrels)
    opened = [run.of_queries(qids) for run in whole]
    Lists.of(opened, settings.depth).note_lengths("fuse", list(job.runs))
    alone = [_all_alone(job, opened, judgments[0])]
    with console.quiet():
        alone += [_all_alone(job, opened, of_machine) for of_machine in judgments[1:]]
    if not alone[0].any():
        problem = f"is 0 for every run and query of {judged}; pass judgments of these queries, or another measure"
        raise option_error("measure", settings.measure, problem, code="measure-always-zero", path=judged)
    for number, (name, run) in enumerate(zip(job.runs, opened, strict=True)):
        if not any(values[number].any() for values in alone) and retrieved(run, qrels, 0).judged.is_empty():
            console.warn(
                f"{name}: none of its hits has a judgment; check that its documents are of this corpus",
                code="no-judged-hit",
            )
    choices, values = _measured(job, opened, judgments)
    people, *machine = (ByRater(*pair) for pair in zip(values, alone, strict=True))
    corrected, by_people = _corrected(people, machine[0], list(job.runs)) if machine else (people, None)
    prior, reason = _prior(job, choices)
    table = Trials(choices, corrected.choices, prior, settings.prior_queries if prior is not None else 0.0)
    selected = select(table, settings.folds, settings.seed, lineage.dense_side(job.runs))
    chosen = choices[selected.row]
    recipes = (family.recipe for family in job.families if family.recipe.method == chosen.method)
    recipe = next(candidate for candidate in recipes if chosen.rrf_k in (None, candidate.rrf_k))
    recipe, of_runs = replace(recipe, weights=chosen.weights), dict(zip(job.runs, corrected.runs, strict=True))
    how = settings.measure, settings.folds, settings.seed, by_people
    return Tuned(table, selected, recipe, of_runs, qids.to_list(), *how), reason


def _all_alone(job: FusionInputs, opened: Sequence[Run], qrels: pl.DataFrame) -> Values:
    """Return the values of each run, [runs, queries]."""
    named = zip(job.runs, opened, strict=True)
    return np.stack([_alone(job, name, run, qrels)["value"].to_numpy() for name, run in named])


def _corrected(people: ByRater, machine: ByRater, names: Sequence[str]) -> tuple[ByRater, ByPeople]:
    """Correct the values of people with one weight of the machine, whose queries begin with theirs.

    Args:
        people, machine: see `_judgments`.
        names: names of the runs.

    Returns:
        The corrected values, and those by people.
    """
    queries, choices = people.choices.shape[1], len(people.choices)
    by_people, by_machine = (np.concatenate([rater.choices, rater.runs]) for rater in (people, machine))
    others = by_machine[:, queries:]
    made, weight = rectified(by_people, by_machine[:, :queries], others)
    of_runs = dict(zip(names, people.runs, strict=True))
    return ByRater(made[:choices], made[choices:]), ByPeople(people.choices, of_runs, others.shape[1], weight)


def _measured(
    job: FusionInputs, opened: Sequence[Run], judgments: Sequence[pl.DataFrame]
) -> tuple[list[Choice], list[Values]]:
    """Return all choices, and their values by each rater."""
    joined, settings = Lists.of(opened, job.settings.depth), job.settings
    _check_scores(job, joined, equal=False)
    shares: list[np.ndarray] = []
    blocks = {
        exact: list(_candidates(job, joined, shares, exact))
        for exact in {family.recipe.missing == "exact" for family in job.families}
    }
    choices: list[Choice] = []
    values: list[list[Values]] = []
    with console.progress("tune", unit="sets of weights") as advance:
        for family in job.families:
            more, by_rater = tuning.tabulate(
                family,
                blocks[family.recipe.missing == "exact"],
                joined.qids,
                judgments,
                settings.hits,
                lambda judged: evaluate_positions(judged, [settings.measure])["value"].to_numpy(),
                advance,
                job.remove_query,
            )
            choices += more
            values.append(by_rater)
    _warn_disjoint(shares)
    return choices, [np.concatenate(of_rater) for of_rater in zip(*values, strict=True)]


def _prior(job: FusionInputs, choices: Sequence[Choice]) -> tuple[Values | None, str | None]:
    """Return the prior of each choice; else None and the reason."""
    settings = job.settings
    if not settings.prior_queries:
        return None, "--prior-queries is 0"
    recipes = [family.recipe for family in job.families]
    if settings.normalize or any(recipe.missing != METHODS[recipe.method].missing for recipe in recipes):
        return None, "--normalize or --missing changes the methods"
    return prior_of(lineage.dense_side(job.runs), settings.measure, choices)


def _warn_tuned(job: FusionInputs, qids: pl.Series) -> None:
    """Warn if the runs contain queries that the weights were tuned on."""
    path = weights_path(job.settings.weights)
    if path is None:
        return
    tuned = read_retriever(path).tuning or {"judged": []} if is_retriever(path) else read_tuned(path)
    if tuned.get("keeps_untuned"):  # the judgments changed nothing
        return
    asked = qids.unique().to_list()
    if common := len(set(tuned["judged"]).intersection(asked)):
        text = f"{common:,} of the {len(asked):,} queries are those that {path} was tuned on; scores of these queries"
        text = f"{text} are too high to report"
        console.warn(text, code="tuned-on-queries", path=path, count=common, queries=len(asked))
