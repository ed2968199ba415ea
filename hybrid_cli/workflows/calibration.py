"""Probabilities of the hits of a retriever, learned from judged queries when it is composed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from hybrid_cli.artifacts import lineage
from hybrid_cli.artifacts.retrievers import RetrieverFiles, open_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.folds import Folds, random_folds
from hybrid_cli.errors import InputError
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.retrieval.calibration import FOLDS, SEARCHED, Calibration, Fold, calibrate, prior_of
from hybrid_cli.retrieval.retriever import Retriever
from hybrid_cli.runs.groups import judgments_for
from hybrid_cli.settings import Compose, SearchOptions
from hybrid_cli.storage import Kind


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
    return calibrate(hits, judgments, parts, list(retriever.sides), retriever.depth, prior_of(kinds), settings.seed)


def _searched(retriever: Retriever, queries: pl.DataFrame) -> pl.DataFrame:
    return pl.concat(retriever.runs(queries, SEARCHED))
