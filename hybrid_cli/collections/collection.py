"""A collection on disk: the corpus as a stream, the queries and judgments of a split as tables.

Queries and judgments may also be separate files, in Parquet or in the usual text formats.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli import console, storage
from hybrid_cli.collections.journal import Journal
from hybrid_cli.collections.readers.qrels import HIGHEST, LOWEST, JudgmentFile
from hybrid_cli.collections.readers.queries import query_rows
from hybrid_cli.collections.readers.tables import Layout, cell, open_table
from hybrid_cli.collections.readers.text_files import DOCID_FIELDS
from hybrid_cli.errors import InputError, path_error
from hybrid_cli.inputs.files import Location, is_parquet, refuse_special
from hybrid_cli.inputs.rows import InputFile
from hybrid_cli.runs import SortedIds
from hybrid_cli.runs.groups import documents_of
from hybrid_cli.storage import SCHEMAS, Kind, layout

_BLOCK_ROWS = 1 << 16  # of texts, parsed at once
_NO_COLUMNS = pa.schema([])
_ISO_8601 = "iso:strict"  # with the `T` between date and time
_QUERIES: dict[str, pl.DataType] = {"qid": pl.String(), "text": pl.String(), "answers": pl.List(pl.String())}
_QRELS: dict[str, pl.DataType] = {"qid": pl.String(), "docid": pl.String(), "relevance": pl.Int32()}


@dataclass(frozen=True)
class Collection:
    """A collection on disk: documents, and the queries and judgments of splits; made by `open_collection`.

    Attributes:
        path: folder of the collection.

    Example:
        >>> from hybrid_cli import BM25, open_collection
        >>> data = open_collection("data/rich")
        >>> hits = BM25().index(data).search(data.queries("test"), k=10)
        >>> set(hits["qid"]) <= set(data.queries("test")["qid"])
        True
    """

    path: Path

    @property
    def splits(self) -> list[str]:
        """Names of the splits; only those with judgments, if there are any."""
        return splits(self.path)

    def queries(self, split: str | None = None) -> pl.DataFrame:
        """Return qid, text, answers of a split; without a name, of the only one."""
        return read_queries(queries_path(self.path, split))

    def qrels(self, split: str | None = None) -> pl.DataFrame:
        """Return qid, docid, relevance of a split; without a name, of the only one."""
        return read_qrels(qrels_path(self.path, split))

    def documents(self) -> pl.DataFrame:
        """Return docid, title, text and the other columns of all documents, which are held in memory."""
        docids(self.path)
        return _scan(self.path).with_columns(pl.col("title", "text").fill_null("")).collect()


# ------------------------------------------------------------------------------------------------------------ corpus


def corpus_path(path: Path) -> Path:
    """Return the corpus of a collection: `corpus.parquet` or the folder `corpus`. Corpus paths are returned as is.

    Raises:
        InputError: no such path, or no corpus.
    """
    for part in parts(path):
        storage.check_table(part, Kind.CORPUS)
    if path.is_dir():
        return next(
            (path / name for name in (layout.CORPUS_FILE, layout.CORPUS_FOLDER) if (path / name).exists()), path
        )
    return path


def parts(path: Path) -> list[Path]:
    """Return the Parquet files of a corpus, in order."""
    refuse_special(path)
    if not path.exists():
        problem = "no such file or folder; a collection is needed"
        raise path_error(path, problem, code="no-such-file", expected=Kind.COLLECTION)
    if path.is_file():
        return [path]
    if (path / layout.CORPUS_FILE).is_file():
        return [path / layout.CORPUS_FILE]
    folder = path / layout.CORPUS_FOLDER if (path / layout.CORPUS_FOLDER).is_dir() else path
    if files := sorted(folder.glob(layout.PARTS)):
        if folder.name == layout.CORPUS_FOLDER:
            storage.check_listed(folder.parent, files, f"{layout.CORPUS_FOLDER}/{layout.PARTS}")
        return files
    _refuse_other_artifact(path)
    problem = f"no {layout.CORPUS_FILE} or {layout.CORPUS_FOLDER}/{layout.PARTS}; make one with `hybrid prepare`"
    raise path_error(path, problem, code="no-corpus")


def _refuse_other_artifact(path: Path) -> None:
    manifest = storage.find_record(path)
    if manifest is not None and manifest.kind != Kind.COLLECTION:
        raise manifest.other_kind(path, "a collection is needed here", Kind.COLLECTION)


def documents(
    path: Path, batch_rows: int = 8192, fields: Iterable[str] = (), metadata: pa.Schema = _NO_COLUMNS
) -> Iterator[pa.RecordBatch]:
    """Yield docid, title, text and other fields in the order of the corpus; a missing value becomes empty.

    Args:
        path: the corpus.
        batch_rows: documents at once.
        fields: further columns of texts.
        metadata: further columns with the types that they get; null where a document, or the corpus, has none.

    Raises:
        InputError: no corpus, a document without id, or a corpus without one of the fields.
    """
    check_fields(path, fields)
    known = storage.SCHEMAS[Kind.CORPUS]
    texts = pa.schema([*known, *((name, pa.string()) for name in fields if name not in known.names)])
    schema = pa.schema([*texts, *metadata])
    for part in parts(path):
        row = 0
        with storage.reading(part):
            batches = pq.ParquetFile(part, pre_buffer=False).iter_batches(batch_rows, columns=schema.names)
        while (batch := _next(batches, part)) is not None:
            docids = batch.column("docid")
            if docids.null_count:
                number = row + docids.is_null().index(True).as_py() + 1
                raise Location(part, number, "row").error("no docid", code="missing-value", column="docid")
            filled = [batch.column(name).cast(pa.string()).fill_null("") for name in texts.names]
            filled += conformed(batch, metadata).columns
            yield pa.RecordBatch.from_arrays(filled, schema=schema)
            row += len(batch)


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema with its types; null where the rows have no such column."""
    present = set(batch.schema.names)
    columns = [
        _cast(batch.column(name), kind) if name in present else pa.nulls(len(batch), kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(column.type) and not pa.types.is_temporal(kind):
        column = pl.Series(pl.from_arrow(column)).dt.to_string(_ISO_8601).to_arrow()
    return column.cast(kind, safe=False)


def check_fields(path: Path, fields: Iterable[str]) -> None:
    """Check that a corpus has fields: title, text, and every other column of texts.

    Raises:
        InputError: no corpus, or one without one of the fields; the message lists its fields.
    """
    corpus_path(path)
    for part in parts(path):
        schema = pq.read_schema(part)
        texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        present = [
            column.name for column in schema if column.name != "docid" and any(test(column.type) for test in texts)
        ]
        if missing := [name for name in fields if name not in present]:
            problem = f"no field '{missing[0]}'; fields of this corpus: {', '.join(present)}"
            raise path_error(part, problem, code="no-such-field")


def _next(batches: Iterator[pa.RecordBatch], part: Path) -> pa.RecordBatch | None:
    with storage.reading(part):
        return next(batches, None)


def document_count(path: Path) -> int:
    """Return the number of documents, from the footers of the files."""
    corpus_path(path)
    return sum(pq.read_metadata(part).num_rows for part in parts(path))


def text_bytes(path: Path) -> int:
    """Return the bytes of all ids, titles and texts, from the footers of the files."""
    files = [pq.read_metadata(part) for part in parts(path)]
    return sum(footer.row_group(group).total_byte_size for footer in files for group in range(footer.num_row_groups))


def docids(path: Path) -> pl.Series:
    """Return the id of every document, in the order of the corpus.

    Raises:
        InputError: no documents, or a missing or repeated id; the message names the row.
    """
    corpus = corpus_path(path)
    with storage.reading(corpus):
        frame = _scan(path).select(pl.col("docid").cast(pl.String)).collect()
    if not len(frame):
        raise path_error(corpus, "no documents; a corpus needs at least one", code="no-documents")
    _refuse_nulls(frame, ("docid",), corpus)
    _refuse_repeated(frame, ["docid"], corpus)
    return frame["docid"]


def _scan(path: Path, row_index_name: str | None = None) -> pl.LazyFrame:
    """Scan all parts; columns that only some of them have do not matter, as `corpus_path` checked those that do."""
    return pl.scan_parquet(
        parts(path), glob=False, row_index_name=row_index_name, missing_columns="insert", extra_columns="ignore"
    )


def scan(path: Path) -> pl.LazyFrame:
    """Return corpus_row (from 0), docid, title and text in corpus order; a missing title or text becomes empty."""
    corpus_path(path)
    return _scan(path, row_index_name="corpus_row").select(
        "corpus_row", pl.col("docid").cast(pl.String), pl.col("title", "text").cast(pl.String).fill_null("")
    )


def metadata_schema(path: Path) -> dict[str, pl.DataType]:
    """Return the columns of a corpus besides id, title and text that hold texts, numbers or booleans, with their types.

    The corpus may be of any program: dates are texts of ISO 8601, and decimal numbers are float64.
    """
    corpus_path(path)
    known = storage.SCHEMAS[Kind.CORPUS].names
    schema: dict[str, pl.DataType] = {}
    for part in parts(path):
        schema = {**{name: _metadata_type(kind) for name, kind in pl.read_parquet_schema(part).items()}, **schema}
    usable = (pl.String, pl.Boolean, pl.List(pl.String))
    return {name: kind for name, kind in schema.items() if name not in known and (kind in usable or kind.is_numeric())}


def _metadata_type(kind: pl.DataType) -> pl.DataType:
    if kind.is_temporal() and kind != pl.Duration:
        return pl.String()
    return pl.Float64() if kind.is_decimal() or str(kind) == "Float16" else kind


def common_schema(corpora: Iterable[Path]) -> dict[str, pl.DataType]:
    """Return the columns of `metadata_schema` of several corpora, with types that hold the values of all.

    Raises:
        InputError: the corpora have a column with texts and with numbers.
    """
    schema: dict[str, pl.DataType] = {}
    for corpus in corpora:
        for name, kind in metadata_schema(corpus).items():
            known = schema.setdefault(name, kind)
            if known != kind and not (known.is_numeric() and kind.is_numeric()):
                problem = f"column {name} is {kind}, and {known} in another corpus of the index; prepare the documents "
                raise path_error(corpus, f"{problem}again with one type", code="other-type", column=name)
            schema[name] = known if known == kind else pl.Float64()
    return schema


def metadata(path: Path, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return docid and columns of a corpus with the given types, in its order; a column that it lacks is null."""
    present = metadata_schema(path)
    values = [
        (cs.by_name(name) if name in present else pl.lit(None)).cast(kind).alias(name) for name, kind in columns.items()
    ]
    with storage.reading(path):
        rows = _scan(path).with_columns((cs.temporal() - cs.duration()).dt.to_string(_ISO_8601))
        return rows.select(pl.col("docid").cast(pl.String), *values).collect()


def values_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a document's metadata that JSON has: no nulls, and no numbers that are not finite."""
    return {
        name: value
        for name, value in row.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def texts(path: Path, docids: pl.Series) -> pl.DataFrame:
    """Return docid, title and text of the given documents, in the order of the corpus; unknown ids are skipped.

    Documents of a corpus of passages follow, with the texts of their passages, one per line.
    """
    rows = _listed(path, docids)
    missing = docids.filter(~docids.is_in(rows["docid"].implode())).unique()
    if not len(missing):
        return rows
    return pl.concat([rows, passages_of(path, missing).with_columns(text=pl.col("text").list.join("\n"))])


def _listed(path: Path, docids: pl.Series) -> pl.DataFrame:
    wanted = pl.col("docid").is_in(docids.cast(pl.String).unique().implode())  # filters by docid before texts are read
    with storage.reading(path):
        return scan(path).drop("corpus_row").filter(wanted).collect(engine="streaming")


def passages_of(path: Path, docids: pl.Series) -> pl.DataFrame:
    """Return docid, title and the texts of all passages (a list, in order) of documents that are split in the corpus.

    The passages of a document may be anywhere in the corpus: `update` puts changed ones at its end.
    """
    document, number = documents_of(pl.col("docid")), pl.col("docid").str.extract(r"#(\d+)$").cast(pl.Int64)
    is_passage = document.is_in(docids.cast(pl.String).implode()) & (document != pl.col("docid"))
    with storage.reading(path):
        passages = scan(path).drop("corpus_row").filter(is_passage).collect(engine="streaming")
    return passages.group_by(document, maintain_order=True).agg(pl.col("title").first(), pl.col("text").sort_by(number))


def texts_of_hits(path: Path, docids: pl.Series) -> pl.DataFrame:
    """Return the texts of documents of runs or judgments; see `texts`.

    Raises:
        InputError: the corpus has none of the documents.
    """
    rows = texts(path, docids)
    if len(docids) and not len(rows):
        problem = f"has no document of the runs or judgments, such as '{docids[0]}'; pass their corpus"
        raise path_error(path, problem, code="other-corpus", id=docids[0])
    return rows


# -------------------------------------------------------------------------------------------------- queries and qrels


def splits(path: Path) -> list[str]:
    """Return the splits with queries and judgments; without any judgments, the splits with queries."""
    judged = _splits(path, "qrels")
    return [split for split in _splits(path, "queries") if split in judged or not judged]


def is_judged(path: Path, split: str) -> bool:
    """Return whether a collection has judgments of a split."""
    return split in _splits(path, "qrels")


def _splits(path: Path, role: str) -> list[str]:
    return sorted(
        file.name.removeprefix(f"{role}.").removesuffix(".parquet") for file in path.glob(f"{role}.*.parquet")
    )


def splits_with(path: Path, qids: pl.Series) -> list[str]:
    """Return the splits that have queries with all of these ids, judged or not."""
    names = _splits(path, "queries")
    return [name for name in names if qids.is_in(read_queries(queries_path(path, name))["qid"].implode()).all()]


def tuning_split(path: Path, split: str | None) -> str:
    """Return the split to tune on: the given one, else the only one of a collection, with a note, else `dev`."""
    names = splits(path) if split is None else []
    if len(names) == 1 and names != ["dev"]:
        text = f"--tune: split {names[0]} of {path}, the only one; do not report scores of its queries"
        console.note(text, code="only-split", path=path, option="tune")
    return split or (names[0] if len(names) == 1 else "dev")


def queries_path(path: Path, split: str | None = None) -> Path:
    """Return the file with the queries of a split. The path of a file is returned as is, and needs `split` None.

    Raises:
        InputError: no such split, or several splits and `split` is None; the message lists the splits.
    """
    return _split_file(path, split, "queries")


def qrels_path(path: Path, split: str | None = None) -> Path:
    """Return the file with the judgments of a split. The path of a file is returned as is, and needs `split` None."""
    return _split_file(path, split, "qrels")


def _split_file(path: Path, split: str | None, role: str) -> Path:
    refuse_special(path)
    if not path.exists():
        problem = f"no such file or folder; a collection or a {role} file is needed"
        raise path_error(path, problem, code="no-such-file", expected=role)
    if path.is_file():
        if split is not None:
            made = storage.find_record(path)
            if made is not None and made.kind == Kind.RUN:
                _refuse_other_artifact(path)
            problem = f"a file has no splits; omit --split {split}"
            raise path_error(path, problem, code="option-does-not-apply", option="split", value=split)
        return path
    present = _splits(path, role)
    if not present:
        _refuse_other_artifact(path)
        problem = f"no {role}.SPLIT.parquet; pass a collection with {role}, or a {role} file"
        raise path_error(path, problem, code="no-such-split", role=role)
    if split is None:
        candidates = [name for name in splits(path) if name in present] or present
        if len(candidates) > 1:
            problem = f"several splits ({', '.join(present)}); pass --split NAME"
            raise path_error(path, problem, code="missing-option", option="split")
        split = candidates[0]
    if split not in present:
        problem = f"no {role} of split '{split}'; splits: {', '.join(present)}"
        raise path_error(path, problem, code="no-such-split", role=role, split=split)
    return path / f"{role}.{split}.parquet"


def counts_of(path: Path) -> dict[str, Any]:
    """Return the counts that `prepare` stored with a collection, given by its folder or one of its files."""
    made = storage.find_record(path if path.is_dir() and path.name != layout.CORPUS_FOLDER else path.parent)
    return made.counts if made is not None and made.kind == Kind.COLLECTION else {}


def languages_of(path: Path) -> dict[str, int]:
    """Return the number of documents in each language that `prepare` found."""
    counts: dict[str, int] = counts_of(path).get("languages", {}).get("documents", {})
    return counts


def queries_in_corpus(path: Path, split: str | None = None) -> int:
    """Return the number of queries of a split that are documents of the corpus, as `prepare` counted it.

    Args:
        path: a collection, or a file with the queries or qrels of a split; 0 for a file outside of a collection.
        split: None for a file, and for a collection if only one split has judgments, or queries where none has.
    """
    counts = counts_of(path).get("queries_in_corpus", {})
    if not counts:
        return 0
    folder = path if path.is_dir() else path.parent
    file = _split_file(path, split, "qrels" if _splits(folder, "qrels") else "queries")
    return int(counts.get(file.stem.partition(".")[2], 0))


def read_queries(file: Path) -> pl.DataFrame:
    """Read queries from a Parquet, JSON lines, CSV or tab-separated file (see `query_rows`), or those of a journal.

    Returns:
        qid, text (strings), answers (list of strings, or null), in the order of the file.

    Raises:
        InputError: not queries, or a repeated id; with file, line and id.
    """
    if _is_table(file, Kind.QUERIES):
        with storage.reading(file):
            present = [name for name in _QUERIES if name in storage.column_names(file)]
            frame = pl.read_parquet(file, columns=present, glob=False)
            if "answers" not in present:
                frame = frame.with_columns(pl.lit(None).alias("answers"))
            frame = frame.select(pl.col(name).cast(kind) for name, kind in _QUERIES.items())
    elif (journal := Journal.of(opened := InputFile.of(file))) is not None:
        frame = _of_rows(((qid, text, None) for qid, text in journal.queries.items()), _QUERIES)
    else:
        frame = _of_rows((row[1:] for row in query_rows(opened)), _QUERIES)
    if frame.is_empty():
        raise path_error(file, "no queries; pass a file with some", code="no-queries")
    _refuse_nulls(frame, ("qid", "text"), file)
    _refuse_repeated(frame, ["qid"], file)
    return frame


def read_qrels(file: Path, of_machine: bool = False) -> pl.DataFrame:
    """Read judgments from a Parquet, JSON lines, CSV or text file, or a journal of `judge`; see `JudgmentFile`.

    Args:
        file: file of judgments.
        of_machine: the grades of machines in a journal.

    Returns:
        qid, docid (strings), relevance (int32), in the order of the file, without exact repetitions.

    Raises:
        InputError: not judgments, or two grades for one pair; with file, line and ids.
    """
    if _is_table(file, Kind.QRELS):
        with storage.reading(file):
            frame = pl.read_parquet(file, columns=list(_QRELS), glob=False)
            _refuse_large(frame, file)
            frame = frame.select(pl.col(name).cast(kind) for name, kind in _QRELS.items())
    else:
        frame = _of_rows((row[1:] for row in JudgmentFile.of(file).rows(of_machine)), _QRELS)
    _refuse_nulls(frame, tuple(_QRELS), file)
    if frame.is_empty():
        raise path_error(file, "no judgments; pass a file with some", code="no-judgments")
    frame = frame.unique(maintain_order=True)
    _refuse_repeated(frame, ["qid", "docid"], file)
    return frame


def read_judged(queries: Path, qrels: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the queries with judgments, in their order, and all judgments.

    Raises:
        InputError: no query has a judgment.
    """
    judgments = read_qrels(qrels)
    judged = read_queries(queries).join(judgments, on="qid", how="semi", maintain_order="left")
    if not len(judged):
        raise path_error(qrels, f"has no judgments of the queries in {queries}", code="no-judgments")
    return judged, judgments


def _is_table(file: Path, kind: Kind) -> bool:
    """Return whether a file is Parquet with the columns of a kind; False for Parquet of another tool, and for texts.

    Raises:
        InputError: another artifact of hybrid, a damaged file, or none.
    """
    if file.is_file() and not is_parquet(file):
        return False
    try:
        storage.check_table(file, kind)
    except InputError as error:
        # The reader of tables knows other names of columns, and grades that are whole floats.
        if error.code not in ("no-such-column", "other-type") or storage.find_record(file) is not None:
            raise
        return False
    return True


def _of_rows(rows: Iterator[tuple[Any, ...]], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """Return a table of rows, of which a block is in memory as Python objects."""
    blocks = [pl.DataFrame(schema=schema)]
    while block := list(islice(rows, _BLOCK_ROWS)):
        blocks.append(pl.DataFrame(block, schema=schema, orient="row"))
    return pl.concat(blocks, rechunk=True)


def _refuse_nulls(frame: pl.DataFrame, names: tuple[str, ...], file: Path) -> None:
    """Refuse missing values, and empty ids."""
    for name in names:
        lacking = frame[name].is_null()
        if name in ("qid", "docid"):
            lacking |= frame[name] == ""
        if lacking.any():
            location = Location(file, (lacking.arg_max() or 0) + 1, "row")
            raise location.error(f"no {name}", code="missing-value", column=name)


def _refuse_large(judgments: pl.DataFrame, file: Path) -> None:
    """Refuse grades outside of 32 bits."""
    grades = judgments["relevance"]
    fitting = grades.cast(pl.Int32, strict=False)
    if (lost := fitting.is_null() & grades.is_not_null()).any():
        row, value = (lost.arg_max() or 0) + 1, grades.filter(lost)[0]
        problem = f"{file}, row {row}: relevance {value} is not between {LOWEST} and {HIGHEST}; correct the grade"
        raise InputError(problem, code="grade-out-of-range", path=file, line=row, value=value)


def _refuse_repeated(frame: pl.DataFrame, key: list[str], file: Path) -> None:
    if len(key) == 1 and frame[key[0]].n_unique() == len(frame):  # a third of the memory of the comparison of rows
        return
    repeated = frame.with_row_index("row").filter(pl.struct(key).is_duplicated())
    if len(repeated):
        name = " ".join(repeated.select(key).row(0))
        again = repeated.filter(pl.struct(key) == pl.struct(key).first())["row"][1]
        problem = f"{'/'.join(key)} {name} is repeated; keep one row"
        raise Location(file, again + 1, "row").error(problem, code="duplicate-id", id=name)


# ------------------------------------------------------------------------------------------------------------ expansion


_EXPANSION = Layout(
    "--expansion",
    {"docid": DOCID_FIELDS, "text": ("text", "query", "expansion", "contents")},
    frozenset(),
    {2: {"docid": "1", "text": "2"}},
    "name its columns docid and text",
)


def expanded_documents(
    collection: Path, expansion: Path | None, batch_rows: int = 8192, fields: Iterable[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a collection, with the expansion after the text.

    Args:
        collection: collection or corpus.
        expansion: TSV, CSV, JSON lines or Parquet file of docid and text; several rows of a document are joined.
        batch_rows: rows per batch.
        fields: fields of the documents to yield, besides title and text.

    Raises:
        InputError: an id that is not in the collection.
    """
    if expansion is None:
        yield from documents(collection, batch_rows, fields)
        return
    added = _read_expansion(expansion)
    known = set(docids(collection))
    if unknown := [docid for docid in added if docid not in known]:
        missing = console.counted(document=len(unknown))
        problem = f"{missing} not in {collection} ({unknown[0]}, ...); pass the expansion of this collection"
        raise path_error(expansion, problem, code="unknown-id", id=unknown[0], count=len(unknown))
    for batch in documents(collection, batch_rows, fields):
        pairs = zip(batch.column("docid").to_pylist(), batch.column("text").to_pylist(), strict=True)
        texts = pa.array([" ".join([text, *added.get(docid, ())]).strip() for docid, text in pairs], pa.string())
        yield batch.set_column(batch.schema.get_field_index("text"), "text", texts)


def _read_expansion(path: Path) -> dict[str, list[str]]:
    table = open_table(InputFile.of(path), _EXPANSION, {}, None, None)
    texts: dict[str, list[str]] = {}
    for location, row in table.rows(table.columns.values()):
        texts.setdefault(cell(row, table.columns["docid"], location), []).append(
            cell(row, table.columns["text"], location)
        )
    return texts


class TextStore:
    """The documents of corpora; a later corpus replaces the documents of earlier ones.

    The file is made on first use, among the temporary files, without a name: it goes with the process.
    """

    def __init__(self, corpora: Sequence[Path]) -> None:
        self.corpora = tuple(corpora)
        self._only: SortedIds | None = None

    def within(self, only: SortedIds) -> TextStore:
        """Return the store in which other documents are unknown."""
        other = copy(self)
        other.__dict__ |= {"_only": only, "_columns": self._columns, "_ids": self._ids, "_begins": self._begins}
        return other

    def texts(self, docids: pl.Series) -> pl.DataFrame:
        """Return docid, title and text of documents, in the given order; both are null for unknown ids."""
        return self._values(docids, {"title": pl.String(), "text": pl.String()})

    def documents(self, docids: pl.Series) -> pl.DataFrame:
        """Return the texts of documents (see `texts`) and, where the corpora have it, their `metadata`: a struct."""
        frame = self._values(docids, {"title": pl.String(), "text": pl.String(), **self.schema})
        if not self.schema:
            return frame
        return frame.select("docid", "title", "text", pl.struct(cs.by_name(*self.schema)).alias("metadata"))

    def _values(self, docids: pl.Series, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
        rows, known = self._ids.find(docids)
        known = known if self._only is None else known & self._only.find(docids)[1]
        batches = np.searchsorted(self._begins, rows, "right") - 1
        at = list(zip(batches.tolist(), (rows - self._begins[batches]).tolist(), known.tolist(), strict=True))
        values = [docids.alias("docid")]
        for name, kind in schema.items():
            columns = self._columns[name]
            found = [columns[batch][row].as_py() if there else None for batch, row, there in at]
            values.append(pl.Series(name, found, kind))
        return pl.DataFrame(values)

    @cached_property
    def _columns(self) -> dict[str, list[pa.Array]]:
        return {name: [batch.column(name) for batch in self._batches] for name in ("title", "text", *self.schema)}

    @cached_property
    def schema(self) -> dict[str, pl.DataType]:
        """Type of each column of the metadata; none where the corpora differ in the type of one."""
        with suppress(InputError):
            return common_schema(self.corpora)
        return {}

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        metadata = pl.DataFrame(schema=self.schema).to_arrow().schema
        with tempfile.TemporaryFile() as file:
            with pa.ipc.new_file(file, pa.schema([*SCHEMAS[Kind.CORPUS], *metadata])) as writer:
                for corpus in self.corpora:
                    for batch in documents(corpus, metadata=metadata):
                        writer.write_batch(batch)
            file.flush()
            reader = pa.ipc.open_file(pa.py_buffer(mmap(file.fileno(), 0, access=ACCESS_READ)))
        pa.default_memory_pool().release_unused()  # which would keep the memory of the reader of the corpora
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]

    @cached_property
    def _begins(self) -> np.ndarray:
        """Number [B] of the first document of each batch."""
        return np.cumsum([0, *(len(batch) for batch in self._batches[:-1])])

    @cached_property
    def _ids(self) -> SortedIds:
        batches = [pl.Series(pl.from_arrow(batch.column("docid"))) for batch in self._batches]
        docids = pl.concat([pl.Series(dtype=pl.String), *batches])
        if len(self.corpora) == 1:
            return SortedIds(docids)
        last = docids.is_last_distinct()
        return SortedIds(docids.filter(last), last.arg_true())
