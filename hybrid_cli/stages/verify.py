"""`verify`: compare artifacts and their inputs with the fingerprints and checksums of their manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.lineage import passage_length
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import DamageError, InputError, option_error
from hybrid_cli.input_files import opened, read_bytes
from hybrid_cli.opening.judged import collection_of
from hybrid_cli.opening.models import input_path
from hybrid_cli.opening.provenance import corpora_of
from hybrid_cli.opening.stored_retriever import RetrieverFiles
from hybrid_cli.passages import NO_GROUPS
from hybrid_cli.reporting.engine import Agreement
from hybrid_cli.runs.groups import judgments_of_documents
from hybrid_cli.settings import Verify
from hybrid_cli.stages import stage
from hybrid_cli.storage import MANIFEST

INTACT, DAMAGED, UNCHECKED = "intact", "damaged", "not checked (older version: rebuild)"
UNCHANGED, CHANGED, MISSING = "unchanged", "changed", "missing"
_SUFFIXES = (".parquet", ".json", ".html")

Description = dict[str, Any]


@stage(Verify)
def verify(settings: Verify) -> Any:
    """Read every file of the artifacts and of their inputs, and compare it with its checksum.

    Returns:
        For each artifact: path, kind, files (number), state (`INTACT`, `DAMAGED` or `UNCHECKED`), problems (one line
        for each damaged file) and inputs, a list of role, path, kind and state (`UNCHANGED`, `CHANGED`, `MISSING` or
        `DAMAGED`). With `engine`, a `reporting.engine.Agreement` of its hits with those of the retriever.

    Raises:
        InputError: a path does not exist, or is no artifact and contains none; or the engine cannot be compared.
    """
    if settings.engine is not None:
        return _compare(settings, settings.engine)
    checked: dict[Path, Description] = {}
    with console.progress("verify", None, "artifacts") as advance:
        for given in settings.paths:
            inside = list(_artifacts(given, set()))
            if not inside:
                problem = "contains no artifact" if given.is_dir() else "has no manifest, so it is no artifact"
                raise InputError(f"{given}: {problem} of hybrid", code="no-artifact", path=given)
            for path in inside:
                _verify(path, str(path), checked)
                advance(1)
    return list(checked.values())


def _compare(settings: Verify, engine: str) -> Agreement:
    """Compare a retriever with an engine on the queries of a split."""
    from hybrid_cli.exports.comparison import compare, engine_at

    engine_at(engine)
    if len(settings.paths) != 1:
        raise option_error("engine", engine, "needs one retriever", code="number-of-inputs", expected=1)
    files = RetrieverFiles.read(settings.paths[0])
    collection = settings.collection or collection_of(corpora_of(files.manifests))
    if collection is None:
        reason = f"the collection of {files.folder} is not recorded, or has changed; pass it"
        raise option_error("collection", None, reason, code="missing-option")
    queries = collections.read_queries(collections.queries_path(collection, settings.split)).select("qid", "text")
    path = collections.qrels_path(collection, settings.split)
    qrels = collections.read_qrels(path) if path.exists() else None
    if qrels is not None and files.stored.group != NO_GROUPS and passage_length(path) is not None:
        qrels = judgments_of_documents(qrels)
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
        if error.code in ("unreadable-file", "read-error"):
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
    recorded, path = manifest.inputs[role], input_path(manifest, role)
    label = manifest.input_label(role)
    described = {"role": role, "path": label, "kind": recorded["kind"], "state": MISSING}
    if path is None or not path.exists():
        return described
    if "path" in recorded:
        path = Path(label)  # relative to the working directory
    if _has_manifest(path) and _verify(path, described["path"], descriptions)["problems"]:
        return {**described, "state": DAMAGED}
    unchanged = storage.fingerprint(path) == recorded["fingerprint"]
    return {**described, "state": UNCHANGED if unchanged else CHANGED}
