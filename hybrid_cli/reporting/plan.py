"""Runs and measures of `evaluate` and `report`, and the value of every query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.belonging import belongs_together, check_common
from hybrid_cli.artifacts.indexes import check_models, corpora_of, manifests_of
from hybrid_cli.artifacts.inputs import has_content
from hybrid_cli.artifacts.judged import collection_of, judgments_of, missing_split, queries_of_judgments
from hybrid_cli.artifacts.lineage import corpus_of, texts_of
from hybrid_cli.artifacts.retrievers import RetrieverFiles, is_retriever, of_auto
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Evaluate, Report, Search
from hybrid_cli.commands.analysis import ACC, Comparison, GateInputs
from hybrid_cli.commands.common import NameOrPath
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.evaluation import accuracy
from hybrid_cli.evaluation.complementarity import RBO_DEPTH, rbo
from hybrid_cli.evaluation.measures import (
    ACCURACY,
    HOLE,
    MRR,
    Measure,
    coverage,
    evaluate_hits,
    mean_of,
    note_ties,
    parse_measures,
)
from hybrid_cli.evaluation.options import AnswerMatch
from hybrid_cli.evaluation.retrieved import Retrieved, removes_query, retrieved
from hybrid_cli.runs.files import name_and_path, short_names
from hybrid_cli.settings import Settings
from hybrid_cli.storage import Kind

C = TypeVar("C", Evaluate, GateInputs, Report)

OVERLAP = "RBO"
_SHARE_JUDGED = "Judged"
_FIRST = 10  # hits of which the share without a judgment is noted
_MANY_UNJUDGED = 0.1  # share of them
_INDEXES = (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX, Kind.SHARDS)


@dataclass(frozen=True)
class EvaluationPlan:
    """Runs, measures, and the files that the measures need; a file that no measure needs is None.

    Attributes:
        runs: name -> path.
        level: lowest relevant grade.
        pair: names of the two runs of `--complement`.
        overlap_with: name and path of the run of `--overlap-with`.
        condensed: remove documents without a judgment from the lists.
        residual: qrels of an earlier round, whose documents are removed from runs and judgments.
        by_machine: the judgments are those of machines, of a journal.
    """

    runs: dict[str, Path]
    measures: list[Measure]
    qrels: Path | None
    queries: Path | None
    corpus: Path | None
    level: int
    answer_match: AnswerMatch
    remove_query: bool
    pair: tuple[str, str] | None = None
    overlap_with: tuple[str, Path] | None = None
    condensed: bool = False
    residual: Path | None = None
    by_machine: bool = False

    @classmethod
    def of(cls, settings: Comparison, overlap_with: str | None = None, condensed: bool = False) -> EvaluationPlan:
        """Resolve names and paths.

        Args:
            settings: settings of `evaluate` or `report`.
            overlap_with: name of a run among the inputs, path, or `name=path`.
            condensed: remove documents without a judgment from the lists.

        Raises:
            InputError: unknown measure, missing file, unknown run, a run of another corpus, or an option that does not
                apply to the measures.
        """
        wanted = parse_measures(settings.measure, settings.relevance_level)
        by_answers = any(measure.family == ACCURACY for measure in wanted)
        listed = ", ".join(measure.name for measure in wanted)
        settings.check_facts(subject=f"--measure is {listed}", measured=ACC if by_answers else "")
        judged, named, pair = _inputs(settings)
        files = _files(judged, settings, wanted, named.values())
        belongs_together(named.values(), corpus=collections.corpus_path(judged) if judged.is_dir() else None)
        remove_query = settings.remove_query
        if remove_query is None:
            remove_query = removes_query(judged, settings.split, " (--keep-query keeps them)")
        against = (overlap_with, runs.pick(overlap_with, named, "--overlap-with")) if overlap_with else None
        belongs_together((named[name] for name in pair or ()), queries=True)
        if against:
            belongs_together([against[1], *named.values()], queries=True)
        how = settings.relevance_level, settings.answer_match, remove_query
        return cls(named, wanted, *files, *how, pair, against, condensed, settings.residual_qrels)

    @property
    def columns(self) -> list[str]:
        """Return the names of all measures."""
        return [*(measure.name for measure in self.measures), *([OVERLAP] if self.overlap_with else [])]

    @property
    def by_answers(self) -> bool:
        """Return whether any measure searches texts for answers."""
        return any(measure.family == ACCURACY for measure in self.measures)

    def with_reciprocal_rank(self) -> EvaluationPlan:
        """Add the reciprocal rank without cutoff, from which the answered queries at any cutoff follow."""
        added = Measure("MRR", MRR, None, self.level)
        if self.qrels is None or any(replace(measure, name=added.name) == added for measure in self.measures):
            return self
        return replace(self, measures=[*self.measures, added])

    def inputs(self) -> dict[str, Path]:
        """Return role -> path of all files that affect the values."""
        files = {"qrels": self.qrels, "queries": self.queries, "corpus": self.corpus, "residual qrels": self.residual}
        given = {role: path for role, path in files.items() if path is not None}
        given |= {"overlap with": self.overlap_with[1]} if self.overlap_with else {}
        return given | {f"run {name}": path for name, path in self.runs.items()}

    def options(self) -> dict[str, Any]:
        """Return the options that affect the values."""
        options: dict[str, Any] = {"runs": list(self.runs), "measures": [measure.name for measure in self.measures]}
        options |= {"relevance_level": self.level, "remove_query": self.remove_query}
        options |= {"answer_match": self.answer_match} if self.by_answers else {}
        return options | ({"condensed": True} if self.condensed else {})

    def judged(self) -> pl.DataFrame | None:
        """Return the judgments without those of the earlier round; None if no measure needs judgments.

        Raises:
            InputError: the earlier round has judged all of them, or none of their queries.
        """
        if self.qrels is None:
            return None
        qrels, earlier = judgments_of(self.qrels, self.runs, self.by_machine), self._earlier()
        if earlier is None:
            return qrels
        left = qrels.join(earlier, on=["qid", "docid"], how="anti", maintain_order="left")
        if not len(left) or not earlier["qid"].is_in(qrels["qid"].unique().implode()).any():
            reason = f"has all judgments of {self.qrels}, or none of its queries; pass an earlier round of them"
            raise option_error("residual_qrels", self.residual, reason, code="other-queries", path=self.residual)
        return left

    def _earlier(self) -> pl.DataFrame | None:
        """Return qid, docid of the judgments of the earlier round."""
        return None if self.residual is None else judgments_of(self.residual, self.runs).select("qid", "docid")

    def read(self, name: str, depth: int, qrels: pl.DataFrame | None = None) -> Retrieved:
        """Return the top `depth` hits of a run, and its hits with a judgment; warn if scores contradict ranks."""
        run = runs.open_run(self.runs[name])
        if run.rising > 0.5:
            problem = f"{name}: scores rise with the rank; the order of the ranks is measured"
            console.warn(problem, code="scores-rise", run=name)
        return retrieved(run, qrels, depth, self.remove_query, self._earlier())

    def other(self) -> pl.DataFrame | None:
        """Return the top hits of the run of `--overlap-with`."""
        if self.overlap_with is None:
            return None
        other = runs.open_run(self.overlap_with[1])
        return retrieved(other, None, RBO_DEPTH, self.remove_query, self._earlier()).head


# -------------------------------------------------------------------------------------------------------------- files


def judgments(settings: Comparison) -> Path:
    """Return the file of `--qrels`, else the first input."""
    return settings.qrels or Path(settings.inputs[0])


def _inputs(settings: Comparison) -> tuple[Path, dict[str, Path], tuple[str, str] | None]:
    """Return the collection or qrels file, the runs by name, and the names of the two runs of `--complement`.

    Runs of `--complement`, each given by its name among the inputs or as a path, are added to the inputs.
    """
    judged, given = judgments(settings), list(settings.inputs if settings.qrels else settings.inputs[1:])
    known = runs.name_runs(given)
    pair = {name: runs.pick(name, known, "--complement").resolve() for name in settings.complement or ()}
    if settings.complement and len(set(pair.values())) < 2:
        raise option_error("complement", settings.complement, "needs two different runs", code="repeated-input")
    present = {path.resolve() for path in known.values()}
    given += [name for name, path in pair.items() if path not in present]
    if not given:
        problem = "missing argument INPUTS: a collection (or --qrels FILE), then at least one run"
        raise InputError(problem, code="missing-option", option="inputs")
    named = runs.name_runs(given)
    names = {path.resolve(): name for name, path in named.items()}
    dense, sparse = (names[path] for path in pair.values()) if pair else ("", "")
    return judged, named, (dense, sparse) if pair else None


def _files(
    judged: Path, settings: Comparison, measures: Sequence[Measure], paths: Collection[Path]
) -> tuple[Path | None, Path | None, Path | None]:
    """Return the qrels, queries and corpus that the measures need."""
    by_answers = {measure.family == ACCURACY for measure in measures}
    qrels = collections.qrels_path(judged, settings.split) if False in by_answers else None
    if True not in by_answers:
        return qrels, None, None
    queries, corpus = text_files(judged, settings, paths)
    if queries is None or corpus is None:
        reason = "acc@k needs answers and texts; pass a collection, or --queries FILE and --corpus FILE"
        raise option_error("queries", None, reason, code="missing-option")
    return qrels, queries, corpus


def _queries_file(judged: Path, settings: Comparison, paths: Iterable[Path]) -> Path | None:
    """Return the file with the texts of queries; None if it is unknown."""
    if settings.queries is not None:
        return settings.queries
    if judged.is_dir():
        return collections.queries_path(judged, settings.split)
    return next((texts.path for path in paths if (texts := texts_of(path)) is not None), None)


def text_files(judged: Path, settings: Comparison, paths: Collection[Path]) -> tuple[Path | None, Path | None]:
    """Return the files with the texts of queries and documents; None for those that are unknown.

    They are those of --queries and --corpus, of the collection, or, with a file of judgments, those that the manifests
    of the runs record and that have not changed since then.

    Args:
        judged: collection, or file of judgments.
        settings: settings of `evaluate` or `report`.
        paths: the runs.
    """
    queries, corpus = _queries_file(judged, settings, paths), settings.corpus or (judged if judged.is_dir() else None)
    if corpus is None:
        sources = (source for path in paths if (source := corpus_of(path, of_texts=True)) is not None)
        corpus = next((source.path for source in sources if has_content(source.path, source.fingerprint)), None)
    return queries, collections.corpus_path(corpus) if corpus else None


# ------------------------------------------------------------------------------------------------------ searched runs


def with_searched(settings: C, folder: Path, call: Callable[[Settings], Any]) -> C:
    """Search the retrievers and indexes of a comparison for its queries; return settings with their runs as inputs.

    Args:
        settings: settings of `evaluate`, `gate` or `report`.
        folder: folder of the runs, which are named after the retrievers.
        call: calls the stage of a settings object.
    """
    settings = _with_judgments(settings)
    given = [name_and_path(str(text)) for text in settings.inputs]
    searched: dict[Path, Path] = {path: index for _, path in given if (index := searchable_at(path)) is not None}
    for index in searched.values():
        check_models(RetrieverFiles.read(index).manifests if is_retriever(index) else manifests_of([index]))
    names = dict(zip(searched, short_names([*searched]), strict=True))
    inputs: list[NameOrPath] = []
    for text, (name, path) in zip(settings.inputs, given, strict=True):
        if path in searched:
            name = name or names[path]
            run = folder / f"{name.replace('/', '-')}.hits.parquet"
            queries = _queries(settings, searched[path])
            call(Search(queries=queries, index=searched[path], output=run, overwrite=settings.overwrite))
            text = f"{name}={run}"
        inputs.append(text)
    known = settings.qrels is not None and bool(searched)  # the runs record the queries
    return settings.changed(inputs=inputs, **({"queries": None} if known else {}))


def searchable_at(path: Path) -> Path | None:
    """Return a retriever, that of the folder of `auto`, or an index; None for any other path."""
    if is_retriever(retriever := of_auto(path)):
        return retriever
    made = artifacts.find_manifest(path) if path.is_dir() else None
    return path if made is not None and made.kind in _INDEXES else None


def _with_judgments(settings: C) -> C:
    """Return settings with the collection or the split that was left out; see `opening.judged`.

    Raises:
        InputError: runs or retrievers alone, which record no collection.
    """
    paths = [name_and_path(str(text))[1] for text in settings.inputs]
    if settings.qrels is not None or not paths:
        return settings
    runs = [path for path in paths if _is_run(path)]
    others = [path for path in paths if path not in runs and searchable_at(path) is None]
    alone = paths[0] not in others and not any(path.is_dir() for path in others)
    known = missing_split(settings.command, None if alone else paths[0], settings.split, runs)
    if not alone:
        return settings if known is None else settings.changed(split=known.name)
    if known is not None:
        return settings.changed(inputs=[known.collection, *settings.inputs], split=known.name)
    searched = searchable_at(paths[0])
    collection = None if searched is None else collection_of(corpora_of(_manifests(searched)))
    if collection is None:
        problem = f"{paths[0]}: the collection of its queries is not recorded, or has changed; pass it, or --qrels"
        raise InputError(problem, code="missing-option", option="qrels", path=paths[0])
    text = f"{settings.command}: judgments of {collection}, which the indexes of {paths[0]} are of"
    console.note(text, code="assumed-collection", path=collection)
    return settings.changed(inputs=[collection, *settings.inputs])


def _is_run(path: Path) -> bool:
    """Test whether a path is a run that hybrid wrote."""
    made = artifacts.find_manifest(path) if path.is_file() else None
    return made is not None and made.kind == Kind.RUN


def _manifests(searched: Path) -> Sequence[Sequence[Manifest]]:
    """Return the manifests of the indexes of a retriever, or of an index."""
    return RetrieverFiles.read(searched).manifests if is_retriever(searched) else manifests_of([searched])


def _queries(settings: Comparison, retriever: Path) -> Path:
    """Return the queries that a system is searched for: of `--queries`, the collection, the runs or the indexes."""
    runs = [path for text in settings.inputs if _is_run(path := name_and_path(str(text))[1])]
    known = _queries_file(judgments(settings), settings, runs)
    return known or queries_of_judgments(settings.command, judgments(settings), corpora_of(_manifests(retriever)))


# ---------------------------------------------------------------------------------------------------------- measuring


def measure(plan: EvaluationPlan) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Measure all runs.

    Returns:
        run, measure, qid, value; and the counts: `runs` (name -> counts of queries) and `nothing_relevant`.
    """
    qrels = plan.judged()
    asked = accuracy.with_answers(collections.read_queries(plan.queries)) if plan.queries else None
    passages = _passages(plan, asked) if asked is not None else {}
    other = plan.other()
    depth = max(accuracy.depth(plan.measures), RBO_DEPTH if other is not None else 0)
    frames, counts, unjudged, nothing = [], {}, {}, 0
    with console.progress("evaluate", total=len(plan.runs), unit="runs") as advance:
        for name, path in plan.runs.items():
            run = plan.read(name, depth, qrels)
            try:
                values, counts[name] = _values(plan, name, run, qrels, asked, passages)
            except InputError as error:
                raise InputError(f"{path}: {error}", code=error.code, **{"path": path, **error.fields}) from None
            if other is not None and plan.overlap_with is not None:
                check_common({path: run.lengths["qid"], plan.overlap_with[1]: other["qid"].unique(maintain_order=True)})
                values = pl.concat([values, _overlap(run.head, other, values)])
            counts[name] |= {"removed": run.removed} if plan.remove_query or plan.residual else {}
            frames.append(values.select(pl.lit(name).alias("run"), "measure", "qid", "value"))
            if not _holds_corpus(path, run.longest):
                cutoffs = {measure.name: measure.cutoff for measure in plan.measures if measure.cutoff}
                note_depth(name, run.longest, cutoffs)
            if qrels is not None:
                unjudged[name] = _unjudged(run, qrels)
            advance(1)
    if qrels is not None:
        _note_unjudged(unjudged, qrels, plan)
        _warn_nothing_removed(counts, qrels, plan)
        nothing = qrels["qid"].n_unique() - qrels.filter(pl.col("relevance") >= plan.level)["qid"].n_unique()
    return pl.concat(frames), {"runs": counts, "nothing_relevant": nothing}


def _values(
    plan: EvaluationPlan,
    name: str,
    run: Retrieved,
    qrels: pl.DataFrame | None,
    asked: pl.DataFrame | None,
    passages: Mapping[str, str],
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the values of one run, in the order of the measures, and its counts."""
    values: list[pl.DataFrame] = []
    counts: dict[str, float] = {}
    if asked is not None:
        counts |= coverage(run.lengths, asked["qid"])
        values.append(accuracy.evaluate_answers(run.head, asked, passages, plan.measures, plan.answer_match))
    if qrels is not None:
        names = [measure.name for measure in plan.measures if measure.family != ACCURACY]
        judged = evaluate_hits(run.judged, run.lengths["qid"], qrels, [*names, HOLE], plan.level)
        if plan.condensed:
            judged = _condensed(judged, run, qrels, plan)
        else:
            note_ties(name, run.judged, qrels, names, plan.level)
        counts |= coverage(run.lengths, qrels["qid"]) | {HOLE: mean_of(judged, HOLE)}
        _warn_other_collection(name, run, counts)
        values.append(judged.filter(pl.col("measure").is_in(names)))
    order = {measure.name: position for position, measure in enumerate(plan.measures)}
    rank = pl.col("measure").replace_strict(order, return_dtype=pl.Int32)
    return pl.concat(values).sort(rank, maintain_order=True), counts


def _warn_other_collection(name: str, run: Retrieved, counts: Mapping[str, float]) -> None:
    """Warn about signs of qrels of another collection or split: few common queries, or no common document."""
    if counts["answered"] < counts["judged"] / 2:
        answered = f"{counts['answered']:,} of {counts['judged']:,}"
        problem = f"{name}: has hits for only {answered} judged queries; the others score 0"
        console.warn(problem, code="unanswered-queries", run=name)
    if not len(run.judged):
        problem = f"{name}: none of its hits has a judgment; check that run and qrels are of one collection"
        console.warn(problem, code="no-judged-hit", run=name)


def _condensed(values: pl.DataFrame, run: Retrieved, qrels: pl.DataFrame, plan: EvaluationPlan) -> pl.DataFrame:
    """Measure again on the judged hits alone, except the share of judged hits.

    A document with a negative grade counts as unjudged, as in trec_eval.
    """
    judged = qrels.filter(pl.col("relevance") >= 0)
    if not _pooled(qrels, plan.level):
        reason = "every judged document is relevant, so condensed lists would be perfect; omit it"
        raise option_error("condensed", None, reason, code="all-judged-relevant")
    kept = [wanted.name for wanted in plan.measures if wanted.family == _SHARE_JUDGED] + [HOLE]
    others = [wanted.name for wanted in plan.measures if wanted.family not in (ACCURACY, _SHARE_JUDGED)]
    same = values.filter(pl.col("measure").is_in(kept))
    if not others:
        return same
    hits = run.judged.join(judged, on=["qid", "docid"], how="semi", maintain_order="left")
    hits = hits.with_columns(pl.col("position").rank("ordinal").over("qid").cast(pl.Int64))
    return pl.concat([same, evaluate_hits(hits, run.lengths["qid"], qrels, others, plan.level)])


def _pooled(qrels: pl.DataFrame, level: int) -> bool:
    """Return whether a document was judged as not relevant; a negative grade counts as unjudged."""
    return qrels["relevance"].is_between(0, level, closed="left").any()


def _unjudged(run: Retrieved, qrels: pl.DataFrame) -> float:
    """Return the share of hits without a judgment among the first 10 of the judged queries."""
    lengths = run.lengths.join(qrels, on="qid", how="semi")["length"].clip(upper_bound=_FIRST)
    hits = int(lengths.to_numpy().sum())
    return 1 - len(run.judged.filter(pl.col("position") <= _FIRST)) / hits if hits else 0.0


def _note_unjudged(shares: Mapping[str, float], qrels: pl.DataFrame, plan: EvaluationPlan) -> None:
    """Print the share of unjudged top hits if judgments come from a pool: some judged documents are not relevant."""
    if plan.condensed or not _pooled(qrels, plan.level) or max(shares.values()) < _MANY_UNJUDGED:
        return
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    advice = "`evaluate --condensed` removes such documents, Bpref ignores them"
    console.note(
        f"without a judgment among the first {_FIRST}: {listed}; {advice}", code="unjudged-hits", shares=shares
    )


def _warn_nothing_removed(counts: Mapping[str, Mapping[str, float]], qrels: pl.DataFrame, plan: EvaluationPlan) -> None:
    """Warn about an earlier round with no document of the runs or judgments, probably of another collection."""
    if plan.residual is None or plan.qrels is None or any(of_run["removed"] for of_run in counts.values()):
        return
    if len(qrels) == len(judgments_of(plan.qrels, plan.runs, plan.by_machine)):
        problem = "has no document of the runs or judgments; check that it is of this collection"
        console.warn(f"--residual-qrels {plan.residual}: {problem}", code="nothing-removed", path=plan.residual)


def _overlap(run: pl.DataFrame, other: pl.DataFrame, values: pl.DataFrame) -> pl.DataFrame:
    """Return the rank-biased overlap of the queries of the first measure; 0 for queries without hits."""
    queries = values.filter(pl.col("measure") == pl.col("measure").first()).select("qid")
    overlaps = queries.join(rbo(run, other), on="qid", how="left", maintain_order="left")
    named = overlaps.select("qid", pl.lit(OVERLAP).alias("measure"), pl.col("value").fill_null(0.0))
    return named.select(values.columns)


def _passages(plan: EvaluationPlan, asked: pl.DataFrame) -> dict[str, str]:
    """Return the normalized texts of the top hits of all runs."""
    assert plan.corpus is not None
    depth = accuracy.depth(plan.measures)
    docids = [accuracy.candidates(plan.read(name, depth).head, asked, plan.measures) for name in plan.runs]
    texts = collections.texts_of_hits(plan.corpus, pl.concat(docids).unique())
    return accuracy.passages(texts, plan.answer_match)


def _holds_corpus(run: Path, longest: int) -> bool:
    """Test whether the longest list of a run, of length `longest`, holds all documents of the searched corpus."""
    corpus = corpus_of(run)
    return corpus is not None and corpus.path.exists() and longest >= collections.document_count(corpus.path)


def note_depth(name: str, longest: int, cutoffs: Mapping[str, int]) -> None:
    """Print the measures (name -> cutoff) whose cutoff exceeds `longest`, the length of a run's longest list."""
    if deeper := [measure for measure, cutoff in cutoffs.items() if cutoff > longest]:
        lists = f"{name}: returned at most {console.counted(hit=longest)} per query"
        note = f"{lists}; computed on shorter lists: {', '.join(deeper)}"
        console.note(note, code="short-lists", run=name, hits=longest, measures=deeper)
