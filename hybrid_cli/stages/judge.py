"""`judge`: judge pooled hits of runs in the terminal, or with answers from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.collections import collection
from hybrid_cli.collections.judgments import SKIPPED, Judgments
from hybrid_cli.collections.searched import refuse_other_corpus
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.measures import ACCURACY, evaluate_positions, parse_measures
from hybrid_cli.evaluation.pools import Pool, pools
from hybrid_cli.reporting import judging, keyboard
from hybrid_cli.reporting.judging import GRADES, MORE, NEXT, QUIT, SKIP, UNDO, View
from hybrid_cli.runs import Run
from hybrid_cli.settings import Judge, stage

if TYPE_CHECKING:
    from hybrid_cli.fusion.weight_range import WeightRange

_QUERIES_AT_ONCE = 20  # queries whose texts are read in one pass over the corpus
_HITS = 1000  # hits per run that the fusion of a judged query reads


@stage(Judge)
def judge(settings: Judge) -> Path:
    """Judge hits until enough queries are judged, the input ends, or the person quits.

    Returns:
        Path of the qrels.

    Raises:
        InputError: inputs cannot be used together, or a line of standard input is no answer.
    """
    if any(measure.family == ACCURACY for measure in parse_measures([settings.measure])):
        raise InputError(f"--measure {settings.measure}: needs answers in the texts; name a measure of judgments")
    queries = collection.queries_path(settings.collection, settings.split)
    corpus = collection.corpus_path(settings.collection)
    named = runs.named(settings.runs)
    refuse_other_corpus(named.values(), corpus)
    opened = {name: runs.open_run(path) for name, path in named.items()}
    texts = _Texts(queries, corpus)
    found = _pools(settings, opened, texts)
    artifacts.lock_growing(settings.output)
    judgments = Judgments(settings.output)
    try:
        session = _Session.of(settings, opened, judgments, texts, found)
        if keyboard.is_interactive():
            _in_terminal(session)
        else:
            _from_lines(session, sys.stdin)
    finally:
        judgments.close()
    _note(session)
    return settings.output


def _pools(settings: Judge, opened: dict[str, Run], texts: _Texts) -> list[Pool]:
    """Return the pools of the queries in the collection, the next first."""
    found = pools(list(opened.values()), settings.depth, settings.seed, settings.order == "random")
    known = [pool for pool in found if pool.qid in texts.queries]
    if not known:
        raise InputError("judge: no query of the runs is in the collection; pass its --split")
    for name in (name for pool in known for name in (pool.qid, *pool.docids)):
        if any(mark in name for mark in "\t\n\r"):
            raise InputError(f"judge: the id {name!r} contains a tab or a line break; a qrels file cannot store it")
    return known


class _Texts:
    """Texts of queries, and of documents that are read for several queries at once."""

    def __init__(self, queries: Path, corpus: Path):
        self.queries = dict(collection.read_queries(queries).select("qid", "text").iter_rows())
        self._corpus = corpus
        self._documents: dict[str, tuple[str, str]] = {}

    def of(self, docid: str, ahead: Iterable[Pool]) -> tuple[str, str]:
        """Return title and text of a document; read the documents of the pools `ahead` if it is not known yet."""
        if docid not in self._documents:
            wanted = pl.Series([docid, *(each for pool in ahead for each in pool.docids)])
            rows = collection.texts(self._corpus, wanted).iter_rows()
            self._documents = {found: (title, text) for found, title, text in rows}
        if docid not in self._documents:
            raise InputError(f"{self._corpus}: no document {docid}, which a run contains; pass the runs' collection")
        return self._documents[docid]


@dataclass
class _Session:
    """The pools in the order of judging, and the answers so far.

    Attributes:
        opened: runs by name.
        pools: one per query, the next first.
        values: query and its grades -> value of every fusion weight.
    """

    settings: Judge
    opened: dict[str, Run]
    judgments: Judgments
    texts: _Texts
    pools: list[Pool]
    values: dict[tuple[str, tuple[tuple[str, int], ...]], np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls, settings: Judge, opened: dict[str, Run], judgments: Judgments, texts: _Texts, found: list[Pool]
    ) -> _Session:
        """Continue with the queries that an earlier call began."""
        session = cls(settings, opened, judgments, texts, found)
        begun = {qid for qid, _ in judgments.grades}
        session.pools.sort(key=lambda pool: not (pool.qid in begun and session.waiting(pool)))  # stable
        return session

    def waiting(self, pool: Pool) -> list[str]:
        """Return the hits without an answer."""
        return [docid for docid in pool.docids if (pool.qid, docid) not in self.judgments.grades]

    def judged(self) -> list[Pool]:
        """Return the queries of which every hit has an answer, and at least one a grade."""
        begun = {qid for (qid, _), grade in self.judgments.grades.items() if grade != SKIPPED}
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
            shown = key if key.isprintable() else repr(key)
            return f"{shown} is no answer; press one of the keys below"
        return ""

    def view(self, pool: Pool, docid: str) -> View:
        """Return the content of the screen."""
        begin = self.pools.index(pool)
        title, text = self.texts.of(docid, self.pools[begin : begin + _QUERIES_AT_ONCE])
        return View(
            query=self.texts.queries[pool.qid],
            place=pool.docids.index(docid) + 1,
            pooled=len(pool.docids),
            title=title or docid,
            text=text,
            judged=len(self.judged()),
            wanted=self.settings.stop_after,
            weight=self.weight(),
        )

    def weight(self) -> tuple[str, WeightRange] | None:
        """Return the name of the second of two runs and its weights that fit; None for no judged query."""
        judged = self.judged()
        if len(self.opened) != 2 or not judged:
            return None
        from hybrid_cli.fusion.weight_range import weight_range  # imports scipy.stats

        return list(self.opened)[1], weight_range([self._values(pool.qid) for pool in judged], self._prior)

    @cached_property
    def _prior(self) -> np.ndarray | None:
        from hybrid_cli.fusion.weight_range import prior_values

        return prior_values(runs.named(self.settings.runs), self.settings.measure)

    def _values(self, qid: str) -> np.ndarray:
        grades = self.judgments.of_query(qid)
        key = qid, tuple(grades.items())
        if key not in self.values:
            from hybrid_cli.fusion.weight_range import query_values

            table = pl.DataFrame({"qid": qid, "docid": list(grades), "relevance": list(grades.values())})
            self.values[key] = query_values(list(self.opened.values()), table, _HITS, self._measured)
        return self.values[key]

    def _measured(self, judged: pl.DataFrame) -> np.ndarray:
        return evaluate_positions(judged, [self.settings.measure])["value"].to_numpy()


# ------------------------------------------------------------------------------------------------------------- answers


def _in_terminal(session: _Session) -> None:
    """Show one hit at a time, and read keys."""
    shown: list[View] = []
    with judging.window(), keyboard.keys(lambda: judging.draw(shown[-1]) if shown else None) as key:
        notice, page, before = "", 0, None
        while (hit := session.hit()) is not None:
            page, before = (page, hit) if hit == before else (0, hit)
            view = session.view(*hit)
            shown[:] = [replace(view, notice=notice, page=page)]
            judging.draw(shown[-1])
            pressed = key()
            if pressed in (QUIT, keyboard.END):
                break
            notice, page = ("", page + 1) if pressed == MORE else (session.answer(pressed, *hit), page)


def _from_lines(session: _Session, lines: Iterable[str]) -> None:
    """Print one hit at a time, and read one answer per line."""
    count = 0
    source = enumerate(lines, 1)
    while (hit := session.hit()) is not None:
        judging.show_plain(session.view(*hit))
        number, line = next(((number, line.strip()) for number, line in source if line.strip()), (0, QUIT))
        if line == QUIT:
            break
        if line not in (*GRADES, SKIP, NEXT, UNDO):
            raise InputError(f"standard input, line {number}: '{line}' is no answer; answers are {judging.ANSWERS}")
        if notice := session.answer(line, *hit):
            raise InputError(f"standard input, line {number}: {notice}")
        count += 1
    if hit is not None and not count:
        console.warn(f"judge: no answers; run it in a terminal, or pass one per line: {judging.ANSWERS}")


def _note(session: _Session) -> None:
    """Print the number of judgments, and the command that uses them."""
    grades = session.judgments.grades.values()
    skipped = sum(grade == SKIPPED for grade in grades)
    judged = len(session.judged())
    status = judging.status(judged, session.settings.stop_after, session.weight())
    count = len(grades) - skipped
    console.note(
        f"judge: {session.settings.output}: {console.counted(judgment=count)}"
        + (f", {console.counted(hit=skipped)} skipped" if skipped else "")
        + f"; {status}"
    )
    if judged >= session.settings.stop_after:
        console.note(f"judge: enough queries are judged; --stop-after {judged + 10} continues")
