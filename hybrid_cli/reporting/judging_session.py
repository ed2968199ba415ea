"""State of judging: the pools in the order of judging, their texts, the answers so far, and what they say of runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hybrid_cli.artifacts.indexes import texts
from hybrid_cli.collections import collection
from hybrid_cli.collections.journal import SKIPPED, Pair
from hybrid_cli.collections.judgments import Judgments
from hybrid_cli.errors import path_error
from hybrid_cli.evaluation.measures import evaluate_positions, evaluate_run
from hybrid_cli.evaluation.retrieved import Pool
from hybrid_cli.evaluation.sequential import Evidence
from hybrid_cli.runs import Run
from hybrid_cli.runs.groups import documents_of

if TYPE_CHECKING:
    from hybrid_cli.fusion.tuning import WeightRange

QUERIES_AT_ONCE = 20  # queries whose texts are read in one pass over the corpus
_HITS = 1000  # hits per run that the fusion of a judged query reads


class JudgedTexts:
    """Texts of queries, and of documents that are read for several queries at once."""

    def __init__(self, queries: Path, corpora: Sequence[Path]):
        self.queries = dict(collection.read_queries(queries).select("qid", "text").iter_rows())
        self._corpora = corpora
        self._documents: dict[str, tuple[str, list[str]]] = {}
        self._split: frozenset[str] = frozenset()  # documents of which the corpora have the passages

    def of(self, docid: str, query: str, ahead: Iterable[Pool]) -> tuple[str, str]:
        """Return title and text of a document, which begins with the passage that has most words of the query.

        The documents of the pools `ahead` are read with it if it is not known yet.
        """
        if docid not in self._documents:
            wanted = pl.Series([docid, *(next_id for pool in ahead for next_id in pool.docids)])
            rows = texts(self._corpora, wanted).iter_rows()
            self._documents = {id_of_row: (title, [text]) for id_of_row, title, text in rows}
            split = wanted.filter(wanted.is_in(list(self._split)))
            for corpus in self._corpora if len(split) else ():
                passages = collection.passages_of(corpus, split).iter_rows()
                self._documents |= {id_of_row: (title, parts) for id_of_row, title, parts in passages}
        title, parts = self._documents[docid]
        return title, best_first(parts, query)

    def documents(self, docids: pl.Series) -> dict[str, tuple[str, str]]:
        """Return docid -> title and text of the documents that the corpora have."""
        return {docid: (title, text) for docid, title, text in texts(self._corpora, docids.unique()).iter_rows()}

    def check(self, docids: Iterable[str]) -> None:
        """Refuse documents that are not in the corpus."""
        wanted = pl.Series("docid", list(docids), pl.String)
        scans = [collection.scan(corpus).select("docid") for corpus in self._corpora]
        named = pl.concat(scans).with_columns(document=documents_of(pl.col("docid")))
        known = named.filter(pl.any_horizontal(pl.col("docid", "document").is_in(wanted.implode()))).collect()
        self._split = frozenset(known["document"]) - frozenset(known["docid"])
        for docid in wanted.filter(~wanted.is_in(pl.concat([known["docid"], known["document"]]).implode())):
            problem = f"no document {docid}, which a run contains; pass the runs' collection"
            raise path_error(self._corpora[0], problem, code="other-corpus", id=docid)


def best_first(passages: Sequence[str], query: str) -> str:
    """Return passages as one text: the one with most words of a query first, and the others in their order."""
    asked = _words(query)
    best = max(range(len(passages)), key=lambda number: len(asked & _words(passages[number])))
    return "\n\n".join([passages[best], *passages[:best], *passages[best + 1 :]])


def _words(text: str) -> set[str]:
    """Return the different words of a text in lower case."""
    return set(re.findall(r"\w+", text.lower()))


JudgedQueries = Mapping[str, Mapping[str, int]]  # qid -> docid -> grade, in the order of judging


@dataclass
class ComparedRuns:
    """The runs that judgments compare.

    Attributes:
        opened: runs by name.
        dense_side: number of the run of a dense index among two, for the prior of their weight; None if unknown.
        measure: name of the measure.
        values: query and its grades -> value of every fusion weight.
    """

    opened: Mapping[str, Run]
    dense_side: int | None
    measure: str
    values: dict[tuple[str, tuple[tuple[str, int], ...]], np.ndarray] = field(default_factory=dict)

    def fused(self, judged: JudgedQueries) -> Run:
        """Return the fusion of the runs by min-max with equal weights, for judged queries."""
        from hybrid_cli.fusion import fuse

        qids = pl.Series(list(judged), dtype=pl.String)
        return Run.of(fuse({name: run.of_queries(qids).table() for name, run in self.opened.items()}, "minmax"))

    def evidence(self, fused: Run, judged: JudgedQueries) -> list[Evidence]:
        """Return the evidence that a fusion is better than each run, on judged queries in their order."""
        grades = [(qid, docid, grade) for qid, of_query in judged.items() for docid, grade in of_query.items()]
        qrels = pl.DataFrame(grades, schema={"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}, orient="row")

        def values(run: Run) -> np.ndarray:
            hits = run.of_queries(qrels["qid"].unique()).table()
            if not len(hits):
                return np.zeros(len(judged))
            return evaluate_run(hits, qrels, [self.measure])["value"].to_numpy()

        best = values(fused)
        return [Evidence.of(name, best - values(run)) for name, run in self.opened.items()]

    def weight(self, judged: JudgedQueries) -> tuple[str, WeightRange] | None:
        """Return the name of the second of two runs and its weights that fit; None for no judged query."""
        if len(self.opened) != 2 or not judged:
            return None
        from hybrid_cli.fusion.tuning import weight_range  # imports scipy.stats

        return list(self.opened)[1], weight_range([self._values(*query) for query in judged.items()], self._prior)

    @cached_property
    def _prior(self) -> np.ndarray | None:
        from hybrid_cli.fusion.tuning import prior_values

        return prior_values(self.dense_side, self.measure)

    def _values(self, qid: str, grades: Mapping[str, int]) -> np.ndarray:
        key = qid, tuple(grades.items())
        if key not in self.values:
            from hybrid_cli.fusion.tuning import query_values

            table = pl.DataFrame({"qid": qid, "docid": list(grades), "relevance": list(grades.values())})
            self.values[key] = query_values(
                list(self.opened.values()),
                table,
                _HITS,
                lambda judged: evaluate_positions(judged, [self.measure])["value"].to_numpy(),
            )
        return self.values[key]


def at_weights(opened: Mapping[str, Run]) -> list[Run]:
    """Return min-max fusions of two runs at several weights, so that a pool favours no weight."""
    from hybrid_cli.fusion import fuse

    if len(opened) != 2:
        return []
    tables = {name: run.table() for name, run in opened.items()}
    return [Run.of(fuse(tables, "minmax", (1 - weight, weight))) for weight in (0.25, 0.5, 0.75)]


def judged_queries(pools: Iterable[Pool], grades: Mapping[Pair, int | None]) -> JudgedQueries:
    """Return the grades of the pools of which every hit has an answer, and at least one a grade."""
    found: dict[str, dict[str, int]] = {}
    for pool in pools:
        if all((pool.qid, docid) in grades for docid in pool.docids):
            found[pool.qid] = {}
    for (qid, docid), grade in grades.items():
        if grade is not SKIPPED and qid in found:
            found[qid][docid] = grade
    return {qid: of_query for qid, of_query in found.items() if of_query}


@dataclass
class JudgingSession:
    """The pools in the order of judging, and the answers of a person so far.

    Attributes:
        pools: one per query, the next first.
        stop_after: number of judged queries at which the session ends.
    """

    judgments: Judgments
    pools: list[Pool]
    stop_after: int

    def __post_init__(self) -> None:
        """Continue with the queries that an earlier session began."""
        begun = {qid for qid, _ in self.judgments.grades}
        self.pools.sort(key=lambda pool: not (pool.qid in begun and self.waiting(pool)))  # stable

    def waiting(self, pool: Pool) -> list[str]:
        """Return the hits without an answer."""
        return [docid for docid in pool.docids if (pool.qid, docid) not in self.judgments.grades]

    def exhausted(self) -> bool:
        """Return whether every hit of all pools has an answer."""
        return not any(map(self.waiting, self.pools))

    def judged(self) -> JudgedQueries:
        """Return the queries of which every hit has an answer, and at least one a grade."""
        return judged_queries(self.pools, self.judgments.grades)

    def hit(self) -> tuple[Pool, str] | None:
        """Return the next hit without an answer; None if enough queries are judged or no hit is left.

        Hits that were put off come last, in their order.
        """
        later = self.judgments.later
        pools = ((pool, [d for d in self.waiting(pool) if (pool.qid, d) not in later]) for pool in self.pools)
        pool, waiting = next(((pool, docids) for pool, docids in pools if docids), (None, []))
        if pool is not None and (self._begun(pool) or len(self.judged()) < self.stop_after):
            return pool, waiting[0]
        known = {pool.qid: pool for pool in self.pools}
        return next(((known[qid], docid) for qid, docid in later if qid in known and docid in known[qid].docids), None)

    def _begun(self, pool: Pool) -> bool:
        answered = self.judgments.grades.keys() | self.judgments.later.keys()
        return any((pool.qid, docid) in answered for docid in pool.docids)

    def ahead(self, pool: Pool) -> list[Pool]:
        """Return a pool and the next ones, whose texts are read together."""
        begin = self.pools.index(pool)
        return self.pools[begin : begin + QUERIES_AT_ONCE]

    def answered(self) -> list[Pair]:
        """Return the pooled hits with an answer, the last one first."""
        pooled = {(pool.qid, docid) for pool in self.pools for docid in pool.docids}
        return [pair for pair in reversed(self.judgments.grades) if pair in pooled]
