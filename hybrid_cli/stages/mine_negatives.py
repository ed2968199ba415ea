"""`mine-negatives`: write training examples whose hard negatives are the errors of a first stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Output, read_manifest
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.judged import warn_raters
from hybrid_cli.artifacts.opening import open_lexical
from hybrid_cli.artifacts.retrievers import RetrieverFiles, is_retriever, of_auto
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import MineNegatives, Search
from hybrid_cli.errors import option_error
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.reporting import terminal
from hybrid_cli.stages import call, stage
from hybrid_cli.storage import Kind
from hybrid_cli.training.mining import REPLACEMENTS, SHORT, MinedCollection, Miner, Tally
from hybrid_cli.training.options import RANDOM

_BEYOND = 50  # hits beyond the depth of mined negatives, some of which are relevant and filtered


@stage(MineNegatives)
def mine_negatives(settings: MineNegatives) -> Path:
    """Write one training example per query and relevant document, and print the counts of each filter.

    Returns:
        Path of the examples (Parquet).

    Raises:
        InputError: unusable inputs or options, or no query has a relevant document in the corpus.
    """
    settings = _with_ranking(settings)
    each = [
        settings.of_collection(number).with_depth(collections.document_count(path))
        for number, path in enumerate(settings.collections)
    ]
    files = [_inputs(one) for one in each]
    recorded = settings if len(each) > 1 else each[0]
    names = [path.name if len(each) > 1 else "" for path in settings.collections]
    inputs = {
        f"{role} {name}".strip(): path for name, own in zip(names, files, strict=True) for role, path in own.items()
    }
    in_corpus = any(collections.queries_in_corpus(own["queries"]) for own in files)
    options = recorded.recorded() | ({"remove_query": True} if in_corpus else {})
    output = artifacts.output_of(recorded, Kind.EXAMPLES, inputs, options)
    if output.up_to_date:
        return output.path
    shared = len({storage.fingerprint(own["corpus"]) for own in files}) == 1
    parts = [_mined(one, own) for one, own in zip(each, files, strict=True)]
    counts = {name: sum(part.counts()[name] for part in parts) for name in parts[0].counts()}
    tally = Tally.sum(part.miner.tally for part in parts)
    named = (
        _prefix_ids(table, name, shared) if name else table
        for name, part in zip(names, parts, strict=True)
        for table in part.miner.rows(part.examples, part.chosen)
    )
    manifest = output.write(named, **counts, tally={source: dict(drawn) for source, drawn in tally.counts.items()})
    _report(tally, manifest.counts, output, [*dict.fromkeys(one.depth for one in each if one.depth)])
    return output.path


def _with_ranking(settings: MineNegatives) -> MineNegatives:
    """Search the retriever in `--index`; return settings with its run as the source, and its lexical index.

    The run is written next to the examples, so that an equal call finds it.

    Raises:
        InputError: other sources, or several collections.
    """
    retrievers = [path for path in map(of_auto, settings.indexes) if is_retriever(path)]
    if not retrievers:
        return settings
    if len(settings.collections) > 1 or "sources" in settings.given:
        option = "sources" if "sources" in settings.given else "collection"
        reason = f"{retrievers[0]} is a retriever, whose hits are the source for one collection"
        raise option_error(option, None, reason, code="conflicting-options")
    retriever, collection = retrievers[0], settings.collections[0]
    run = settings.output.with_name(f"{settings.output.stem}.hits.parquet")
    documents = collections.document_count(collection)
    hits = min((settings.with_depth(documents).depth or 0) + _BEYOND, documents)
    queries = settings.queries or collections.queries_path(collection, settings.split)
    call(Search(queries=queries, index=retriever, hits=hits, group=NO_GROUPS, output=run, overwrite=settings.overwrite))
    lexical = RetrieverFiles.read(retriever).of_kind(Kind.LEXICAL_INDEX)[:1]
    return settings.changed(sources=(f"run:{run}",), index=lexical)


def _prefix_ids(table: pa.Table, name: str, shared_corpus: bool) -> pa.Table:
    """Return examples with the name of their collection before their ids; documents of a shared corpus keep theirs."""
    rows = pl.DataFrame(pl.from_arrow(table)).with_columns(pl.format("{}:{}", pl.lit(name), "qid").alias("qid"))
    if not shared_corpus:
        prefixed = pl.format("{}:{}", pl.lit(name), pl.element().struct.field("docid")).alias("docid")
        rows = rows.with_columns(
            pl.format("{}:{}", pl.lit(name), "docid").alias("docid"),
            pl.col("negatives").list.eval(pl.element().struct.with_fields(prefixed)),
        )
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())


def _report(tally: Tally, counts: Mapping[str, Any], output: Output, depths: Sequence[int]) -> None:
    """Print the table of counts and the depth; warn about substituted random documents and short lists."""
    random = tally.counts[RANDOM]
    terminal.show_tally({name: some for name, some in tally.counts.items() if some["drawn"] or name != RANDOM})
    if replaced := random[REPLACEMENTS]:
        few = f"random documents replace {console.counted(negative=replaced)} of sources with too few candidates"
        console.warn(few, code="random-negatives")
    if short := random[SHORT]:
        problem = f"{console.counted(example=short)} with fewer negatives than requested: too few documents are left"
        console.warn(problem, code="few-negatives", count=short)
    if skipped := counts["queries_without_positive"]:
        skips = f"mine-negatives: skipped {console.counted(query=skipped)} without a relevant document"
        console.note(skips, code="queries-skipped", count=skipped)
    depth = f", from the first {' or '.join(f'{depth:,}' for depth in depths)} hits" if depths else ""
    counted = console.counted(example=counts["rows"], query=counts["queries"], negative=counts["negatives"])
    output.note(f"{counted}{depth}", depths=depths)


def _mined(settings: MineNegatives, inputs: Mapping[str, Path]) -> MinedCollection:
    """Choose the negatives of all examples of a collection."""
    indexes = {index: [read_manifest(index, Kind.LEXICAL_INDEX)] for index in settings.indexes}
    belongs_together(indexes=indexes, corpus=inputs["corpus"])
    queries = collections.read_queries(inputs["queries"])
    if settings.answer_filter and not queries["answers"].list.len().sum():
        raise option_error("answer_filter", None, f"{inputs['queries']} has no answers", code="needs-answers")
    warn_raters(inputs["qrels"])
    qrels = collections.read_qrels(inputs["qrels"])
    index = [partial(open_lexical, path, threads=settings.of_worker().threads) for path in settings.indexes[:1]]
    miner = Miner(**settings.mining(), queries=queries, open_index=index[0] if index else None)
    own = collections.queries_in_corpus(inputs["queries"]) > 0
    return MinedCollection.of(miner, qrels, settings.positives == "first", own)


def _inputs(settings: MineNegatives) -> dict[str, Path]:
    """Return the inputs that affect the examples of one collection, by role; refuse runs of another one."""
    (collection,), split, plan = settings.collections, settings.split, settings.plan()
    ranked = {f"run {source.name}": source.run for source in plan if source.run}
    scored = {"scores": settings.scores} if settings.scores else {}
    corpus = collections.corpus_path(collection)
    belongs_together([*ranked.values(), *scored.values()], corpus=corpus)
    return {
        "corpus": corpus,
        "queries": settings.queries or collections.queries_path(collection, split),
        "qrels": settings.qrels or collections.qrels_path(collection, split),
        **({"index": settings.indexes[0]} if settings.indexes else {}),
        **ranked,
        **scored,
        **{f"{source.name} negatives": source.given for source in plan if source.given},
    }
