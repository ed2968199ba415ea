"""Retrieval: BM25 and dense vectors of documents in memory, and retrievers that fuse indexes."""

from typing import TYPE_CHECKING

from hybrid_cli import lazy

if TYPE_CHECKING:
    from hybrid_cli.retrieval.in_memory import BM25, Dense
    from hybrid_cli.retrieval.retriever import Retriever
else:
    __getattr__, __dir__ = lazy.attach(__name__, {"in_memory": ["BM25", "Dense"], "retriever": ["Retriever"]})

__all__ = ["BM25", "Dense", "Retriever"]
