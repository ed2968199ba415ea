"""Judged queries that a run was tuned or trained on, found through manifests: their scores are too high to report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind, Manifest, layout, lineage
from hybrid_cli.collections import collection
from hybrid_cli.json_files import read_object

_PARTS = {  # kind of an artifact made from judgments -> the part of the run, in words
    Kind.WEIGHTS: "its weights were tuned",
    Kind.FUSER: "its fuser was trained",
    Kind.LEXICAL_INDEX: "k1 and b of its index were tuned",
    Kind.ENCODER: "the weight of its encoder was tuned",
    Kind.EXAMPLES: "its model was trained",
}


def reused(runs: Mapping[str, Path], qrels: Path | None) -> list[str]:
    """Return one sentence for each run and part that was tuned or trained on the queries of the qrels.

    Args:
        runs: name -> path.
        qrels: the judgments of the evaluation; None without judgments.
    """
    if qrels is None:
        return []
    judged = collection.read_qrels(qrels)
    asked = judged["qid"].n_unique()
    return [
        f"{name}: {_PARTS[kind]} on {common:,} of the {asked:,} judged queries; their scores are too high to report"
        for name, path in runs.items()
        for kind, common in _parts(path, judged, artifacts.fingerprint(qrels)).items()
    ]


def _parts(run: Path, judged: pl.DataFrame, of: str) -> dict[Kind, int]:
    """Return part -> number of judged queries that it was tuned or trained on, above 0."""
    found: dict[Kind, set[str]] = {}
    for owner, path, manifest in lineage.made_of(run):
        if manifest.kind in _PARTS and "qrels" in manifest.inputs:
            common = set(_used(path, manifest, judged, of)).intersection(judged["qid"])
            if common:  # the run of a fold has other queries than its model
                common.intersection_update(_queries(owner))
            found.setdefault(manifest.kind, set()).update(common)
    return {kind: len(common) for kind, common in found.items() if common}


def _queries(run: Path) -> pl.Series:
    """Return the ids of the queries of a run with a manifest."""
    return pl.scan_parquet(run, glob=False).select(pl.col("qid").unique()).collect()["qid"]


def _used(path: Path, manifest: Manifest, judged: pl.DataFrame, of: str) -> Iterator[str]:
    """Yield ids of queries whose judgments an artifact was made from.

    Equal ids of other collections are not the same queries, so a document must be judged for them in both. `of` is the
    fingerprint of the judgments of the evaluation.
    """
    recorded, source = manifest.inputs["qrels"]["fingerprint"], manifest.input_place("qrels")
    if recorded == of:
        yield from judged["qid"]
    elif source is not None and source.exists() and artifacts.fingerprint(source) == recorded:
        yield from judged.join(collection.read_qrels(source), on=["qid", "docid"], how="semi")["qid"]
    elif manifest.kind in (Kind.WEIGHTS, Kind.FUSER):
        yield from read_object(path if manifest.kind == Kind.WEIGHTS else path / layout.FUSER).get("judged", [])
