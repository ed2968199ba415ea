"""Judged queries that a run was tuned or trained on, found through manifests: their scores are too high to report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Manifest, lineage
from hybrid_cli.collections import collection
from hybrid_cli.errors import InputError
from hybrid_cli.json_files import read_object
from hybrid_cli.runs import open_run
from hybrid_cli.storage import Kind, layout

_PARTS = {  # kind of an artifact made from judgments -> the part of the run, in words
    Kind.WEIGHTS: "its weights were tuned",
    Kind.LEXICAL_INDEX: "k1 and b of its index were tuned",
    Kind.ENCODER: "the weight of its encoder was tuned",
    Kind.EXAMPLES: "its model was trained",
}


def reused(runs: Mapping[str, Path], qrels: Path | None) -> list[str]:
    """Return one sentence for each run and part that was tuned or trained on queries of the qrels.

    Args:
        runs: name -> path.
        qrels: the judgments of the evaluation; None without judgments.

    Raises:
        InputError: the judgments cannot be read.
    """
    parts = {name: [each for each in lineage.made_of(path) if each[2].kind in _PARTS] for name, path in runs.items()}
    if qrels is None or not any(parts.values()):
        return []
    judged = collection.read_qrels(qrels)
    asked, fingerprint = judged["qid"].n_unique(), artifacts.fingerprint(qrels)
    return [
        f"{name}: {_PARTS[kind]} on {common:,} of the {asked:,} judged queries; their scores are too high to report"
        for name, made in parts.items()
        for kind, common in _counts(made, judged, fingerprint).items()
    ]


def _counts(made: Sequence[tuple[Path, Path, Manifest]], judged: pl.DataFrame, fingerprint: str) -> dict[Kind, int]:
    """Return kind of part -> number of judged queries that such parts were made from, above 0.

    A query counts for a part only if the run made of the part has it: a fold has other queries than its model.
    """
    found: dict[Kind, set[str]] = {}
    for run, path, manifest in made:
        try:
            common = set(_used(path, manifest, judged, fingerprint))
            if common:
                common.intersection_update(open_run(run).qids)
        except InputError:  # damaged: nothing is known
            continue
        found.setdefault(manifest.kind, set()).update(common)
    return {kind: len(common) for kind, common in found.items() if common}


def _used(path: Path, manifest: Manifest, judged: pl.DataFrame, fingerprint: str) -> pl.Series:
    """Return the ids of judged queries whose judgments an artifact was made from.

    Equal ids of other collections are not the same queries, so a document must be judged for them in both; only where
    the judgments of weights are gone do ids decide.
    """
    pairs = ["qid", "docid"]
    sources = {role: each for role, each in manifest.inputs.items() if role.split()[0] == "qrels"}
    if manifest.kind == Kind.LEXICAL_INDEX and not _was_tuned(path):
        return judged["qid"].head(0)
    if manifest.kind == Kind.EXAMPLES and len(sources) == 1:
        return judged.join(pl.read_parquet(path, columns=pairs, glob=False), on=pairs, how="semi")["qid"]
    used = [judged["qid"].head(0)]
    for role, recorded in sources.items():
        source = manifest.input_path(role)
        if recorded["fingerprint"] == fingerprint:
            used.append(judged["qid"])
        elif source is not None and source.exists():
            used.append(judged.join(collection.read_qrels(source), on=pairs, how="semi")["qid"])
        elif manifest.kind == Kind.WEIGHTS:
            used.append(judged.filter(pl.col("qid").is_in(read_object(path).get("judged", [])))["qid"])
    qids, queries = pl.concat(used), manifest.input_path("queries")
    if queries is not None and queries.is_file() and sources:
        qids = qids.filter(qids.is_in(collection.read_queries(queries)["qid"].implode()))
    return qids


def _was_tuned(index: Path) -> bool:
    """Test whether k1 and b of an index come from a tuning; without a held-out gain, it kept the given ones."""
    return bool(read_object(index / layout.PARAMETERS).get("tuning", {}).get("held_out_gain", 0.0) > 0)
