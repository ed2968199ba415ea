"""Measures of a run, in the order of the rank column; a query without hits scores 0.

pytrec_eval computes the binary measures. trec_eval counts documents in an array with an entry for every grade up to
the highest: a grade below -1 writes outside of it, and a large one fills the memory. It therefore receives a 1 for a
relevant document, a 0 for any other judged one, and a -1 for a negative grade, which means "not judged" in trec_eval;
and only queries with a relevant document, as every binary measure of the others is 0. It uses neither ids nor scores
otherwise: each query is passed with its number, and each hit with its rank as id and minus its rank as score. Scores
never tie, trec_eval's tie rule (docid descending) never applies, and all queries share a few dictionaries. nDCG, which
uses the grades themselves, is computed here. A new measure is one entry of `FAMILIES`, here or in another package
(docs/extending.md).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytrec_eval

from hybrid_cli import console, plugins
from hybrid_cli.collections.collection import read_qrels
from hybrid_cli.errors import InputError, named_keywords
from hybrid_cli.inputs.files import DOCIDS, QIDS, fold_name
from hybrid_cli.plugins import Registry
from hybrid_cli.runs import RunLike, frame_of, of_dictionary, run_table

_SCHEMA = {"measure": pl.String, "qid": pl.String, "value": pl.Float64}
_LONG_CUTOFF = re.compile(r"[@_](\d{10,})")
_SPELLING = re.compile(
    r"(?P<word>[a-z][a-z0-9]*(?:[_-][a-z][a-z0-9]*)*)(?:\(rel=(?P<level>\d{1,9})\)|\(p=(?P<p>0?\.\d{1,9})\))?(?:[@_.](?P<cutoff>\d{1,9}))?",
    re.ASCII,
)


@dataclass(frozen=True)
class MeasureFamily:
    """One measure at any cutoff: an entry of `FAMILIES`.

    Attributes:
        whole, cut: trec_eval's names without and with a cutoff; "" where the measure does not exist.
        aliases: other spellings, in lower case.
        graded: the measure has no lowest relevant grade.
        compute: expression over the judged documents of one query in the order of position, for a measure that
            trec_eval does not have or cannot compute for every grade. Columns: relevance, position, and those of
            `_with_gains`.
    """

    whole: str = ""
    cut: str = ""
    aliases: tuple[str, ...] = ()
    graded: bool = False
    compute: Callable[[Measure], pl.Expr] | None = None

    @property
    def documented(self) -> Callable[[Measure], pl.Expr] | None:
        """The function whose docstring is the help."""
        return self.compute


def as_family(name: str, added: Any) -> MeasureFamily:
    """Return the measure of a plugin: a `MeasureFamily`, or the function that computes one with or without a cutoff.

    Raises:
        ValueError: neither of them.
    """
    if isinstance(added, MeasureFamily) and added.compute is not None:
        return replace(added, aliases=())
    if isinstance(added, MeasureFamily) or not callable(added):
        raise ValueError(f"{type(added).__name__} is neither a MeasureFamily with `compute` nor a function")
    return MeasureFamily(name, name, compute=added)


def share_judged(measure: Measure) -> pl.Expr:
    """Return the judged fraction of the top k places; an empty place is not judged."""
    return (pl.col("position") <= (measure.cutoff or 0)).sum() / (measure.cutoff or 1)


def normalized_gain(measure: Measure) -> pl.Expr:
    """Return the sum of the discounted gains, divided by that of the ideal order (nDCG); 0 without a positive grade."""
    ideal = pl.col("ideal")
    if measure.cutoff is not None:
        ideal = ideal.filter(pl.col("ideal_rank") <= measure.cutoff)
    best = _in_sequence(ideal.sort(descending=True))  # the order of the ranks
    gains = _in_sequence(pl.when(_in_top(measure)).then("gain").otherwise(0.0))
    return pl.when(best > 0).then(gains / best).otherwise(0.0)


def _in_sequence(values: pl.Expr) -> pl.Expr:
    """Return the sum of values, added one by one as in trec_eval; 0 for no values."""
    return values.cum_sum().last().fill_null(0.0)


def expected_reciprocal_rank(measure: Measure) -> pl.Expr:
    """Return sum 1/r R_r prod (1 - R_i), where R is the chance to stop (ERR)."""
    stop = pl.when(_in_top(measure)).then("stop").otherwise(0.0)
    reached = (1 - stop).cum_prod().shift(1).fill_null(1.0)
    return (stop * reached / pl.col("position").fill_null(1)).sum()


def rank_biased_precision(measure: Measure) -> pl.Expr:
    """Return (1 - p) sum p^(r-1) over the relevant documents (RBP)."""
    relevant = _in_top(measure) & (pl.col("relevance") >= measure.level)
    weight = pl.lit(measure.p).pow(pl.col("position").fill_null(1) - 1)
    return (1 - measure.p) * pl.when(relevant).then(weight).otherwise(0.0).sum()


def _in_top(measure: Measure) -> pl.Expr:
    """Select the documents in the top k, or in the whole list."""
    position = pl.col("position")
    return (position.is_not_null() if measure.cutoff is None else position <= measure.cutoff).fill_null(False)


MRR, ACCURACY, RBP, SUCCESS = "MRR", "acc", "RBP", "Success"
_BUILT_IN: dict[str, MeasureFamily] = {
    MRR: MeasureFamily("recip_rank", "recip_rank", ("rr", "recip_rank", "reciprocal_rank")),
    "nDCG": MeasureFamily("ndcg", "ndcg_cut", ("ndcg_cut",), graded=True, compute=normalized_gain),
    "MAP": MeasureFamily("map", "map_cut", ("ap", "map_cut")),
    "P": MeasureFamily("", "P", ("precision",)),
    "R": MeasureFamily("", "recall", ("recall",)),
    SUCCESS: MeasureFamily("", "success", ("hit_rate", "hitrate")),
    "Rprec": MeasureFamily("Rprec", "", ("r-precision",)),
    "Bpref": MeasureFamily("bpref", ""),
    "ERR": MeasureFamily("err", "err_cut", graded=True, compute=expected_reciprocal_rank),
    RBP: MeasureFamily("rbp", "rbp_cut", compute=rank_biased_precision),
    "Judged": MeasureFamily("", "judged", graded=True, compute=share_judged),
    ACCURACY: MeasureFamily(
        "", "accuracy", ("accuracy",), graded=True
    ),  # computed from answers and texts in `accuracy`
}
FAMILIES: Registry[MeasureFamily] = Registry(
    "measures", _BUILT_IN, as_family, (alias for family in _BUILT_IN.values() for alias in family.aliases)
)
PERSISTENCE = 0.8  # of RBP, as in ir_measures
HOLE = "Judged@10"  # judged fraction of the top hits, printed with every evaluation


@dataclass(frozen=True)
class Measure:
    """One measure: its spelling, family, cutoff (top k hits), lowest relevant grade, and persistence of RBP."""

    name: str
    family: str
    cutoff: int | None
    level: int
    p: float = PERSISTENCE

    @property
    def trec_name(self) -> str:
        """Return trec_eval's name; its reciprocal rank has no cutoff."""
        family = FAMILIES[self.family]
        if self.cutoff is None or self.family == MRR:
            return family.whole
        return f"{family.cut}_{self.cutoff}"


def parse_measures(names: Iterable[str], level: int = 1) -> list[Measure]:
    """Parse names in the spelling of trec_eval, ir_measures or ranx: `ndcg_cut_10`, `nDCG@10`, `RR(rel=2)@10`.

    Args:
        level: lowest relevant grade of names without `(rel=N)`.

    Raises:
        InputError: lists all unknown names, each with a suggestion.
    """
    parsed = {name: _parse(name, level) for name in names}
    bad = {name: f"'{name}' ({fault})" for name, fault in parsed.items() if isinstance(fault, str)}
    if bad or not parsed:
        problem = f"measures: {', '.join(bad.values()) or 'none given'}; known: {_known()} (also trec_eval's names)"
        raise InputError(problem, code="unknown-choice", option="measure", value=list(bad))
    return [measure for measure in parsed.values() if isinstance(measure, Measure)]


def measure_name(name: str) -> str:
    """Return the name of a measure unchanged.

    Raises:
        ValueError: not a measure; the message suggests one.
    """
    fault = _parse(name, 1)
    if isinstance(fault, str):
        unknown = "unknown; " if fault.startswith("did you mean") else ""
        stop = "" if fault.endswith("?") else "."
        raise ValueError(f"{unknown}{fault}{stop} Known: {_known()} (also trec_eval's names)")
    return name.strip()


def uses_all_grades(name: str) -> bool:
    """Test whether the value of a measure does not depend on the lowest relevant grade, as that of nDCG."""
    parsed = _parse(name, 1)
    return isinstance(parsed, Measure) and FAMILIES[parsed.family].graded


def _words() -> dict[str, str]:
    """Return every spelling of a family, in lower case, with its name; no measure of a plugin is imported."""
    words = {word: name for name, family in _BUILT_IN.items() for word in (name.lower(), *family.aliases)}
    return {**words, **{entry.name.lower(): entry.name for entry in FAMILIES.others()}}


def _known() -> str:
    """Return the names of all families: `MRR[@k], P@k, Rprec`."""
    cutoffs = {True: {True: "[@k]", False: ""}, False: {True: "@k", False: ""}}
    ours = [name + cutoffs[bool(family.whole)][bool(family.cut)] for name, family in _BUILT_IN.items()]
    return ", ".join([*ours, *(entry.name for entry in FAMILIES.others())])


def _parse(name: str, level: int) -> Measure | str:
    """Return the measure of a name, or the reason for refusing the name."""
    match, words = _SPELLING.fullmatch(name.strip().lower()), _words()
    if match is None and (too_long := _LONG_CUTOFF.search(name)):
        return f"the cutoff {too_long[1]} is too large"
    if match is None or match["word"] not in words:
        return _suggestion(name, words)
    known, cutoff = words[match["word"]], int(match["cutoff"]) if match["cutoff"] else None
    family = FAMILIES[known]
    if cutoff == 0:
        return "the cutoff must be 1 or more"
    if cutoff is None and (not family.whole or match["word"].endswith("_cut")):
        return f"needs a cutoff: {known}@10"
    if cutoff is not None and not family.cut:
        return f"takes no cutoff: {known}"
    if match["level"] and family.graded:
        return f"{known} does not take (rel=N)"
    if match["level"] and int(match["level"]) < 1:
        return "the lowest relevant grade must be 1 or more"
    if match["p"] and known != RBP:
        return f"{known} does not take (p=...)"
    persistence = float(match["p"]) if match["p"] else PERSISTENCE
    return Measure(name, known, cutoff, int(match["level"]) if match["level"] else level, persistence)


def _suggestion(name: str, words: Mapping[str, str]) -> str:
    word, mark, rest = name.strip().lower().partition("@")
    if not mark:
        word, mark, rest = re.sub(r"[_.]\d+$", "", word), "@", "".join(re.findall(r"[_.](\d+)$", word))
    close = get_close_matches(word, words, n=1, cutoff=0.5)
    if not close:
        return "unknown"
    known = words[close[0]]
    family = FAMILIES[known]
    cutoff = f"@{rest if rest.isdigit() else 10}" if family.cut and (rest or not family.whole) else ""
    return f"did you mean {known}{cutoff}?"


def without_query(run: pl.DataFrame) -> pl.DataFrame:
    """Return the hits whose docid is not the qid; their ranks have gaps."""
    return run.filter(pl.col("qid") != pl.col("docid"))


def evaluate_run(
    run: pl.DataFrame, qrels: pl.DataFrame, measures: Sequence[str], level: int = 1, remove_query: bool = False
) -> pl.DataFrame:
    """Measure a run for every judged query; a query without hits scores 0.

    Args:
        run: qid, docid, rank; ranks give the order within a query and may start at any number.
        qrels: qid, docid, relevance.
        measures: names that `parse_measures` accepts, except `acc@k`.
        level: lowest relevant grade; nDCG uses all grades.
        remove_query: remove hits whose docid is the qid first.

    Returns:
        measure (as spelled in `measures`), qid, value: measures in the given order, queries in the order of the qrels.

    Raises:
        InputError: unknown measure, or a run and qrels without a common query.
    """
    run = without_query(run) if remove_query else run
    return evaluate_hits(in_order(run), run["qid"], qrels, measures, level)


def evaluate_hits(
    hits: pl.DataFrame, answered: pl.Series, qrels: pl.DataFrame, measures: Sequence[str], level: int = 1
) -> pl.DataFrame:
    """Measure a run from its judged hits; see `evaluate_run`.

    Args:
        hits: qid, docid, position (from 1): at least all judged hits of the run.
        answered: ids of the queries with hits; may repeat.
        qrels, measures, level: as for `evaluate_run`.
    """
    depth = _deepest(parse_measures(measures, level))
    check_overlap(answered, qrels)
    within = hits if depth is None else hits.filter(pl.col("position") <= depth)
    return evaluate_positions(judged_hits(within, qrels), measures, level)


def evaluate_positions(judged: pl.DataFrame, measures: Sequence[str], level: int = 1) -> pl.DataFrame:
    """Measure a run from the positions of its judged documents alone.

    Args:
        judged: qid, docid, relevance of the qrels, and `position` in the run (from 1; null if not retrieved).
    """
    wanted = parse_measures(measures, level)
    depth = _deepest(wanted)
    if depth is not None:
        judged = judged.with_columns(pl.when(pl.col("position") <= depth).then("position"))
    return _values(judged, wanted)


def _deepest(wanted: Sequence[Measure]) -> int | None:
    """Return the number of top hits that the measures use; None for all."""
    if any(measure.family == ACCURACY for measure in wanted):
        raise InputError("acc@k needs answers of queries and texts of documents, not qrels", code="needs-answers")
    cutoffs = [measure.cutoff for measure in wanted]
    return None if None in cutoffs else max(cutoff or 0 for cutoff in cutoffs)


def _values(judged: pl.DataFrame, wanted: Sequence[Measure]) -> pl.DataFrame:
    """Return measure, qid, value from the judged documents and their positions."""
    qids = judged["qid"].unique(maintain_order=True)
    columns: dict[Measure, Sequence[float] | pl.Series] = dict(_trec_values(judged, qids, wanted))
    judged = _with_gains(judged).sort("position", nulls_last=True)
    for measure in wanted:
        if compute := FAMILIES[measure.family].compute:
            with plugins.calling("measures", measure.family):
                values = judged.group_by("qid").agg(value=compute(measure).cast(pl.Float64))
            columns[measure] = qids.to_frame().join(values, on="qid", how="left", maintain_order="left")["value"]
    frames = [pl.DataFrame({"qid": qids, "value": columns[measure]}) for measure in wanted]
    named = [
        frame.select(pl.lit(measure.name).alias("measure"), "qid", pl.col("value").cast(pl.Float64))
        for measure, frame in zip(wanted, frames, strict=True)
    ]
    return pl.concat(named).cast(_SCHEMA)  # type: ignore[arg-type]


def _with_gains(judged: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of graded measures; a negative grade gains nothing.

    Returns:
        `stop` = (2^g - 1) / 2^max, where max is the highest grade of all judgments (ERR); `gain`, the grade divided by
        log2(position + 1), null if the document was not retrieved; `ideal_rank`, the rank of the document in the best
        order of its query; and `ideal`, the gain at that rank.
    """
    grades = judged["relevance"].cast(pl.Float64).clip(0)
    ideal_rank = judged.select(pl.col("relevance").rank("ordinal", descending=True).over("qid")).to_series()
    highest = grades.to_numpy().max(initial=1)
    return judged.with_columns(
        stop=pl.Series(np.exp2(grades.to_numpy() - highest) - np.exp2(-highest)),
        gain=grades / _discounts(judged["position"]),
        ideal_rank=ideal_rank,
        ideal=grades / _discounts(ideal_rank),
    )


def _discounts(ranks: pl.Series) -> pl.Series:
    """Return log2(rank + 1), by the logarithm of C as in trec_eval; null for null."""
    known = ranks.unique()
    logarithms = pl.Series([None if rank is None else math.log2(rank + 1) for rank in known], dtype=pl.Float64)
    return ranks.replace_strict(known, logarithms, return_dtype=pl.Float64)


def check_overlap(answered: pl.Series, qrels: pl.DataFrame, run: Path | None = None) -> None:
    """Refuse qrels without a query of the run.

    Args:
        answered: ids of the queries with hits; may repeat.
        qrels: qid, docid, relevance.
        run: the run, for the message.
    """
    if len(qrels) == 0:
        raise InputError("the qrels are empty", code="no-judgments")
    if answered.is_in(qrels["qid"].unique().implode()).any():
        return
    raise other_queries(answered, qrels["qid"], "qrels", run)


def other_queries(answered: pl.Series, expected: pl.Series, file: str, run: Path | None = None) -> InputError:
    """Return the error about a run of other queries than a file with judgments or answers."""
    first = answered[0] if len(answered) else None
    start = "is empty" if first is None else f"starts with query '{first}'"
    problem = f"{f'{run}: ' if run else ''}the run has no hits for the judged queries: it {start}, and the {file} start"
    problem += f" with '{expected[0]}'; pass the {file} of the same split"
    fields = {"id": first, "expected": expected[0], "count": expected.n_unique()}
    return InputError(problem, code="other-queries", path=run, **fields)


def in_order(run: pl.DataFrame, depth: int | None = None) -> pl.DataFrame:
    """Return qid, docid, position: hits numbered from 1 by the rank column, at most `depth` per query."""
    begins = pl.col("qid").ne_missing(pl.col("qid").shift(1))
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    counted = row - pl.when(begins).then(row).forward_fill() + 1
    tidy = run.select(
        ((pl.col("rank") == counted).all() & (pl.col("qid").filter(begins).is_unique().all())).alias("tidy")
    ).item()
    if tidy:
        hits = run.select("qid", "docid", pl.col("rank").alias("position"))
    else:
        hits = run.sort("qid", "rank", maintain_order=True).select(
            "qid", "docid", pl.int_range(1, pl.len() + 1).over("qid").alias("position")
        )
    return hits if depth is None else hits.filter(pl.col("position") <= depth)


def judged_hits(hits: pl.DataFrame, qrels: pl.DataFrame) -> pl.DataFrame:
    """Return the qrels with the position of each document in the run, null if it was not retrieved."""
    hits_judged = hits.lazy().join(qrels.lazy().select("qid", "docid"), on=["qid", "docid"], how="semi")
    judged = qrels.lazy().join(hits_judged, on=["qid", "docid"], how="left", maintain_order="left").collect()
    twice = judged.filter(pl.struct("qid", "docid").is_duplicated())
    if len(twice):
        qid, docid = twice.select("qid", "docid").row(0)
        problem = f"document {docid} occurs more than once for query {qid} in the run or the qrels; keep one"
        raise InputError(problem, code="duplicate-id", id=docid, query=qid)
    return judged


def _trec_values(
    judged: pl.DataFrame, qids: pl.Series, measures: Sequence[Measure]
) -> Iterator[tuple[Measure, list[float]]]:
    """Yield each measure with the values of all queries; one pass of pytrec_eval per relevance level."""
    trec = sorted((m for m in measures if FAMILIES[m.family].compute is None), key=attrgetter("level"))
    if not trec:
        return
    named = _with_names(judged)
    for level, group in groupby(trec, key=attrgetter("level")):
        wanted = list(group)
        numbers, qrels, run = _stand_ins(named, level)
        evaluator = pytrec_eval.RelevanceEvaluator(qrels, {m.trec_name for m in wanted})
        results = evaluator.evaluate(run)
        for measure in wanted:
            name = measure.trec_name
            values = {qid: results[number][name] for qid, number in numbers.items()}
            yield measure, _cut([values.get(qid, 0.0) for qid in qids], measure)


def _cut(values: list[float], measure: Measure) -> list[float]:
    """Apply the cutoff of MRR@k: the reciprocal rank if the rank is at most k, else 0."""
    if measure.family != MRR or measure.cutoff is None:
        return values
    return [value if value >= 1 / measure.cutoff else 0.0 for value in values]


def _with_names(judged: pl.DataFrame) -> pl.DataFrame:
    """Add `name`, the position as text; "-7" for a document that was not retrieved."""
    name = pl.coalesce(pl.col("position"), -1 - pl.int_range(pl.len(), dtype=pl.Int64)).cast(pl.String)
    return judged.select("qid", "relevance", "position", name=name)


Grades = dict[str, dict[str, int]]
Scores = dict[str, dict[str, float]]


def _stand_ins(named: pl.DataFrame, level: int) -> tuple[dict[str, str], Grades, Scores]:
    """Return the queries with a relevant hit, each with its number, and qrels and run for pytrec_eval.

    A run is cut soon after its last judged hit: unjudged hits below it change no measure.
    """
    grade = pl.when(pl.col("relevance") >= level).then(1).when(pl.col("relevance") >= 0).then(0).otherwise(-1)
    queries = (
        named.with_columns(grade=grade)
        .group_by("qid", maintain_order=True)
        .agg("name", "grade", pl.max("position"), any=((pl.col("grade") == 1) & pl.col("position").is_not_null()).any())
        .filter("any")
    )
    numbers: dict[str, str] = {}
    qrels: Grades = {}
    run: Scores = {}
    prefixes: dict[int, dict[str, float]] = {}
    for number, (qid, names, grades, last, _) in enumerate(queries.iter_rows()):
        number_text = numbers[qid] = str(number)
        qrels[number_text] = dict(zip(names, grades, strict=True))
        length = 1 << (last - 1).bit_length()
        if length not in prefixes:
            prefixes[length] = {str(rank): -float(rank) for rank in range(1, length + 1)}
        run[number_text] = prefixes[length]
    return numbers, qrels, run


def coverage(run: pl.DataFrame, asked: pl.Series) -> dict[str, int]:
    """Count the judged queries (`asked`: their qids), of these the ones with and without hits, and unjudged queries."""
    judged, answered = asked.unique(), run["qid"].unique()
    both = len(answered.filter(answered.is_in(judged.implode())))
    return {"judged": len(judged), "answered": both, "missing": len(judged) - both, "unjudged": len(answered) - both}


def mean_of(values: pl.DataFrame, measure: str) -> float:
    """Return the mean of one measure over all judged queries.

    Args:
        values: measure, qid, value, as returned by `evaluate_run`.
    """
    return float(values.filter(measure=measure)["value"].to_numpy().mean())


NOTED = 0.002  # width of a range that is printed
_TIED = ("qid", "docid", "first", "last")


def with_ties(hits: pl.DataFrame) -> pl.DataFrame:
    """Add `first` and `last`, the ranks at the ends of the group of equal scores that contains each hit.

    Args:
        hits: qid, rank, score; whole queries in the order of query and rank.
    """
    begins = pl.col("qid").ne_missing(pl.col("qid").shift(1)) | pl.col("score").ne_missing(pl.col("score").shift(1))
    return hits.with_columns(
        first=pl.when(begins).then("rank").forward_fill(),
        last=pl.when(begins.shift(-1, fill_value=True)).then("rank").backward_fill(),
    )


def note_ties(name: str, hits: pl.DataFrame, qrels: pl.DataFrame, measures: Sequence[str], level: int = 1) -> None:
    """Print the ranges of the measures that depend on the order of equal scores by more than `NOTED`."""
    by_measure = ranges(hits, qrels, measures, level)
    wide = {measure: ends for measure, ends in by_measure.items() if ends[1] - ends[0] > NOTED}
    if wide:
        shown = ", ".join(f"{measure} {low:.4f} to {high:.4f}" for measure, (low, high) in wide.items())
        note = f"{name}: depends on the order of equal scores: {shown}"
        console.note(note, code="ties", run=name, measures=list(wide), ranges=wide)


def ranges(
    hits: pl.DataFrame, qrels: pl.DataFrame, measures: Sequence[str], level: int = 1
) -> dict[str, tuple[float, float]]:
    """Return measure -> lowest and highest mean over the orders of equal scores; empty if no judged hit is tied.

    The lowest has the documents of each group of equal scores in ascending order of grade, documents without a judgment
    first; the highest has the opposite order.

    Args:
        hits: qid, docid, first, last: at least all judged hits, as returned by `with_ties`.
        qrels: qid, docid, relevance.
        measures: names, without `acc@k`.
        level: lowest relevant grade.
    """
    if not measures or not (hits["first"] < hits["last"]).any():
        return {}
    judged = judged_hits(hits.select(*_TIED), qrels)
    offset = pl.col("relevance").rank("ordinal", descending=True).over("qid", "first").cast(pl.Int32) - 1
    worst, best = (
        evaluate_positions(judged.with_columns(position=position).drop("first", "last"), measures, level)
        for position in (pl.col("last") - offset, pl.col("first") + offset)
    )
    return {measure: (mean_of(worst, measure), mean_of(best, measure)) for measure in measures}


DEPTHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)


def recall_by_depth(judged: pl.DataFrame, depths: Sequence[int], level: int = 1) -> pl.DataFrame:
    """Return R@k, averaged over all judged queries, at several depths; 0 for queries without a relevant document.

    Args:
        judged: qid, relevance and `position` of the judged documents, as returned by `judged_hits`.
        depths: in ascending order.
        level: lowest relevant grade.

    Returns:
        depth, recall.
    """
    relevant = judged.filter(pl.col("relevance") >= level)
    share = (1 / pl.len()).over("qid") / judged["qid"].n_unique()
    hits = relevant.with_columns(share=share).drop_nulls("position").sort("position")
    summed = hits.select(depth=pl.col("position").cast(pl.Int64), recall=pl.col("share").cum_sum())
    asked = pl.DataFrame({"depth": depths}, schema={"depth": pl.Int64})
    return asked.join_asof(summed, on="depth").with_columns(pl.col("recall").fill_null(0.0))


def answered_by_depth(first: pl.DataFrame, depths: Sequence[int]) -> pl.DataFrame:
    """Return the fraction of queries with a relevant document in the top k (Success@k, acc@k), at several depths.

    Args:
        first: qid, rank of the first relevant document (null if there is none).

    Returns:
        depth, recall.
    """
    shares = [int((first["rank"] <= depth).sum()) / max(len(first), 1) for depth in depths]
    return pl.DataFrame({"depth": depths, "recall": shares}, schema={"depth": pl.Int64, "recall": pl.Float64})


# ----------------------------------------------------------------------------------------------------------- in memory

QrelsLike = pl.DataFrame | Mapping[str, Mapping[str, int]] | str | os.PathLike[str] | Any  # Any: a pandas data frame
_GRADES = ("relevance", "rel", "score", "label", "grade")


@named_keywords
def evaluate(run: RunLike, qrels: QrelsLike, measures: Sequence[str], *, level: int = 1) -> dict[str, float]:
    """Return the mean of each measure over all judged queries; a query without hits counts as 0.

    Args:
        run: a data frame, a dictionary `{qid: {docid: score}}` or a path; see `runs.run_table`.
        qrels: a data frame with qid, docid and relevance, a dictionary `{qid: {docid: grade}}`, or a path.
        measures: names such as `nDCG@10`, in the spelling of hybrid, ir_measures, ranx or trec_eval.
        level: lowest relevant grade, 1 by default; nDCG uses all grades.

    Returns:
        Measure, as spelled in `measures` -> mean.

    Raises:
        InputError: an unknown measure, something that is no run or no judgments, or no common query.

    Example:
        >>> from hybrid_cli import evaluate
        >>> evaluate({"q": {"a": 2.0, "b": 1.0}}, {"q": {"b": 1}}, ["MRR@10", "R@1"])
        {'MRR@10': 0.5, 'R@1': 0.0}
    """
    values = evaluate_queries(run, qrels, measures, level=level)
    return {name: mean_of(values, name) for name in values["measure"].unique(maintain_order=True)}


@named_keywords
def evaluate_queries(run: RunLike, qrels: QrelsLike, measures: Sequence[str], *, level: int = 1) -> pl.DataFrame:
    """Return the value of each judged query; a query without hits has the value 0.

    Args:
        run: a data frame, a dictionary `{qid: {docid: score}}` or a path; see `runs.run_table`.
        qrels: a data frame with qid, docid and relevance, a dictionary `{qid: {docid: grade}}`, or a path.
        measures: names such as `nDCG@10`, in the spelling of hybrid, ir_measures, ranx or trec_eval.
        level: lowest relevant grade, 1 by default; nDCG uses all grades.

    Returns:
        measure, qid, value.

    Raises:
        InputError: as for `evaluate`.

    Example:
        >>> from hybrid_cli.evaluation import evaluate_queries
        >>> evaluate_queries({"q": {"a": 2.0, "b": 1.0}}, {"q": {"b": 1}}, ["MRR@10"]).rows()
        [('MRR@10', 'q', 0.5)]
    """
    if isinstance(measures, str):
        raise InputError(f"measures: needs a list, such as [{measures!r}]", code="not-a-list")
    return evaluate_run(run_table(run), qrels_table(qrels), measures, level)


def qrels_table(qrels: QrelsLike) -> pl.DataFrame:
    """Return judgments as a table: qid, docid, relevance (int32).

    Raises:
        InputError: no judgments, a grade that is no whole number of 32 bits, or two grades for one pair.
    """
    if isinstance(qrels, str | os.PathLike):
        return read_qrels(Path(qrels))
    name = "the qrels"
    qrels = qrels.qrels_iter() if hasattr(qrels, "qrels_iter") else qrels
    frame = (
        of_dictionary(qrels, "relevance", name) if isinstance(qrels, Mapping) else frame_of(qrels, name, "relevance")
    )
    names = {fold_name(column): column for column in reversed(frame.columns)}
    known = {"qid": QIDS, "docid": DOCIDS, "relevance": _GRADES}
    usual = {
        field: next((names[usual_name] for usual_name in known[field] if usual_name in names), None) for field in known
    }
    if lacking := [field for field, column in usual.items() if column is None]:
        raise InputError(
            f"{name}: no column {lacking[0]}; judgments need qid, docid and relevance", code="no-such-column"
        )
    try:
        table = frame.select(
            pl.col(str(usual["qid"])).cast(pl.String).alias("qid"),
            pl.col(str(usual["docid"])).cast(pl.String).alias("docid"),
            pl.col(str(usual["relevance"])).alias("relevance"),
        )
        whole = table["relevance"].cast(pl.Int32)
    except pl.exceptions.PolarsError:
        raise InputError(f"{name}: a grade is not a whole number of 32 bits", code="grade-not-a-number") from None
    if whole.is_null().any() or (whole.cast(pl.Float64) != table["relevance"].cast(pl.Float64)).any():
        raise InputError(f"{name}: a grade is not a whole number of 32 bits", code="grade-not-a-number")
    if table.select("qid", "docid").null_count().sum_horizontal()[0]:
        raise InputError(f"{name}: a judgment has no qid or docid", code="missing-value")
    table = table.with_columns(whole).unique(maintain_order=True)
    if table.is_empty():
        raise InputError(f"{name}: no judgments", code="no-judgments")
    if table.select("qid", "docid").is_duplicated().any():
        raise InputError(f"{name}: two grades for one pair of query and document", code="two-grades")
    return table
