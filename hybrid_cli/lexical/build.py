"""Build a lexical index, and tune its k1 and b.

A text is analyzed once. Some threads count terms for the impact matrix, while another one adds the terms to Lucene's
index. k1 and b are tuned on judged queries; the gain is measured on held-out queries.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hybrid_cli import storage
from hybrid_cli.errors import HybridError, option_error
from hybrid_cli.lexical import lucene
from hybrid_cli.lexical.analysis import ANALYZERS, LazyAnalyzer
from hybrid_cli.lexical.builder import Counted, PostingsBuilder, TermNumbers, count
from hybrid_cli.lexical.impacts import Postings, save_array
from hybrid_cli.lexical.options import ENGLISH, IDENTIFIERS, STACKING, weighted_fields
from hybrid_cli.storage import disk, layout
from hybrid_cli.threads import ThreadPool

Corpus = Callable[[], Iterable[pa.RecordBatch]]
_MEMORY, _POSTING = 320 << 20, 41  # bytes of Java and the dictionary, and of each counted posting (studies/memory.md)
_WRITTEN = 28  # bytes on the disk of each counted posting: Lucene's index, the matrix
_MOST_COUNTERS = 8  # threads that count, each with a dictionary
_AHEAD = 2  # batches that wait for Lucene


def memory_of(postings: float) -> int:
    """Return the bytes of memory for `build` of a number of postings."""
    return _MEMORY + round(_POSTING * postings)


def disk_of(postings: float) -> int:
    """Return the bytes that `build` writes."""
    return round(_WRITTEN * postings)


@dataclass(frozen=True)
class Base:
    """An index whose documents come before those of a corpus; they are not analyzed again.

    Attributes:
        folder: folder of the index.
        removed: docids of documents to leave out.
    """

    folder: Path
    removed: pl.Series

    def kept(self) -> pl.DataFrame:
        """Return the docids of all documents, and whether a document is kept."""
        docids = pl.read_parquet(self.folder / layout.DOCIDS, glob=False)
        return docids.with_columns(kept=~pl.col("docid").is_in(self.removed.implode()))


def needs_java(language: str, with_lucene: bool) -> bool:
    """Return whether building an index needs Java."""
    name = language.partition(IDENTIFIERS)[0]
    return with_lucene or (name != ENGLISH and name not in ANALYZERS)


def build(
    corpus: Corpus,
    folder: Path,
    fields: Sequence[str],
    language: str,
    threads: int,
    advance: Callable[[int], None],
    base: Base | None = None,
    with_lucene: bool = True,
) -> None:
    """Write `impacts/`, `docids.parquet` and `lucene/` into `folder`; parts completed by an earlier call are kept.

    Args:
        corpus: returns an iterator over batches of documents (docid, title, text, other fields).
        folder: output folder.
        fields: indexed fields, such as `title` or `title=3`; see `contents`.
        language: name of the analysis.
        threads: CPU threads that count, and of Lucene.
        advance: called with the number of documents counted since the last call.
        base: an index with the same fields and analysis, to which the documents of the corpus are added.
        with_lucene: build Lucene's index.

    Raises:
        InputError: the language has an analyzer whose document lengths only Lucene knows, without Lucene.
        HybridError: Lucene failed, or its counts differ from those of the matrix.
    """
    if language in STACKING and not with_lucene:
        raise option_error("lucene", None, f"needed with --language {language}", code="option-does-not-apply")
    missing = not (folder / layout.IMPACTS).is_dir()
    lucene_missing = with_lucene and not (folder / layout.LUCENE).is_dir()
    if missing or lucene_missing:
        with ExitStack() as stack:
            kept = (
                pl.DataFrame(schema={"docid": pl.String}) if base is None else base.kept().filter("kept").drop("kept")
            )
            builder, docids = PostingsBuilder(min(threads, _MOST_COUNTERS)), [kept]
            counters = _Counters(fields, language, builder.numbers, lucene_missing)
            indexing = stack.enter_context(_Lucene(folder, language, threads, base)) if lucene_missing else None
            for documents, counted in counters.counted(corpus(), threads):
                docids.append(documents.select("docid"))
                if indexing is not None:
                    indexing.add(documents)
                if missing:
                    builder.add_counted(counted)
                advance(len(documents))
            with disk.create(folder / layout.DOCIDS) as file:
                pl.concat(docids).write_parquet(file, compression="zstd")
            if indexing is not None:
                indexing.end()
            if missing:
                _save(builder.finish(), folder, base)
    if with_lucene:
        _compare_counts(folder)
    if language in STACKING:
        known = pl.read_parquet(folder / layout.DOCIDS, glob=False).join(
            lucene.lengths(folder / layout.LUCENE), on="docid", how="left", maintain_order="left"
        )
        save_array(folder / layout.IMPACTS / layout.POSITIONS, known["length"].fill_null(0).to_numpy())


def _save(counted: Postings, folder: Path, base: Base | None) -> None:
    """Write the impact matrix, after the kept documents of `base`."""
    with storage.replacing(folder / layout.IMPACTS) as scratch:
        if base is not None:
            counted = Postings.open(base.folder / layout.IMPACTS).extended(base.kept()["kept"].to_numpy(), counted)
        counted.save(scratch)


def _compare_counts(folder: Path) -> None:
    postings, other = Postings.open(folder / layout.IMPACTS), lucene.statistics(folder / layout.LUCENE)
    if (postings.counted, postings.tokens) != (other.counted, other.tokens):
        disk.remove(folder / layout.LUCENE)  # the same command builds it again
        problem = f"Lucene counts {other}, the matrix {postings.counted:,} documents with {postings.tokens:,} tokens"
        raise HybridError(f"{folder}: {problem}; report this bug of hybrid", code="lucene-differs", path=folder)


@dataclass(frozen=True)
class _Counters:
    """Count the terms of batches of documents.

    Attributes:
        fields: indexed fields.
        language: name of the analysis.
        numbers: numbers of the terms.
        for_lucene: whether Lucene's index is built.
    """

    fields: Sequence[str]
    language: str
    numbers: TermNumbers
    for_lucene: bool

    def counted(self, batches: Iterable[pa.RecordBatch], threads: int) -> Iterator[tuple[pl.DataFrame, Counted]]:
        """Count in several threads; yield the documents in order, and the frequencies of their terms.

        Documents have docid, and for Lucene contents: terms separated by spaces, or a text that it analyzes.
        """
        workers = min(threads, _MOST_COUNTERS) if not needs_java(self.language, with_lucene=False) else 1
        analyzer = LazyAnalyzer(self.language)
        analyzer.analyze([])  # starts Java for the languages that need it
        with ThreadPool(workers) as pool:
            waiting: deque[Future[tuple[pl.DataFrame, Counted]]] = deque()
            for batch in batches:
                waiting.append(pool.submit(self._batch, batch, analyzer))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _batch(self, batch: pa.RecordBatch, analyzer: LazyAnalyzer) -> tuple[pl.DataFrame, Counted]:
        documents = contents(batch, self.fields)
        tokens, lengths = analyzer.document_tokens(documents["contents"].to_arrow())
        counted = count(self.numbers.number(tokens), lengths)
        if not self.for_lucene:
            documents = documents.select("docid")
        elif self.language not in STACKING:
            documents = documents.with_columns(_spelled(counted, self.numbers))
        return documents, counted


def _spelled(counted: Counted, numbers: TermNumbers) -> pl.Series:
    """Return the terms of each document, each as often as it occurs, separated by spaces."""
    ends = np.concatenate(([0], np.cumsum(counted.lengths)))
    used, positions = np.unique(counted.terms, return_inverse=True)
    tokens = numbers.spellings(used).take(pa.array(np.repeat(positions, counted.tfs)))
    texts = pc.binary_join(pa.LargeListArray.from_arrays(pa.array(ends), tokens), pa.scalar(" ", tokens.type))
    return pl.Series("contents", pl.from_arrow(texts), dtype=pl.String)


def build_shards(
    corpus: Corpus,
    folder: Path,
    fields: Sequence[str],
    language: str,
    sizes: Sequence[int],
    advance: Callable[[int], None],
    first: int = 0,
) -> None:
    """Write the matrix and the docids of consecutive documents into one folder per shard; completed shards are kept.

    Every shard stores the statistics of the whole collection, so its scores are those of one index. Memory holds the
    postings of one shard.

    Args:
        corpus: returns an iterator over batches of documents (docid, title, text, other fields).
        folder: output folder.
        fields: indexed fields, such as `title` or `title=3`; see `contents`.
        language: name of the analysis.
        sizes: number of documents of each shard.
        advance: called with the number of documents counted since the last call.
        first: number of the first shard; those before it are in `folder`.

    Raises:
        InputError: the language has an analyzer whose document lengths only Lucene knows.
    """
    if language in STACKING:
        raise option_error("shards", None, f"not with --language {language}; omit it", code="option-does-not-apply")
    analyzer, batches = LazyAnalyzer(language), iter(corpus())
    rest: pa.RecordBatch | None = None
    for number, size in enumerate(sizes, first):
        builder, docids, missing = PostingsBuilder(), [pl.DataFrame(schema={"docid": pl.String})], size
        done = (folder / layout.shard(number)).is_dir()
        while missing:
            batch = rest if rest is not None and len(rest) else next(batches, None)
            if batch is None:
                problem = f"{folder}: the corpus lost documents; repeat the command"
                raise HybridError(problem, code="input-replaced", path=folder)
            mine, rest = batch.slice(0, missing), batch.slice(missing)
            missing -= len(mine)
            if not done:
                texts = contents(mine, fields)
                builder.add(*analyzer.document_tokens(texts["contents"].to_arrow()))
                docids.append(texts.select("docid"))
            advance(len(mine))
        if not done:
            with storage.replacing(folder / layout.shard(number)) as scratch:
                builder.finish().save(scratch / layout.IMPACTS)
                with disk.create(scratch / layout.DOCIDS) as file:
                    pl.concat(docids).write_parquet(file, compression="zstd")
    store_statistics(folder)


def store_statistics(folder: Path) -> None:
    """Write the statistics of all shards into each of them; those of an interrupted call may be incomplete."""
    folders = sorted(folder.glob(f"{layout.SHARDS}/{layout.IMPACTS}"))
    for path in folders:
        disk.remove(path / layout.COLLECTION)
    shards = {path: Postings.open(path) for path in folders}
    parts = [pl.DataFrame({"term": shard.terms, "df": shard.df}) for shard in shards.values()]
    whole = pl.concat(parts).group_by("term").agg(pl.col("df").sum())
    counts = [sum(shard.counted for shard in shards.values()), sum(shard.tokens for shard in shards.values())]
    for (path, _), part in zip(shards.items(), parts, strict=True):
        df = part.select("term").join(whole, on="term", how="left", maintain_order="left")["df"].to_numpy()
        save_array(path / layout.COLLECTION_DF, df)
        save_array(path / layout.COLLECTION, np.array(counts, np.int64))


def contents(batch: pa.RecordBatch | pa.Table, fields: Sequence[str]) -> pl.DataFrame:
    """Return docid and the indexed text of each document.

    The text of a field with weight w is repeated w times (BM25F). Term frequencies and lengths are thus weighted sums
    over the fields, before saturation, and Lucene's scores are those of the matrix.
    """
    frame = pl.DataFrame(pl.from_arrow(batch))
    columns = [pl.col(name) for name in weighted_fields(fields)]
    return frame.select("docid", pl.concat_str(columns, separator="\n").alias("contents"))


class _Lucene(threading.Thread):
    """Thread that writes Lucene's index while others count; as a context it ends the thread, also after an error.

    A daemon, so that an interrupted process exits at once.
    """

    def __init__(self, folder: Path, language: str, threads: int, base: Base | None):
        super().__init__(name="lucene", daemon=True)
        self._context = copy_context()  # of the running stage
        self._folder, self._threads, self._base = folder, threads, base
        self._language = language if language in STACKING else None
        self._batches: Queue[pl.DataFrame | None] = Queue(_AHEAD)
        self._failure: Exception | None = None
        self._complete, self._last = False, False

    def __enter__(self) -> _Lucene:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._complete:
            self._batches.put(None)
        self.join()
        if self._failure is not None and kind is None:
            raise self._failure

    def add(self, documents: pl.DataFrame) -> None:
        """Add documents (docid, contents)."""
        if self._failure is not None:
            raise self._failure
        self._batches.put(documents.rename({"docid": "id"}))

    def end(self) -> None:
        """Complete the index; without this call it is removed. The end of the context waits for it."""
        self._complete = True
        self._batches.put(None)

    def run(self) -> None:
        """Index documents until `end`."""
        try:
            self._context.run(self._index)
        except _Abandoned:
            pass
        except Exception as error:  # raised in the thread that counts
            self._failure = error
            while not self._last:
                self._next()

    def _index(self) -> None:
        with storage.replacing(self._folder / layout.LUCENE) as scratch, disk.by_name(scratch):
            if self._base is None:
                self._write(scratch, self._next())
            else:
                self._update(self._base, scratch)
            if not self._complete:
                raise _Abandoned

    def _next(self) -> pl.DataFrame | None:
        documents = self._batches.get()
        self._last = documents is None
        return documents

    def _update(self, base: Base, scratch: Path) -> None:
        """Link the files of the base, and change them into the index of the kept and the added documents."""
        storage.hard_link(base.folder / layout.LUCENE, scratch)
        disk.remove(scratch / lucene.LOCK)  # Lucene locks the file, not its name
        added, first = self._folder / layout.LUCENE_ADDED, self._next()
        disk.remove(added)
        if first is not None:
            self._write(added, first)
        lucene.update(scratch, base.removed, added if first is not None else None)
        disk.remove(added)

    def _write(self, folder: Path, documents: pl.DataFrame | None) -> None:
        """Write an index of some documents, and those that follow."""
        writer = lucene.Writer(folder, self._threads, self._language)
        while documents is not None:
            writer.add(documents)
            documents = self._next()
        writer.close()


class _Abandoned(Exception):
    """The documents ended with an error."""


Setting = tuple[float, float]


@dataclass(frozen=True)
class Tuning:
    """Result of tuning.

    Attributes:
        best: (k1, b) with the largest mean; ties go to the values nearest to `baseline`.
        baseline: (k1, b) that gains are measured against.
        means: mean over all queries of each (k1, b).
        gains: gain over `baseline` on each half of the queries, with k1 and b chosen on the other half.
        queries: number of judged queries.
    """

    best: Setting
    baseline: Setting
    means: dict[Setting, float]
    gains: tuple[float, float]
    queries: int

    @property
    def held_out_gain(self) -> float:
        """Mean gain over all queries, with the k1 and b tuned on the other half."""
        second = self.queries // 2
        return (self.gains[0] * (self.queries - second) + self.gains[1] * second) / self.queries


def tune(evaluate: Callable[[Setting], pl.DataFrame], grid: Iterable[Setting], baseline: Setting) -> Tuning:
    """Evaluate each (k1, b) of a grid.

    Args:
        evaluate: returns the value of each judged query (qid, value) for a (k1, b).
        grid: values to try; `baseline` is always added.
        baseline: (k1, b) that gains are measured against.

    Raises:
        InputError: fewer than two judged queries.
    """
    settings = [baseline, *(setting for setting in grid if setting != baseline)]
    columns = [evaluate(setting).sort("qid")["value"].to_numpy() for setting in settings]
    values = np.stack(columns)  # [settings, queries]
    if values.shape[1] < 2:
        raise option_error("tune", None, "needs two or more judged queries", code="too-few-queries")
    nearness = [abs(k1 - baseline[0]) + abs(b - baseline[1]) for k1, b in settings]
    halves = (values[:, 0::2], values[:, 1::2])
    gains = [
        float((tested[_best(chosen, nearness)] - tested[0]).mean())
        for tested, chosen in ((halves[0], halves[1]), (halves[1], halves[0]))
    ]
    means = dict(zip(settings, values.mean(1).tolist(), strict=True))
    return Tuning(settings[_best(values, nearness)], baseline, means, (gains[0], gains[1]), values.shape[1])


def _best(values: np.ndarray, nearness: list[float]) -> int:
    means = values.mean(1).round(12)
    return min(range(len(means)), key=lambda at: (-means[at], nearness[at]))


DEEPCT_K1, DEEPCT_B = 10.0, 0.9  # for weights times 100 (DeepCT, README of its code)


@dataclass(frozen=True)
class Built:
    """An impact matrix of learned weights, and the number of truncated documents."""

    postings: Postings
    documents: int
    truncated: int

    def counts(self) -> dict[str, Any]:
        """Return values for the manifest."""
        return {
            "documents": self.documents,
            "empty documents": self.documents - self.postings.counted,
            "terms": len(self.postings.terms),
            "postings": len(self.postings),
            "truncated": self.truncated,
        }


def build_matrix(folder: Path, bm25: bool, base: Base | None = None) -> Built:
    """Write `impacts/` and `docids.parquet` from the shards in `folder`, which are hidden and so removed at the end.

    Args:
        folder: folder of the unfinished index.
        bm25: the weights are counts; k1 and b of DeepCT are stored with them.
        base: an index of the same encoder, whose kept documents come first.
    """
    builder, ids, truncated = PostingsBuilder(), [pl.DataFrame(schema={"docid": pl.String})], 0
    paths = sorted((folder / layout.WEIGHT_SHARDS).glob(layout.PARTS))
    earlier = Postings.open(base.folder / layout.IMPACTS) if base else None
    for path in paths:
        file = pq.ParquetFile(path, read_dictionary=["terms.list.element"])
        table = file.read()
        truncated += int((file.schema_arrow.metadata or {}).get(b"truncated", 0))
        terms, weights = (table[name].combine_chunks() for name in ("terms", "weights"))
        flat = terms.flatten()
        flat = flat if isinstance(flat, pa.DictionaryArray) else flat.dictionary_encode()
        distinct = weights.value_lengths().to_numpy(zero_copy_only=False).astype("int64")
        builder.add_weights(flat, weights.flatten().to_numpy(), distinct)
        ids.append(pl.DataFrame({"docid": pl.Series(table["id"].combine_chunks(), dtype=pl.String)}))
    postings = builder.finish()
    if base is not None and earlier is not None:
        kept = base.kept()
        ids.insert(0, kept.filter("kept").select("docid"))
        postings = earlier.extended(kept["kept"].to_numpy(), postings)
    docids = pl.concat(ids)
    with storage.replacing(folder / layout.IMPACTS) as scratch:
        postings.save(scratch)
    with disk.create(folder / layout.DOCIDS) as opened:
        docids.write_parquet(opened, compression="zstd")
    if bm25:
        disk.write_text(folder / layout.PARAMETERS, json.dumps({"k1": DEEPCT_K1, "b": DEEPCT_B}, indent=2) + "\n")
    return Built(postings, len(docids), truncated)
