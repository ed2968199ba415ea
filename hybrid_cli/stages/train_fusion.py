"""`train-fusion`: train a fusion with one weight per query on judged queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from hybrid_cli.evaluation.measures import check_overlap, evaluate_hits, evaluate_positions, parse_measures
from hybrid_cli.evaluation.retrieved import retrieved
from hybrid_cli.fusion import features, learned, tuning
from hybrid_cli.fusion.features import Matrix, Sources
from hybrid_cli.fusion.fuser import LINEAR, Fuser, read_fuser
from hybrid_cli.fusion.learned import Fitted, Model
from hybrid_cli.fusion.lists import Lists, repeated
from hybrid_cli.fusion.methods import METHODS, Recipe
from hybrid_cli.fusion.prior import prior_of
from hybrid_cli.fusion.selection import Choice, Table, Values, check_folds, interval, queries_to_tell, select
from hybrid_cli.fusion.tuning import Family
from hybrid_cli.indexes.exact import exact_scorer, exact_sources, limit_threads, texts_of
from hybrid_cli.reporting import terminal
from hybrid_cli.runs import Run
from hybrid_cli.settings import Fuse, TrainFusion, stage

Blocks = Callable[[], Iterable[pl.DataFrame]]  # returns the candidates of all queries, at each call

ENOUGH = 50  # judged queries; the held-out gain of fewer is too noisy to prefer learned weights


@stage(TrainFusion)
def train_fusion(settings: TrainFusion) -> Path:
    """Train a fusion with one weight per query.

    Returns:
        Path of the fuser.

    Raises:
        InputError: not two runs of the same queries, or judgments that cannot train a fusion.
    """
    named = runs.named_once(settings.runs)
    if len(named) != 2:
        raise InputError(f"train-fusion: needs two runs, got {len(named)}; `fuse --tune` takes more")
    parse_measures([settings.measure])
    families = _families(settings)
    refuse_mixed(named)
    judged = collection.qrels_path(settings.qrels, settings.split)
    refuse_other_judgments(named.values(), settings.qrels)
    override = collection.queries_path(settings.queries, settings.split) if settings.queries is not None else None
    exact = exact_sources(named, settings.index, override) if settings.index else []
    inputs = {f"run {number}": path for number, path in enumerate(named.values(), 1)}
    for number, source in enumerate(exact, 1):
        inputs |= {f"index {number}": source.index, f"queries {number}": source.queries}
    output = artifacts.output_of(settings, Kind.FUSER, inputs | {"qrels": judged})
    if not output.up_to_date:
        limit_threads(settings.threads)
        sources = (
            Sources([exact_scorer(each, device=settings.device) for each in exact], *texts_of(exact)) if exact else None
        )
        job = _Job(settings, named, families, judged, sources)
        with output.folder() as (folder, counts):
            fuser, report = job.trained()
            fuser.save(folder, report)
            counts |= {"queries": len(fuser.judged), "trees": len(fuser.model.trees)}
    terminal.show_fuser(*read_fuser(settings.output))
    return settings.output


def _families(settings: TrainFusion) -> list[Family]:
    """Return the methods to try: sums of weighted normalized scores."""
    found = tuning.families(Fuse(settings.runs, output=settings.output, tune=True, methods=settings.methods), 2)
    for family in found:
        method = METHODS[family.recipe.method]
        if method.rule not in LINEAR or family.recipe.missing == "exact" or family.grid != "linear":
            allowed = (name for name, each in METHODS.items() if each.rule in LINEAR and each.normalization != "none")
            raise InputError(
                f"--methods {family.recipe.method}: has no weight per query; choose among {', '.join(allowed)}"
            )
    return found


@dataclass(frozen=True)
class _Job:
    settings: TrainFusion
    runs: Mapping[str, Path]
    families: Sequence[Family]
    judged: Path
    sources: Sources | None

    def trained(self) -> tuple[Fuser, dict[str, Any]]:
        """Return the fuser, and the report of its training."""
        settings, names = self.settings, list(self.runs)
        qrels = self._qrels()
        qids = qrels["qid"].unique(maintain_order=True)
        whole = [runs.open_run(path) for path in self.runs.values()]
        check_overlap(pl.concat([run.qids for run in whole]), qrels)
        opened = [run.of_queries(qids) for run in whole]
        check_common({path: run.qids for path, run in zip(self.runs.values(), opened, strict=True)})
        alone = self._alone(opened, qrels, len(qids))
        joined = Lists.of(opened, settings.depth)
        joined.note_lengths("train-fusion", names)
        blocks = repeated(joined.blocks, joined)
        table = self._table(blocks, joined, qrels)
        asked = evaluate_positions(qrels.with_columns(position=pl.lit(None, pl.Int64)), [settings.measure])["qid"]
        features_, values = self._features(blocks, joined.qids, asked)
        selected = select(table, settings.folds, settings.seed)
        fixed, learned_ = learned.held_out(table, values, settings.folds, settings.seed)
        rows, fitted = learned.fit_method(
            table, values, selected.row, np.ones(table.queries, dtype=bool), settings.seed
        )
        report = _report(settings, table, selected.row, (fixed, learned_), alone)
        kind = collection.pseudo_queries(self.judged)
        kept = (
            report["learned"] and bool(fitted.model.trees) and not kind
        )  # no gain on real queries (docs/no-labels.md)
        report |= {"learned": kept} | _described(fitted, features_, table.choices[selected.row])
        if kind:
            report["pseudo_queries"] = kind
        model = fitted.model
        if not kept:
            model = Model(model.means, model.curves, [], model.fixed, 0.0)
        choice = table.choices[selected.row]
        recipe = next(each.recipe for each in self.families if _is_of(each.recipe, choice))
        shares = [table.choices[row].weights[1] for row in rows]
        systems = [system_of(path) for path in self.runs.values()]
        indexed = self.sources is not None
        return Fuser(
            names, systems, joined.longest, choice.method, recipe.missing, choice.rrf_k, shares, features_, indexed,
            asked.to_list(), model,
        ), report  # fmt: skip

    def _features(self, blocks: Blocks, qids: pl.Series, asked: pl.Series) -> tuple[list[str], Matrix]:
        """Return names and values of the features of the queries `asked`, also of queries without hits."""
        every = pl.concat([qids, asked.filter(~asked.is_in(qids.implode()))])
        names, values = features.collected(blocks(), every, self.sources)
        numbers = pl.DataFrame({"qid": every}).with_row_index("number")
        rows = asked.to_frame("qid").join(numbers, on="qid", how="left", maintain_order="left")["number"]
        return names, values[rows.to_numpy()]

    def _qrels(self) -> pl.DataFrame:
        """Return the judgments; refuse too few queries."""
        qrels = collection.read_qrels(self.judged)
        queries = qrels["qid"].n_unique()
        if queries < 2:
            raise InputError(f"train-fusion: {self.judged} has a single judged query; judge more, or use `fuse --tune`")
        check_folds(self.settings.folds, self.judged, queries)
        return qrels

    def _alone(self, opened: Sequence[Run], qrels: pl.DataFrame, queries: int) -> dict[str, float]:
        """Return the score of each run alone."""
        measure = self.settings.measure
        found = {}
        for name, run in zip(self.runs, opened, strict=True):
            hits = retrieved(run, qrels, 0)
            values = evaluate_hits(hits.judged, hits.lengths["qid"], qrels, [measure])["value"]
            found[name] = float(values.to_numpy().mean())
        if not any(found.values()):
            raise InputError(
                f"train-fusion: {measure} of every run is 0 for {console.counted(**{'judged query': queries})} of "
                f"{self.judged}; pass the judgments of these runs' queries, or another --measure"
            )
        return found

    def _table(self, blocks: Blocks, joined: Lists, qrels: pl.DataFrame) -> Table:
        """Return the values of all choices of all methods."""
        settings = self.settings
        for run, path in zip(joined.runs, self.runs.values(), strict=True):
            if run.rising > 0.5:
                raise InputError(f"{path}: scores rise with the rank, as distances do; negate them")

        def measured(judged: pl.DataFrame) -> np.ndarray:
            return evaluate_positions(judged, [settings.measure])["value"].to_numpy()

        choices: list[Choice] = []
        values: list[Values] = []
        with console.progress("train-fusion", unit="sets of weights") as advance:
            for family in self.families:
                more, found = tuning.tabulate(family, blocks, joined.qids, qrels, settings.hits, measured, advance)
                choices += more
                values.append(found)
        prior = prior_of(self.runs, settings.measure, choices)[0] if settings.prior_queries else None
        return Table(choices, np.concatenate(values), prior, settings.prior_queries if prior is not None else 0.0)


def _is_of(recipe: Recipe, choice: Choice) -> bool:
    return recipe.method == choice.method and choice.rrf_k in (None, recipe.rrf_k)


def _report(
    settings: TrainFusion, table: Table, row: int, scores: tuple[Values, Values], alone: Mapping[str, float]
) -> dict[str, Any]:
    """Return the held-out scores of fixed and learned weights, and the decision between them."""
    fixed, per_query = scores
    gains = per_query - fixed
    ends = interval(gains)
    family = [number for number, choice in enumerate(table.choices) if choice.family == table.choices[row].family]
    return {
        "measure": settings.measure,
        "queries": table.queries,
        "alone": dict(alone),
        "fixed": float(fixed.mean()),
        "per_query": float(per_query.mean()),
        "best_per_query": float(table.values[family].max(0).mean()),
        "gain": float(gains.mean()),
        "gain_interval": ends,
        "queries_to_tell": queries_to_tell(gains),
        "learned": bool(table.queries >= ENOUGH and ends is not None and ends[0] > 0),
        "enough": table.queries >= ENOUGH,
        "folds": settings.folds,
    }


def _described(fitted: Fitted, names: Sequence[str], choice: Choice) -> dict[str, Any]:
    """Return the features of a model, the most important first."""
    order = np.argsort(-fitted.importance, kind="stable")
    return {
        "family": choice.family,
        "importance": [
            [names[at], round(float(fitted.importance[at]), 4), round(float(fitted.direction[at]), 3)] for at in order
        ],
    }
