"""The studies of `evaluate`: values of queries in groups (collections, seeds, attacks, answers), and their tables.

Each returns a `Result`. Over collections, the parts of one are named COLLECTION/PART; their unweighted mean is the
value of the collection, as BEIR treats the forums of CQADupStack. `macro` is the unweighted mean over the collections
(BEIR; EntityQuestions over its relations), `micro` the mean over all queries. Over seeds, a run is named ROW-SEED, or
ROW alone. Under attacks (LITE, table 4), a run of attacked queries is named SYSTEM@ATTACK, that of the original ones
SYSTEM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hybrid_cli import artifacts, console, runs, storage
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands.analysis import Evaluate
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation import significance
from hybrid_cli.evaluation.measures import SUCCESS, parse_measures
from hybrid_cli.perturbations.attacks import ATTACKS
from hybrid_cli.reporting import summary as summaries
from hybrid_cli.reporting.plan import OVERLAP, EvaluationPlan
from hybrid_cli.reporting.summary import Marks, Summary, describe_test, different, legend
from hybrid_cli.reporting.tables import Result, Table, figure
from hybrid_cli.storage import PROBABILITY, Kind

_MEAN = pl.col("value").mean()


def _in_order(column: str, names: Sequence[str]) -> pl.Expr:
    """Return the position of each value of a column in a list of names."""
    return pl.col(column).cast(pl.Enum(names))


# ---------------------------------------------------------------------------------------------------- over collections

MACRO, MICRO = "macro", "micro"
_SETTINGS = ("relevance_level", "condensed")  # of all queries; hits with the id of the query differ by collection


def aggregate(settings: Evaluate) -> Result:
    """Average measurements over collections.

    Args:
        settings: `inputs`, files written by `evaluate --output`; `measure`, if set.

    Raises:
        InputError: not measurements, or a collection without one of the runs or measures.
    """
    named = runs.named_once(settings.inputs)
    if any(name.split("/")[0] in (MACRO, MICRO) for name in named):
        reason = f"{MACRO} and {MICRO} are names of means; rename the collection"
        raise option_error("study", "aggregate", reason, code="invalid-name")
    _check_files(named)
    values = pl.concat(
        pl.read_parquet(storage.check_table(path, Kind.MEASUREMENTS), glob=False).select(
            "run", "measure", "value", part=pl.lit(name), collection=pl.lit(name.split("/")[0])
        )
        for name, path in named.items()
    )
    if "measure" in settings.given:
        values = values.filter(pl.col("measure").is_in(list(settings.measure)))
    systems, measures = (values[name].unique(maintain_order=True).to_list() for name in ("run", "measure"))
    measures = list(dict.fromkeys(settings.measure)) if "measure" in settings.given else measures
    _check_complete(values, named, systems, measures)
    by_part = values.group_by("measure", "collection", "part", "run", maintain_order=True).agg(_MEAN)
    by_collection = by_part.group_by("measure", "collection", "run", maintain_order=True).agg(_MEAN)
    means = [by_collection]
    for name, frame in ((MACRO, by_collection), (MICRO, values)):
        mean = frame.group_by("measure", "run", maintain_order=True).agg(_MEAN)
        means.append(mean.select("measure", pl.lit(name).alias("collection"), "run", "value"))
    table = pl.concat(means).sort(_in_order("measure", measures), maintain_order=True)
    counted = values.filter(run=systems[0], measure=measures[0])
    counted = counted.group_by("collection", maintain_order=True).agg(pl.len(), parts=pl.col("part").n_unique())
    queries, parts = (dict(counted.select("collection", name).iter_rows()) for name in ("len", "parts"))
    return _aggregated(table.rename({"value": "mean"}), queries, parts)


def _aggregated(table: pl.DataFrame, queries: Mapping[str, int], parts: Mapping[str, int]) -> Result:
    """Return the result of means (measure, collection, run, mean), numbers of queries and of parts."""
    names = {name: name if number == 1 else f"{name} ({number} parts)" for name, number in parts.items()}
    counts = {**queries, **dict.fromkeys((MACRO, MICRO), sum(queries.values()))}
    blocks: list[Table | str] = []
    for (measure,), means in table.group_by("measure", maintain_order=True):
        wide = means.pivot(on="run", index="collection", values="mean", maintain_order=True)
        rows = [[names.get(name, name), f"{counts[name]:,}", *map(figure, row)] for name, *row in wide.iter_rows()]
        blocks.append(Table(["collection", "queries", *wide.columns[1:]], rows, str(measure)))
    averaged = " Parts are averaged first, without weights." if max(parts.values()) > 1 else ""
    blocks.append(f"{MACRO}: unweighted mean over {len(parts)} collections. {MICRO}: mean over all queries.{averaged}")
    listed = table.to_dicts()
    return Result(blocks, {"queries": queries, "parts": parts, "means": listed}, listed)


def _check_files(named: Mapping[str, Path]) -> None:
    """Refuse the same measurements under two names; warn about other settings, whose values have another meaning."""
    known: dict[str, Path] = {}
    settings: dict[Path, dict[str, Any]] = {}
    for path in named.values():
        if not path.exists():
            problem = f"{path}: no such file; --study aggregate reads the files that `evaluate --output` writes"
            raise InputError(problem, code="no-such-file", path=path)
        if (other := known.setdefault(storage.fingerprint(path), path)) != path:
            problem = f"{path}: has the same measurements as {other}; omit one of them"
            raise InputError(problem, code="repeated-input", path=path)
        made = artifacts.find_manifest(path)
        settings[path] = {} if made is None else {name: made.options.get(name, False) for name in _SETTINGS}
    (first, expected), *rest = settings.items()
    for path, found in rest:
        if differ := [name for name in expected if found and found[name] != expected[name]]:
            values = ", ".join(f"{name} {found[name]}, not {expected[name]}" for name in differ)
            problem = f"{path}: was measured with other settings than {first}: {values}; measure all in one way"
            console.warn(problem, code="other-settings", path=path, expected=first, options=differ)


def _check_complete(
    values: pl.DataFrame, named: Mapping[str, Path], systems: Sequence[str], measures: Sequence[str]
) -> None:
    """Refuse a collection without one of the runs or measures."""
    known = set(values.select("part", "run", "measure").unique().iter_rows())
    if not systems:
        raise option_error("study", "aggregate", f"no file has a value of {', '.join(measures)}", code="no-scores")
    for (part, path), system, measure in product(named.items(), systems, measures):
        if (part, system, measure) not in known:
            problem = f"has no {measure} of run '{system}'; evaluate all collections with the same runs and measures"
            raise InputError(f"{path}: {problem}", code="no-scores", path=path, measure=measure, run=system)


# ----------------------------------------------------------------------------------------------------------- over seeds

_ROW = pl.col("run").str.replace(r"-\d+$", "")


def check_rows(names: Sequence[str], settings: Evaluate, row: pl.Expr = _ROW) -> None:
    """Check the row names of --baseline and --roc-against.

    Args:
        names: names of the runs.
        settings: settings of the study.
        row: row of a run.

    Raises:
        InputError: unknown row.
    """
    rows = pl.DataFrame({"run": names}).select(row)["run"].unique(maintain_order=True).to_list()
    for option, given in (("baseline", settings.baseline), ("roc_against", [settings.roc_against or rows[0]])):
        if unknown := [name for name in given if name not in rows]:
            reason = f"no such row; the rows are {', '.join(rows)}"
            raise option_error(option, unknown[0], reason, code="unknown-choice", choices=rows)


Ratios = Sequence[Sequence[pl.DataFrame]]  # as `roc` returns them


def over_seeds(values: pl.DataFrame, settings: Evaluate, ratios: Ratios = (), row: pl.Expr = _ROW) -> Result:
    """Average the runs of each row; the standard deviation is the sample's, over the means of the seeds.

    Args:
        values: run, measure, qid, value.
        settings: baseline (names of rows), test, correction, seed.
        ratios: RoC of runs, and the shares that it is made of; see `roc`.
        row: row of a run.
    """
    baselines = list(dict.fromkeys(settings.baseline))
    ratio = pl.concat([values.clear().select("run", "measure", "value"), *(pair[0] for pair in ratios)])
    counted = pl.concat([values.clear(), *(pair[1] for pair in ratios)])
    names = pl.concat([values["run"], ratio["run"]]).to_frame().select(row)["run"].unique(maintain_order=True).to_list()
    frames = [frame for frame in (counted, values) if len(frame)]
    averaged = [frame.group_by(row, "measure", "qid", maintain_order=True).agg(_MEAN) for frame in frames]
    seeds = [frame.group_by("run", "measure", maintain_order=True).agg(_MEAN) for frame in frames]
    means = pl.concat([ratio, *seeds], how="vertical_relaxed")
    measures = means["measure"].unique(maintain_order=True).to_list()
    defined = ~pl.col("value").has_nulls()  # else the value of a seed is undefined
    table = means.group_by(row.alias("row"), "measure", maintain_order=True).agg(
        mean=pl.when(defined).then(_MEAN), deviation=pl.when(defined).then(pl.col("value").std()), seeds=pl.len()
    )
    table = table.sort(_in_order("row", names), _in_order("measure", measures), maintain_order=True)
    if len(counted):
        ends = significance.intervals(averaged[0], seed=settings.seed)
        ends = ends.select("measure", "low", "high", row="run")
        table = table.join(ends, on=["row", "measure"], how="left", maintain_order="left")
    how: dict[str, Any] = {name: getattr(settings, name) for name in ("correction", "seed")}
    known = [(frame, [name for name in baselines if name in frame["run"]]) for frame in averaged]
    tested = [significance.compare(frame, names, **how) for frame, names in known]
    comparisons = pl.concat(tested, how="vertical_relaxed")
    tests = summaries.tests_of(settings)
    content = {
        "rows": table.to_dicts(),
        "baselines": baselines,
        "comparisons": comparisons.fill_nan(None).to_dicts(),
        **{name: tests[name] for name in ("test", "correction", "alpha")},
    }
    marks = Marks.of(comparisons, baselines, tests)
    shown = replace(_rows_table(table, measures, marks), notes=[*_rows_legend(table, marks, tests)])
    return Result([shown], content, table.to_dicts())


def over_results(results: Sequence[pl.DataFrame], settings: Evaluate, against: Sequence[str], values: bool) -> Result:
    """Combine several seeds; a run with equal values in all of them is one seed.

    Args:
        results: run, measure, qid, value of each seed.
        settings: see `over_seeds`.
        against: runs against which the RoC of the others is computed.
        values: the measures are shown, not only RoC.
    """
    runs = results[0]["run"].unique(maintain_order=True).to_list()
    check_rows(runs, settings, pl.col("run"))
    same = [run for run in runs if len({frame.filter(run=run).write_csv() for frame in results}) == 1]
    parts, ratios = [], []
    for seed, frame in enumerate(results, 1):
        named = pl.col("run") + f" (seed {seed})"
        parts.append(frame.filter(~pl.col("run").is_in(same) | (seed == 1), values).with_columns(named))
        ratios += [[part.with_columns(named) for part in roc(frame, run)] for run in against]
    return over_seeds(pl.concat(parts), settings, ratios, pl.col("run").str.replace(r" \(seed \d+\)$", ""))


def _rows_table(table: pl.DataFrame, measures: Sequence[str], marks: Marks) -> Table:
    """Return one row per variant: means with marks, and deviations or, of a count of RoC, intervals."""
    rows: dict[str, list[str]] = {}
    for (row,), cells in table.group_by("row", maintain_order=True):
        texts = {}
        for cell in cells.iter_rows(named=True):
            spread = "" if cell["deviation"] is None else f" ± {figure(cell['deviation'])}"
            if cell.get("low") is not None:
                spread = f" ({figure(cell['low'])} to {figure(cell['high'])})"
            mean = "undefined" if cell["mean"] is None else figure(cell["mean"])
            texts[cell["measure"]] = mean + marks.better.get((str(row), cell["measure"]), "") + spread
        head = [marks.named(str(row)), str(cells["seeds"][-1])]
        rows[str(row)] = [*head, *(texts.get(name, "") for name in measures)]
    return Table(["row", "seeds", *measures], list(rows.values()), stacked=True)


def _rows_legend(table: pl.DataFrame, marks: Marks, tests: Mapping[str, Any]) -> Iterator[str]:
    yield "Mean ± standard deviation over the seeds."
    if "low" in table.columns:
        yield (
            "RoC = D only / D. D only, S only, Fail: share of the queries that only the row, only the other run, or "
            f"neither answers, with its {significance.CONFIDENCE:.0%} bootstrap interval over the queries."
        )
    if table["mean"].has_nulls():
        yield "RoC is undefined where a seed has no query with a relevant document in its top hits."
    if marks.letters:
        test = describe_test(tests, "all rows per measure", " on each query's mean over the seeds")
        yield f"{marks.in_words()}: {test}."


def roc(values: pl.DataFrame, sparse: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Compute RoC (RoC, section 3.1) of every run against a sparse run, at the cutoff of `Success@k`.

    The ratio rises if a run finds less of everything, so the counts that it is made of belong to it.

    Args:
        values: run, measure, qid, value.
        sparse: name of the sparse run. `SPARSE+RUN`, the fusion with a run, gets the figures of RUN.

    Returns:
        run, measure, value of the ratio, null for a run without a relevant document; and run, measure, qid, value of
        the queries that only the run answers (`D only`), only the sparse run, and neither (`Fail`): 1 or 0.

    Raises:
        InputError: Success@k is not among the measures, or `sparse` has several seeds.
    """
    names = [name for name in values["measure"].unique(maintain_order=True) if name != OVERLAP]
    success = [measure for measure in parse_measures(names) if measure.family == SUCCESS]
    if not success:
        reason = f"needs Success@k, such as Success@10; --measure is {', '.join(names)}"
        raise option_error("roc_against", None, reason, code="missing-measure")
    successes = values.filter(measure=success[0].name).select("run", "qid", successful=pl.col("value") > 0)
    theirs = successes.filter(run=sparse).select("qid", known="successful")
    if not len(theirs):
        raise option_error("roc_against", sparse, "needs one run of that name, without a seed", code="unknown-choice")
    dense = successes.filter(~pl.col("run").str.starts_with(f"{sparse}+") & (pl.col("run") != sparse)).join(
        theirs, on="qid", maintain_order="left"
    )
    fused = dense.with_columns(run=f"{sparse}+" + pl.col("run"))
    both = pl.concat([dense, fused.filter(pl.col("run").is_in(values["run"].unique().implode()))])
    d, s, cutoff = pl.col("successful"), pl.col("known"), success[0].cutoff
    ratio = both.group_by("run", maintain_order=True).agg(
        measure=pl.lit(f"RoC@{cutoff}"), value=((d & ~s).sum() / d.sum()).fill_nan(None)
    )
    parts = {"D only": d & ~s, "S only": s & ~d, "Fail": ~d & ~s}
    counted = [
        both.select("run", pl.lit(f"{name}@{cutoff}").alias("measure"), "qid", value=part.cast(pl.Float64))
        for name, part in parts.items()
    ]
    return ratio, pl.concat(counted)


# ---------------------------------------------------------------------------------------------------------- robustness

MARK = "@"
ORIGINAL, DROP = "original", "mean drop"


def systems_and_attacks(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the names of runs into systems and attacks; the attacks of `perturb` come first, in its order.

    Raises:
        InputError: no attacked run, an attacked run without its original, or systems with different attacks.
    """
    systems = [run for run in names if MARK not in run]
    attacked = [run.rpartition(MARK) for run in names if MARK in run]
    if not attacked:
        reason = "no run is named SYSTEM@ATTACK, such as bm25@char-swap"
        raise option_error("study", "robustness", reason, code="no-such-run")
    seen = list(dict.fromkeys(attack for _, _, attack in attacked))
    attacks = [*(attack for attack in ATTACKS if attack in seen), *(attack for attack in seen if attack not in ATTACKS)]
    wanted = [*(system for system, _, _ in attacked), *(f"{s}{MARK}{a}" for s, a in product(systems, attacks))]
    if missing := [name for name in wanted if name not in names]:
        reason = f"run {missing[0]} is missing; an attacked run needs its original, and all systems the same attacks"
        raise option_error("study", "robustness", reason, code="no-such-run", run=missing[0])
    return systems, attacks


def robustness(summary: Summary, baselines: Sequence[str] = ()) -> Result:
    """Compare every system with itself under attack, and the drops of the systems with each other.

    The attacks on one system are one family of comparisons.

    Args:
        summary: summary of all runs, without baselines.
        baselines: systems with which the drops of the others are compared.

    Raises:
        InputError: see `systems_and_attacks`.
    """
    systems, attacks = systems_and_attacks(summary.runs)
    settings, means = summary.settings, summary.means
    how = {name: settings[name] for name in ("correction", "seed")}
    frames = {
        system: summary.values.filter(pl.col("run").is_in([system, *(f"{system}{MARK}{a}" for a in attacks)]))
        for system in systems
    }
    against = pl.concat([significance.compare(values, [system], **how) for system, values in frames.items()])
    values = pl.concat([drops_of(values, system) for system, values in frames.items()])
    tested = significance.compare(values, list(baselines), **how)
    intervals = significance.intervals(values, seed=settings["seed"])
    drops = Summary(values, {system: {} for system in systems}, tested, intervals, baselines, settings)
    names = {ORIGINAL: "", **{attack: f"{MARK}{attack}" for attack in attacks}}  # of runs, after the name of a system

    def measured(system: str, measure: str) -> dict[str, Any]:
        drop = {"mean_drop": drops.means[system, measure], "interval": list(drops.ends[system, measure])}
        return {name: means[system + mark, measure] for name, mark in names.items()} | drop

    missing = {run: int(counts["missing"]) for run, counts in summary.counts.items() if counts["missing"]}
    content = {
        "attacks": attacks,
        "queries": {measure: drops.queries(measure) for measure in drops.measures},
        "systems": [{"system": s, "measures": {name: measured(s, name) for name in drops.measures}} for s in systems],
        "against_original": against.fill_nan(None).to_dicts(),
        "drops": tested.fill_nan(None).to_dicts(),
        "missing": missing,
        **settings,
    }
    tables = _attack_tables(summary, drops, against, names)
    return Result(
        [*tables, *_drops_legend(drops, attacks, missing)], content, list(_attack_rows(summary, drops, against))
    )


def _attack_tables(
    summary: Summary, drops: Summary, against: pl.DataFrame, names: Mapping[str, str]
) -> Iterator[Table]:
    """Yield a table per measure, with a row per system."""
    stars = set(different(against, drops.settings).select("run", "measure").iter_rows())
    marks = drops.marks
    for measure in drops.measures:
        rows = []
        for system in drops.runs:
            found = [(system + mark, measure) for mark in names.values()]
            cells = [figure(summary.means[run]) + ("*" if run in stars else " ") for run in found]
            low, high = drops.ends[system, measure]
            drop = f"{figure(drops.means[system, measure])}{marks.better.get((system, measure), '')}"
            rows.append([marks.named(system), *cells, f"{drop} ±{figure((high - low) / 2, 3)}"])
        yield Table(["system", *names, DROP], rows, measure, stacked=True)


def _attack_rows(summary: Summary, drops: Summary, against: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield a row per run and measure, then per system and measure, with its tests, for CSV."""
    for found, comparisons, name in ((summary, against, ORIGINAL), (drops, drops.comparisons, DROP)):
        for run, measure, mean, low, high in found.intervals.iter_rows():
            system, _, attack = run.rpartition(MARK) if MARK in run else (run, "", name)
            row = {"system": system, "measure": measure, "attack": attack, "mean": mean, "low": low, "high": high}
            tests = comparisons.filter(run=run, measure=measure).drop("run", "measure")
            yield from (row | test for test in tests.to_dicts() or [{}])


def drops_of(values: pl.DataFrame, system: str) -> pl.DataFrame:
    """Return run, measure, qid, value: the drop of each query, in the order of the original run."""
    original = pl.col("run") == system
    attacked = values.filter(~original).group_by("measure", "qid").agg(attacked=_MEAN)
    both = values.filter(original).join(attacked, on=["measure", "qid"], how="left", maintain_order="left")
    return both.select("run", "measure", "qid", value=pl.col("value") - pl.col("attacked"))


def _drops_legend(drops: Summary, attacks: Sequence[str], missing: Mapping[str, int]) -> Iterator[str]:
    yield (
        f"{DROP}: original minus the mean over {console.counted(attack=len(attacks))}, averaged over the queries. "
        f"* differs from the original: {describe_test(drops.settings, 'the attacks on a system')}."
    )
    yield from legend(drops, more="drops more than")
    if missing:
        some = ", ".join(f"{run} {number:,}" for run, number in missing.items())
        yield f"Judged queries without hits (scored 0): {some}."


# ---------------------------------------------------------------------------------------------------------- first hits

COVERAGES = (25, 50, 75, 90, 95, 100)  # percent of the queries
KEPT = 0.95  # of the queries with an answer


def answerable(plan: EvaluationPlan, queries: Path | None) -> Result:
    """Measure the first hits of runs, of queries with and without an answer.

    Args:
        plan: runs and judgments; a query with a document of at least its level is answerable.
        queries: file of the queries; None if it is not known. A query without judgments and hits is then unknown.

    Raises:
        InputError: no measure needs judgments, or no query has a relevant document.
    """
    qrels = plan.judged()
    if qrels is None:
        raise InputError("--study answerable: needs judgments", code="needs-judgments", option="study")
    relevant = qrels.filter(pl.col("relevance") >= plan.level).select("qid", "docid")
    if not len(relevant):
        problem = f"{plan.qrels}: no query has a relevant document"
        raise InputError(problem, code="nothing-relevant", path=plan.qrels)
    heads = {name: plan.read(name, 1).head for name in plan.runs}
    asked = [frame["qid"] for frame in (qrels, *heads.values())]
    asked += [] if queries is None else [collections.read_queries(queries)["qid"]]
    qids = pl.concat(asked).unique(maintain_order=True).to_frame()
    has_answer = qids["qid"].is_in(relevant["qid"].implode()).to_numpy()
    measured = []
    for name, head in heads.items():
        first = qids.join(runs.with_probability(plan.runs[name], head), on="qid", how="left", maintain_order="left")
        measured.append({"run": name, **_first_hits(first, relevant, has_answer)})
    count = int(has_answer.sum())
    counts = {"answerable": count, "unanswerable": len(qids) - count}
    unjudged = len(qids) - qrels["qid"].n_unique()
    rows = [{**found, **counts} | {f"risk_{c}": risk for c, risk in found["risks"].items()} for found in measured]
    rows = [{name: value for name, value in row.items() if name != "risks"} for row in rows]
    return Result(_risk_tables(measured, counts, unjudged), {**counts, "unjudged": unjudged, "runs": measured}, rows)


def _first_hits(first: pl.DataFrame, relevant: pl.DataFrame, answerable: np.ndarray) -> dict[str, Any]:
    """Measure how far the confidence in the first hits of a run can be trusted.

    Args:
        first: qid, docid, score and, if known, probability of all queries; null without hits.
        relevant: qid, docid of the relevant documents.
        answerable: [queries] the query has one.

    Returns:
        `confidence`: `probability`, or `score` for a run without probabilities; `risks`, the share of wrong first hits
        among the most confident queries, for each of `COVERAGES` (None where fewer queries have hits), and `risk_area`,
        their mean at every coverage; `area_under_roc`; `false_hits_at_kept`, see `false_hits`; `answered` and
        `false_hits`, the shares of queries with and without an answer that have hits. None for an undefined figure.
    """
    by = PROBABILITY.name if PROBABILITY.name in first.columns else "score"
    correct = first.join(relevant.with_columns(correct=1.0), on=["qid", "docid"], how="left", maintain_order="left")
    confidence = first[by].cast(pl.Float64).fill_null(-math.inf).to_numpy()
    answers = np.isfinite(confidence)
    risks = risk_at_coverage(confidence[answers], correct["correct"].fill_null(0.0).to_numpy()[answers])
    ranks = {str(coverage): math.ceil(coverage * len(first) / 100) for coverage in COVERAGES}
    return {
        "confidence": by,
        "risks": {name: float(risks[rank - 1]) if rank <= len(risks) else None for name, rank in ranks.items()},
        "risk_area": float(risks.mean()) if len(risks) else None,
        "area_under_roc": area_under_roc(confidence, answerable),
        "false_hits_at_kept": false_hits(confidence, answerable, KEPT),
        "answered": float(answers[answerable].mean()),
        "false_hits": None if answerable.all() else float(answers[~answerable].mean()),
    }


def _risk_tables(measured: Sequence[Mapping[str, Any]], counts: Mapping[str, int], unjudged: int) -> list[Table | str]:
    """Return the risks at each coverage, how well queries without an answer are found, and the legend."""

    def cells(values: Sequence[float | None]) -> list[str]:
        return ["-" if value is None else figure(value, 3) for value in values]

    risks = [[run["run"], run["confidence"], *cells([*run["risks"].values(), run["risk_area"]])] for run in measured]
    names = ("area_under_roc", "false_hits_at_kept", "answered", "false_hits")
    shares = [[run["run"], *cells([run[name] for name in names])] for run in measured]
    columns = ["run", "confidence", *(f"{coverage}%" for coverage in COVERAGES), "area"]
    headings = ["run", "AUROC", f"false hits at {KEPT:.0%}", "answered", "false hits"]
    of_them = f" ({unjudged:,} without any judgment)" if unjudged else ""
    return [
        Table(columns, risks, "Risk at coverage", left=2),
        Table(headings, shares, "False hits"),
        f"{console.counted(query=counts['answerable'])} with a relevant document, {counts['unanswerable']:,} without "
        f"one{of_them}. Risk: share of wrong first hits among the most confident queries. False hits: share of "
        f"queries without a relevant document that have hits; at {KEPT:.0%}: with the threshold that keeps {KEPT:.0%} "
        "of the others; the last two columns: of the lists as they are.",
    ]


def risk_at_coverage(confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Return the share of wrong answers among the 1, 2, ... n most confident queries, [n].

    Queries of equal confidence count as in random order: each is wrong by the share of wrong ones among them.

    Args:
        confidence: [n] probability, or score, of the first hit of each query.
        correct: [n] 1 if that hit is relevant, else 0.
    """
    _, group, counts = np.unique(-confidence, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, 1 - correct) / counts
    risks: np.ndarray = np.cumsum(wrong[np.sort(group)]) / np.arange(1, len(group) + 1)
    return risks


def area_under_roc(confidence: np.ndarray, answerable: np.ndarray) -> float | None:
    """Return the probability that a query with an answer has a higher confidence than one without; ties count half.

    Args:
        confidence: [n] of each query.
        answerable: [n] the query has a relevant document.

    Returns:
        None if all queries have an answer, or none has one.
    """
    from scipy.stats import rankdata  # slow to import

    having, lacking = int(answerable.sum()), int((~answerable).sum())
    if not having or not lacking:
        return None
    ranks = float(rankdata(confidence)[answerable].sum())
    return (ranks - having * (having + 1) / 2) / (having * lacking)


def false_hits(confidence: np.ndarray, answerable: np.ndarray, kept: float) -> float | None:
    """Return the share of queries without an answer that return hits, at a threshold that keeps most others.

    Args:
        confidence: [n] of each query; minus infinity without hits.
        answerable: [n] the query has a relevant document.
        kept: share of the queries with an answer that are kept.

    Returns:
        None if all queries have an answer, or none has one.
    """
    having, lacking = np.sort(confidence[answerable]), confidence[~answerable]
    if not len(having) or not len(lacking):
        return None
    threshold = having[math.floor((1 - kept) * (len(having) - 1) + 1e-9)]
    return float((np.isfinite(lacking) & (lacking >= threshold)).mean())
