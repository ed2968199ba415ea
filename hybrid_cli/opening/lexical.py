"""Opening a lexical index: of BM25, or of learned weights with the query side of their encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.encoders.contract import differences
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.options import DEVICE
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.impacts import READ_WHOLE
from hybrid_cli.lexical.index import LexicalIndex, read_parameters
from hybrid_cli.opening.models import find_model
from hybrid_cli.storage import Kind, layout

if TYPE_CHECKING:
    from hybrid_cli.encoders.sparse import TermWeights


@dataclass(frozen=True)
class EncodedQueries:
    """The query side of a sparse encoder, as `lexical.index.QueryWeights`."""

    encoder: TermWeights
    steps: int

    def query_weights(self, texts: Sequence[str]) -> pl.DataFrame:
        """Return query, term and boost."""
        return self.encoder.query_boosts(texts, self.steps)


def open_lexical(
    folder: Path,
    k1: float | None = None,
    b: float | None = None,
    model: str | Path | None = None,
    device: str = DEVICE,
) -> LexicalIndex:
    """Open a lexical index: of BM25, or of learned weights with the encoder that built it.

    Args:
        folder: the index.
        k1, b: override the stored values of BM25.
        model: overrides the recorded encoder.
        device: device of the encoder.

    Raises:
        InputError: not a lexical index, or its encoder is missing or has changed.
    """  # fmt: skip
    manifest = artifacts.read_manifest(folder, Kind.LEXICAL_INDEX)
    steps = quantization(manifest)
    if steps is None:
        return open_bm25(folder, k1, b)
    queries = EncodedQueries(encoder_of(folder, manifest, model, device), steps)
    with storage.one_version(folder, manifest):
        storage.check_parts(folder, *READ_WHOLE, layout.DOCIDS)
        return LexicalIndex.load_learned(folder, queries, steps)


def open_bm25(folder: Path, k1: float | None = None, b: float | None = None) -> LexicalIndex:
    """Open an index of BM25; k1 and b override the stored values.

    Raises:
        InputError: the folder is not a lexical index, or has learned weights (see `open_lexical`).
        HybridError: the index is damaged.
    """
    manifest = artifacts.read_manifest(folder, Kind.LEXICAL_INDEX)
    if quantization(manifest) is not None:
        raise InputError(
            f"{folder}: has learned weights; needs an index of BM25, built by `hybrid index-bm25`",
            code="learned-weights",
            path=folder,
        )
    with storage.one_version(folder, manifest):
        storage.check_parts(folder, *READ_WHOLE, layout.DOCIDS, layout.PARAMETERS)
        recorded = read_parameters(folder)
        parameters = (recorded["k1"] if k1 is None else k1, recorded["b"] if b is None else b)
        return LexicalIndex.load(folder, manifest.options["language"], parameters)


def quantization(manifest: Manifest) -> int | None:
    """Return the steps per unit of the learned weights of an index; None for an index of BM25."""
    steps = manifest.counts.get("quantization")
    return None if steps is None else int(steps)


def encoder_of(folder: Path, manifest: Manifest, model: str | Path | None, device: str) -> TermWeights:
    """Return the sparse encoder of an index of learned weights.

    Args:
        folder: the index.
        manifest: its manifest.
        model: overrides the recorded encoder.
        device: device of the encoder.

    Raises:
        InputError: the encoder is missing or has changed.
    """  # fmt: skip
    from hybrid_cli.encoders.sparse import load_sparse

    model_folder = find_model(folder, manifest) if model is None else resolve(model)
    options = manifest.options
    encoder = load_sparse(
        model_folder,
        device=device,
        dtype=options["dtype"],
        architecture=options.get("architecture"),
        **options["contract"],
    )
    if encoder.fingerprint != manifest.counts["encoder"]:
        differ = differences(manifest.counts["contract"], encoder.describe())
        what = (
            f"with {'; '.join(differ)} in {model or model_folder}"
            if differ
            else f"with other weights than those of {model or model_folder}"
        )
        raise InputError(
            f"{folder}: was encoded {what}; encode again, or pass the model of the index with --model",
            code="other-encoder",
            path=folder,
            model=model,
            differ=differ,
        )
    return encoder
