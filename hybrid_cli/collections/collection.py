"""A collection on disk: its corpus as a stream, its queries and judgements of a split as tables.

Queries and judgements may also be files of their own, in Parquet or in the usual text forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections.readers.lines import (
    Place,
    answers_of,
    checked_id,
    columns,
    id_of,
    lines,
    plain_suffix,
    records,
    text_of,
)
from hybrid_cli.errors import InputError

CORPUS_FILE = "corpus.parquet"
CORPUS_FOLDER = "corpus"
DOCID_FIELDS = ("_id", "id", "docid", "doc_id", "docno", "pid", "passage_id")
QID_FIELDS = ("_id", "id", "qid", "query_id")
QUERY_FIELDS = ("text", "query", "question")
_QUERIES: dict[str, pl.DataType] = {"qid": pl.String(), "text": pl.String(), "answers": pl.List(pl.String())}
_QRELS: dict[str, pl.DataType] = {"qid": pl.String(), "docid": pl.String(), "relevance": pl.Int32()}


# ------------------------------------------------------------------------------------------------------------ corpus


def corpus_path(path: Path) -> Path:
    """The corpus of a collection folder (`corpus.parquet` or the folder `corpus`); a corpus itself stays.

    Raises:
        InputError: nothing is there, or it holds no corpus.
    """
    for part in _parts(path):
        artifacts.check_table(part, Kind.CORPUS)
    if path.is_dir():
        return next((path / name for name in (CORPUS_FILE, CORPUS_FOLDER) if (path / name).exists()), path)
    return path


def _parts(path: Path) -> list[Path]:
    """The Parquet files of a corpus, in order."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; a collection is needed here")
    if path.is_file():
        return [path]
    if (path / CORPUS_FILE).is_file():
        return [path / CORPUS_FILE]
    folder = path / CORPUS_FOLDER if (path / CORPUS_FOLDER).is_dir() else path
    if parts := sorted(folder.glob("part-*.parquet")):
        return parts
    raise InputError(
        f"{path}: holds neither {CORPUS_FILE} nor {CORPUS_FOLDER}/part-*.parquet; "
        "make a collection with `hybrid prepare`"
    )


def documents(path: Path, batch_rows: int = 8192) -> Iterator[pa.RecordBatch]:
    """Yield docid, title and text in the order of the corpus; a missing title or text is empty.

    Raises:
        InputError: `path` has no corpus, or a document has no id.
    """
    schema = artifacts.SCHEMAS[Kind.CORPUS]
    corpus_path(path)
    for part in _parts(path):
        row = 0
        for batch in pq.ParquetFile(part).iter_batches(batch_rows, columns=schema.names):
            docids = batch.column("docid")
            if docids.null_count:
                raise InputError(f"{part}, row {row + pc.index(docids.is_null(), True).as_py() + 1}: has no docid")
            filled = [pc.fill_null(batch.column(name).cast(pa.string()), "") for name in schema.names]
            yield pa.RecordBatch.from_arrays(filled, schema=schema)
            row += len(batch)


def document_count(path: Path) -> int:
    """How many documents the corpus has, from its footers."""
    corpus_path(path)
    return sum(pq.read_metadata(part).num_rows for part in _parts(path))


def docids(path: Path) -> pl.Series:
    """The id of every document, in the order of the corpus.

    Raises:
        InputError: there are no documents, one has no id, or one has the id of another; with its row.
    """
    corpus = corpus_path(path)
    frame = pl.scan_parquet(_parts(path)).select(pl.col("docid").cast(pl.String)).collect()
    if not len(frame):
        raise InputError(f"{corpus}: holds no documents; a corpus needs at least one")
    _refuse_nulls(frame, ("docid",), corpus)
    _refuse_twice(frame, ["docid"], corpus)
    return frame["docid"]


def scan(path: Path) -> pl.LazyFrame:
    """corpus_row (from 0 on), docid, title and text in corpus order; a missing title or text is empty."""
    corpus_path(path)
    return pl.scan_parquet(_parts(path), row_index_name="corpus_row").select(
        "corpus_row", pl.col("docid").cast(pl.String), pl.col("title", "text").cast(pl.String).fill_null("")
    )


def texts(path: Path, docids: pl.Series) -> pl.DataFrame:
    """docid, title and text of the given documents only, in the order of the corpus; those it lacks are left out."""
    wanted = pl.col("docid").is_in(docids.cast(pl.String).unique().implode())  # a filter is read before the texts are
    return scan(path).drop("corpus_row").filter(wanted).collect(engine="streaming")


# -------------------------------------------------------------------------------------------------- queries and qrels


def splits(path: Path) -> list[str]:
    """The splits of a collection: those with judgements, or where there are none, those with queries."""
    judged = _splits(path, "qrels")
    return [split for split in _splits(path, "queries") if split in judged or not judged]


def _splits(path: Path, role: str) -> list[str]:
    return sorted(
        file.name.removeprefix(f"{role}.").removesuffix(".parquet") for file in path.glob(f"{role}.*.parquet")
    )


def queries_path(path: Path, split: str | None = None) -> Path:
    """The file with the queries of `split` of a collection; a file named directly stays (`split` None).

    Raises:
        InputError: no such split (the message lists those there are), or several and none was named.
    """
    return _split_file(path, split, "queries")


def qrels_path(path: Path, split: str | None = None) -> Path:
    """The file with the judgements of `split` of a collection; a file named directly stays (`split` None)."""
    return _split_file(path, split, "qrels")


def _split_file(path: Path, split: str | None, role: str) -> Path:
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; a collection or a {role} file is needed here")
    if path.is_file():
        if split is not None:
            raise InputError(f"{path}: is a file, which has no splits; leave --split {split} out")
        return path
    present = _splits(path, role)
    if not present:
        raise InputError(f"{path}: holds no {role}.SPLIT.parquet; name a collection with {role}, or a {role} file")
    if split is None:
        candidates = [name for name in splits(path) if name in present] or present
        if len(candidates) > 1:
            raise InputError(f"{path}: has several splits ({', '.join(present)}); name one with --split")
        split = candidates[0]
    if split not in present:
        raise InputError(f"{path}: has no {role} of split '{split}'; there are: {', '.join(present)}")
    return path / f"{role}.{split}.parquet"


def read_queries(file: Path) -> pl.DataFrame:
    """Queries of a Parquet, JSON lines or two-column tab-separated file.

    Returns:
        qid, text (strings), answers (list of strings, null where a query has none), in the order of the file.

    Raises:
        InputError: not queries, or an id twice; with file, line and id.
    """
    if file.suffix == ".parquet":
        artifacts.check_table(file, Kind.QUERIES)
        frame = pl.read_parquet(file)
        if "answers" not in frame.columns:
            frame = frame.with_columns(pl.lit(None).alias("answers"))
        frame = frame.select(pl.col(name).cast(kind) for name, kind in _QUERIES.items())
    else:
        rows = list(query_rows(file))
        frame = pl.DataFrame([row[1:] for row in rows], schema=_QUERIES, orient="row")
    _refuse_nulls(frame, ("qid", "text"), file)
    _refuse_twice(frame, ["qid"], file)
    return frame


def query_rows(file: Path) -> Iterator[tuple[Place, str, str, list[str] | None]]:
    """(place, qid, text, answers) of a JSON lines or tab-separated file."""
    if plain_suffix(file) in (".jsonl", ".json", ".ndjson"):
        for place, record in records(file):
            qid, text = id_of(record, QID_FIELDS, place), text_of(record, QUERY_FIELDS, place)
            yield place, qid, text, answers_of(record, place)
    else:
        for place, fields in columns(file, 2, "query id and text"):
            yield place, checked_id(fields[0], place), "\t".join(fields[1:]), None


def read_qrels(file: Path) -> pl.DataFrame:
    """Judgements of a Parquet file, a TREC file of four columns, or a file of three with or without a header.

    Returns:
        qid, docid (strings), relevance (int32), in the order of the file; a repeated row stands once.

    Raises:
        InputError: not judgements, or one pair judged in two ways; with file, line and ids.
    """
    if file.suffix == ".parquet":
        artifacts.check_table(file, Kind.QRELS)
        frame = pl.read_parquet(file, columns=list(_QRELS))
        frame = frame.select(pl.col(name).cast(kind) for name, kind in _QRELS.items())
    else:
        rows = list(judgement_rows(file))
        frame = pl.DataFrame([row[1:] for row in rows], schema=_QRELS, orient="row")
    _refuse_nulls(frame, tuple(_QRELS), file)
    frame = frame.unique(maintain_order=True)
    _refuse_twice(frame, ["qid", "docid"], file)
    return frame


def judgement_rows(file: Path) -> Iterator[tuple[Place, str, str, int]]:
    """(place, qid, docid, relevance): columns `qid 0 docid relevance` or `qid docid relevance`.

    Columns end at tabs where a line has any, so that ids may hold spaces, else at any white space.
    """
    for place, line in lines(file):
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) not in (3, 4):
            raise InputError(
                f"{place}: {len(fields)} columns; judgements have three (qid docid relevance) "
                "or four (qid 0 docid relevance)"
            )
        relevance = _whole_number(fields[-1])
        if relevance is None and place.number == 1:
            continue  # a header
        if relevance is None:
            raise InputError(f"{place}: relevance '{fields[-1]}' is not a whole number")
        yield place, checked_id(fields[0], place), checked_id(fields[-2], place), relevance


def _whole_number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _refuse_nulls(frame: pl.DataFrame, names: tuple[str, ...], file: Path) -> None:
    for name in names:
        if frame[name].null_count():
            row = frame[name].is_null().arg_max()
            raise InputError(f"{file}, row {(row or 0) + 1}: has no {name}")


def _refuse_twice(frame: pl.DataFrame, key: list[str], file: Path) -> None:
    twice = frame.with_row_index("row").filter(pl.struct(key).is_duplicated())
    if len(twice):
        name = " ".join(twice.select(key).row(0))
        again = twice.filter(pl.struct(key) == pl.struct(key).first())["row"][1]
        raise InputError(f"{file}, row {again + 1}: {'/'.join(key)} {name} stands there a second time; keep one")
