"""Build a lexical index: one thread runs Lucene while another counts terms for the impact matrix."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from hybrid_cli import artifacts
from hybrid_cli.artifacts import layout
from hybrid_cli.errors import HybridError
from hybrid_cli.lexical import lucene
from hybrid_cli.lexical.analysis import STACKING, Analyzer
from hybrid_cli.lexical.impacts import Postings, PostingsBuilder

Corpus = Callable[[], Iterable[pa.RecordBatch]]


def build(
    corpus: Corpus, folder: Path, fields: Sequence[str], language: str, threads: int, advance: Callable[[int], None]
) -> None:
    """Write `lucene/`, `impacts/` and `docids.parquet` into `folder`; parts completed by an earlier call are kept.

    Args:
        corpus: returns an iterator over batches of documents (docid, title, text); called twice.
        folder: output folder.
        fields: title, text, or both joined by a line end.
        language: of the analyzer.
        threads: CPU threads of Lucene.
        advance: called with the number of documents counted since the last call.

    Raises:
        HybridError: Lucene failed, or its counts differ from those of the matrix.
    """
    analyzer = Analyzer(language)  # fails on an unknown language before Lucene starts
    lucene_thread = None if (folder / layout.LUCENE).is_dir() else _Lucene(corpus, folder, fields, language, threads)
    if lucene_thread is not None:
        lucene_thread.start()
    if not (folder / layout.IMPACTS).is_dir():
        with artifacts.replacing(folder / layout.IMPACTS) as scratch:
            _count(corpus, fields, analyzer, advance).save(scratch)
    if lucene_thread is not None:
        lucene_thread.finish()
    postings = Postings.open(folder / layout.IMPACTS)
    _compare(postings, lucene.statistics(folder / layout.LUCENE), folder)
    if language in STACKING:
        docids = pl.read_parquet(folder / layout.DOCIDS)
        known = docids.join(lucene.lengths(folder / layout.LUCENE), on="docid", how="left", maintain_order="left")
        np.save(folder / layout.IMPACTS / layout.POSITIONS, known["length"].fill_null(0).to_numpy())


def _contents(batch: pa.RecordBatch, fields: Sequence[str]) -> pl.DataFrame:
    """Return docid and the indexed text of each document."""
    frame = pl.DataFrame(pl.from_arrow(batch))
    return frame.select("docid", pl.concat_str([pl.col(name) for name in fields], separator="\n").alias("contents"))


def _count(corpus: Corpus, fields: Sequence[str], analyzer: Analyzer, advance: Callable[[int], None]) -> Postings:
    builder = PostingsBuilder()
    for batch in corpus():
        builder.add(*analyzer.tokens(_contents(batch, fields)["contents"].to_list()))
        advance(len(batch))
    return builder.finish()


class _Lucene(threading.Thread):
    """Thread that runs Lucene; a daemon, so that an interrupted process exits at once."""

    def __init__(self, corpus: Corpus, folder: Path, fields: Sequence[str], language: str, threads: int):
        super().__init__(name="lucene", daemon=True)
        self.folder, self.language, self.threads = folder, language, threads
        self.failure: Exception | None = None
        self.source = folder / layout.LUCENE_SOURCE
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir()
        docids = [self._write(batch, fields, part) for part, batch in enumerate(corpus())]
        ids = pl.concat([pl.DataFrame(schema={"docid": pl.String}), *docids])
        ids.write_parquet(folder / layout.DOCIDS, compression="zstd")

    def _write(self, batch: pa.RecordBatch, fields: Sequence[str], part: int) -> pl.DataFrame:
        """Write one file per thread, because Anserini reads a file in one thread."""
        frame = _contents(batch, fields)
        share = -(-len(frame) // self.threads)
        for number, piece in enumerate(frame.rename({"docid": "id"}).iter_slices(share)):
            piece.write_ndjson(self.source / f"part-{part:05d}-{number}.jsonl")
        return frame.select("docid")

    def run(self) -> None:
        """Index the written files; `finish` raises errors."""
        try:
            with artifacts.replacing(self.folder / layout.LUCENE) as scratch:
                lucene.build(self.source, scratch, self.language, self.threads)
        except (HybridError, OSError) as error:
            self.failure = error

    def finish(self) -> None:
        """Wait for Lucene, raise its error if there is one, and rename the completed index."""
        self.join()
        if self.failure is not None:
            raise self.failure
        shutil.rmtree(self.source)


def _compare(postings: Postings, counted: lucene.Statistics, folder: Path) -> None:
    """Check that the matrix and Lucene counted the same documents and tokens."""
    if (postings.counted, postings.tokens) != (counted.counted, counted.tokens):
        raise HybridError(
            f"{folder}: Lucene counts {counted.counted:,} documents with {counted.tokens:,} tokens, the matrix "
            f"{postings.counted:,} with {postings.tokens:,}; this is a bug in hybrid, please report it with the corpus"
        )
