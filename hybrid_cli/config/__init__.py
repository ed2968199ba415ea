"""Every default, once. Frozen, typed, free of heavy imports; the command line takes its defaults from here."""

from hybrid_cli.config.choices import (
    AnswerMatch,
    Correction,
    FusionMethod,
    Grid,
    Markers,
    Missing,
    Normalization,
    Pooling,
    Precision,
    SignificanceTest,
)
from hybrid_cli.config.retrieval import (
    Complementarity,
    Evaluation,
    Fusion,
    Reporting,
    Tuning,
)

__all__ = [
    "AnswerMatch",
    "Complementarity",
    "Correction",
    "Evaluation",
    "Fusion",
    "FusionMethod",
    "Grid",
    "Markers",
    "Missing",
    "Normalization",
    "Pooling",
    "Precision",
    "Reporting",
    "SignificanceTest",
    "Tuning",
]
