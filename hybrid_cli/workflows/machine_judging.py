"""Judging a pool by a machine: the journal of answers, the forecast, and the qrels made of them.

Each answer is on the disk before the next one is counted: in the journal of the output, or in one next to a qrels file.
An answer is found again by the hash of model, prompt, guidelines and texts, so a call after an interruption, with a
deeper pool or with other guidelines, asks only for the others. A qrels file is written whole at the end: qid, rater,
docid, grade.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from hybrid_cli import console
from hybrid_cli.collections.journal import HIGHEST, MACHINE, SUFFIX, Answer, Journal, Pair, now
from hybrid_cli.collections.readers.qrels import raters_of
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.storage import disk
from hybrid_cli.threads import ThreadPool
from hybrid_cli.workflows.machine_judges import (
    LONGEST_TEXT,
    BadAnswerError,
    ChatJudge,
    Judge,
    Question,
    SpentError,
    key_of,
)

_BAD_IN_A_ROW = 10  # answers without a grade, after which none is expected
Running = dict[Future[int], tuple[str, Pair]]


def journal_path(output: Path) -> Path:
    """Return the journal of the answers: the output, or a file next to the qrels."""
    return output if output.suffix == SUFFIX else output.with_name(f"{output.name}.answers")


def refuse_people(output: Path) -> None:
    """Refuse an output with judgments of people, which would be replaced."""
    if not output.exists() or output.suffix == SUFFIX:
        return
    others = [rater for rater in raters_of(output) if not rater.startswith(MACHINE)]
    if others or (output.stat().st_size and not raters_of(output)):
        raise InputError(
            f"{output}: has judgments that no machine gave; name another output",
            code="foreign-file", path=output, option="output",
        )  # fmt: skip


@dataclass
class MachineSession:
    """Questions of a pool, and the answers so far.

    Attributes:
        questions: pair -> key of its question.
        bad: pairs whose answers had no grade, with the reasons.
        spent: the calls of `--max-calls` are made.
    """

    judge: Judge
    journal: Journal
    questions: Mapping[Pair, tuple[str, Question]]
    bad: dict[Pair, str] = field(default_factory=dict)
    spent: bool = False
    _in_a_row: int = 0

    @classmethod
    def of(cls, judge: Judge, journal: Journal, asked: Iterable[tuple[Pair, Question]]) -> MachineSession:
        """Return a session of pairs with their texts."""
        return cls(judge, journal, {pair: (key_of(judge, question), question) for pair, question in asked})

    def waiting(self) -> dict[str, tuple[Pair, Question]]:
        """Return key -> pair and question without an answer; equal questions are asked once."""
        left = ((key, (pair, question)) for pair, (key, question) in self.questions.items())
        return {key: value for key, value in left if key not in self.journal.keys}

    def note_forecast(self) -> None:
        """Print the numbers of calls and tokens."""
        waiting = self.waiting()
        tokens = sum(self.judge.tokens(question) for _, question in waiting.values())
        known = len(self.questions) - len(waiting)
        console.note(
            f"judge: {console.counted(call=len(waiting))}"
            + (f", about {tokens:,} tokens of input" if tokens else "")
            + (f"; {known:,} answers are known" if known else ""),
            code="forecast", calls=len(waiting), tokens=tokens, known=known,
        )  # fmt: skip
        cut = {docid for (_, docid), (_, question) in self.questions.items() if len(question.text) > LONGEST_TEXT}
        if cut and isinstance(self.judge, ChatJudge):
            console.note(
                f"judge: the model sees the first {LONGEST_TEXT:,} characters of {console.counted(document=len(cut))}",
                code="truncated-documents", count=len(cut), limit=LONGEST_TEXT,
            )  # fmt: skip

    def ask(self, concurrency: int) -> None:
        """Ask for the missing grades, `concurrency` at a time.

        Raises:
            HybridError: the judge fails, or gives no usable answers.
        """
        left = iter(list(self.waiting().items()))
        running: Running = {}
        with (
            console.progress("judge", total=len(self.waiting()), unit="hits") as advance,
            ThreadPool(concurrency) as pool,
        ):
            try:
                self._start(pool, left, running, concurrency)
                while running:
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._take(future, *running.pop(future))
                        advance(1)
                    self._start(pool, left, running, concurrency)
            except BaseException:
                self.judge.close()  # a command may not answer the last question
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _start(
        self, pool: ThreadPool, left: Iterator[tuple[str, tuple[Pair, Question]]], running: Running, concurrency: int
    ) -> None:
        while not self.spent and len(running) < concurrency and (item := next(left, None)) is not None:
            key, (pair, question) = item
            running[pool.submit(self._grade, question, key)] = key, pair

    def _grade(self, question: Question, key: str) -> int:
        """Return a grade; a bad answer is asked for once more."""
        try:
            return self.judge.grade(question, key)
        except BadAnswerError:
            return self.judge.grade(question, key)

    def _take(self, future: Future[int], key: str, pair: Pair) -> None:
        """Store an answer, or count a bad one."""
        try:
            self._add({pair: (key, future.result())})
            self._in_a_row = 0
        except SpentError:
            self.spent = True
        except BadAnswerError as error:
            self.bad[pair] = str(error)
            self._in_a_row += 1
            if self._in_a_row >= _BAD_IN_A_ROW:
                raise HybridError(
                    f"judge: the last {self._in_a_row} answers of {self.judge.name} are unusable ({error}); use "
                    "another model",
                    code="unusable-answers", count=self._in_a_row, reason=str(error),
                ) from None  # fmt: skip

    def _add(self, grades: Mapping[Pair, tuple[str, int]]) -> None:
        """Store grades by pair, with the keys of their questions."""
        rater, time = MACHINE + self.judge.name, now()
        self.journal.add(
            Answer(*pair, grade=grade, rater=rater, time=time, query=self.questions[pair][1].query, key=key)
            for pair, (key, grade) in grades.items()
        )

    def grades(self) -> dict[Pair, int]:
        """Return the grades of all pairs that have one."""
        known = self.journal.keys
        return {pair: known[key] for pair, (key, _) in self.questions.items() if key in known}

    def write(self, output: Path) -> None:
        """Write the qrels, or complete the journal, and print what is in them."""
        grades, rater = self.grades(), MACHINE + self.judge.name
        if output.suffix == SUFFIX:
            self._complete(grades, rater)
        else:
            partial = output.with_name(f".{output.name}.partial")
            disk.write_text(partial, "".join(f"{q}\t{rater}\t{d}\t{grade}\n" for (q, d), grade in grades.items()))
            disk.sync(partial)
            disk.device.rename(partial, output)
            disk.sync_names(output.parent)
        left = len(self.questions) - len(grades)
        counts = ", ".join(f"{list(grades.values()).count(grade):,} of grade {grade}" for grade in range(HIGHEST + 1))
        console.note(
            f"judge: {output}: {console.counted(judgment=len(grades))} by {rater}: {counts}",
            code="judged", path=output, judgments=len(grades), queries=len({qid for qid, _ in grades}), left=left,
        )  # fmt: skip
        if self.bad:
            console.warn(
                f"judge: {console.counted(hit=len(self.bad))} got no usable answer (the last: "
                f"{list(self.bad.values())[-1]}); the same command asks again",
                code="bad-answers", count=len(self.bad), reasons=sorted(set(self.bad.values())),
            )  # fmt: skip
        if self.spent:
            console.note(
                f"judge: --max-calls is reached; the same command continues with {console.counted(hit=left)}",
                code="max-calls", option="max_calls", left=left,
            )  # fmt: skip
        if grades and len(set(grades.values())) == 1:
            console.warn(
                f"{output}: every grade is {next(iter(grades.values()))}, which says nothing",
                code="one-grade", path=output,
            )  # fmt: skip

    def _complete(self, grades: Mapping[Pair, int], rater: str) -> None:
        """Add the pairs whose question was answered for another pair, or whose last answer is to another question."""
        current = self.journal.graded(rater)
        missing = {pair: grade for pair, grade in grades.items() if current.get(pair) != grade}
        self._add({pair: (self.questions[pair][0], grade) for pair, grade in missing.items()})
