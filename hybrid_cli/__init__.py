"""Train, run and analyze hybrid first-stage retrieval: BM25 plus dense."""

from typing import TYPE_CHECKING, Any

from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.version import __version__

if TYPE_CHECKING:
    from hybrid_cli.api import Index, open_encoder, open_index, open_run

__all__ = ["HybridError", "Index", "InputError", "__version__", "open_encoder", "open_index", "open_run"]


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use, so that `hybrid --help` starts fast."""
    if name in ("Index", "open_encoder", "open_index", "open_run"):
        from importlib import import_module

        return getattr(import_module("hybrid_cli.api"), name)
    raise AttributeError(f"module 'hybrid_cli' has no attribute '{name}'")
