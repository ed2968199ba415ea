"""Evaluation of runs: measures, significance, complementarity, robustness."""

from typing import TYPE_CHECKING

from hybrid_cli import lazy

if TYPE_CHECKING:
    from hybrid_cli.evaluation.measures import evaluate, evaluate_queries
else:
    __getattr__, __dir__ = lazy.attach(__name__, {"measures": ["evaluate", "evaluate_queries"]})

__all__ = ["evaluate", "evaluate_queries"]
