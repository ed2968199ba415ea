"""`fuse`: fuse runs, or tune the weights of a fusion on qrels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import lineage
from hybrid_cli.artifacts.belonging import belongs_together, check_common, check_systems
from hybrid_cli.artifacts.exact import SearchedIndex, exact_sources
from hybrid_cli.artifacts.indexes import manifests_of
from hybrid_cli.artifacts.judged import RunJudgments
from hybrid_cli.artifacts.lineage import system_of
from hybrid_cli.artifacts.opening import open_index
from hybrid_cli.artifacts.output import is_nested
from hybrid_cli.artifacts.retrievers import (
    StoredRetriever,
    check_indexes,
    default_fusion,
    default_shares,
    index_paths,
    is_retriever,
    of_auto,
    read_retriever,
    rule_options,
)
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Compose, Fuse
from hybrid_cli.commands.fusion import RRF
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation.measures import check_overlap, evaluate_positions, mean_of, parse_measures
from hybrid_cli.evaluation.prediction_powered import rectified
from hybrid_cli.evaluation.retrieved import judged_values, retrieved
from hybrid_cli.evaluation.sequential import Evidence
from hybrid_cli.fusion import lists, tuning
from hybrid_cli.fusion.lists import Lists, Scorer
from hybrid_cli.fusion.methods import METHODS, FusionRecipe, method_name
from hybrid_cli.fusion.options import METHOD
from hybrid_cli.fusion.prior import shrunk
from hybrid_cli.fusion.selection import Choice, Trials, Values, check_folds, select
from hybrid_cli.fusion.tuning import MethodGrid
from hybrid_cli.fusion.weights import WEIGHTS, ByPeople, Tuned, chosen_weights, read_tuned, stored_recipe, weights_path
from hybrid_cli.inputs.json_values import read_json
from hybrid_cli.reporting import terminal
from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.retrieval.retriever import DefaultFusion
from hybrid_cli.runs import Run
from hybrid_cli.settings import Settings, command_line
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind

_PARAMETERS = ("method", "missing", "normalize", "rrf_k")


@stage(Fuse)
def fuse(settings: Fuse) -> Path:
    """Fuse runs, or with `tune` select method and weights of the fusion.

    Returns:
        Path of the fused run (Parquet), or of the weights (JSON).

    Raises:
        InputError: inputs or options cannot be used together.
    """
    job = FusionJob.of(settings)
    return _tune(job) if settings.tune else _fuse(job)


# --------------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class StoredFusion:
    """The fusion of `--weights @PATH`.

    Attributes:
        path: a retriever, or a file of `fuse --tune`.
        retriever: content of the retriever; None for a file.
        tuned: content of the file, or the tuning of the retriever.
    """

    path: Path
    retriever: StoredRetriever | None
    tuned: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path) -> StoredFusion:
        """Read a retriever or a file of weights."""
        if not is_retriever(path := of_auto(path)):
            return cls(path, None, read_tuned(path))
        retriever = read_retriever(path)
        return cls(path, retriever, retriever.tuning or {})

    def complete(self, settings: Fuse) -> Fuse:
        """Return the settings with depth and indexes of the retriever, unless they are given."""
        if self.retriever is None:
            return settings
        depth = {} if "depth" in settings.given else {"depth": self.retriever.depth}
        exact = self.retriever.missing == "exact" and not settings.index
        return settings.changed(**depth, **({"index": index_paths(self.path, self.retriever)} if exact else {}))

    def recipe(self, settings: Fuse, named: Mapping[str, Path]) -> FusionRecipe:
        """Return the recipe for runs, which the fusion must be of."""
        if self.retriever is not None:
            check_indexes(self.path, self.retriever, list(named.values()))
            return self.retriever.recipe
        values = settings.values()
        given = {name: values[name] for name in sorted(settings.given) if name in _PARAMETERS}
        recipe = stored_recipe(self.path, self.tuned, list(named), given)
        check_systems(self.path, [system_of(run) for run in named.values()])
        return recipe

    def warn_tuned_on(self, qids: pl.Series) -> None:
        """Warn about queries, each with one id, that the fusion was tuned on."""
        if self.tuned.get("keeps_untuned"):  # the judgments changed nothing
            return
        if common := len(set(self.tuned.get("judged", ())).intersection(qids)):
            text = f"{common:,} of the {len(qids):,} queries are those that {self.path} was tuned on; scores of these"
            text = f"{text} queries are too high to report"
            console.warn(text, code="tuned-on-queries", path=self.path, count=common, queries=len(qids))


@dataclass(frozen=True)
class FusionJob:
    """The settings with all that they leave to the runs, the retriever and the judgments.

    Attributes:
        settings: the settings, with judgments, depth and indexes.
        runs: the runs to fuse by name.
        families: methods and grids to try; of a fusion, the only one.
        exact: sources of exact scores.
        stored: the fusion of `--weights @PATH`.
        judged: the judgments of the runs.
    """

    settings: Fuse
    runs: dict[str, Path]
    families: list[MethodGrid]
    exact: list[SearchedIndex]
    stored: StoredFusion | None
    judged: RunJudgments | None

    @classmethod
    def of(cls, settings: Fuse) -> FusionJob:
        """Check the runs and the options."""
        named = runs.named_once(settings.runs)
        if len(named) < 2:
            raise InputError("fuse: needs two or more runs, got 1", code="too-few-runs", option="runs", value=1)
        parse_measures([settings.measure])
        path = weights_path(settings.weights)
        stored = None if path is None else StoredFusion.of(path)
        settings = settings if stored is None else stored.complete(settings)
        judged = None
        if settings.qrels is not None or settings.tune:
            judged = RunJudgments.of("fuse", settings.qrels, settings.split, named, settings.machine)
        if settings.tune and judged is None:
            problem = "--tune: needs --qrels, a file or a collection with --split; never the queries reported on"
            raise InputError(problem, code="missing-option", option="qrels")
        if judged is not None and judged.assumed is not None:
            settings = settings.changed(qrels=judged.assumed.collection, split=judged.assumed.name)
        families = (
            families_to_try(settings, len(named))
            if settings.tune
            else [MethodGrid(_recipe(settings, named, stored), "linear")]
        )
        rules = dict.fromkeys(family.recipe.missing for family in families)
        rule = "exact" if "exact" in rules else next(iter(rules))
        settings.check_facts(f"--missing is {rule}", rule=f"--missing {rule}")
        belongs_together(named.values(), corpus=None if judged is None else judged.corpus, queries=True)
        return cls(settings, named, families, _exact_sources(named, families, settings), stored, judged)

    @property
    def recipe(self) -> FusionRecipe:
        """Return the recipe of a fusion; of a tuning, the first method."""
        return self.families[0].recipe

    @property
    def remove_query(self) -> bool:
        """Return whether hits whose docid is the qid are removed where runs are measured."""
        return self.judged is not None and self.judged.remove_query

    def inputs(self) -> dict[str, Path]:
        """Return the inputs that affect the result, by role with the position of the run."""
        files = {f"run {number}": path for number, path in enumerate(self.runs.values(), 1)}
        for number, source in enumerate(self.exact, 1):
            files |= {f"index {number}": source.index, f"queries {number}": source.queries}
        return files | ({} if self.stored is None else {WEIGHTS: self.stored.path})

    def options(self) -> dict[str, Any]:
        """Return the recorded options; `measure` and `split` affect only tuning."""
        recorded = self.settings.recorded()
        if self.settings.tune:
            unused: tuple[str, ...] = (*_PARAMETERS, "method_options")
            recipes = [family.recipe for family in self.families]
            used = {
                "methods": [_parameters(recipe) for recipe in recipes],
                "grid": [family.grid for family in self.families],
                "choice": "of the first method",  # before, of the best one
            } | ({"remove_query": True} if self.remove_query else {})
        else:
            unused, used = ("measure", "split", "tune", "method_options"), _parameters(self.recipe)
            used |= {"weights": list(self.recipe.weights)}
        return {name: value for name, value in recorded.items() if name not in unused} | used


def families_to_try(settings: Fuse, runs: int) -> list[MethodGrid]:
    """Return the methods that `fuse --tune` tries.

    Args:
        settings: `--method` if it was given, else `--methods`: `auto` is the weighted sum of exact scores with
            `--index`, else min-max.
        runs: number of runs.

    Raises:
        InputError: an unknown method, or options that exclude each other.
    """
    recipes, methods = [], _methods(settings)
    settings.check_facts(f"--tune tries {', '.join(methods)}", tried=RRF if "rrf" in methods else "")
    for method in methods:
        missing = settings.missing or METHODS[method].missing
        more = settings.normalize, settings.rrf_k, rule_options(method, settings.method_options)
        recipes.append(FusionRecipe(method, (1.0,) * runs, missing, *more))
    equal = {METHOD: (1 / runs,) * runs}  # of the untuned fusion
    return [
        MethodGrid(
            recipe,
            tuning.default_grid(recipe) if settings.grid == "auto" else settings.grid,
            settings.step,
            untuned=equal.get(recipe.method, ()),
        )
        for recipe in recipes
    ]


def _methods(settings: Fuse) -> list[str]:
    if "method" in settings.given:
        return [settings.method]
    if "normalize" in settings.given:
        reason = "needed with --tune and --normalize; other methods have a fixed normalization"
        raise option_error("method", None, reason, code="missing-option")
    if list(settings.methods) == ["auto"]:
        return ["weighted-sum" if settings.index else METHOD]
    return list(dict.fromkeys(method_name(name, "--methods") for name in settings.methods))


def _recipe(settings: Fuse, named: Mapping[str, Path], stored: StoredFusion | None) -> FusionRecipe:
    """Return the recipe of the options, or of `--weights @FILE`."""
    if stored is not None:
        recipe = stored.recipe(settings, named)
        return replace(recipe, options=rule_options(recipe.method, {**recipe.options, **settings.method_options}))
    missing, equal = settings.missing or METHODS[settings.method].missing, (1.0,) * len(named)
    more = settings.normalize, settings.rrf_k, rule_options(settings.method, settings.method_options)
    recipe = FusionRecipe(settings.method, equal, missing, *more)
    return chosen_weights(settings.weights, recipe, list(named))


def _parameters(recipe: FusionRecipe) -> dict[str, Any]:
    parameters: dict[str, Any] = {"method": recipe.method, "missing": recipe.missing, "normalize": recipe.normalization}
    parameters |= {"method_options": dict(recipe.options)} if recipe.options else {}
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


def _fuse(job: FusionJob) -> Path:
    """Write the fused run, and print its measure next to those of the runs."""
    inputs, options = job.inputs(), job.options()
    output = artifacts.output_of(job.settings, Kind.RUN, inputs, options)
    judged = None if job.judged is None else job.judged.people(job.runs)
    if not output.up_to_date:
        _write(job, output, judged)
    if judged is not None:
        _compare(job, judged)
    return output.path


def _write(job: FusionJob, output: artifacts.Output, judged: pl.DataFrame | None) -> None:
    opened = {path: runs.open_run(path) for path in job.runs.values()}
    joined = Lists.of(list(opened.values()), job.settings.depth)
    if job.stored is not None:
        job.stored.warn_tuned_on(joined.qids)
    check_common({path: run.qids for path, run in opened.items()})
    if judged is not None:
        for path, run in opened.items():
            check_overlap(run.qids, judged, path)
    joined.check_scores(job.runs, job.recipe, equal=job.settings.weights is None)
    if job.recipe.missing != "exact":  # which completes the lists
        joined.note_lengths("fuse", list(job.runs))
    shares: list[np.ndarray] = []
    with console.progress("fuse", len(joined.qids), "queries") as advance:

        def blocks() -> Iterator[Any]:
            candidates = joined.candidates(_scorers(job, joined.qids), shares)
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


def _scorers(job: FusionJob, qids: pl.Series) -> list[Scorer]:
    """Open the sources of exact scores."""
    return [source.scorer(qids, job.settings.device, job.settings.threads) for source in job.exact]


def _compare(job: FusionJob, qrels: pl.DataFrame) -> None:
    measure = job.settings.measure
    single = {name: _alone(job, name, runs.open_run(path), qrels) for name, path in job.runs.items()}
    alone = {name: mean_of(values, measure) for name, values in single.items()}
    fused = runs.open_run(job.settings.output)
    values = judged_values("fused", fused, qrels, measure, job.settings.hits, job.remove_query)
    score = mean_of(values, measure)
    terminal.show_comparison(measure, alone, job.recipe.method, score)


def _alone(job: FusionJob, name: str, run: Run, qrels: pl.DataFrame) -> pl.DataFrame:
    """Return the value of every judged query in the hits of a run that a fusion reads and keeps."""
    hits = min(job.settings.depth, job.settings.hits)
    return judged_values(name, run, qrels, job.settings.measure, hits, job.remove_query)


# --------------------------------------------------------------------------------------------------------------- tuning


def _tune(job: FusionJob) -> Path:
    assert job.judged is not None
    settings, judged, options = job.settings, job.judged, job.options()
    inputs = job.inputs() | {"qrels": judged.path} | ({} if judged.machine is None else {"machine": judged.machine})
    output = artifacts.output_of(settings, Kind.WEIGHTS, inputs, options, "fuse --tune")
    if not output.up_to_date:
        judgments = judged.by_rater("fuse", job.runs)
        queries = judgments[0]["qid"].n_unique()
        if "folds" in settings.given:
            check_folds(settings.folds, judged.path, queries)
        content = _content(job, judgments, judged)
        output.write_json(content, queries=queries, trials=len(content["trials"]))
    terminal.show_tuned(tuned := read_json(settings.output))
    if not is_nested():
        terminal.show_verdict(tuned)
        _note_next(job)
    return settings.output


def _content(job: FusionJob, judgments: Sequence[pl.DataFrame], judged: RunJudgments) -> dict[str, Any]:
    """Return the result of tuning, with the evidence by judgments of people; pseudo-queries are no evidence.

    Args:
        job: the runs and methods.
        judgments: see `RunJudgments.by_rater`.
        judged: the judgments.
    """
    sides = lineage.sides(job.runs) if len(job.runs) == 2 else None
    learned = sides is not None and system_of(job.runs[sides[1]]).encoder is not None
    dense = None if sides is None or learned else list(job.runs).index(sides[0])
    default = _default(job)
    tuned, reason = _tuned(job, judgments, judged.path, dense, default)
    content = tuned.content() | {"scaled_by": default.queries, "no_prior": reason, "verdict": None, "evidence": {}}
    if judged.pseudo_queries is not None:
        return content | {"pseudo_queries": judged.pseudo_queries}
    baseline, gains = content["best_single"], tuned.gains_by_people
    compared = (baseline, tuned.alone[baseline]), ("hybrid", tuned.selected.fair)
    content["verdict"] = Verdict.of(job.settings.measure, *compared, gains[baseline]).content()
    return content | {"evidence": {name: Evidence.of(values).content() for name, values in gains.items()}}


def _note_next(job: FusionJob) -> None:
    """Print the command that uses the weights: a retriever of the indexes of the runs, or, if unknown, a fused run."""
    settings, weights = job.settings, f"@{job.settings.output}"
    indexes = lineage.searched_indexes(job.runs.values())
    if len(indexes) > 1:
        output = settings.output.with_name(f"{settings.output.stem}-retriever")
        following: Settings = Compose(indexes, weights=weights, output=output)
    else:
        output = settings.output.with_name(f"{settings.output.stem}-fused.parquet")
        following = Fuse(settings.runs, weights=weights, output=output)
    command = command_line(following)
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


def _tuned(
    job: FusionJob, judgments: Sequence[pl.DataFrame], judged: Path, dense: int | None, default: DefaultFusion
) -> tuple[Tuned, str | None]:
    """Return the result of tuning, and the reason why no prior is used; `dense` is the number of the dense run."""
    settings, qrels = job.settings, pl.concat(judgments)
    qids = qrels["qid"].unique(maintain_order=True)
    whole = [runs.open_run(path) for path in job.runs.values()]
    check_overlap(pl.concat([run.qids for run in whole]), qrels)
    opened = [run.of_queries(qids) for run in whole]
    joined = Lists.of(opened, settings.depth)
    alone = []
    for number, of_rater in enumerate(judgments):
        with console.quiet() if number else nullcontext():
            named = zip(job.runs, opened, strict=True)
            alone.append(np.stack([_alone(job, name, run, of_rater)["value"].to_numpy() for name, run in named]))
    if not alone[0].any():
        problem = f"no hit of any run has a grade above 0 in {judged}; pass judgments of these queries and documents"
        raise option_error("measure", settings.measure, problem, code="measure-always-zero", path=judged)
    for number, (name, run) in enumerate(zip(job.runs, opened, strict=True)):
        if not any(values[number].any() for values in alone) and retrieved(run, qrels, 0).judged.is_empty():
            console.warn(
                f"{name}: none of its hits has a judgment; check that its documents are of this corpus",
                code="no-judged-hit",
            )
    joined.note_lengths("fuse", list(job.runs))
    joined.check_scores(job.runs, job.recipe, equal=False)
    families = [
        replace(each, scales=default.scales, untuned=default.shares) if _is_exact(each) else each
        for each in job.families
    ]
    choices, values = _measured(job, families, joined, judgments)
    people, *machine = (ByRater(*pair) for pair in zip(values, alone, strict=True))
    corrected, by_people = _corrected(people, machine[0], list(job.runs)) if machine else (people, None)
    rows, tables = [slice(0, 0)], list[Trials]()
    reason = _no_prior(job, families[0], dense)
    for family, tried in zip(families, choices, strict=True):
        rows.append(slice(rows[-1].stop, rows[-1].stop + len(tried)))
        with_prior = dense if not tables and reason is None else None
        tables.append(shrunk(tried, corrected.choices[rows[-1]], family.untuned, with_prior, settings.measure))
    if tables[0].prior is None:
        reason = reason or "they are of other methods"
    elif machine:
        prior = tables[0].prior.of_values(people.choices[rows[1]], tables[0].values)
        tables[0] = replace(tables[0], prior=prior)
    selected = select(tables, settings.folds, settings.seed)
    number = next(number for number, table in enumerate(tables) if table is selected.table)
    if by_people is not None:
        by_people = replace(by_people, values=by_people.values[rows[number + 1]])
    recipe = replace(families[number].recipe, weights=selected.table.choices[selected.row].weights)
    of_runs = dict(zip(job.runs, corrected.runs, strict=True))
    how = settings.measure, settings.folds, settings.seed, families[number].scales or None, by_people
    return Tuned(tables, selected, recipe, of_runs, qids.to_list(), *how), reason


def _corrected(people: ByRater, machine: ByRater, names: Sequence[str]) -> tuple[ByRater, ByPeople]:
    """Correct the values of people with one weight of the machine, whose queries begin with theirs.

    Args:
        people, machine: see `RunJudgments.by_rater`.
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
    job: FusionJob, families: Sequence[MethodGrid], joined: Lists, judgments: Sequence[pl.DataFrame]
) -> tuple[list[list[Choice]], list[Values]]:
    """Return the choices of each family, and the values of all of them by each rater."""
    settings = job.settings
    shares: list[np.ndarray] = []
    scorers = _scorers(job, joined.qids)
    blocks = {
        exact: list(joined.candidates(scorers if exact else [], shares))
        for exact in {family.recipe.missing == "exact" for family in families}
    }
    choices: list[list[Choice]] = []
    values: list[list[Values]] = []
    with console.progress("tune", unit="sets of weights") as advance:
        for family in families:
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
            choices.append(more)
            values.append(by_rater)
    _warn_disjoint(shares)
    return choices, [np.concatenate(of_rater) for of_rater in zip(*values, strict=True)]


def _is_exact(family: MethodGrid) -> bool:
    return family.grid == "scaled" and family.recipe.missing == "exact" and family.recipe.sums_raw_scores


def _default(job: FusionJob) -> DefaultFusion:
    """Return the fusion of `compose` without judgments; without scales if no exact sum is tuned, or texts are gone."""
    indexes = [source.index for source in job.exact]
    manifests = manifests_of(indexes)
    if not any(map(_is_exact, job.families)):
        return DefaultFusion(())
    changed = {"device": job.settings.device, "threads": job.settings.threads}
    sides = {str(each.index): open_index(each.index, each.options.changed(**changed)) for each in job.exact}
    try:
        return default_fusion(sides, manifests)
    except InputError:  # no texts, of which the scales are
        return DefaultFusion(default_shares(manifests))


def _no_prior(job: FusionJob, family: MethodGrid, dense: int | None) -> str | None:
    """Return why the curves of other collections are not those of the first method; None if they may be."""
    recipe = family.recipe
    if dense is None:
        return "they are of two runs, one of BM25 and one of a dense index"
    if recipe.normalization or recipe.missing != METHODS[recipe.method].missing:
        return "--normalize or --missing changes the method"
    if recipe.sums_raw_scores and family.grid != "scaled":
        return f"they are of other weights than those of --grid {family.grid}"
    if recipe.sums_raw_scores and not family.scales:
        return "the scores have no scale: the texts of the documents are not where the indexes record them"
    return None
