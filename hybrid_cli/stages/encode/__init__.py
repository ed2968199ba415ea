"""`encode`: encode a corpus as an index or queries as vectors, import vectors, or rebuild or combine dense indexes."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import artifacts
from hybrid_cli.artifacts.opening import limit_threads
from hybrid_cli.commands import Encode
from hybrid_cli.commands.common import as_names
from hybrid_cli.commands.retrieval import DENSE_TEXTS, IMPORTED_VECTORS, ONE_INDEX, SPARSE_TEXTS, TWO_INDEXES
from hybrid_cli.encoders.contract import SPARSE, kind_of, preset_fields
from hybrid_cli.encoders.models import is_endpoint, resolve
from hybrid_cli.errors import refuse_missing
from hybrid_cli.stages import stage
from hybrid_cli.stages.encode.dense import encode_dense
from hybrid_cli.stages.encode.shared import source_of, warn_english_only
from hybrid_cli.stages.encode.stored import combine_indexes, import_vectors, rebuild_index
from hybrid_cli.storage import Kind


@stage(Encode)
def encode(settings: Encode) -> Path:
    """Encode a corpus and build its index, encode queries, import vectors, or rebuild or combine dense indexes.

    A sparse encoder gives a lexical index with learned weights. The job is chosen here, once; each has a function and a
    settings class, which declares its options.

    Memory holds one shard at a time, and the index while FAISS builds it (a flat index is written as a stream). An
    interrupted run resumes with the first missing block of 256 texts (1,024 on a GPU).

    Returns:
        Path of the index, or of the folder of query vectors.

    Raises:
        InputError: inputs or options cannot be used together, or FAISS cannot build such an index.
        HybridError: a vector is not finite.
    """
    source = settings.collection
    manifest = artifacts.find_manifest(source) if source is not None else None
    if source is not None and manifest is not None and manifest.kind == Kind.DENSE_INDEX:
        job = ONE_INDEX if settings.concat_with is None else TWO_INDEXES
        settings.check_facts(f"{source} is a dense index", job=job)
        limit_threads(settings.threads)
        if settings.concat_with is not None:
            return combine_indexes(settings, [source, settings.concat_with])
        return rebuild_index(settings, source, manifest)
    settings.check_facts(f"{source} is not a dense index", job=(DENSE_TEXTS, SPARSE_TEXTS, IMPORTED_VECTORS))
    texts, kind = source_of(settings)
    if settings.from_vectors is not None:
        return import_vectors(settings, settings.from_vectors, texts, kind)
    names = as_names(settings.model)
    if not all(map(is_endpoint, names)):
        refuse_missing("torch", "transformers")
    folders = [*map(resolve, names)]
    if kind == Kind.DENSE_INDEX:
        warn_english_only(texts, names, folders)
    preset = preset_fields(settings.preset, folders[0], sparse=True)
    if architecture := preset.pop("architecture", None):
        settings = settings.changed(architecture=settings.architecture or architecture)
    changes = {**preset, **settings.contract()}
    if settings.architecture is not None or SPARSE in map(kind_of, folders):
        from hybrid_cli.stages.encode.sparse import encode_sparse  # imports torch

        return encode_sparse(settings, texts, changes)
    return encode_dense(settings, texts, kind, folders, changes)
