"""Write a source as a collection: rows are checked while they are written; memory holds only ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from hybrid_cli import languages, storage, words
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.options import OnDangling, OnDuplicate, Rows
from hybrid_cli.collections.source import Document, Judgment, Location, Query, Source, checked_split
from hybrid_cli.draws import StreamSample
from hybrid_cli.errors import path_error
from hybrid_cli.storage import Kind, Record, disk, layout

BATCH_ROWS = 8192
BATCHES_PER_PART = 128
LONG_WORDS = 512  # longer texts are counted: most encoders truncate them
LONG_DOCUMENTS = f"documents of over {LONG_WORDS} words"
EXAMPLES = 3
_KEEP_ONE = "pass --on-duplicate first or last to keep one of them"
_UNKNOWN_DOCUMENTS = "judgments of documents that are not in the corpus"
_UNKNOWN_QUERIES = "judgments of queries that are not in the split"

Row = TypeVar("Row", Document, Query, Judgment)
Key = TypeVar("Key", bound=Hashable)


@dataclass
class Problem:
    """Rows with the same problem: number of rows, first ids, and location of the first row."""

    first: Location
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.count:,} ({', '.join(self.examples)}{', ...' if self.count > len(self.examples) else ''})"


@dataclass
class CollectionWriter:
    """Writer of one source as a collection.

    Attributes:
        source: documents, queries and judgments.
        folder: empty folder of the collection.
        record: record for each file; the kind is replaced.
        on_duplicate, on_dangling: policies for rows that repeat an id, and for judgments of unknown rows.
        advance: called with the number of documents written since the last call.
        problems: filled while writing.
        left_out: of the documents and the queries: numbers of words, tags and entities, filled while writing.
    """

    source: Source
    folder: Path
    record: Record
    on_duplicate: OnDuplicate = Rows.on_duplicate
    on_dangling: OnDangling = Rows.on_dangling
    advance: Callable[[int], None] = lambda count: None
    problems: dict[str, Problem] = field(default_factory=dict)
    left_out: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    _samples: dict[str, StreamSample] = field(default_factory=dict)

    def write(self) -> dict[str, Any]:
        """Write corpus, queries and judgments.

        Returns:
            Counts for the manifest.

        Raises:
            InputError: no documents; or duplicates or dangling judgments, if the policy is `error`.
        """
        docids = self._write_corpus()
        queries = self._write_queries()
        judgments = self._write_judgments(docids, queries)
        same = {split: number for split, qids in queries.items() if (number := self._in_corpus(split, qids & docids))}
        return {
            "documents": len(docids),
            "queries": {split: len(qids) for split, qids in queries.items()},
            "judgments": judgments,
            "problems": {
                name: {"count": problem.count, "examples": problem.examples} for name, problem in self.problems.items()
            },
            **({"metadata": dict(types)} if (types := self.source.metadata) else {}),
            **self._of_samples(),
            **({"queries_in_corpus": same} if same else {}),
            **({"other_content": left_out} if (left_out := self._left_out()) else {}),
            **self.source.facts,
        }

    def _sample(self, what: str, texts: list[str]) -> None:
        self._samples.setdefault(what, StreamSample(languages.TEXTS, seed=0)).add(
            [text[: languages.LETTERS] for text in texts]
        )

    def _of_samples(self) -> dict[str, Any]:
        """Return the number of documents and queries in each language, and the share of compound names in all words."""
        counts = {what: languages.count(sample.texts()) for what, sample in self._samples.items()}
        sampled = {what: languages.TEXTS for what, own in self._samples.items() if own.seen > languages.TEXTS}
        texts = self._samples["documents"].texts()
        names = sum(1 for text in texts for _ in words.compound_names(text))
        share = round(names / max(1, sum(len(text.split()) for text in texts)), 3)
        return {"languages": counts, "compound_names": share, **({"sampled": sampled} if sampled else {})}

    def _left_out(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return counts for the manifest: documents or queries -> kind -> name -> number, the largest first."""
        by_row: dict[str, dict[str, dict[str, int]]] = {}
        for what, counts in self.left_out.items():
            for (kind, name), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                by_row.setdefault(what, {}).setdefault(kind, {})[name] = count
        return by_row

    def _in_corpus(self, split: str, common: set[str]) -> int:
        """Return the number of queries that are documents: with the id and the text of a document.

        Ids that coincide by chance have other texts; if most of them do, the number is 0.
        """
        if not common:
            return 0
        ids = pl.Series("docid", sorted(common))
        documents = collections.texts(self.folder, ids)
        queries = pl.read_parquet(self.folder / f"queries.{split}.parquet", columns=["qid", "text"], glob=False)
        both = documents.join(queries, left_on="docid", right_on="qid", suffix="_of_query").with_columns(
            pl.col("title", "text", "text_of_query").str.replace_all(r"\s+", " ").str.strip_chars()
        )
        whole = pl.concat_str("title", "text", separator=" ").str.strip_chars()
        equal = both.select((pl.col("text_of_query") == pl.col("text")) | (pl.col("text_of_query") == whole))
        number = int(equal.to_series().sum())
        return number if 2 * number >= len(common) else 0

    # ------------------------------------------------------------------------------------------------------- corpus

    def _write_corpus(self) -> set[str]:
        docids: set[str] = set()
        batches = self._batches(self._unique(self.source.documents, lambda row: row.docid, "documents", docids))
        rows = write_corpus(self.folder, batches, replace(self.record, kind=Kind.CORPUS))
        self._refuse("duplicate documents", self.on_duplicate, _KEEP_ONE)
        if not rows:
            raise path_error(self._origin(), "no documents; a collection needs at least one", code="no-documents")
        return docids

    def _batches(self, rows: Iterator[Document]) -> Iterator[pa.RecordBatch]:
        others = {**dict.fromkeys(self.source.fields, "string"), **self.source.metadata}
        typed = ((name, storage.COLUMN_TYPES[kind]) for name, kind in others.items())
        schema = pa.schema([*storage.SCHEMAS[Kind.CORPUS], *typed])
        while batch := list(islice(rows, BATCH_ROWS)):
            for row in batch:
                self._check_text(row, "documents")
            docids, titles, texts, _, rest, _ = zip(*batch, strict=True)
            pairs = zip(titles, texts, strict=True)
            self._sample("documents", [f"{title}\n{text[: languages.LETTERS]}" for title, text in pairs])
            self.advance(len(batch))
            columns = [docids, titles, texts, *zip(*rest, strict=True)]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    # -------------------------------------------------------------------------------------------- queries and qrels

    def _write_queries(self) -> dict[str, set[str]]:
        """Write `queries.SPLIT.parquet` for each split and return its query ids."""
        rows: dict[str, list[Query]] = {}
        for query in self._unique(self.source.queries, lambda row: (row.split, row.qid), "queries", set()):
            self._check_text(query, "queries")
            rows.setdefault(checked_split(query.split), []).append(query)
        self._refuse("duplicate queries", self.on_duplicate, _KEEP_ONE)
        for split, queries in sorted(rows.items()):
            self._sample("queries", [query.text for query in queries])
            columns = {name: [getattr(query, name) for query in queries] for name in ("qid", "text", "answers")}
            self._write_split("queries", split, columns, Kind.QUERIES)
        return {split: {query.qid for query in queries} for split, queries in sorted(rows.items())}

    def _write_judgments(self, docids: set[str], queries: dict[str, set[str]]) -> dict[str, int]:
        """Write `qrels.SPLIT.parquet` for each split and return its number of rows."""
        rows: dict[str, list[Judgment]] = {}
        for row in self._unique(self._distinct_judgments, lambda row: row[:3], "judgments", set()):
            kept = rows.setdefault(checked_split(row.split), [])
            known = self._check_ids(row, docids, queries.get(row.split, set()))
            if known or self.on_dangling == "keep":
                kept.append(row)
        self._refuse("duplicate judgments", self.on_duplicate, _KEEP_ONE)
        for name in (_UNKNOWN_DOCUMENTS, _UNKNOWN_QUERIES):
            self._refuse(self._dangling(name), self.on_dangling, "pass --on-dangling drop or keep")
        for split, judgments in sorted(rows.items()):
            if not judgments:
                problem = f"no judgment of split '{split}' has a document of the corpus and a query"
                raise path_error(self._origin(), problem, code="no-judgments")
            columns = {name: [getattr(row, name) for row in judgments] for name in ("qid", "docid", "relevance")}
            self._write_split("qrels", split, columns, Kind.QRELS)
        return {split: len(judgments) for split, judgments in sorted(rows.items())}

    def _check_ids(self, row: Judgment, docids: set[str], qids: set[str]) -> bool:
        """Test whether the document and the query of a judgment exist; count the judgment if not."""
        if row.docid not in docids:
            self._add_problem(self._dangling(_UNKNOWN_DOCUMENTS), row.docid, row.location)
        elif row.qid not in qids:
            self._add_problem(self._dangling(_UNKNOWN_QUERIES), row.qid, row.location)
        else:
            return True
        return False

    def _dangling(self, name: str) -> str:
        """Return the name of a problem of judgments, with what happens to them."""
        return name + {"error": "", "drop": ", dropped", "keep": ", kept"}[self.on_dangling]

    def _distinct_judgments(self) -> Iterator[Judgment]:
        """Yield the judgments without exact repetitions, which are harmless."""
        seen: set[tuple[Any, ...]] = set()
        for row in self.source.judgments():
            if row[:4] not in seen:
                seen.add(row[:4])
                yield row

    def _write_split(self, role: str, split: str, columns: dict[str, list[Any]], kind: Kind) -> None:
        table, record = pa.table(columns, schema=storage.SCHEMAS[kind]), replace(self.record, kind=kind)
        storage.write_parquet(self.folder / f"{role}.{split}.parquet", [table], table.schema, record)

    # ------------------------------------------------------------------------------------------------------- checks

    def _unique(
        self, rows: Callable[[], Iterator[Row]], key: Callable[[Row], Key], what: str, seen: set[Key]
    ) -> Iterator[Row]:
        """Yield one row per key: the first, or with the policy `last` the last one. Fills `seen`."""
        last = {key(row): number for number, row in enumerate(rows())} if self.on_duplicate == "last" else {}
        for number, row in enumerate(rows()):
            this = key(row)
            if (last[this] != number) if last else (this in seen):
                self._add_problem(f"duplicate {what}", _name(row), row.location)
                continue
            seen.add(this)
            yield row

    def _add_problem(self, name: str, example: str, location: Location) -> None:
        """Count one more row with a problem."""
        problem = self.problems.setdefault(name, Problem(location))
        problem.count += 1
        if len(problem.examples) < EXAMPLES:
            problem.examples.append(example)

    def _check_text(self, row: Document | Query, what: str) -> None:
        """Count empty and long texts, which are kept, and what is left out; a document with a title is not empty."""
        if row.left_out:
            self.left_out.setdefault(what, Counter()).update(row.left_out)
        titled = isinstance(row, Document) and row.title.strip()
        if (not row.text or row.text.isspace()) and not titled:
            self._add_problem(f"empty {what}", _name(row), row.location)
        elif len(row.text) >= (2 if row.text.isascii() else 1) * LONG_WORDS and words.count(row.text) > LONG_WORDS:
            self._add_problem(f"{what} of over {LONG_WORDS} words", _name(row), row.location)

    def _refuse(self, name: str, policy: str, remedy: str) -> None:
        problem = self.problems.get(name)
        if problem is not None and policy == "error":
            code = "duplicate-id" if name.startswith("duplicate") else "dangling-judgments"
            text = f"{name}: {problem}; fix the file, or {remedy}"
            raise problem.first.error(text, code=code, id=problem.examples[0], count=problem.count)

    def _origin(self) -> str:
        return str(next(iter(self.source.files.values()), self.source.name))


def _name(row: Document | Query | Judgment) -> str:
    """Return the name that messages use."""
    if isinstance(row, Judgment):
        return f"{row.qid} {row.docid}"
    return row.qid if isinstance(row, Query) else row.docid


def write_corpus(folder: Path, batches: Iterator[pa.RecordBatch], record: Record) -> int:
    """Write the documents of a collection as `corpus.parquet`, or as the parts of a large corpus.

    Args:
        folder: folder of the collection.
        batches: rows; without any, nothing is written.
        record: stored in each file.

    Returns:
        The number of documents.
    """
    parts, rows, number = folder / layout.CORPUS_FOLDER, 0, 0
    parts.mkdir()
    for number, first in enumerate(batches, 1):
        part = chain([first], islice(batches, BATCHES_PER_PART - 1))
        rows += storage.write_parquet(parts / layout.part(number - 1), part, first.schema, record).counts["rows"]
    if number == 1:
        with disk.note_path(folder / layout.CORPUS_FILE):
            disk.device.rename(parts / layout.part(0), folder / layout.CORPUS_FILE)
    if number < 2:
        disk.remove(parts)
    return rows


def clear(folder: Path) -> None:
    """Remove the files of an interrupted run from a scratch folder; a collection is always read from the start."""
    for path in folder.iterdir():
        if path.is_dir() or not path.name.startswith("."):
            disk.remove(path)
