"""Retrieval in memory: BM25 and dense vectors of a list of documents, without a file."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_cli.retrieval.in_memory import BM25, Dense, MemoryIndex

__all__ = ["BM25", "Dense", "MemoryIndex"]


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name in __all__:
        from hybrid_cli.retrieval import in_memory

        return getattr(in_memory, name)
    raise AttributeError(f"module 'hybrid_cli.retrieval' has no attribute '{name}'")
