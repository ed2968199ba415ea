"""Opening training examples and teacher labels, and the collection from which dev examples were mined."""

from __future__ import annotations

from pathlib import Path

from hybrid_cli import storage
from hybrid_cli.artifacts import Manifest, has_content, read_manifest
from hybrid_cli.opening.lexical import open_lexical
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


def open_dev_examples(path: Path, index: Path | None = None) -> DevExamples:
    """Open dev examples with the corpus and the lexical index that they were mined from, if these are unchanged.

    Args:
        path: the examples.
        index: another lexical index.

    Raises:
        InputError: not training examples, or `index` is not a lexical index.
    """
    examples, manifest = open_examples(path), read_manifest(path, Kind.EXAMPLES)
    used = index or _unchanged(manifest, "index")
    return DevExamples(
        examples,
        _unchanged(manifest, "corpus"),
        open_lexical(used) if used else None,
        lost_index=used is None and "index" in manifest.inputs,
    )


def open_labels(folder: Path) -> Labels:
    """Open teacher labels.

    Raises:
        InputError: not the output of `label`.
    """
    return Labels(folder, int(read_manifest(folder, Kind.LABELS).options["depth"]))


def _unchanged(manifest: Manifest, role: str) -> Path | None:
    path = manifest.input_path(role)
    return path if path is not None and has_content(path, manifest.inputs[role]["fingerprint"]) else None
