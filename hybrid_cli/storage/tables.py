"""Parquet tables of artifacts: checked before they are read, hashed while they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hybrid_cli.errors import DamageError, InputError, path_error
from hybrid_cli.inputs.files import is_parquet, limits
from hybrid_cli.storage import disk
from hybrid_cli.storage.integrity import check_file
from hybrid_cli.storage.records import (
    CHECKSUM_KEY,
    METADATA_KEY,
    NO_CHECKSUM,
    AnyRecord,
    Hashing,
    find_record,
    new_hash,
    parquet_metadata,
    write_checksum,
)
from hybrid_cli.storage.schemas import SCHEMAS, Kind

ROWS_PER_GROUP = 1 << 16
_OPTIONAL = ("answers", "teacher_score")  # columns that a file may lack
_REPEATING = {  # dictionary-encoded columns; all columns cost a third more time and a quarter more space
    Kind.RUN: ["qid"],
    Kind.LABELS: ["source", "docids.list.element"],
}


def validate_parquet(path: Path) -> Path:
    """Check that a Parquet file of an artifact exists and has its footer, and return its path."""
    if not path.is_file():
        raise path_error(path, f"is missing; rebuild {path.parent}", code="no-such-file")
    check_file(path)
    parquet_metadata(path)
    return path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error of a library about the content of a Parquet file into one line.

    Raises:
        InputError: values that do not fit the type of a column.
        DamageError: the file vanished, or its data is damaged.
    """
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        kind = DamageError if isinstance(error, OSError) else InputError
        raise kind(
            f"{path}: is not readable ({reason}); write the file again, or restore a copy",
            code="damaged-parquet",
            path=path,
        ) from None


def row_count(path: Path) -> int:
    """Return the number of rows of a Parquet file, from its footer."""
    return int(parquet_metadata(path).num_rows)


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a Parquet file."""
    return list(parquet_metadata(path).schema.to_arrow_schema().names)


def check_table(path: Path, kind: Kind, columns: Mapping[str, str] | None = None) -> Path:
    """Check that `path` is a Parquet file with the columns of `kind`, written by any program, and return the path.

    Columns may have any order, strings may be large, extra columns are ignored, and `answers` and `teacher_score` may
    be absent. Ids of runs, qrels and queries may be whole numbers, which their readers turn into texts.

    Args:
        path: the file.
        kind: kind of the table.
        columns: field of the kind -> column of a file with other names; fields that it omits may lack.

    Raises:
        InputError: the file is missing, truncated or of another kind, or a column is missing or of another type.
    """
    if not path.exists():
        raise path_error(path, f"no such file; a {kind} file is needed here", code="no-such-file", expected=kind)
    check_file(path)
    record = find_record(path)
    if path.is_dir():
        folder_kind = f"the folder of {record.kind.phrase}" if record else "a folder"
        problem = f"is {folder_kind}; a {kind} file is needed here"
        raise path_error(path, problem, code="other-kind", kind=record and record.kind, expected=kind)
    if record is not None and record.kind != kind:
        raise record.other_kind(path, f"a {kind} file is needed here", kind)
    if not is_parquet(path):
        advice = "; make a collection with `hybrid prepare files`" if kind == Kind.CORPUS else ""
        problem = f"is not a Parquet file; a {kind} file is needed here{advice}"
        raise path_error(path, problem, code="not-parquet", expected=kind)
    schema = parquet_metadata(path).schema.to_arrow_schema()
    limits().refuse_columns(path, path, len(schema.names))
    for column in SCHEMAS[kind]:
        name = column.name if columns is None else columns.get(column.name)
        if name is not None:
            _check_column(path, schema, kind, column, name)
    return path


def _check_column(path: Path, schema: pa.Schema, kind: Kind, column: pa.Field, name: str) -> None:
    """Check that a file has a column once, with the type of a field of its kind."""
    if schema.names.count(name) > 1:
        problem = f"has several columns '{name}'; rename or remove all but one"
        raise path_error(path, problem, code="repeated-column", column=name)
    if name not in schema.names:
        if name in _OPTIONAL:
            return
        found, expected = ", ".join(schema.names[:50]), ", ".join(SCHEMAS[kind].names)
        problem = f"has no column '{name}' (found: {found}); a {kind} file needs {expected}"
        raise path_error(path, problem, code="no-such-column", column=name)
    numbers = kind in (Kind.RUN, Kind.QRELS, Kind.QUERIES) and column.name in ("qid", "docid")  # read as texts
    stored = schema.field(name).type
    if not (_is_compatible(stored, column.type) or (numbers and pa.types.is_integer(stored))):
        problem = f"column '{name}' is {stored}, a {kind} file needs {column.type}"
        raise path_error(path, problem, code="other-type", column=name)


def _is_compatible(file_type: pa.DataType, needed_type: pa.DataType) -> bool:
    def family(kind: pa.DataType) -> str:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return "string"
        if pa.types.is_integer(kind):
            return "integer"
        if pa.types.is_floating(kind):
            return "float"
        return "list" if pa.types.is_list(kind) or pa.types.is_large_list(kind) else str(kind)

    return family(file_type) == family(needed_type) or (
        family(needed_type) == "float" and family(file_type) == "integer"
    )


def write_parquet(
    path: Path, batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema, record: AnyRecord
) -> AnyRecord:
    """Write rows to `path` in groups of equal size.

    Args:
        record: stored in the footer, with the number of rows and the content hash.

    Returns:
        The stored record.
    """
    digest, rows = new_hash(), 0
    dictionaries = _REPEATING.get(record.kind, True)
    with (
        disk.create(path) as opened,
        pq.ParquetWriter(
            file := Hashing(opened), schema, compression="zstd", use_dictionary=dictionaries, write_page_checksum=True
        ) as writer,
    ):
        for group in _regroup(batches, schema):
            _refuse_infinite(group)
            with pa.ipc.new_stream(Hashing(digest=digest), schema) as stream:
                stream.write_table(group)
            writer.write_table(group)
            rows += len(group)
        record = replace(record.of_table(path), fingerprint=digest.hexdigest(), counts={"rows": rows, **record.counts})
        writer.add_key_value_metadata({METADATA_KEY: record.to_footer(), CHECKSUM_KEY: NO_CHECKSUM})
    write_checksum(path, file.hexdigest())
    return record


def _refuse_infinite(rows: pa.Table) -> None:
    """Refuse hits with a score that is infinite or not a number; other tables have no scores.

    Raises:
        InputError: names query and document.
    """
    import pyarrow.compute as pc  # takes a tenth of the time of `hybrid --help`

    if "score" in rows.column_names and not pc.all(finite := pc.is_finite(rows["score"])).as_py():
        qid, docid, _, score, *_ = (column[pc.index(finite, False).as_py()].as_py() for column in rows.columns)
        problem = f"query {qid}, document {docid}: the score would be {score}; use smaller weights or scores"
        raise InputError(problem, code="score-not-finite", query=qid, document=docid)


def _regroup(batches: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the same rows in tables of `ROWS_PER_GROUP` (the last one shorter), cast to `schema`."""
    named = (pa.table(batch).select(schema.names) for batch in batches)
    for table in regroup(named, ROWS_PER_GROUP):
        yield _compact(table.cast(schema))


def regroup(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Yield the same rows in tables of `size` rows, the last one shorter."""
    waiting: list[pa.Table] = []
    count = 0
    for part in tables:
        waiting.append(part)
        count += len(part)
        if count >= size:
            table = pa.concat_tables(waiting)
            whole = count - count % size
            for begin in range(0, whole, size):
                yield table.slice(begin, size)
            waiting, count = [table.slice(whole)], count - whole
    if count:
        yield pa.concat_tables(waiting)


def _compact(table: pa.Table) -> pa.Table:
    """Copy the rows into new buffers: the buffers of a slice may hold adjacent rows, which would be hashed too."""
    return pa.concat_tables([table, table.slice(0, 0)]).combine_chunks()
