"""`hybrid inspect`: what an artifact or any file is, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pyarrow.parquet as pq

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.errors import HybridError, InputError

if TYPE_CHECKING:
    from rich.tree import Tree

SAMPLE_ROWS = 3
SAMPLE_CHARACTERS = 100
CONTRACT = "encoder.json"
_HEAD_BYTES = 1 << 16

Description = dict[str, Any]


def inspect(path: Path, *, form: Literal["text", "json"] = "text") -> Description:
    """Describe what stands at `path`, print the description and return it.

    Returns:
        path, what (in words), parts (name -> bytes); for an index `memory`, its bytes by what they are for, and
        `documents`; for an artifact its manifest's fields and `inputs`, a list of
        role, path, kind, fingerprint, state (`unchanged`, `changed`, `missing`) and their own `inputs`; for tables
        rows, columns and sample; for encoders the contract; for learning curves the last values.

    Raises:
        InputError: nothing is there, or it is damaged.
    """
    manifest = artifacts.find_manifest(path)
    described: Description = {"path": str(path), "what": str(manifest.kind) if manifest else _guess(path)}
    if manifest:
        known = asdict(manifest)
        described |= {name: known[name] for name in _MANIFEST_FIELDS}
        described["inputs"] = list(
            _lineage(artifacts.read_manifest(artifacts.enclosing_artifact(path)), (path.resolve(),))
        )
    described["parts"] = artifacts.sizes(path)
    if manifest and manifest.kind in (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX):
        try:
            described["memory"], described["documents"] = _memory(path, manifest)
        except FileNotFoundError as error:
            console.warn(f"{error.filename}: is not there; the index is damaged, make it again")
    described |= _content(path)
    if form == "json":
        console.result(json.dumps(described, indent=2, ensure_ascii=False, default=str))
    else:
        _show(described)
    return described


_NOT_READ = ("stored vectors", "Lucene index")
_MANIFEST_FIELDS = ("stage", "options", "counts", "seconds", "versions", "fingerprint", "format")


def _memory(path: Path, manifest: Manifest) -> tuple[dict[str, int], int]:
    """Bytes of an index by what they are for, and its number of documents (methods 10.10)."""
    if manifest.kind == Kind.DENSE_INDEX:
        from hybrid_cli import indexes

        info = indexes.IndexInfo.of(manifest)
        return indexes.footprint(path, info), info.vectors
    matrix = {part.stem: part.stat().st_size for part in (path / "impacts").iterdir()}
    memory = {
        "impact matrix: postings": matrix.pop("rows") + matrix.pop("tfs"),
        "impact matrix: terms and lengths": sum(matrix.values()),
        "ids": (path / "docids.parquet").stat().st_size,
    }
    if (path / "lucene").is_dir():
        memory["Lucene index"] = sum(part.stat().st_size for part in (path / "lucene").iterdir())
    return memory, artifacts.row_count(path / "docids.parquet")


def _lineage(manifest: Manifest, above: tuple[Path, ...]) -> Iterator[Description]:
    """Yield the inputs of an artifact, each with its own inputs, as long as they can be found."""
    for role, recorded in sorted(manifest.inputs.items()):
        path = _input(manifest, role)
        entry: Description = {"role": role, **recorded, "path": manifest.input_label(role)}
        entry |= {"state": "missing", "inputs": []}
        if path is not None and path.exists() and path.resolve() not in above:
            try:
                unchanged = artifacts.fingerprint(path) == recorded["fingerprint"]
                source = artifacts.find_manifest(artifacts.enclosing_artifact(path))
            except InputError as error:
                entry["state"] = f"damaged ({error})"
            else:
                entry["state"] = "unchanged" if unchanged else "changed"
                if source:
                    entry["stage"] = source.stage
                    entry["inputs"] = list(_lineage(source, (*above, path.resolve())))
        yield entry


def _input(manifest: Manifest, role: str) -> Path | None:
    """Return the path of an input; of a model that was recorded by name, its folder on this machine."""
    if "name" not in manifest.inputs[role]:
        return manifest.input_path(role)
    from hybrid_cli.encoders.models import resolve

    try:
        return resolve(manifest.inputs[role]["name"], local=True)
    except HybridError:
        return None


# ----------------------------------------------------------------------------------------------------------- content


def _content(path: Path) -> Description:
    """Rows, columns and a sample of a table; contract and last values of an encoder."""
    if path.is_dir():
        return _folder_content(path)
    if path.suffix == ".parquet":
        return _table_content(path)
    return {} if path.suffix == ".html" else {"head": _head(path)}


def _table_content(path: Path) -> Description:
    file = pq.ParquetFile(path)
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
    if (path / CONTRACT).is_file():
        content["contract"] = json.loads((path / CONTRACT).read_text("utf-8"))
    tables = sorted(path.glob("*.parquet")) + sorted(path.glob("*/part-*.parquet"))
    content["tables"] = {str(table.relative_to(path)): artifacts.row_count(table) for table in tables}
    curves = (table for table in tables if {"step", "name", "value"} <= set(pq.read_schema(table).names))
    for curve in curves:
        content["last_values"] = _last_values(curve)
    corpus = next((table for table in tables if {"docid", "text"} <= set(pq.read_schema(table).names)), None)
    if corpus is not None:
        content["sample"] = _table_content(corpus)["sample"]
    return content


def _last_values(curve: Path) -> dict[str, list[float]]:
    """name -> [step, value] of the last step at which it was recorded."""
    last = pl.read_parquet(curve).sort("step", maintain_order=True).group_by("name", maintain_order=True).last()
    return {name: [step, value] for name, step, value in last.select("name", "step", "value").iter_rows()}


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > SAMPLE_CHARACTERS:
        return value[:SAMPLE_CHARACTERS] + "..."
    if isinstance(value, list):
        return [_shortened(item) for item in value[:1]] + ([f"... {len(value)} in all"] if len(value) > 1 else [])
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    return value


def _head(path: Path) -> list[str]:
    with path.open("rb") as file:
        text = file.read(_HEAD_BYTES)
    if b"\0" in text:
        return []
    return [str(_shortened(line)) for line in text.decode("utf-8", "replace").splitlines()[:SAMPLE_ROWS]]


# ------------------------------------------------------------------------------------------------- without a manifest

_FOLDERS = {
    CONTRACT: "an encoder of hybrid without its manifest",
    "modules.json": "a sentence-transformers model",
    "config.json": "a Hugging Face checkpoint",
    "segments_*": "a Lucene index",
    "docid": "a FAISS index of Pyserini",
    "corpus.parquet": "a collection without its manifest",
    "corpus.jsonl": "a BEIR data set (`hybrid prepare beir`)",
    "manifest.json": "an artifact of hybrid",
}


def _guess(path: Path) -> str:
    """What something that hybrid did not write looks like, in words."""
    if path.is_dir():
        return next((words for name, words in _FOLDERS.items() if any(path.glob(name))), "a folder of other things")
    if path.suffix == ".parquet":
        names = set(pq.read_schema(path).names)
        fits = [str(kind) for kind, schema in artifacts.SCHEMAS.items() if set(schema.names) - {"answers"} <= names]
        return f"a Parquet file with the columns of: {', '.join(fits)}" if fits else "a Parquet file of another form"
    return _guess_text(path)


def _guess_text(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if b"\0" in head or not head:
        return "a binary file" if head else "an empty file"
    line = head.decode("utf-8", "replace").splitlines()[0]
    if line.lstrip().startswith("{"):
        return _guess_json(line)
    fields = line.split()
    if len(fields) == 6 and fields[1].upper() == "Q0":
        return "a TREC run"
    if len(fields) == 4 and fields[3].lstrip("-").isdecimal():
        return "TREC judgements (qrels)"
    columns = len(line.split("\t"))
    return f"a text file with {columns} columns between tabs" if columns > 1 else "a text file"


def _guess_json(line: str) -> str:
    try:
        fields = list(json.loads(line))
    except json.JSONDecodeError:
        return "a JSON file"
    return f"a JSON lines file with the fields {', '.join(fields)}"


# ------------------------------------------------------------------------------------------------------------ showing


def _show(described: Description) -> None:
    out = console.stdout()
    made = f", made by `{described['stage']}`" if "stage" in described else ", not made by hybrid"
    out.print(f"{described['path']}: {described['what']}{made}", markup=False, highlight=False)
    sections: dict[str, Mapping[str, Any]] = {
        name: described[name] for name in ("options", "counts", "contract", "versions") if described.get(name)
    }
    for name, values in sections.items():
        _pairs(name, {key: _plain(value) for key, value in values.items()})
    if "fingerprint" in described:
        _pairs("content", {"fingerprint": described["fingerprint"], **_size_of_table(described)})
    elif "rows" in described:
        _pairs("content", _size_of_table(described))
    tables = described.get("tables", {})
    rows = {name: console.size(size) for name, size in described["parts"].items()}
    _pairs("on disk", rows | {name: f"{count:,} rows" for name, count in tables.items() if name not in rows})
    _show_memory(described)
    _pairs("columns", described.get("columns", {}))
    last = described.get("last_values", {})
    _pairs("last values", {name: f"{value:.6g} (step {step:,})" for name, (step, value) in last.items()})
    _pairs("first rows", {str(n + 1): _plain(row) for n, row in enumerate(described.get("sample", []))})
    _pairs("first lines", {str(n + 1): line for n, line in enumerate(described.get("head", []))})
    if described.get("inputs"):
        out.print(_tree(described["inputs"]))


def _show_memory(described: Description) -> None:
    if "memory" not in described:
        return
    rows, count = described["memory"], described["documents"]
    read = sum(size for name, size in rows.items() if name not in _NOT_READ)
    rows = {**rows, "in all, as a search reads it": read}
    width = max(map(len, rows))
    shown = {}
    for name, size in rows.items():
        each, beside = size / max(1, count), "  (not read by a search)" if name in _NOT_READ else ""
        shown[f"{name:{width}}"] = (
            f"{each:10,.1f} bytes a document {size / 1e9:10,.4f} GB {size / 2**30:10,.4f} GiB{beside}"
        )
    _pairs("memory", shown)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _size_of_table(described: Description) -> dict[str, str]:
    return {"rows": f"{described['rows']:,}"} if "rows" in described else {}


def _pairs(title: str, values: Mapping[str, str]) -> None:
    if not values:
        return
    out = console.stdout()
    out.print(f"\n{title}", style="bold", highlight=False)
    width = max(map(len, values))
    for name, value in values.items():
        out.print(f"  {name:{width}}  {value}", markup=False, highlight=False, soft_wrap=True)


def _tree(inputs: list[Description]) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    shown: set[str] = set()

    def grow(branch: Tree, entries: list[Description]) -> Tree:
        for entry in entries:
            made = f" by `{entry['stage']}`" if entry.get("stage") else ""
            state = "" if entry["state"] == "unchanged" else f"  <- {entry['state']}"
            again = bool(entry["inputs"]) and entry["path"] in shown
            shown.add(entry["path"])
            line = (
                f"{entry['role']}: {entry['path']} ({entry['kind']}{made}){state}{', from the same' if again else ''}"
            )
            grow(branch.add(Text(line)), [] if again else entry["inputs"])
        return branch

    return grow(Tree(Text("\nmade from", style="bold")), inputs)
