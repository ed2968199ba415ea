"""Accuracy at k: answers in the texts of the top hits."""

from __future__ import annotations

import polars as pl
from command import raises

from hybrid_cli.evaluation.accuracy import candidates, evaluate_answers, passages, with_answers
from hybrid_cli.evaluation.measures import parse_measures

RUN = pl.DataFrame(
    [("q1", "d1", 1), ("q1", "d2", 2), ("q1", "d3", 3), ("q2", "d3", 1), ("q9", "d1", 1)],
    schema={"qid": pl.String, "docid": pl.String, "rank": pl.Int32},
    orient="row",
)
TEXTS = pl.DataFrame(
    {
        "docid": ["d1", "d2", "d3"],
        "title": ["William Shakespeare", "", ""],
        "text": ["nobody", "by Shakespeare", "by Marlowe in 1593"],
    }
)
QUERIES = pl.DataFrame(
    {
        "qid": ["q1", "q2", "q3", "q4", "q5"],
        "answers": [["Shakespeare", "Marlowe"], ["15\\d\\d", ""], ["Marlowe"], [""], None],
    },
    schema_overrides={"answers": pl.List(pl.String)},
)
AT = parse_measures(["acc@1", "accuracy@2", "acc@3"])


def values(mode: str = "string") -> dict[tuple[str, str], float]:
    found = evaluate_answers(RUN, with_answers(QUERIES), passages(TEXTS, mode), AT, mode)  # type: ignore[arg-type]
    return {(measure, qid): value for measure, qid, value in found.iter_rows()}


def test_the_first_text_with_an_answer_counts_titles_do_not() -> None:
    assert [values()[name, "q1"] for name in ("acc@1", "accuracy@2", "acc@3")] == [0, 1, 1]


def test_questions_without_hits_score_0_and_those_without_answers_are_omitted() -> None:
    assert values()["acc@3", "q3"] == 0
    assert {qid for _, qid in values()} == {"q1", "q2", "q3"}


def test_answers_may_be_patterns() -> None:
    assert values()["acc@1", "q2"] == 0
    assert values("regex")["acc@1", "q2"] == 1


def test_only_texts_of_top_hits_are_read() -> None:
    assert set(candidates(RUN, with_answers(QUERIES), parse_measures(["acc@2"]))) == {"d1", "d2", "d3"}
    assert set(candidates(RUN, with_answers(QUERIES), parse_measures(["acc@1"]))) == {"d1", "d3"}


def test_a_document_missing_from_the_corpus_is_refused() -> None:
    with raises("other-corpus", id="d2"):
        evaluate_answers(RUN, with_answers(QUERIES), passages(TEXTS.filter(docid="d1")), AT)


def test_questions_without_any_answer_are_refused() -> None:
    with raises("needs-answers"):
        with_answers(QUERIES.filter(pl.col("qid").is_in(["q4", "q5"])))


def test_a_run_of_other_queries_is_refused() -> None:
    with raises("other-queries", id="q9"):
        evaluate_answers(RUN.filter(qid="q9"), with_answers(QUERIES), passages(TEXTS), AT)
