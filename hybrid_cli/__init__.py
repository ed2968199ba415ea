"""Train, run and analyze hybrid first-stage retrieval: BM25 plus dense."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.version import __version__

if TYPE_CHECKING:
    from hybrid_cli.api import OpenIndex, open_encoder, open_index, open_retriever, open_run
    from hybrid_cli.evaluation import evaluate
    from hybrid_cli.fusion import fuse
    from hybrid_cli.retrieval import BM25, Dense, Retriever
    from hybrid_cli.runs.index import Index

__all__ = [
    "BM25",
    "Dense",
    "HybridError",
    "Index",
    "InputError",
    "OpenIndex",
    "Retriever",
    "__version__",
    "evaluate",
    "fuse",
    "open_encoder",
    "open_index",
    "open_retriever",
    "open_run",
]
_HOMES = {
    "BM25": "retrieval",
    "Dense": "retrieval",
    "Index": "runs.index",
    "Retriever": "retrieval",
    "evaluate": "evaluation",
    "fuse": "fusion",
}


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use, so that `hybrid --help` starts fast."""
    if name in __all__:
        return getattr(import_module(f"hybrid_cli.{_HOMES.get(name, 'api')}"), name)
    raise AttributeError(f"module 'hybrid_cli' has no attribute '{name}'")
