"""The route of the comparison: values of all judged queries in every column, or the overlap of their lists."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import polars as pl
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hybrid_cli.evaluation.buckets import easy_hard, query_length
from hybrid_cli.evaluation.complementarity import first_relevant, rbo
from hybrid_cli.evaluation.measures import evaluate_run, judged_hits, parse_measures
from hybrid_cli.fusion.options import HITS
from hybrid_cli.reporting.comparison import content, judgments
from hybrid_cli.server.live import Live
from hybrid_cli.server.state import State

DEPTH = 100  # hits of each column, unless the measure needs more
_MOST_QUERIES = 2000
_LEVEL = 1  # lowest relevant grade


class Comparison:
    """The runs of the queries in every column, searched once for an open retriever."""

    def __init__(self, state: State):
        self._state = state
        self._runs: dict[tuple[int, int], tuple[Live, pl.DataFrame, dict[str, pl.DataFrame]]] = {}

    def content(self, measure: str | None = None) -> dict[str, Any]:
        """Return the values of each query, of judged ones if there are any, else the overlap of each two lists.

        Args:
            measure: name of a measure; None for that of the server.

        Raises:
            InputError: unknown measure.
        """
        measure = measure or self._state.settings.measure
        cutoff = parse_measures([measure])[0].cutoff or HITS
        live, qrels = self._state.live, self._state.qrels()
        judged, queries = len(qrels) > 0, self._state.queries
        queries = queries.join(qrels, on="qid", how="semi", maintain_order="left") if judged else queries
        queries = queries.head(_MOST_QUERIES)
        qrels = qrels.join(queries, on="qid", how="semi")
        depth = max(DEPTH, cutoff) if judged else DEPTH
        runs = self._searched(live, queries, depth)
        buckets = [query_length(queries)]
        if judged and "lexical" in live.kinds:
            lexical = live.sides[live.kinds.index("lexical")]
            buckets.append(easy_hard(first_relevant(runs[lexical], qrels, _LEVEL), lexical))
        values = [_values(run, qrels, measure) for run in runs.values()] if judged else []
        compared = content(queries, live.systems, measure, _LEVEL, buckets, values) | {"depth": depth}
        if not judged:
            return compared | {"overlaps": _overlaps(runs, queries)}
        positions = [run.select("qid", "docid", position="rank") for run in runs.values()]
        of_query = judgments([judged_hits(hits, qrels) for hits in positions], _LEVEL)
        for row in compared["queries"]:
            row |= of_query[row["qid"]]
        return compared

    def _searched(self, live: Live, queries: pl.DataFrame, depth: int) -> Mapping[str, pl.DataFrame]:
        known, asked, runs = self._runs.get((id(live), depth), (None, None, {}))
        if known is not live or asked is None or not asked.equals(queries):
            runs = {system: live.search(queries, depth, system) for system in live.systems}
            self._runs = {(id(live), depth): (live, queries, runs)}
        return runs


def _values(run: pl.DataFrame, qrels: pl.DataFrame, measure: str) -> dict[str, float]:
    if not len(run):
        return {}
    return dict(evaluate_run(run, qrels, [measure], _LEVEL).select("qid", "value").iter_rows())


def _overlaps(runs: Mapping[str, pl.DataFrame], queries: pl.DataFrame) -> dict[str, list[float]]:
    """Return the rank-biased overlap of the lists of every two columns, by query; 0 for lists without hits."""
    found = {}
    for (first, run), (second, other) in combinations(enumerate(runs.values()), 2):
        overlap = queries.join(rbo(run, other), on="qid", how="left", maintain_order="left")
        found[f"{first},{second}"] = overlap["value"].fill_null(0.0).to_list()
    return found


def routes(state: State) -> list[Route]:
    """Return the route of `/api/comparison`."""
    comparison = Comparison(state)

    async def handler(request: Request) -> Response:
        content = await run_in_threadpool(comparison.content, request.query_params.get("measure"))
        return await run_in_threadpool(JSONResponse, content)

    return [Route("/api/comparison", handler)]
