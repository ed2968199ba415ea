"""State of `judge`: the pools in the order of judging, their texts, and the answers so far."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hybrid_cli.collections import collection
from hybrid_cli.collections.judgments import SKIPPED, Judgments
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import evaluate_positions, evaluate_run
from hybrid_cli.evaluation.pools import Pool
from hybrid_cli.evaluation.sequential import Evidence
from hybrid_cli.opening.provenance import texts
from hybrid_cli.reporting.judging import GRADES, NEXT, SKIP, UNDO, View
from hybrid_cli.runs import Run
from hybrid_cli.runs.groups import documents_of
from hybrid_cli.settings import Judge

if TYPE_CHECKING:
    from hybrid_cli.fusion.tuning import WeightRange

_QUERIES_AT_ONCE = 20  # queries whose texts are read in one pass over the corpus
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
        return title, _best_first(parts, query)

    def check(self, docids: Iterable[str]) -> None:
        """Refuse documents that are not in the corpus."""
        wanted = pl.Series("docid", list(docids), pl.String)
        scans = [collection.scan(corpus).select("docid") for corpus in self._corpora]
        named = pl.concat(scans).with_columns(document=documents_of(pl.col("docid")))
        known = named.filter(pl.any_horizontal(pl.col("docid", "document").is_in(wanted.implode()))).collect()
        self._split = frozenset(known["document"]) - frozenset(known["docid"])
        for docid in wanted.filter(~wanted.is_in(pl.concat([known["docid"], known["document"]]).implode())):
            raise InputError(
                f"{self._corpora[0]}: no document {docid}, which a run contains; pass the runs' collection",
                code="other-corpus", path=self._corpora[0], id=docid,
            )  # fmt: skip


def _best_first(passages: Sequence[str], query: str) -> str:
    """Return passages as one text: the one with most words of a query first, and the others in their order."""
    asked = _words(query)
    best = max(range(len(passages)), key=lambda number: len(asked & _words(passages[number])))
    return "\n\n".join([passages[best], *passages[:best], *passages[best + 1 :]])


def _words(text: str) -> set[str]:
    """Return the different words of a text in lower case."""
    return set(re.findall(r"\w+", text.lower()))


@dataclass
class JudgingSession:
    """The pools in the order of judging, and the answers so far.

    Attributes:
        opened: runs by name.
        dense_side: number of the run of a dense index among two, for the prior of their weight; None if unknown.
        pools: one per query, the next first.
        values: query and its grades -> value of every fusion weight.
    """

    settings: Judge
    opened: dict[str, Run]
    dense_side: int | None
    judgments: Judgments
    texts: JudgedTexts
    pools: list[Pool]
    values: dict[tuple[str, tuple[tuple[str, int], ...]], np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls, settings: Judge, opened: dict[str, Run], dense_side: int | None, judgments: Judgments, texts: JudgedTexts,
        pools: list[Pool],
    ) -> JudgingSession:  # fmt: skip
        """Continue with the queries that an earlier call began."""
        session = cls(settings, opened, dense_side, judgments, texts, pools)
        begun = {qid for qid, _ in judgments.grades}
        session.pools.sort(key=lambda pool: not (pool.qid in begun and session.waiting(pool)))  # stable
        return session

    def waiting(self, pool: Pool) -> list[str]:
        """Return the hits without an answer."""
        return [docid for docid in pool.docids if (pool.qid, docid) not in self.judgments.grades]

    def exhausted(self) -> bool:
        """Return whether every hit of all pools has an answer."""
        return not any(map(self.waiting, self.pools))

    def judged(self) -> list[Pool]:
        """Return the queries of which every hit has an answer, and at least one a grade."""
        begun = {qid for (qid, _), grade in self.judgments.grades.items() if grade is not SKIPPED}
        return [pool for pool in self.pools if pool.qid in begun and not self.waiting(pool)]

    def hit(self) -> tuple[Pool, str] | None:
        """Return the next hit without an answer; None if enough queries are judged or no hit is left."""
        pool = next((pool for pool in self.pools if self.waiting(pool)), None)
        begun = pool is not None and any((pool.qid, docid) in self.judgments.grades for docid in pool.docids)
        if pool is None or (not begun and len(self.judged()) >= self.settings.stop_after):
            return None
        return pool, self.waiting(pool)[0]

    def answer(self, key: str, pool: Pool, docid: str) -> str:
        """Store the answer of a key; return a notice for the screen."""
        if key in GRADES:
            self.judgments.add(pool.qid, [docid], int(key))
        elif key == SKIP:
            self.judgments.add(pool.qid, [docid], SKIPPED)
        elif key == NEXT:
            self.judgments.add(pool.qid, self.waiting(pool), SKIPPED)
        elif key == UNDO:
            return "" if self.judgments.undo() else "nothing to undo since the start of this session"
        else:
            return f"{key if key.isprintable() else repr(key)} is no answer"
        return ""

    def view(self, pool: Pool, docid: str) -> View:
        """Return the content of the screen."""
        begin = self.pools.index(pool)
        query = self.texts.queries[pool.qid]
        title, text = self.texts.of(docid, query, self.pools[begin : begin + _QUERIES_AT_ONCE])
        return View(
            query=query,
            position=pool.docids.index(docid) + 1,
            pooled=len(pool.docids),
            title=title or docid,
            text=text,
            judged=len(self.judged()),
            wanted=self.settings.stop_after,
            weight=self.weight(),
        )

    def fused(self) -> Run:
        """Return the fusion of the runs by min-max with equal weights, for the judged queries."""
        from hybrid_cli.fusion import fuse

        qids = pl.Series([pool.qid for pool in self.judged()])
        return Run.of(fuse({name: run.of_queries(qids).table() for name, run in self.opened.items()}, "minmax"))

    def evidence(self, fused: Run) -> list[Evidence]:
        """Return the evidence that a fusion is better than each run, on the queries judged so far, in their order."""
        judged = [pool.qid for pool in self.judged()]
        grades = [(qid, docid, grade) for qid in judged for docid, grade in self.judgments.of_query(qid).items()]
        qrels = pl.DataFrame(grades, schema={"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}, orient="row")

        def values(run: Run) -> np.ndarray:
            hits = run.of_queries(qrels["qid"].unique()).table()
            if not len(hits):
                return np.zeros(len(judged))
            return evaluate_run(hits, qrels, [self.settings.measure])["value"].to_numpy()

        best = values(fused)
        return [Evidence.of(name, best - values(run)) for name, run in self.opened.items()]

    def weight(self) -> tuple[str, WeightRange] | None:
        """Return the name of the second of two runs and its weights that fit; None for no judged query."""
        judged = self.judged()
        if len(self.opened) != 2 or not judged:
            return None
        from hybrid_cli.fusion.tuning import weight_range  # imports scipy.stats

        return list(self.opened)[1], weight_range([self._values(pool.qid) for pool in judged], self._prior)

    @cached_property
    def _prior(self) -> np.ndarray | None:
        from hybrid_cli.fusion.tuning import prior_values

        return prior_values(self.dense_side, self.settings.measure)

    def _values(self, qid: str) -> np.ndarray:
        grades = self.judgments.of_query(qid)
        key = qid, tuple(grades.items())
        if key not in self.values:
            from hybrid_cli.fusion.tuning import query_values

            table = pl.DataFrame({"qid": qid, "docid": list(grades), "relevance": list(grades.values())})
            self.values[key] = query_values(
                list(self.opened.values()), table, _HITS,
                lambda judged: evaluate_positions(judged, [self.settings.measure])["value"].to_numpy(),
            )  # fmt: skip
        return self.values[key]
