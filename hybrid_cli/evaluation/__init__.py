"""Evaluation of runs: measures, significance, complementarity, robustness."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_cli.evaluation.measures import evaluate, evaluate_queries

__all__ = ["evaluate", "evaluate_queries"]


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name in __all__:
        from hybrid_cli.evaluation import measures

        return getattr(measures, name)
    raise AttributeError(f"module 'hybrid_cli.evaluation' has no attribute '{name}'")
