"""`delete`: delete documents from an index."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from hybrid_cli import console, storage
from hybrid_cli.artifacts import Recorded
from hybrid_cli.errors import InputError
from hybrid_cli.input_files import text_lines
from hybrid_cli.opening.exact import kind_in_words
from hybrid_cli.opening.sharded import ids_of, index_manifest
from hybrid_cli.settings import Delete
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind
from hybrid_cli.workflows.updates import Change, kinds_of_change, write_change, write_sharded_change


@stage(Delete)
def delete(settings: Delete) -> Path:
    """Write an index without some of the documents of another index.

    Returns:
        Folder of the index.

    Raises:
        InputError: an id is not in the index, or no documents would be left.
        HybridError: Java is missing.
    """
    index, manifest = settings.index, index_manifest(settings.index, sharded=True)
    settings.check_facts(kind_in_words(index, manifest), index_kind=kinds_of_change(manifest))
    given = storage.fingerprint(settings.ids)
    ids = pl.Series("docid", text_lines(settings.ids), pl.String).unique(maintain_order=True)
    ids = ids.filter(ids != "")
    unknown = ids.filter(~ids.is_in(ids_of(index).implode()))
    if len(unknown):
        raise InputError(
            f"{settings.ids}: {console.counted(id=len(unknown))} not in {index} ('{unknown[0]}', ...); remove "
            "their lines",
            code="unknown-id", path=settings.ids, index=index, id=unknown[0], count=len(unknown),
        )  # fmt: skip
    if not len(ids):
        raise InputError(f"{settings.ids}: contains no ids; write one per line", code="no-ids", path=settings.ids)
    if storage.fingerprint(settings.ids) != given:
        raise storage.replaced_error(settings.ids)
    write = write_sharded_change if manifest.kind == Kind.SHARDS else write_change
    return write(
        settings,
        Change(index, manifest, ids, settings.output, overwrite=settings.overwrite),
        {"ids": Recorded(settings.ids, "file", given)},
    )
