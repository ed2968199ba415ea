"""`mine-negatives`: write training examples whose hard negatives are the errors of a first stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.searched import refuse_other_corpus
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.documents import check_corpus
from hybrid_cli.reporting import terminal
from hybrid_cli.settings import MineNegatives, stage
from hybrid_cli.settings.mining import RANDOM
from hybrid_cli.training.mining import Miner, pairs
from hybrid_cli.training.negatives import REPLACEMENTS, SHORT, Tally


@stage(MineNegatives)
def mine_negatives(settings: MineNegatives) -> Path:
    """Write one training example per query and relevant document, and print what each filter dropped.

    Returns:
        Path of the examples (Parquet).

    Raises:
        InputError: unusable inputs or options, or no query has a relevant document in the corpus.
    """
    inputs = _inputs(settings)
    refuse_other_corpus((source.run for source in settings.plan() if source.run), inputs["corpus"])
    settings = settings.with_depth(collections.document_count(settings.collection))
    output = artifacts.output_of(settings, Kind.EXAMPLES, inputs)
    if output.up_to_date:
        return output.path
    if settings.index is not None:
        check_corpus(settings.index, inputs["corpus"])
    queries = collections.read_queries(inputs["queries"])
    if settings.answer_filter and not queries["answers"].list.len().sum():
        raise InputError(f"--answer-filter: no query of {inputs['queries']} has answers")
    examples = pairs(queries, collections.read_qrels(inputs["qrels"]))
    if not len(examples):
        raise InputError(f"{inputs['qrels']}: has no relevant document for any of the {len(queries):,} queries")
    judged = examples["qid"].n_unique()
    miner = Miner(settings, queries)
    examples = miner.forbid(examples)
    chosen = miner.mine(examples)
    manifest = output.write(
        miner.rows(examples, chosen),
        queries=examples["qid"].n_unique(),
        queries_without_positive=len(queries) - judged,
        negatives=len(chosen),
        tally={source: dict(counts) for source, counts in miner.tally.counts.items()},
    )
    _report(miner.tally, manifest.counts, output.path)
    return output.path


def _inputs(settings: MineNegatives) -> dict[str, Path]:
    """Return the inputs that affect the examples, by role."""
    collection, split = settings.collection, settings.split
    return {
        "corpus": collections.corpus_path(collection),
        "queries": settings.queries or collections.queries_path(collection, split),
        "qrels": settings.qrels or collections.qrels_path(collection, split),
        **({"index": settings.index} if settings.index else {}),
        **{f"run {source.name}": source.run for source in settings.plan() if source.run},
    }


def _report(tally: Tally, counts: Mapping[str, Any], path: Path) -> None:
    """Print the table of counts; warn about substituted random documents and short lists."""
    random = tally.counts[RANDOM]
    terminal.show_tally({name: each for name, each in tally.counts.items() if each["drawn"] or name != RANDOM})
    if replaced := random[REPLACEMENTS]:
        console.warn(f"{replaced:,} negatives are random documents, because their source had too few candidates")
    if short := random[SHORT]:
        console.warn(f"{short:,} examples have fewer negatives than requested")
    if skipped := counts["queries_without_positive"]:
        console.note(f"mine-negatives: {skipped:,} queries have no relevant document and were skipped")
    console.note(
        f"mine-negatives: {path}: {counts['rows']:,} examples of {counts['queries']:,} queries with "
        f"{counts['negatives']:,} negatives"
    )
