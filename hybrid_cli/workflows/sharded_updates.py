"""Sharded lexical indexes: manifests of the shards, and a new index after a change of their documents.

A change writes only the shards that lose documents, and one shard of the added documents. The statistics of the
collection, which determine all scores, are stored apart from the postings, so the other shards share their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Output
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import path_error
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.build import build_shards, store_statistics
from hybrid_cli.lexical.impacts import Postings, PostingsBuilder
from hybrid_cli.lexical.index import LexicalIndex, read_parameters
from hybrid_cli.lexical.options import field_weight
from hybrid_cli.opening.exact import index_kinds
from hybrid_cli.opening.sharded import docids_of, shards_of
from hybrid_cli.settings import Append, Delete
from hybrid_cli.storage import Kind, disk, layout
from hybrid_cli.workflows.updates import Change

_STATISTICS = (layout.COLLECTION, layout.COLLECTION_DF)


def write_manifests(output: Output, work: Path, language: str) -> dict[str, Any]:
    """Write the manifest of every shard in `work`; return the counts of the sharded index."""
    shards = sorted(work.glob(layout.SHARDS))
    documents, stored = 0, read_parameters(shards[0])
    for number, shard in enumerate(shards):
        counts = LexicalIndex.load(shard, language, (stored["k1"], stored["b"])).counts()
        documents += counts["documents"]
        counts |= {"shard": number, "shards": len(shards)}
        manifest = output.manifest.of_part(shard, output.path / shard.name, Kind.LEXICAL_INDEX, counts)
        disk.write_text(shard / artifacts.MANIFEST, manifest.to_json())
    artifacts.refuse_lost(shard / artifacts.MANIFEST for shard in shards)
    return {"documents": documents, "shards": len(shards), "k1": stored["k1"], "b": stored["b"]}


def write_sharded_change(settings: Append | Delete, change: Change, inputs: Mapping[str, artifacts.Input]) -> Path:
    """Write the sharded index after a change to the output of a command, unless it is up to date.

    A shard without documents is left out.

    Args:
        settings: settings of the command.
        change: the change.
        inputs: role -> path of other inputs.

    Raises:
        InputError: no documents are left, or a shard is missing.
    """
    index, manifest = change.index, change.manifest
    masks = {shard: ~docids_of(shard).is_in(change.removed.implode()) for shard in shards_of(index)}
    kept = {shard: mask for shard, mask in masks.items() if mask.any()}
    total = collections.document_count(change.added) if change.added else 0
    if not kept and not total:
        raise path_error(index, "no documents would be left; name fewer ids", code="no-documents")
    number = len(kept) + (total > 0)
    options = manifest.options | {"shards": number} | settings.recorded(index_kind=index_kinds(manifest))
    output = artifacts.output_of(settings, Kind.SHARDS, {"index": index, **inputs, **change.corpora}, options)
    if output.up_to_date:
        return output.path
    change.warn_lost()
    first = next(iter(kept or masks))
    artifacts.check_parts(first, layout.PARAMETERS)
    left = sum(int(mask.sum()) for mask in kept.values())
    if change.added:
        jvm.start(settings.java_heap)  # of the analyzer
    with output.folder() as (work, counts):
        for place, (shard, mask) in enumerate(kept.items()):
            if not (work / layout.shard(place)).is_dir():
                with artifacts.replacing(work / layout.shard(place)) as scratch:
                    _keep(shard, mask, scratch)
        if change.added:
            fields = options["fields"]
            added = partial(change.documents, [field_weight(each)[0] for each in fields])
            with console.progress(settings.command, total, "documents") as advance:
                build_shards(added, work, fields, options["language"], [total], advance, first=len(kept))
            artifacts.hard_link(first / layout.PARAMETERS, work / layout.shard(len(kept)) / layout.PARAMETERS)
        else:
            store_statistics(work)
        counts |= write_manifests(output, work, options["language"])
        artifacts.refuse_lost_rows(work, "documents", counts["documents"], left + total)
    removed = sum(map(len, masks.values())) - left
    console.note(
        f"{settings.command}: {output.path}: {console.counted(document=left + total)} in "
        f"{console.counted(shard=number)}: {left:,} of {index}, {removed:,} removed, {total:,} added"
    )
    return output.path


def _keep(shard: Path, kept: pl.Series, folder: Path) -> None:
    """Write a shard without some of its documents and without statistics of the collection; link equal files."""
    artifacts.check_parts(shard, layout.IMPACTS, layout.DOCIDS, layout.PARAMETERS)
    folder.mkdir()
    artifacts.hard_link(shard / layout.PARAMETERS, folder / layout.PARAMETERS)
    if kept.all():
        artifacts.hard_link(shard / layout.DOCIDS, folder / layout.DOCIDS)
        (folder / layout.IMPACTS).mkdir()
        for part in sorted((shard / layout.IMPACTS).iterdir()):
            if part.name not in _STATISTICS:
                artifacts.hard_link(part, folder / layout.IMPACTS / part.name)
        return
    nothing = PostingsBuilder().finish()
    Postings.open(shard / layout.IMPACTS).extended(kept.to_numpy(), nothing).save(folder / layout.IMPACTS)
    with disk.create(folder / layout.DOCIDS) as file:
        pl.DataFrame({"docid": docids_of(shard).filter(kept)}).write_parquet(file, compression="zstd")
