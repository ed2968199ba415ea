"""Generations of a collection: its documents compared with their present state, and the next generation on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Input, Manifest
from hybrid_cli.artifacts.indexes import corpora_of, ids_of, known_corpora, lost_corpora
from hybrid_cli.artifacts.judged import collection_of
from hybrid_cli.artifacts.manifest import foreign_file
from hybrid_cli.artifacts.retrievers import RetrieverFiles, generation, is_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.writer import clear, write_corpus
from hybrid_cli.commands import PrepareFiles, Update
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.runs.groups import documents_of
from hybrid_cli.settings import Settings
from hybrid_cli.storage import Kind, disk

_ROWS_AT_ONCE = 8192
_READ_BY = ("document_columns", "header", "quoted", "on_error", "on_duplicate", "metadata")  # options of `prepare`
_PASSAGES = ("split_passages", "passage_stride")
_SAMPLES = ("sample", "pseudo_queries")  # options that leave out documents or parts of them
SOURCE, PREVIOUS = "source", "previous"  # options of a generation: command of the first one; what this one replaces
_NUMBERS, _NAMES = (pa.int64(), pa.float64()), {"double": "float64"}  # names of types in manifests
_LARGEST_LOSS = 0.5  # share of the documents that are deleted without --allow-shrink


@dataclass(frozen=True)
class CurrentDocuments:
    """The documents of a retriever, in the order of its indexes.

    Attributes:
        collection: the collection that the indexes were built from.
        manifest: its manifest.
        corpora: the corpora of the documents, several after `update --add` of an index.
        docids: ids of all documents.
        schema: columns of the documents.
    """

    collection: Path
    manifest: Manifest
    corpora: Sequence[Path]
    docids: pl.Series
    schema: pa.Schema

    @classmethod
    def of(cls, files: RetrieverFiles) -> CurrentDocuments:
        """Find the documents of a retriever.

        Raises:
            InputError: a corpus is missing or has changed, or the collection does not have all documents of its source.
        """
        recorded = corpora_of(files.manifests)
        for corpus, what in lost_corpora(recorded).items():
            problem = f"its corpus {what}, and `update` compares with it; build the retriever again"
            raise path_error(files.folder, problem, code="corpus-changed", corpus=corpus)
        collection = collection_of(recorded)
        if collection is None:
            problem = "its indexes record no collection; build them from one that `hybrid prepare` wrote"
            raise path_error(files.folder, problem, code="no-collection")
        manifest = artifacts.read_manifest(collection, Kind.COLLECTION)
        if partial := [name for name in _SAMPLES if manifest.options.get(name) is not None]:
            problem = f"was made with --{partial[0].replace('_', '-')}, so it differs from its source; build it again"
            raise path_error(collection, problem, code="partial-collection", option=partial[0])
        corpora = known_corpora(files.manifests)
        return cls(collection, manifest, corpora, ids_of(files.indexes[0]), _schema(corpora[0]))

    @property
    def splits(self) -> Mapping[str, Any]:
        """Options of passages; empty for whole documents."""
        return {name: self.manifest.options[name] for name in _PASSAGES if name in self.manifest.options}

    def with_metadata_of(self, present: Path | None, sources: Sequence[Path]) -> CurrentDocuments:
        """Return the documents with the columns of metadata of their next state too.

        A column without values takes the type of the other state, and whole numbers become floats with floats.

        Args:
            present: corpus of the next state; None for the columns of this one.
            sources: files of the user, for messages.

        Raises:
            InputError: another field, or a column of metadata with values of another type.
        """
        if present is None:
            return self
        columns = dict(zip(self.schema.names, self.schema.types, strict=True))
        theirs = _schema(present)
        fields, others = _fields(self.schema, self.manifest), _fields(theirs, artifacts.read_manifest(present.parent))
        refused = min(fields ^ others, default=None)
        for name, kind in zip(theirs.names, theirs.types, strict=True):
            known = columns.setdefault(name, kind)
            if known == kind or refused is not None or _is_empty(rows_of(present), name):
                continue
            if known in _NUMBERS and kind in _NUMBERS:
                columns[name] = pa.float64()
            elif _is_empty(self.rows(), name):
                columns[name] = kind
            else:
                refused = name
        if refused is not None:
            was, now = (dict(zip(one.names, map(str, one.types), strict=True)) for one in (self.schema, theirs))
            problem = f"column {refused} is {now.get(refused, 'missing')}, {was.get(refused, 'missing')} in"
            problem = f"{', '.join(map(str, sources))}: {problem} {self.collection}; change it, or build again"
            raise InputError(problem, code="other-columns", path=sources[0], column=refused)
        return replace(self, schema=pa.schema(list(columns.items())))

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the documents of the indexes; a later corpus replaces those of earlier ones."""
        kept = set(self.docids)
        mine: list[set[str]] = []
        for corpus in reversed(self.corpora):
            mine.append(kept & set(collections.docids(corpus)))
            kept -= mine[-1]
        for corpus, docids in zip(self.corpora, reversed(mine), strict=True):
            yield from selected(rows_of(corpus, self.schema), docids.__contains__)


@dataclass(frozen=True)
class Difference:
    """Documents that differ from an earlier state.

    Attributes:
        gone, new: ids of former rows, and of present ones, that differ: documents, or passages of a collection of them.
        added, replaced, removed: ids of documents.
        before, after: numbers of documents.
    """

    gone: Set[str]
    new: Set[str]
    added: Set[str]
    replaced: Set[str]
    removed: Set[str]
    before: int
    after: int

    @property
    def counts(self) -> dict[str, int]:
        """Number of documents by change."""
        return {name: len(getattr(self, name)) for name in ("added", "replaced", "removed")}

    def refuse_shrink(self, source: Path) -> None:
        """Refuse a deletion of over half of the documents.

        Raises:
            InputError: names the source.
        """
        if len(self.removed) > _LARGEST_LOSS * self.before:
            count = len(self.removed)
            problem = f"lacks {count:,} of {self.before:,} documents, such as {min(self.removed)}; pass --allow-shrink"
            raise path_error(source, problem, code="many-deletions", count=count, option="allow_shrink")


def difference(before: Mapping[str, bytes], after: Mapping[str, bytes], passages: bool) -> Difference:
    """Compare the documents of two states by all columns.

    Args:
        before, after: digest of each row by its id.
        passages: rows are passages of documents.
    """
    gone = {row for row, digest in before.items() if after.get(row) != digest}
    new = {row for row, digest in after.items() if before.get(row) != digest}
    documents_before, documents_after = _documents(before, passages), _documents(after, passages)
    changed = (_documents(gone, passages) | _documents(new, passages)) & documents_before & documents_after
    added, removed = documents_after - documents_before, documents_before - documents_after
    return Difference(gone, new, added, changed, removed, len(documents_before), len(documents_after))


def changes_of(current: CurrentDocuments, present: Path | None, removed: Set[str] | None) -> Difference:
    """Compare the documents with their next state.

    Args:
        current: the documents.
        present: corpus of the next state, or of those that are added and replace those of equal ids; None without any.
        removed: ids of documents that are removed; None for a corpus of the next state.
    """
    before = digests(current.rows())
    rows = {} if present is None else digests(rows_of(present, current.schema))
    passages = bool(current.splits)
    if removed is None:
        return difference(before, rows, passages)
    gone, ids = removed | _documents(rows, passages), pl.Series(list(before), dtype=pl.String)
    kept = ids.filter(~(documents_of(ids) if passages else ids).is_in(list(gone)))
    return difference(before, {row: before[row] for row in kept} | rows, passages)


def digests(rows: Iterable[pa.RecordBatch]) -> dict[str, bytes]:
    """Return the digest of the values of each row, by its id."""
    digests: dict[str, bytes] = {}
    for batch in rows:
        docids = batch.column("docid").to_pylist()
        for docid, *values in zip(docids, *(column.to_pylist() for column in batch.columns), strict=True):
            digests[docid] = blake2b(repr(values).encode(), digest_size=16).digest()
    return digests


def _documents(rows: Iterable[str], passages: bool) -> Set[str]:
    """Return the documents of rows: those of passages, or the rows themselves."""
    return set(documents_of(pl.Series(list(rows), dtype=pl.String))) if passages else set(rows)


def selected(rows: Iterable[pa.RecordBatch], keeps: Callable[[str], bool]) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose ids are kept."""
    for batch in rows:
        mask = pa.array([keeps(docid) for docid in batch.column("docid").to_pylist()], pa.bool_())
        if pc.any(mask).as_py():
            yield batch.filter(mask)


@contextmanager
def present_documents(
    sources: Sequence[Path], current: CurrentDocuments, call: Callable[[Settings], Any], scratch: Path
) -> Iterator[Path | None]:
    """Yield a corpus with documents in their present state, read as those of the collection were; None without any.

    Args:
        sources: files or folders, or a collection.
        current: the documents of the retriever.
        call: calls the stage of a settings object.
        scratch: folder for a copy of the documents, which the next update removes after a kill.

    Raises:
        InputError: unreadable documents, or those of another command than `prepare files`.
    """
    if not sources:
        yield None
        return
    options, given = current.manifest.options, sources[0]
    made = artifacts.find_manifest(given) if len(sources) == 1 and given.is_dir() else None
    documents, read_by = list(sources), _read_by(options)
    if made is not None and made.kind == Kind.COLLECTION:
        if (passages := made.options.get("split_passages")) not in (None, options.get("split_passages")):
            problem = f"has passages of {passages} words, {current.collection} has others; prepare it like that one"
            raise path_error(given, problem, code="other-passages")
        if passages is not None or not current.splits:
            yield collections.corpus_path(given)
            return
        documents, read_by = collections.parts(given), {"metadata": list(made.counts.get("metadata", ()))}
    elif options.get(SOURCE, current.manifest.stage) != PrepareFiles.command:
        command = options.get(SOURCE, current.manifest.stage)
        problem = f"was made by `{command}`; run it on the present documents, and pass that collection"
        raise path_error(current.collection, problem, code="other-source")
    corpus = scratch / "collection"
    disk.remove(scratch)
    try:
        settings = PrepareFiles(documents, output=corpus, overwrite=True, **read_by, **current.splits)
        with console.quiet():
            _prepare(settings, call)
            read = artifacts.read_manifest(corpus).counts.get("metadata", {})
            if lost := current.manifest.counts.get("metadata", {}).keys() - read:  # without values, or of mixed types
                _prepare(settings.changed(metadata=[*read, *sorted(lost)]), call)
        yield collections.corpus_path(corpus)
    finally:
        disk.remove(scratch)


def _read_by(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by which the documents of a collection were read, without defaults."""
    declared = PrepareFiles.declared()
    names = [name for name in _READ_BY if name in options and name in declared]
    return {name: options[name] for name in names if options[name] != declared[name].default}


def _prepare(settings: PrepareFiles, call: Callable[[Settings], Any]) -> None:
    """Prepare documents, without the columns of metadata that no document has any more."""
    try:
        call(settings)
    except InputError as error:
        if error.code != "no-such-column" or error.fields.get("option") != "metadata":
            raise
        kept = [name for name in settings.metadata if name != error.fields["column"]]
        _prepare(settings.changed(metadata=kept), call)


def _fields(schema: pa.Schema, manifest: Manifest) -> Set[str]:
    """Return the columns of a collection that are no metadata."""
    return set(schema.names) - set(manifest.counts.get("metadata", ()))


def _is_empty(rows: Iterable[pa.RecordBatch], name: str) -> bool:
    return all(batch.column(name).null_count == len(batch) for batch in rows)


def write_generation(
    current: CurrentDocuments, present: Path | None, changes: Difference, path: Path, inputs: Mapping[str, Input]
) -> tuple[Path, int]:
    """Write the next generation of a collection: unchanged documents in their order, then new and changed ones.

    Queries and judgments are kept; those of passages hold for all passages that a document has now.

    Returns:
        The corpus, and the row of the first new or changed document.
    """
    made = current.manifest
    options = made.options | {SOURCE: made.options.get(SOURCE, made.stage), PREVIOUS: made.fingerprint}
    output = artifacts.open_output(
        path, Kind.COLLECTION, Update.command, inputs=inputs, options=options, overwrite=True
    )
    if not output.up_to_date:
        kept = selected(current.rows(), lambda docid: docid not in changes.gone)
        new = selected(() if present is None else rows_of(present, current.schema), changes.new.__contains__)
        with output.folder() as (work, counts):
            clear(work)
            rows = write_corpus(work, chain(kept, new), replace(output.manifest, kind=Kind.CORPUS))
            counts |= {**made.counts, "documents": rows, "problems": {}}
            counts |= {"whole_documents": changes.after} if current.splits else {}
            fields = _fields(_schema(current.corpora[0]), made)
            types = {name: str(current.schema.field(name).type) for name in current.schema.names if name not in fields}
            counts |= {"metadata": {name: _NAMES.get(kind, kind) for name, kind in types.items()}} if types else {}
            _write_splits(current, work, output.manifest)
    corpus = collections.corpus_path(path)
    return corpus, collections.document_count(corpus) - len(changes.new)


def _write_splits(current: CurrentDocuments, work: Path, manifest: Manifest) -> None:
    """Write queries and judgments; judged documents that are gone stay judged."""
    for file in sorted(current.collection.glob("*.*.parquet")):
        if file.name.startswith("qrels.") and current.splits:
            qrels = _of_passages(collections.read_qrels(file), work)
            record = replace(manifest, kind=Kind.QRELS)
            storage.write_parquet(work / file.name, [qrels.to_arrow()], storage.SCHEMAS[Kind.QRELS], record)
        elif file.name.startswith(("queries.", "qrels.")):
            artifacts.hard_link(file, work / file.name)


def _of_passages(qrels: pl.DataFrame, collection: Path) -> pl.DataFrame:
    """Return the judgments of documents as those of all their passages in a collection, or of a document without."""
    passages = pl.DataFrame({"passage": collections.docids(collection)})
    passages = passages.with_columns(document=documents_of(pl.col("passage")))
    judged = qrels.with_columns(document=documents_of(pl.col("docid")))
    judged = judged.unique(["qid", "document"], keep="first", maintain_order=True)
    every = judged.join(passages, on="document", how="left", maintain_order="left_right")
    return every.select("qid", docid=pl.coalesce("passage", "document"), relevance="relevance")


# ---------------------------------------------------------------------------------------------------- names, pruning


def next_generation(current: CurrentDocuments, files: RetrieverFiles, inputs: Mapping[str, Input]) -> int:
    """Return the number of the next generation: one without files, or that of an equal update that was killed."""
    described = artifacts.describe_inputs(inputs, current.collection)
    for number in count(files.stored.generation + 1):
        paths = [generation(path, files.stored.generation, number) for path in (current.collection, *files.indexes)]
        if not any(path.exists() for path in paths):
            return number
        made = artifacts.find_manifest(paths[0]) if paths[0].exists() else None
        if made is None or made.options.get(PREVIOUS) != current.manifest.fingerprint:
            continue
        recorded = (made.inputs.get(role, {}).get("fingerprint") for role in described)
        if list(recorded) == [source["fingerprint"] for source in described.values()]:
            return number
    raise AssertionError  # `count` has no end


def earlier_generation(files: RetrieverFiles) -> list[Mapping[str, Any]]:
    """Return the collection and the indexes of the last earlier generation, as the history names them.

    Raises:
        InputError: none is left.
    """
    generations: dict[int, list[Mapping[str, Any]]] = {}
    for former in files.stored.history:
        if "generation" in former and (files.folder.resolve() / former["path"]).is_dir():
            generations.setdefault(former["generation"], []).append(former)
    whole = [number for number, parts in generations.items() if len(parts) == 1 + len(files.indexes)]
    if not whole:
        problem = f"has no generation before {files.stored.generation}; `update` keeps them until --prune"
        raise path_error(files.folder, problem, code="no-earlier-generation")
    return generations[max(whole)]


def prune(files: RetrieverFiles) -> list[Path]:
    """Remove the generations in the history of a retriever, and return their paths.

    Kept are those that a retriever in the folder of this one names, other content at such a path, and folders with
    files that hybrid did not write.
    """
    used = {
        path.resolve() for folder in files.folder.parent.iterdir() if is_retriever(folder) for path in _named(folder)
    }
    removed = []
    for former in files.stored.history:
        path = Path(os.path.normpath(files.folder.resolve() / former["path"]))
        if path.is_symlink() or not path.is_dir() or path.resolve() in used:
            continue
        made = artifacts.find_manifest(path)
        if made is not None and made.fingerprint == former["fingerprint"] and foreign_file(path, made) is None:
            disk.remove(path)
            removed.append(path)
    return removed


def _named(folder: Path) -> list[Path]:
    """Return the indexes of a retriever and their collections; those of a damaged one are unknown, and refused."""
    files = RetrieverFiles.read(folder)
    return [*files.indexes, *(corpus.path.parent for corpus in corpora_of(files.manifests))]


def _schema(corpus: Path) -> pa.Schema:
    return pq.read_schema(collections.parts(corpus)[0]).remove_metadata()


def rows_of(corpus: Path, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Yield all columns of a corpus, or those of a schema."""
    for part in collections.parts(corpus):
        with storage.reading(part):
            for batch in pq.ParquetFile(part, pre_buffer=False).iter_batches(_ROWS_AT_ONCE):
                yield batch if schema is None else collections.conformed(batch, schema)
