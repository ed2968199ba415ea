"""Measures of a run: pytrec_eval judges, the run's rank column gives the order, missing queries count as 0.

trec_eval looks at the order of the documents and at their grades, never at what they are called. So each hit is handed
over under its rank as its name, with minus its rank as its score: no two scores are equal, trec_eval's own tie rule
(docid descending) never interferes, and all queries share a few dictionaries however many hits a run has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from operator import attrgetter

import polars as pl
import pytrec_eval

from hybrid_cli.errors import InputError

_SCHEMA = {"measure": pl.String, "qid": pl.String, "value": pl.Float64}
_SPELLING = re.compile(r"(?P<word>[a-z]+(?:[_-][a-z]+)*)(?:\(rel=(?P<level>\d{1,9})\))?(?:[@_.](?P<cutoff>\d{1,9}))?")


@dataclass(frozen=True)
class _Family:
    """One measure at any cutoff.

    `whole` and `cut` are trec_eval's names without and with a cutoff ("" where it does not exist). A `graded` one knows
    no lowest relevant grade.
    """

    name: str
    whole: str
    cut: str
    words: tuple[str, ...]
    graded: bool = False


RR = _Family("MRR", "recip_rank", "recip_rank", ("mrr", "rr", "recip_rank", "reciprocal_rank"))
JUDGED = _Family("Judged", "", "judged", ("judged",), graded=True)
ACCURACY = _Family("acc", "", "accuracy", ("acc", "accuracy"), graded=True)
_FAMILIES = (
    RR,
    _Family("nDCG", "ndcg", "ndcg_cut", ("ndcg", "ndcg_cut"), graded=True),
    _Family("MAP", "map", "map_cut", ("map", "ap", "map_cut")),
    _Family("P", "", "P", ("p", "precision")),
    _Family("R", "", "recall", ("r", "recall")),
    _Family("Success", "", "success", ("success", "hit_rate", "hitrate")),
    _Family("Rprec", "Rprec", "", ("rprec", "r-precision")),
    _Family("Bpref", "bpref", "", ("bpref",)),
    JUDGED,
    ACCURACY,
)
_BY_WORD = {word: family for family in _FAMILIES for word in family.words}
HOLE = "Judged@10"  # how far a run can be judged at all; shown with every evaluation
_KNOWN = "MRR[@k], nDCG[@k], MAP[@k], P@k, R@k, Success@k, Rprec, Bpref, Judged@k, acc@k (also trec_eval's names)"


@dataclass(frozen=True)
class Measure:
    """One measure: as it was spelt, of which family, over how many first hits, relevant from which grade."""

    name: str
    family: _Family
    cutoff: int | None
    level: int

    @property
    def trec_name(self) -> str:
        """What trec_eval calls it; the reciprocal rank has no cutoff there."""
        if self.cutoff is None or self.family is RR:
            return self.family.whole
        return f"{self.family.cut}_{self.cutoff}"


def parse_measures(names: Iterable[str], level: int = 1) -> list[Measure]:
    """Read names in the spelling of trec_eval, ir_measures or ranx: `ndcg_cut_10`, `nDCG@10`, `RR(rel=2)@10`.

    Args:
        level: the lowest grade that is relevant, where the name has no `(rel=N)` of its own.

    Raises:
        InputError: all unusable names at once, each with what may have been meant.
    """
    parsed = {name: _parse(name, level) for name in names}
    bad = [f"'{name}' ({fault})" for name, fault in parsed.items() if isinstance(fault, str)]
    if bad or not parsed:
        raise InputError(f"measures: {', '.join(bad) or 'none given'}; known are {_KNOWN}")
    return [measure for measure in parsed.values() if isinstance(measure, Measure)]


def _parse(name: str, level: int) -> Measure | str:
    """The measure, or what is wrong with its name."""
    found = _SPELLING.fullmatch(name.strip().lower())
    if found is None or found["word"] not in _BY_WORD:
        return _suggestion(name)
    family, cutoff = _BY_WORD[found["word"]], int(found["cutoff"]) if found["cutoff"] else None
    if cutoff == 0:
        return "the cutoff must be 1 or more"
    if cutoff is None and (not family.whole or found["word"].endswith("_cut")):
        return f"needs a cutoff: {family.name}@10"
    if cutoff is not None and not family.cut:
        return f"takes no cutoff: {family.name}"
    if found["level"] and family.graded:
        return f"{family.name} does not take (rel=N)"
    if found["level"] and int(found["level"]) < 1:
        return "the lowest relevant grade must be 1 or more"
    return Measure(name, family, cutoff, int(found["level"]) if found["level"] else level)


def _suggestion(name: str) -> str:
    word, mark, rest = name.strip().lower().partition("@")
    if not mark:
        word, mark, rest = re.sub(r"[_.]\d+$", "", word), "@", "".join(re.findall(r"[_.](\d+)$", word))
    close = get_close_matches(word, _BY_WORD, n=1, cutoff=0.5)
    if not close:
        return "unknown"
    family = _BY_WORD[close[0]]
    cutoff = f"@{rest if rest.isdigit() else 10}" if family.cut and (rest or not family.whole) else ""
    return f"did you mean {family.name}{cutoff}?"


def evaluate_run(run: pl.DataFrame, qrels: pl.DataFrame, measures: Sequence[str], level: int = 1) -> pl.DataFrame:
    """Measure a run for every judged query, with 0 where the run has no hits.

    Args:
        run: qid, docid, rank; the order within a query is that of the ranks, whatever they begin with.
        qrels: qid, docid, relevance.
        measures: names as `parse_measures` reads them, but for `acc@k`.
        level: the lowest grade that is relevant; nDCG uses all grades.

    Returns:
        measure (as spelt in `measures`), qid, value: measures in the order given, queries in that of the qrels.

    Raises:
        InputError: an unusable measure, or a run and qrels that have no query in common.
    """
    wanted = parse_measures(measures, level)
    depth = _deepest(wanted)
    _check_overlap(run, qrels)
    return _values(judged_hits(in_order(run, depth), qrels), wanted)


def evaluate_positions(judged: pl.DataFrame, measures: Sequence[str], level: int = 1) -> pl.DataFrame:
    """The same from the places of the judged documents alone: all that a measure looks at.

    Args:
        judged: qid, docid, relevance of the qrels, and `position` in the run from 1, null where it is not there.
    """
    wanted = parse_measures(measures, level)
    depth = _deepest(wanted)
    if depth is not None:
        judged = judged.with_columns(pl.when(pl.col("position") <= depth).then("position"))
    return _values(judged, wanted)


def _deepest(wanted: Sequence[Measure]) -> int | None:
    """How many hits of a query the measures look at; None for all."""
    if any(measure.family is ACCURACY for measure in wanted):
        raise InputError("acc@k needs the answers of the queries and the texts of the documents, not qrels")
    cutoffs = [measure.cutoff for measure in wanted]
    return None if None in cutoffs else max(cutoff or 0 for cutoff in cutoffs)


def _values(judged: pl.DataFrame, wanted: Sequence[Measure]) -> pl.DataFrame:
    """measure, qid, value, from the judged documents and their positions."""
    qids = judged["qid"].unique(maintain_order=True)
    columns: dict[Measure, Sequence[float] | pl.Series] = dict(_trec_values(judged, qids, wanted))
    for measure in wanted:
        if measure.family is JUDGED:
            columns[measure] = _share_judged(judged, qids, measure.cutoff or 0)
    frames = [pl.DataFrame({"qid": qids, "value": columns[measure]}) for measure in wanted]
    named = [
        frame.select(pl.lit(measure.name).alias("measure"), "qid", pl.col("value").cast(pl.Float64))
        for measure, frame in zip(wanted, frames, strict=True)
    ]
    return pl.concat(named).cast(_SCHEMA)  # type: ignore[arg-type]


def _check_overlap(run: pl.DataFrame, qrels: pl.DataFrame) -> None:
    if len(qrels) == 0:
        raise InputError("the qrels are empty; nothing can be measured")
    if len(run) and run["qid"].is_in(qrels["qid"].unique().implode()).any():
        return
    answered = f"its first query is '{run['qid'][0]}'" if len(run) else "it has no hits at all"
    raise InputError(
        f"the run answers none of the {qrels['qid'].n_unique():,} judged queries: {answered}, that of the qrels "
        f"'{qrels['qid'][0]}'; give the qrels of the same split"
    )


def in_order(run: pl.DataFrame, depth: int | None = None) -> pl.DataFrame:
    """qid, docid, position: the hits numbered from 1 by the rank column, only the first `depth` of each query."""
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
    """The qrels with the position of each document in the run, null where it was not retrieved."""
    found = hits.lazy().join(qrels.lazy().select("qid", "docid"), on=["qid", "docid"], how="semi")
    judged = qrels.lazy().join(found, on=["qid", "docid"], how="left", maintain_order="left").collect()
    twice = judged.filter(pl.struct("qid", "docid").is_duplicated())
    if len(twice):
        qid, docid = twice.select("qid", "docid").row(0)
        raise InputError(f"document {docid} stands more than once for query {qid} in the run or the qrels; keep one")
    return judged


def _trec_values(
    judged: pl.DataFrame, qids: pl.Series, measures: Sequence[Measure]
) -> Iterator[tuple[Measure, list[float]]]:
    """Per measure the values of all queries, from one pass of pytrec_eval for each relevance level."""
    trec = sorted((m for m in measures if m.family is not JUDGED), key=attrgetter("level"))
    if not trec:
        return
    qrels, run = _stand_ins(judged)
    for level, group in groupby(trec, key=attrgetter("level")):
        wanted = list(group)
        evaluator = pytrec_eval.RelevanceEvaluator(qrels, {m.trec_name for m in wanted}, relevance_level=level)
        results = evaluator.evaluate(run)
        for measure in wanted:
            values = [results[qid][measure.trec_name] if qid in run else 0.0 for qid in qids]
            yield measure, _cut(values, measure)


def _cut(values: list[float], measure: Measure) -> list[float]:
    """MRR@k is the reciprocal rank where that rank is within the first k, else 0."""
    if measure.family is not RR or measure.cutoff is None:
        return values
    return [value if value >= 1 / measure.cutoff else 0.0 for value in values]


def _stand_ins(judged: pl.DataFrame) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Qrels and run for pytrec_eval, each document named by its position ("-7" where it was not retrieved).

    A run ends soon after its last judged hit: what follows is unjudged and changes no measure.
    """
    name = pl.coalesce(pl.col("position"), -1 - pl.int_range(pl.len(), dtype=pl.Int64)).cast(pl.String)
    queries = (
        judged.with_columns(name=name).group_by("qid", maintain_order=True).agg("name", "relevance", pl.max("position"))
    )
    qrels: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    prefixes: dict[int, dict[str, float]] = {}
    for qid, names, grades, last in queries.iter_rows():
        qrels[qid] = dict(zip(names, grades, strict=True))
        if last is not None:
            length = 1 << (last - 1).bit_length()
            if length not in prefixes:
                prefixes[length] = {str(rank): -float(rank) for rank in range(1, length + 1)}
            run[qid] = prefixes[length]
    return qrels, run


def _share_judged(judged: pl.DataFrame, qids: pl.Series, cutoff: int) -> pl.Series:
    """The judged share of the first k places; an empty place is not judged."""
    share = (pl.col("position") <= cutoff).sum() / cutoff
    shares = judged.group_by("qid").agg(share.alias("value"))
    return qids.to_frame().join(shares, on="qid", how="left", maintain_order="left")["value"]


def coverage(run: pl.DataFrame, asked: pl.Series) -> dict[str, int]:
    """How many queries are judged (`asked`, their ids), answered by the run, missing in it, and unjudged in it."""
    judged, answered = asked.unique(), run["qid"].unique()
    both = len(answered.filter(answered.is_in(judged.implode())))
    return {
        "judged": len(judged),
        "answered": both,
        "missing": len(judged) - both,
        "unjudged": len(answered) - both,
    }


def mean_of(values: pl.DataFrame, measure: str) -> float:
    """The mean of one measure over all judged queries, from what `evaluate_run` returned."""
    return float(values.filter(measure=measure)["value"].to_numpy().mean())
