"""A new index with some documents of another one removed, and others added.

The new index has the files of an index that is built from its documents at once: kept documents in their order, then
added ones. Postings are merged, stored vectors are linked, and only added documents are analyzed or encoded.

Of a sharded index, only the shards that lose documents are written, and one shard of the added documents. The
statistics of the collection, which determine all scores, are stored apart from the postings, so the other shards share
their files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Manifest, Output, Recorded
from hybrid_cli.artifacts.indexes import (
    docids_of,
    index_kinds,
    model_input,
    recorded_corpora,
    recorded_model_input,
    shards_of,
    warn_lost,
    write_manifests,
)
from hybrid_cli.artifacts.opening import encoder_of, limit_threads, open_dense, query_encoder
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Encode, Update, VectorIndex
from hybrid_cli.errors import path_error
from hybrid_cli.indexes.construction import build, check_recipe
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.options import LEARNED, TRANSFORMER_INDEX
from hybrid_cli.indexes.shards import (
    block_encoder,
    block_weights,
    encode_texts,
    encode_weights,
    keep_vectors,
    progress,
    refuse_lost_vectors,
    shard_facts,
    shard_path,
    shards,
    weight_shard,
)
from hybrid_cli.lexical import jvm
from hybrid_cli.lexical.build import Base, build_matrix, build_shards, needs_java, store_statistics
from hybrid_cli.lexical.build import build as build_index
from hybrid_cli.lexical.builder import PostingsBuilder
from hybrid_cli.lexical.impacts import Postings
from hybrid_cli.lexical.index import LexicalIndex, read_parameters
from hybrid_cli.lexical.options import analysis_of, field_weight
from hybrid_cli.memory import cpu_count
from hybrid_cli.storage import Kind, disk, layout

_STATISTICS = (layout.COLLECTION, layout.COLLECTION_DF)
_DOCUMENTS_AT_ONCE = 8192
_OF_FACTORY = ("factory", "m", "nlist", "pq_bytes")  # options of earlier versions that are parts of a factory string
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

    def open_output(self, command: str, inputs: Mapping[str, artifacts.Input], options: Mapping[str, Any]) -> Output:
        """Open the new index as an output.

        Raises:
            InputError: the index was replaced after its ids were read.
        """
        path, kind, inputs = self.output, self.manifest.kind, {**self.inputs, **inputs}
        output = artifacts.open_output(path, kind, command, inputs=inputs, options=options, overwrite=self.overwrite)
        if not output.up_to_date and storage.fingerprint(self.index) != self.manifest.fingerprint:
            raise storage.replaced_error(self.index)
        return output

    def warn_lost(self) -> None:
        """Warn that earlier corpora, which the new index records as well, are missing or have changed."""
        if self.first is None:
            warn_lost(
                recorded_corpora(self.manifest).values(),
                "searches and exports lack texts of its documents; "
                "keep the collection of each `update --add` in a folder of its own",
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


def write_change(settings: Update, change: Change, inputs: Mapping[str, artifacts.Input]) -> Path:
    """Write the index after a change, unless it is up to date. A shard without documents is left out.

    Args:
        settings: settings of the command.
        change: the change.
        inputs: role -> path of other inputs.

    Raises:
        InputError: no documents are left, a shard is missing, or the encoder of the index is missing or has changed.
        HybridError: Java is missing, or a vector is not finite.
    """
    index, manifest = change.index, change.manifest
    if "shard" in manifest.counts:
        raise path_error(index, f"is a shard; name {index.parent}", code="other-kind", kind="shard")
    kept = {part: ~docids_of(part).is_in(change.removed.implode()) for part in shards_of(index)}
    before, left, total = sum(map(len, kept.values())), sum(int(mask.sum()) for mask in kept.values()), change.total
    if not left and not total:
        raise path_error(index, "no documents would be left; name fewer ids", code="no-documents")
    options = change.options
    if manifest.kind == Kind.SHARDS:
        options = options | {"shards": sum(mask.any() for mask in kept.values()) + (total > 0)}
    model = recorded_model_input(manifest) if settings.model is None else {"model": model_input(settings.model)}
    output = change.open_output(settings.command, {**inputs, **model}, options)
    if not output.up_to_date:
        change.warn_lost()
        _writer(manifest)(settings, change, output, kept, total)
        text = f"{left:,} documents left, {before - left:,} removed, {total:,} added"
        output.note(text, documents=left + total)
    return output.path


Kept = Mapping[Path, pl.Series]  # index or shard -> whether each document is kept


def _writer(manifest: Manifest) -> Callable[[Update, Change, Output, Kept, int], None]:
    """Return the function that writes an index of this kind after a change."""
    if manifest.kind == Kind.SHARDS:
        return _write_shards
    if manifest.kind == Kind.DENSE_INDEX:
        return _write_dense
    return _write_learned if LEARNED in kinds_of_change(manifest) else _write_lexical


def _documents(kept: Kept, total: int) -> int:
    return sum(int(mask.sum()) for mask in kept.values()) + total


def _write_lexical(settings: Update, change: Change, output: Output, kept: Kept, total: int) -> None:
    """Write a lexical index after a change: postings are merged, and Lucene's index too."""
    options, index = change.manifest.options, change.index
    lucene = (index / layout.LUCENE).is_dir()
    if needs_java(analysis_of(options), lucene):
        jvm.start()
    with output.folder(ignore=(layout.LUCENE,)) as (work, counts):
        storage.check_parts(index, layout.IMPACTS, layout.DOCIDS, layout.PARAMETERS)
        artifacts.hard_link(index / layout.PARAMETERS, work / layout.PARAMETERS)
        base, threads = Base(index, change.removed), settings.threads or cpu_count()
        with console.progress(settings.command, total, "documents") as advance:
            added = partial(change.documents, [field_weight(field)[0] for field in options["fields"]])
            build_index(added, work, options["fields"], analysis_of(options), threads, advance, base, lucene)
        parameters = read_parameters(work)
        counts |= LexicalIndex.load(work, analysis_of(options), (parameters["k1"], parameters["b"])).counts()
        storage.refuse_lost_rows(work, "documents", counts["documents"], _documents(kept, total))


def _write_shards(settings: Update, change: Change, output: Output, kept: Kept, total: int) -> None:
    """Write a sharded index after a change: a shard of the added documents, and shards that lose some."""
    shards, options = {shard: mask for shard, mask in kept.items() if mask.any()}, change.manifest.options
    first = next(iter(shards or kept))
    storage.check_parts(first, layout.PARAMETERS)
    if total and needs_java(analysis_of(options), with_lucene=False):
        jvm.start()
    with output.folder() as (work, counts):
        for position, (shard, mask) in enumerate(shards.items()):
            if not (work / layout.shard(position)).is_dir():
                with storage.replacing(work / layout.shard(position)) as scratch:
                    _keep(shard, mask, scratch)
        if total:
            fields = options["fields"]
            added = partial(change.documents, [field_weight(field)[0] for field in fields])
            with console.progress(settings.command, total, "documents") as advance:
                build_shards(added, work, fields, analysis_of(options), [total], advance, first=len(shards))
            artifacts.hard_link(first / layout.PARAMETERS, work / layout.shard(len(shards)) / layout.PARAMETERS)
        else:
            store_statistics(work)
        counts |= write_manifests(output, work, analysis_of(options))
        storage.refuse_lost_rows(work, "documents", counts["documents"], _documents(kept, total))


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


def _write_learned(settings: Update, change: Change, output: Output, kept: Kept, total: int) -> None:
    """Write an index of learned weights after a change: weights are merged, and added documents are encoded."""
    limit_threads(settings.threads)
    with output.folder() as (work, counts):
        counts |= _merged_weights(settings, change, work, total)
        storage.refuse_lost_rows(work, "documents", counts["documents"], _documents(kept, total))


def _merged_weights(settings: Update, change: Change, work: Path, total: int) -> dict[str, Any]:
    """Write the index of learned weights after a change into `work`, and return its counts.

    The number of truncated documents is unknown where some were removed.
    """
    counts, options = change.manifest.counts, change.manifest.options
    if total:
        encoder = encoder_of(change.index, change.manifest, settings.model, settings.device)
        texts = (batch.rename_columns(["id", "title", "text"]) for batch in change.documents())
        weighted, size = partial(map, block_weights(encoder, options["quantization"], None)), options["shard_size"]
        with progress(settings.command, partial(weight_shard, work), total, size) as advance:
            encode_weights(work, texts, weighted, size, advance)
        storage.refuse_lost(weight_shard(work, number) for number in range(-(-total // size)))
    new_counts = build_matrix(work, "k1" in counts, Base(change.index, change.removed)).counts()
    before, added = counts.get("truncated"), new_counts.pop("truncated")
    if before is not None and not len(change.removed):
        new_counts["truncated"] = before + added
    return new_counts | {
        name: counts[name] for name in ("encoder", "contract", "k1", "b", "quantization") if name in counts
    }


def _write_dense(settings: Update, change: Change, output: Output, kept: Kept, total: int) -> None:
    """Write a dense index after a change: stored vectors are linked or filtered, and added documents are encoded."""
    limit_threads(settings.threads)
    index, count, encoder = open_dense(change.index), _documents(kept, total), None
    if total:
        encoder = query_encoder(index, settings.model, settings.device, of_documents=True)
    recipe = _recipe(index, change.manifest)
    check_recipe(recipe, index.dim, count, output.partial, 4 * index.dim * total)
    with output.folder() as (work, counts):
        shards_kept = keep_vectors(change.index, work, kept[change.index].to_numpy())
        if encoder is not None:
            batches = (batch.rename_columns(["id", "title", "text"]) for batch in change.documents())

            def added(number: int) -> Path:
                return shard_path(work, shards_kept + number)

            with progress(settings.command, added, total, recipe.shard_size) as advance:
                encoded = partial(map, block_encoder(encoder, False, recipe.batch_tokens))
                encode_texts(work, batches, encoded, False, recipe, advance, encoder.device.type != "cpu", shards_kept)
        counts |= _build_dense(index, work, recipe, count).counts()
        refuse_lost_vectors(work, count)


def _recipe(index: DenseIndex, manifest: Manifest) -> Encode:
    """Return the settings that built a dense index, with the index type that `auto` selected."""
    names = [*VectorIndex.declared(), "shard_size", "vector_dtype"]
    options = {name: manifest.options[name] for name in names if name in manifest.options}
    if options.get("index_type") == "auto":
        options = {name: options[name] for name in names[-2:] if name in options} | {"index_type": index.info.factory}
    elif any(manifest.options.get(name) is not None for name in _OF_FACTORY):
        options |= {"index_type": index.info.factory}
    return Encode(index.folder, output=index.folder, **options)


def _build_dense(index: DenseIndex, work: Path, recipe: Encode, vectors: int) -> IndexInfo:
    """Build the index of the shards in `work`, and return its properties."""
    if (index.folder / layout.INDEX_ENCODER).is_dir():
        artifacts.hard_link(index.folder / layout.INDEX_ENCODER, work / layout.INDEX_ENCODER)
    truncated = sum(shard_facts(path).get("truncated", 0) for path in shards(work))
    with console.progress("index", vectors, "vectors") as advance:
        factory = build(work, recipe, advance)
    return replace(index.info, vectors=vectors, truncated=truncated, factory=factory, recall={})
