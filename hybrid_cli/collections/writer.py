"""From a source to a collection on disk: rows are checked as they stream by; only ids are held in memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.collections.collection import CORPUS_FILE, CORPUS_FOLDER
from hybrid_cli.collections.problems import Findings
from hybrid_cli.collections.source import Document, Judgement, Query, Source, checked_split
from hybrid_cli.config import OnDangling, OnDuplicate, Preparation
from hybrid_cli.errors import InputError

_BATCH_ROWS = 8192
_BATCHES_PER_PART = 128
_ONE_OF_EACH = "pass --on-duplicate first or last to keep one of each"
_UNKNOWN_DOCUMENTS = "judgements about documents that are not in the corpus"
_UNKNOWN_QUERIES = "judgements about queries that are not in the split"

Row = TypeVar("Row", Document, Query, Judgement)
Key = TypeVar("Key", bound=Hashable)


@dataclass
class Intake:
    """One collection being written into `folder`; `manifest` is what its files carry.

    `advance` is told how many documents have gone by.
    """

    source: Source
    folder: Path
    manifest: Manifest
    on_duplicate: OnDuplicate = Preparation.on_duplicate
    on_dangling: OnDangling = Preparation.on_dangling
    advance: Callable[[int], None] = lambda count: None
    findings: Findings = field(default_factory=Findings)

    def write(self) -> dict[str, Any]:
        """Write corpus, queries and judgements, and return their counts.

        Raises:
            InputError: no documents; or duplicates or dangling judgements, where the policy is `error`.
        """
        docids = self._write_corpus()
        queries = self._write_queries()
        judgements = self._write_judgements(docids, queries)
        return {
            "documents": len(docids),
            "queries": {split: len(qids) for split, qids in queries.items()},
            "judgements": judgements,
            "found": self.findings.counts(),
            **self.source.facts,
        }

    # ------------------------------------------------------------------------------------------------------- corpus

    def _write_corpus(self) -> set[str]:
        docids: set[str] = set()
        batches = self._batches(self._unique(self.source.documents, lambda row: row.docid, "documents", docids))
        folder, parts = self.folder / CORPUS_FOLDER, 0
        folder.mkdir()
        for first in batches:
            part = chain([first], islice(batches, _BATCHES_PER_PART - 1))
            self._write_table(folder / f"part-{parts:05}.parquet", part, Kind.CORPUS)
            parts += 1
        self._refuse("duplicate documents", self.on_duplicate, _ONE_OF_EACH)
        if not parts:
            raise InputError(f"{self._origin()}: has no documents; a collection needs at least one")
        if parts == 1:
            (folder / "part-00000.parquet").rename(self.folder / CORPUS_FILE)
            folder.rmdir()
        return docids

    def _batches(self, rows: Iterator[Document]) -> Iterator[pa.RecordBatch]:
        while batch := list(islice(rows, _BATCH_ROWS)):
            for row in batch:
                self._look_at(row, "documents")
            docids, titles, texts, _ = zip(*batch, strict=True)
            self.advance(len(batch))
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, pa.string()) for column in (docids, titles, texts)],
                schema=artifacts.SCHEMAS[Kind.CORPUS],
            )

    # -------------------------------------------------------------------------------------------- queries and qrels

    def _write_queries(self) -> dict[str, set[str]]:
        """Write `queries.SPLIT.parquet` for each split and return its query ids."""
        rows: dict[str, list[Query]] = {}
        for query in self._unique(self.source.queries, lambda row: (row.split, row.qid), "queries", set()):
            self._look_at(query, "queries")
            rows.setdefault(checked_split(query.split), []).append(query)
        self._refuse("duplicate queries", self.on_duplicate, _ONE_OF_EACH)
        for split, queries in rows.items():
            columns = {name: [getattr(query, name) for query in queries] for name in ("qid", "text", "answers")}
            self._write_split("queries", split, columns, Kind.QUERIES)
        return {split: {query.qid for query in queries} for split, queries in rows.items()}

    def _write_judgements(self, docids: set[str], queries: dict[str, set[str]]) -> dict[str, int]:
        """Write `qrels.SPLIT.parquet` for each split and return its number of rows."""
        rows: dict[str, list[Judgement]] = {}
        for row in self._unique(self._judgements_once, lambda row: row[:3], "judgements", set()):
            kept = rows.setdefault(checked_split(row.split), [])
            known = self._look_for(row, docids, queries.get(row.split, set()))
            if known or self.on_dangling == "keep":
                kept.append(row)
        self._refuse("duplicate judgements", self.on_duplicate, _ONE_OF_EACH)
        for name in (_UNKNOWN_DOCUMENTS, _UNKNOWN_QUERIES):
            self._refuse(name, self.on_dangling, "pass --on-dangling drop to leave those judgements out, or keep")
        for split, judgements in rows.items():
            if not judgements:
                raise InputError(f"{self._origin()}: no judgement of split '{split}' fits the corpus and the queries")
            columns = {name: [getattr(row, name) for row in judgements] for name in ("qid", "docid", "relevance")}
            self._write_split("qrels", split, columns, Kind.QRELS)
        return {split: len(judgements) for split, judgements in rows.items()}

    def _look_for(self, row: Judgement, docids: set[str], qids: set[str]) -> bool:
        """Whether both ends of a judgement are there; what is missing is counted."""
        if row.docid not in docids:
            self.findings.add(_UNKNOWN_DOCUMENTS, row.docid, row.place)
        elif row.qid not in qids:
            self.findings.add(_UNKNOWN_QUERIES, row.qid, row.place)
        else:
            return True
        return False

    def _judgements_once(self) -> Iterator[Judgement]:
        """The judgements without rows that only repeat another one, which do no harm and need no decision."""
        seen: set[tuple[Any, ...]] = set()
        for row in self.source.judgements():
            if row[:4] not in seen:
                seen.add(row[:4])
                yield row

    def _write_split(self, role: str, split: str, columns: dict[str, list[Any]], kind: Kind) -> None:
        table = pa.table(columns, schema=artifacts.SCHEMAS[kind])
        self._write_table(self.folder / f"{role}.{split}.parquet", [table], kind)

    # ------------------------------------------------------------------------------------------------------- checks

    def _write_table(self, path: Path, batches: Any, kind: Kind) -> None:
        artifacts.write_parquet(path, batches, artifacts.SCHEMAS[kind], replace(self.manifest, kind=kind))

    def _unique(
        self, rows: Callable[[], Iterator[Row]], key: Callable[[Row], Key], what: str, seen: set[Key]
    ) -> Iterator[Row]:
        """The rows, one for each key: the first, or under the policy `last` the last. Fills `seen`."""
        last = {key(row): number for number, row in enumerate(rows())} if self.on_duplicate == "last" else {}
        for number, row in enumerate(rows()):
            this = key(row)
            if (last[this] != number) if last else (this in seen):
                self.findings.add(f"duplicate {what}", row.name, row.place)
                continue
            seen.add(this)
            yield row

    def _look_at(self, row: Document | Query, what: str) -> None:
        """Count empty and over-long texts; they stay."""
        if not row.text or row.text.isspace():
            self.findings.add(f"empty {what}", row.name, row.place)
        elif len(row.text) >= 2 * Preparation.long_words and len(row.text.split()) > Preparation.long_words:
            self.findings.add(f"{what} of over {Preparation.long_words} words", row.name, row.place)

    def _refuse(self, name: str, policy: str, remedy: str) -> None:
        found = self.findings.get(name)
        if found is not None and policy == "error":
            raise InputError(f"{found.first}: {name}: {found}; mend them, or {remedy}")

    def _origin(self) -> str:
        return str(next(iter(self.source.files.values()), self.source.name))


def clear(folder: Path) -> None:
    """Remove what a killed earlier run left; a collection is read again from the start."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith("."):
            path.unlink()
