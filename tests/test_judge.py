"""`judge` with answers from standard input: orders, the files, undo, resumption, weights, bad input."""

import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Done, Refusal, hybrid, raises, ran, refusal
from judging import DOCIDS, FIRST, QIDS, SECOND, lines_of

from hybrid_cli import artifacts, runs
from hybrid_cli.collections import collection
from hybrid_cli.collections.judgments import FileJudgments, skipped_path
from hybrid_cli.errors import HybridError
from hybrid_cli.evaluation.retrieved import pools
from hybrid_cli.reporting.judging import View, screen

RUNS = [f"{FIRST}.trec", f"{SECOND}.trec"]


def judged(monkeypatch: pytest.MonkeyPatch, answers: str, *options: object, output: str = "mine.tsv") -> Done:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{answer}\n" for answer in answers)))
    return hybrid("judge", "tiny", "--split", "test", *RUNS, "--output", output, *options)


def shown_hits(out: str) -> list[tuple[str, str]]:
    lines = out.splitlines()
    return [
        (line.removeprefix("query: "), lines[number + 1].partition(": ")[2])
        for number, line in enumerate(lines)
        if line.startswith("query: ")
    ]


def test_a_pool_has_the_first_hits_of_every_run_once(two_runs: Path) -> None:
    opened = [runs.open_run(Path(path)) for path in RUNS]
    for depth in (1, 3):
        found = {pool.qid: set(pool.docids) for pool in pools(opened, depth, seed=1)}
        for qid in QIDS:
            tops = [run.table().filter((pl.col("qid") == qid) & (pl.col("rank") <= depth))["docid"] for run in opened]
            assert found[qid] == set(tops[0]) | set(tops[1])


def test_queries_with_different_hits_come_first_and_seeds_change_the_order(two_runs: Path) -> None:
    opened = [runs.open_run(Path(path)) for path in RUNS]
    found = pools(opened, 4, seed=1)
    shares = [pool.disagreement for pool in found]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == (1.0, 0.5)
    assert found[-1].qid == QIDS[0]
    orders = {tuple(pool.qid for pool in pools(opened, 4, seed, shuffled=True)) for seed in range(20)}
    assert len(orders) > 10
    assert pools(opened, 4, seed=1) == found


def test_the_order_of_hits_is_unrelated_to_the_run_and_its_ranks(two_runs: Path) -> None:
    """A third run with other hits does not reorder the first ones; the place does not identify the run."""
    opened = [runs.open_run(Path(path)) for path in RUNS]
    alone = {pool.qid: pool.docids for pool in pools(opened[:1], 4, seed=3)}
    both = {pool.qid: pool.docids for pool in pools(opened, 4, seed=3)}
    for qid, docids in alone.items():
        assert [docid for docid in both[qid] if docid in docids] == list(docids)
    firsts = [both_run.docids[0] in alone[both_run.qid] for seed in range(30) for both_run in pools(opened, 4, seed)]
    assert 0.4 < float(np.mean(firsts)) < 0.8


def test_a_query_that_one_run_alone_answers_comes_last(two_runs: Path) -> None:
    Path("more.trec").write_text(f"t1 Q0 {DOCIDS[0]} 1 1 x\n")
    opened = [runs.open_run(Path(RUNS[0])), runs.open_run(Path("more.trec"))]
    assert {pool.disagreement for pool in pools(opened, 4, seed=1)} == {0.0}


def test_answers_become_qrels_that_other_commands_read(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, "3021s" * 20, "--stop-after", 3).code == 0
    rows = lines_of(Path("mine.tsv"))
    assert {row[1] for row in rows} == {"0"}
    assert {row[3] for row in rows} == {"0", "1", "2", "3"}
    assert {row[3] for row in lines_of(skipped_path(Path("mine.tsv")))} == {"-1"}
    assert len(collection.read_qrels(Path("mine.tsv"))) == len(rows)
    evaluated = hybrid("evaluate", "--qrels", "mine.tsv", *RUNS, "--format", "json")
    assert json.loads(evaluated.out)["queries"]["MRR@10"] == 3
    ran("fuse", *RUNS, "--tune", "--qrels", "mine.tsv", "--output", "w.json")
    Path("docs.jsonl").write_text("".join(json.dumps({"id": docid, "text": "x"}) + "\n" for docid in DOCIDS))
    Path("topics.tsv").write_text("".join(f"{qid}\tquery\n" for qid in QIDS))
    words = ["prepare", "trec", "docs.jsonl", "--topics", "dev=topics.tsv", "--qrels", "dev=mine.tsv"]
    ran(*words, "--output", "copy")
    assert collection.read_qrels(collection.qrels_path(Path("copy"), "dev")).height == len(rows)


def test_nothing_that_is_printed_names_a_run_a_rank_or_a_score(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = judged(monkeypatch, "0" * 100, "--stop-after", 6)
    assert len(shown_hits(done.out)) > 20
    assert FIRST not in done.out
    assert SECOND not in done.out
    assert ".trec" not in done.out


def test_it_stops_after_enough_queries_and_continues_for_more(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = judged(monkeypatch, "1" * 100, "--stop-after", 2)
    assert first.says("judged", queries=2)
    before = Path("mine.tsv").read_text()
    assert shown_hits(judged(monkeypatch, "1" * 100, "--stop-after", 2).out) == []
    assert Path("mine.tsv").read_text() == before
    more = judged(monkeypatch, "1" * 100, "--stop-after", 4)
    assert more.says("judged", queries=4)
    assert Path("mine.tsv").read_text().startswith(before)
    assert not set(shown_hits(more.out)) & set(shown_hits(first.out))
    verdict = next(notice for notice in more.notices.heard if notice.code == "verdict")
    further = verdict.fields["more"] or 10
    assert isinstance(further, int)
    assert more.says("enough-judged", option="stop_after", value=4 + further)
    assert not judged(monkeypatch, "1" * 100, "--stop-after", 6).says("enough-judged"), "no query is left"


def test_a_query_of_which_all_hits_are_skipped_is_not_judged(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, "n" + "1" * 8, "--stop-after", 1).says("judged", queries=1)
    qids = {row[0] for row in lines_of(Path("mine.tsv"))}
    assert len(qids) == 1
    assert qids.isdisjoint(row[0] for row in lines_of(skipped_path(Path("mine.tsv"))))
    again = judged(monkeypatch, "1" * 100, "--stop-after", 6)
    assert again.says("judged", queries=5), "a skipped query is not asked again"
    assert again.says("all-judged")


@pytest.mark.parametrize(("before", "kept"), [("2", "1"), ("s", "1"), ("n", "1"), ("20", "21"), ("2n", "21")])
def test_undo_takes_one_answer_back(two_runs: Path, monkeypatch: pytest.MonkeyPatch, before: str, kept: str) -> None:
    judged(monkeypatch, before + "u1q")
    judged(monkeypatch, kept + "q", output="other.tsv")
    assert Path("mine.tsv").read_bytes() == Path("other.tsv").read_bytes()
    assert skipped_path(Path("mine.tsv")).read_bytes() == b""


def test_a_text_without_matches_or_with_control_characters_cannot_steer_the_terminal() -> None:
    text = "a\x1b[31mred\x07\r\n\u202eback\u2066\n\n\n\n\nend " + "word " * 200
    view = View(query="RED words\x1b]0;x\x07", position=1, pooled=2, title="\x9btitle", text=text, judged=0, wanted=20)
    for width, height in ((80, 24), (40, 10), (20, 5), (200, 60)):
        lines = screen(view, width, height)
        assert all(line.cell_len <= width for line in lines), (width, height)
        plain = "\n".join(line.plain for line in lines)
        assert not set(plain) & set("\x1b\x07\x9b\r\u202e\u2066")
    assert len(screen(view, 80, 24)) == 24
    marked = [span for line in screen(view, 80, 24) for span in line.spans if "underline" in str(span.style)]
    assert marked, "words of the query are marked"


def test_all_pages_of_a_text_are_reachable() -> None:
    words = [f"w{number}" for number in range(900)]
    seen: set[str] = set()
    for page in range(40):
        view = View("q", 1, 1, "title", " ".join(words), 0, 20, page=page)
        seen |= set(" ".join(line.plain for line in screen(view, 60, 20)).split())
    assert set(words) <= seen


@pytest.mark.parametrize(
    ("answers", "options", "message"),
    [
        ("4", (), refusal("not-an-answer", line=1)),
        ("1x", (), refusal("not-an-answer", line=2)),
        ("u", (), refusal("not-an-answer")),
        ("1", ("--measure", "acc@5"), refusal("needs-answers", option="measure")),
    ],
)
def test_bad_input_is_one_line(
    two_runs: Path, monkeypatch: pytest.MonkeyPatch, answers: str, options: tuple[object, ...], message: str | Refusal
) -> None:
    done = judged(monkeypatch, answers, *options)
    assert done.code == 2
    assert done.is_problem(message)
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mine.parquet", None, refusal("other-suffix", path="mine.parquet")),
        ("mine.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n", refusal("has-header", path="mine.tsv")),
        ("mine.tsv", "not judgments at all, indeed\n", refusal("other-width", path="mine.tsv", line=1)),
        ("mine.tsv", "001\t0\tlungs\t3\n001\t0\tsalt\tgood", refusal("grade-not-a-number", path="mine.tsv", line=2)),
        ("mine.tsv", "001\t0\tlungs\t3\n001\t0\tlungs\t0\n", refusal("duplicate-id", path="mine.tsv", line=2)),
        ("absent/../tiny", None, refusal("no-such-folder", path="tiny")),
    ],
)
def test_an_output_that_cannot_be_used(
    two_runs: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, message: str | Refusal
) -> None:
    if content is not None:
        Path(name).write_text(content)
    done = judged(monkeypatch, "1", output=name)
    assert done.code == 2
    assert done.is_problem(message)
    assert content is None or Path(name).read_text() == content
    assert not skipped_path(Path(name)).exists()


def test_runs_of_another_split_or_collection_are_refused(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    done = hybrid("judge", "tiny", "--split", "train", *RUNS, "--output", "mine.tsv")
    assert (done.problem, done.fields["option"]) == ("other-queries", "split")
    assert not list(Path().glob("mine.tsv*")), "no file is started"
    Path("far.trec").write_text("001 Q0 nowhere 1 1 x\n")
    done = hybrid("judge", "tiny", "--split", "test", "far.trec", "--output", "far.tsv")
    assert done.is_problem("other-corpus", id="nowhere"), done.err
    Path("near.trec").write_text("001 Q0 lungs 1 2 x\n003 Q0 nowhere 1 1 x\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n1\n"))
    done = hybrid("judge", "tiny", "--split", "test", "near.trec", "--output", "near.tsv")
    assert done.is_problem("other-corpus", id="nowhere"), done.err
    assert not list(Path().glob("near.tsv*")), "refused before the first question"


def test_an_end_without_answers_is_explained(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = judged(monkeypatch, "")
    assert done.code == 0
    assert done.warnings == ["no-answers"]


def test_two_sessions_cannot_write_one_file(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hybrid_cli.artifacts.output import stage_scope

    with stage_scope():
        artifacts.lock_growing(Path("mine.tsv"))
        done = judged(monkeypatch, "1")
        assert done.code == 1
        assert done.is_problem("locked", path="mine.tsv")
        with raises("locked", HybridError):
            artifacts.lock_growing(Path("mine.tsv"))
    assert judged(monkeypatch, "1").code == 0
    assert not list(Path().glob(".*"))


def test_a_file_written_by_hand_is_extended(two_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.txt").write_text("003 0 lungs 3\n003 0 salt 1")
    assert judged(monkeypatch, "1q", output="mine.txt").code == 0
    assert collection.read_qrels(Path("mine.txt")).height == 3
    Path("junk.tsv").write_text("003\t0\tsalt\t-1\n")
    done = judged(monkeypatch, "q", output="junk.tsv")
    assert done.says("judged", path="junk.tsv", judgments=1, skipped=0), (
        "a grade below 0 is one of the collection, no skipped hit"
    )
    Path("folder.tsv").mkdir()
    with raises("is-a-folder"):
        FileJudgments(Path("folder.tsv"))
