"""Several people: agreement, conflicts, and their adjudication."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from command import hybrid, refused

from hybrid_cli.collections.collection import read_qrels
from hybrid_cli.reporting.agreement import conflicts
from hybrid_cli.stages.evaluate import evaluate


@pytest.fixture
def people(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The judgments of the tiny collection, and those of a person who differs in two of them and lacks one."""
    monkeypatch.chdir(tmp_path)
    rows = read_qrels(tiny / "qrels.test.parquet").rows()
    changed = [(qid, docid, 2 - grade if number < 2 else grade) for number, (qid, docid, grade) in enumerate(rows)]
    for name, judgments in (("anna", rows), ("ben", changed[:-1])):
        lines = [f"{qid}\t{name}\t{docid}\t{grade}\n" for qid, docid, grade in judgments]
        Path(f"{name}.tsv").write_text("".join(lines))
    return ["anna.tsv", "ben.tsv"]


def test_agreement_of_two_people(people: list[str]) -> None:
    done = hybrid("evaluate", "--study", "agreement", *people, "--format", "json")
    assert done.code == 0, done.err
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
    assert len(evaluate([*people, "cleo.tsv"], study="agreement").content["agreements"]) == 3  # type: ignore[union-attr]


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
