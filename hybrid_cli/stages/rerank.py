"""`rerank`: rescore the top hits of a run with a reranker."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hybrid_cli import artifacts, console, runs, storage
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.examples import open_examples
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.artifacts.lineage import corpus_of, texts_of
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Rerank
from hybrid_cli.encoders.cross_encoder import Reranker, Reranking, load_reranker
from hybrid_cli.encoders.models import pick_device, pick_dtype
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.runs import Run
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind, layout
from hybrid_cli.training.teachers import ScoredExamples


@stage(Rerank)
def rerank(settings: Rerank) -> Path:
    """Rescore the top hits of a run, or score training examples, in shards that survive an interruption.

    Returns:
        Path of the run or of the examples, or with several depths of a folder with one run per depth.

    Raises:
        InputError: unusable inputs or options, or texts that are missing.
        HybridError: a score is not finite.
    """
    record = storage.find_record(settings.run)
    if record is not None and record.kind == Kind.EXAMPLES:
        return _score_examples(settings)
    inputs = _inputs(settings)
    several = len(settings.depth) > 1
    kind = Kind.RERANKED if several else Kind.RUN
    output = artifacts.output_of(settings, kind, inputs, {**settings.recorded(), "dtype": _dtype(settings)})
    if output.up_to_date:
        return output.path
    run = runs.open_run(settings.run)
    _check_depth(settings, run)

    def scored(work: Path) -> Reranking:
        sizes = settings.deepest, settings.shard_size, settings.batch_tokens
        job = Reranking(run, settings.run, inputs, work / layout.SCORES, partial(_load, settings), *sizes)
        job.score()
        return job

    if several:
        with output.folder() as (work, counts):
            job = scored(work)
            counts |= job.counts(settings.deepest)
            counts |= {"depths": sorted(settings.depth), "seconds": job.facts("seconds")}
            for depth in sorted(settings.depth):
                _write(job, output, inputs, depth, work / layout.run_of(depth))
            job.note(output.path)
    else:
        with output.file_with_shards() as (work, path):
            job = scored(work)
            _write(job, output, inputs, settings.deepest, path)
            job.note(output.path)
    return output.path


def _score_examples(settings: Rerank) -> Path:
    """Store the scores of the reranker in a copy of training examples."""
    settings.check_facts(f"{settings.run} holds training examples", input=Kind.EXAMPLES)
    examples, made = open_examples(settings.run), artifacts.read_manifest(settings.run, Kind.EXAMPLES)
    chosen = settings.queries
    if chosen is None and settings.collection is not None:
        chosen = collections.queries_path(settings.collection, settings.split)
    inputs: dict[str, artifacts.Input] = {
        role: source for role in made.inputs if (source := artifacts.recorded_input(made, role)) is not None
    }
    inputs |= {"examples": settings.run, "model": model_input(settings.model)}
    inputs |= {"scored queries": chosen} if chosen is not None else {}
    options = settings.recorded(input=Kind.EXAMPLES) | {"dtype": _dtype(settings)}
    options |= {"remove_query": True} if examples.remove_query else {}
    output = artifacts.output_of(settings, Kind.EXAMPLES, inputs, options)
    if output.up_to_date:
        return output.path
    qids = None if chosen is None else collections.read_queries(chosen)["qid"]
    examples.refuse_scores("rerank the file without scores", qids)
    with output.file_with_shards() as (work, path):
        sizes = settings.shard_size, settings.batch_tokens
        job = ScoredExamples(examples, work / layout.SCORES, partial(_load, settings), *sizes, qids)
        pairs = job.score()
        counts = {name: count for name, count in made.counts.items() if name not in ("rows", "pairs")}
        output.write_part(path, job.tables(), Kind.EXAMPLES, counts={**counts, "pairs": pairs})
    output.note(f"{console.counted(example=len(examples), pair=pairs)} scored", pairs=pairs)
    return output.path


def _load(settings: Rerank) -> Reranker:
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return load_reranker(settings.model, device=settings.device, dtype=settings.dtype, **settings.pair_input())


def _inputs(settings: Rerank) -> dict[str, Path | artifacts.Named]:
    """Return the inputs by role; texts come from options, or from the files recorded in the run."""
    if not settings.run.is_file():
        storage.check_table(settings.run, Kind.RUN)
    recorded = corpus_of(settings.run)
    source = settings.collection or (recorded.path if recorded else None)
    if source is None or not (settings.collection or source.exists()):
        problem = f"{settings.run}: its corpus is not recorded, or is gone; pass --collection"
        raise InputError(problem, code="corpus-missing", path=settings.run, option="collection")
    corpus = collections.corpus_path(source)
    belongs_together([settings.run], corpus=corpus)
    queries = settings.queries
    if queries is None and settings.split is not None and settings.collection is not None:
        queries = collections.queries_path(settings.collection, settings.split)
    if queries is None and (texts := texts_of(settings.run)) is not None:
        queries = texts.path
    if queries is None:
        problem = f"{settings.run}: its queries are not recorded, or have changed; pass --queries"
        raise InputError(problem, code="queries-missing", path=settings.run, option="queries")
    return {"run": settings.run, "queries": queries, "corpus": corpus, "model": model_input(settings.model)}


def _dtype(settings: Rerank) -> str:
    """Return the precision with `auto` resolved, because it affects the scores."""
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return names[pick_dtype(settings.dtype, pick_device(settings.device))]


def _check_depth(settings: Rerank, run: Run) -> None:
    """Refuse several depths, and note a single one, that no query of the run has."""
    longest = int(run.queries["length"].max() or 0)  # type: ignore[arg-type]
    above = [depth for depth in settings.depth if depth > longest]
    if above and len(settings.depth) > 1:
        reason = f"{settings.run} has at most {longest} hits per query; pass depths up to {longest}"
        raise option_error("depth", above, reason, limit=longest, path=settings.run)
    if above and "depth" in settings.given:
        text = f"--depth {settings.deepest}: {settings.run} has at most {longest} hits per query; all are rescored"
        console.warn(text, code="short-lists", path=settings.run, option="depth", hits=longest)


def _write(
    job: Reranking, output: artifacts.Output, inputs: Mapping[str, Path | artifacts.Named], depth: int, path: Path
) -> None:
    """Write the run with `depth` rescored hits per query."""
    fields: dict[str, Any] = {"counts": job.counts(depth)}
    if output.manifest.kind == Kind.RERANKED:
        described = artifacts.describe_inputs(inputs, output.target / path.name)
        fields |= {"options": output.manifest.options | {"depth": [depth]}, "inputs": described}
    output.write_part(path, job.blocks(depth), Kind.RUN, **fields)
