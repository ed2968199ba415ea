"""`gate`: check that retrieval quality has not dropped since a committed baseline."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import polars as pl

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import lineage
from hybrid_cli.artifacts.judged import warn_raters
from hybrid_cli.artifacts.retrievers import find_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Gate
from hybrid_cli.commands.analysis import GateInputs
from hybrid_cli.errors import option_error, path_error
from hybrid_cli.evaluation.gate import (
    HITS,
    Baseline,
    OtherQueries,
    deviation_of,
    drop_p_values,
    least_queries,
    smallest_drop,
)
from hybrid_cli.evaluation.options import LEVEL
from hybrid_cli.fusion.selection import interval
from hybrid_cli.reporting.complement import Hit
from hybrid_cli.reporting.gate import Gated, Lost, Tested, describe_differences, renewed
from hybrid_cli.reporting.plan import EvaluationPlan, judgments, measure, text_files, with_searched
from hybrid_cli.reporting.tables import figure
from hybrid_cli.runs.groups import documents_of
from hybrid_cli.settings import command_line
from hybrid_cli.settings.conversion import json_value
from hybrid_cli.stages import call, stage
from hybrid_cli.storage import disk

_MEASURE = "nDCG@10"


@stage(Gate)
def gate(settings: Gate) -> Gated:
    """Compare a system with a baseline query by query, or write the baseline.

    Returns:
        The verdict, and its tables.

    Raises:
        OtherQueries: the queries or judgments are not those of the baseline; exit code 3.
        InputError: no baseline, one without a measure, too few queries, no relevant document, a tolerance that no drop
            exceeds, or unusable inputs.
    """
    stored = _stored(settings)
    measures = list(settings.measure or (stored.measures if stored else (_MEASURE,)))
    if not settings.write and stored and (others := [name for name in measures if name not in stored.measures]):
        problem = f"has no {others[0]}, but {', '.join(stored.measures)}; pass --write to renew it, or its measures"
        raise path_error(settings.baseline, problem, code="no-such-measure", choices=list(stored.measures))
    if stored and not settings.write and (highest := stored.values(measures).mean(0).max()) <= settings.max_drop:
        reason = f"no mean can fall by more: the highest of the baseline is {figure(highest)}"
        raise option_error("max_drop", settings.max_drop, reason)
    with tempfile.TemporaryDirectory() as folder:
        inputs = [*filter(None, [settings.collection]), settings.system]
        options = {name: getattr(settings, name) for name in ("split", "qrels", "queries", "corpus")}
        searched = with_searched(GateInputs(inputs, measure=measures, **options), Path(folder), call)
        measured = Measured.of(searched, settings.system)
        if stored is None or settings.write:
            found = _renewed(settings.baseline, stored, measured.values)
        else:
            found = _gated(settings, stored, measured, measures)
    if settings.summary is not None:
        text = found.result().text("markdown")
        disk.Growing(settings.summary).add(f"### Retrieval quality: {found.verdict}\n\n{text}\n")
    return found


def _stored(settings: Gate) -> Baseline | None:
    """Return the baseline; None if it is to be written and does not exist."""
    if settings.write:
        artifacts.check_output_path(settings.baseline, {"system": settings.system})
    if settings.baseline.exists():
        return Baseline.read(settings.baseline)
    if settings.write:
        return None
    write = command_line(settings.changed(write=True, max_drop=None))
    raise path_error(settings.baseline, f"no such file; write it with `{write}`", code="no-such-file", command=write)


def _renewed(path: Path, stored: Baseline | None, now: Baseline) -> Gated:
    """Write the baseline, with the deviations of the differences from the old one."""
    if (count := len(now.queries)) < (least := least_queries(len(now.measures))):
        problem = f"{count} judged queries cannot show any drop; judge {least - count} more, and better about 50"
        raise path_error(path, problem, code="too-few-queries", count=count)
    differences = stored.differences(now) if stored else {}
    known = dict(stored.deviations) if stored else {}
    means: dict[str, tuple[float | None, float]] = {}
    for name in now.measures:
        before, after = None, now.values([name])[:, 0]
        if stored and name in stored.measures:
            before = stored.values([name])[:, 0]
            if not differences and (before != after).any():
                known[name] = float((after - before).std(ddof=1))
        means[name] = None if before is None else float(before.mean()), float(after.mean())
    replace(now, deviations={name: known[name] for name in now.measures if name in known}).write(path)
    return renewed(path, len(now.queries), means, differences)


def _gated(settings: Gate, stored: Baseline, measured: Measured, measures: Sequence[str]) -> Gated:
    """Compare with the baseline; warn if the queries detect large drops only."""
    if differences := stored.differences(measured.values):
        problem = f"{settings.baseline}: is of other queries or judgments: {describe_differences(differences)}; pass"
        problem = f"{problem} --write to renew it"
        raise OtherQueries(problem, code="other-queries", path=settings.baseline, differences=differences)
    gone = measured.gone(stored)
    kept, now = stored.without(gone), measured.values.without(gone)
    if len(kept.queries) < 2:
        problem = "its relevant documents were deleted; pass --write to renew it, with judgments of others"
        raise path_error(settings.baseline, problem, code="too-few-queries", count=len(kept.queries))
    result = replace(compare(settings.baseline, kept, now, measures, settings.max_drop), gone=gone)
    for test in result.tests:
        if test.smallest_drop is None:
            problem = f"{console.counted(query=result.queries)} cannot show a drop of {test.measure}; judge more"
            console.warn(problem, code="too-few-queries", measure=test.measure, count=result.queries)
        elif test.smallest_drop > result.max_drop > 0:
            needed = math.ceil(result.queries * (test.smallest_drop / result.max_drop) ** 2)
            drop = f"{test.measure} from {figure(test.smallest_drop, 3)} on, more than --max-drop {result.max_drop:g}"
            problem = (
                f"{result.queries:,} queries detect drops of {drop}; about {needed:,} would detect one of --max-drop"
            )
            console.warn(problem, code="undetectable-drop", measure=test.measure, drop=test.smallest_drop)
    return replace(result, lost=lost_most(result, kept, replace(measured, values=now))) if result.dropped else result


SHOWN = 10  # queries that lost most
_TEXT_CHARACTERS = 200
_FUSION = ("method", "weights", "missing", "normalize", "rrf_k", "options", "depth", "group", "reranker")


@dataclass(frozen=True)
class Measured:
    """The measured hits of a system, and the texts behind them.

    Attributes:
        values: values and first hits of every query.
        judged: qid, docid, relevance.
        texts: qid -> text, where it is known.
        corpus: texts of the documents, where they are known.
    """

    values: Baseline
    judged: pl.DataFrame
    texts: Mapping[str, str]
    corpus: Path | None

    @classmethod
    def of(cls, settings: GateInputs, system: Path) -> Self:
        """Measure a run.

        Args:
            settings: judgments, measures, and the run of the system.
            system: path of the system, whose settings are recorded.

        Raises:
            InputError: a measure without judgments, one judged query, or no relevant document.
        """
        plan = EvaluationPlan.of(settings)
        judged = plan.judged()
        if plan.by_answers or judged is None:
            raise option_error("measure", plan.columns, "the gate needs judgments; acc@k has none", code="no-judgments")
        if plan.qrels is not None:
            warn_raters(plan.qrels)
        values, facts = measure(plan)
        count = judged["qid"].n_unique()
        if facts["nothing_relevant"] == count:
            problem = "no judgment is relevant, so every value is 0; pass other judgments"
            raise path_error(plan.qrels, problem, code="nothing-relevant", count=count)
        if count < 2:
            problem = "has one judged query; judge more, of which about 50 show large drops"
            raise path_error(plan.qrels, problem, code="too-few-queries", count=count)
        ((name, run),) = plan.runs.items()
        queries, corpus = text_files(judgments(settings), settings, [run])
        texts = dict(collections.read_queries(queries).select("qid", "text").iter_rows()) if queries else {}
        head = plan.read(name, HITS).head
        gone = sorted(set(relevant_of(judged)["docid"]) - known) if (known := _indexed(run)) else []
        return cls(Baseline.of(values, head, judged, texts, _system(system, run), gone), judged, texts, corpus)

    def gone(self, stored: Baseline) -> dict[str, list[str]]:
        """Return query -> its relevant documents that were deleted since a baseline."""
        deleted = set(self.values.gone) - set(stored.gone)
        rows = relevant_of(self.judged).filter(pl.col("docid").is_in(deleted)).sort("qid", "docid")
        return dict(rows.group_by("qid", maintain_order=True).agg("docid").iter_rows())


def relevant_of(judged: pl.DataFrame) -> pl.DataFrame:
    """Return qid and docid of the relevant documents."""
    return judged.filter(pl.col("relevance") >= LEVEL).select("qid", "docid")


def _indexed(run: Path) -> set[str]:
    """Return the documents of the index behind a run; none where they are not known."""
    source = lineage.corpus_of(run, of_texts=True)
    if source is None or not artifacts.has_content(source.path, source.fingerprint):
        return set()
    ids = collections.docids(source.path)
    return {*ids, *documents_of(ids)}


def _system(path: Path, run: Path) -> dict[str, Any]:
    """Return the settings of a system and the fingerprints of its parts."""
    if (files := find_retriever(path)) is not None:
        fusion = {name: json_value(value) for name, value in asdict(files.stored).items() if name in _FUSION}
        indexes = zip(files.names, files.stored.indexes, strict=True)
        return {**fusion, **{f"index {name}": index["fingerprint"] for name, index in indexes}}
    made = artifacts.find_manifest(run)
    if made is None:
        return {"run": storage.fingerprint(run)}
    parts = {role: source["fingerprint"] for role, source in made.inputs.items() if role != "queries"}
    return {"stage": made.stage, **made.options, **parts}


def compare(path: Path, stored: Baseline, now: Baseline, measures: Sequence[str], max_drop: float) -> Gated:
    """Compare a system with a baseline of the same queries and judgments.

    Args:
        path: file of the baseline.
        stored: the baseline.
        now: the values of the system.
        measures: names of measures that both have.
        max_drop: tolerance.
    """
    before, after = stored.values(measures), now.values(measures)
    tests = []
    for name, p, old, new in zip(measures, drop_p_values(before, after, max_drop), before.T, after.T, strict=True):
        deviation = deviation_of(old, new, stored.deviations.get(name))
        ends = interval(new - old)
        assert ends is not None
        smallest = smallest_drop(deviation.value, len(old), len(measures))
        tests.append(Tested(name, float(old.mean()), float(new.mean()), ends, float(p), smallest, deviation))
    changed = {name: (old, new) for name, old, new in stored.changed_settings(now)}
    return Gated(path, len(before), max_drop, tests, changed)


def lost_most(result: Gated, stored: Baseline, measured: Measured) -> list[Lost]:
    """Return the queries that lost most by the first measure that dropped, with their hits before and now."""
    now, name = measured.values, result.dropped[0].measure
    before, after = (source.values([name])[:, 0].tolist() for source in (stored, now))
    lost = [row for row in zip(stored.qids, before, after, strict=True) if row[2] < row[1]]
    lost = sorted(lost, key=lambda row: row[2] - row[1])[:SHOWN]
    docids = [docid for qid, *_ in lost for source in (stored, now) for docid in source.queries[qid].hits]
    documents: dict[str, tuple[str, str]] = {}
    if measured.corpus:
        rows = collections.texts(measured.corpus, pl.Series(docids, dtype=pl.String)).iter_rows()
        documents = {docid: (title or "", (text or "")[:_TEXT_CHARACTERS]) for docid, title, text in rows}
    relevant = set(relevant_of(measured.judged).iter_rows())

    def hits(source: Baseline, qid: str) -> list[Hit]:
        known = source.queries[qid].hits
        return [Hit(docid, *documents.get(docid, ("", "")), (qid, docid) in relevant) for docid in known]

    return [
        Lost(qid, measured.texts.get(qid, ""), old, new, hits(stored, qid), hits(now, qid)) for qid, old, new in lost
    ]
