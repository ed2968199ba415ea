"""Vectors of another tool to a dense index, or to vectors of queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.artifacts.opening import limit_threads
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands.common import as_names
from hybrid_cli.commands.retrieval import IMPORTED_VECTORS, OF_STATIC, OF_TRANSFORMER, SPARSE_TEXTS, ImportedVectors
from hybrid_cli.encoders.contract import SPARSE, kind_of, preset_fields
from hybrid_cli.encoders.models import open_encoder, pick_device, resolve
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.dense import IndexInfo
from hybrid_cli.indexes.external import read_external, rows_of, write_external
from hybrid_cli.stages.encode import encoding, indexing
from hybrid_cli.storage import Kind


def import_vectors(settings: ImportedVectors, path: Path, source: Path, kind: Kind) -> Path:
    """Write vectors of another tool as a dense index, or as vectors of queries.

    Args:
        settings: options of the job.
        path: file of the vectors.
        source: file of their documents or queries.
        kind: kind of the output.
    """
    model = as_names(settings.model)[0] if "model" in settings.given else None
    encoder_kind = encoding.encoder_of([resolve(model)]) if model else ""
    subject = f"{model} is {encoder_kind}" if model else f"{path} has no --model that computed it"
    facts = {"job": IMPORTED_VECTORS, "encoder": encoder_kind}
    if model and kind_of(resolve(model)) == SPARSE:
        subject, facts = f"{model} is {SPARSE_TEXTS}", {"job": SPARSE_TEXTS}
    settings.check_facts(subject, **facts)
    if kind == Kind.DENSE_INDEX:
        settings = indexing.with_type(settings, False)
    changes = settings.contract()
    if model is not None:
        changes = {**preset_fields(settings.preset, resolve(model)), **changes}
    transformer = encoder_kind == OF_TRANSFORMER
    dtype: Any = encoding.precision(settings.dtype, pick_device(settings.device)) if transformer else ""
    recorded = indexing.without_contract(settings.recorded(**facts))
    inputs: dict[str, artifacts.Input] = {"corpus" if kind == Kind.DENSE_INDEX else "queries": source, "vectors": path}
    inputs |= {"ids": settings.ids} if settings.ids else {}
    inputs |= {"model": model_input(model)} if model else {}
    precise = {} if encoder_kind == OF_STATIC else {"dtype": dtype}
    output = artifacts.output_of(settings, kind, inputs, {**recorded, "contract": changes, **precise})
    if output.up_to_date:
        return indexing.check_recall(settings, output)
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
        info = indexing.info_of_encoder(encoder, info.vectors, 0)
    if kind == Kind.DENSE_INDEX:
        indexing.check_space(settings, info.dim, info.vectors, output)
    with output.folder() as (work, counts):
        with console.progress("import", info.vectors, "vectors") as advance:
            write_external(work, vectors, path, rows, wanted, settings, advance)
        counts |= indexing.finish(settings, work, info, kind)
    what = "documents" if kind == Kind.DENSE_INDEX else "queries"
    console.note(f"encode: {output.path}: vectors of {info.vectors:,} {what} from {path}, {info.dim} dimensions")
    return output.path
