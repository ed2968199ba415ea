"""Grades of a machine next to those of people, and the agreement of people."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Notices, hybrid, raises, ran, refused
from sklearn.metrics import cohen_kappa_score

from hybrid_cli.collections.collection import read_qrels
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.evaluation.prediction_powered import CorrectedMean
from hybrid_cli.reporting.agreement import Agreement, conflicts
from hybrid_cli.runs import open_run
from hybrid_cli.stages.evaluate import evaluate

QUERIES, DEPTH, PEOPLE = 60, 6, 25
Grades = dict[tuple[str, str], int]


def write(path: Path, grades: Grades, rater: str = "0") -> Path:
    path.write_text("".join(f"{qid}\t{rater}\t{docid}\t{grade}\n" for (qid, docid), grade in grades.items()))
    return path


@pytest.fixture
def here(workdir: Path) -> Path:
    """Two runs of 60 queries; people judged 25 of them, and a machine judged all with errors."""
    random = np.random.default_rng(5)
    true: Grades = {}
    for name, quality in (("one", 0.35), ("two", 0.5)):
        lines = []
        for query in range(QUERIES):
            order = random.permutation(12)[:DEPTH]
            for rank, number in enumerate(order, 1):
                true.setdefault((f"q{query}", f"d{number}"), int(random.integers(0, 4) * (random.random() < quality)))
                lines.append(f"q{query} Q0 d{number} {rank} {10 - rank} x\n")
        Path(f"{name}.trec").write_text("".join(lines))
    wrong = {pair: int(random.integers(0, 4)) if random.random() < 0.2 else grade for pair, grade in true.items()}
    write(Path("human.tsv"), {pair: grade for pair, grade in true.items() if int(pair[0][1:]) < PEOPLE})
    write(Path("machine.tsv"), wrong, "machine:m")
    return workdir


def evaluated(qrels: str = "human.tsv", machine: str = "machine.tsv") -> dict[str, Any]:
    measures = ["nDCG@10", "MRR@10"]
    found = evaluate(["one.trec", "two.trec"], qrels=Path(qrels), machine=Path(machine), measure=measures)
    return dict(found.content)


def frame(path: str) -> pl.DataFrame:
    rows = [line.split("\t") for line in Path(path).read_text().splitlines()]
    return pl.DataFrame(
        {"qid": [row[0] for row in rows], "docid": [row[2] for row in rows], "relevance": [int(row[3]) for row in rows]}
    )


def test_means_and_differences_are_corrected_query_by_query(here: Path) -> None:
    found = evaluated()
    assert (found["queries"], found["others"]) == (PEOPLE, QUERIES - PEOPLE)
    values = {
        (file, run): dict(
            evaluate_run(open_run(Path(f"{run}.trec")).table(), frame(file), ["nDCG@10"])
            .select("qid", "value")
            .iter_rows()
        )
        for file in ("human.tsv", "machine.tsv")
        for run in ("one", "two")
    }
    both, rest = [f"q{number}" for number in range(PEOPLE)], [f"q{number}" for number in range(PEOPLE, QUERIES)]

    def of(file: str, qids: list[str]) -> np.ndarray:
        return np.array([values[file, "two"][qid] - values[file, "one"][qid] for qid in qids])

    expected = CorrectedMean.of(of("human.tsv", both), of("machine.tsv", both), of("machine.tsv", rest))
    rows = {(row["run"], row["baseline"], row["measure"]): row for row in found["estimates"]}
    row = rows["two", "one", "nDCG@10"]
    assert {name: row[name] for name in ("mean", "low", "high", "weight")} == pytest.approx(
        {name: expected.content()[name] for name in ("mean", "low", "high", "weight")}
    )
    assert row["by_machine"] == pytest.approx(of("machine.tsv", both + rest).mean())
    mean = rows["one", "", "nDCG@10"]
    assert mean["by_people"] == pytest.approx(np.mean([values["human.tsv", "one"][qid] for qid in both]))
    assert len(rows) == 6


def test_agreement_is_that_of_scikit_learn(here: Path) -> None:
    agreement = SimpleNamespace(**evaluated()["agreement"])
    both = frame("human.tsv").join(frame("machine.tsv"), on=["qid", "docid"])
    first, second = both["relevance"], both["relevance_right"]
    assert agreement.kappa == pytest.approx(cohen_kappa_score(first, second))
    assert agreement.weighted_kappa == pytest.approx(cohen_kappa_score(first, second, weights="quadratic"))
    assert agreement.kappa_of_relevance == pytest.approx(cohen_kappa_score(first > 0, second > 0))
    assert (agreement.pairs, agreement.same) == (len(both), int((first == second).sum()))
    assert agreement.confusion[1][3] == int(((first == 1) & (second == 3)).sum())
    assert agreement.grades == [0, 1, 2, 3]


def test_kappa_of_one_grade_or_no_pair_is_undefined() -> None:
    same = pl.DataFrame({"qid": ["q", "q"], "docid": ["a", "b"], "relevance": [0, 0]})
    assert (Agreement.of(same, same).kappa, Agreement.of(same, same).same) == (None, 2)
    assert Agreement.of(same, same.with_columns(docid=pl.lit("c"))).content()["kappa"] is None


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown", "latex"])
def test_every_format_has_the_estimates(here: Path, form: str) -> None:
    words = ["evaluate", "--qrels", "human.tsv", "--machine", "machine.tsv", "one.trec", "two.trec", "--format", form]
    done = ran(*words, "-m", "nDCG@10")
    if form == "json":
        content = json.loads(done.out)
        assert content["queries"] == PEOPLE
        assert len(content["estimates"]) == 3
    else:
        assert "nDCG@10" in done.out


def test_few_common_queries_give_no_correction(here: Path, notices: Notices) -> None:
    people = frame("human.tsv").filter(pl.col("qid").str.slice(1).cast(pl.Int64) < 19)
    write(Path("few.tsv"), {(qid, docid): grade for qid, docid, grade in people.iter_rows()})
    found = evaluated(qrels="few.tsv")
    assert notices.says("no-correction", queries=19, needed=20)
    assert all(estimate["mean"] is None for estimate in found["estimates"])
    ran("evaluate", "--qrels", "few.tsv", "--machine", "machine.tsv", "one.trec")


def test_a_machine_that_gives_one_grade_leaves_the_means_of_people(here: Path, notices: Notices) -> None:
    write(Path("zero.tsv"), {(qid, docid): 0 for qid, docid, _ in frame("machine.tsv").iter_rows()}, "machine:m")
    found = evaluated(machine="zero.tsv")
    assert notices.says("one-grade", grade=0)
    for estimate in found["estimates"]:
        assert (estimate["mean"], estimate["weight"]) == (estimate["by_people"], 0)


def test_queries_that_the_machine_did_not_judge_are_left_out(here: Path, notices: Notices) -> None:
    machine = frame("machine.tsv").filter(pl.col("qid") != "q3")
    write(Path("less.tsv"), {(qid, docid): grade for qid, docid, grade in machine.iter_rows()})
    assert evaluated(machine="less.tsv")["queries"] == PEOPLE - 1
    assert notices.says("queries-without-machine", queries=1)


def test_judgments_of_other_queries_are_refused(here: Path) -> None:
    write(Path("other.tsv"), {("z1", "d1"): 1})
    with raises("other-queries", option="machine"):
        evaluated(machine="other.tsv")
    refused("evaluate", "--qrels", "human.tsv", "--machine", "machine.tsv", "one.trec", "--study", "robustness")


def test_grades_of_a_machine_are_never_taken_for_those_of_people(here: Path, notices: Notices) -> None:
    evaluate(["one.trec"], qrels=Path("machine.tsv"), measure=["nDCG@10"])
    count = len(frame("machine.tsv"))
    assert notices.says("machine-judgments", path="machine.tsv", judgments=count, raters=["machine:m"])
    notices.clear()
    evaluated()
    assert not notices.says("machine-judgments")
    with raises("machine-judgments", path="machine.tsv"):
        evaluated(qrels="machine.tsv")
    notices.clear()
    hybrid("fuse", "one.trec", "two.trec", "--tune", "--qrels", "machine.tsv", "--output", "weights.json")
    assert notices.says("machine-judgments")


@pytest.fixture
def people(tiny: Path, workdir: Path) -> list[str]:
    rows = read_qrels(tiny / "qrels.test.parquet").rows()
    changed = [(qid, docid, 2 - grade if number < 2 else grade) for number, (qid, docid, grade) in enumerate(rows)]
    for name, judgments in (("anna", rows), ("ben", changed[:-1])):
        lines = [f"{qid}\t{name}\t{docid}\t{grade}\n" for qid, docid, grade in judgments]
        Path(f"{name}.tsv").write_text("".join(lines))
    return ["anna.tsv", "ben.tsv"]


def test_agreement_of_two_people(people: list[str]) -> None:
    done = ran("evaluate", "--study", "agreement", *people, "--format", "json")
    result = json.loads(done.out)
    (found,) = result["agreements"]
    anna, ben = (read_qrels(Path(path)) for path in people)
    both = anna.join(ben, on=["qid", "docid"])
    assert found["people"] == ["anna", "ben"]
    assert (found["pairs"], found["same"]) == (len(both), int((both["relevance"] == both["relevance_right"]).sum()))
    expected = both.filter(pl.col("relevance") != pl.col("relevance_right")).select("qid", "docid").rows()
    assert [(row["qid"], row["docid"]) for row in result["conflicts"]] == expected
    assert len(expected) in (1, 2)
    table = hybrid("evaluate", "--study", "agreement", *people)
    assert (table.code, "anna.tsv,ben.tsv" in table.out.replace("\n", "")) == (0, True)
    Path("cleo.tsv").write_text(Path("ben.tsv").read_text())
    assert len(evaluate([*people, "cleo.tsv"], study="agreement").content["agreements"]) == 3


def test_a_grade_that_one_person_lacks_is_no_conflict() -> None:
    one = pl.DataFrame({"qid": ["q", "q"], "docid": ["a", "b"], "relevance": [1, 2]})
    other = pl.DataFrame({"qid": ["q"], "docid": ["a"], "relevance": [0]})
    assert conflicts({"x": one, "y": other}).rows() == [("q", "a", 1, 0)]


def test_only_conflicts_are_adjudicated(people: list[str], tiny: Path) -> None:
    anna, ben = (read_qrels(Path(path)) for path in people)
    differing = conflicts({"anna": anna, "ben": ben})
    Path("answers.txt").write_text("3\n" * 20)
    with open("answers.txt") as answers, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", answers)
        done = hybrid("judge", tiny, "--split", "test", "--adjudicate", ",".join(people), "--output", "settled.tsv")
    assert done.code == 0, done.err
    settled = read_qrels(Path("settled.tsv"))
    assert set(settled.select("qid", "docid").rows()) == set(differing.select("qid", "docid").rows())
    assert set(settled["relevance"]) == {3}


def test_what_cannot_be_compared_is_refused(people: list[str], tiny: Path) -> None:
    Path("other.tsv").write_text("q9 0 nowhere 1\n")
    Path("copy.tsv").write_text(Path("anna.tsv").read_text())
    refused("evaluate", "--study", "agreement", "anna.tsv", "other.tsv", problem="no-common-judgments")
    words = ["judge", tiny, "--split", "test", "--adjudicate", "anna.tsv,copy.tsv", "--output", "x.tsv"]
    refused(*words, problem="no-conflicts")
