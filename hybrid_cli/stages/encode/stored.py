"""Vectors that exist: of another tool, or of dense indexes that get another type, fewer values, or a second encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.indexes import (
    index_kinds,
    info_of,
    kind_in_words,
    model_input,
    recorded_corpora,
    recorded_model_input,
)
from hybrid_cli.artifacts.opening import limit_threads, model_of, open_dense, query_encoder
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import VectorIndex
from hybrid_cli.commands import retrieval as jobs
from hybrid_cli.commands.common import as_names
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.composite import Combination, CombinationRecipe, refuse_equal
from hybrid_cli.encoders.contract import SPARSE, kind_of, preset_fields, refuse_truncation
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.construction import check_recipe
from hybrid_cli.indexes.dense import IndexInfo, combine_vectors
from hybrid_cli.indexes.external import read_external, rows_of, write_external
from hybrid_cli.indexes.options import TRANSFORMER_INDEX
from hybrid_cli.indexes.shards import link_vectors, truncate_vectors
from hybrid_cli.stages.encode import shared
from hybrid_cli.storage import Kind
from hybrid_cli.storage.layout import INDEX_ENCODER


def rebuild_index(settings: jobs.RebuiltIndex, old: Path, made: Manifest) -> Path:
    """Build a new index from the vectors of a dense index, or from their leading values."""
    check_encoders(settings, jobs.ONE_INDEX, {old: made})
    info, length = info_of(made), settings.truncate_dim
    refuse_truncation(length, info.dim, old)
    settings = shared.with_type(settings, bool(info.contract.get("binary", False)))
    changes = made.options["contract"] | ({} if length is None else {"truncate_dim": length})
    declared = VectorIndex.declared()
    kept = {name: value for name, value in made.options.items() if name not in declared}
    inputs = {"vectors": old, **texts_and_model(made)}
    chosen = {name: value for name, value in settings.recorded(job=jobs.ONE_INDEX).items() if name in declared}
    options = {**kept, **chosen, "contract": changes}
    output = artifacts.output_of(settings, Kind.DENSE_INDEX, inputs, options)
    if output.up_to_date:
        return shared.check_recall(settings, output)
    if length is not None:
        opened = open_dense(old)
        query_encoder(opened, device=settings.device)  # refuses a model that has changed
        model = model_of(opened)
        encoder = open_encoder(model, device=settings.device, overrides=changes)
        info = shared.info_of_encoder(encoder, info.vectors, info.truncated)
    written = info.vectors * (length or 0) * (2 if made.options["vector_dtype"] == "float16" else 4)
    check_recipe(settings, info.dim, info.vectors, output.partial, written)
    with output.folder() as (work, counts):
        if length is None:
            link_vectors(old, work)
        else:
            truncate_vectors(
                old, work, encoder.dim, bool(encoder.describe().get("normalize")), made.options["vector_dtype"]
            )
        if (old / INDEX_ENCODER).is_dir():
            artifacts.hard_link(old / INDEX_ENCODER, work / INDEX_ENCODER)
        counts |= shared.finish(settings, work, info)
    console.note(f"encode: {output.path}: {console.counted(vector=info.vectors)} of {old}, {counts['factory']}")
    return output.path


def combine_indexes(settings: jobs.CombinedIndexes, folders: list[Path]) -> Path:
    """Combine two dense indexes of one corpus into an index of the combined encoder."""
    opened = [open_dense(path) for path in folders]
    if not opened[0].docids.equals(opened[1].docids):
        problem = f"{folders[1]}: has other documents than {folders[0]}; encode one collection with both models"
        raise InputError(problem, code="other-corpus", path=folders[1], other=folders[0])
    manifests = [artifacts.read_manifest(path) for path in folders]
    check_encoders(settings, jobs.TWO_INDEXES, dict(zip(folders, manifests, strict=True)))
    settings = shared.with_type(settings, False)
    changes = (manifests[0].options["contract"], manifests[1].options["contract"])
    recipe = CombinationRecipe(settings.combine, settings.weight, changes)
    inputs = {"vectors": folders[0], "second vectors": folders[1], **texts_and_model(manifests[0])}
    options = shared.without_contract(settings.recorded(job=jobs.TWO_INDEXES))
    options |= {"contract": {}, "changes": list(changes)}
    dtypes = [manifest.options["dtype"] for manifest in manifests if "dtype" in manifest.options]
    options |= {"dtype": dtypes[0]} if dtypes else {}
    output = artifacts.output_of(settings, Kind.DENSE_INDEX, inputs, options)
    if output.up_to_date:
        return shared.check_recall(settings, output)
    parts = [query_encoder(index, device=settings.device) for index in opened]
    refuse_equal(parts, folders)
    encoder = Combination(recipe, parts)
    total, truncated = len(opened[0].docids), max(index.info.truncated for index in opened)
    shared.check_space(settings, encoder.dim, total, output)
    with output.folder() as (work, counts):
        composite.write_combination(
            work / INDEX_ENCODER, [model_of(index) for index in opened], recipe, artifacts.hard_link
        )
        combine_vectors(opened, work, encoder.document_vectors, settings)
        counts |= shared.finish(settings, work, shared.info_of_encoder(encoder, total, truncated))
    console.note(
        f"encode: {output.path}: {console.counted(vector=total)} of {folders[0]} and {folders[1]}, "
        f"{encoder.dim} dimensions"
    )
    return output.path


def texts_and_model(made: Manifest) -> dict[str, artifacts.Input]:
    """Return the corpora and the model of an index, as recorded: for texts of hits and for encoding queries."""
    return {**recorded_corpora(made), **recorded_model_input(made)}


def check_encoders(settings: jobs.RebuiltIndex | jobs.CombinedIndexes, job: str, made: Mapping[Path, Manifest]) -> None:
    """Refuse options that the encoders of dense indexes do not have: static ones need no device.

    Args:
        settings: options of the job.
        job: the job, in the words of its declaration.
        made: index -> its manifest.
    """
    static = not any(TRANSFORMER_INDEX in index_kinds(manifest_of_index) for manifest_of_index in made.values())
    subject = ", ".join(kind_in_words(path, manifest_of_index) for path, manifest_of_index in made.items())
    settings.check_facts(subject, job=job, encoder=jobs.OF_STATIC if static else jobs.OF_TRANSFORMER)


def import_vectors(settings: jobs.ImportedVectors, path: Path, source: Path, kind: Kind) -> Path:
    """Write vectors of another tool as a dense index, or as vectors of queries.

    Args:
        settings: options of the job.
        path: file of the vectors.
        source: file of their documents or queries.
        kind: kind of the output.
    """
    model = as_names(settings.model)[0] if "model" in settings.given else None
    encoder_kind = shared.encoder_of([resolve(model)]) if model else ""
    subject = f"{model} is {encoder_kind}" if model else f"{path} has no --model that computed it"
    facts = {"job": jobs.IMPORTED_VECTORS, "encoder": encoder_kind}
    if model and kind_of(resolve(model)) == SPARSE:
        subject, facts = f"{model} is {jobs.SPARSE_TEXTS}", {"job": jobs.SPARSE_TEXTS}
    settings.check_facts(subject, **facts)
    if kind == Kind.DENSE_INDEX:
        settings = shared.with_type(settings, False)
    changes = settings.contract()
    if model is not None:
        changes = {**preset_fields(settings.preset, resolve(model)), **changes}
    transformer = encoder_kind == jobs.OF_TRANSFORMER
    dtype: Any = shared.precision(settings, encoder_kind) if transformer else ""
    recorded = shared.without_contract(settings.recorded(**facts))
    inputs: dict[str, artifacts.Input] = {"corpus" if kind == Kind.DENSE_INDEX else "queries": source, "vectors": path}
    inputs |= {"ids": settings.ids} if settings.ids else {}
    inputs |= {"model": model_input(model)} if model else {}
    precise = {} if encoder_kind in (jobs.OF_STATIC, jobs.OF_ENDPOINT) else {"dtype": dtype}
    output = artifacts.output_of(settings, kind, inputs, {**recorded, "contract": changes, **precise})
    if output.up_to_date:
        return shared.check_recall(settings, output)
    limit_threads(settings.threads)
    vectors, own = read_external(path)
    wanted = collections.docids(source) if kind == Kind.DENSE_INDEX else collections.read_queries(source)["qid"]
    rows = rows_of(len(vectors), own, path, settings.ids, wanted, source)
    info = IndexInfo(*vectors.shape)
    if model is not None:
        encoder = open_encoder(resolve(model), device=settings.device, dtype=dtype, overrides=changes)
        if encoder.dim != info.dim:
            problem = f"{path}: vectors of {info.dim} values; {model} computes {encoder.dim}"
            raise InputError(problem, code="other-width", path=path, value=info.dim, expected=encoder.dim)
        info = shared.info_of_encoder(encoder, info.vectors, 0)
    if kind == Kind.DENSE_INDEX:
        shared.check_space(settings, info.dim, info.vectors, output)
    with output.folder() as (work, counts):
        with console.progress("import", info.vectors, "vectors") as advance:
            write_external(work, vectors, path, rows, wanted, settings, advance)
        counts |= shared.finish(settings, work, info, kind)
    what = "documents" if kind == Kind.DENSE_INDEX else "queries"
    console.note(f"encode: {output.path}: vectors of {info.vectors:,} {what} from {path}, {info.dim} dimensions")
    return output.path
