"""Every integer grade gives the value of the measure's definition, or is refused."""

import json
from math import log2
from pathlib import Path
from random import Random

import polars as pl
import pytest
import pytrec_eval
from command import hybrid, ran, refused
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.evaluation.measures import evaluate_run

pytestmark = pytest.mark.usefixtures("workdir")

DEPTHS = (1, 3, 10)
WHOLE = ("MRR", "MRR@3", "nDCG", "MAP", "Rprec", "Bpref", "ERR", "RBP")
CUT = ("P", "R", "nDCG", "MAP", "Success", "ERR", "RBP", "Judged")
NAMES = (*WHOLE, *(f"{name}@{k}" for name in CUT for k in DEPTHS))
POOLS = {
    "ordinary": [0, 1, 2, 3],
    "web track": [-2, 0, 1, 2, 3, 4],
    "spam only": [-2],
    "negative only": [-1, -2, -7],
    "nothing relevant": [-1, 0],
    "gaps": [-1, 0, 1, 7, 1000],
    "large": [0, 1, 800_000_000, 2_000_000_000],
    "32 bits": [-(1 << 31), -1, 0, (1 << 31) - 1],
    "64 bits": [-(10**10), -1, 0, 1, 10**10],
}


def defined(order: list[str], grades: dict[str, int], level: int, highest: int) -> dict[str, float]:
    """Compute the measures of one query from their definitions, one hit after the other."""
    judged = [grades.get(docid) for docid in order]
    relevant = [grade is not None and grade >= level for grade in judged]
    total = sum(grade >= level for grade in grades.values())
    found = {"MRR": next((1 / rank for rank, hit in enumerate(relevant, 1) if hit), 0.0)}
    found["MRR@3"] = found["MRR"] if found["MRR"] >= 1 / 3 else 0.0
    found["Rprec"] = sum(relevant[:total]) / total if total else 0.0
    found["Bpref"] = bpref(judged, grades, level)
    for name, depth in (("", max(len(order), 1)), *((f"@{k}", k) for k in DEPTHS)):
        top = relevant[:depth]
        precisions = [sum(top[:rank]) / rank for rank, hit in enumerate(top, 1) if hit]
        found[f"MAP{name}"] = sum(precisions) / total if total else 0.0
        found[f"RBP{name}"] = 0.2 * sum(0.8 ** (rank - 1) for rank, hit in enumerate(top, 1) if hit)
        ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)
        best = gain(ideal[:depth] if name else ideal)
        found[f"nDCG{name}"] = gain([max(grade or 0, 0) for grade in judged[:depth]]) / best if best else 0.0
        found[f"ERR{name}"] = reciprocal([max(grade or 0, 0) for grade in judged[:depth]], highest)
    for k in DEPTHS:
        found[f"P@{k}"] = sum(relevant[:k]) / k
        found[f"R@{k}"] = sum(relevant[:k]) / total if total else 0.0
        found[f"Success@{k}"] = float(any(relevant[:k]))
        found[f"Judged@{k}"] = sum(grade is not None for grade in judged[:k]) / k
    return found


def gain(grades: list[int]) -> float:
    return sum(grade / log2(rank + 1) for rank, grade in enumerate(grades, 1))


def reciprocal(grades: list[int], highest: int) -> float:
    """ERR; (2^g - 1) / 2^highest is exact for integers of any size with enough zeros."""
    value, reached = 0.0, 1.0
    for rank, grade in enumerate(grades, 1):
        shift = highest - grade
        stop = (2.0**-shift if shift < 1000 else 0.0) - (2.0**-highest if highest < 1000 else 0.0)
        value += reached * stop / rank
        reached *= 1 - stop
    return value


def bpref(judged: list[int | None], grades: dict[str, int], level: int) -> float:
    """Mean over the R relevant hits of 1 - min(n, R) / min(N, R), n the judged hits above that are not relevant."""
    total = sum(grade >= level for grade in grades.values())
    others = sum(0 <= grade < level for grade in grades.values())
    value, above = 0.0, 0
    for grade in judged:
        if grade is None or grade < 0:  # trec_eval: in the pool, but not judged
            continue
        if grade < level:
            above += 1
        else:
            value += 1 - min(above, total) / min(others, total) if above else 1.0
    return value / total if total else 0.0


def evaluation(
    rng: Random, pool: list[int], queries: int = 2
) -> tuple[dict[str, list[str]], dict[str, dict[str, int]]]:
    """Draw a run and judgments; some queries have no hits, and "no query" is a name inside trec_eval."""
    docids = [f"d{number}" for number in range(14)]
    qids = rng.sample(["no query", "no_query", *map(str, range(queries))], queries)
    judgments = {qid: {d: rng.choice(pool) for d in rng.sample(docids, rng.randint(1, 12))} for qid in qids}
    orders = {qid: rng.sample(docids, rng.randint(1, 14)) for qid in qids[: rng.randint(1, len(qids))]}
    return orders, judgments


def tables(orders: dict[str, list[str]], judgments: dict[str, dict[str, int]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    hits = [(qid, docid, rank) for qid, docids in orders.items() for rank, docid in enumerate(docids, 1)]
    rows = [(qid, docid, grade) for qid, grades in judgments.items() for docid, grade in grades.items()]
    run = pl.DataFrame(hits, schema=["qid", "docid", "rank"], orient="row")
    return run, pl.DataFrame(rows, schema={"qid": pl.String, "docid": pl.String, "relevance": pl.Int64}, orient="row")


@pytest.mark.parametrize("pool", POOLS)
def test_every_measure_has_the_value_of_its_definition(pool: str) -> None:
    rng = Random(pool)
    for queries in (1, 1, 1, 2, 2, 3, 60, 60):
        orders, judgments = evaluation(rng, POOLS[pool], queries)
        level = rng.choice([1, 1, 2, 7, 2_000_000_000])
        highest = max(1, *(grade for grades in judgments.values() for grade in grades.values()))
        values = evaluate_run(*tables(orders, judgments), NAMES, level)
        expected = {
            (name, qid): value
            for qid, grades in judgments.items()
            for name, value in defined(orders.get(qid, []), grades, level, highest).items()
        }
        found = {(name, qid): value for name, qid, value in values.select("measure", "qid", "value").iter_rows()}
        assert found == pytest.approx(expected, abs=1e-12), (orders, judgments, level)


@given(st.randoms(use_true_random=False), st.lists(st.integers(-(10**10), 10**10), min_size=1, max_size=6))
def test_any_grades_are_evaluated(rng: Random, pool: list[int]) -> None:
    orders, judgments = evaluation(rng, pool)
    highest = max(1, *(grade for grades in judgments.values() for grade in grades.values()))
    values = evaluate_run(*tables(orders, judgments), NAMES, 1)
    for name, qid, value in values.select("measure", "qid", "value").iter_rows():
        assert value == pytest.approx(defined(orders.get(qid, []), judgments[qid], 1, highest)[name], abs=1e-12)


def test_condensed_lists_are_those_of_trec_eval() -> None:
    """A negative grade means in the pool but not judged."""
    rng = Random(1)
    for number in range(3):
        orders, judgments = evaluation(rng, [-2, -1, 0, 1, 2], 20)
        judgments = {f"q{qid[-2:]}": {"z": 1, "y": 0} | grades for qid, grades in judgments.items()}
        orders = {f"q{qid[-2:]}": docids for qid, docids in orders.items()}
        evaluator = pytrec_eval.RelevanceEvaluator(judgments, {"map", "P_3"}, judged_docs_only_flag=True)
        raw = evaluator.evaluate({q: {d: -float(r) for r, d in enumerate(docids)} for q, docids in orders.items()})
        run, qrels = tables(orders, judgments)
        assert condensed(run, qrels, number) == pytest.approx(
            {"AP": mean(raw, "map", len(judgments)), "P@3": mean(raw, "P_3", len(judgments))}
        )


def mean(raw: dict[str, dict[str, float]], name: str, queries: int) -> float:
    return sum(values[name] for values in raw.values()) / queries


def condensed(run: pl.DataFrame, qrels: pl.DataFrame, number: int) -> dict[str, float]:
    folder = Path(f"condensed-{number}")
    folder.mkdir()
    lines = (f"{qid} Q0 {docid} {rank} {-rank} x\n" for qid, docid, rank in run.iter_rows())
    (folder / "run.trec").write_text("".join(lines))
    (folder / "qrels.txt").write_text("".join(f"{q} 0 {d} {grade}\n" for q, d, grade in qrels.iter_rows()))
    words = ["evaluate", "--qrels", folder / "qrels.txt", folder / "run.trec", "--condensed", "--format", "json"]
    done = ran(*words, "--measure", "AP,P@3")
    means = json.loads(done.out)["runs"][0]["means"]
    return {name: means[name] for name in ("AP", "P@3")}


def test_the_commands_take_every_grade_of_32_bits() -> None:
    Path("run.trec").write_text("7 Q0 b 1 2 x\n7 Q0 a 2 1 x\n8 Q0 b 1 2 x\n")
    Path("other.trec").write_text("7 Q0 a 1 2 x\n7 Q0 b 2 1 x\n8 Q0 b 1 2 x\n")
    Path("qrels.txt").write_text("7 0 a 800000000\n7 0 b -2147483648\n8 0 b -2\n8 0 c -1\n")
    means = {}
    for level in (1, 2_147_483_647):
        words = ["evaluate", "--qrels", "qrels.txt", "run.trec", "--format", "json", "--relevance-level", level]
        done = ran(*words, "--measure", "nDCG@10,MRR@10,Bpref")
        means[level] = json.loads(done.out)["runs"][0]["means"]
    assert means[1] == pytest.approx({"nDCG@10": 1 / log2(3) / 2, "MRR@10": 0.25, "Bpref": 0.5})
    assert means[2_147_483_647]["MRR@10"] == 0
    both = ("--qrels", "qrels.txt", "run.trec", "other.trec")
    ran("fuse", *both, "--method", "minmax", "--tune", "--output", "w.json")
    assert json.loads(Path("w.json").read_text())["weights"]
    ran("report", *both, "--output", "report.html")


@pytest.mark.parametrize("grade", ["2147483648", "-2147483649", "-10000000000", "9" * 5000])
@pytest.mark.parametrize("command", ["evaluate", "prepare"])
def test_a_grade_beyond_32_bits_is_refused_where_it_is_read(grade: str, command: str) -> None:
    Path("run.trec").write_text("7 Q0 b 1 2 x\n")
    Path("qrels.test.txt").write_text(f"7 0 b -2147483648\n7 0 a {grade}\n")
    Path("docs.tsv").write_text("a\tone\nb\ttwo\n")
    Path("queries.test.tsv").write_text("7\twords\n")
    words = {
        "evaluate": "evaluate --qrels qrels.test.txt run.trec",
        "prepare": "prepare files docs.tsv --queries queries.test.tsv --qrels qrels.test.txt --output c",
    }[command]
    done = hybrid(*words.split())
    assert (done.code, done.problem) == (2, "grade-out-of-range")
    assert not Path("c").exists()
    assert {name: done.fields[name] for name in ("line", "value")} == {"line": 2, "value": grade}
    assert str(done.fields["path"]) == "qrels.test.txt"
    pl.DataFrame({"qid": ["7", "7"], "docid": ["a", "b"], "relevance": [1, 10**10]}).write_parquet("q.parquet")
    refused("evaluate", "--qrels", "q.parquet", "run.trec", problem="grade-out-of-range", line=2, value=10**10)
