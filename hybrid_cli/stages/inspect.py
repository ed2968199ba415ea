"""`inspect`: describe an artifact or any file, compare artifacts with their manifests, or the memory of indexes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

from hybrid_cli import artifacts, console, runs, storage, words
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.belonging import belongs_together
from hybrid_cli.artifacts.indexes import corpora_of, info_of, input_path
from hybrid_cli.artifacts.judged import collection_of
from hybrid_cli.artifacts.lineage import indexes_of
from hybrid_cli.artifacts.opening import open_index
from hybrid_cli.artifacts.retrievers import RetrieverFiles, of_auto, read_retriever
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Inspect, SearchOptions
from hybrid_cli.commands.common import as_names
from hybrid_cli.encoders.models import named_model
from hybrid_cli.errors import DamageError, InputError, option_error, path_error
from hybrid_cli.evaluation.measures import evaluate_hits, mean_of
from hybrid_cli.evaluation.retrieved import removes_query, retrieved
from hybrid_cli.fusion import lists
from hybrid_cli.fusion.methods import FusionRecipe
from hybrid_cli.fusion.weights import read_tuned
from hybrid_cli.inputs.files import PARQUET, opened, read_bytes
from hybrid_cli.inputs.json_values import NOT_JSON, read_object
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.stages import stage
from hybrid_cli.storage import MANIFEST, Kind, disk, layout

SAMPLE_ROWS = 3
SAMPLE_CHARACTERS = 100
MEMORY_MEASURES = {  # (LITE, table 2)
    "recall@20": "R@20",
    "recall@100": "R@100",
    "accuracy@20": "Success@20",
    "accuracy@100": "Success@100",
}
_HEAD_BYTES = 1 << 16
_LONGEST = 10  # terms shown of a static table
_VALIDATED = "dev_"  # names of the values of a validation in a learning curve
_LONG_LISTS = ("trials", "judged")  # of tuned weights
_MANIFEST_FIELDS = ("stage", "options", "counts", "seconds", "versions", "fingerprint", "format")

Description = dict[str, Any]


@stage(Inspect)
def inspect(settings: Inspect) -> Description:
    """Describe an artifact or a file, or verify artifacts.

    Returns:
        path, what (text), parts (name -> bytes); for an index `memory`, its bytes by purpose, and `documents`; for
        an artifact the fields of its manifest and `inputs`, a list of role, path, kind, fingerprint, state
        (`unchanged`, `changed`, `missing`) and their own `inputs`; for tables rows, columns and sample; for encoders
        the contract, `best_values` (values of the validation at the best step) and, of a static encoder, `weights`
        (shape and longest vectors of each table); for learning curves the last values; for the file of `fuse --tune`
        `weights`; for a retriever `retriever`, the content of `retriever.json`. With `memory_table`: `memory_table`, a
        list of rows. With `verify`: `artifacts`, a list of path, kind, files (number), state (`INTACT`, `DAMAGED` or
        `UNCHECKED`), problems (one line for each damaged file) and inputs, a list of role, path, kind and state
        (`UNCHANGED`, `CHANGED`, `MISSING` or `DAMAGED`); with `engine`, see `exports.comparison.compare`.

    Raises:
        InputError: a path does not exist, or an artifact is damaged; with `verify`, a path is no artifact and contains
            none, or the engine cannot be compared.
    """
    if settings.verify:
        return _verify_paths(settings) if settings.engine is None else _compare(settings, settings.engine)
    if settings.memory_table is not None:
        return {"memory_table": _memory_table(settings, settings.memory_table)}
    path = _only_path(settings)
    path = path if path.exists() else named_model(path)
    manifest = artifacts.find_manifest(path)
    described: Description = {"path": str(path), "what": str(manifest.kind) if manifest else _guess(path)}
    if manifest:
        known, whole = asdict(manifest), artifacts.read_manifest(artifacts.enclosing_artifact(path))
        described |= {name: known[name] for name in _MANIFEST_FIELDS}
        described["inputs"] = list(_lineage(whole, (path.resolve(),)))
    described["parts"] = storage.sizes(path)
    if manifest and manifest.kind in (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX):
        try:
            described["memory"], described["documents"] = _memory(path, manifest)
        except FileNotFoundError as error:
            console.warn(f"{error.filename}: missing; build the damaged index again", code="missing-file")
    if manifest and manifest.kind == Kind.WEIGHTS:
        tuned = {name: value for name, value in read_tuned(path).items() if name not in _LONG_LISTS}
        return described | {"weights": {**tuned, "runs": dict(zip(tuned["runs"], tuned["weights"], strict=True))}}
    if manifest and manifest.kind == Kind.RETRIEVER:
        return described | {"retriever": asdict(read_retriever(path))}
    if path.is_dir():
        described |= _folder_content(path)
    elif path.suffix in PARQUET:
        described |= _table_content(path)
    elif path.suffix != ".html":
        described["head"] = _head(path)
    if manifest and (step := manifest.counts.get("best_step")) is not None and (path / layout.CURVE).is_file():
        storage.check_parts(path, layout.CURVE)
        rows = pl.read_parquet(path / layout.CURVE, glob=False).filter(step=int(step)).select("name", "value")
        described["best_values"] = {
            name: [int(step), value] for name, value in rows.iter_rows() if name.startswith(_VALIDATED)
        }
    return described


def _only_path(settings: Inspect) -> Path:
    """Return the path of a command that takes one."""
    paths = as_names(settings.paths)
    if len(paths) != 1:
        several = "" if settings.engine else "; --verify takes several artifacts, and --memory-table several runs"
        problem = f"inspect: needs one path, got {len(paths)}{several}"
        raise InputError(problem, code="number-of-values", option="paths", value=len(paths))
    return of_auto(Path(paths[0]))


def _memory(path: Path, manifest: Manifest) -> tuple[dict[str, int], int]:
    """Return the bytes of an index by purpose, and its number of documents."""
    if manifest.kind == Kind.DENSE_INDEX:
        from hybrid_cli.indexes.auto import footprint

        info = info_of(manifest)
        return footprint(path, info), info.vectors
    matrix = {part.stem: part.stat().st_size for part in (path / layout.IMPACTS).iterdir()}
    memory = {
        "impact matrix: postings": sum(matrix.pop(part) for part in ("lows", "starts", "highs", "tfs")),
        "impact matrix: terms and lengths": sum(matrix.values()),
        "ids": (path / layout.DOCIDS).stat().st_size,
    }
    if (path / layout.LUCENE).is_dir():
        memory["Lucene index"] = sum(part.stat().st_size for part in (path / layout.LUCENE).iterdir())
    return memory, storage.row_count(path / layout.DOCIDS)


def _lineage(manifest: Manifest, above: tuple[Path, ...]) -> Iterator[Description]:
    """Yield the inputs of an artifact, each with its own inputs, if they still exist."""
    for role, recorded in sorted(manifest.inputs.items()):
        path = input_path(manifest, role)
        entry: Description = {"role": role, **recorded, "path": manifest.input_label(role)}
        entry |= {"state": MISSING, "inputs": []}
        if path is not None and path.exists() and path.resolve() not in above:
            try:
                entry["state"] = _state(path, recorded)
                if source := artifacts.find_manifest(artifacts.enclosing_artifact(path)):
                    entry |= {"stage": source.stage, "inputs": list(_lineage(source, (*above, path.resolve())))}
            except InputError as error:
                entry["state"] = f"damaged ({error})"
        yield entry


def _state(path: Path, recorded: Mapping[str, str]) -> str:
    """Return whether the fingerprint of an input is the recorded one."""
    return UNCHANGED if storage.fingerprint(path) == recorded["fingerprint"] else CHANGED


# ----------------------------------------------------------------------------------------------------------- content


def _table_content(path: Path) -> Description:
    file = pq.ParquetFile(path)
    with storage.reading(path):
        first = next(file.iter_batches(SAMPLE_ROWS), None)
    content: Description = {
        "rows": file.metadata.num_rows,
        "columns": {column.name: str(column.type) for column in file.schema_arrow},
        "sample": [_shortened(row) for row in first.to_pylist()] if first else [],
    }
    if {"step", "name", "value"} <= set(content["columns"]):
        content["last_values"] = _last_values(path)
    return content


def _folder_content(path: Path) -> Description:
    content: Description = {}
    if (path / layout.CONTRACT).exists():
        content["contract"] = read_object(path / layout.CONTRACT)
    if adapters := sorted(path.glob(f"**/{layout.ADAPTER_CONFIG}")):
        names = ("r", "lora_alpha", "target_modules")
        content["adapters"] = {
            str(file.parent.relative_to(path)): {
                **{name: read_object(file).get(name) for name in names},
                "base": read_object(base) if (base := file.parent / layout.BASE_MODEL).is_file() else None,
            }
            for file in adapters
        }
    if (path / layout.STATIC_TABLES).is_file():
        content["weights"] = _static_tables(path)
    tables = sorted(path.glob("*.parquet")) + sorted(path.glob("*/part-*.parquet"))
    content["tables"] = {str(table.relative_to(path)): storage.row_count(table) for table in tables}
    curves = (table for table in tables if {"step", "name", "value"} <= set(pq.read_schema(table).names))
    for curve in curves:
        content["last_values"] = _last_values(curve)
    corpus = next((table for table in tables if {"docid", "text"} <= set(pq.read_schema(table).names)), None)
    if corpus is not None:
        content["sample"] = _table_content(corpus)["sample"]
    return content


def _last_values(curve: Path) -> dict[str, list[float]]:
    """Return name -> [step, value] of the last recorded step."""
    rows = pl.read_parquet(curve, glob=False).sort("step", maintain_order=True).select("name", "step", "value")
    return {name: [step, value] for name, step, value in rows.iter_rows()}


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > SAMPLE_CHARACTERS:
        return words.character_head(value, SAMPLE_CHARACTERS) + "..."
    if isinstance(value, list):
        return [_shortened(item) for item in value[:1]] + ([f"... {len(value)} in all"] if len(value) > 1 else [])
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    return value


def _head(path: Path) -> list[str]:
    with opened(path) as file:
        text = file.read(_HEAD_BYTES)
    if b"\0" in text:
        return []
    return [str(_shortened(line)) for line in text.decode("utf-8", "replace").splitlines()[:SAMPLE_ROWS]]


# ----------------------------------------------------------------------------------------------------------- weights


def _static_tables(folder: Path) -> Description:
    """Return shape, type and the terms with the longest vectors of each table of a static encoder."""
    storage.check_parts(folder, layout.TERMS, layout.STATIC_TABLES)
    terms = pl.read_parquet(storage.validate_parquet(folder / layout.TERMS), glob=False)["term"]
    description: Description = {}
    try:
        with safe_open(folder / layout.STATIC_TABLES, "np") as opened_tables:
            tables = {name: opened_tables.get_tensor(name) for name in opened_tables.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise path_error(folder / layout.STATIC_TABLES, f"damaged ({error}); build the encoder again") from None
    for name, table in tables.items():
        lengths = pl.DataFrame({"term": terms, "length": np.linalg.norm(table[: len(terms)], axis=1)})
        longest = [list(row) for row in lengths.top_k(_LONGEST, by="length").rows()]
        description[name] = {"shape": list(table.shape), "dtype": str(table.dtype), "longest": longest}
    return description


# ------------------------------------------------------------------------------------------------- without a manifest

_FOLDERS = {
    layout.CONTRACT: "an encoder of hybrid without manifest",
    layout.MODULES: "a sentence-transformers model",
    "config.json": "a Hugging Face checkpoint",
    "segments_*": "a Lucene index",
    "docid": "a FAISS index of Pyserini",
    layout.CORPUS_FILE: "a collection without manifest",
    "corpus.jsonl": "a BEIR data set (`hybrid prepare beir`)",
    "manifest.json": "an artifact of hybrid",
}


def _guess(path: Path) -> str:
    """Return a description of the probable format of a file that hybrid did not write."""
    if path.is_dir():
        return next((words for name, words in _FOLDERS.items() if any(path.glob(name))), "a folder of unknown content")
    if path.suffix in PARQUET:
        names = set(pq.read_schema(path).names)
        fits = [str(kind) for kind, schema in storage.SCHEMAS.items() if set(schema.names) - {"answers"} <= names]
        return f"a Parquet file with the columns of: {', '.join(fits)}" if fits else "a Parquet file with other columns"
    with opened(path) as file:
        head = file.read(_HEAD_BYTES)
    if b"\0" in head or not head:
        return "a binary file" if head else "an empty file"
    line = head.decode("utf-8", "replace").splitlines()[0]
    if line.lstrip().startswith("{"):
        try:
            return f"a JSON lines file with the fields {', '.join(json.loads(line))}"
        except NOT_JSON:
            return "a JSON file"
    fields = line.split()
    if len(fields) == 6 and fields[1].upper() == "Q0":
        return "a TREC run"
    if len(fields) == 4 and fields[3].lstrip("-").isdecimal():
        return "TREC qrels"
    columns = len(line.split("\t"))
    return f"a text file with {columns} tab-separated columns" if columns > 1 else "a text file"


# ------------------------------------------------------------------------------------------------------- memory table


def _memory_table(settings: Inspect, collection: Path) -> list[Description]:
    """Return one row per run: bytes that a search reads, measures, and latency in milliseconds (LITE, table 2)."""
    from hybrid_cli.retrieval import latency

    named = runs.name_runs(as_names(settings.paths))
    belongs_together(named.values(), corpus=collections.corpus_path(collection))
    opened_runs = {name: runs.open_run(path) for name, path in named.items()}
    behind = {name: list(indexes_of(path).values()) for name, path in named.items()}
    if unknown := [named[name] for name, indexes in behind.items() if not indexes]:
        problem = "its manifest leads to no index; pass a run of `search` or `fuse`"
        raise path_error(unknown[0], problem, code="no-index-recorded")
    qrels_file = collections.qrels_path(collection, settings.split)
    queries_file = collections.queries_path(collection, settings.split)
    output = None
    if settings.output is not None:
        inputs = {f"run {name}": path for name, path in named.items()} | {"qrels": qrels_file, "queries": queries_file}
        output = artifacts.output_of(settings, Kind.MEASUREMENTS, inputs, {}, foreign=True)  # latencies differ
    qrels, queries = collections.read_qrels(qrels_file), collections.read_queries(queries_file).select("qid", "text")
    remove_query = removes_query(collection, settings.split)
    index_at, rows = cache(partial(open_index, options=SearchOptions(threads=1, device="cpu", group=NO_GROUPS))), []
    with latency.single_threaded(), console.progress("inspect", len(named), "runs") as advance:
        for name, run in opened_runs.items():
            hits = retrieved(run, qrels, 0, remove_query)
            values = evaluate_hits(hits.judged, hits.lengths["qid"], qrels, list(MEMORY_MEASURES.values()))
            row: Description = {"run": name, "bytes": sum(held.size for held in behind[name])}
            row |= {shown: mean_of(values, measure) for shown, measure in MEMORY_MEASURES.items()}
            row |= latency.percentiles([index_at(held.index) for held in behind[name]], queries, _fused)
            row["parts"] = [
                {"index": str(held.index), "part": part, "bytes": size, "read": part in held.needed}
                for held in behind[name]
                for part, size in held.parts.items()
            ]
            rows.append(row)
            advance(1)
    if output is not None:
        with output.scratch() as scratch, disk.create(scratch) as file:
            pl.DataFrame(rows).write_parquet(file)
    return rows


def _fused(runs: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Fuse as `fuse --method minmax` does."""
    from hybrid_cli.retrieval.latency import HITS

    joined = lists.Lists.of(list(runs))
    recipe = FusionRecipe("minmax", (1.0,) * len(runs), "zero")
    return pl.concat(lists.fuse_blocks(joined.blocks(), joined.qids, recipe, HITS))


# --------------------------------------------------------------------------------------------------------- verification

INTACT, DAMAGED, UNCHECKED = "intact", "damaged", "not checked (older version: rebuild)"
UNCHANGED, CHANGED, MISSING = "unchanged", "changed", "missing"
_SUFFIXES = (".parquet", ".json", ".html")


def _verify_paths(settings: Inspect) -> Description:
    """Read every file of the artifacts and of their inputs, and compare it with its checksum."""
    checked: dict[Path, Description] = {}
    with console.progress("inspect", None, "artifacts") as advance:
        for given in map(Path, as_names(settings.paths)):
            inside = list(_artifacts(given, set()))
            if not inside:
                problem = "contains no artifact" if given.is_dir() else "has no manifest, so it is no artifact"
                raise InputError(f"{given}: {problem} of hybrid", code="no-artifact", path=given)
            for path in inside:
                _verify(path, str(path), checked)
                advance(1)
    return {"artifacts": list(checked.values())}


def _compare(settings: Inspect, engine: str) -> Description:
    """Compare a retriever with an engine on the queries of a split."""
    from hybrid_cli.exports.comparison import compare, engine_at, judgments_for

    engine_at(engine)
    files = RetrieverFiles.read(_only_path(settings))
    collection = settings.collection or collection_of(corpora_of(files.manifests))
    if collection is None:
        reason = f"the collection of {files.folder} is not recorded, or has changed; pass it"
        raise option_error("collection", None, reason, code="missing-option")
    queries = collections.read_queries(collections.queries_path(collection, settings.split)).select("qid", "text")
    path = collections.qrels_path(collection, settings.split)
    qrels = judgments_for(files, path) if path.exists() else None
    return compare(files, engine, queries, qrels)


def _artifacts(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield `path` if it is an artifact, else the artifacts below it."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder", code="no-such-file", path=path)
    if not path.is_dir():
        opened(path).close()
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    if path.is_dir() and not (path / MANIFEST).is_file():
        for part in sorted(path.iterdir()):
            if not part.name.startswith(".") and (part.is_dir() or (part.is_file() and part.suffix in _SUFFIXES)):
                yield from _artifacts(part, seen)
    elif _has_manifest(path):
        yield path


def _has_manifest(path: Path) -> bool:
    """Return whether hybrid wrote `path`, as far as a damaged file shows it."""
    try:
        return artifacts.find_manifest(path, any_format=True) is not None
    except DamageError:
        return True
    except InputError as error:
        if error.code == "unreadable-file":
            raise
        return path.suffix == ".parquet" or b'"fingerprint"' in read_bytes(path)


def _verify(path: Path, label: str, descriptions: dict[Path, Description]) -> Description:
    """Verify an artifact and its inputs; add them to `descriptions`, by their resolved path."""
    resolved = path.resolve()
    if resolved in descriptions:
        return descriptions[resolved]
    described: Description = {"path": label, "kind": "file", "files": 1, "state": INTACT, "problems": [], "inputs": []}
    descriptions[resolved] = described
    try:
        manifest = artifacts.read_manifest(path, any_format=True)
        described["kind"] = str(manifest.kind)
        described["files"] = len(manifest.files) if manifest.files is not None else 1
        described["problems"] = list(storage.damage(path, manifest))
        described["state"] = INTACT if storage.has_checksums(path) else UNCHECKED
        whole = artifacts.enclosing_artifact(path)
        origin = manifest if manifest.inputs or whole == path else artifacts.read_manifest(whole, any_format=True)
    except InputError as error:
        described |= {"state": DAMAGED, "problems": [str(error)]}
        return described
    if described["problems"]:
        described["state"] = DAMAGED
    described["inputs"] = [_input(origin, role, descriptions) for role in sorted(origin.inputs)]
    return described


def _input(manifest: Manifest, role: str, descriptions: dict[Path, Description]) -> Description:
    """Verify an input, if it is an artifact, and compare its fingerprint with the recorded one."""
    recorded, path, label = manifest.inputs[role], input_path(manifest, role), manifest.input_label(role)
    described = {"role": role, "path": label, "kind": recorded["kind"], "state": MISSING}
    if path is None or not path.exists():
        return described
    if "path" in recorded:
        path = Path(label)  # relative to the working directory
    damaged = _has_manifest(path) and _verify(path, label, descriptions)["problems"]
    return {**described, "state": DAMAGED if damaged else _state(path, recorded)}
