"""From a run back to the indexes it was searched in, and to the encoders that made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError
from hybrid_cli.reporting.memory import Held

CURVE = "curve.parquet"
_INDEXES = (Kind.LEXICAL_INDEX, Kind.DENSE_INDEX)
_LUCENE_READS = ("lucene/",)
_READ = {
    Kind.LEXICAL_INDEX: ("impacts/", "docids.parquet", "bm25.json"),
    Kind.DENSE_INDEX: ("index.faiss", "docids.parquet"),
}


def indexes(run: Path) -> dict[Path, Held]:
    """The indexes behind a run, also through runs it was fused from, as far as the paths in manifests still lead.

    Of copies of one index only the first counts: a search needs one.
    """
    found = _indexes(run)
    firsts = {artifacts.fingerprint(path): path for path in reversed(found)}.values()
    return {path: held for path, held in found.items() if path in firsts}


def _indexes(run: Path) -> dict[Path, Held]:
    manifest = artifacts.find_manifest(run)
    found: dict[Path, Held] = {}
    for path, kind in _inputs(run):
        if kind == Kind.RUN:
            found |= {index: held for index, held in _indexes(path).items() if index not in found}
        elif kind in _INDEXES and path not in found:
            lucene = manifest is not None and manifest.options.get("engine") == "lucene"
            found[path] = held(path, lucene)
    return found


def sides(runs: Mapping[str, Path]) -> tuple[str, str] | None:
    """The run that alone was searched in a dense index, and the one that alone was searched in a lexical index."""
    of: dict[str, list[str]] = {kind: [] for kind in _INDEXES}
    for name, path in runs.items():
        for _, kind in _inputs(path) if not _from_runs(path) else ():
            if kind in _INDEXES:
                of[kind].append(name)
    dense, lexical = of[Kind.DENSE_INDEX], of[Kind.LEXICAL_INDEX]
    return (dense[0], lexical[0]) if len(dense) == len(lexical) == 1 else None


def _from_runs(path: Path) -> bool:
    return any(kind == Kind.RUN for _, kind in _inputs(path))


def held(index: Path, lucene: bool = False) -> Held:
    """What a search of an index reads: of a lexical one the impact matrix, or with `lucene` Lucene's files.

    Raises:
        InputError: no index.
    """
    manifest = artifacts.read_manifest(index)
    if manifest.kind not in _INDEXES:
        raise InputError(f"{index}: is {manifest.kind.phrase} (made by `{manifest.stage}`); an index is needed here")
    parts = artifacts.sizes(index)
    needed = _LUCENE_READS if lucene else _READ[manifest.kind]
    documents = manifest.counts.get("documents", manifest.counts.get("vectors", 0))
    return Held(index, parts, [name for name in parts if name in needed], documents)


def curves(run: Path) -> list[Path]:
    """The encoders behind a run that have a learning curve."""
    encoders = [path for index in indexes(run) for path, kind in _inputs(index) if kind == Kind.ENCODER]
    return [path for path in dict.fromkeys(encoders) if (path / CURVE).is_file()]


def language(run: Path) -> str | None:
    """The language of the lexical index behind a run, if there is one."""
    for index in indexes(run):
        manifest = artifacts.read_manifest(index)
        if manifest.kind == Kind.LEXICAL_INDEX:
            return str(manifest.options["language"])
    return None


def _inputs(path: Path) -> Iterator[tuple[Path, str]]:
    """Path and kind of what an artifact was made from, where it still stands and is still of that kind."""
    manifest = artifacts.find_manifest(path)
    for role, recorded in manifest.inputs.items() if manifest else ():
        source = manifest.input_path(role) if manifest else None
        if source is None:
            continue
        try:
            there = artifacts.find_manifest(source)
        except InputError:
            continue
        if there is not None and there.kind == recorded["kind"]:
            yield source, recorded["kind"]
