"""A measure."""

import polars as pl

from hybrid_cli.evaluation.measures import Measure


def first_relevant(measure: Measure) -> pl.Expr:
    """Return 1 if a relevant document is at rank 1, else 0."""
    return ((pl.col("position") == 1) & (pl.col("relevance") >= measure.level)).any().cast(pl.Float64)
