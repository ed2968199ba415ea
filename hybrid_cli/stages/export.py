"""`hybrid export`: artifacts in the forms of other tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from hybrid_cli import artifacts, console, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.artifacts.layout import DOCIDS, FAISS_INDEX
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.answers import matcher, passage_form
from hybrid_cli.encoders.contract import TRANSFORMER, kind_of
from hybrid_cli.errors import InputError
from hybrid_cli.indexes import DenseIndex

Format = Literal["trec", "msmarco", "dpr", "sentence-transformers", "pyserini"]
FORMATS: tuple[Format, ...] = get_args(Format)
QUERIES_AT_ONCE = 256


def export(
    path: Path,
    *,
    form: Format,
    output: Path,
    collection: Path | None = None,
    split: str | None = None,
    hits: int | None = None,
    tag: str = "hybrid",
    overwrite: bool = False,
) -> Path:
    """Write the artifact at `path` in the form of another tool: a run, judgements, an encoder, a dense index.

    Args:
        form: `trec` (runs, qrels), `msmarco` and `dpr` (runs), `sentence-transformers` (encoders), `pyserini`
            (dense indexes).
        collection: where texts, questions and answers are; needed by `dpr`.
        hits: documents of a query; all if None.
        tag: last column of a TREC run.

    Raises:
        InputError: the artifact has no such form, or an id cannot stand in it.
    """
    kind = _kind(path)
    write = _WRITERS.get((kind, form))
    if write is None:
        ours = ", ".join(name for known, name in _WRITERS if known == kind) or "none"
        raise InputError(f"{path}: is {kind.phrase}, which has no form '{form}'; its forms: {ours}")
    if form == "dpr" and collection is None:
        raise InputError("--format dpr writes texts and answers; name their --collection")
    options = {"split": split, "hits": hits, "tag": tag}
    inputs = {"artifact": path} | ({"collection": collection} if collection else {})
    claim = artifacts.open_output(
        output,
        kind,
        f"export {form}",
        inputs=inputs,
        options={"format": form, **options},
        overwrite=overwrite,
        foreign=True,
    )
    with claim.scratch() as scratch:
        count = write(path, scratch, {**options, "collection": collection})
    console.note(f"export: {count} -> {output} ({form})")
    return output


def _kind(path: Path) -> Kind:
    """What stands at `path`; a text file of six columns is a run."""
    manifest = artifacts.find_manifest(path)
    if manifest is not None:
        return manifest.kind
    if path.is_dir():
        return Kind.ENCODER if (path / "modules.json").is_file() else artifacts.read_manifest(path).kind
    if path.suffix == ".parquet" and {"relevance", "docid"} <= set(pl.read_parquet_schema(path)):
        return Kind.QRELS
    return Kind.RUN


# --------------------------------------------------------------------------------------------------- runs and qrels


def strictly_decreasing(run: pl.DataFrame) -> pl.DataFrame:
    """Lower scores just enough that in the order of the ranks each is less than the one before.

    A score that does not fall becomes the next smaller float32, so trec_eval, which reads float32 and orders equal
    scores by docid descending, finds the order of the rank column. Others stay as they are.
    """
    bits = run["score"].cast(pl.Float32).to_numpy().view("int32").astype("int64")
    whole = abs(bits & 0x7FFFFFFF).clip(_SMALLEST) - _SMALLEST  # consecutive integers for consecutive numbers
    steps = pl.Series("_steps", whole * (1 - 2 * (bits < 0)))
    place = pl.int_range(pl.len()).over("qid")
    ordered = run.with_columns(steps).sort("qid", "rank", maintain_order=True)
    ordered = ordered.with_columns(((pl.col("_steps") + place).cum_min().over("qid") - place).alias("_steps"))
    lowered = ordered["_steps"].to_numpy()
    magnitude = (abs(lowered) + _SMALLEST * (lowered != 0)).astype("int32").view("float32")
    return ordered.with_columns(pl.Series("score", magnitude * (1 - 2 * (lowered < 0)).astype("float32"))).drop(
        "_steps"
    )


_SMALLEST = 0x00800000  # bits of the smallest normal float32; smaller ones count as 0, since some readers lose them


def _read_run(path: Path, options: dict[str, Any]) -> pl.DataFrame:
    run = runs.read_run(path)
    return run if options["hits"] is None else run.filter(pl.col("rank") <= options["hits"])


def _refuse_ids(frame: pl.DataFrame, pattern: str, path: Path, form: Format, cause: str) -> None:
    """Refuse ids that would be read back as something else."""
    for name in ("qid", "docid"):
        bad = frame.filter(pl.col(name).str.contains(pattern) | (pl.col(name) == "")).get_column(name)
        if len(bad):
            raise InputError(
                f"{path}: {name} {bad[0]!r} cannot stand in the form {form}, {cause} "
                f"({bad.n_unique():,} such ids); rename them in the collection"
            )


def _trec_run(path: Path, scratch: Path, options: dict[str, Any]) -> str:
    run = _read_run(path, options)
    _refuse_ids(run, r"\s", path, "trec", "whose columns end at white space")
    if not options["tag"] or options["tag"].split() != [options["tag"]]:
        raise InputError(f"--tag {options['tag']!r}: needs one word without white space")
    lines = strictly_decreasing(run).select("qid", pl.lit("Q0"), "docid", "rank", "score", tag=pl.lit(options["tag"]))
    return _columns(lines, scratch, " ", f"{run['qid'].n_unique():,} queries, {len(run):,} hits")


def _msmarco_run(path: Path, scratch: Path, options: dict[str, Any]) -> str:
    run = _read_run(path, options)
    _refuse_ids(run, r"[\t\r\n]", path, "msmarco", "whose columns end at tabs")
    return _columns(
        run.select("qid", "docid", "rank"), scratch, "\t", f"{run['qid'].n_unique():,} queries, {len(run):,} hits"
    )


def _trec_qrels(path: Path, scratch: Path, options: dict[str, Any]) -> str:
    qrels = collections.read_qrels(path)
    _refuse_ids(qrels, r"\s", path, "trec", "whose columns end at white space")
    lines = qrels.select("qid", pl.lit("0"), "docid", "relevance")
    return _columns(lines, scratch, " ", f"{len(qrels):,} judgements")


def _columns(frame: pl.DataFrame, file: Path, separator: str, count: str) -> str:
    text = frame.select(pl.all().cast(pl.String))  # a float32 as its shortest text that reads back as the same
    text.write_csv(file, include_header=False, separator=separator, quote_style="never")
    return count


def _dpr_run(path: Path, scratch: Path, options: dict[str, Any]) -> str:
    collection: Path = options["collection"]
    run = _read_run(path, options)
    queries = collections.read_queries(collections.queries_path(collection, options["split"]))
    missing = run.join(queries, on="qid", how="anti")["qid"].unique(maintain_order=True)
    if len(missing):
        raise InputError(f"{collection}: lacks {len(missing):,} queries of {path} ({missing[0]}, ...); name the split")
    texts = collections.texts(collection, run["docid"])
    absent = run.join(texts, on="docid", how="anti")["docid"].unique(maintain_order=True)
    if len(absent):
        raise InputError(f"{collection}: lacks {len(absent):,} documents of {path} ({absent[0]}, ...)")
    with scratch.open("w", encoding="utf-8") as file:
        opening = "[\n"
        for record in _dpr_records(run, queries, texts):
            file.write(opening + json.dumps(record, ensure_ascii=False))
            opening = ",\n"
        file.write("\n]\n" if len(run) else "[]\n")
    return f"{run['qid'].n_unique():,} questions, {len(run):,} passages"


def _dpr_records(run: pl.DataFrame, queries: pl.DataFrame, texts: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """One record a question, as DPR's retriever writes them; scores are strings there."""
    for part in queries.join(run, on="qid", how="semi", maintain_order="left").iter_slices(QUERIES_AT_ONCE):
        hits = part.join(run, on="qid", maintain_order="left_right").join(
            texts, on="docid", suffix="_document", maintain_order="left"
        )
        for _, group in hits.group_by("qid", maintain_order=True):
            answers = group["answers"][0]
            answers = [] if answers is None else answers.to_list()
            bears = matcher(answers)
            yield {
                "question": group["text"][0],
                "answers": answers,
                "ctxs": [
                    {
                        "id": docid,
                        "title": title,
                        "text": text,
                        "score": str(score),
                        "has_answer": bears(passage_form(text)),
                    }
                    for docid, title, text, score in group.select(
                        "docid", "title", "text_document", "score"
                    ).iter_rows()
                ],
            }


# ------------------------------------------------------------------------------------------ encoders and indexes


def _sentence_transformers(path: Path, scratch: Path, options: dict[str, Any]) -> str:
    if (kind := kind_of(path)) != TRANSFORMER:
        raise InputError(f"{path}: is a {kind} encoder, which sentence-transformers cannot open; export a transformer")
    towers = [path] if (path / "modules.json").is_file() else [path / "query", path / "document"]
    for tower in towers:
        if not (tower / "modules.json").is_file():
            raise InputError(f"{path}: holds no sentence-transformers model (modules.json); make the encoder again")
    shutil.copytree(path, scratch, ignore=shutil.ignore_patterns(artifacts.MANIFEST, ".*"))
    return "one model" if len(towers) == 1 else "two models, query/ and document/"


def _pyserini(path: Path, scratch: Path, options: dict[str, Any]) -> str:
    index = DenseIndex.open(path)
    if index.binary:
        raise InputError(f"{path}: holds sign codes, which Pyserini's FaissSearcher does not open; encode another type")
    bad = index.docids.filter(index.docids.str.contains(r"[\r\n]|\s$") | (index.docids == ""))
    if len(bad):
        raise InputError(f"{path}: docid {bad[0]!r} cannot stand on a line of Pyserini's file of ids; rename it")
    scratch.mkdir()
    shutil.copyfile(path / FAISS_INDEX, scratch / "index")
    pl.read_parquet(path / DOCIDS).select("docid").write_csv(
        scratch / "docid", include_header=False, quote_style="never"
    )
    return f"{len(index.docids):,} vectors of {index.dim}"


_WRITERS: dict[tuple[Kind, Format], Callable[[Path, Path, dict[str, Any]], str]] = {
    (Kind.RUN, "trec"): _trec_run,
    (Kind.RUN, "msmarco"): _msmarco_run,
    (Kind.RUN, "dpr"): _dpr_run,
    (Kind.QRELS, "trec"): _trec_qrels,
    (Kind.ENCODER, "sentence-transformers"): _sentence_transformers,
    (Kind.DENSE_INDEX, "pyserini"): _pyserini,
}
