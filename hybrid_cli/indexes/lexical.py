"""Opening a lexical index: of BM25, or of learned weights with the query side of their encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.encoders.contract import differences
from hybrid_cli.encoders.models import find_model, resolve
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex, quantization
from hybrid_cli.settings.common import OnDevice

if TYPE_CHECKING:
    from hybrid_cli.encoders.sparse import SparseEncoder


@dataclass(frozen=True)
class EncodedQueries:
    """The query side of a sparse encoder, as `lexical.index.QueryWeights`."""

    encoder: SparseEncoder
    steps: int

    def query_weights(self, texts: Sequence[str]) -> pl.DataFrame:
        """Return query, term and boost."""
        return self.encoder.query_boosts(texts, self.steps)


def open_lexical(
    folder: Path,
    k1: float | None = None,
    b: float | None = None,
    model: str | Path | None = None,
    device: str = OnDevice.device,
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
        return LexicalIndex.open(folder, k1, b)
    return LexicalIndex.open_learned(folder, EncodedQueries(encoder_of(folder, manifest, model, device), steps))


def encoder_of(folder: Path, manifest: Manifest, model: str | Path | None, device: str) -> SparseEncoder:
    """Return the sparse encoder of an index of learned weights.

    Args:
        folder: the index.
        manifest: its manifest.
        model: overrides the recorded encoder.
        device: device of the encoder.

    Raises:
        InputError: the encoder is missing or has changed.
    """  # fmt: skip
    from hybrid_cli.encoders.sparse import SparseEncoder

    found = find_model(folder, manifest) if model is None else resolve(model)
    options = manifest.options
    encoder = SparseEncoder.load(
        found,
        device=device,
        dtype=options["dtype"],
        architecture=options.get("architecture"),
        **options["contract"],
    )
    if encoder.fingerprint != manifest.counts["encoder"]:
        differ = differences(manifest.counts["contract"], encoder.describe())
        what = (
            f"with {'; '.join(differ)} in {model or found}"
            if differ
            else f"with other weights than those of {model or found}"
        )
        raise InputError(f"{folder}: was encoded {what}; encode again, or pass the model of the index with --model")
    return encoder
