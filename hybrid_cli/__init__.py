"""Train, run and explain hybrid first-stage retrieval: BM25 plus dense."""

from hybrid_cli.errors import HybridError, InputError

__version__ = "0.1.0"
__all__ = ["HybridError", "InputError", "__version__"]
