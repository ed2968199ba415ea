"""`compose`: name indexes of one corpus and the fusion of their hits as one retriever."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Manifest, lineage
from hybrid_cli.artifacts.belonging import belongs_together, check_systems
from hybrid_cli.artifacts.indexes import check_models, corpora_of, group_of, manifests_of, model_input
from hybrid_cli.artifacts.judged import judgments_of, queries_of_judgments
from hybrid_cli.artifacts.lineage import System
from hybrid_cli.artifacts.retrievers import (
    RetrieverFiles,
    StoredRetriever,
    default_fusion,
    default_shares,
    named_indexes,
    open_retriever,
    open_sides,
    refuse_shards,
    rule_options,
)
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.folds import Folds, random_folds
from hybrid_cli.commands import Compose, Fuse, Search, SearchOptions
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.fusion.methods import METHODS, FusionRecipe
from hybrid_cli.fusion.options import HITS, LEXICAL_SHARE
from hybrid_cli.fusion.prior import MEASURES, prior_of
from hybrid_cli.fusion.selection import FIRST_JUDGED
from hybrid_cli.fusion.tuning import WEIGHTS
from hybrid_cli.fusion.weights import chosen_weights, read_tuned, tuned_recipe, weights_file, weights_path
from hybrid_cli.reporting.tables import figure
from hybrid_cli.reporting.terminal import show_calibration, show_verdict
from hybrid_cli.retrieval import calibration
from hybrid_cli.retrieval.calibration import FOLDS, SEARCHED, Calibration, Fold, calibrate
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs.files import short_names
from hybrid_cli.runs.groups import judgments_for
from hybrid_cli.stages import call, stage
from hybrid_cli.storage import Kind

_TRAININGS = ("train-dense", "distill-lite", "train-sparse", "train-lambda")
# Fields of a weights file that are no evidence.
_NOT_EVIDENCE = (
    "runs",
    "method",
    "weights",
    "normalize",
    "missing",
    "rrf_k",
    "scales",
    "scaled_by",
    "trials",
    "manifest",
)


@stage(Compose)
def compose(settings: Compose) -> Path:
    """Write a retriever: the indexes by relative path, and their fusion.

    Returns:
        Path of the retriever.

    Raises:
        InputError: indexes of other corpora, weights of other indexes, or indexes that the fusion cannot use.
    """
    manifests = manifests_of(settings.indexes)
    belongs_together(indexes=dict(zip(settings.indexes, manifests, strict=True)))
    queries = _queries(settings, manifests)
    output = artifacts.output_of(settings, Kind.RETRIEVER, _inputs(settings, queries))
    if output.up_to_date:
        return output.path
    recipes: list[FusionRecipe] = []
    if path := weights_path(settings.weights):
        fusion = _of_file(settings, path, manifests)
    elif settings.tune:
        fusion, recipes = _tuned(settings, manifests, queries)
    elif settings.method is not None:
        equal, missing = (1.0,) * len(settings.indexes), settings.missing or METHODS[settings.method].missing
        more = settings.normalize, settings.rrf_k, rule_options(settings.method, settings.method_options)
        recipe = FusionRecipe(settings.method, equal, missing, *more)
        fusion = _content(chosen_weights(settings.weights, recipe, short_names(settings.indexes)), settings.depth)
    else:
        fusion = _scaled(settings, manifests, None if settings.calibrate else queries)
    group = group_of(settings.group, manifests)
    stored = StoredRetriever(indexes=named_indexes(settings.indexes, output.target), group=group, **fusion)
    if settings.reranker is not None:
        from hybrid_cli.artifacts.retrievers import named_reranker  # imports transformers

        stored = replace(stored, reranker=named_reranker(settings.reranker, settings.rerank_depth, output.target))
    if stored.missing == "exact":
        refuse_shards(settings.indexes)
    if settings.calibrate and queries is not None:
        files = RetrieverFiles(output.target, stored, settings.indexes, manifests)
        probabilities = learned(settings, files, queries, _qrels(settings), recipes)
        stored = replace(stored, calibration=asdict(probabilities))
    with output.folder() as (work, counts):
        stored.write(work)
        counts |= {"indexes": len(stored.indexes), "method": stored.method, "weights": list(stored.weights)}
    _report(output.path, settings, stored, manifests)
    return output.path


def _queries(settings: Compose, manifests: Sequence[Sequence[Manifest]]) -> Path | None:
    """Return the queries that the scales or the judgments are of; None for neither."""
    of_qrels = settings.qrels is not None and settings.qrels.is_dir()
    if settings.queries is not None:
        split = None if of_qrels and settings.queries.is_file() else settings.split
        return collections.queries_path(settings.queries, split)
    if settings.qrels is None:
        return None
    if of_qrels:
        return collections.queries_path(settings.qrels, settings.split)
    qrels = collections.qrels_path(settings.qrels, settings.split)
    return queries_of_judgments("compose", qrels, corpora_of(manifests))


def _qrels(settings: Compose) -> Path:
    return collections.qrels_path(settings.qrels or Path(), _split_of_qrels(settings))


def _split_of_qrels(settings: Compose) -> str | None:
    return settings.split if settings.qrels is not None and settings.qrels.is_dir() else None


def _inputs(settings: Compose, queries: Path | None) -> dict[str, Path | artifacts.Named]:
    inputs: dict[str, Path | artifacts.Named] = {f"index {n}": path for n, path in enumerate(settings.indexes, 1)}
    if queries is not None:
        inputs["queries"] = queries
    if settings.qrels is not None:
        inputs["qrels"] = _qrels(settings)
    if settings.machine is not None:
        inputs["machine"] = settings.machine
    if settings.reranker is not None:
        inputs["reranker"] = model_input(settings.reranker)
    return inputs | weights_file(settings.weights)


def _content(recipe: FusionRecipe, depth: int) -> dict[str, Any]:
    """Return the fields of a stored retriever that say how hits are fused."""
    fields = {"normalize" if name == "normalization" else name: value for name, value in vars(recipe).items()}
    return fields | {"depth": depth}


def _of_file(settings: Compose, path: Path, manifests: Sequence[Sequence[Manifest]]) -> dict[str, Any]:
    """Return the fusion that `fuse --tune` chose."""
    if settings.method is not None:
        raise option_error("method", settings.method, f"{path} has a method; omit it", code="conflicting-options")
    tuned = read_tuned(path)
    recipe = tuned_recipe(tuned)
    if len(recipe.weights) != len(settings.indexes):
        problem = f"{path}: was tuned for {len(recipe.weights)} runs, not {len(settings.indexes)} indexes; tune again"
        raise InputError(problem, code="tuned-for-others", path=path, value=len(settings.indexes))
    check_systems(path, [System(index[0].kind, encoder=index[0].counts.get("encoder")) for index in manifests])
    depth = int(artifacts.read_manifest(path).options.get("depth", HITS))
    if "depth" in settings.given and settings.depth != depth:
        problem = f"{path} was tuned with {depth}; omit the option, or tune again"
        raise option_error("depth", settings.depth, problem, code="tuned-with-other-option")
    return _of_tuned(tuned, depth)


def _of_tuned(tuned: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return the fields of a stored retriever with a fusion that `fuse --tune` chose, and its evidence."""
    evidence = {name: value for name, value in tuned.items() if name not in _NOT_EVIDENCE}
    content = _content(tuned_recipe(tuned), depth) | {"tuning": evidence}
    if not tuned.get("scales"):
        return content
    return content | {name: tuned[name] for name in ("shares", "scales", "scaled_by")}


def _tuned(
    settings: Compose, manifests: Sequence[Sequence[Manifest]], queries: Path | None
) -> tuple[dict[str, Any], list[FusionRecipe]]:
    """Search the judged queries in every index, and tune the fusion of the runs as `fuse --tune` does.

    Returns:
        The fields of the retriever, and with `--calibrate` the fusion that is tuned without each fold of the queries.
    """
    if len(manifests) < 2:
        raise option_error("tune", None, "needs two or more indexes", code="option-does-not-apply")
    check_models(manifests)
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for number, (name, index) in enumerate(zip(short_names(settings.indexes), settings.indexes, strict=True)):
            run = Path(folder) / str(number) / f"{name.replace('/', '-')}.parquet"
            how = {name: getattr(settings, name) for name in ("group", "threads")} | {"hits": settings.depth}
            search = Search(queries=queries, index=index, output=run, **how)
            if "device" in settings.given and manifests[number][0].kind == Kind.DENSE_INDEX:
                search = search.changed(device=settings.device)
            call(search)
            runs.append(run)
        weights = Path(folder) / "weights.json"
        exact = [] if any(len(index) > 1 for index in manifests) else settings.indexes
        fuse = Fuse(
            runs,
            tune=True,
            index=exact,
            qrels=settings.qrels,
            split=_split_of_qrels(settings),
            machine=settings.machine,
            measure=settings.measure,
            depth=settings.depth,
            output=weights,
            seed=settings.seed,
            threads=settings.threads,
        )
        fuse = fuse.changed(device=settings.device) if exact and "device" in settings.given else fuse
        call(fuse)
        content = _of_tuned(read_tuned(weights), settings.depth)
        return content, _tuned_by_fold(settings, fuse, runs) if settings.calibrate else []


def _tuned_by_fold(settings: Compose, fuse: Fuse, runs: Sequence[Path]) -> list[FusionRecipe]:
    """Return the fusion that is tuned without each fold of the judged queries; its tables are not printed."""
    qrels, recipes = _qrels(settings), []
    paths = {"qrels": qrels} | ({} if settings.machine is None else {"machine": settings.machine})
    named = {run.stem: run for run in runs}
    judgments = {rater: judgments_of(path, named, of_machine=rater == "machine") for rater, path in paths.items()}
    for number, fold in enumerate(judged_folds(qrels, settings.seed)):
        others = {rater: fuse.output.with_name(f"{number}-{rater}.parquet") for rater in judgments}
        for rater, path in others.items():
            judgments[rater].filter(~pl.col("qid").is_in(pl.Series(fold).implode())).write_parquet(path)
        weights = fuse.output.with_name(f"{number}.json")
        with console.quiet(), contextlib.redirect_stdout(io.StringIO()):
            call(fuse.changed(**others, split=None, output=weights))
        recipes.append(tuned_recipe(read_tuned(weights)))
    return recipes


def _scaled(settings: Compose, manifests: Sequence[Sequence[Manifest]], queries: Path | None) -> dict[str, Any]:
    """Return the sum of exact scores in units of their deviations."""
    if settings.weights is None:
        _warn_trained(settings.indexes, manifests)
    names = short_names(settings.indexes)
    shares = chosen_weights(settings.weights, FusionRecipe("weighted-sum", default_shares(manifests), "exact"), names)
    sides = open_sides(
        settings.indexes, SearchOptions(threads=settings.threads, device=settings.device, group=settings.group)
    )
    fusion = default_fusion(sides, manifests, shares.weights, queries, settings.seed)
    content = _content(fusion.recipe, settings.depth)
    if len(sides) == 1:
        return content
    return content | {"shares": fusion.shares, "scales": fusion.scales, "scaled_by": fusion.queries}


def _warn_trained(indexes: Sequence[Path], manifests: Sequence[Sequence[Manifest]]) -> None:
    """Warn that the default weights, measured with encoders that were not trained, are used with trained ones."""
    for path, (first, *_) in zip(indexes, manifests, strict=True):
        model = first.input_path("model")
        encoder = artifacts.find_manifest(model) if model is not None and model.exists() else None
        if encoder is not None and encoder.stage in _TRAININGS:
            text = f"the encoder of {path} was trained by `{encoder.stage}`, and the default weights are for untrained"
            text = f"compose: {text} ones; pass --tune with --qrels and the split that its training validated on"
            console.warn(text, code="trained-encoder", path=path, stage=encoder.stage)


def _report(path: Path, settings: Compose, stored: StoredRetriever, manifests: Sequence[Sequence[Manifest]]) -> None:
    """Print the weights, their reason, and what judged queries may add."""
    weights, tuning = stored.shares or (stored.tuning or {}).get("shares") or stored.weights, stored.tuning
    shares = (weight / math.fsum(weights) for weight in weights)
    parts = [f"{share:.0%} {name}" for name, share in zip(short_names(settings.indexes), shares, strict=True)]
    how = f"{stored.method}" if stored.shares is None else "exact scores in units of their deviations"
    why, queries, more, measure = "as given", FIRST_JUDGED, None, settings.measure
    if tuning is not None:
        queries, more, measure = tuning.get("more_queries", queries), tuning.get("more_may_add"), tuning["measure"]
        kept = "the default, kept after" if tuning.get("keeps_untuned") else "tuned on"
        why = f"{kept} {console.counted(**{'judged query': tuning['queries']})}"
    elif stored.shares == default_shares(manifests):
        why, more = "the default", _worth_of_judging(manifests, settings.measure)
    if more is not None:
        judged = f"{queries:,} {'more' if tuning else 'judged'} queries"
        why = f"{why}; {judged} may add {figure(more, 3)} {measure} at most"
    reason = f": {why}" if len(parts) > 1 else ""
    console.note(f"compose: {path}: {' + '.join(parts)} ({how}), {stored.depth:,} hits of each{reason}")
    if settings.tune and stored.tuning is not None:
        show_verdict(stored.tuning)
    if stored.calibration is not None:
        show_calibration(stored.calibration)


def _worth_of_judging(manifests: Sequence[Sequence[Manifest]], measure: str) -> float | None:
    """Return the most that `FIRST_JUDGED` judged queries may add to the default; None where it is not known."""
    kinds = sorted(index[0].kind for index in manifests)
    learned = any(index[0].kind == Kind.LEXICAL_INDEX and "encoder" in index[0].counts for index in manifests)
    if kinds != [Kind.DENSE_INDEX, Kind.LEXICAL_INDEX] or learned or measure not in MEASURES:
        return None
    share = 1 - LEXICAL_SHARE
    prior = prior_of("weighted-sum", WEIGHTS, share, measure)
    return None if prior is None else prior.worth(FIRST_JUDGED, WEIGHTS.index(share))


def judged_folds(qrels: Path, seed: int) -> Folds:
    """Return the folds of the judged queries that probabilities are learned from.

    Raises:
        InputError: too few judged queries.
    """
    judged = set(collections.read_qrels(qrels)["qid"])
    if len(judged) < FOLDS:
        problem = f"{qrels}: has {len(judged)} judged queries; --calibrate needs {FOLDS}"
        raise InputError(problem, code="too-few-queries", path=qrels, value=len(judged), limit=FOLDS)
    return random_folds(judged, FOLDS, seed)


def learned(
    settings: Compose, files: RetrieverFiles, queries: Path, qrels: Path, recipes: Sequence[FusionRecipe]
) -> Calibration:
    """Search the judged queries, and fit the probabilities of their hits.

    Args:
        settings: settings of `compose`.
        files: the retriever, which need not be written yet.
        queries: file of the judged queries.
        qrels: file of the judgments.
        recipes: for each fold of the judged queries, a fusion that was not tuned on it; none for an untuned fusion.

    Raises:
        InputError: see `retrieval.calibration.calibrate`.
    """
    judgments, folds = collections.read_qrels(qrels), judged_folds(qrels, settings.seed)
    table = collections.read_queries(queries).select("qid", "text").join(judgments, on="qid", how="semi")
    options = SearchOptions(threads=settings.threads, device=settings.device)
    retriever = open_retriever(files, options)
    hits = _searched(retriever, table)
    if lineage.passage_length(qrels) is not None:
        judgments = judgments_for(judgments, [(str(files.folder), hits["docid"].head(SEARCHED))])
    by_fold = [_searched(replace(retriever, recipe=recipe), table) for recipe in recipes] or [hits] * len(folds)
    kinds = ["lexical" if index[0].kind == Kind.LEXICAL_INDEX else "dense" for index in files.manifests]
    parts = [Fold(*part) for part in zip(folds, by_fold, strict=True)]
    return calibrate(
        hits, judgments, parts, list(retriever.sides), retriever.depth, calibration.prior_of(kinds), settings.seed
    )


def _searched(retriever: Retriever, queries: pl.DataFrame) -> pl.DataFrame:
    return pl.concat(retriever.runs(queries, SEARCHED))
