"""Build a lexical index, and tune its k1 and b.

One thread runs Lucene while another counts terms for the impact matrix. k1 and b are tuned on judged queries; the gain
is measured on held-out queries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from hybrid_cli import storage
from hybrid_cli.errors import HybridError, option_error
from hybrid_cli.lexical import lucene
from hybrid_cli.lexical.analysis import STACKING, Analyzer
from hybrid_cli.lexical.impacts import Postings, PostingsBuilder, save_array
from hybrid_cli.lexical.options import weighted_fields
from hybrid_cli.storage import disk, layout

Corpus = Callable[[], Iterable[pa.RecordBatch]]
_MEMORY, _POSTING = 320 << 20, 41  # bytes of Java and the dictionary, and of each counted posting (studies/memory.md)
_WRITTEN = 28  # bytes on the disk of each counted posting: the texts for Lucene, Lucene's index, the matrix


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


def build(
    corpus: Corpus,
    folder: Path,
    fields: Sequence[str],
    language: str,
    threads: int,
    advance: Callable[[int], None],
    base: Base | None = None,
) -> None:
    """Write `lucene/`, `impacts/` and `docids.parquet` into `folder`; parts completed by an earlier call are kept.

    Args:
        corpus: returns an iterator over batches of documents (docid, title, text, other fields); called twice.
        folder: output folder.
        fields: indexed fields, such as `title` or `title=3`; see `contents`.
        language: language of the analyzer.
        threads: CPU threads of Lucene.
        advance: called with the number of documents counted since the last call.
        base: an index with the same fields and language, to which the documents of the corpus are added.

    Raises:
        HybridError: Lucene failed, or its counts differ from those of the matrix.
    """
    analyzer = Analyzer(language)  # fails on an unknown language before Lucene starts
    done = (folder / layout.LUCENE).is_dir()
    lucene_thread = None if done else _Lucene(corpus, folder, fields, language, threads, base)
    if lucene_thread is not None:
        lucene_thread.start()
    if not (folder / layout.IMPACTS).is_dir():
        with storage.replacing(folder / layout.IMPACTS) as scratch:
            builder = PostingsBuilder()
            for batch in corpus():
                builder.add(*analyzer.document_tokens(contents(batch, fields)["contents"].to_list()))
                advance(len(batch))
            counted = builder.finish()
            if base is not None:
                kept = base.kept()["kept"].to_numpy()
                counted = Postings.open(base.folder / layout.IMPACTS).extended(kept, counted)
            counted.save(scratch)
    if lucene_thread is not None:
        lucene_thread.finish()
    postings, other = Postings.open(folder / layout.IMPACTS), lucene.statistics(folder / layout.LUCENE)
    if (postings.counted, postings.tokens) != (other.counted, other.tokens):
        disk.remove(folder / layout.LUCENE)  # the same command builds it again
        problem = f"Lucene counts {other}, the matrix {postings.counted:,} documents with {postings.tokens:,} tokens"
        raise HybridError(f"{folder}: {problem}; report this bug of hybrid", code="lucene-differs", path=folder)
    if language in STACKING:
        docids = pl.read_parquet(folder / layout.DOCIDS, glob=False)
        known = docids.join(lucene.lengths(folder / layout.LUCENE), on="docid", how="left", maintain_order="left")
        save_array(folder / layout.IMPACTS / layout.POSITIONS, known["length"].fill_null(0).to_numpy())


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
        language: language of the analyzer.
        sizes: number of documents of each shard.
        advance: called with the number of documents counted since the last call.
        first: number of the first shard; those before it are in `folder`.

    Raises:
        InputError: the language has an analyzer whose document lengths only Lucene knows.
    """
    if language in STACKING:
        raise option_error("shards", None, f"not with --language {language}; omit it", code="option-does-not-apply")
    analyzer, batches = Analyzer(language), iter(corpus())
    rest: pa.RecordBatch | None = None
    for number, size in enumerate(sizes, first):
        builder, docids, missing = PostingsBuilder(), [pl.DataFrame(schema={"docid": pl.String})], size
        done = (folder / layout.shard(number)).is_dir()
        while missing:
            batch = rest if rest is not None and len(rest) else next(batches, None)
            if batch is None:
                raise HybridError(
                    f"{folder}: the corpus lost documents; repeat the command", code="input-replaced", path=folder
                )
            mine, rest = batch.slice(0, missing), batch.slice(missing)
            missing -= len(mine)
            if not done:
                texts = contents(mine, fields)
                builder.add(*analyzer.document_tokens(texts["contents"].to_list()))
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
    """Thread that runs Lucene; a daemon, so that an interrupted process exits at once."""

    def __init__(
        self, corpus: Corpus, folder: Path, fields: Sequence[str], language: str, threads: int, base: Base | None
    ):
        super().__init__(name="lucene", daemon=True)
        self._context = copy_context()  # of the running stage
        self.folder, self.language, self.threads, self.base = folder, language, threads, base
        self.failure: Exception | None = None
        self.source = folder / layout.LUCENE_SOURCE
        disk.remove(self.source)
        self.source.mkdir()
        docids = [self._write(batch, fields, part) for part, batch in enumerate(corpus())]
        before = pl.DataFrame(schema={"docid": pl.String}) if base is None else base.kept().filter("kept").drop("kept")
        self.added = sum(map(len, docids))
        ids = pl.concat([before, *docids])
        with disk.create(folder / layout.DOCIDS) as file:
            ids.write_parquet(file, compression="zstd")

    def _write(self, batch: pa.RecordBatch, fields: Sequence[str], part: int) -> pl.DataFrame:
        """Write one file per thread, because Anserini reads a file in one thread."""
        frame = contents(batch, fields)
        share = -(-len(frame) // self.threads)
        for number, piece in enumerate(frame.rename({"docid": "id"}).iter_slices(share)):
            with disk.create(self.source / f"part-{part:05d}-{number}.jsonl") as file:
                piece.write_ndjson(file)
        return frame.select("docid")

    def run(self) -> None:
        """Index the written files; `finish` raises errors."""
        self._context.run(self._index)

    def _index(self) -> None:
        try:
            with storage.replacing(self.folder / layout.LUCENE) as scratch, disk.by_name(scratch):
                if self.base is None:
                    lucene.build(self.source, scratch, self.language, self.threads)
                else:
                    self._update(self.base, scratch)
        except Exception as error:  # `finish` raises it in the calling thread
            self.failure = error

    def _update(self, base: Base, scratch: Path) -> None:
        """Link the files of the base, and change them into the index of the kept and the added documents."""
        storage.hard_link(base.folder / layout.LUCENE, scratch)
        disk.remove(scratch / lucene.LOCK)  # Lucene locks the file, not its name
        added = self.folder / layout.LUCENE_ADDED if self.added else None
        if added is not None:
            disk.remove(added)
            lucene.build(self.source, added, self.language, self.threads)
        lucene.update(scratch, base.removed, added)

    def finish(self) -> None:
        """Wait for Lucene, raise its error if there is one, and rename the completed index."""
        self.join()
        if self.failure is not None:
            raise self.failure
        disk.remove(self.source)
        disk.remove(self.folder / layout.LUCENE_ADDED)


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
