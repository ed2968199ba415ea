"""Measures against trec_eval and their papers: condensed lists, ties, answers."""

import json
import unicodedata
from math import log2
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import pytrec_eval
from command import hybrid, raises, ran
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.evaluation import measures
from hybrid_cli.evaluation.accuracy import candidates, evaluate_answers, matcher, passage_form, passages, with_answers
from hybrid_cli.evaluation.options import AnswerMatch
from hybrid_cli.evaluation.retrieved import retrieved
from hybrid_cli.runs import Run, ranked

QRELS = pl.DataFrame(
    [("q1", "a", 3), ("q1", "b", 1), ("q1", "c", 0), ("q1", "d", 2), ("q1", "e", 1), ("q2", "m", 1), ("q3", "zz", 1)],
    schema={"qid": pl.String, "docid": pl.String, "relevance": pl.Int32},
    orient="row",
)
SCORES = {"q1": {"b": 9.0, "x": 8.0, "a": 7.0, "c": 6.0, "d": 5.0, "y": 5.0}, "q2": {"n": 1.0, "m": 1.0}}
IDEAL = 3 + 2 / log2(3) + 1 / log2(4) + 1 / log2(5)  # of q1: grades 3 2 1 1
# our spelling -> trec_eval's
SPELLINGS = {
    "RR": "recip_rank",
    "MRR": "recip_rank",
    "nDCG": "ndcg",
    "nDCG@3": "ndcg_cut_3",
    "ndcg@10": "ndcg_cut.10",
    "AP": "map",
    "MAP@5": "map_cut_5",
    "P@5": "P_5",
    "precision@10": "P.10",
    "R@2": "recall_2",
    "Recall@100": "recall_100",
    "Success@1": "success_1",
    "hit_rate@5": "success_5",
    "Rprec": "Rprec",
    "bpref": "bpref",
}


def table(orders: dict[str, list[str]]) -> pl.DataFrame:
    rows = [(qid, docid, rank, 1.0) for qid, docids in orders.items() for rank, docid in enumerate(docids, 1)]
    schema = {"qid": pl.String, "docid": pl.String, "rank": pl.Int32, "score": pl.Float32}
    return pl.DataFrame(rows, schema=schema, orient="row")


def as_qrels(judgments: dict[str, dict[str, int]]) -> pl.DataFrame:
    rows = [(qid, docid, grade) for qid, grades in judgments.items() for docid, grade in grades.items()]
    return pl.DataFrame(rows, schema=QRELS.schema, orient="row")


def value(values: pl.DataFrame, measure: str, qid: str) -> float:
    return float(values.filter(measure=measure, qid=qid)["value"].item())


TREC_ORDER = table({"q1": ["b", "x", "a", "c", "y", "d"], "q2": ["n", "m"]})


@pytest.mark.parametrize(
    ("measure", "level", "q1", "q2"),
    [
        ("AP", 1, (1 + 2 / 3 + 3 / 6) / 4, 1 / 2),
        ("MRR", 1, 1, 1 / 2),
        ("R@5", 1, 2 / 4, 1),
        ("nDCG@5", 1, (1 + 3 / log2(4)) / IDEAL, 1 / log2(3)),
        ("MAP@5", 1, (1 + 2 / 3) / 4, 1 / 2),
        ("RR(rel=2)@10", 1, 1 / 3, 0),
        ("AP", 2, (1 / 3 + 2 / 6) / 2, 0),
        ("R@5", 2, 1 / 2, 0),
    ],
)
def test_golden_values_in_trec_evals_order(measure: str, level: int, q1: float, q2: float) -> None:
    values = measures.evaluate_run(TREC_ORDER, QRELS, [measure], level)
    assert value(values, measure, "q1") == pytest.approx(q1, abs=1e-12)
    assert value(values, measure, "q2") == pytest.approx(q2, abs=1e-12)
    assert value(values, measure, "q3") == 0
    raw = pytrec_eval.RelevanceEvaluator({"q1": {"a": 3, "b": 1, "c": 0, "d": 2, "e": 1}}, {"map"})
    assert raw.evaluate(SCORES)["q1"]["map"] == pytest.approx(0.541667, abs=1e-6)  # y before d: docid descending


@pytest.mark.parametrize(
    ("measure", "q1", "q2"),
    [
        ("ERR", 1 / 8 + 1 / 3 * 7 / 8 * 7 / 8 + 1 / 6 * 7 / 8 * 1 / 8 * 3 / 8, 1 / 2 * 1 / 8),
        ("ERR@5", 1 / 8 + 1 / 3 * 7 / 8 * 7 / 8, 1 / 2 * 1 / 8),
        ("RBP", 0.2 * (1 + 0.8**2 + 0.8**5), 0.2 * 0.8),
        ("RBP@5", 0.2 * (1 + 0.8**2), 0.2 * 0.8),
        ("RBP(p=0.5)@3", 0.5 * (1 + 0.5**2), 0.5 * 0.5),
        ("RBP(rel=2)", 0.2 * (0.8**2 + 0.8**5), 0),
    ],
)
def test_measures_that_are_not_in_trec_eval_follow_their_papers(measure: str, q1: float, q2: float) -> None:
    values = measures.evaluate_run(TREC_ORDER, QRELS, [measure])
    assert values["value"].to_list() == pytest.approx([q1, q2, 0])


def test_golden_values_in_the_order_of_hybrid() -> None:
    rows = [(qid, docid, score) for qid, hits in SCORES.items() for docid, score in hits.items()]
    run = ranked(pl.DataFrame(rows, schema=["qid", "docid", "score"], orient="row"))
    values = measures.evaluate_run(run, QRELS, ["AP", "nDCG@5"])
    assert value(values, "AP", "q1") == pytest.approx((1 + 2 / 3 + 3 / 5) / 4)  # d before y: docid ascending
    assert value(values, "nDCG@5", "q1") == pytest.approx((1 + 3 / log2(4) + 2 / log2(6)) / IDEAL)
    assert value(values, "AP", "q2") == 1  # m before n


def test_a_query_in_two_parts_of_the_run_is_one_query_and_a_document_twice_in_it_is_refused() -> None:
    parts = [table({"q1": ["a"], "q2": ["m"]}), table({"q1": ["x", "b"]}).with_columns(rank=pl.col("rank") + 1)]
    assert value(measures.evaluate_run(pl.concat(parts), QRELS, ["P@3"]), "P@3", "q1") == pytest.approx(2 / 3)
    with raises("duplicate-id", id="a", query="q1"):
        measures.evaluate_run(table({"q1": ["a", "x", "a"]}), QRELS, ["AP"])


def test_all_unknown_measures_are_refused_at_once() -> None:
    names = ["nDGC@10", "P", "P@\u0663", "Rprec@4", "P@0", "recal_100", "nDCG(rel=2)", "AP(rel=0)"]
    with raises("unknown-choice", option="measure", value=names):
        measures.parse_measures(["nDCG@5", *names])


def test_ranks_that_start_above_1_or_have_gaps_keep_their_order() -> None:
    run = table({"q1": ["b", "x", "a"], "q2": ["m"]})
    strange = run.with_columns(rank=pl.col("rank") * 10 - 10).sample(fraction=1, shuffle=True, seed=1)
    expected = measures.in_order(run).sort("qid", "position")
    assert measures.in_order(strange).sort("qid", "position").rows() == expected.rows()
    names = ["AP", "MRR@2", "Judged@2"]
    assert measures.evaluate_run(strange, QRELS, names).equals(measures.evaluate_run(run, QRELS, names))


def test_both_spellings_give_the_same_values_under_the_requested_name() -> None:
    for ours, trec in SPELLINGS.items():
        values = measures.evaluate_run(TREC_ORDER, QRELS, [ours, trec])
        first, second = (values.filter(measure=name)["value"] for name in (ours, trec))
        assert first.equals(second), ours


documents = st.permutations([f"d{number}" for number in range(12)])
grades = st.dictionaries(st.sampled_from([f"d{number}" for number in range(16)]), st.integers(-1, 3), min_size=1)
grades = grades.filter(lambda judged: max(judged.values()) >= 0)  # of negative ones alone, trec_eval's nDCG never ends
queries = st.sampled_from(["q1", "q2", "007", "NA", "zwei Wörter"])


@given(
    orders=st.dictionaries(queries, st.tuples(documents, st.integers(1, 12)), min_size=1),
    judgments=st.dictionaries(queries, grades, min_size=1),
    level=st.integers(1, 2),
)
def test_every_measure_equals_pytrec_eval_on_runs_without_ties(
    orders: dict[str, tuple[list[str], int]], judgments: dict[str, dict[str, int]], level: int
) -> None:
    orders.setdefault(next(iter(judgments)), (["d1", "d2"], 2))
    cut = {qid: docids[:length] for qid, (docids, length) in orders.items()}
    scored = {qid: {docid: -float(at) for at, docid in enumerate(docids)} for qid, docids in cut.items()}
    evaluator = pytrec_eval.RelevanceEvaluator(judgments, set(SPELLINGS.values()), relevance_level=level)
    expected = evaluator.evaluate(scored)
    values = measures.evaluate_run(table(cut), as_qrels(judgments), list(SPELLINGS), level)
    for ours, trec in SPELLINGS.items():
        for qid in judgments:
            wanted = expected[qid][trec.replace(".", "_")] if qid in cut else 0.0
            assert value(values, ours, qid) == wanted, (ours, qid)


def test_hits_below_all_cutoffs_affect_only_measures_without_a_cutoff() -> None:
    rng = np.random.default_rng(0)
    docids = [f"d{number}" for number in rng.permutation(3000)]
    judged = {docids[0]: 1, docids[99]: 1, docids[100]: 2, docids[2999]: 1, "never": 3}
    qrels, run = as_qrels({"q": judged}), table({"q": docids})
    evaluator = pytrec_eval.RelevanceEvaluator({"q": judged}, {"map", "recall_100", "ndcg", "ndcg_cut_1000"})
    expected = evaluator.evaluate({"q": {docid: -float(at) for at, docid in enumerate(docids)}})["q"]
    for name, wanted in expected.items():
        assert value(measures.evaluate_run(run, qrels, [name]), name, "q") == wanted, name


def test_counts_of_judged_answered_unanswered_and_unjudged_queries() -> None:
    run = table({"q1": ["a"], "q9": ["a"]})
    assert measures.coverage(run, QRELS["qid"]) == {"judged": 3, "answered": 1, "missing": 2, "unjudged": 1}


def test_a_run_without_judged_queries_is_refused_with_example_ids() -> None:
    with raises("other-queries", count=3, id="9", expected="q1"):
        measures.evaluate_run(table({"9": ["a"]}), QRELS, ["AP"])
    with raises("other-queries"):
        measures.evaluate_run(table({}), QRELS, ["AP"])
    with raises("no-judgments"):
        measures.evaluate_run(TREC_ORDER, QRELS.clear(), ["AP"])


DEPTHS = (1, 2, 5, 10, 40)


@pytest.mark.parametrize("level", [1, 2])
def test_the_curve_is_recall_at_every_depth(level: int) -> None:
    rng = np.random.default_rng(level)
    rows = [(f"q{q}", f"d{d}", r) for q in range(20) for r, d in enumerate(rng.permutation(60)[:30], 1)]
    run = pl.DataFrame(rows[:-90], schema=["qid", "docid", "rank"], orient="row")  # three queries are missing
    pairs = {(f"q{rng.integers(20)}", f"d{rng.integers(60)}") for _ in range(120)}
    judged = [(q, d, int(rng.integers(0, 3))) for q, d in sorted(pairs)]
    qrels = pl.DataFrame(judged, schema={"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}, orient="row")
    curve = measures.recall_by_depth(measures.judged_hits(measures.in_order(run), qrels), DEPTHS, level)
    values = measures.evaluate_run(run, qrels, [f"R@{depth}" for depth in DEPTHS], level)
    assert curve["depth"].to_list() == list(DEPTHS)
    assert curve["recall"].to_list() == pytest.approx([measures.mean_of(values, f"R@{depth}") for depth in DEPTHS])


def test_a_run_without_relevant_documents_has_recall_0() -> None:
    judged = pl.DataFrame(
        {"qid": ["q"], "relevance": [1], "position": [None]},
        schema={"qid": pl.String, "relevance": pl.Int32, "position": pl.Int32},
    )
    assert measures.recall_by_depth(judged, DEPTHS)["recall"].to_list() == [0.0] * len(DEPTHS)


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
AT = measures.parse_measures(["acc@1", "accuracy@2", "acc@3"])


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
    assert set(candidates(RUN, with_answers(QUERIES), measures.parse_measures(["acc@2"]))) == {"d1", "d2", "d3"}
    assert set(candidates(RUN, with_answers(QUERIES), measures.parse_measures(["acc@1"]))) == {"d1", "d3"}


def test_a_document_missing_from_the_corpus_is_refused() -> None:
    with raises("other-corpus", id="d2"):
        evaluate_answers(RUN, with_answers(QUERIES), passages(TEXTS.filter(docid="d1")), AT)


def test_questions_without_any_answer_are_refused() -> None:
    with raises("needs-answers"):
        with_answers(QUERIES.filter(pl.col("qid").is_in(["q4", "q5"])))


def test_a_run_of_other_queries_is_refused() -> None:
    with raises("other-queries", id="q9"):
        evaluate_answers(RUN.filter(qid="q9"), with_answers(QUERIES), passages(TEXTS), AT)


@pytest.fixture
def here(workdir: Path) -> Path:
    Path("run.trec").write_text("".join(f"q Q0 d{rank} {rank} {10 - rank} x\n" for rank in range(1, 6)))
    Path("qrels.tsv").write_text("q\t0\td2\t0\nq\t0\td4\t1\n")
    return workdir


def means(*options: str) -> dict[str, float]:
    words = ["evaluate", "--qrels", "qrels.tsv", "run.trec", "-m", "MRR@10", "-m", "Judged@4", "--format", "json"]
    done = ran(*words, *options)
    (run,) = json.loads(done.out)["runs"]
    return dict(run["means"])


def test_condensed_lists_count_judged_documents_only(here: Path) -> None:
    assert means() == {"MRR@10": 0.25, "Judged@4": 0.5}
    assert means("--condensed") == {"MRR@10": 0.5, "Judged@4": 0.5}


def test_a_note_offers_condensed_lists_for_pooled_judgments(here: Path) -> None:
    words = ["evaluate", "--qrels", "qrels.tsv", "run.trec"]
    assert hybrid(*words).says("unjudged-hits", shares={"run": 0.6})
    Path("judged.trec").write_text("q Q0 d2 1 2 x\nq Q0 d4 2 1 x\n")
    for silent in ([*words, "--condensed"], [*words[:3], "judged.trec"]):
        assert not hybrid(*silent).says("unjudged-hits")
    Path("qrels.tsv").write_text("q\t0\td4\t1\n")
    assert not hybrid(*words).says("unjudged-hits")
    assert hybrid(*words, "--condensed").is_problem("all-judged-relevant", path="run.trec")


def has_answer(answers: list[str], text: str, mode: AnswerMatch = "string") -> bool:
    return matcher(answers, mode)(passage_form(text, mode))


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("Beyonc\u00e9", "beyonce\u0301", True),  # NFD on both
        ("Beyonce", "Beyonc\u00e9", False),  # accents are kept
        ("U.S.", "in the U.S. army", True),  # tokens u . s .
        ("U.S", "in the U.S. army", True),
        ("US", "in the U.S. army", False),
        ("art", "he started an article", False),  # whole tokens
        ("3,000", "about 3,000 men", True),
        ("3000", "about 3,000 men", False),
        ("O'Brien", "with o'brien there", True),
        ("", "anything", False),  # true in DPR's code
        (" \t\n", "anything", False),
        ("the army", "the\u00a0army", True),  # any separator
        ("the army", "army the", False),
    ],
)
def test_golden_answers(answer: str, text: str, expected: bool) -> None:
    assert has_answer([answer], text) is expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"19\d\d", "born in 1950", True),
        (r"blue|red", "a RED sky", True),
        (r"^second", "first line\nSecond line", True),
        (r"(unclosed", "(unclosed", False),  # an invalid pattern matches nothing
        ("", "anything", False),
        ("Beyonc\u00e9", "beyonce\u0301", True),
        (r"\bart\b", "an article", False),
    ],
)
def test_patterns(pattern: str, text: str, expected: bool) -> None:
    assert has_answer([pattern], text, "regex") is expected


@given(st.text(), st.text(), st.text())
def test_a_text_contains_its_own_words_in_any_unicode_form(before: str, answer: str, after: str) -> None:
    text = f"{before} {answer} {after}"
    # a combining mark joins the token before it only without a space between them
    assert has_answer([answer], text) or not passage_form(answer).strip()
    composed = unicodedata.normalize("NFC", text)
    assert has_answer([answer], composed) == has_answer([answer], text)


def test_one_answer_is_enough() -> None:
    assert has_answer(["nothing", "", "blue"], "a blue sky")
    assert not has_answer([], "a blue sky")


def test_one_passage_form_serves_all_questions() -> None:
    passage = passage_form("Paris, the capital of France")
    assert matcher(["capital of france"])(passage)
    assert not matcher(["capital france"])(passage)


# Query a: x scores 9, four documents score 5, v scores 1. Query b: no equal scores, but the score of a's last hit.
HITS = [("a", "x", 9), *(("a", docid, 5) for docid in ("t1", "good", "fair", "t2")), ("a", "v", 1)]
HITS += [("b", "v", 1), ("b", "w", 0)]
JUDGED = [("a", "good", 2), ("a", "fair", 1), ("a", "t1", 0), ("b", "w", 1), ("c", "z", 1)]


@pytest.fixture
def run() -> pl.DataFrame:
    table = pl.DataFrame(HITS, schema=["qid", "docid", "score"], orient="row")
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("qid")
    return table.select("qid", "docid", rank.alias("rank"), pl.col("score").cast(pl.Float32))


@pytest.fixture
def qrels() -> pl.DataFrame:
    return pl.DataFrame(JUDGED, schema=["qid", "docid", "relevance"], orient="row")


def test_the_range_is_that_of_the_best_and_the_worst_order(run: pl.DataFrame, qrels: pl.DataFrame) -> None:
    found = measures.ranges(retrieved(Run.of(run), qrels, 0).judged, qrels, ["MRR@10", "nDCG@3", "R@10"])
    ideal = 2 + 1 / log2(3)
    assert found["MRR@10"] == pytest.approx(((1 / 4 + 1 / 2) / 3, (1 / 2 + 1 / 2) / 3))
    best = (2 / log2(3) + 1 / log2(4)) / ideal  # good second, fair third
    assert found["nDCG@3"] == pytest.approx((1 / log2(3) / 3, (best + 1 / log2(3)) / 3))  # at worst fourth and fifth
    assert found["R@10"] == pytest.approx((2 / 3, 2 / 3))


def test_without_a_judged_document_of_equal_score_there_is_no_range(run: pl.DataFrame) -> None:
    qrels = pl.DataFrame([("a", "x", 1), ("b", "w", 1)], schema=["qid", "docid", "relevance"], orient="row")
    assert measures.ranges(retrieved(Run.of(run), qrels, 0).judged, qrels, ["nDCG@10"]) == {}


@pytest.fixture
def tied_runs(workdir: Path, run: pl.DataFrame) -> Path:
    lines = [f"{qid} Q0 {docid} {rank} {score} x\n" for qid, docid, rank, score in run.iter_rows()]
    Path("tied.trec").write_text("".join(lines))
    order = [f"{qid} Q0 {docid} {rank} {1 / rank} x\n" for qid, docid, rank, _ in run.iter_rows()]
    Path("plain.trec").write_text("".join(order))
    Path("qrels.tsv").write_text("".join(f"{qid}\t0\t{docid}\t{grade}\n" for qid, docid, grade in JUDGED))
    return workdir


def test_evaluate_and_fuse_print_ranges_wider_than_002(tied_runs: Path) -> None:
    ties = {"run": "tied", "ranges": {"MRR@10": (pytest.approx(1 / 4), pytest.approx(1 / 3))}}
    done = ran("evaluate", "--qrels", "qrels.tsv", "tied.trec", "plain.trec", "-m", "MRR@10", "-m", "R@10")
    assert done.notices.count("ties") == done.notices.count("ties", **ties) == 1
    words = ["fuse", "tied.trec", "plain.trec", "--output", "f.parquet", "--qrels", "qrels.tsv", "--measure", "MRR@10"]
    done = ran(*words)
    assert done.says("ties", **ties)
    assert not done.says("ties", run="plain")
    words = ["fuse", "tied.trec", "plain.trec", "--tune", "--output", "w.json", "--qrels", "qrels.tsv"]
    assert ran(*words).says("ties", **ties)
