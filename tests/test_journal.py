"""The journal of judgments: lines, kills, undo, several raters, and the commands that read and write it."""

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import Done, hybrid, raises, ran
from judging import FIRST, QIDS, SECOND, Dying, Killed

from hybrid_cli.collections import collection
from hybrid_cli.collections.collection import read_qrels
from hybrid_cli.collections.journal import SKIPPED, Answer, Journal, is_rater
from hybrid_cli.collections.judgments import JournalJudgments, open_judgments
from hybrid_cli.collections.readers.qrels import JudgmentFile
from hybrid_cli.inputs.rows import InputFile
from hybrid_cli.storage import disk

RUNS = [f"{FIRST}.trec", f"{SECOND}.trec"]
NAME = Path("judgments.jsonl")


def judged(monkeypatch: pytest.MonkeyPatch, answers: str, *options: object) -> Done:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{answer}\n" for answer in answers)))
    return hybrid("judge", "tiny", "--split", "test", *RUNS, "--output", NAME, *options)


def rows_of(path: Path = NAME) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write(path: Path, *answers: Answer) -> Path:
    path.write_text("".join(answer.line() for answer in answers), "utf-8")
    return path


def of(rater: str, docid: str, grade: int | None, qid: str = "q", *, settles: bool = False) -> Answer:
    return Answer(qid, docid, grade, rater, settles=settles)


def test_a_line_has_the_answer_and_nothing_without_a_value(tmp_path: Path) -> None:
    judgments = open_judgments(tmp_path / "j.jsonl", "anna")
    judgments.add("q1", ["d1"], 0, seconds=1.5, query="für wen?")
    judgments.add("q1", ["d2"], SKIPPED, reason="cannot tell")
    judgments.put_off("q1", "d3")
    judgments.undo()
    judgments.close()
    rows = rows_of(tmp_path / "j.jsonl")
    times = {row.pop("time") for row in rows}
    assert all(str(time).endswith("Z") for time in times)
    assert rows == [
        {"qid": "q1", "docid": "d1", "grade": 0, "rater": "anna", "seconds": 1.5, "query": "für wen?"},
        {"qid": "q1", "docid": "d2", "grade": None, "rater": "anna", "reason": "cannot tell"},
        {"qid": "q1", "docid": "d3", "grade": None, "rater": "anna", "later": True},
        {"qid": "q1", "docid": "d3", "rater": "anna", "undo": True},
    ]


def test_the_last_answer_of_a_rater_holds_and_an_undo_restores_the_one_before(tmp_path: Path) -> None:
    judgments = open_judgments(tmp_path / "j.jsonl", "anna")
    assert isinstance(judgments, JournalJudgments)
    judgments.add("q", ["a"], 1)
    judgments.put_off("q", "b")
    judgments.add("q", ["a"], 3)
    judgments.add("q", ["b", "c"], SKIPPED)
    assert (judgments.grades, list(judgments.later)) == ({("q", "a"): 3, ("q", "b"): None, ("q", "c"): None}, [])
    assert judgments.undo() == ("q", "b")
    assert (judgments.grades, list(judgments.later)) == ({("q", "a"): 3}, [("q", "b")])
    judgments.close()
    again = open_judgments(tmp_path / "j.jsonl", "anna")
    assert (again.grades, list(again.later)) == (judgments.grades, list(judgments.later))
    assert [again.undo() for _ in range(4)] == [("q", "a"), ("q", "b"), ("q", "a"), None]
    assert (again.grades, list(again.later)) == ({}, [])
    assert len(rows_of(tmp_path / "j.jsonl")) == 5 + 2 + 3, "nothing is rewritten"


def test_an_answer_with_a_known_id_is_stored_once(tmp_path: Path) -> None:
    judgments = open_judgments(tmp_path / "j.jsonl", "anna")
    judgments.add("q", ["a"], 1, id="x1")
    judgments.add("q", ["b"], 2, id="x2")
    assert judgments.undo(id="x3") == ("q", "b")
    assert judgments.undo(id="x3") is None
    judgments.close()
    again = open_judgments(tmp_path / "j.jsonl", "anna")
    again.add("q", ["a"], 3, id="x1")
    again.add("q", ["b"], 2, id="x2")
    assert again.grades == {("q", "a"): 1}
    assert len(rows_of(tmp_path / "j.jsonl")) == 3


@pytest.mark.parametrize(
    "line",
    [
        *("[]", "3", "{}", '{"qid": "q"}', '{"qid": 3, "docid": "d", "grade": 1}', '{"qid": "q', "q 0 d 1"),
        *('{"qid": "q", "docid": "d", ' + rest for rest in ('"grade": 4}', '"grade": "1"}', '"grade": true}')),
        *('{"qid": "q", "docid": "d", ' + rest for rest in ('"undo": 1}', '"relevance": 1, "seconds": "2"}')),
    ],
)
def test_a_line_that_is_no_answer_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(f"{of('anna', 'a', 1).line()}{line}\n")
    with raises("not-an-answer", path=path, line=2):
        read_qrels(path)
    with raises("not-an-answer", path=path, line=2):
        open_judgments(path)
    assert path.read_text().endswith(f"{line}\n")


def test_fields_of_later_versions_are_kept_and_ignored(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    line = '{"qid": "q", "docid": "d", "grade": 2, "rater": "anna", "mood": "good"}\n'
    path.write_text(line)
    judgments = open_judgments(path, "anna")
    judgments.add("q", ["e"], 0)
    assert judgments.grades == {("q", "d"): 2, ("q", "e"): 0}
    assert path.read_text().startswith(line)


def test_lone_surrogates_of_another_program_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "judgments.jsonl"
    path.write_text('{"qid": "q\\ud800", "docid": "d\\udfff", "grade": 1, "rater": "ann", "query": "\\ud800"}\n')
    assert collection.read_qrels(path).select("qid", "docid").rows() == [("q\ufffd", "d\ufffd")]
    assert collection.read_queries(path)["text"].to_list() == ["\ufffd"]


def test_a_journal_is_told_from_judgments_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "qrels.jsonl"
    path.write_text('{"qid": "q", "docid": "d", "relevance": 7}\n')
    assert Journal.of(InputFile.of(path)) is None
    assert read_qrels(path).rows() == [("q", "d", 7)]
    assert Journal.of(InputFile.of(write(tmp_path / "j.jsonl", of("anna", "d", 1)))) is not None
    path.write_text('{"qid": "q", "docid": "d", "relevance": 7}\n')
    with raises("other-suffix"):
        open_judgments(tmp_path / "j.json")


def answer_all(path: Path, pairs: Sequence[tuple[str, str]], skipped: str = "") -> None:
    judgments = open_judgments(path, "anna")
    for qid, docid in pairs:
        if (qid, docid) not in judgments.grades:
            judgments.add(qid, [docid], SKIPPED if docid == skipped else len(docid) % 4, query="été 日本")
    judgments.close()


def graded(path: Path) -> dict[tuple[str, str], int]:
    return {(qid, docid): grade for qid, docid, grade in read_qrels(path).iter_rows()}


PAIRS = [(qid, docid) for qid in ("q 1", "q2") for docid in ("d1", "d 2", "d11", "日本")]
FORMS = pytest.mark.parametrize("name", ["j.jsonl", "mine.tsv"])


@FORMS
def test_a_file_cut_at_any_byte_keeps_the_complete_answers(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    answer_all(path, PAIRS)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        complete = whole[: size + 1].count(b"\n")  # a line without its line break is complete
        if complete and name == "j.jsonl":
            assert list(graded(path)) == PAIRS[:complete], size
        assert path.read_bytes() == whole[:size], "readers change nothing"
        judgments = open_judgments(path, "anna")
        assert list(judgments.grades) == PAIRS[:complete], size
        judgments.close()
        answer_all(path, PAIRS)
        assert list(graded(path)) == PAIRS
        assert path.read_bytes().count(b"\n") == len(PAIRS)
        assert path.read_bytes() == whole or name == "j.jsonl"  # with times
    if name == "j.jsonl":
        whole = path.read_bytes()
        path.write_bytes(whole + bytes(100))  # blocks that did not reach the disk
        answer_all(path, PAIRS)
        assert path.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99, 1.0])
@FORMS
def test_a_kill_loses_no_earlier_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: float
) -> None:
    kills, files = 0, 1 if name == "j.jsonl" else 2  # with that of the skipped hits
    answer_all(tmp_path / f"0{name}", PAIRS, "d 2")
    for last in range(1, 60):
        path = tmp_path / f"{last}{name}"
        dying = Dying(last, part)
        monkeypatch.setattr(disk, "device", dying)
        try:
            answer_all(path, PAIRS, "d 2")
        except Killed:
            kills += 1
        monkeypatch.setattr(disk, "device", disk.Disk())
        kept = open_judgments(path, "anna").grades
        assert len(kept) >= (dying.count - 1 - files) // 2  # an answer is a write and a sync, after those of the names
        answer_all(path, PAIRS, "d 2")
        expected = {pair: SKIPPED if pair[1] == "d 2" else len(pair[1]) % 4 for pair in PAIRS}
        assert open_judgments(path, "anna").grades == expected
        whole, found = ([each.read_bytes() for each in sorted(tmp_path.glob(f"{at}{name}*"))] for at in (0, last))
        assert [*map(len, whole)] == [*map(len, found)] if name == "j.jsonl" else whole == found  # lines with times
    assert kills == files + 2 * len(PAIRS)


@FORMS
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Full(disk.Disk):
        def write(self, file: io.FileIO, data: memoryview) -> int:
            if len(data) > 3:
                return os.write(file.fileno(), data[:3])
            raise OSError(28, "No space left on device")

    judgments = open_judgments(tmp_path / name, "anna")
    judgments.add("q", ["d"], 1)
    before = (tmp_path / name).read_bytes()
    monkeypatch.setattr(disk, "device", Full())
    with pytest.raises(OSError, match="No space left"):
        judgments.add("q", ["e"], 1, id="x")
    assert (tmp_path / name).read_bytes() == before
    assert judgments.grades == {("q", "d"): 1}
    monkeypatch.setattr(disk, "device", disk.Disk())
    judgments.add("q", ["e"], 1, id="x")
    assert judgments.grades == {("q", "d"): 1, ("q", "e"): 1}


def test_the_grades_of_people_count_and_an_adjudication_before_the_last(tmp_path: Path) -> None:
    answers = """machine:m a 0, machine:m b 1, anna a 1, anna b 2, ben b 3, chief b 0, anna c 1, ben c 2, anna b 3,
        machine:m c 0, ben d -, machine:m d 2, anna e 1"""
    parts = [answer.split() for answer in answers.split(",")]
    rows = [of(rater, docid, None if n == "-" else int(n), settles=rater == "chief") for rater, docid, n in parts]
    path = write(tmp_path / "j.jsonl", *rows, Answer("q", "e", rater="anna", undo=True))
    assert graded(path) == {("q", "a"): 1, ("q", "b"): 0, ("q", "c"): 2}
    assert read_qrels(path, of_machine=True).rows() == [("q", "a", 0), ("q", "b", 1), ("q", "c", 0), ("q", "d", 2)]
    assert JudgmentFile.of(path).raters == {"anna": 1, "chief": 1, "ben": 1}
    assert Journal(path).conflicts() == 1
    assert Journal(path).people() == ["anna", "ben"]
    machine = write(tmp_path / "m.jsonl", of("machine:m", "a", 3))
    assert graded(machine) == {("q", "a"): 3}
    assert JudgmentFile.of(machine).raters == {"machine:m": 1}


def test_names_of_people() -> None:
    assert all(map(is_rater, ("anna", "Zoë", "a.b-c_1", "x" * 64, "日本")))
    assert not any(map(is_rater, ("", "anna b", " anna", "a\tb", "machine:m", "x" * 65, "a\x00", "\u202e", "qid")))


@pytest.fixture
def two_people(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of two people who judge the same eight queries, and differ in some."""
    assert judged(monkeypatch, "3021" * 30, "--rater", "anna", "--stop-after", 8).code == 0
    assert judged(monkeypatch, "3022" * 30, "--rater", "ben", "--stop-after", 8).code == 0
    return two_runs


def test_two_people_judge_into_one_journal(two_people: Path) -> None:
    journal = Journal(NAME)
    anna, ben = journal.graded("anna"), journal.graded("ben")
    assert anna.keys() == ben.keys()
    differing = sum(anna[pair] != ben[pair] for pair in anna)
    assert journal.conflicts() == differing > 3
    done = ran("evaluate", "--study", "agreement", NAME, "--format", "json")
    (found,) = json.loads(done.out)["agreements"]
    assert (found["people"], found["pairs"], found["same"]) == (["anna", "ben"], len(anna), len(anna) - differing)
    printed = hybrid("evaluate", "--study", "agreement", NAME).out
    assert f"--adjudicate {NAME} --output {NAME}" in " ".join(printed.split())
    assert hybrid("evaluate", "--qrels", NAME, *RUNS).says("conflicting-judgments", path=str(NAME), conflicts=differing)


def test_an_adjudication_settles_the_conflicts(two_people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conflicts = Journal(NAME).conflicts()
    before = NAME.read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO("0\n" * 200))
    words = ["judge", "tiny", "--split", "test", "--adjudicate", NAME, "--rater", "anna", "--output", NAME]
    ran(*words)
    assert NAME.read_text().startswith(before)
    settled = [row for row in rows_of() if row.get("settles")]
    assert (len(settled), {row["grade"] for row in settled}) == (conflicts, {0})
    assert Journal(NAME).conflicts() == 0
    assert not hybrid("evaluate", "--qrels", NAME, *RUNS).says("conflicting-judgments")
    grades = graded(NAME)
    assert all(grades[str(row["qid"]), str(row["docid"])] == 0 for row in settled)
    assert len(Journal(NAME).graded("anna")) == len(Journal(NAME).graded("ben")), "the first opinion is kept"


def test_commands_that_take_qrels_take_a_journal(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They give the results of the same judgments in a qrels file."""
    assert judged(monkeypatch, "3021s" * 40, "--rater", "anna", "--stop-after", 20).says("next-command")
    rows = read_qrels(NAME).rows()
    Path("qrels.tsv").write_text("".join(f"{qid}\t0\t{docid}\t{grade}\n" for qid, docid, grade in rows))
    outputs = []
    for qrels in (NAME, "qrels.tsv"):
        evaluated = hybrid("evaluate", "--qrels", qrels, *RUNS, "--format", "json")
        weights = Path(f"{Path(qrels).suffix[1:]}.json")
        ran("fuse", *RUNS, "--tune", "--qrels", qrels, "--output", weights)
        tuned = {name: json.loads(weights.read_text())[name] for name in ("method", "weights")}
        outputs.append((evaluated.out.replace(str(qrels), "QRELS"), tuned))
    assert outputs[0] == outputs[1]
    ran("report", "--qrels", NAME, *RUNS, "--output", "report.html")
    words = ["prepare", "trec", "docs.jsonl", "--topics", "dev=topics.tsv", "--qrels", f"dev={NAME}"]
    docids = dict.fromkeys(docid for _, docid, _ in rows)
    Path("docs.jsonl").write_text("".join(json.dumps({"id": docid, "text": "x"}) + "\n" for docid in docids))
    Path("topics.tsv").write_text("".join(f"{qid}\tquery\n" for qid in QIDS))
    ran(*words, "--output", "copy")
    assert sorted(read_qrels(Path("copy/qrels.dev.parquet")).rows()) == sorted(rows)
    Path("named.tsv").write_text("qid\ttext\n" + Path("topics.tsv").read_text())
    words = ["prepare", "files", "docs.jsonl", "--queries", "dev=named.tsv", "--qrels", f"dev={NAME}"]
    ran(*words, "--output", "mine")
    assert sorted(read_qrels(Path("mine/qrels.dev.parquet")).rows()) == sorted(rows)


def test_people_and_a_machine_share_a_journal(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "print(json.dumps({'grade': len(json.loads(line)['text']) % 4}), flush=True)"
    Path("mine.py").write_text(f"import json, sys\nfor line in sys.stdin: {answer}")
    machine = ["judge", "tiny", "--split", "test", *RUNS, "--output", NAME, "--command", f"{sys.executable} mine.py"]
    assert hybrid(*machine).says("judged", left=0)
    assert not Path(f"{NAME}.answers").exists()
    assert hybrid("evaluate", "--qrels", NAME, *RUNS).says("machine-judgments", path=str(NAME))
    lines = len(rows_of())
    assert hybrid(*machine).says("forecast", calls=0)
    assert len(rows_of()) == lines
    assert judged(monkeypatch, "3021" * 90, "--rater", "anna", "--stop-after", 20).code == 0
    people = read_qrels(NAME)
    assert {row["rater"] for row in rows_of() if str(row["rater"])[0] != "m"} == {"anna"}
    done = ran("evaluate", "--qrels", NAME, "--machine", NAME, *RUNS, "--format", "json")
    result = json.loads(done.out)
    of_machine = read_qrels(NAME, of_machine=True)
    assert result["agreement"]["pairs"] == len(people.join(of_machine, on=["qid", "docid"]))
    assert not hybrid("evaluate", "--qrels", NAME, *RUNS).says("machine-judgments")


def test_reasons_and_hits_for_later_are_kept(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, "w1ww2q", "--rater", "anna").code == 0
    rows = rows_of()
    assert [row.get("later", False) for row in rows] == [True, False, True, True, False]
    judgments = open_judgments(NAME, "anna")
    assert [row for row in rows if row.get("later")] == [
        row for row in rows if (str(row["qid"]), str(row["docid"])) in judgments.later
    ]
    judgments.close()
    assert judged(monkeypatch, "1" * 400, "--rater", "anna", "--stop-after", 50).says("all-judged")
    last = [(row["qid"], row["docid"]) for row in rows_of()[-3:]]
    assert last == [(row["qid"], row["docid"]) for row in rows if row.get("later")], "they come last, in their order"
