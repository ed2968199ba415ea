"""Judging in the page: one hit at a time, its answer in the journal, and what the answers say about the systems."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import polars as pl
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute, Route

from hybrid_cli import artifacts, runs
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.journal import HIGHEST, MACHINE, SKIPPED, Answer, Journal, Pair, is_rater, now
from hybrid_cli.collections.judgments import JournalJudgments
from hybrid_cli.collections.readers.queries import text_id
from hybrid_cli.commands import Serve
from hybrid_cli.draws import draw
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.retrieved import Pool, pools
from hybrid_cli.inputs.files import read_text
from hybrid_cli.inputs.json_values import make_typed, parse_json
from hybrid_cli.reporting.judging import (
    GRADES,
    REASONS,
    ComparedRuns,
    JudgedQueries,
    JudgingSession,
    at_weights,
    best_first,
    judged_queries,
)
from hybrid_cli.runs import Run
from hybrid_cli.server.answers import marked
from hybrid_cli.server.live import Live
from hybrid_cli.server.security import checked_query

Json = dict[str, Any]
T = TypeVar("T")
_DEPTH = 5  # hits pooled from each system
_HITS = 100  # hits of each system that measures and fusions read
_MOST_QUERIES = 300  # queries that are searched for the pools
_BATCH = 16  # queries that are searched at a time, so that other requests are answered meanwhile
_PATIENCE = 1.0  # seconds until a request is answered although the pools are not ready
_LONGEST_REASON = 200
_RUN = ("qid", "docid", "rank", "score")


class JudgingState(Protocol):
    """The part of the state of the server that judging needs; see `server.state`."""

    settings: Serve
    tune: Callable[[Live, Path], Path] | None

    @property
    def live(self) -> Live:
        """Return the open retriever."""

    @property
    def queries(self) -> pl.DataFrame:
        """Return qid and text of the queries of the collection."""


@dataclass(frozen=True)
class Posted:
    """The body of an answer: a grade, or one of skip, later and undo.

    Attributes:
        id: identifies the answer, which is stored once.
        seconds: active time of the person.
    """

    rater: str
    id: str
    qid: str = ""
    docid: str = ""
    grade: int | None = None
    skip: bool = False
    reason: str | None = None
    later: bool = False
    undo: bool = False
    seconds: float | None = None

    def check(self) -> None:
        """Refuse values that the journal cannot have.

        Raises:
            InputError: a bad value.
        """
        check_rater(self.rater)
        if sum((self.grade is not None, self.skip, self.later, self.undo)) != 1:
            raise InputError("an answer is a grade, or skip, later or undo", code="not-an-answer", option="grade")
        if self.grade is not None and not 0 <= self.grade <= HIGHEST:
            problem = f"grade {self.grade}: is not from 0 to {HIGHEST}"
            raise InputError(problem, code="out-of-range", option="grade", limit=HIGHEST)
        if not (8 <= len(self.id) <= 64 and self.id.isascii() and self.id.replace("-", "").isalnum()):
            raise InputError("id: needs 8 to 64 letters, digits and hyphens", code="unsafe-name", option="id")
        if len(self.reason or "") > _LONGEST_REASON or not (self.reason or "").isprintable():
            problem = f"reason: needs at most {_LONGEST_REASON} printable characters"
            raise InputError(problem, code="unsafe-name", option="reason")
        if self.seconds is not None and not 0 <= self.seconds <= 86400:
            raise InputError(f"seconds {self.seconds}: out of range", code="out-of-range", option="seconds")


@dataclass(frozen=True)
class PostedQuery:
    """The body of a further query."""

    rater: str
    text: str


@dataclass(frozen=True)
class PostedTuning:
    """The body of a request for the tuned retriever."""

    rater: str


def check_rater(name: str) -> None:
    """Refuse a text that is no name of a person.

    Raises:
        InputError: not one word, or the name of a machine.
    """
    if not is_rater(name):
        raise InputError("rater: needs a name in one word", code="not-a-name", option="rater")


@dataclass(frozen=True)
class Searched:
    """The hits of all columns of an open retriever.

    Attributes:
        live: the retriever.
        queries: qid -> text.
        tables: column -> its hits.
        compared: the sides.
        runs: everything that is pooled: the columns, and fusions of two sides at several weights.
    """

    live: Live
    queries: dict[str, str]
    tables: dict[str, pl.DataFrame]
    compared: ComparedRuns
    runs: list[Run]

    @classmethod
    def of(
        cls,
        live: Live,
        queries: pl.DataFrame,
        measure: str,
        done: Callable[[int], None] = lambda queries: None,
    ) -> Searched:
        """Search queries (qid, text) in every column; report the number searched."""
        parts: dict[str, list[pl.DataFrame]] = {system: [runs.empty()] for system in live.systems}
        for begin in range(0, len(queries), _BATCH):
            for system in live.systems:
                parts[system].append(live.search(queries[begin : begin + _BATCH], _HITS, system).select(_RUN))
            done(begin + _BATCH)
        tables = {system: pl.concat(frames) for system, frames in parts.items()}
        return cls._of_tables(live, dict(queries.select("qid", "text").iter_rows()), tables, measure)

    @classmethod
    def _of_tables(cls, live: Live, queries: dict[str, str], tables: dict[str, pl.DataFrame], measure: str) -> Searched:
        opened = {system: Run.of(table) for system, table in tables.items()}
        sides = {name: opened[name] for name in live.sides}
        compared = ComparedRuns(sides, measure)
        return cls(live, queries, tables, compared, [*opened.values(), *at_weights(sides)])

    def __add__(self, other: Searched) -> Searched:
        """Return the hits of the queries of both."""
        tables = {system: pl.concat([table, other.tables[system]]) for system, table in self.tables.items()}
        return self._of_tables(self.live, self.queries | other.queries, tables, self.compared.measure)


@dataclass
class Judging:
    """The journal, the pools of the open retriever, and a session of each person; every call but the first may block.

    Attributes:
        state: the open retriever and the options of the server.
        journal: all answers.
        guidelines: Markdown; None without.
        preparing: queries that are searched so far, and all.
    """

    state: JudgingState
    journal: Journal
    guidelines: str | None
    preparing: tuple[int, int] = (0, 0)
    _searched: Searched | None = None
    _sessions: dict[str, JudgingSession] = field(default_factory=dict)
    _verdict: tuple[JudgedQueries, Json] | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def open(cls, state: JudgingState, path: Path) -> Judging:
        """Lock and open the journal.

        Raises:
            InputError: no journal.
            HybridError: another process has the lock.
        """
        artifacts.lock_growing(path)
        guidelines = state.settings.guidelines
        return cls(state, Journal.growing(path), None if guidelines is None else read_text(guidelines))

    # ----------------------------------------------------------------------------------------------------------- pools

    def search(self) -> Searched:
        """Search the queries in every column, unless that is done."""
        live = self.state.live
        searched = self._searched
        if searched is None or searched.live is not live:
            queries = self._chosen_queries()
            self.preparing = 0, len(queries)
            new = Searched.of(
                live,
                queries,
                self.state.settings.measure,
                done=lambda done: setattr(self, "preparing", (min(done, len(queries)), len(queries))),
            )
            with self._lock:
                self._searched, self._sessions, self._verdict, searched = new, {}, None, new
        return searched

    @property
    def is_ready(self) -> bool:
        """Return whether the queries are searched in the open retriever."""
        return self._searched is not None and self._searched.live is self.state.live

    def _chosen_queries(self) -> pl.DataFrame:
        """Return qid and text of the judged queries, and of others in random order."""
        queries = self.state.queries.select("qid", "text")
        known = set(queries["qid"])
        with self._lock:
            judged = {qid for answers in self.journal.standing.values() for qid, _ in answers}
            typed = [(qid, text) for qid, text in self.journal.queries.items() if qid not in known]
        queries = pl.concat([queries, pl.DataFrame(typed, queries.schema, orient="row")])
        order = sorted(queries["qid"], key=lambda qid: (qid not in judged, draw(0, "judge", qid)))[:_MOST_QUERIES]
        return queries.filter(pl.col("qid").is_in(order))

    def session(self, rater: str) -> JudgingSession:
        """Return the session of a person, whose order of hits is the person's own."""
        searched = self.search()
        with self._lock:
            if rater not in self._sessions:
                pooled = _pooled(searched, rater)
                self._sessions[rater] = JudgingSession(JournalJudgments(self.journal, rater), pooled, len(pooled))
            return self._sessions[rater]

    def _join(self, found: Searched) -> None:
        """Add a further query to the searched ones and to all sessions, unless the retriever was opened again."""
        with self._lock:
            searched = self._searched
            if searched is None or searched.live is not found.live:
                return
            if not found.queries.keys() <= searched.queries.keys():  # nobody typed it meanwhile
                self._searched, self._verdict = searched + found, None
                for rater, session in self._sessions.items():
                    session.pools += _pooled(found, rater)
                    session.stop_after = len(session.pools)

    def add_query(self, rater: str, text: str) -> Json:
        """Pool the hits of a query that a person typed; it is asked next."""
        check_rater(rater)
        text = " ".join(checked_query(text).split())
        qid = self._qid(text)
        query = pl.DataFrame({"qid": [qid], "text": [text]})
        while qid not in self.search().queries:
            self._join(Searched.of(self.search().live, query, self.state.settings.measure))
        session = self.session(rater)
        with self._lock:
            session.pools.sort(key=lambda pool: pool.qid != qid)
        return self.content(rater)

    def _qid(self, text: str) -> str:
        """Return the id of a query with this text: a known one, or one derived from the text."""
        with self._lock:
            typed = list(self.journal.queries.items())
        known = [*typed, *self.state.queries.select("qid", "text").iter_rows()]
        return next((qid for qid, asked in known if asked == text), text_id(text))

    # --------------------------------------------------------------------------------------------------------- answers

    def take_of_program(self, query: str, docid: str, grade: int) -> None:
        """Store the grade of a program, which counts as that of a machine.

        Raises:
            InputError: a bad grade, or no such document.
        """
        if not 0 <= grade <= HIGHEST:
            raise InputError(f"grade {grade}: is not from 0 to {HIGHEST}", code="out-of-range", option="grade")
        text = " ".join(checked_query(query).split())
        if self._text(docid, text) is None:
            raise InputError(f"no document {docid}", code="no-such-document", id=docid)
        with self._lock:
            self.journal.add([Answer(self._qid(text), docid, grade, f"{MACHINE}mcp", now(), query=text)])

    def take(self, posted: Posted) -> Json:
        """Store an answer, unless its id is stored; return the next hit.

        Raises:
            InputError: a bad value, or a hit that is not in the pool.
        """
        posted.check()
        session = self.session(posted.rater)
        with self._lock:
            judgments, seconds = session.judgments, None if posted.seconds is None else round(posted.seconds, 1)
            if posted.undo:
                undone = judgments.undo(id=posted.id)
                return self.content(posted.rater) | {"undone": undone}
            pair = posted.qid, posted.docid
            if pair not in judgments.grades and not any(pair == (p.qid, d) for p in session.pools for d in p.docids):
                problem = "the document is not in the pool of the query; reload the page"
                raise InputError(problem, code="not-in-pool", option="docid", value=posted.docid)
            details: Json = {"id": posted.id, "seconds": seconds, "query": self._query(posted.qid)}
            if posted.later:
                judgments.put_off(*pair, **details)
            else:
                judgments.add(posted.qid, [posted.docid], posted.grade, reason=posted.reason, **details)
            return self.content(posted.rater)

    def _query(self, qid: str) -> str:
        return (self._searched.queries if self._searched else {}).get(qid) or self.journal.queries.get(qid, "")

    # --------------------------------------------------------------------------------------------------------- content

    def content(self, rater: str, pair: Pair | None = None) -> Json:
        """Return everything that the view shows.

        Args:
            rater: name of the person.
            pair: an answered hit; None for the next one.

        Raises:
            InputError: no name, or a pair without an answer.
        """
        check_rater(rater)
        session = self.session(rater)
        with self._lock:
            grades, later = session.judgments.grades, session.judgments.later
            if pair is None:
                found = session.hit()
                hit = None if found is None else self._hit(found[0].qid, found[1], found[0])
            elif pair in grades or pair in later:
                hit = self._hit(*pair, next((pool for pool in session.pools if pool.qid == pair[0]), None))
                hit |= {"answered": True, "grade": grades.get(pair), "skipped": grades.get(pair, 0) is SKIPPED}
            else:
                raise InputError("the hit has no answer", code="no-such-answer", option="docid", value=pair[1])
            skipped = sum(grade is SKIPPED for grade in grades.values())
            progress = {
                "judged": len(session.judged()),
                "answers": len(grades) - skipped,
                "skipped": skipped,
                "later": len(later),
                "queries": len(session.pools),
            }
            return {"rater": rater, "hit": hit, "progress": progress, **self._whole()}

    def _hit(self, qid: str, docid: str, pool: Pool | None) -> Json:
        """Return the texts of a hit; nothing tells the column, the rank or the score."""
        query = self._query(qid)
        title, text = self._text(docid, query) or ("", "")
        docids: Sequence[str] = () if pool is None else pool.docids
        return {
            "qid": qid,
            "docid": docid,
            "query": query,
            "title": marked(title or docid, query),
            "text": marked(text, query),
            "position": docids.index(docid) + 1 if docid in docids else None,
            "pooled": len(docids),
        }

    def _text(self, docid: str, query: str) -> tuple[str, str] | None:
        """Return title and text of a document, whose best passage is first; None for an unknown document."""
        store = self.state.live.texts
        if store is None:
            raise InputError("the texts of the documents are not where they were; build again", code="corpus-missing")
        _, title, text = store.texts(pl.Series([docid], dtype=pl.String)).row(0)
        if text is not None:
            return title, text
        for corpus in store.corpora:
            for _, title, parts in collections.passages_of(corpus, pl.Series([docid])).iter_rows():
                return title, best_first(parts, query)
        return None

    def _whole(self) -> Json:
        """Return what the answers of all people say; it is computed again when a further query is judged."""
        searched = self.search()
        pooled = next(iter(self._sessions.values())).pools
        judged = judged_queries(pooled, self.journal.of_people())
        if self._verdict is None or self._verdict[0] != judged:
            self._verdict = judged, _verdict(searched, judged)
        return {"judged_by_all": len(judged), "conflicts": self.journal.conflicts(), **self._verdict[1]}

    def qrels(self) -> pl.DataFrame:
        """Return the grades of people that count: qid, docid, relevance."""
        with self._lock:
            grades = self.journal.of_people()
        rows = [(*pair, grade) for pair, grade in grades.items() if grade is not SKIPPED]
        return pl.DataFrame(rows, {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}, orient="row")

    def answered(self, rater: str) -> Json:
        """Return the queries with answers of a person, the last one first, and the number of hits that are gone."""
        check_rater(rater)
        session = self.session(rater)
        with self._lock:
            answers = list(reversed(self.journal.current((rater, False)).values()))
        store = self.state.live.texts
        docids = pl.Series([answer.docid for answer in answers], dtype=pl.String)
        rows = store.texts(docids).iter_rows() if store is not None else ()
        known = {docid: title for docid, title, text in rows if text is not None}
        pooled = {(pool.qid, docid) for pool in session.pools for docid in pool.docids}
        queries: dict[str, Json] = {}
        gone = 0
        for answer in answers:
            if answer.docid not in known and answer.pair not in pooled:
                gone += 1
                continue
            query = {"qid": answer.qid, "text": self._query(answer.qid) or answer.qid, "hits": []}
            queries.setdefault(answer.qid, query)["hits"].append(_listed(answer, known))
        return {"queries": list(queries.values()), "gone": gone}

    def information(self) -> Json:
        """Return the part of `/api/info` about judging."""
        with self._lock:
            people = self.journal.people()
        return {
            "path": self.journal.path.name,
            "guidelines": self.guidelines,
            "measure": self.state.settings.measure,
            "raters": people,
            "grades": GRADES,
            "reasons": list(REASONS.values()),
            "tunes": self.state.tune is not None and len(self.state.live.sides) > 1,
        }

    def tune(self) -> str:
        """Write the tuned retriever, and return its path.

        Raises:
            InputError: the evidence does not suffice, or the retriever cannot be written.
        """
        if self.state.tune is None:
            raise InputError("this server writes no retriever", code="no-tuning")
        with self._lock:
            if not (self._sessions and self._whole()["decided"]):
                raise InputError("the evidence does not suffice yet; judge more queries", code="undecided")
        return str(self.state.tune(self.state.live, self.journal.path))


def _pooled(searched: Searched, rater: str) -> list[Pool]:
    """Return the pools of the queries, whose hits have an order of the person's own."""
    return pools(searched.runs, _DEPTH, draw(0, "rater", rater) >> 1)


def _verdict(searched: Searched, judged: JudgedQueries) -> Json:
    """Return whether the retriever is better than its best side."""
    compared, main = searched.compared, searched.live.main
    verdict = None
    if judged and len(compared.opened) > 1:
        verdict = compared.verdict((main, Run.of(searched.tables[main])), judged)
    return {
        "decided": verdict is not None and verdict.outcome != "undecided",
        "verdict": verdict and {**verdict.content(), "sentence": verdict.sentence()},
    }


def _listed(answer: Answer, titles: dict[str, str]) -> Json:
    return {
        "docid": answer.docid,
        "title": titles.get(answer.docid) or answer.docid,
        "grade": answer.grade,
        "reason": answer.reason,
        "later": answer.later,
        "time": answer.time,
    }


# -------------------------------------------------------------------------------------------------------------- routes


def routes(judging: Judging) -> list[BaseRoute]:
    """Return the routes of judging, all below `/api/judging` and `/api/judgments`."""
    work = _Work(judging)
    return [
        Route("/api/judging", work.handler(_get), methods=["GET"]),
        Route("/api/judgments", work.handler(_answer), methods=["POST"]),
        Route("/api/judging/answered", work.handler(_answered), methods=["GET"]),
        Route("/api/judging/queries", work.handler(_add_query), methods=["POST"]),
        Route("/api/judging/tuned", work.tuned, methods=["GET", "POST"]),
        Route("/api/judging/qrels", partial(_qrels, judging), methods=["GET"]),
    ]


Handle = Callable[[Judging, Request], Awaitable[Callable[[], Json]]]


class _Work:
    """What the routes share: the searches of the pools, and the tuning, which take longer than a request."""

    def __init__(self, judging: Judging):
        self._judging = judging
        self._searching: asyncio.Task[Any] | None = None
        self._tuning: asyncio.Task[str] | None = None

    def handler(self, handle: Handle) -> Callable[[Request], Awaitable[JSONResponse]]:
        """Return a handler that answers `{"preparing": true}` until the queries are searched."""

        async def answer(request: Request) -> JSONResponse:
            work = await handle(self._judging, request)
            if not await self._is_ready():
                done, queries = self._judging.preparing
                return JSONResponse({"preparing": True, "done": done, "queries": queries})
            return JSONResponse(await run_in_threadpool(work))

        return answer

    async def _is_ready(self) -> bool:
        if self._judging.is_ready:
            return True
        if self._searching is None:
            self._searching = asyncio.create_task(run_in_threadpool(self._judging.search))
        done, _ = await asyncio.wait({self._searching}, timeout=_PATIENCE)
        if done:
            task, self._searching = self._searching, None
            if task is not None:
                task.result()
        return bool(done)

    async def tuned(self, request: Request) -> JSONResponse:
        """Start the tuning, or tell what became of it."""
        if request.method == "POST":
            check_rater((await _body(request, PostedTuning)).rater)
            if self._tuning is None or self._tuning.done():
                self._tuning = asyncio.create_task(run_in_threadpool(self._judging.tune))
                await asyncio.wait({self._tuning}, timeout=_PATIENCE)
        task = self._tuning
        if task is None or not task.done():
            return JSONResponse({"running": task is not None, "path": None})
        if task.exception() is not None:
            self._tuning = None
        return JSONResponse({"running": False, "path": task.result()})


async def _get(judging: Judging, request: Request) -> Callable[[], Json]:
    given = request.query_params
    check_rater(rater := given.get("rater", ""))
    pair = (given["qid"], given.get("docid", "")) if "qid" in given else None
    return partial(judging.content, rater, pair)


async def _answer(judging: Judging, request: Request) -> Callable[[], Json]:
    posted = await _body(request, Posted)
    posted.check()
    return partial(judging.take, posted)


async def _answered(judging: Judging, request: Request) -> Callable[[], Json]:
    check_rater(rater := request.query_params.get("rater", ""))
    return partial(judging.answered, rater)


async def _add_query(judging: Judging, request: Request) -> Callable[[], Json]:
    posted = await _body(request, PostedQuery)
    check_rater(posted.rater)
    return partial(judging.add_query, posted.rater, posted.text)


async def _qrels(judging: Judging, request: Request) -> PlainTextResponse:
    """Return the grades as lines of TREC: qid, 0, docid, grade."""
    rows = (await run_in_threadpool(judging.qrels)).iter_rows()
    return PlainTextResponse("".join(f"{qid}\t0\t{docid}\t{grade}\n" for qid, docid, grade in rows))


async def _body(request: Request, kind: type[T]) -> T:
    """Return the body of a request.

    Raises:
        InputError: no JSON object, an unknown or missing field, or a value of another type.
    """
    return make_typed(kind, parse_json(await request.body(), "the body"), "the body")
