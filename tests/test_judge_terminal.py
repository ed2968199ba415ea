"""`judge` in a pseudo-terminal: keys, the screen, kills at random keys, and the state of the terminal at the end."""

import json
import os
import re
import select
import signal
import termios
import time
from pathlib import Path

import pytest
from command import ran
from judging import FIRST, SECOND, lines_of
from terminal import Terminal
from tiny_collection import TINY_DOCUMENTS, TINY_QUERIES

from hybrid_cli.reporting.judging import ANSWERS, discard_keys

TITLES = {title: docid for docid, title, _ in TINY_DOCUMENTS}
QUERIES = {text: qid for qid, text in TINY_QUERIES["test"]}
CLEAR = "\x1b[2J"
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Judging(Terminal):
    def __init__(self, *options: object, output: str = "mine.tsv"):
        super().__init__(
            "judge", "tiny", "--split", "test", f"{FIRST}.trec", f"{SECOND}.trec", "--output", output, *options
        )

    def screens(self) -> list[str]:
        drawn = self.received.decode("utf-8", "replace").split(CLEAR)[1:]
        return [text for text in (_STYLE.sub("", each) for each in drawn) if "queries judged" in text]

    def wait_for_screen(self, number: int) -> str:
        """Return the text of screen `number`, from 1, when it is complete."""
        deadline = time.monotonic() + 120
        while len(self.screens()) < number:
            assert self.read(), self.received
            assert time.monotonic() < deadline, self.received
        return self.screens()[number - 1]


def pair_on(screen: str) -> tuple[str, str]:
    lines = [line.strip() for line in screen.splitlines()]
    (qid,) = {QUERIES[line] for line in lines if line in QUERIES}
    rule = next(number for number, line in enumerate(lines) if line.startswith("──"))
    return qid, TITLES[lines[rule + 1]]


def stored() -> dict[tuple[str, str], str]:
    found = {(qid, docid): grade for qid, _, docid, grade in lines_of(Path("mine.tsv"))}
    return found | {(qid, docid): "s" for qid, _, docid, _ in lines_of(Path("mine.tsv.skipped"))}


def test_keys_typed_before_the_first_hit_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grade of a document that nobody had seen took 0.0 seconds."""
    terminal, other = os.openpty()
    with open(other) as typed:
        monkeypatch.setattr("sys.stdin", typed)
        os.write(terminal, b"22\n")
        assert select.select([other], [], [], 5)[0]
        discard_keys()
        assert not select.select([other], [], [], 0)[0]
    os.close(terminal)


def test_keys_grade_skip_undo_page_and_quit(two_runs: Path) -> None:
    session = Judging()
    first = session.wait_for_screen(1)
    assert len(first.split("\n")) == 24
    assert "hit 1 of " in first
    assert "0 not relevant" in first
    assert FIRST not in first
    assert SECOND not in first
    session.press(b"2")
    second = session.wait_for_screen(2)
    assert stored() == {pair_on(first): "2"}
    session.press(b"s")
    third = session.wait_for_screen(3)
    assert stored() == {pair_on(first): "2", pair_on(second): "s"}
    session.press(b"u")
    assert session.wait_for_screen(4) == second
    session.press(b"?")
    assert ANSWERS[:40] in session.wait_for_screen(5)
    session.press(b"\x1b[3~\x1bOP\x1b[A\xc3\xa9 ")  # Delete, F1, up, é: none is an answer; space shows the next page
    assert pair_on(session.wait_for_screen(6)) == pair_on(second)
    assert stored() == {pair_on(first): "2"}
    session.press(b"0")
    assert session.wait_for_screen(7) == third
    session.press(b"q")
    ending = session.end()
    assert session.code == 0
    assert "2 judgments; 0 of 20 queries judged" in ending.replace("\r\n", " ")
    assert ending.rfind("\x1b[?1049l") > ending.rfind(CLEAR), "the first screen of the terminal is back"


@pytest.mark.parametrize("ending", ["ctrl-c", signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_keeps_answers_and_terminal(two_runs: Path, ending: str | signal.Signals) -> None:
    session = Judging()
    before = termios.tcgetattr(session.terminal)
    first = session.wait_for_screen(1)
    assert termios.tcgetattr(session.terminal) != before
    session.press(b"3")
    session.wait_for_screen(2)
    if isinstance(ending, signal.Signals):
        session.send(ending)
    else:
        session.press(b"\x03")
    session.wait_for(b"resume")
    assert termios.tcgetattr(session.terminal) == before
    printed, code = ("terminated", 128 + ending) if isinstance(ending, signal.Signals) else ("interrupted", 130)
    assert session.end().count(f"hybrid: {printed}; run the same command again to resume") == 1
    assert session.code == code
    assert stored() == {pair_on(first): "3"}


def rows_of() -> list[dict[str, object]]:
    return [json.loads(line) for line in Path("mine.jsonl").read_text("utf-8").splitlines()]


def test_later_a_reason_and_the_list_change_answers_in_the_journal(two_runs: Path) -> None:
    session = Judging("--rater", "anna", output="mine.jsonl")
    first = pair_on(session.wait_for_screen(1))
    session.press(b"w")
    second = pair_on(session.wait_for_screen(2))
    assert second != first
    session.press(b"S")
    assert "1 cannot tell" in session.wait_for_screen(3)
    session.press(b"x")
    assert "not skipped" in session.wait_for_screen(4)
    session.press(b"S")
    session.wait_for_screen(5)
    session.press(b"3")
    third = pair_on(session.wait_for_screen(6))
    session.press(b"1")
    fourth = session.wait_for_screen(7)
    session.press(b"l")
    session.wait_for(b"show and change")
    session.press(b"j\n")
    changed = session.wait_for_screen(8)
    assert pair_on(changed) == second
    assert "your answer: s" in changed
    session.press(b"n")
    assert "changes the answer" in session.wait_for_screen(9)
    session.press(b"2")
    session.wait_for_texts(3, b"show and change")
    session.press(b"l")
    assert session.wait_for_screen(10) == fourth
    session.press(b"q")
    assert "2 judgments; " in session.end().replace("\r\n", " ")
    rows = rows_of()
    assert [(row["qid"], row["docid"]) for row in rows] == [first, second, third, second]
    expected = [(None, None, True), (None, "query unclear", None), (1, None, None), (2, None, None)]
    assert [(row["grade"], row.get("reason"), row.get("later")) for row in rows] == expected
    assert all(row["rater"] == "anna" and row["query"] and 0 <= float(str(row["seconds"])) < 60 for row in rows)


def test_pages_of_a_long_text_and_the_first_match(two_runs: Path) -> None:
    Path("tiny").unlink()
    filler = " ".join(f"word{number}" for number in range(900))
    documents = "".join(
        json.dumps({"id": docid, "title": title, "text": f"{filler} {text} {filler}"}) + "\n"
        for docid, title, text in TINY_DOCUMENTS
        if " " not in docid
    )
    Path("docs.jsonl").write_text(documents)
    Path("topics.tsv").write_text("".join(f"{qid}\t{text} word1 word1700\n" for qid, text in TINY_QUERIES["test"]))
    words = ["prepare", "files", "docs.jsonl", "--queries", "test=topics.tsv", "--output", "tiny"]
    ran(*words)
    session = Judging()
    first = session.wait_for_screen(1)
    assert "page 1 of" in first
    count = int(first.partition("page 1 of ")[2].split()[0])
    number = 1

    def page_after(key: bytes) -> int:
        nonlocal number
        session.press(key)
        number += 1
        return int(session.wait_for_screen(number).partition("page ")[2].split()[0])

    assert page_after(b" ") == 2
    assert page_after(b"b") == 1
    assert page_after(b"b") == count
    assert page_after(b" ") == 1
    matches = [page_after(b"m") for _ in range(4)]
    assert matches[-1] in matches[:-1], "after the last match comes the first"
    assert all(1 <= page <= count for page in matches)
    session.press(b"q")
    session.end()
    assert session.code == 0


def test_a_qrels_file_stores_no_reasons_and_no_changes(two_runs: Path) -> None:
    session = Judging()
    first = pair_on(session.wait_for_screen(1))
    session.press(b"1")
    session.wait_for_screen(2)
    session.press(b"S")
    assert "needs --output NAME.jsonl" in session.wait_for_screen(3)
    session.press(b"l")
    session.wait_for(b"show and change")
    session.press(b"\n")
    assert pair_on(session.wait_for_screen(4)) == first
    session.press(b"2")
    assert "needs --output NAME.jsonl" in session.wait_for_screen(5)
    session.press(b"q")
    session.end()
    assert stored() == {first: "1"}
