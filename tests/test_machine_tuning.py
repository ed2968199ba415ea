"""`fuse --tune --machine` and `compose --tune --machine`: a machine judges more queries than people."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Notices, raises, ran

from hybrid_cli import artifacts
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.evaluation.prediction_powered import rectified
from hybrid_cli.fusion.selection import Choice, Trials, select
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.storage import Kind

QUERIES, DOCUMENTS, DEPTH, PEOPLE = 240, 12, 8, 30
WEIGHTS = np.linspace(0, 1, 21)
Grades = Mapping[tuple[str, str], int]


def write(name: str, grades: Grades, rater: str = "0") -> Path:
    path = Path(name)
    path.write_text("".join(f"{qid}\t{rater}\t{docid}\t{grade}\n" for (qid, docid), grade in grades.items()))
    return path


def first(grades: Grades, count: int) -> Grades:
    return {pair: grade for pair, grade in grades.items() if int(pair[0][1:]) < count}


def scores(queries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return relevance [queries, documents] and scores [runs, queries, documents] of a weaker and a better run."""
    random = np.random.default_rng(seed)
    relevant = (random.random((queries, DOCUMENTS)) < 0.2).astype(int)
    quality = np.array([0.8, 1.4])[:, None, None]
    return relevant, quality * relevant + random.normal(0, 1, (2, queries, DOCUMENTS))


@pytest.fixture
def truth(workdir: Path) -> Grades:
    """Two runs in the folder, and the grades of all their hits, of which people know those of 30 queries."""
    relevant, values = scores(QUERIES, 1)
    for name, of_run in zip(("one", "two"), values, strict=True):
        lines = [
            f"q{query} Q0 d{document} {rank} {row[document]:.6f} x\n"
            for query, row in enumerate(of_run)
            for rank, document in enumerate(np.argsort(-row)[:DEPTH], 1)
        ]
        Path(f"{name}.trec").write_text("".join(lines))
    grades = {(f"q{q}", f"d{d}"): int(relevant[q, d]) for q in range(QUERIES) for d in range(DOCUMENTS)}
    write("people.tsv", first(grades, PEOPLE))
    return grades


def tuned(output: str, qrels: str = "people.tsv", machine: str | None = None) -> dict[str, Any]:
    how: dict[str, Any] = {"method": "minmax", "measure": "nDCG@5", "qrels": Path(qrels)}
    how["machine"] = None if machine is None else Path(machine)
    made = fuse(["one.trec", "two.trec"], tune=True, output=Path(output), **how)
    content: dict[str, Any] = json.loads(made.read_text("utf-8"))
    return content


def test_a_perfect_machine_tunes_as_if_people_had_judged_all_queries(truth: Grades) -> None:
    write("machine.tsv", truth, "machine:m")
    write("all.tsv", truth)
    made, whole, few = tuned("made.json", machine="machine.tsv"), tuned("all.json", "all.tsv"), tuned("few.json")
    assert (made["queries"], made["machine_queries"]) == (PEOPLE, QUERIES - PEOPLE)
    assert made["machine_weight"] == pytest.approx((QUERIES - PEOPLE) / QUERIES, abs=0.25)
    expected = {tuple(trial["weights"]): trial["score"] for trial in whole["trials"]}
    for trial in made["trials"]:
        assert trial["score"] == pytest.approx(expected[tuple(trial["weights"])], abs=0.02)
    assert made["weights"] == pytest.approx(whole["weights"], abs=0.1)
    assert np.ptp(made["verdict"]["interval"]) < 0.75 * np.ptp(few["verdict"]["interval"])
    assert "machine_weight" not in few


def test_evidence_counts_the_grades_of_people_alone_and_single_runs_are_corrected(truth: Grades) -> None:
    random = np.random.default_rng(0)
    write("machine.tsv", {pair: int(random.random() < 0.1) ^ grade for pair, grade in truth.items()}, "machine:m")
    made, few = tuned("made.json", machine="machine.tsv"), tuned("few.json")
    looks, alone = made["evidence"], few["alone"]
    assert made["verdict"]["wins"] + made["verdict"]["losses"] < PEOPLE, "some queries have equal values"
    assert looks["two"]["queries"] == PEOPLE
    assert looks["one"]["difference"] - looks["two"]["difference"] == pytest.approx(alone["two"] - alone["one"])
    by_weights = {tuple(trial["weights"]): trial["score"] for trial in made["trials"]}
    assert made["alone"] == pytest.approx({"one": by_weights[1.0, 0.0], "two": by_weights[0.0, 1.0]})
    assert 0 < made["machine_weight"] < 1


def test_grades_of_a_machine_that_say_nothing_change_nothing(truth: Grades, notices: Notices) -> None:
    """One grade for all; too few queries of both; then queries that no run or no machine has are left out."""
    few = tuned("few.json") | {"manifest": None}
    write("machine.tsv", dict.fromkeys(truth, 0), "machine:m")
    made = tuned("one.json", machine="machine.tsv")
    assert notices.says("one-grade", grade=0)
    assert made["machine_weight"] == 0
    names = ("weights", "score", "held_out", "evidence")
    assert [made[name] for name in names] == [few[name] for name in names]
    write("machine.tsv", {pair: grade for pair, grade in truth.items() if int(pair[0][1:]) >= 11}, "machine:m")
    assert tuned("less.json", machine="machine.tsv") | {"manifest": None} == few
    assert notices.says("no-correction", queries=19, needed=20)
    known = {pair: grade for pair, grade in truth.items() if pair[0] != "q3"}
    write("machine.tsv", known | {("z1", "d1"): 1}, "machine:m")
    made = tuned("left.json", machine="machine.tsv")
    assert (made["queries"], made["machine_queries"]) == (PEOPLE - 1, QUERIES - PEOPLE)
    assert "q3" not in made["judged"]
    assert {"queries-without-machine", "queries-without-hits"} <= set(notices.warnings)
    with raises("machine-judgments", path="machine.tsv"):
        tuned("people.json", qrels="machine.tsv", machine="machine.tsv")


def test_a_retriever_is_tuned_on_the_grades_of_both(workdir: Path) -> None:
    sizes = ["red", "old", "tame", "shy", "wild"]
    animals = [f"{size} {kind}" for kind in ("cat", "dog", "owl", "fox", "cow") for size in sizes]
    documents = [{"id": f"d{n}", "text": f"The {name} sleeps. One {name} eats."} for n, name in enumerate(animals * 2)]
    Path("docs.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    Path("queries.tsv").write_text(
        "".join(f"q{n}\twhere does the {name} sleep\n" for n, name in enumerate(animals * 2))
    )
    grades = {(f"q{n}", f"d{n % 25 + m}"): 1 for n in range(50) for m in (0, 25)}
    write("people.tsv", first(grades, 25))
    write("machine.tsv", grades, "machine:m")
    prepare(PrepareFiles([Path("docs.jsonl")], queries=["test=queries.tsv"], output=Path("data")))
    indexes = [index_bm25(Path("data"), k1=k1, output=Path(f"bm25-{k1}")) for k1 in (0.1, 2.0)]
    made = compose(
        indexes, tune=True, qrels=Path("people.tsv"), machine=Path("machine.tsv"), calibrate=True, output=Path("made")
    )
    stored = json.loads((made / "retriever.json").read_text("utf-8"))
    assert (stored["tuning"]["queries"], stored["tuning"]["machine_queries"]) == (25, 25)
    assert artifacts.read_manifest(made, Kind.RETRIEVER).input_path("machine") == Path("machine.tsv").resolve()
    ran("inspect", made)


def ndcg(relevant: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return nDCG@5 [choices, queries] of ranks [choices, queries, documents] by relevance [queries, documents]."""
    ideal = np.sort(relevant)[:, ::-1][:, :5] @ (1 / np.log2(np.arange(2, 7)))
    gained = (relevant * np.where(ranks <= 5, 1 / np.log2(ranks + 1), 0)).sum(-1)
    return np.asarray(np.divide(gained, ideal, out=np.zeros_like(gained), where=ideal > 0))


def test_a_machine_that_is_right_finds_better_weights_and_a_useless_one_loses_nothing() -> None:
    relevant, (one, two) = scores(1000, 2)
    fused = (1 - WEIGHTS)[:, None, None] * one + WEIGHTS[:, None, None] * two
    ranks = (-fused).argsort(-1).argsort(-1) + 1
    random = np.random.default_rng(3)
    grades = {
        "right": relevant ^ (random.random(relevant.shape) < 0.1),
        "useless": random.permutation(relevant.ravel()).reshape(relevant.shape),
    }
    people, machines = ndcg(relevant, ranks), {name: ndcg(of_machine, ranks) for name, of_machine in grades.items()}
    choices, true = [Choice("minmax", (1 - weight, weight)) for weight in WEIGHTS], people.mean(1)
    lost: dict[str, list[float]] = {"people": [], "right": [], "useless": []}
    weights: dict[str, list[float]] = {"people": [], "right": [], "useless": []}
    for _ in range(150):
        rows = random.permutation(1000)
        judged, rest = rows[:30], rows[30:]
        for name in lost:
            values, weight = people[:, judged], 0.0
            if name != "people":
                values, weight = rectified(values, machines[name][:, judged], machines[name][:, rest])
            lost[name].append(true.max() - true[select([Trials(choices, values)], 5, 1).row])
            weights[name].append(weight)
    means = {name: np.mean(values) for name, values in lost.items()}
    assert means["right"] < 0.8 * means["people"]
    assert means["useless"] < 1.1 * means["people"]
    assert np.mean(weights["useless"]) < 0.1 < 0.4 < np.mean(weights["right"])
