"""Corpora, queries, judgments and runs in every form, under any name: each stage reads the same rows."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from command import hybrid, ran

from hybrid_cli import runs
from hybrid_cli.collections import collection

Rows = list[dict[str, Any]]
DOCUMENTS: Rows = [
    {"docid": "007", "title": "Tides", "text": "the pull of the moon"},
    {"docid": "1e5", "title": "Salt", "text": "sodium, and chlorine"},
    {"docid": "NA", "title": "", "text": "an empty set"},
]
QUERIES: Rows = [{"qid": "01", "text": "moon"}, {"qid": "1.0", "text": "table salt, sodium"}]
QRELS: Rows = [
    {"qid": "01", "docid": "007", "relevance": 2},
    {"qid": "1.0", "docid": "1e5", "relevance": 1},
    {"qid": "1.0", "docid": "NA", "relevance": 0},
]
RUN: Rows = [
    {"qid": "01", "docid": "007", "rank": 1, "score": 2.5},
    {"qid": "01", "docid": "NA", "rank": 2, "score": 1.25},
    {"qid": "1.0", "docid": "1e5", "rank": 1, "score": 7.0},
]
BEIR = {"docid": "_id", "qid": "_id"}
OTHER_NAMES = {  # of ir_datasets, BEIR and sets of Hugging Face
    "documents": [{}, BEIR, {"docid": "doc_id"}],
    "queries": [{}, BEIR, {"qid": "query_id"}, {"qid": "query-id", "text": "query"}],
    "qrels": [
        {},
        {"qid": "query_id", "docid": "doc_id"},
        {"qid": "query-id", "docid": "corpus-id", "relevance": "score"},
    ],
    "run": [{}, {"qid": "query_id", "docid": "doc_id"}, {"qid": "q_id", "docid": "doc_id"}],
}
ROWS = {"documents": DOCUMENTS, "queries": QUERIES, "qrels": QRELS, "run": RUN}


def delimited(rows: Rows, separator: str) -> str:
    def cell(value: object) -> str:
        text = str(value)
        return f'"{text}"' if separator in text else text

    return "".join(separator.join(map(cell, line)) + "\n" for line in [list(rows[0]), *(row.values() for row in rows)])


def parquet(rows: Rows) -> bytes:
    held = io.BytesIO()
    table = pl.DataFrame(rows)
    grades = [name for name in ("relevance", "score") if name in table.columns and "rank" not in table.columns]
    table = table.with_columns(pl.col(grades).cast(pl.Float64))  # whole numbers, as pandas stores a column with nulls
    table.write_parquet(held)
    return held.getvalue()


FORMS: dict[str, Callable[[Rows], bytes]] = {
    "tsv": lambda rows: delimited(rows, "\t").encode(),
    "csv": lambda rows: delimited(rows, ",").encode(),
    "jsonl": lambda rows: "".join(f"{json.dumps(row)}\n" for row in rows).encode(),
    "array": lambda rows: json.dumps(rows).encode(),
    "indented array": lambda rows: json.dumps(rows, indent=2).encode(),
    "indented objects": lambda rows: "\n".join(json.dumps(row, indent=2) for row in rows).encode(),
    "byte order mark": lambda rows: b"\xef\xbb\xbf" + delimited(rows, "\t").encode(),
    "parquet": parquet,
}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def written(folder: Path, kind: str, form: str, names: dict[str, str], compression: str = "plain") -> Path:
    """Write the rows of a kind under a name that says nothing of the form, except for CSV."""
    rows = [{names.get(name, name): value for name, value in row.items()} for row in ROWS[kind]]
    path = folder / f"{kind}{'.csv' if form == 'csv' else '.data'}"
    path.write_bytes(COMPRESSIONS[compression](FORMS[form](rows)))
    return path


def rows_of(kind: str, path: Path, folder: Path) -> Rows:
    if kind == "documents":
        ran("prepare", "files", path, "--output", folder / "made", "--overwrite")
        return pl.read_parquet(folder / "made" / "corpus.parquet").select("docid", "title", "text").to_dicts()
    if kind == "run":
        return runs.read_run(path).to_dicts()
    if kind == "queries":
        return collection.read_queries(path).select("qid", "text").to_dicts()
    return collection.read_qrels(path).to_dicts()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ROWS)
def test_every_form_has_the_same_rows(tmp_path: Path, kind: str, form: str) -> None:
    for names in OTHER_NAMES[kind]:
        path = written(tmp_path, kind, form, names)
        assert rows_of(kind, path, tmp_path) == ROWS[kind], names


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kind", ROWS)
def test_every_compression_is_recognised_by_its_content(tmp_path: Path, kind: str, compression: str) -> None:
    for form in ("tsv", "jsonl", "indented array"):
        assert rows_of(kind, written(tmp_path, kind, form, {}, compression), tmp_path) == ROWS[kind], form


STAGES: dict[str, tuple[str, str]] = {  # command, and output
    "evaluate": ("evaluate {run} --qrels {qrels} --measure nDCG@3 --format json", ""),
    "fuse": ("fuse {run} dense.parquet --qrels {qrels} --output out.parquet", "out.parquet"),
    "fuse --tune": ("fuse {run} dense.parquet --tune --folds 2 --qrels {qrels} --output out.json", "out.json"),
    "report": ("report {run} dense.parquet --qrels {qrels} --output out.html", "out.html"),
    "index-bm25 --tune": (
        "index-bm25 collection --tune --queries {queries} --qrels {qrels} --output out", "out/bm25.json"
    ),
    "search": ("search {queries} --index bm25 --output out.parquet", "out.parquet"),
    "search --rm3 --tune": (
        "search --queries {queries} --qrels {qrels} --rm3 --tune --folds 2 --index bm25 --output out.parquet",
        "out.parquet",
    ),
    "mine-negatives": (
        "mine-negatives collection --queries {queries} --qrels {qrels} --sources run:{run}:1,random:1 "
        "--output out.parquet",
        "out.parquet",
    ),
    "label": ("label collection --queries {queries} --run {run} --depth 2 --output out", "out"),
    "prepare files": (
        "prepare files collection/corpus.parquet --queries dev={queries} --qrels dev={qrels} --output out",
        "out/qrels.dev.parquet",
    ),
    "prepare trec": (
        "prepare trec docs.jsonl --topics dev={queries} --qrels dev={qrels} --output out", "out/qrels.dev.parquet"
    ),
    "perturb": ("perturb {queries} --attack char-swap --output out.parquet", "out.parquet"),
    "export": ("export {run} --format trec --output out.txt", "out.txt"),
    "concat-runs": ("concat-runs {run} other.parquet --output out.parquet", "out.parquet"),
}  # fmt: skip # a command per line
GIVEN = {
    "queries": [{"qid": "001", "text": "what does the moon do"}, {"qid": "002", "text": "salt in sea water"}],
    "qrels": [{"qid": "001", "docid": "007", "relevance": 2}, {"qid": "002", "docid": "salt", "relevance": 1}],
    "run": [
        {"qid": "001", "docid": "salt", "rank": 1, "score": 2.5},
        {"qid": "001", "docid": "007", "rank": 2, "score": 2.0},
        {"qid": "002", "docid": "salt", "rank": 1, "score": 7.0},
        {"qid": "002", "docid": "NA", "rank": 2, "score": 1.0},
    ],
}


@pytest.mark.usefixtures("few_feedbacks")
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_reads_every_form(here: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, rows in GIVEN.items():
        monkeypatch.setitem(ROWS, kind, rows)
    command, output = STAGES[stage]
    Path("docs.jsonl").write_text('{"id": "007", "text": "a"}\n{"id": "salt", "text": "b"}\n')
    pl.DataFrame([{"qid": "9", "docid": "NA", "rank": 1, "score": 1.0}]).write_parquet("other.parquet")
    results = set[Any]()
    for form in ("parquet", "indented array", "tsv", "csv", "jsonl"):
        folder = here / form.replace(" ", "-")
        folder.mkdir()
        paths = {kind: written(folder, kind, form, {}) for kind in GIVEN}
        done = hybrid(*command.format(**paths).split(), *(["--overwrite"] if output else []))
        assert done.code == 0, (form, done.err)
        results.add(done.out.replace(str(folder), "") if not output else output_of(here / output))
    assert len(results) == 1


def output_of(path: Path) -> Any:
    if path.suffix == ".parquet":
        return str(pl.read_parquet(path).to_dicts())
    if path.is_dir():
        return str(pl.read_parquet(sorted(path.rglob("part-*.parquet"))).to_dicts())
    if path.suffix == ".html":
        return path.exists()
    return (
        path.read_text("utf-8")
        if path.suffix == ".txt"
        else json.dumps(json.loads(path.read_text("utf-8")).get("trials", path.name))
    )
