"""A new index with some documents of another one removed, and others added.

The new index has the files of an index that is built from its documents at once: kept documents in their order, then
added ones. Postings are merged, stored vectors are linked, and only added documents are analyzed or encoded.

Of a sharded index, only the shards that lose documents are written, and one shard of the added documents. The
statistics of the collection, which determine all scores, are stored apart from the postings, so the other shards share
their files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Manifest, Output, Recorded
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import path_error
from hybrid_cli.indexes.construction import build, check_recipe
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.shards import (
    block_encoder,
    encode_texts,
    keep_vectors,
    progress,
    refuse_lost_vectors,
    shard_facts,
    shard_path,
    shards,
)
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.build import build_shards, needs_java, store_statistics
from hybrid_cli.lexical.builder import PostingsBuilder
from hybrid_cli.lexical.impacts import Postings
from hybrid_cli.lexical.index import LexicalIndex, read_parameters
from hybrid_cli.lexical.options import field_weight
from hybrid_cli.memory import cpu_count
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.opening.exact import index_kinds, limit_threads, query_encoder
from hybrid_cli.opening.lexical import encoder_of
from hybrid_cli.opening.models import model_input, recorded_model_input
from hybrid_cli.opening.provenance import recorded_corpora, warn_lost
from hybrid_cli.opening.sharded import docids_of, shards_of
from hybrid_cli.settings import Append, Delete, Encode, Update, VectorIndex
from hybrid_cli.settings.common import OnDevice
from hybrid_cli.settings.retrieval import LEARNED, TRANSFORMER_INDEX
from hybrid_cli.storage import Kind, disk, layout

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
        disk.write_text(shard / storage.MANIFEST, manifest.to_json())
    storage.refuse_lost(shard / storage.MANIFEST for shard in shards)
    return {"documents": documents, "shards": len(shards), "k1": stored["k1"], "b": stored["b"]}


def write_sharded_change(settings: Command, change: Change, inputs: Mapping[str, artifacts.Input]) -> Path:
    """Write the sharded index after a change, unless it is up to date.

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
    total = change.total
    if not kept and not total:
        raise path_error(index, "no documents would be left; name fewer ids", code="no-documents")
    number = len(kept) + (total > 0)
    options = change.options | {"shards": number} | settings.recorded(index_kind=index_kinds(manifest))
    output = change.open_output(settings, inputs, options)
    if output.up_to_date:
        return output.path
    change.warn_lost()
    first = next(iter(kept or masks))
    storage.check_parts(first, layout.PARAMETERS)
    left = sum(int(mask.sum()) for mask in kept.values())
    if total and needs_java(options["language"], with_lucene=False):
        jvm.start(settings.java_heap)
    with output.folder() as (work, counts):
        for position, (shard, mask) in enumerate(kept.items()):
            if not (work / layout.shard(position)).is_dir():
                with storage.replacing(work / layout.shard(position)) as scratch:
                    _keep(shard, mask, scratch)
        if total:
            fields = options["fields"]
            added = partial(change.documents, [field_weight(field)[0] for field in fields])
            with console.progress(settings.command, total, "documents") as advance:
                build_shards(added, work, fields, options["language"], [total], advance, first=len(kept))
            artifacts.hard_link(first / layout.PARAMETERS, work / layout.shard(len(kept)) / layout.PARAMETERS)
        else:
            store_statistics(work)
        counts |= write_manifests(output, work, options["language"])
        storage.refuse_lost_rows(work, "documents", counts["documents"], left + total)
    removed = sum(map(len, masks.values())) - left
    console.note(
        f"{settings.command}: {output.path}: {console.counted(document=left + total)} in "
        f"{console.counted(shard=number)}: {left:,} of {index}, {removed:,} removed, {total:,} added",
        code="written", path=output.path, documents=left + total, removed=removed, added=total, shards=number,
    )  # fmt: skip
    return output.path


def _keep(shard: Path, kept: pl.Series, folder: Path) -> None:
    """Write a shard without some of its documents and without statistics of the collection; link equal files."""
    storage.check_parts(shard, layout.IMPACTS, layout.DOCIDS, layout.PARAMETERS)
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


_DOCUMENTS_AT_ONCE = 8192


Command = Append | Delete | Update
_REPLACED = ("index", "ids", "vectors", "second vectors")  # roles of inputs that another corpus makes obsolete


@dataclass(frozen=True)
class Change:
    """A change of the documents of an index.

    Attributes:
        index: the index.
        manifest: its manifest.
        removed: docids to remove.
        output: path of the new index.
        added: corpus whose documents are added.
        first: row of the first added document, if the corpus contains all documents of the new index, which then
            records this corpus only; None if it contains the added ones.
        overwrite: replace an index at `output`.
    """

    index: Path
    manifest: Manifest
    removed: pl.Series
    output: Path
    added: Path | None = None
    first: int | None = None
    overwrite: bool = False

    @property
    def total(self) -> int:
        """Number of added documents."""
        return 0 if self.added is None else collections.document_count(self.added) - (self.first or 0)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the new index; without the former index among its inputs, they name its content."""
        return self.manifest.options | ({} if self.first is None else {"previous": self.manifest.fingerprint})

    @property
    def inputs(self) -> Mapping[str, artifacts.Input]:
        """Role -> corpora that contain the documents of the new index, and its origin; lost or not."""
        corpora = recorded_corpora(self.manifest)
        if self.first is None:
            every: list[Path | Recorded] = [*corpora.values()]
            every += [self.added] if self.added else []
            return {"index": self.index} | {f"texts {number}": corpus for number, corpus in enumerate(every, 1)}
        assert self.added is not None
        roles = [role for role in self.manifest.inputs if role not in (*corpora, *_REPLACED)]
        recorded = {role: artifacts.recorded_input(self.manifest, role) for role in roles}
        return {"corpus": self.added, **{role: source for role, source in recorded.items() if source is not None}}

    def open_output(
        self, settings: Command, inputs: Mapping[str, artifacts.Input], options: Mapping[str, Any]
    ) -> Output:
        """Open the new index as an output.

        Raises:
            InputError: the index was replaced after its ids were read.
        """
        output = artifacts.open_output(
            self.output, self.manifest.kind, settings.command,
            inputs={**self.inputs, **inputs}, options=options, overwrite=self.overwrite,
        )  # fmt: skip
        if not output.up_to_date and storage.fingerprint(self.index) != self.manifest.fingerprint:
            raise storage.replaced_error(self.index)
        return output

    def warn_lost(self) -> None:
        """Warn that earlier corpora, which the new index records as well, are missing or have changed."""
        if self.first is None:
            warn_lost(
                recorded_corpora(self.manifest).values(),
                "searches and exports lack texts of its documents; "
                "keep the collection of each `append` in a folder of its own",
            )

    def documents(self, fields: Iterable[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the added documents, with some of their fields besides title and text."""
        if self.added is None:
            return
        left = self.first or 0
        for batch in collections.documents(self.added, _DOCUMENTS_AT_ONCE, fields):
            if left < len(batch):
                yield batch.slice(left)
            left = max(0, left - len(batch))


def kinds_of_change(manifest: Manifest) -> frozenset[str]:
    """Return the kinds of an index for options of its documents; DeepCT's encoder weighs documents, but no queries."""
    learned = manifest.kind == Kind.LEXICAL_INDEX and "encoder" in manifest.counts
    return frozenset({LEARNED, TRANSFORMER_INDEX}) if learned else index_kinds(manifest)


def write_change(settings: Command, change: Change, inputs: Mapping[str, artifacts.Input]) -> Path:
    """Write the index after a change, unless it is up to date.

    Args:
        settings: settings of the command.
        change: the change.
        inputs: role -> path of other inputs.

    Raises:
        InputError: no documents are left, or the encoder of the index is missing or has changed.
        HybridError: Java is missing, or a vector is not finite.
    """
    manifest = change.manifest
    if "shard" in manifest.counts:
        raise path_error(change.index, f"is a shard; name {change.index.parent}", code="other-kind", kind="shard")
    kept = ~docids_of(change.index).is_in(change.removed.implode())
    if change.added is None and not kept.any():
        raise path_error(change.index, "no documents would be left; name fewer ids", code="no-documents")
    given = getattr(settings, "model", None)
    model = recorded_model_input(manifest) if given is None else {"model": model_input(given)}
    options = change.options | settings.recorded(index_kind=kinds_of_change(manifest))
    output = change.open_output(settings, {**inputs, **model}, options)
    if output.up_to_date:
        return output.path
    change.warn_lost()
    total = change.total
    if LEARNED in kinds_of_change(manifest):
        limit_threads(settings.threads)
        with output.folder() as (work, counts):
            counts |= _change_learned(change, work, settings, total)
            storage.refuse_lost_rows(work, "documents", counts["documents"], int(kept.sum()) + total)
    elif manifest.kind == Kind.LEXICAL_INDEX:
        if needs_java(manifest.options["language"], (change.index / layout.LUCENE).is_dir()):
            jvm.start(settings.java_heap)
        with output.folder(ignore=(layout.LUCENE,)) as (work, counts):
            counts |= _change_lexical(change, work, settings, total)
            storage.refuse_lost_rows(work, "documents", counts["documents"], int(kept.sum()) + total)
    else:
        limit_threads(settings.threads)
        _change_dense(change, output, settings, kept, total)
    left = int(kept.sum())
    console.note(
        f"{settings.command}: {output.path}: {console.counted(document=left + total)}: {left:,} of {change.index}, "
        f"{len(kept) - left:,} removed, {total:,} added",
        code="written", path=output.path, documents=left + total, removed=len(kept) - left, added=total,
    )  # fmt: skip
    return output.path


def _change_lexical(change: Change, work: Path, settings: Command, total: int) -> dict[str, Any]:
    """Write the lexical index after a change into `work`, and return its counts."""
    from hybrid_cli.lexical.build import Base, build
    from hybrid_cli.lexical.index import LexicalIndex, read_parameters

    options, index = change.manifest.options, change.index
    storage.check_parts(index, layout.IMPACTS, layout.DOCIDS, layout.PARAMETERS)
    artifacts.hard_link(index / layout.PARAMETERS, work / layout.PARAMETERS)
    base, threads = Base(index, change.removed), settings.threads or cpu_count()
    with console.progress(settings.command, total, "documents") as advance:
        added = partial(change.documents, [field_weight(field)[0] for field in options["fields"]])
        lucene = (index / layout.LUCENE).is_dir()
        build(added, work, options["fields"], options["language"], threads, advance, base, lucene)
    parameters = read_parameters(work)
    return LexicalIndex.load(work, options["language"], (parameters["k1"], parameters["b"])).counts()


def _model_and_device(settings: Command) -> tuple[str | None, str]:
    """Return the encoder in place of that of an index, if the command can name one, and its device."""
    return getattr(settings, "model", None), getattr(settings, "device", OnDevice.device)


def _change_learned(change: Change, work: Path, settings: Command, total: int) -> dict[str, Any]:
    """Write the index of learned weights after a change into `work`, and return its counts.

    The number of truncated documents is unknown where some were removed.
    """
    from hybrid_cli.lexical.build import Base
    from hybrid_cli.workflows.sparse_encoding import build_matrix, encode_documents, weight_shard

    counts, options = change.manifest.counts, change.manifest.options
    if total:
        model, device = _model_and_device(settings)
        encoder = encoder_of(change.index, change.manifest, model, device)
        recipe = Encode(
            change.added, output=work, shard_size=options["shard_size"], device=device,
            batch_tokens=getattr(settings, "batch_tokens", None),
        )  # fmt: skip
        texts = (batch.rename_columns(["id", "title", "text"]) for batch in change.documents())
        resolved = {"steps": options["quantization"], "dtype": options["dtype"], "contract": options["contract"]}
        with progress(settings.command, partial(weight_shard, work), total, recipe.shard_size) as advance:
            encode_documents(recipe, encoder, work, texts, total, resolved, advance)
        storage.refuse_lost(weight_shard(work, number) for number in range(-(-total // recipe.shard_size)))
    new_counts = build_matrix(work, "k1" in counts, Base(change.index, change.removed)).counts()
    before, added = counts.get("truncated"), new_counts.pop("truncated")
    if before is not None and not len(change.removed):
        new_counts["truncated"] = before + added
    return new_counts | {
        name: counts[name] for name in ("encoder", "contract", "k1", "b", "quantization") if name in counts
    }


def _change_dense(change: Change, output: artifacts.Output, settings: Command, kept: pl.Series, total: int) -> None:
    """Write the dense index after a change: stored vectors are linked or filtered, and added documents are encoded."""
    index, count = open_dense(change.index), int(kept.sum()) + total
    encoder = None
    if total:
        encoder = query_encoder(index, *_model_and_device(settings), of_documents=True)
    recipe = _recipe(index, change.manifest, getattr(settings, "batch_tokens", None))
    check_recipe(recipe, index.dim, count, output.partial, 4 * index.dim * total)
    with output.folder() as (work, counts):
        shards_kept = keep_vectors(change.index, work, kept.to_numpy())
        if encoder is not None:
            batches = (batch.rename_columns(["id", "title", "text"]) for batch in change.documents())

            def added(number: int) -> Path:
                return shard_path(work, shards_kept + number)

            with progress(settings.command, added, total, recipe.shard_size) as advance:
                encoded = partial(map, block_encoder(encoder, False, recipe.batch_tokens))
                encode_texts(work, batches, encoded, False, recipe, advance, shards_kept)
        counts |= _build_dense(index, work, recipe, count).counts()
        refuse_lost_vectors(work, count)


def _recipe(index: DenseIndex, manifest: Manifest, batch_tokens: int | None) -> Encode:
    """Return the settings that built a dense index, with the index type that `auto` selected."""
    names = [*VectorIndex.declared(), "shard_size", "vector_dtype"]
    options = {name: manifest.options[name] for name in names if name in manifest.options}
    if options.get("index_type") == "auto":
        options = {name: options[name] for name in names[-2:] if name in options} | {"factory": index.info.factory}
    return Encode(index.folder, output=index.folder, batch_tokens=batch_tokens, **options)


def _build_dense(index: DenseIndex, work: Path, recipe: Encode, vectors: int) -> IndexInfo:
    """Build the index of the shards in `work`, and return its properties."""
    if (index.folder / layout.INDEX_ENCODER).is_dir():
        artifacts.hard_link(index.folder / layout.INDEX_ENCODER, work / layout.INDEX_ENCODER)
    truncated = sum(shard_facts(path).get("truncated", 0) for path in shards(work))
    with console.progress("index", vectors, "vectors") as advance:
        factory = build(work, recipe, advance)
    return replace(index.info, vectors=vectors, truncated=truncated, factory=factory, recall={})
