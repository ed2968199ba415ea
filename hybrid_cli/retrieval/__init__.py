"""Retrieval: BM25 and dense vectors of documents in memory, and retrievers that fuse indexes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_cli.retrieval.in_memory import BM25, Dense
    from hybrid_cli.retrieval.retriever import Retriever

__all__ = ["BM25", "Dense", "Retriever"]


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name in __all__:
        home = "retriever" if name == "Retriever" else "in_memory"
        return getattr(import_module(f"hybrid_cli.retrieval.{home}"), name)
    raise AttributeError(f"module 'hybrid_cli.retrieval' has no attribute '{name}'")
