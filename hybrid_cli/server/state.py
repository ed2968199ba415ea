"""State of the server: the open retriever, its batches of queries, and figures for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hybrid_cli import console
from hybrid_cli.artifacts.indexes import corpora_of
from hybrid_cli.artifacts.judged import collection_of
from hybrid_cli.artifacts.retrievers import is_retriever, of_auto
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Serve
from hybrid_cli.errors import HybridError, InputError, path_error
from hybrid_cli.server import answers
from hybrid_cli.server.batching import MOST, Batches
from hybrid_cli.server.judging import Judging
from hybrid_cli.server.live import Engines, Live
from hybrid_cli.server.security import CONDITION, Refused, read_conditions
from hybrid_cli.storage import layout

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_WATCH_SECONDS = 1.0
_WARM_UP = "warm up"  # a query that loads the model and compiles the kernels
_JUDGED_DEPTH = 100  # hits of each side for the live measure
_MOST_JUDGED = 500  # queries of the live measure


class Metrics:
    """Figures of a server; no label has a text of a user."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "hybrid_request_seconds", "Time of a request.", ("path", "status"), buckets=_SECONDS, registry=self.registry
        )
        self.steps = Histogram(
            "hybrid_step_seconds",
            "Time of a step of a batch of queries: query (analysis or encoding), hits, scores.",
            ("side", "step"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batches = Histogram(
            "hybrid_batch_queries",
            "Queries that were answered together.",
            buckets=(1, 2, 4, 8, 16, 32),
            registry=self.registry,
        )
        self.reloads = Counter("hybrid_reloads", "Retrievers opened after a change.", registry=self.registry)
        self.generation = Gauge("hybrid_generation", "Generation of the documents.", registry=self.registry)

    def observe(self, side: str, step: str, seconds: float) -> None:
        """Count a step of a side."""
        self.steps.labels(side, step).observe(seconds)


@dataclass
class State:
    """What the handlers of requests share.

    Attributes:
        settings: options of `serve`.
        whole: the open retriever; replaced as a whole.
        token: secret of programs; of the page too, where the server has one.
        judging: the journal of judgments; None without one.
        signature: of the retriever before it was opened.
        tune: writes the tuned retriever from a file of judgments, for the page; see `stages.serve`.
        engines: opens the search engine of the settings; see `Live.open`.
    """

    settings: Serve
    whole: Live
    metrics: Metrics
    token: str
    signature: tuple[int, int, int] | None
    tune: Callable[[Live, Path], Path] | None = None
    engines: Engines = lambda retriever: {}
    _judged: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        settings: Serve,
        token: str,
        tune: Callable[[Live, Path], Path] | None = None,
        engines: Engines = lambda retriever: {},
    ) -> State:
        """Open the retriever, and search it once.

        Raises:
            InputError: it cannot be opened.
        """
        metrics, signature = Metrics(), _signature(settings)
        state = cls(settings, _open(settings, metrics, engines), metrics, token, signature, tune, engines)
        metrics.generation.set(state.whole.files.stored.generation)
        return state

    def __post_init__(self) -> None:
        path = self.settings.judgments
        self.judging = None if path is None else Judging.open(self, path)
        self.batches = Batches(self._answer, workers=2)
        self.conditions = {} if (file := self.settings.require_filter) is None else read_conditions(file)
        if self.token in self.conditions:
            problem = f"{file}: has the token of the server, which sees all documents; use another"
            raise InputError(problem, code="repeated-value", path=file)
        for number, condition in enumerate(self.conditions.values(), 1):
            try:
                count = int(self.whole.metadata.allowed(condition).kept.sum())
            except InputError as error:
                raise path_error(file, f"condition {number}: {error}", code=error.code, **error.fields) from None
            if not count:
                text = f"{file}: condition {number} is true for no document"
                console.warn(text, code="no-document", path=file, number=number)

    @property
    def live(self) -> Live:
        """Return the retriever as the token of the request may see it.

        Raises:
            Refused: the server has conditions, and the token of this request is not known.
        """
        condition = CONDITION.get()
        if self.conditions and condition is None:
            raise Refused(401, "no-token", "needs Authorization: Bearer TOKEN")
        return self.whole.restricted(condition) if condition else self.whole

    async def hits(self, text: str, k: int, system: str, condition: str | None, explain: bool) -> list[dict[str, Any]]:
        """Return the hits of one query, which is answered together with others."""
        return list(await self.batches.get((self.live, k, system, condition, explain), text))

    def _answer(self, key: tuple[Live, int, str, str | None, bool], texts: Sequence[str]) -> Sequence[Any]:
        live, k, system, condition, explain = key
        self.metrics.batches.observe(len(texts))
        return answers.hits(live, texts, k, system, condition, explain)

    # ------------------------------------------------------------------------------------------------------- judgments

    @property
    def collection(self) -> Path | None:
        """Return the collection of the queries: the given one, or that of the indexes."""
        return self.settings.collection or collection_of(corpora_of(self.whole.files.manifests))

    @property
    def split(self) -> str | None:
        """Return the given split of the collection, or its only judged one; `--queries` have no judgments there."""
        if self.settings.split is not None or self.settings.queries is not None or self.collection is None:
            return self.settings.split
        judged = [name for name in collections.splits(self.collection) if collections.is_judged(self.collection, name)]
        return judged[0] if len(judged) == 1 else None

    @property
    def queries(self) -> pl.DataFrame:
        """Return the queries of `--queries`, of the collection or of its split (qid, text); none without queries."""
        collection, split = self.collection, self.settings.split
        empty = pl.DataFrame(schema={"qid": pl.String, "text": pl.String})
        if self.settings.queries is not None:
            return collections.read_queries(self.settings.queries).select("qid", "text")
        if collection is None:
            return empty
        names = [split] if split is not None else collections.splits(collection)
        tables = [collections.read_queries(collections.queries_path(collection, name)) for name in names]
        return pl.concat([empty, *(table.select("qid", "text") for table in tables)]).unique("qid", maintain_order=True)

    def qrels(self) -> pl.DataFrame:
        """Return the judgments of people: of the split, and of the file of judgments, which replace them."""
        frames = [pl.DataFrame(schema={"qid": pl.String, "docid": pl.String, "relevance": pl.Int32})]
        collection, split = self.collection, self.split
        if collection is not None and split is not None and collections.is_judged(collection, split):
            frames.append(collections.read_qrels(collections.qrels_path(collection, split)))
        if self.judging is not None:
            frames.append(self.judging.qrels())
        return pl.concat(frames, how="diagonal").unique(["qid", "docid"], keep="last", maintain_order=True)

    def judged(self) -> dict[str, Any]:
        """Return the candidates and grades of the judged queries, from which the page computes its live measure."""
        live, qrels = self.live, self.qrels()
        queries = self.queries.join(qrels, on="qid", how="semi", maintain_order="left").head(_MOST_JUDGED)
        known = {qid: table for qid, table in self._judged.items() if table["live"] is live}
        new = queries.filter(~pl.col("qid").is_in(list(known)))
        for some in new.iter_slices(MOST):
            table = live.candidates(some, depth=_JUDGED_DEPTH)
            columns = [[f"{name}_{part}" for name in live.sides] for part in ("score", "rank")]
            for (qid,), part in table.partition_by("qid", as_dict=True, maintain_order=True).items():
                scores, ranks = ([part[name].to_list() for name in names] for names in columns)
                known[str(qid)] = {"live": live, "docids": part["docid"].to_list(), "scores": scores, "ranks": ranks}
        self._judged = known
        empty: list[list[float]] = [[] for _ in live.sides]
        rows = []
        grades = qrels.partition_by("qid", as_dict=True)
        for qid, text in queries.iter_rows():
            held = known.get(qid, {"docids": [], "scores": empty, "ranks": empty})
            own = dict(grades[qid,].select("docid", "relevance").iter_rows())
            parts = {name: held[name] for name in ("docids", "scores", "ranks")}
            rows.append({"qid": qid, "text": text, "grades": own, **parts})
        return {"measure": self.settings.measure, "depth": _JUDGED_DEPTH, "queries": rows}

    # ----------------------------------------------------------------------------------------------------------- watch

    async def watch(self) -> None:
        """Open the retriever again whenever it has changed; searches that have begun end with the former one."""
        opened, problem = self.signature, ""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now = _signature(self.settings)
            if now is None or now == opened:
                continue
            try:
                live = await asyncio.to_thread(_open, self.settings, self.metrics, self.engines)
            except (HybridError, OSError) as error:  # tried again, as it may be in the middle of a change
                if str(error) != problem:
                    problem = str(error)
                    text = f"serve: the retriever has changed, but: {problem}; it is served as before"
                    console.warn(text, code="not-reloaded")
                continue
            self.whole, opened, problem = live, now, ""
            self.metrics.reloads.inc()
            self.metrics.generation.set(live.files.stored.generation)
            console.note(f"serve: {live.name}: opened again after a change", code="reloaded")


def _open(settings: Serve, metrics: Metrics, engines: Engines) -> Live:
    live = Live.open(settings.retriever, settings.compare, settings.search_options(), metrics.observe, engines)
    for system in live.systems:
        live.search(answers.table_of([_WARM_UP]), 1, system)
        live.search(answers.table_of([_WARM_UP] * 8), 1, system)  # another path than that of few queries
    return live


def _signature(settings: Serve) -> tuple[int, int, int] | None:
    """Return what changes when the retriever is written again; None while it is being replaced."""
    try:
        folder = of_auto(settings.retriever)
        stat = (folder / layout.RETRIEVER if is_retriever(folder) else folder).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
