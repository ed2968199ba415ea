"""Opening several indexes of one corpus, which are searched by the weighted sum of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hybrid_cli import artifacts
from hybrid_cli.encoders.options import DEVICE
from hybrid_cli.errors import InputError
from hybrid_cli.indexes.dense import DenseIndex
from hybrid_cli.indexes.hybrid_search import HybridIndex
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.opening.dense import open_dense
from hybrid_cli.opening.lexical import open_lexical
from hybrid_cli.storage import Kind


def open_sum(
    folders: Sequence[Path],
    weights: Sequence[float],
    k1: float | None = None,
    b: float | None = None,
    device: str = DEVICE,
) -> HybridIndex:
    """Open indexes whose weighted sum of scores is searched.

    Args:
        folders: one or more dense indexes, and at most one lexical index.
        weights: one per index.
        k1, b: override the values stored in the lexical index.
        device: device of the encoder of a lexical index with learned weights.

    Raises:
        InputError: no dense index, two lexical indexes, or indexes of different corpora.
    """
    kinds = [artifacts.read_manifest(folder).kind for folder in folders]
    if Kind.DENSE_INDEX not in kinds or kinds.count(Kind.LEXICAL_INDEX) > 1:
        named = ", ".join(map(str, folders))
        raise InputError(
            f"{named}: exact search needs one or more dense indexes, and at most one lexical index",
            code="needs-indexes",
            paths=folders,
            kinds=kinds,
        )
    opened = [
        open_lexical(folder, k1, b, device=device) if kind == Kind.LEXICAL_INDEX else open_dense(folder)
        for folder, kind in zip(folders, kinds, strict=True)
    ]
    for folder, index in zip(folders, opened, strict=True):
        if not index.docids.equals(opened[0].docids):
            raise InputError(
                f"{folder}: other documents than {folders[0]}; build both indexes from one corpus",
                code="other-corpus",
                path=folder,
                other=folders[0],
            )
    dense = [(index, weight) for index, weight in zip(opened, weights, strict=True) if isinstance(index, DenseIndex)]
    lexical = [pair for pair in zip(opened, weights, strict=True) if isinstance(pair[0], LexicalIndex)]
    return HybridIndex(*zip(*dense, strict=True), *(lexical[0] if lexical else ()))  # type: ignore[arg-type]
