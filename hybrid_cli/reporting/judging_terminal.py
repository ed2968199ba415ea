"""Judging in a terminal, key by key."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from hybrid_cli.collections.journal import SKIPPED, Pair
from hybrid_cli.evaluation.pools import Pool
from hybrid_cli.reporting import judging, keyboard
from hybrid_cli.reporting.judging import GRADES, LATER, NEXT, QUIT, REASONS, SKIP, UNDO, Listing, View
from hybrid_cli.reporting.judging_session import ComparedRuns, JudgedTexts, JudgingSession

_IDLE = 60.0  # seconds after which a person is away
_NEEDS_JOURNAL = "needs --output NAME.jsonl"


@dataclass
class Judging:
    """A session with its texts and runs, as screens and lines show it."""

    session: JudgingSession
    texts: JudgedTexts
    compared: ComparedRuns

    def view(self, pool: Pool, docid: str) -> View:
        """Return the content of the screen."""
        session, query = self.session, self.texts.queries[pool.qid]
        title, text = self.texts.of(docid, query, session.ahead(pool))
        judged = session.judged()
        return View(
            query, pool.docids.index(docid) + 1, len(pool.docids), title or docid, text, len(judged),
            session.stop_after, self.compared.weight(judged), answer=self.earlier((pool.qid, docid)),
        )  # fmt: skip

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
        else:
            return f"{key if key.isprintable() else repr(key)} is no answer"
        return ""

    def in_terminal(self) -> None:
        """Show one hit at a time, and read keys."""
        _Screens(self).run()


class _Screens:
    """The screens of a session, one of which is shown."""

    def __init__(self, judging_: Judging):
        self._judging, self._session = judging_, judging_.session
        self._shown: View | Listing | None = None

    def run(self) -> None:
        """Show hits until the person quits or no hit is left."""
        with judging.alternate_screen(), keyboard.keys(self._redraw) as key:
            while (hit := self._session.hit()) is not None and self._ask(hit, key):
                pass

    def _show(self, shown: View | Listing) -> None:
        self._shown = shown
        judging.draw(shown)

    def _redraw(self) -> None:
        if self._shown is not None:
            judging.draw(self._shown)

    def _ask(self, hit: tuple[Pool, str], key: Callable[[], str], answered: bool = False) -> bool:
        """Show a hit until it has a new answer; return False to quit.

        Args:
            hit: query and document.
            key: waits for a key.
            answered: the hit has an answer, which may be changed.
        """
        begin = time.monotonic()
        view = self._judging.view(*hit)
        while True:
            self._show(view)
            pressed = key()
            if pressed in (QUIT, keyboard.END):
                return False
            if pressed in (judging.MORE, judging.BACK, judging.MATCH):
                view = replace(view, notice="", page=view.after(pressed, *judging.size()))
            elif pressed == judging.LIST:
                return answered or self._list(key)
            elif pressed == judging.REASON:
                view = replace(view, notice=self._reason(view, hit, key, begin))
            elif answered and pressed not in (*GRADES, SKIP):
                view = replace(view, notice="0-3 or s changes the answer, l goes back")
            elif answered and not self._session.judgments.detailed:
                view = replace(view, notice=f"a change {_NEEDS_JOURNAL}")
            else:
                seconds = round(min(time.monotonic() - begin, _IDLE), 1)
                view = replace(view, notice=self._judging.answer(pressed, *hit, seconds))
            if not view.notice and pressed not in (judging.MORE, judging.BACK, judging.MATCH):
                return True

    def _reason(self, view: View, hit: tuple[Pool, str], key: Callable[[], str], begin: float) -> str:
        """Skip a hit with a reason; return a notice for the screen."""
        if not self._session.judgments.detailed:
            return f"a reason {_NEEDS_JOURNAL}"
        reasons = "   ".join(f"{number} {reason}" for number, reason in REASONS.items())
        self._show(replace(view, notice=f"skip, because: {reasons}"))
        if (reason := REASONS.get(key())) is None:
            return "not skipped"
        seconds = round(min(time.monotonic() - begin, _IDLE), 1)
        return self._judging.answer(SKIP, *hit, seconds, reason)

    def _list(self, key: Callable[[], str]) -> bool:
        """Show the answered hits, and change one; return False to quit."""
        pairs = self._session.answered()
        titles = self._judging.texts.documents(pl.Series([docid for _, docid in pairs], dtype=pl.String))
        chosen = 0
        while pairs:
            rows = [self._row(pair, titles) for pair in pairs]
            shown = Listing(rows, chosen)
            self._show(shown)
            pressed = key()
            if pressed == keyboard.END:
                return False
            if pressed in (judging.DOWN, judging.UP):
                chosen = shown.after(pressed)
            elif pressed in judging.OPEN:
                qid, docid = pairs[chosen]
                pool = next(pool for pool in self._session.pools if pool.qid == qid)
                if not self._ask((pool, docid), key, answered=True):
                    return False
            elif pressed in (judging.LIST, QUIT):
                break
        return True

    def _row(self, pair: Pair, titles: dict[str, tuple[str, str]]) -> tuple[str, str, str]:
        """Return answer, query and title of an answered hit."""
        title = titles.get(pair[1], ("", ""))[0] or pair[1]
        return self._judging.earlier(pair), self._judging.texts.queries[pair[0]], title
