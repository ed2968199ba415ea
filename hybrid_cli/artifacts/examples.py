"""Opening training examples and teacher labels, and the collection from which dev examples were mined."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import storage
from hybrid_cli.artifacts import Manifest, has_content, read_manifest
from hybrid_cli.artifacts.opening import open_lexical
from hybrid_cli.collections import collection as collections
from hybrid_cli.errors import path_error
from hybrid_cli.storage import Kind
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dev_set import DevExamples
from hybrid_cli.training.labels import Labels


def open_examples(path: Path) -> Examples:
    """Open a file that `mine-negatives` wrote.

    Raises:
        InputError: not training examples.
    """
    storage.check_table(path, Kind.EXAMPLES)
    return Examples(path, remove_query=bool(read_manifest(path, Kind.EXAMPLES).options.get("remove_query")))


def open_dev_examples(path: Path, index: Path | None = None, threads: int | None = None) -> DevExamples:
    """Open dev examples with the corpus and the lexical index that they were mined from, if these are unchanged.

    Args:
        path: the examples.
        index: another lexical index.
        threads: CPU threads of its search; None for all cores.

    Raises:
        InputError: not training examples, or `index` is not a lexical index.
    """
    examples, manifest = open_examples(path), read_manifest(path, Kind.EXAMPLES)
    used = index or _unchanged(manifest, "index")
    return DevExamples(
        examples,
        _unchanged(manifest, "corpus"),
        open_lexical(used, threads=threads) if used else None,
        lost_index=used is None and "index" in manifest.inputs,
    )


def corpus_of_examples(path: Path, collection: Path | None = None) -> Path:
    """Return the corpus from which examples were mined, or that of a given collection.

    Raises:
        InputError: the corpus was moved or changed, or there are several.
    """
    if collection is not None:
        return collections.corpus_path(collection)
    corpus = _unchanged(read_manifest(path, Kind.EXAMPLES), "corpus")
    if corpus is None:
        problem = "its corpus is not recorded, or has changed; pass --collection"
        raise path_error(path, problem, code="corpus-missing", option="collection")
    return corpus


def open_labels(folder: Path) -> Labels:
    """Open teacher labels.

    Raises:
        InputError: not the output of `label`.
    """
    return Labels(folder, int(read_manifest(folder, Kind.LABELS).options["depth"]))


def _unchanged(manifest: Manifest, role: str) -> Path | None:
    path = manifest.input_path(role)
    return path if path is not None and has_content(path, manifest.inputs[role]["fingerprint"]) else None
