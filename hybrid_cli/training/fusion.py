"""Training of a fusion with one weight per query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console, runs
from hybrid_cli.artifacts.lineage import system_of
from hybrid_cli.collections import collection
from hybrid_cli.collections.searched import check_common
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import check_overlap, evaluate_hits, evaluate_positions
from hybrid_cli.evaluation.retrieved import retrieved
from hybrid_cli.fusion import features, learned, tuning
from hybrid_cli.fusion.features import Matrix, Sources
from hybrid_cli.fusion.fuser import Fuser
from hybrid_cli.fusion.learned import Fitted, Model
from hybrid_cli.fusion.lists import Lists, repeated
from hybrid_cli.fusion.methods import Recipe
from hybrid_cli.fusion.prior import prior_of
from hybrid_cli.fusion.selection import Choice, Table, Values, check_folds, interval, queries_to_tell, select
from hybrid_cli.fusion.tuning import Family
from hybrid_cli.runs import Run
from hybrid_cli.settings import TrainFusion

Blocks = Callable[[], Iterable[pl.DataFrame]]  # returns the candidates of all queries, at each call
ENOUGH = 50  # judged queries; the held-out gain of fewer is too noisy to prefer learned weights


@dataclass(frozen=True)
class FusionTraining:
    """The checked inputs of `train-fusion`.

    Attributes:
        settings: options.
        runs: two runs by name.
        families: methods to try.
        judged: path of the qrels.
        sources: sources of exact scores and texts; None without `--index`.
        remove_query: remove hits whose docid is the qid where runs are measured.
    """

    settings: TrainFusion
    runs: Mapping[str, Path]
    families: Sequence[Family]
    judged: Path
    sources: Sources | None
    remove_query: bool = False

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
        if "folds" in self.settings.given:
            check_folds(self.settings.folds, self.judged, queries)
        return qrels

    def _alone(self, opened: Sequence[Run], qrels: pl.DataFrame, queries: int) -> dict[str, float]:
        """Return the score of each run alone."""
        measure = self.settings.measure
        found = {}
        for name, run in zip(self.runs, opened, strict=True):
            hits = retrieved(run, qrels, 0, self.remove_query)
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
                more, found = tuning.tabulate(
                    family, blocks, joined.qids, qrels, settings.hits, measured, advance, self.remove_query
                )
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
        "folds": min(settings.folds, table.queries),
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
