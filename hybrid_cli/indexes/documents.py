"""The documents of an index: their corpora, and a new index with some of them removed and others added.

The new index has the files of an index that is built from its documents at once: kept documents in their order, then
added ones. Postings are merged, stored vectors are linked, and only added documents are analyzed or encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, Manifest, Named, Recorded, layout
from hybrid_cli.collections import collection as collections
from hybrid_cli.encoders.models import model_input, recorded_model
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.construction import build, check_recipe
from hybrid_cli.indexes.dense import DenseIndex, IndexInfo
from hybrid_cli.indexes.exact import index_kinds, limit_threads, query_encoder
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
from hybrid_cli.memory import cpu_count
from hybrid_cli.settings import Append, Delete, Encode, VectorIndex
from hybrid_cli.settings.retrieval import field_weight

_DOCUMENTS_AT_ONCE = 8192
_REBUILD = "; build the index again with --overwrite, or pass the collection from which it was built"


def corpora_of(manifests: Iterable[Manifest]) -> dict[str, Recorded]:
    """Return role -> corpora that an index records, several after `append`; of indexes, the one that lost fewest."""
    recorded = [_recorded(manifest) for manifest in manifests]
    return min((each for each in recorded if each), key=lambda each: len(_lost(each.values())), default={})


def _recorded(manifest: Manifest, fetch: bool = True) -> dict[str, Recorded]:
    """Return role -> recorded corpora; `fetch` those in an object store."""
    roles = [role for role in manifest.inputs if role.split()[0] in ("corpus", "texts")]
    for role in roles if fetch else ():
        manifest.input_path(role)
    return {role: each for role in roles if (each := artifacts.recorded_input(manifest, role)) is not None}


def _lost(corpora: Iterable[Recorded]) -> dict[Path, str]:
    """Return path -> what happened, for the recorded corpora that are missing or have changed."""
    changed = "has changed since the index was built"
    return {
        corpus.path: f"{corpus.path} {changed if corpus.path.exists() else 'is missing'}"
        for corpus in corpora
        if not corpus.is_unchanged
    }


def warn_lost(corpora: Iterable[Recorded], consequence: str) -> None:
    """Warn that recorded corpora are missing or have changed; the consequence says what to do."""
    if lost := _lost(corpora):
        console.warn(f"{', '.join(lost.values())}: {consequence}")


def found(corpora: Iterable[Recorded]) -> list[Path]:
    """Return the paths of the recorded corpora that are there."""
    return list(dict.fromkeys(corpus.path for corpus in corpora if corpus.path.exists()))


def warn_changed(manifests: Iterable[Manifest]) -> None:
    """Warn that indexes are older than their corpora; hits need no texts, so missing corpora do not count."""
    recorded = [corpus for manifest in manifests for corpus in _recorded(manifest, fetch=False).values()]
    warn_lost((corpus for corpus in recorded if corpus.path.exists()), "hits are of its former documents" + _REBUILD)


def warn_other_corpus(collection: Path, manifests: Iterable[Manifest]) -> None:
    """Warn that titles and texts of hits come from another corpus than that of the indexes.

    An index of a part of the collection belongs to it, and so may one of several corpora (`append`): these are compared
    only where the collection contains them.
    """
    corpus = collections.corpus_path(collection)
    each = [_recorded(manifest, fetch=False) for manifest in manifests]
    recorded = {source.fingerprint: source for roles in each for source in roles.values()}
    if any(artifacts.has_content(corpus, fingerprint) for fingerprint in recorded):
        return
    if inside := [one for one in recorded.values() if one.path.resolve().is_relative_to(corpus.resolve())]:
        warn_lost(inside, "scores and texts are of different documents" + _REBUILD)
    elif len(recorded) == 1 and all("corpus" in roles for roles in each if roles):
        (source,) = recorded.values()
        console.warn(
            f"{corpus} is not the corpus of the index, {source.path}: texts may be missing or of other documents; "
            "pass the collection from which the index was built"
        )


def refuse_other_corpora(indexes: Mapping[Path, Manifest]) -> None:
    """Refuse to search indexes of different corpora together; an index without one recorded corpus is not checked.

    Raises:
        InputError: names both indexes and both corpora.
    """
    known = [(index, manifest) for index, manifest in indexes.items() if "corpus" in manifest.inputs]
    for index, manifest in known[1:]:
        first, other = known[0]
        if manifest.inputs["corpus"]["fingerprint"] != other.inputs["corpus"]["fingerprint"]:
            paths = f"{manifest.input_path('corpus')}, not {other.input_path('corpus')}"
            raise InputError(f"{index}: has another corpus than {first} ({paths}); build both indexes from one corpus")


def texts(corpora: Iterable[Path], docids: pl.Series) -> pl.DataFrame:
    """Return docid, title and text of documents; a later corpus replaces the documents of earlier ones."""
    found = pl.concat([collections.texts(corpus, docids) for corpus in corpora])
    return found.unique("docid", keep="last", maintain_order=True)


def check_corpus(index: Path, corpus: Path) -> None:
    """Check that a lexical index was built from a corpus.

    Raises:
        InputError: it was built from other documents.
    """
    made_from = artifacts.read_manifest(index, Kind.LEXICAL_INDEX).inputs
    known = {source["fingerprint"] for source in made_from.values()}
    if "index" in made_from:  # of several corpora
        same = set(docids_of(index)) == set(collections.docids(corpus))
    else:
        same = not known or artifacts.fingerprint(corpus) in known
    if not same:
        raise InputError(
            f"{index}: built from another corpus than {corpus}; build an index of this corpus with `hybrid index-bm25`"
        )


def docids_of(index: Path) -> pl.Series:
    """Return the ids of an index, by row."""
    artifacts.check_parts(index, layout.DOCIDS)
    return pl.read_parquet(artifacts.validate_parquet(index / layout.DOCIDS))["docid"]


@dataclass(frozen=True)
class Change:
    """A change of the documents of an index.

    Attributes:
        index: the index.
        manifest: its manifest.
        removed: docids to remove.
        added: corpus whose documents are added.
    """

    index: Path
    manifest: Manifest
    removed: pl.Series
    added: Path | None = None

    @property
    def corpora(self) -> dict[str, Path | Recorded]:
        """Role -> corpora that contain the documents of the new index; earlier ones as recorded, lost or not."""
        every: list[Path | Recorded] = [*corpora_of([self.manifest]).values()]
        every += [self.added] if self.added else []
        return {f"texts {number}": each for number, each in enumerate(every, 1)}

    def warn_lost(self) -> None:
        """Warn that earlier corpora, which the new index records as well, are missing or have changed."""
        warn_lost(
            corpora_of([self.manifest]).values(),
            "searches and exports lack texts of its documents; "
            "keep the collection of each `append` in a folder of its own",
        )

    @property
    def model(self) -> dict[str, Path | Named]:
        """The recorded encoder of a dense index, as an input."""
        recorded, path = recorded_model(self.manifest), self.manifest.input_path("model")
        there = recorded is not None and (path is None or path.exists())
        return {"model": model_input(recorded)} if there and recorded is not None else {}

    def documents(self, fields: Iterable[str] = ()) -> Iterable[pa.RecordBatch]:
        """Return the added documents, with some of their fields besides title and text."""
        return [] if self.added is None else collections.documents(self.added, _DOCUMENTS_AT_ONCE, fields)


def write_change(settings: Append | Delete, change: Change, inputs: Mapping[str, Path]) -> Path:
    """Write the index after a change to the output of a command, unless it is up to date.

    Args:
        settings: settings of the command.
        change: the change.
        inputs: role -> path of other inputs.

    Raises:
        InputError: no documents are left, or the encoder of a dense index is missing or has changed.
        HybridError: Java is missing, or a vector is not finite.
    """
    manifest = change.manifest
    if "shard" in manifest.counts:
        raise InputError(f"{change.index}: is a shard; name the sharded index, {change.index.parent}")
    if manifest.kind == Kind.LEXICAL_INDEX and "encoder" in manifest.counts:
        raise InputError(f"{change.index}: has learned weights; encode the changed collection with `hybrid encode`")
    kept = ~docids_of(change.index).is_in(change.removed.implode())
    if change.added is None and not kept.any():
        raise InputError(f"{change.index}: no documents would be left; name fewer ids")
    output = artifacts.output_of(
        settings,
        manifest.kind,
        {"index": change.index, **inputs, **change.corpora, **change.model},
        manifest.options | settings.recorded(index_kind=index_kinds(manifest)),
    )
    if output.up_to_date:
        return output.path
    change.warn_lost()
    total = collections.document_count(change.added) if change.added else 0
    if manifest.kind == Kind.LEXICAL_INDEX:
        from hybrid_cli.lexical import jvm

        _forecast(settings, change, int(kept.sum()), total, output.partial)
        jvm.start(settings.java_heap)
        with output.folder(ignore=(layout.LUCENE,)) as (work, counts):
            counts |= _change_lexical(change, work, settings, total)
            artifacts.refuse_lost_rows(work, "documents", counts["documents"], int(kept.sum()) + total)
    else:
        limit_threads(settings.threads)
        index = DenseIndex.open(change.index)
        encoder = None
        if isinstance(settings, Append):
            encoder = query_encoder(index, settings.model, settings.device, of_documents=True)
        recipe = _recipe(index, manifest, getattr(settings, "batch_tokens", None))
        check_recipe(recipe, index.dim, int(kept.sum()) + total, output.partial, 4 * index.dim * total)
        with output.folder() as (work, counts):
            shards_kept = keep_vectors(change.index, work, kept.to_numpy())
            if encoder is not None:
                batches = (batch.rename_columns(["id", "title", "text"]) for batch in change.documents())

                def added(number: int) -> Path:
                    return shard_path(work, shards_kept + number)

                with progress(settings.command, added, total, recipe.shard_size) as advance:
                    encoded = partial(map, block_encoder(encoder, False, recipe.batch_tokens))
                    encode_texts(work, batches, encoded, False, recipe, advance, shards_kept)
            counts |= _build_dense(index, work, recipe, int(kept.sum()) + total).counts()
            refuse_lost_vectors(work, int(kept.sum()) + total)
    left = int(kept.sum())
    console.note(
        f"{settings.command}: {output.path}: {console.counted(document=left + total)}: {left:,} of {change.index}, "
        f"{len(kept) - left:,} removed, {total:,} added"
    )
    return output.path


def _forecast(settings: Append | Delete, change: Change, kept: int, added: int, place: Path) -> None:
    """Refuse a lexical index after a change that does not fit; added documents count as long as those of the index."""
    from hybrid_cli.lexical.build import disk_of, memory_of

    counts, purpose = change.manifest.counts, f"{settings.command}: {kept + added:,} documents"
    each = counts["postings"] / max(1, counts["documents"])
    console.forecast(memory_of(each * added, each * kept), purpose, "append fewer documents at once" if added else "")
    console.forecast(disk_of(each * added, each * kept), purpose, place=place)


def _change_lexical(change: Change, work: Path, settings: Append | Delete, total: int) -> dict[str, Any]:
    """Write the lexical index after a change into `work`, and return its counts."""
    from hybrid_cli.lexical.build import Base, build
    from hybrid_cli.lexical.index import LexicalIndex, read_parameters

    options, index = change.manifest.options, change.index
    artifacts.check_parts(index, layout.IMPACTS, layout.DOCIDS, layout.PARAMETERS)
    artifacts.hard_link(index / layout.PARAMETERS, work / layout.PARAMETERS)
    base, threads = Base(index, change.removed), settings.threads or cpu_count()
    with console.progress(settings.command, total, "documents") as advance:
        added = partial(change.documents, [field_weight(each)[0] for each in options["fields"]])
        build(added, work, options["fields"], options["language"], threads, advance, base)
    parameters = read_parameters(work)
    return LexicalIndex.load(work, options["language"], (parameters["k1"], parameters["b"])).counts()


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
