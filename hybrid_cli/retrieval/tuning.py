"""Weights of a fusion in memory, chosen on judged queries as `fuse --tune` chooses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from hybrid_cli.errors import InputError, named_keywords
from hybrid_cli.evaluation.measures import QrelsLike, check_overlap, evaluate_positions, qrels_table
from hybrid_cli.fusion import tuning
from hybrid_cli.fusion.frames import recipe_of
from hybrid_cli.fusion.lists import Lists
from hybrid_cli.fusion.options import HITS, MEASURE, METHOD
from hybrid_cli.fusion.prior import shrunk
from hybrid_cli.fusion.selection import select
from hybrid_cli.fusion.tuning import FOLDS, SEED, MethodGrid
from hybrid_cli.fusion.weights import Tuned
from hybrid_cli.runs import Run, RunLike, run_table


@dataclass(frozen=True)
class JudgedLists:
    """The candidates of judged queries.

    Attributes:
        names: names of the runs, in the order of the weights.
        blocks: the candidates, in the form of `fusion.lists`.
        qids: ids of the queries, by number.
        judged: qid, docid, relevance.
        depth: hits of each run that are fused.
    """

    names: Sequence[str]
    blocks: Sequence[pl.DataFrame]
    qids: pl.Series
    judged: pl.DataFrame
    depth: int

    def tuned(self, grid: MethodGrid, measure: str, dense: int | None) -> Tuned:
        """Return the choice of weights and its evidence.

        Args:
            grid: method and weights to try.
            measure: measure to maximize.
            dense: number of the dense run of two, of which the other is BM25; None for other runs.

        Raises:
            InputError: no hit of any query is relevant.
        """

        def values(judged: pl.DataFrame) -> np.ndarray:
            return evaluate_positions(judged, [measure])["value"].to_numpy()

        choices, (tried,) = tuning.tabulate(grid, self.blocks, self.qids, [self.judged], self.depth, values)
        if not tried.any():
            problem = "no hit of any judged query is relevant; check that the judgments are of these documents"
            raise InputError(problem, code="measure-always-zero", measure=measure)
        table = shrunk(choices, tried, grid.untuned, dense, measure)
        selected = select([table], FOLDS, SEED)
        recipe = replace(grid.recipe, weights=choices[selected.row].weights)
        singles = {choice.single: row for row, choice in enumerate(choices) if choice.single is not None}
        alone = {name: tried[singles[number]] for number, name in enumerate(self.names) if number in singles}
        qids = self.judged["qid"].unique(maintain_order=True).to_list()
        return Tuned([table], selected, recipe, alone, qids, measure, FOLDS, SEED, grid.scales)


@named_keywords
def tune(
    runs: Mapping[str, RunLike], qrels: QrelsLike, method: str = METHOD, measure: str = MEASURE, depth: int = HITS
) -> Tuned:
    """Choose the weights of a fusion of runs on judged queries, as `fuse --tune` does for runs of unknown origin.

    Args:
        runs: name -> run; see `fuse`.
        qrels: judgments; see `evaluate`.
        method: fusion method; minmax by default.
        measure: measure to maximize; nDCG@10 by default.
        depth: hits read from each run; 1000 by default.

    Returns:
        `recipe.weights`, `shares`, the held-out score and the plateau; `content()` has all figures.

    Raises:
        InputError: fewer than two runs, no common query, no relevant hit, or a method that needs indexes.

    Example:
        >>> from hybrid_cli import tune
        >>> runs = {"a": {"q": {"x": 2.0, "y": 1.0}}, "b": {"q": {"y": 2.0, "x": 1.0}}}
        >>> tune(runs, {"q": {"x": 1}}).recipe.weights  # fewer than ten judged queries change nothing
        (0.5, 0.5)
    """
    if not isinstance(runs, Mapping) or len(runs) < 2:
        raise InputError("tune: needs two or more runs by name, such as {'bm25': a, 'dense': b}", code="too-few-runs")
    recipe, known = recipe_of(list(runs), method), qrels_table(qrels)
    if recipe.missing == "exact":
        problem = f"{recipe.method}: needs the exact scores of indexes; use `Retriever.tune`"
        raise InputError(problem, code="needs-indexes")
    tables = {name: run_table(run, name) for name, run in runs.items()}
    check_overlap(pl.concat([table["qid"] for table in tables.values()]).unique(), known)
    of_judged = [Run.of(table.join(known, on="qid", how="semi", maintain_order="left")) for table in tables.values()]
    joined = Lists.of(of_judged, depth)
    grid = MethodGrid(recipe, tuning.default_grid(recipe))
    if recipe.method == METHOD:
        grid = MethodGrid(recipe, grid.grid, untuned=(1 / len(runs),) * len(runs))
    return JudgedLists(list(runs), list(joined.blocks()), joined.qids, known, depth).tuned(grid, measure, None)
