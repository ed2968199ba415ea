"""Agreement of judgments: of several people (`--study agreement`), and of people and a machine (`--machine`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import console
from hybrid_cli.artifacts.judged import BothJudged
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.journal import Journal
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation.prediction_powered import LEAST_QUERIES, CorrectedMean
from hybrid_cli.inputs.rows import InputFile
from hybrid_cli.reporting.plan import EvaluationPlan, measure
from hybrid_cli.reporting.tables import Result, Table, figure, with_sign
from hybrid_cli.runs.files import short_names


@dataclass(frozen=True)
class Agreement:
    """Agreement of two sets of judgments, on the pairs of query and document that both grade.

    Attributes:
        pairs, same: number of these pairs, and of those with equal grades.
        kappa: Cohen's kappa; None if undefined, as where both give every pair the same grade.
        weighted_kappa: kappa with quadratic weights: near grades count as near.
        kappa_of_relevance: kappa of relevant or not.
        grades: the different grades of both sets, ascending.
        confusion: [first, second] number of pairs by their grades in both sets.
    """

    pairs: int
    same: int
    kappa: float | None
    weighted_kappa: float | None
    kappa_of_relevance: float | None
    grades: list[int]
    confusion: list[list[int]]

    @classmethod
    def of(cls, first: pl.DataFrame, second: pl.DataFrame, level: int = 1) -> Agreement:
        """Compare two sets of judgments.

        Args:
            first, second: qid, docid, relevance.
            level: lowest relevant grade.
        """
        both = first.join(second, on=["qid", "docid"], how="inner")
        ours, theirs = both["relevance"].to_numpy(), both["relevance_right"].to_numpy()
        grades, confusion = _confusion(ours, theirs)
        _, of_relevance = _confusion(ours >= level, theirs >= level)
        kappas = _kappa(confusion), _kappa(confusion, quadratic=True), _kappa(of_relevance)
        return cls(len(both), int((ours == theirs).sum()), *kappas, grades.tolist(), confusion.tolist())

    @property
    def kappas(self) -> tuple[float | None, ...]:
        """Return kappa, weighted kappa, and kappa of relevance."""
        return self.kappa, self.weighted_kappa, self.kappa_of_relevance

    def content(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        return asdict(self)


def conflicts(judgments: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the pairs of query and document to which people give different grades.

    Args:
        judgments: name of a person -> qid, docid, relevance.

    Returns:
        qid, docid, and the grade of each person (null without one), in the order of the first judgments of each pair.
    """
    key = ["qid", "docid"]
    every = pl.concat([frame.select(key) for frame in judgments.values()]).unique(maintain_order=True)
    for name, frame in judgments.items():
        graded = frame.select(*key, pl.col("relevance").alias(name))
        every = every.join(graded, on=key, how="left", maintain_order="left")
    names = list(judgments)
    return every.filter(pl.min_horizontal(names) < pl.max_horizontal(names))


def _confusion(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different grades [n], ascending, and the number [n, n] of pairs by their two grades."""
    grades = np.unique(np.concatenate([first, second]))
    confusion = np.zeros((len(grades), len(grades)), np.int64)
    np.add.at(confusion, (np.searchsorted(grades, first), np.searchsorted(grades, second)), 1)
    return grades, confusion


def _kappa(confusion: np.ndarray, quadratic: bool = False) -> float | None:
    """Return Cohen's kappa of a matrix of `_confusion`: 1 less the disagreement relative to that by chance."""
    places = np.arange(len(confusion))
    steps = np.subtract.outer(places, places)
    weights = steps**2 if quadratic else steps != 0
    by_chance = np.outer(confusion.sum(axis=0), confusion.sum(axis=1)) / max(confusion.sum(), 1)
    expected = (weights * by_chance).sum()
    return float(1 - (weights * confusion).sum() / expected) if expected else None


def _kappa_text(value: float | None) -> str:
    return "undefined" if value is None else figure(value, 2)


# --------------------------------------------------------------------------------------------------------------- people

_SHOWN = 10  # conflicts in the text; JSON has all


def people_agreement(paths: Sequence[Path]) -> Result:
    """Compare the judgments of every two of several people, and list the pairs that they grade differently.

    Raises:
        InputError: fewer than two files, or people who graded no common hit.
    """
    judgments = judgments_of_people(paths)
    agreements = [(a, b, Agreement.of(judgments[a], judgments[b])) for a, b in combinations(judgments, 2)]
    if not any(found.pairs for *_, found in agreements):
        problem = "--study agreement: the people graded no common hit; let them judge the same queries"
        raise InputError(problem, code="no-common-judgments", option="study")
    differing = conflicts(judgments)
    listed = [{"people": [a, b], **found.content()} for a, b, found in agreements]
    names = ("pairs", "same", "kappa", "weighted_kappa", "kappa_of_relevance")
    figures = [
        {"first": a, "second": b, **{name: getattr(found, name) for name in names}} for a, b, found in agreements
    ]
    rows = [
        [f"{a}, {b}", f"{found.pairs:,}", f"{found.same:,}", *map(_kappa_text, found.kappas)]
        for a, b, found in agreements
    ]
    blocks: list[Table | str] = [
        Table(["people", "common", "equal", "kappa", "quadratic weights", "relevant or not"], rows)
    ]
    if len(agreements) == 1:
        blocks.append(_confusion_table(*agreements[0]))
    if len(differing):
        shown = [["" if cell is None else str(cell) for cell in row] for row in differing.head(_SHOWN).rows()]
        blocks.append(Table(differing.columns, shown, left=2))
    files = ",".join(map(str, paths))
    command = f"hybrid judge COLLECTION --adjudicate {files} --output {files if len(paths) == 1 else 'settled.tsv'}"
    count = console.counted(conflict=len(differing))
    blocks.append(f"{count}; to settle: {command}" if len(differing) else "No conflicts.")
    return Result(blocks, {"agreements": listed, "conflicts": differing.to_dicts()}, figures)


def _confusion_table(first: str, second: str, found: Agreement) -> Table:
    """Return the numbers of pairs by their two grades, and the share of equal ones."""
    rows = [
        [f"{first} {grade}", *map(str, row), f"{row[number] / max(sum(row), 1):.0%}"]
        for number, (grade, row) in enumerate(zip(found.grades, found.confusion, strict=True))
    ]
    return Table(["grade", *(f"{second} {grade}" for grade in found.grades), "same"], rows)


def judgments_of_people(paths: Sequence[Path]) -> Mapping[str, pl.DataFrame]:
    """Return the judgments of each person: of a file by its short name, or of a journal by the names of its raters.

    Raises:
        InputError: fewer than two people, or unreadable files.
    """
    names = short_names([path.with_suffix("") for path in paths])
    found: dict[str, pl.DataFrame] = {}
    for name, path in zip(names, paths, strict=True):
        if (journal := Journal.of(InputFile.of(path))) is not None:
            schema = {"qid": pl.String, "docid": pl.String, "relevance": pl.Int32}
            for rater in journal.people():
                rows = [(*pair, grade) for pair, grade in journal.graded(rater).items()]
                found[rater] = pl.DataFrame(rows, schema, orient="row")
        else:
            found[name] = collections.read_qrels(path)
    if len(set(paths)) < len(paths) or len(found) < 2:
        problem = "pass the judgments of two or more people: a file each, or a journal"
        raise InputError(problem, code="number-of-inputs", value=len(found))
    return found


# ------------------------------------------------------------------------------------------------------------ a machine

_FIGURES = ("mean", "low", "high", "people_low", "people_high", "weight")


def machine_labels(plan: EvaluationPlan, machine: Path) -> Result:
    """Measure runs by the judgments of people and of a machine: means, and differences from the first run.

    Args:
        plan: runs and measures, with the judgments of people.
        machine: qrels of the machine.

    Raises:
        InputError: no measure needs judgments, or judgments of a machine for those of people, or no common query.
    """
    if plan.qrels is None or plan.by_answers:
        raise InputError("--machine: needs measures of judgments", code="needs-judgments", option="machine")
    judged = BothJudged.read("evaluate", plan.qrels, machine, plan.runs)
    both, others, of_both = judged.both, judged.others, judged.of_both("evaluate")
    values = {"people": measure(plan)[0]}
    with console.quiet():
        values["machine"] = measure(replace(plan, qrels=machine, by_machine=True))[0]
    first, *rest = plan.runs
    pairs = [*((run, "") for run in plan.runs), *((run, first) for run in rest)]
    estimates = []
    for name in plan.columns:
        found = {rater: _by_run(frame, name) for rater, frame in values.items()}
        for run, baseline in pairs:
            ours, theirs, rest_of_machine = (
                np.array([found[rater][run][qid] - (found[rater][baseline][qid] if baseline else 0) for qid in qids])
                for rater, qids in (("people", both), ("machine", both), ("machine", others))
            )
            corrected = CorrectedMean.of(ours, theirs, rest_of_machine) if len(both) >= LEAST_QUERIES else None
            row: dict[str, Any] = {"run": run, "baseline": baseline, "measure": name, "by_people": float(ours.mean())}
            row["by_machine"] = float(np.concatenate([theirs, rest_of_machine]).mean())
            estimates.append(row | {name: corrected and getattr(corrected, name) for name in _FIGURES})
    agreement = Agreement.of(of_both, judged.machine, plan.level)
    counts = {"queries": len(both), "others": len(others)}
    blocks = [_confusion_table("people", "machine", agreement), *_estimate_tables(estimates)]
    kappas = zip(("kappa", "quadratic weights", "relevant or not"), agreement.kappas, strict=True)
    shown = ", ".join(f"{name} {_kappa_text(value)}" for name, value in kappas)
    legend = [f"{agreement.same:,} of {agreement.pairs:,} common grades are equal; Cohen's {shown}."]
    if len(both) >= LEAST_QUERIES:
        queries = f"{len(both):,} queries of people and {len(others):,} of the machine alone"
        legend.append(f"± half the width of the 95% interval. Corrected: prediction-powered mean of {queries}.")
        legend.append("It holds if the queries of people are a random sample.")
    return Result([*blocks, *legend], {"agreement": agreement.content(), **counts, "estimates": estimates}, estimates)


def _by_run(values: pl.DataFrame, name: str) -> dict[str, dict[str, float]]:
    """Return run -> query -> value of a measure."""
    return {
        str(run): dict(rows.select("qid", "value").iter_rows())
        for (run,), rows in values.filter(measure=name).group_by("run")
    }


def _estimate_tables(estimates: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Yield the means, and the differences of several runs: by people, by the machine, and corrected."""
    for heading, shown in (("run", figure), ("difference", with_sign)):
        rows = []
        for each in estimates:
            if bool(each["baseline"]) == (heading == "difference"):
                name = f"{each['run']} - {each['baseline']}" if each["baseline"] else each["run"]
                people, corrected = shown(each["by_people"], 3), "-"
                if each["mean"] is not None:
                    people += f" ±{figure((each['people_high'] - each['people_low']) / 2, 3)}"
                    corrected = f"{shown(each['mean'], 3)} ±{figure((each['high'] - each['low']) / 2, 3)}"
                rows.append([name, each["measure"], people, shown(each["by_machine"], 3), corrected])
        if rows:
            yield Table([heading, "measure", "people alone", "machine alone", "corrected"], rows, left=2)
