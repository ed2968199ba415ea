"""`export`: convert artifacts to the formats of other tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from hybrid_cli import artifacts, console, runs, storage
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.opening import open_dense
from hybrid_cli.artifacts.retrievers import RetrieverFiles, of_auto
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Export
from hybrid_cli.commands.analysis import FORMATS
from hybrid_cli.encoders.contract import TRANSFORMER, kind_of, read_contract
from hybrid_cli.encoders.models import named_model
from hybrid_cli.errors import InputError, option_error, path_error
from hybrid_cli.evaluation.accuracy import matcher, passage_form
from hybrid_cli.exports.engine import ENGINES
from hybrid_cli.exports.folder import FOLDER, write_folder
from hybrid_cli.exports.hub import CARD, model_card
from hybrid_cli.inputs.files import PARQUET
from hybrid_cli.inputs.json_values import read_object
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.runs import Run
from hybrid_cli.runs.files import short_names
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind, disk, layout
from hybrid_cli.storage.layout import DOCIDS, FAISS_INDEX

QUERIES_AT_ONCE = 256
_OPENED = {  # how another tool opens a format
    **dict.fromkeys(
        ("sentence-transformers", "hub"),
        "from sentence_transformers import SentenceTransformer; "
        'model = SentenceTransformer("{path}"); model.encode_query(["..."])',
    ),
    "parquet": "Code for Qdrant: docs/export.md",
    "pyserini": "from pyserini.search.faiss import FaissSearcher; "
    'FaissSearcher("{path}", query_encoder=None).search(VECTORS, k=10)  (Java 21 or later)',
    "anserini": "in a folder of its own: python -m pyserini.index.lucene --collection JsonVectorCollection "
    "--input FOLDER --index INDEX --generator DefaultLuceneDocumentGenerator --pretokenized",
}
_TWO_TOWERS = (  # in the format sentence-transformers
    "from sentence_transformers import SentenceTransformer; "
    'SentenceTransformer("{path}/query").encode_query(["..."]); '
    'SentenceTransformer("{path}/document").encode_document(["..."])'
)
_TREC = {  # how trec_eval reads a run and judgments
    Kind.RUN: "trec_eval -m all_trec QRELS {path}",
    Kind.QRELS: "trec_eval -m all_trec {path} RUN",
}
FUSION = "fusion.json"  # next to the exported indexes of a retriever
_FUSION = ("method", "weights", "missing", "normalize", "rrf_k", "depth", "group", "shares", "scales", "reranker")
_MODELS = ("sentence-transformers", "hub")  # formats of an encoder
_FILES = ("trec", "msmarco", "dpr", "anserini")  # formats of one file
_OF_ENGINES = "Commands, and what the engine computes differently: {path}/README.md"

Writer = Callable[[Path, Path, Export], str]  # artifact, output, settings -> description of the written content


@stage(Export)
def export(settings: Export) -> Path:
    """Convert a run, qrels, an encoder or an index to the format of another tool.

    Returns:
        Path of the output.

    Raises:
        InputError: the artifact has no such format, or an id does not fit it.
    """
    given = of_auto(settings.path)
    path = named_model(given)
    kind = _kind(path)
    forms = _formats(path, kind)
    if settings.form not in forms:
        subject = f"{kind.phrase} {'have' if kind.is_plural else 'has'} no format '{settings.form}'"
        problem = f"{path}: {subject}; available: {', '.join(forms) or 'none'}"
        raise InputError(problem, code="unknown-choice", option="format", value=settings.form, path=path, choices=forms)
    settings.check_facts(subject=f"{path} {kind.predicate}", artifact=kind.phrase)
    if settings.form == FOLDER:
        return write_folder(path, settings.output, settings.overwrite)
    if settings.collection is None and (settings.form == "dpr" or settings.split is not None):
        raise option_error("collection", None, "needed by --format dpr, and by --split", code="missing-option")
    artifact = path if path == given else artifacts.Named(str(settings.path), path)
    inputs: dict[str, Path | artifacts.Named] = {"artifact": artifact}
    names = ("collection", "dense", "qrels", "measurements")
    inputs |= {name: given for name in names if (given := getattr(settings, name)) is not None}
    compare = settings.output.is_dir() == (settings.form not in _FILES)
    options, stage_name = settings.recorded(artifact=kind.phrase), f"export {settings.form}"
    output = artifacts.output_of(settings, kind, inputs, options, stage_name, foreign=True, compare=compare)
    write = _write_retriever if kind == Kind.RETRIEVER else _writers()[kind, settings.form]
    with output.scratch() as scratch:
        count = write(path, scratch, settings)
    output.note(count)
    _note_opening(output.path, settings.form, _TREC.get(kind, ""))
    if kind == Kind.RETRIEVER:
        console.note(f"  Method, weights and depth of the fusion: {output.path / FUSION}", code="fusion-written")
    if settings.form in _MODELS and (folder := path / layout.CONTRACT).is_file():
        contract = read_contract(folder.parent)
        if contract.tied and contract.query_max_len != contract.doc_max_len:
            lengths = {name: getattr(contract, name) for name in ("query_max_len", "doc_max_len")}
            note = "encode_query cuts at {} word pieces, encode_document at {}; needs sentence-transformers 6"
            console.note("  " + note.format(*lengths.values()), code="two-lengths", **lengths)
    return output.path


def _note_opening(output: Path, form: str, trec: str = "") -> None:
    """Print how another tool opens an exported artifact."""
    two = form == "sentence-transformers" and not (output / layout.MODULES).is_file()
    known = trec if form == "trec" else _OF_ENGINES if form in ENGINES else ""
    hint = _TWO_TOWERS if two else _OPENED.get(form, known)
    if hint:
        console.note("  " + hint.format(path=output))


def _formats(path: Path, kind: Kind) -> list[str]:
    """Return the formats of an artifact; search engines have none for learned weights."""
    if kind == Kind.RETRIEVER:
        return [*(ENGINES if _fits_engines(RetrieverFiles.read(path)) else ()), FOLDER]
    learned = kind == Kind.LEXICAL_INDEX and _is_learned(path)
    return [form for known, form in _writers() if known == kind and not (learned and form not in FORMATS)]


def _is_learned(lexical: Path) -> bool:
    return "encoder" in artifacts.read_manifest(lexical, Kind.LEXICAL_INDEX).counts


def _kind(path: Path) -> Kind:
    """Return the kind of an artifact; a text file counts as a run."""
    manifest = artifacts.find_manifest(path)
    if manifest is not None:
        return manifest.kind
    if path.is_dir():
        return Kind.ENCODER if (path / layout.MODULES).is_file() else artifacts.read_manifest(path).kind
    if path.suffix in PARQUET and {"relevance", "docid"} <= set(pl.read_parquet_schema(path)):
        return Kind.QRELS
    return Kind.RUN


# --------------------------------------------------------------------------------------------------- runs and qrels


def strictly_decreasing(run: pl.DataFrame) -> pl.DataFrame:
    """Lower tied scores so that they decrease strictly with the rank.

    A tied score becomes the next smaller float32. trec_eval reads scores as float32 and orders ties by docid
    descending (trec_eval), so it finds the order of the rank column. Other scores are unchanged.
    """
    bits = run["score"].cast(pl.Float32).to_numpy().view("int32").astype("int64")
    whole = abs(bits & 0x7FFFFFFF).clip(_SMALLEST) - _SMALLEST  # consecutive integers for consecutive floats
    steps = pl.Series("_steps", whole * (1 - 2 * (bits < 0)))
    position = pl.int_range(pl.len()).over("qid")
    ordered = run.with_columns(steps).sort("qid", "rank", maintain_order=True)
    ordered = ordered.with_columns(((pl.col("_steps") + position).cum_min().over("qid") - position).alias("_steps"))
    lowered = ordered["_steps"].to_numpy()
    magnitude = (abs(lowered) + _SMALLEST * (lowered != 0)).astype("int32").view("float32")
    return ordered.with_columns(pl.Series("score", magnitude * (1 - 2 * (lowered < 0)).astype("float32"))).drop(
        "_steps"
    )


_SMALLEST = 0x00800000  # bits of the smallest normal float32; some readers flush smaller numbers to 0


def _write_run(path: Path, scratch: Path, settings: Export) -> str:
    """Write the columns of every hit, block by block; return the number of queries and hits."""
    run, tag = runs.open_run(path).top(settings.hits), pl.lit("_".join(settings.output.stem.split()))
    with disk.create(scratch) as file:
        for hits in run.blocks():
            if settings.form == "trec":  # the last column names the run
                hits = strictly_decreasing(hits)
                _write_columns(hits.select("qid", pl.lit("Q0"), "docid", "rank", "score", tag=tag), file, path)
            else:
                _write_columns(hits.select("qid", "docid", "rank"), file, path, "\t")
    return console.counted(query=len(run.queries), hit=run.hits)


def _trec_qrels(path: Path, scratch: Path, settings: Export) -> str:
    qrels = collections.read_qrels(path)
    with disk.create(scratch) as file:
        _write_columns(qrels.select("qid", pl.lit("0"), "docid", "relevance"), file, path)
    return console.counted(judgment=len(qrels))


def _write_columns(frame: pl.DataFrame, file: BinaryIO, path: Path, separator: str = " ") -> None:
    """Write rows; refuse ids with white space that separates the columns."""
    pattern = r"\s" if separator == " " else r"[\t\r\n]"
    for name in ("qid", "docid"):
        bad = frame.filter(pl.col(name).str.contains(pattern) | (pl.col(name) == "")).get_column(name)
        if len(bad):
            problem = f"{name} {bad[0]!r} does not fit the columns of the format; rename such ids"
            raise path_error(path, problem, code="unsafe-name", id=bad[0], column=name)
    text = frame.select(pl.all().cast(pl.String))  # the shortest text that reads back as the same float32
    text.write_csv(file, include_header=False, separator=separator, quote_style="never")


def _dpr_run(path: Path, scratch: Path, settings: Export) -> str:
    collection = settings.collection
    assert collection is not None
    belongs_together([path], corpus=collections.corpus_path(collection))
    run = runs.open_run(path).top(settings.hits)
    queries = collections.read_queries(collections.queries_path(collection, settings.split))
    missing = run.queries.join(queries, on="qid", how="anti", maintain_order="left")["qid"]
    if len(missing):
        problem = f"lacks {console.counted(query=len(missing))} of {path} ({missing[0]}, ...); pass their --split"
        raise path_error(collection, problem, code="other-queries", run=path, id=missing[0])
    queries = queries.join(run.queries, on="qid", how="semi", maintain_order="left")
    run = run.in_order(queries["qid"])
    with disk.create_text(scratch) as file:
        file.write("[")
        for number, record in enumerate(_dpr_records(run, queries, collection, path)):
            file.write((",\n" if number else "\n") + json.dumps(record, ensure_ascii=False))
        file.write("\n]\n" if run.hits else "]\n")
    return console.counted(question=len(queries), passage=run.hits)


def _dpr_records(run: Run, queries: pl.DataFrame, collection: Path, path: Path) -> Iterator[dict[str, Any]]:
    """Yield one record per question, as DPR's retriever writes them (DPR), with scores as text.

    One pass over the corpus reads the texts of all questions.
    """
    docids = pl.concat([pl.Series("docid", [], pl.String), *(block["docid"].unique() for block in run.blocks())])
    texts = collections.texts(collection, docids)
    absent = docids.filter(~docids.is_in(texts["docid"].implode())).unique().sort()
    if len(absent):
        count = len(absent)
        problem = f"lacks {console.counted(document=count)} of {path} ({absent[0]}, ...)"
        raise path_error(collection, problem, code="other-corpus", run=path, id=absent[0], count=count)
    for part in queries.iter_slices(QUERIES_AT_ONCE):
        found = run.in_order(part["qid"]).table().join(texts, on="docid", maintain_order="left")
        hits = dict(found.partition_by("qid", as_dict=True, maintain_order=True))
        for qid, question, answers in part.select("qid", "text", "answers").iter_rows():
            has_answer = matcher(answers or [])
            columns = hits[qid,].select("docid", "title", "text", "score").iter_rows()
            contexts = [
                {"id": docid, "title": title, "text": text, "score": str(score)}
                | {"has_answer": has_answer(passage_form(text))}
                for docid, title, text, score in columns
            ]
            yield {"question": question, "answers": answers or [], "ctxs": contexts}


# ------------------------------------------------------------------------------------------ encoders and indexes


def _sentence_transformers(path: Path, scratch: Path, settings: Export) -> str:
    if (kind := kind_of(path)) != TRANSFORMER:
        problem = f"a {kind} encoder has no format sentence-transformers; only a transformer has"
        raise path_error(path, problem, code="other-kind", kind=kind)
    towers = [path] if (path / layout.MODULES).is_file() else [path / "query", path / "document"]
    for tower in towers:
        if not (tower / layout.MODULES).is_file():
            problem = f"{path}: no sentence-transformers model (modules.json); train or save the encoder again"
            raise InputError(problem, code="no-such-file", path=path, expected=layout.MODULES)
    storage.check_parts(path)
    ignored = shutil.ignore_patterns(storage.MANIFEST, ".*", layout.TRACKING)
    with disk.note_path(scratch):  # copytree collects the errors of all files
        shutil.copytree(path, scratch, ignore=ignored, copy_function=lambda *names: disk.copy(*map(Path, names)))
    if (path / layout.CONTRACT).is_file():
        contract = read_contract(path)
        if contract.query_max_len != contract.doc_max_len:
            name = "query_length" if contract.tied else "max_seq_length"
            file = (scratch if contract.tied else scratch / "query") / "sentence_bert_config.json"
            disk.write_text(file, json.dumps(read_object(file) | {name: contract.query_max_len}, indent=2) + "\n")
    return "one model" if len(towers) == 1 else "two models, query/ and document/"


def _hub(path: Path, scratch: Path, settings: Export) -> str:
    """Write the files of sentence-transformers with a model card."""
    if (path / "query").is_dir():
        problem = "has two towers, and a repository of the hub has one model; use --format sentence-transformers"
        raise path_error(path, problem, code="two-towers")
    from hybrid_cli.encoders.adapters import read_base  # imports PyTorch

    base = read_base(path)
    if base is not None and ("/" not in base.model or Path(base.model).is_absolute()):
        command = f"hybrid convert-checkpoint {path} OUT --merge"
        problem = f"is a LoRA adapter of a model on this machine, {base.model}; merge it first: {command}"
        raise path_error(path, problem, code="model-adapter")
    _sentence_transformers(path, scratch, settings)
    for name in (layout.CURVE, layout.EPOCHS):
        disk.remove(scratch / name)
    card = model_card(path, settings.output.name, settings.license, settings.measurements)
    disk.write_text(scratch / CARD, card)
    return "one model with a model card"


def _pyserini(path: Path, scratch: Path, settings: Export) -> str:
    index = open_dense(path)
    if index.binary:
        problem = "Pyserini's FaissSearcher does not open binary codes; encode with another --index-type"
        raise path_error(path, problem, code="other-index-type")
    bad = index.docids.filter(index.docids.str.contains(r"[\r\n]|\s$") | (index.docids == ""))
    if len(bad):
        problem = f"docid {bad[0]!r} does not fit a line of Pyserini's docid file; rename it"
        raise path_error(path, problem, code="unsafe-name", id=bad[0], column="docid")
    storage.check_parts(path, FAISS_INDEX, DOCIDS)
    scratch.mkdir()
    disk.copy(path / FAISS_INDEX, scratch / "index")
    with disk.create(scratch / "docid") as file:
        pl.read_parquet(path / DOCIDS, glob=False).select("docid").write_csv(
            file, include_header=False, quote_style="never"
        )
    return f"{console.counted(vector=len(index.docids))} of {index.dim}"


def _write_documents(path: Path, scratch: Path, settings: Export) -> str:
    """Write the documents of a lexical index, and the vectors of a dense one, for a search engine."""
    from hybrid_cli.exports.export import export_indexes

    return export_indexes(path, {"vector": settings.dense} if settings.dense else {}, None, scratch, settings)[0]


def _fits_engines(files: RetrieverFiles) -> bool:
    """Return whether a search engine takes the indexes of a retriever: one of BM25 and dense ones, without shards."""
    lexical, dense = files.of_kind(Kind.LEXICAL_INDEX), files.of_kind(Kind.DENSE_INDEX)
    whole = all(len(shards) == 1 for shards in files.manifests)
    fits = whole and len(lexical) == 1 and len(dense) + 1 == len(files.indexes)
    return fits and not _is_learned(lexical[0])


def _write_retriever(path: Path, scratch: Path, settings: Export) -> str:
    """Write the documents and the fusion of a retriever for a search engine."""
    from hybrid_cli.exports.comparison import loss_in_words, vectors_of
    from hybrid_cli.exports.export import export_indexes

    files = RetrieverFiles.read(path)
    (lexical,), vectors = files.of_kind(Kind.LEXICAL_INDEX), vectors_of(files)
    scratch.mkdir()
    count, engine = export_indexes(lexical, vectors, files, scratch, settings)
    if (loss := engine.get("loss")) is not None:
        console.note(f"export: {loss_in_words(loss, settings.form)}", code="engine-loss", **loss)
    written = {index: name for name, index in vectors.items()} | {lexical: ENGINES[settings.form].lexical}
    fusion = _fusion(files, written) | ({"engine": engine} if engine else {})
    disk.write_text(scratch / FUSION, json.dumps(fusion, indent=2) + "\n")
    return count


def _fusion(files: RetrieverFiles, written: Mapping[Path, str]) -> dict[str, Any]:
    """Return the fusion of a retriever, and for each index its kind and the field that was written."""
    rows = zip(short_names(files.indexes), files.manifests, files.stored.weights, files.indexes, strict=True)
    indexes = [
        {"name": name, "kind": str(shards[0].kind), "weight": weight, "written": written[index]}
        for name, shards, weight, index in rows
    ]
    return {**{name: getattr(files.stored, name) for name in _FUSION}, "indexes": indexes}


def _anserini(path: Path, scratch: Path, settings: Export) -> str:
    """Write one document per line: id, contents (empty) and vector, an object of terms and integers."""
    postings = Postings.open(path / layout.IMPACTS)
    docids = pl.read_parquet(path / DOCIDS, glob=False)["docid"]
    names = iter(docids)
    with disk.create_text(scratch) as file:
        for block in Impacts.learned(postings, 1.0).blocks():  # a weight times 1
            for begin, end in pairwise(block.ends.tolist()):
                weights = block.values[begin:end].astype(int).tolist()
                vector = dict(zip(postings.terms.gather(block.terms[begin:end]), weights, strict=True))
                record = {"id": next(names), "contents": "", "vector": vector}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    how = "counts, for BM25 of analyzed queries" if (path / layout.PARAMETERS).is_file() else "learned: add --impact"
    return f"{console.counted(document=len(docids), weight=len(postings))}; {how}"


def _writers() -> dict[tuple[Kind, str], Writer]:
    """Return kind of artifact, format -> writer, in the order of the messages."""
    return {
        (Kind.RUN, "trec"): _write_run,
        (Kind.RUN, "msmarco"): _write_run,
        (Kind.RUN, "dpr"): _dpr_run,
        (Kind.QRELS, "trec"): _trec_qrels,
        (Kind.ENCODER, "sentence-transformers"): _sentence_transformers,
        (Kind.ENCODER, "hub"): _hub,
        (Kind.DENSE_INDEX, "pyserini"): _pyserini,
        **{(Kind.LEXICAL_INDEX, name): _write_documents for name in ENGINES},
        (Kind.LEXICAL_INDEX, "anserini"): _anserini,
    }
