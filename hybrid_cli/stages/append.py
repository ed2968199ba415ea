"""`append`: add documents to an index."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import console
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import InputError
from hybrid_cli.opening.exact import kind_in_words
from hybrid_cli.opening.sharded import ids_of, index_manifest
from hybrid_cli.settings import Append
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind
from hybrid_cli.workflows.updates import Change, kinds_of_change, write_change, write_sharded_change


@stage(Append)
def append(settings: Append) -> Path:
    """Write an index with the documents of another index and of a corpus.

    Returns:
        Folder of the index.

    Raises:
        InputError: a document is in the index already, or the encoder of a dense index is missing or has changed.
        HybridError: Java is missing, or a vector is not finite.
    """
    index, manifest = settings.index, index_manifest(settings.index, sharded=True)
    settings.check_facts(kind_in_words(index, manifest), index_kind=kinds_of_change(manifest))
    corpus = collections.corpus_path(settings.collection)
    known = ids_of(index)
    common = known.filter(known.is_in(collections.docids(corpus).implode()))
    if len(common) and not settings.replace:
        raise InputError(
            f"{corpus}: {console.counted(document=len(common))} already in {index} ({common[0]}, ...); pass --replace "
            "to replace them",
            code="duplicate-id", path=corpus, index=index, id=common[0], count=len(common),
        )  # fmt: skip
    write = write_sharded_change if manifest.kind == Kind.SHARDS else write_change
    return write(settings, Change(index, manifest, common, settings.output, corpus, overwrite=settings.overwrite), {})
