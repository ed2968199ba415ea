"""Checks of the readers on random files; see fuzz.py."""

import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import polars as pl
from fuzz_inputs import (
    EDIT,
    FEW,
    GRADE,
    ID,
    JSON,
    LINE,
    SCORE,
    TEXT,
    WORD,
    Edits,
    Files,
    Rows,
    accepted,
    as_json,
    changed,
    damaged,
    edited,
    folder_of,
    json_lines,
    tabbed,
    target,
)
from hypothesis import strategies as st

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts.manifest import Manifest
from hybrid_cli.collections import collection, folds
from hybrid_cli.commands import PrepareBeir, PrepareDpr, PrepareMsmarco, PrepareTrec
from hybrid_cli.commands.data import PrepareRows
from hybrid_cli.encoders import composite
from hybrid_cli.encoders.contract import Contract, read_contract
from hybrid_cli.fusion.weights import read_tuned, stored_recipe
from hybrid_cli.inputs.json_values import make_typed
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.storage import layout
from hybrid_cli.storage.records import hash_json

# -------------------------------------------------------------------------------------------------------- collections


def content_of(made: Path) -> dict[str, Rows]:
    """Return documents, and queries and judgments of each split, each in a fixed order."""
    content = {"documents": sorted(collection.scan(made).drop("corpus_row").collect().rows())}
    for role, read in (("queries", collection.read_queries), ("qrels", collection.read_qrels)):
        for file in sorted(made.glob(f"{role}.*.parquet")):
            content[file.name] = sorted(read(file).rows(), key=repr)
    return content


def again(content: dict[str, Rows], folder: Path) -> dict[str, Rows]:
    """Write a collection as JSON lines and tab-separated judgments, and import it."""
    (folder / "d.jsonl").write_bytes(
        json_lines([{"_id": docid, "title": title, "text": text} for docid, title, text in content["documents"]])
    )
    topics: dict[str, Path] = {}
    qrels: dict[str, Path] = {}
    for name, rows in content.items():
        role, _, split = name.removesuffix(".parquet").partition(".")
        if role == "queries":
            topics[split] = folder / f"q{len(topics)}.jsonl"
            lines = [{"_id": q, "text": t} | ({} if a is None else {"answers": a}) for q, t, a in rows]
            topics[split].write_bytes(json_lines(lines))
        elif role == "qrels":
            qrels[split] = folder / f"r{len(qrels)}.tsv"
            qrels[split].write_bytes(tabbed(*rows))
    return content_of(prepare(PrepareTrec(folder / "d.jsonl", queries=topics, qrels=qrels, output=folder / "again")))


def check_import(files: Files, valid: bool, command: Callable[[Path], PrepareRows]) -> None:
    """Import files; check that the collection is equal after writing and importing it again."""
    with folder_of(files) as folder:
        made = accepted(lambda: prepare(command(folder)), valid)
        if made is None:
            assert not (folder / "made").exists()
            return
        content = content_of(made)
        assert again(content, folder) == content


@st.composite
def judged(draw: st.DrawFn, least: int = 1) -> tuple[list[str], list[str], Rows]:
    docids = draw(st.lists(ID, min_size=1, max_size=4, unique=True))
    qids = draw(st.lists(ID, min_size=1, max_size=3, unique=True))
    pairs = st.tuples(st.sampled_from(qids), st.sampled_from(docids))
    chosen = draw(st.lists(pairs, min_size=least, max_size=4, unique=True))
    return docids, qids, [(q, d, draw(GRADE)) for q, d in chosen]


@st.composite
def beir_files(draw: st.DrawFn) -> Files:
    docids, qids, rows = draw(judged())
    return {
        "corpus.jsonl": json_lines([{"_id": d, "title": draw(TEXT), "text": draw(TEXT)} for d in docids]),
        "queries.jsonl": json_lines([{"_id": q, "text": draw(TEXT), "metadata": {}} for q in qids]),
        "qrels/test.tsv": tabbed(("query-id", "corpus-id", "score"), *rows),
    }


@target(damaged(beir_files()))
def beir(drawn: tuple[Files, bool]) -> None:
    check_import(*drawn, lambda folder: PrepareBeir(folder, output=folder / "made"))


@st.composite
def msmarco_files(draw: st.DrawFn) -> Files:
    docids, qids, rows = draw(judged())
    triples = [(q, d, draw(st.sampled_from(docids))) for q, d, _ in rows]
    return {
        "collection.tsv": tabbed(*((d, draw(LINE)) for d in docids)),
        "queries.tsv": tabbed(*((q, draw(LINE)) for q in qids)),
        "qrels.tsv": tabbed(*((q, 0, d, grade) for q, d, grade in rows)),
        "triples.tsv": tabbed(*triples),
    }


@target(damaged(msmarco_files()))
def msmarco(drawn: tuple[Files, bool]) -> None:
    check_import(
        *drawn,
        lambda folder: PrepareMsmarco(
            folder / "collection.tsv",
            queries={"dev": folder / "queries.tsv", "train": folder / "queries.tsv"},
            qrels={"dev": folder / "qrels.tsv"},
            training={"train": folder / "triples.tsv"},
            output=folder / "made",
        ),
    )


@st.composite
def dpr_files(draw: st.DrawFn) -> Files:
    docids, qids, rows = draw(judged())
    passages = [{"passage_id": d, "text": "x", "title": "y"} for _, d, _ in rows]
    answers = st.lists(LINE.filter(lambda text: '"' not in text), max_size=2)
    training = [{"question": q, "answers": draw(answers), "positive_ctxs": passages} for q in qids]
    plain = LINE.filter(lambda text: '"' not in text)
    quoted = [d for d in docids if '"' not in d] or ["p"]
    if quoted != docids:
        training = []
    return {
        "psgs.tsv": tabbed(("id", "text", "title"), *((d, draw(plain), draw(plain)) for d in quoted)),
        "dev.tsv": tabbed(*((draw(WORD), json.dumps(["a", "b c"]).replace('"', "'")) for _ in qids)),
        "train.json": json.dumps(training, ensure_ascii=False).encode(),
    }


@target(damaged(dpr_files()))
def dpr(drawn: tuple[Files, bool]) -> None:
    check_import(
        drawn[0],
        False,  # an empty training file, which is drawn at times, is refused
        lambda folder: PrepareDpr(
            folder / "psgs.tsv",
            queries={"dev": folder / "dev.tsv"},
            training={"train": folder / "train.json"},
            output=folder / "made",
        ),
    )


@st.composite
def trec_files(draw: st.DrawFn) -> Files:
    docnos = draw(st.lists(WORD, min_size=1, max_size=3, unique=True))
    documents = [f"<DOC>\n<DOCNO> {d} </DOCNO>\n<TEXT>\n{draw(WORD)} &amp;\n</TEXT>\n</DOC>\n" for d in docnos]
    numbers = range(1, draw(st.integers(2, 4)))
    topics = [
        f"<top>\n<num> Number: {n}\n<title> {draw(WORD)}\n<desc> Description:\n{draw(WORD)}\n</top>\n" for n in numbers
    ]
    return {
        "documents.txt": "".join(documents).encode(),
        "topics.txt": "".join(topics).encode(),
        "qrels.txt": "".join(f"{n} 0 {draw(st.sampled_from(docnos))} {draw(GRADE)}\n" for n in numbers).encode(),
    }


@target(damaged(trec_files()))
def trec(drawn: tuple[Files, bool]) -> None:
    check_import(
        *drawn,
        lambda folder: PrepareTrec(
            folder / "documents.txt",
            queries={"test": folder / "topics.txt"},
            qrels={"test": folder / "qrels.txt"},
            output=folder / "made",
        ),
    )


# ------------------------------------------------------------------------------------------------------- single files


def check_table(name: str, content: bytes, valid: bool, read: Callable[[Path], pl.DataFrame], written: Any) -> None:
    """Read a file; check that the table is equal after writing it, by `written`, and reading it again."""
    with folder_of({name: content}) as folder:
        found = accepted(lambda: read(folder / name), valid)
        if found is not None:
            path, data = written(found)
            (folder / path).write_bytes(data)
            assert read(folder / path).equals(found)


def _queries_written(found: pl.DataFrame) -> tuple[str, bytes]:
    lines = [{"id": q, "text": t} | ({} if a is None else {"answers": a}) for q, t, a in found.rows()]
    return "again.jsonl", json_lines(lines)


def _parquet(found: pl.DataFrame) -> tuple[str, bytes]:
    data = io.BytesIO()
    found.write_parquet(data)
    return "again.parquet", data.getvalue()


@target(st.lists(st.tuples(ID, TEXT), min_size=1, max_size=4, unique_by=lambda row: row[0]), st.lists(EDIT, max_size=3))
def queries_jsonl(rows: Rows, edits: Edits) -> None:
    content = edited(json_lines([{"id": qid, "text": text} for qid, text in rows]), edits)
    check_table("queries.jsonl", content, not edits, collection.read_queries, _queries_written)


@target(st.lists(st.tuples(ID, LINE), min_size=1, max_size=4, unique_by=lambda row: row[0]), st.lists(EDIT, max_size=3))
def queries_tsv(rows: Rows, edits: Edits) -> None:
    check_table("q.tsv", edited(tabbed(*rows), edits), not edits, collection.read_queries, _queries_written)


@target(judged(0), st.booleans(), st.lists(EDIT, max_size=3))
def qrels(drawn: tuple[Any, Any, Rows], four: bool, edits: Edits) -> None:
    """Judgments in three or four columns."""
    rows = [(q, 0, d, grade) for q, d, grade in drawn[2]] if four else drawn[2]
    content = edited(tabbed(*rows), edits)
    valid = bool(rows) and not edits
    check_table("q.txt", content, valid, collection.read_qrels, lambda found: ("again.tsv", tabbed(*found.rows())))


@st.composite
def hits(draw: st.DrawFn, ids: st.SearchStrategy[str]) -> pl.DataFrame:
    pairs = draw(st.lists(st.tuples(ids, ids, SCORE), max_size=6, unique_by=lambda row: row[:2]))
    schema = {"qid": pl.String, "docid": pl.String, "score": pl.Float32}
    return runs.ranked(pl.DataFrame(pairs, schema=schema, orient="row"))


def _trec_lines(found: pl.DataFrame) -> bytes:
    text = found.with_columns(pl.col("score").cast(pl.String))
    return "".join(f"{q} Q0 {d} {rank} {score} tag\n" for q, d, rank, score in text.rows()).encode()


@target(hits(WORD).filter(lambda run: len(run) > 0), st.lists(EDIT, max_size=3))
def run_trec(run: pl.DataFrame, edits: Edits) -> None:
    """Runs in TREC's format."""
    content = edited(_trec_lines(run), edits)
    check_table("run.txt", content, not edits, runs.read_run, _parquet)


_COLUMNS: dict[str, st.SearchStrategy[Any]] = {"qid": ID, "docid": ID, "rank": st.integers(1, 9), "score": SCORE}
_COLUMNS |= {"relevance": GRADE, "text": TEXT, "title": TEXT, "answers": st.lists(TEXT, max_size=2)}
_OTHERS = (st.none() | TEXT, st.none(), st.booleans(), st.floats(), st.integers(-(2**63), 2**63 - 1), st.binary())


@st.composite
def tables(draw: st.DrawFn) -> pl.DataFrame:
    """Draw a table with the names of our columns; one may have another type, and one may be missing."""
    rows, other = draw(st.integers(0, 4)), draw(st.sampled_from([*_COLUMNS, None, None]))
    columns = {}
    for name, kind in _COLUMNS.items():
        values = st.lists(draw(st.sampled_from(_OTHERS)) if name == other else kind, min_size=rows, max_size=rows)
        columns[name] = pl.Series(name, draw(values), strict=False)
    return pl.DataFrame(columns).drop(draw(st.sampled_from([[], [], *([name] for name in _COLUMNS)])))


_PARQUET_READERS = (runs.read_run, collection.read_queries, collection.read_qrels)


@target(st.one_of(hits(ID), tables()), st.sampled_from(_PARQUET_READERS), FEW)
def parquet(table: pl.DataFrame, read: Callable[[Path], pl.DataFrame], edits: Edits) -> None:
    check_table("table.parquet", edited(_parquet(table)[1], edits), False, read, _parquet)


@target(tables(), FEW)
def corpus_parquet(table: pl.DataFrame, edits: Edits) -> None:

    def read(path: Path) -> pl.DataFrame:
        for _ in collection.documents(path):
            pass
        return collection.texts(path, collection.docids(path))

    check_table("corpus.parquet", edited(_parquet(table)[1], edits), False, read, _parquet)


# ---------------------------------------------------------------------------------------------------------- JSON files

_MANIFEST: dict[str, Any] = {"kind": "run", "stage": "search", "options": {"hits": 10}, "fingerprint": "0" * 32}
_MANIFEST |= {"format": 2, "seconds": 1.5}
_MANIFEST |= {"inputs": {"index": {"path": "bm25", "kind": "lexical index", "fingerprint": "0" * 32}}, "files": ["x"]}
_MANIFEST |= {"counts": {"rows": 1}, "versions": {"python": "3.11"}, "checksums": {"x": "0" * 32}}


@target(changed(_MANIFEST), st.booleans(), st.lists(EDIT, max_size=2))
def manifest(content: dict[str, Any], signed: bool, edits: Edits) -> None:
    if signed:
        content = {**content, "checksum": hash_json(content)}
    with folder_of({"a/manifest.json": as_json(content, edits)}) as folder:
        found: Manifest | None = accepted(lambda: artifacts.find_manifest(folder / "a"), False)
        if found is not None:
            (folder / "a/manifest.json").write_text(found.to_json(), "utf-8")
            assert artifacts.find_manifest(folder / "a") == found
            for role in found.inputs:
                found.input_path(role)
                found.input_label(role)


_CONTRACT = Contract(query_prefix="q: ", dim=8, truncate_dim=4, binary=True).to_dict()
_RECIPE = {"kind": "combination", "combine": "concat", "weight": 0.5, "changes": [{}, {"pooling": "cls"}]}


@target(changed(_CONTRACT), st.lists(EDIT, max_size=1))
def encoder_json(content: dict[str, Any], edits: Edits) -> None:
    with folder_of({layout.CONTRACT: as_json(content, edits)}) as folder:
        found = accepted(lambda: read_contract(folder), False)
        if found is not None:
            (folder / layout.CONTRACT).write_text(json.dumps(found.to_dict()), "utf-8")
            assert read_contract(folder) == found


@target(changed(_RECIPE), st.lists(EDIT, max_size=1))
def combination_json(content: dict[str, Any], edits: Edits) -> None:
    with folder_of({layout.CONTRACT: as_json(content, edits)}) as folder:
        found = accepted(lambda: composite.read_recipe(folder), False)
        if found is not None:
            assert make_typed(composite.CombinationRecipe, json.loads(json.dumps(asdict(found))), "again") == found


_WEIGHTS = {"runs": ["a", "b"], "weights": [0.3, 0.7], "measure": "MRR@10", "method": "minmax", "missing": "zero"}
_WEIGHTS |= {"normalize": None, "rrf_k": None, "judged": ["1"]}
_TUNED = {**_MANIFEST, "kind": "fusion weights", "checksums": None, "files": None}
_TUNED |= {"options": {"method": "minmax", "missing": "zero", "normalize": None}}


@target(changed(_WEIGHTS), FEW)
def weights(content: dict[str, Any], edits: Edits) -> None:
    made = {**_TUNED, "fingerprint": hash_json(content)}
    made |= {"checksum": hash_json(made)}
    with folder_of({"w.json": as_json({"manifest": made, **content}, edits)}) as folder:
        found = accepted(lambda: stored_recipe(folder / "w.json", read_tuned(folder / "w.json"), ["a", "b"], {}), False)
        assert found is None or len(found.weights) == 2


@target(JSON | st.just([["1"], ["2"]]) | st.just([["1", "3"], ["2"]]), FEW)
def fold_files(content: Any, edits: Edits) -> None:
    for name, data in (("f.json", as_json(content, edits)), ("f.txt", edited(b"1 1\n2 2\n3 2\n", edits))):
        with folder_of({name: data}) as folder:
            file = folder / name
            found = accepted(lambda: folds.predefined_folds(file, {"1", "2"}, {"3"}), False)  # noqa: B023
            assert found is None or {qid for fold in found for qid in fold} == {"1", "2"}
