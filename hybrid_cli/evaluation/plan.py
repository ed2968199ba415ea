"""Runs and judgements to the values of every query: what `evaluate` and `report` both begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import config, console, runs
from hybrid_cli.collections import collection
from hybrid_cli.collections.answers import MODES
from hybrid_cli.config import AnswerMatch, Correction, SignificanceTest
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import accuracy, intervals, significance
from hybrid_cli.evaluation.complementarity import rbo
from hybrid_cli.evaluation.measures import ACCURACY, HOLE, Measure, coverage, evaluate_run, mean_of, parse_measures
from hybrid_cli.evaluation.significance import CORRECTIONS
from hybrid_cli.evaluation.summary import MOST_BASELINES, TESTS, Summary

OVERLAP = "RBO"
_COUNTS = ("judged", "answered", "missing", "unjudged", HOLE, "removed")
_DEFAULT = config.Evaluation()


@dataclass(frozen=True)
class Comparing:
    """With which runs the others are compared, and how.

    Attributes:
        baselines: names of runs; the first run if none is named.
        test: which test the marks in tables show; both are computed.
        correction: over the comparisons of one measure.
    """

    baselines: Sequence[str] = ()
    test: SignificanceTest = _DEFAULT.test
    correction: Correction = _DEFAULT.correction
    seed: int = _DEFAULT.seed

    def checked(self, names: Sequence[str]) -> Comparing:
        """The same with every baseline once, each the name of a run.

        Raises:
            InputError: an unknown run, test or correction, or more baselines than there are letters.
        """
        _check("test", self.test, TESTS)
        _check("correction", self.correction, CORRECTIONS)
        if unknown := [name for name in self.baselines if name not in names]:
            raise InputError(f"--baseline {', '.join(unknown)}: no such run; there are {', '.join(names)}")
        chosen = list(dict.fromkeys(self.baselines)) or list(names[:1])
        if len(chosen) > MOST_BASELINES:
            raise InputError(f"--baseline: {len(chosen)} runs; at most {MOST_BASELINES} can be told apart by a letter")
        return Comparing(chosen, self.test, self.correction, self.seed)


@dataclass(frozen=True)
class Plan:
    """What is measured, and against which files; None for those that no measure asks for.

    `overlap_with` is the run with which every run's rank-biased overlap is measured, if any: its name and path.
    """

    runs: dict[str, Path]
    measures: list[Measure]
    qrels: Path | None
    queries: Path | None
    corpus: Path | None
    level: int
    answer_match: AnswerMatch
    remove_query: bool
    overlap_with: tuple[str, Path] | None = None

    @classmethod
    def of(
        cls,
        inputs: Sequence[str | Path],
        *,
        split: str | None = None,
        qrels: Path | None = None,
        queries: Path | None = None,
        corpus: Path | None = None,
        measures: Sequence[str] = _DEFAULT.measures,
        relevance_level: int = _DEFAULT.relevance_level,
        answer_match: AnswerMatch = _DEFAULT.answer_match,
        remove_query: bool = False,
        overlap_with: str | None = None,
    ) -> Plan:
        """The plan that a person's words come to.

        Args:
            inputs: a collection (or a qrels file), then the runs; with `qrels`, runs only. A run may be `name=path`.
            split: which split of the collection.
            qrels: judgements, if not those of a collection.
            queries, corpus: for `acc@k`, if not those of the collection.
            measures: names as `measures.parse_measures` reads them.
            relevance_level: the lowest grade that is relevant, for measures without `(rel=N)`.
            answer_match: answers as `string` or as `regex`.
            remove_query: leave out hits whose id is that of their query (BEIR's rule for ArguAna and Quora).
            overlap_with: a run, by the name that it has among the inputs, or as a path or `name=path`.

        Raises:
            InputError: an unusable measure, file or name.
        """
        _check("answer match", answer_match, MODES)
        wanted = parse_measures(measures, relevance_level)
        judgements, named = _split_inputs(inputs, qrels)
        files = _files(judgements, split, queries, corpus, wanted)
        other = (overlap_with, runs.pick(overlap_with, named, "--overlap-with")) if overlap_with else None
        return cls(named, wanted, *files, relevance_level, answer_match, remove_query, other)

    @property
    def columns(self) -> list[str]:
        """The names of all measures."""
        return [*(measure.name for measure in self.measures), *([OVERLAP] if self.overlap_with else [])]

    def inputs(self) -> dict[str, Path]:
        """Role -> path, of all that the values depend on."""
        files = {"qrels": self.qrels, "queries": self.queries, "corpus": self.corpus}
        given = {role: path for role, path in files.items() if path is not None}
        given |= {"overlap with": self.overlap_with[1]} if self.overlap_with else {}
        return given | {f"run {name}": path for name, path in self.runs.items()}

    def options(self) -> dict[str, Any]:
        """All else that the values depend on."""
        return {
            "runs": list(self.runs),
            "measures": [measure.name for measure in self.measures],
            "relevance_level": self.level,
            "answer_match": self.answer_match,
            "remove_query": self.remove_query,
        }

    def read(self, name: str) -> tuple[pl.DataFrame, int]:
        """A run, and how many hits were left out because they are their own query."""
        return self._kept(runs.read_run(self.runs[name]))

    def other(self) -> pl.DataFrame | None:
        """The run to measure the overlap with."""
        return self._kept(runs.read_run(self.overlap_with[1]))[0] if self.overlap_with else None

    def _kept(self, run: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        if not self.remove_query:
            return run, 0
        kept = run.filter(pl.col("qid") != pl.col("docid"))
        return kept, len(run) - len(kept)


def _check(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise InputError(f"{what} '{given}' is unknown; there are {', '.join(known)}")


# -------------------------------------------------------------------------------------------------------------- files


def _split_inputs(inputs: Sequence[str | Path], qrels: Path | None) -> tuple[Path, dict[str, Path]]:
    """Where the judgements are, and the runs by name."""
    judgements, given = (Path(inputs[0]), inputs[1:]) if qrels is None and inputs else (qrels, inputs)
    if judgements is None or not given:
        raise InputError(
            "name a collection (or --qrels FILE) and at least one run: `hybrid evaluate COLLECTION RUN...`"
        )
    named = runs.named(given)
    for path in named.values():
        if not path.exists():
            raise InputError(f"{path}: no such file; a run is needed here")
    return judgements, named


def _files(
    judgements: Path, split: str | None, queries: Path | None, corpus: Path | None, measures: Sequence[Measure]
) -> tuple[Path | None, Path | None, Path | None]:
    """The qrels, queries and corpus that the measures ask for."""
    kinds = {measure.family is ACCURACY for measure in measures}
    qrels = collection.qrels_path(judgements, split) if False in kinds else None
    if True not in kinds:
        return qrels, None, None
    if judgements.is_file() and not (queries and corpus):
        raise InputError("acc@k needs answers and texts: name a collection, or --queries FILE and --corpus FILE")
    return qrels, queries or collection.queries_path(judgements, split), collection.corpus_path(corpus or judgements)


# ---------------------------------------------------------------------------------------------------------- measuring


def measure(plan: Plan) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Judge all runs.

    Returns:
        run, measure, qid, value; and `runs` (the counts of each) with `nothing_relevant`.
    """
    qrels = collection.read_qrels(plan.qrels) if plan.qrels else None
    asked = accuracy.with_answers(collection.read_queries(plan.queries)) if plan.queries else None
    passages = _passages(plan, asked) if asked is not None else {}
    other = plan.other()
    frames, counts = [], {}
    with console.progress("evaluate", total=len(plan.runs), unit="runs") as advance:
        for name, path in plan.runs.items():
            run, removed = plan.read(name)
            try:
                values, counts[name] = _judge(plan, run, qrels, asked, passages)
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            if other is not None:
                values = pl.concat([values, _overlap(run, other, values)])
            counts[name] |= {"removed": removed} if plan.remove_query else {}
            frames.append(values.select(pl.lit(name).alias("run"), "measure", "qid", "value"))
            note_depth(name, run, {measure.name: measure.cutoff for measure in plan.measures if measure.cutoff})
            advance(1)
    return pl.concat(frames), {"runs": counts, "nothing_relevant": _without_relevant(qrels, plan.level)}


def summarize(plan: Plan, values: pl.DataFrame, found: Mapping[str, Any], how: Comparing) -> Summary:
    """What `measure` returned, with the comparisons and the intervals."""
    permutations, resamples, confidence = _DEFAULT.permutations, _DEFAULT.resamples, _DEFAULT.confidence
    comparisons = significance.compare(
        values, list(how.baselines), correction=how.correction, permutations=permutations, seed=how.seed
    )
    estimates = intervals.intervals(values, resamples=resamples, confidence=confidence, seed=how.seed)
    settings = {
        "relevance_level": plan.level,
        "nothing_relevant": found["nothing_relevant"],
        "test": how.test,
        "correction": how.correction,
        "alpha": _DEFAULT.alpha,
        "permutations": permutations,
        "resamples": resamples,
        "confidence": confidence,
        "seed": how.seed,
        **({"overlap_with": plan.overlap_with[0]} if plan.overlap_with else {}),
    }
    counts = {
        run: {name: found["runs"][run][name] for name in _COUNTS if name in found["runs"][run]} for run in plan.runs
    }
    return Summary(values, counts, comparisons, estimates, how.baselines, settings)


def _judge(
    plan: Plan, run: pl.DataFrame, qrels: pl.DataFrame | None, asked: pl.DataFrame | None, passages: Mapping[str, str]
) -> tuple[pl.DataFrame, dict[str, float]]:
    """The values of one run in the order of the measures, and its counts."""
    values: list[pl.DataFrame] = []
    counts: dict[str, float] = {}
    if asked is not None:
        counts |= coverage(run, asked["qid"])
        values.append(accuracy.evaluate_answers(run, asked, passages, plan.measures, plan.answer_match))
    if qrels is not None:
        names = [measure.name for measure in plan.measures if measure.family is not ACCURACY]
        judged = evaluate_run(run, qrels, [*names, HOLE], plan.level)
        counts |= coverage(run, qrels["qid"]) | {HOLE: mean_of(judged, HOLE)}
        values.append(judged.filter(pl.col("measure").is_in(names)))
    order = {measure.name: position for position, measure in enumerate(plan.measures)}
    place = pl.col("measure").replace_strict(order, return_dtype=pl.Int32)
    return pl.concat(values).sort(place, maintain_order=True), counts


def _overlap(run: pl.DataFrame, other: pl.DataFrame, values: pl.DataFrame) -> pl.DataFrame:
    """Rank-biased overlap over the queries of the first measure; 0 where a run has no hits."""
    queries = values.filter(pl.col("measure") == pl.col("measure").first()).select("qid")
    found = queries.join(rbo(run, other), on="qid", how="left", maintain_order="left")
    named = found.select("qid", pl.lit(OVERLAP).alias("measure"), pl.col("value").fill_null(0.0))
    return named.select(values.columns)


def _passages(plan: Plan, asked: pl.DataFrame) -> dict[str, str]:
    """The texts that any run has among its first hits, ready to be searched for answers."""
    assert plan.corpus is not None
    docids = [accuracy.candidates(plan.read(name)[0], asked, plan.measures) for name in plan.runs]
    texts = collection.texts(plan.corpus, pl.concat(docids).unique())
    return accuracy.passages(texts, plan.answer_match)


def _without_relevant(qrels: pl.DataFrame | None, level: int) -> int:
    """How many judged queries have no document of that grade."""
    if qrels is None:
        return 0
    return qrels["qid"].n_unique() - qrels.filter(pl.col("relevance") >= level)["qid"].n_unique()


def note_depth(name: str, run: pl.DataFrame, cutoffs: Mapping[str, int]) -> None:
    """Say what (name -> cutoff) looks deeper than a run goes."""
    longest = run.group_by("qid").len()["len"].to_list() if len(run) else [0]
    if deeper := [what for what, cutoff in cutoffs.items() if cutoff > max(longest)]:
        console.note(f"{name}: has at most {max(longest):,} hits a query, fewer than {', '.join(deeper)} could see")
