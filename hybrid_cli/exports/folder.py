"""A retriever as one folder that opens on another machine: with its indexes, encoders, texts and reranker.

The folder is the retriever at another place: the same manifest and fusion, and copies of what it needs. Manifests of
the copies name each other by relative path, and the rest of their inputs as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from os.path import relpath
from pathlib import Path

from hybrid_cli import artifacts, console, storage
from hybrid_cli.artifacts import Input, Manifest, Part
from hybrid_cli.artifacts.indexes import corpora_of, find_model, recorded_corpora, shards_of, warn_lost
from hybrid_cli.artifacts.retrievers import RetrieverFiles, reranker_path
from hybrid_cli.encoders.models import resolve
from hybrid_cli.errors import path_error
from hybrid_cli.runs.files import short_names
from hybrid_cli.storage import Kind, disk, layout

FOLDER = "folder"  # the format


def _parts(files: RetrieverFiles) -> dict[str, Part]:
    """Return recorded fingerprint -> file or folder that a retriever needs, with its place in the folder.

    An encoder inside an index, and models of Python packages, are not among them.

    Raises:
        InputError: an encoder, the reranker or a corpus is missing.
    """
    indexes = {stored["fingerprint"]: path for stored, path in zip(files.stored.indexes, files.indexes, strict=True)}
    models, texts = dict[str, Path](), dict[str, Path]()
    if (stored := files.stored.reranker) is not None and not _is_packaged(str(stored["model"])):
        models[str(stored["fingerprint"])] = resolve(reranker_path(files.folder, stored), local=True)
    for index in files.indexes:
        for shard, manifest in shards_of(index).items():
            recorded = manifest.inputs.get("model")
            if recorded and not (shard / layout.INDEX_ENCODER).is_dir() and not _is_packaged(recorded.get("name")):
                models[recorded["fingerprint"]] = find_model(shard, manifest)
            texts |= {corpus.fingerprint: corpus.path for corpus in recorded_corpora(manifest).values()}
    if lost := next((path for path in texts.values() if not path.exists()), None):
        problem = f"its corpus {lost} is missing; move it back, or compose the retriever of indexes of another one"
        raise path_error(files.folder, problem, code="corpus-missing", corpus=lost)
    warn_lost(corpora_of(files.manifests), "its texts may be of other documents; build the indexes again")
    return {
        fingerprint: Part(f"{folder}/{name.replace('/', '-')}", path)
        for folder, sources in (("indexes", indexes), ("models", models), ("texts", texts))
        for name, (fingerprint, path) in zip(short_names([*sources.values()]), sources.items(), strict=True)
    }


def _is_packaged(name: str | None) -> bool:
    """Test whether a model is of a Python package, which the other machine has too."""
    return name is not None and "/" not in name


def write_folder(retriever: Path, output: Path, overwrite: bool) -> Path:
    """Write a retriever with all that it needs; files are hard-linked where the file system allows it.

    Args:
        retriever: folder of the retriever.
        output: folder to write.
        overwrite: replace an existing output.

    Raises:
        InputError: an index, an encoder, the reranker or a corpus is missing or has changed.
    """
    files, made = RetrieverFiles.read(retriever), artifacts.read_manifest(retriever, Kind.RETRIEVER)
    parts = _parts(files)
    written = artifacts.open_output(
        output, Kind.RETRIEVER, made.stage, inputs=dict(_inputs(made, parts)), options=made.options, overwrite=overwrite
    )
    if written.up_to_date:
        return written.path
    with written.folder() as (work, counts):
        for part in parts.values():
            (work / part.name).parent.mkdir(exist_ok=True)
            _copy(part, parts, work)
        stored = files.stored
        indexes = [{**index, "path": parts[index["fingerprint"]].name} for index in stored.indexes]
        reranker = stored.reranker
        if reranker is not None and (model := parts.get(str(reranker["fingerprint"]))):
            reranker = {**reranker, "model": model.name}
        replace(stored, indexes=indexes, reranker=reranker, history=()).write(work)
        counts |= made.counts
    copies = ", ".join(part.name for part in parts.values())
    console.note(f"export: {written.path}: {copies}", code="written", path=written.path)
    console.note(f'  hybrid search --index {written.path} --query "..."')
    return written.path


def _inputs(made: Manifest, parts: Mapping[str, Part]) -> Iterator[tuple[str, Input]]:
    """Yield the inputs of a retriever, copies in place of what is copied."""
    for role, recorded in made.inputs.items():
        source = parts.get(recorded["fingerprint"]) or artifacts.recorded_input(made, role)
        if source is not None:
            yield role, source


def _copy(part: Part, parts: Mapping[str, Part], work: Path) -> None:
    """Link or copy a part; manifests inside name the other parts where these are copied to."""

    def copy_manifest(file: Path, target: Path) -> None:
        moved = artifacts.read_manifest(file.parent).moved_to(target.parent)
        inputs = {role: _moved(recorded, parts, work, target) for role, recorded in moved.inputs.items()}
        with storage.replacing(target) as scratch:
            disk.write_text(scratch, replace(moved, inputs=inputs).to_json())

    storage.check_parts(part.path)
    storage.hard_link(part.path, work / part.name, copy_manifest)


def _moved(recorded: dict[str, str], parts: Mapping[str, Part], work: Path, manifest: Path) -> dict[str, str]:
    part = parts.get(recorded["fingerprint"])
    if part is None or "part" in recorded:
        return recorded
    rest = {name: value for name, value in recorded.items() if name != "name"}
    return rest | {"path": Path(relpath(work / part.name, manifest.parent.parent)).as_posix()}
