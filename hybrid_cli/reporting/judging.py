"""Judging: the pools, their texts and the answers so far; screens of a terminal, and answers by key."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hybrid_cli import console, interrupts
from hybrid_cli.artifacts.indexes import group_of, texts
from hybrid_cli.artifacts.retrievers import RetrieverFiles, reranker_path
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.journal import SKIPPED, Pair
from hybrid_cli.collections.judgments import Judgments
from hybrid_cli.commands import Compose
from hybrid_cli.console import styled
from hybrid_cli.errors import path_error
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.evaluation.retrieved import Pool
from hybrid_cli.reporting.snippets import cells, match_words
from hybrid_cli.reporting.verdict import Verdict
from hybrid_cli.runs import Run
from hybrid_cli.runs.groups import documents_of

if TYPE_CHECKING:
    from rich.text import Text


QUERIES_AT_ONCE = 20  # queries whose texts are read in one pass over the corpus


class JudgedTexts:
    """Texts of queries, and of documents that are read for several queries at once."""

    def __init__(self, queries: Path, corpora: Sequence[Path]):
        self.queries = dict(collections.read_queries(queries).select("qid", "text").iter_rows())
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
                passages = collections.passages_of(corpus, split).iter_rows()
                self._documents |= {id_of_row: (title, parts) for id_of_row, title, parts in passages}
        title, parts = self._documents[docid]
        return title, best_first(parts, query)

    def documents(self, docids: pl.Series) -> dict[str, tuple[str, str]]:
        """Return docid -> title and text of the documents that the corpora have."""
        return {docid: (title, text) for docid, title, text in texts(self._corpora, docids.unique()).iter_rows()}

    def check(self, docids: Iterable[str]) -> None:
        """Refuse documents that are not in the corpus."""
        wanted = pl.Series("docid", list(docids), pl.String)
        scans = [collections.scan(corpus).select("docid") for corpus in self._corpora]
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
        measure: name of the measure.
    """

    opened: Mapping[str, Run]
    measure: str

    def fused(self, judged: JudgedQueries) -> Run:
        """Return the fusion of the runs by min-max with equal weights, for judged queries."""
        from hybrid_cli.fusion import fuse

        qids = pl.Series(list(judged), dtype=pl.String)
        return Run.of(fuse({name: run.of_queries(qids).table() for name, run in self.opened.items()}, "minmax"))

    def verdict(self, fused: tuple[str, Run], judged: JudgedQueries) -> Verdict:
        """Compare a fusion, with its name, with the best run, on judged queries in their order."""
        grades = [(qid, docid, grade) for qid, of_query in judged.items() for docid, grade in of_query.items()]
        qrels = pl.DataFrame(grades, schema={"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}, orient="row")

        def values(run: Run) -> np.ndarray:
            hits = run.of_queries(qrels["qid"].unique()).table()
            if not len(hits):
                return np.zeros(len(judged))
            return evaluate_run(hits, qrels, [self.measure])["value"].to_numpy()

        alone = {name: values(run) for name, run in self.opened.items()}
        best = max(alone, key=lambda name: alone[name].mean())
        return Verdict.of(self.measure, (best, alone[best]), (fused[0], values(fused[1])), every_look=True)


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


# -------------------------------------------------------------------------------------------------------------- screens

GRADES = {"0": "not relevant", "1": "partly", "2": "relevant", "3": "fully relevant"}
REASONS = {"1": "cannot tell", "2": "text unreadable", "3": "query unclear", "4": "other"}  # of a skipped hit
SKIP, REASON, NEXT, LATER, UNDO, QUIT = "s", "S", "n", "w", "u", "q"
MORE, BACK, MATCH, LIST, HELP = " ", "b", "m", "l", "?"
DOWN, UP, OPEN = "j", "k", ("\n", "\r")  # in the list
ANSWERS = "0-3 (grade), s (skip hit), n (next query), w (later), u (undo), q (quit)"
_WIDEST, _LEAST_LINES = 100, 3
_MARK = "bold underline"


@dataclass(frozen=True)
class View:
    """Everything that the screen shows.

    Attributes:
        query: text of the query.
        position: position of the hit in the pool, from 1.
        pooled: number of hits in the pool.
        title, text: of the hit; the title is the document id if the document has none.
        judged: number of judged queries.
        wanted: number of queries at which the command ends.
        notice: answer to the last key.
        page: page of the text, from 0; negative ones count from the end.
        answer: earlier answer that the next one changes; empty for a hit without an answer.
    """

    query: str
    position: int
    pooled: int
    title: str
    text: str
    judged: int
    wanted: int
    notice: str = ""
    page: int = 0
    answer: str = ""

    def after(self, key: str, width: int, height: int) -> int:
        """Return the page that a key shows."""
        pages = _pages(self, width, height)[1]
        page = self.page % len(pages)
        if key == MATCH:
            following = [*range(page + 1, len(pages)), *range(page + 1)]
            return next((number for number in following if any(map(_is_marked, pages[number]))), page)
        return (page + (1 if key == MORE else -1)) % len(pages)


Lines = Callable[[int, int], list["Text"]]  # of a screen, by its width and height


def size() -> tuple[int, int]:
    """Return width and height of the screens."""
    out = console.stdout()
    return min(out.width, _WIDEST), out.height


def draw(lines_of: Lines) -> None:
    """Show the lines of a hit, or of the list, on the cleared screen."""
    out = console.stdout()
    lines = lines_of(*size())
    out.clear()
    for number, line in enumerate(lines, 1):
        out.print(line, end="" if number == len(lines) else "\n", soft_wrap=True)


def show_plain(view: View) -> None:
    """Print the hit without its grades and keys, for answers that come from a file or a pipe."""
    title = console.one_line(view.title)
    console.result(f"query: {console.one_line(view.query)}\nhit {view.position} of {view.pooled}: {title}")
    console.result("\n".join(view.text.splitlines()) + "\n")


def screen(view: View, width: int, height: int) -> list[Text]:
    """Return the lines of the screen, none wider than `width`, and as many as fit in `height`."""
    head, pages = _pages(view, width, height)
    page = view.page % len(pages)
    more = f"page {page + 1} of {len(pages)}   space next   b previous   m match" if len(pages) > 1 else ""
    earlier = f"your answer: {view.answer}; 0-3 or s changes it, l goes back" if view.answer else ""
    lines = [*head, *pages[page], styled("")]
    lines.append(styled(view.notice or earlier or more, "yellow" if view.notice or earlier else "dim"))
    lines.append(_keys(GRADES.items()))
    keys = {SKIP: "skip", REASON: "with reason", LATER: "later", NEXT: "next query", UNDO: "undo", LIST: "list"}
    lines.append(_keys({**keys, QUIT: "quit"}.items()))
    lines.append(styled(f"{view.judged} of {view.wanted} queries judged", "dim"))
    return _cut(lines, width)


def _cut(lines: list[Text], width: int) -> list[Text]:
    """Return lines that are at most `width` wide."""
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def listing(answers: Sequence[tuple[str, str, str]], chosen: int, width: int, height: int) -> list[Text]:
    """Return the lines of the list of answered hits, the last one first: the part with the chosen row.

    Args:
        answers: answer, query and title of each hit.
        chosen: number of the row that a key opens.
        width, height: of the screen.
    """
    room = max(_LEAST_LINES, height - 4)
    begin = chosen // room * room
    rows = []
    for number, (answer, query, title) in enumerate(answers[begin : begin + room], begin):
        mark = ">" if number == chosen else " "
        rows.append(styled(f"{mark} {answer}  {cells(console.one_line(query), width // 3)}: {console.one_line(title)}"))
    head = f"Answered hits: {chosen + 1:,} of {len(answers):,}, the last one first"
    keys = _keys({f"{DOWN}, {UP}": "down, up", "Enter": "show and change", LIST: "back"}.items())
    return _cut([styled(head, "bold"), styled(""), *rows, *[styled("")] * (room - len(rows) + 1), keys], width)


def _pages(view: View, width: int, height: int) -> tuple[list[Text], list[list[Text]]]:
    """Return the lines above the text, and the pages of the text, of equal length."""
    head = _head(view, width)
    text = re.sub(r"\n\s*\n\s*\n", "\n\n", view.text.strip())
    body, room = _wrapped(text, width, None, view.query) if text else [], max(_LEAST_LINES, height - len(head) - 5)
    pages = [body[begin : begin + room] for begin in range(0, max(len(body), 1), room)]
    pages[-1] += [styled("")] * (room - len(pages[-1]))
    return head, pages


def _is_marked(line: Text) -> bool:
    return any(span.style == _MARK for span in line.spans)


def _head(view: View, width: int) -> list[Text]:
    position = f"hit {view.position} of {view.pooled}"
    number = f"Query {view.judged + 1}"
    first = styled(number, "bold").append(position.rjust(width - len(number)), "dim")
    title = _wrapped(view.title, width, 2, view.query, "bold")
    return [first, *_wrapped(view.query, width, 3), styled("─" * width, "dim"), *title, styled("")]


def _wrapped(text: str, width: int, most: int | None, mark: str = "", style: str = "") -> list[Text]:
    """Return the lines of a text, with the words of the query `mark` marked; at most `most` lines."""
    from rich.console import Console

    whole = styled("\n".join(text.expandtabs(4).splitlines()), style)
    for begin, end in match_words(mark).spans(whole.plain) if mark else ():
        whole.stylize(_MARK, begin, end)
    lines = list(whole.wrap(Console(width=width), width))
    if most is not None and len(lines) > most:
        lines = lines[:most]
        lines[-1].truncate(width - 2)
        lines[-1].append(" …")
    return lines


def _keys(named: Iterable[tuple[str, str]]) -> Text:
    line = styled("")
    for key, meaning in named:
        line.append(f"{key} ", "bold").append(f"{meaning}   ")
    line.rstrip()
    return line


# ---------------------------------------------------------------------------------------------------------------- keys

END = ""  # end of the input
_ESCAPE, _END_KEYS = 0x1B, b"\x04"
_SEQUENCE_SECONDS = 0.05
_REDRAW = tuple(getattr(signal, name) for name in ("SIGCONT", "SIGWINCH") if hasattr(signal, name))


def is_interactive() -> bool:
    """Return whether keys can be read one by one, and the screen can be drawn."""
    with suppress(ImportError):
        import termios  # noqa: F401

        return console.asks() and sys.stdout.isatty()
    return False


@contextmanager
def keys(redraw: Callable[[], None]) -> Iterator[Callable[[], str]]:
    """Yield a function that waits for a key and returns its ASCII character; `END` at the end of the input.

    Function keys and letters outside of ASCII are ignored. The terminal is restored at the end.

    Args:
        redraw: called when the window changes its size, and when the stopped process continues.
    """
    import termios
    import tty

    terminal = sys.stdin.fileno()
    saved = termios.tcgetattr(terminal)

    def resume(*_: object) -> None:
        tty.setcbreak(terminal, termios.TCSADRAIN)
        redraw()

    before = {number: signal.signal(number, resume) for number in _REDRAW}
    try:
        with interrupts.waiting() as wait:
            tty.setcbreak(terminal, termios.TCSADRAIN)
            yield lambda: _key(terminal, wait)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, saved)
        for number, handler in before.items():
            signal.signal(number, handler)


def _key(terminal: int, wait: Callable[[int], None]) -> str:
    while True:
        wait(terminal)
        try:
            byte = os.read(terminal, 1)
        except OSError:  # the terminal was closed
            return END
        if not byte or byte in _END_KEYS:
            return END
        if byte[0] == _ESCAPE:
            _skip_sequence(terminal)
        elif byte[0] < 0x80:
            return byte.decode()


def discard_keys() -> None:
    """Discard the keys that were typed and not read."""
    import termios

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _skip_sequence(terminal: int) -> None:
    """Read the rest of an escape sequence: Delete sends `ESC [ 3 ~`, which contains a grade."""

    def following() -> bytes:
        return os.read(terminal, 1) if select.select([terminal], [], [], _SEQUENCE_SECONDS)[0] else b""

    if (byte := following()) == b"O":
        following()
    elif byte == b"[":
        while (byte := following()) and not 0x40 <= byte[0] <= 0x7E:
            pass


# -------------------------------------------------------------------------------------------------------------- answers

_IDLE = 60.0  # seconds after which a person is away
_NEEDS_JOURNAL = "needs --output NAME.jsonl"


@dataclass
class Judging:
    """A session with its texts and runs, as screens and lines show it."""

    session: JudgingSession
    texts: JudgedTexts
    compared: ComparedRuns
    _shown: Lines | None = None

    def view(self, pool: Pool, docid: str) -> View:
        """Return the content of the screen."""
        session, query = self.session, self.texts.queries[pool.qid]
        title, text = self.texts.of(docid, query, session.ahead(pool))
        return View(
            query,
            pool.docids.index(docid) + 1,
            len(pool.docids),
            title or docid,
            text,
            len(session.judged()),
            session.stop_after,
            answer=self.earlier((pool.qid, docid)),
        )

    def earlier(self, pair: Pair) -> str:
        """Return the earlier answer for a hit; empty without one."""
        grades = self.session.judgments.grades
        return "" if pair not in grades else SKIP if grades[pair] is SKIPPED else str(grades[pair])

    def answer(self, key: str, pool: Pool, docid: str, seconds: float | None = None, reason: str | None = None) -> str:
        """Store the answer of a key; return a notice for the screen."""
        judgments = self.session.judgments
        details = {"seconds": seconds, "query": self.texts.queries[pool.qid]}
        if key in GRADES:
            judgments.add(pool.qid, [docid], int(key), **details)
        elif key == SKIP:
            judgments.add(pool.qid, [docid], SKIPPED, reason=reason, **details)
        elif key == NEXT:
            judgments.add(pool.qid, self.session.waiting(pool), SKIPPED, **details)
        elif key == LATER:
            judgments.put_off(pool.qid, docid, **details)
        elif key == UNDO:
            return "" if judgments.undo() else "nothing to undo"
        elif key == HELP:
            return ANSWERS
        else:
            return f"{key if key.isprintable() else repr(key)} is no answer"
        return ""

    def in_terminal(self) -> None:
        """Show one hit at a time on the second screen of the terminal, until the person quits or no hit is left."""
        with console.stdout().screen(hide_cursor=False), keys(self._redraw) as key:
            while (hit := self.session.hit()) is not None and self._ask(hit, key):
                pass

    def _show(self, shown: Lines) -> None:
        self._shown = shown
        draw(shown)

    def _redraw(self) -> None:
        if self._shown is not None:
            draw(self._shown)

    def _ask(self, hit: tuple[Pool, str], key: Callable[[], str], answered: bool = False) -> bool:
        """Show a hit until it has a new answer; return False to quit.

        Args:
            hit: query and document.
            key: waits for a key.
            answered: the hit has an answer, which may be changed.
        """
        view = self.view(*hit)
        if self._shown is None:  # keys typed before the first hit are no answers
            discard_keys()
        begin = time.monotonic()
        while True:
            self._show(partial(screen, view))
            pressed = key()
            if pressed in (QUIT, END):
                return False
            if pressed in (MORE, BACK, MATCH):
                view = replace(view, notice="", page=view.after(pressed, *size()))
            elif pressed == LIST:
                return answered or self._list(key)
            elif pressed == REASON:
                view = replace(view, notice=self._reason(view, hit, key, begin))
            elif answered and pressed not in (*GRADES, SKIP):
                view = replace(view, notice="0-3 or s changes the answer, l goes back")
            elif answered and not self.session.judgments.detailed:
                view = replace(view, notice=f"a change {_NEEDS_JOURNAL}")
            else:
                seconds = round(min(time.monotonic() - begin, _IDLE), 1)
                view = replace(view, notice=self.answer(pressed, *hit, seconds))
            if not view.notice and pressed not in (MORE, BACK, MATCH):
                return True

    def _reason(self, view: View, hit: tuple[Pool, str], key: Callable[[], str], begin: float) -> str:
        """Skip a hit with a reason; return a notice for the screen."""
        if not self.session.judgments.detailed:
            return f"a reason {_NEEDS_JOURNAL}"
        reasons = "   ".join(f"{number} {reason}" for number, reason in REASONS.items())
        self._show(partial(screen, replace(view, notice=f"skip, because: {reasons}")))
        if (reason := REASONS.get(key())) is None:
            return "not skipped"
        seconds = round(min(time.monotonic() - begin, _IDLE), 1)
        return self.answer(SKIP, *hit, seconds, reason)

    def _list(self, key: Callable[[], str]) -> bool:
        """Show the answered hits, and change one; return False to quit."""
        pairs = self.session.answered()
        titles = self.texts.documents(pl.Series([docid for _, docid in pairs], dtype=pl.String))
        chosen = 0
        while pairs:
            self._show(partial(listing, [self._row(pair, titles) for pair in pairs], chosen))
            pressed = key()
            if pressed == END:
                return False
            if pressed in (DOWN, UP):
                chosen = (chosen + (1 if pressed == DOWN else -1)) % len(pairs)
            elif pressed in OPEN:
                qid, docid = pairs[chosen]
                pool = next(pool for pool in self.session.pools if pool.qid == qid)
                if not self._ask((pool, docid), key, answered=True):
                    return False
            elif pressed in (LIST, QUIT):
                break
        return True

    def _row(self, pair: Pair, titles: dict[str, tuple[str, str]]) -> tuple[str, str, str]:
        """Return answer, query and title of an answered hit."""
        title = titles.get(pair[1], ("", ""))[0] or pair[1]
        return self.earlier(pair), self.texts.queries[pair[0]], title


def tuning(files: RetrieverFiles, qrels: Path, queries: Path, measure: str) -> Compose:
    """Return the settings that compose the indexes of a retriever again, tuned on judgments.

    Args:
        files: the retriever; the tuned one is `NAME-tuned` next to it.
        qrels: file of judgments.
        queries: file of the queries.
        measure: measure that chooses the fusion.
    """
    stored, folder = files.stored, Path(os.path.normpath(files.folder))
    output = folder.with_name(f"{folder.name}-tuned")
    settings = Compose(files.indexes, tune=True, qrels=qrels, queries=queries, measure=measure, output=output)
    if stored.depth != settings.depth:
        settings = settings.changed(depth=stored.depth)
    if stored.group != group_of(None, files.manifests):
        settings = settings.changed(group=stored.group)
    if stored.reranker is not None:
        model = reranker_path(folder, stored.reranker)
        settings = settings.changed(reranker=model, rerank_depth=stored.reranker["depth"])
    return settings
