"""Every default, once. Frozen, typed, free of heavy imports; the command line takes its defaults from here."""

from hybrid_cli.config.choices import (
    Combine,
    FusionMethod,
    Grid,
    IndexType,
    Markers,
    Missing,
    Normalization,
    Pooling,
    Precision,
    VectorType,
)
from hybrid_cli.config.retrieval import (
    Combining,
    Encoding,
    Fusion,
    IndexChoice,
    RecallCheck,
    Tuning,
    VectorIndex,
)

__all__ = [
    "Combine",
    "Combining",
    "Encoding",
    "Fusion",
    "FusionMethod",
    "Grid",
    "IndexChoice",
    "IndexType",
    "Markers",
    "Missing",
    "Normalization",
    "Pooling",
    "Precision",
    "RecallCheck",
    "Tuning",
    "VectorIndex",
    "VectorType",
]
