"""Train, run and analyze hybrid first-stage retrieval: BM25 plus dense."""

from typing import TYPE_CHECKING

from hybrid_cli import lazy
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.version import __version__

if TYPE_CHECKING:
    from hybrid_cli.api import open_collection, open_encoder, open_index, open_retriever, open_run
    from hybrid_cli.collections.collection import Collection
    from hybrid_cli.encoders.contract import Encoder
    from hybrid_cli.evaluation import evaluate
    from hybrid_cli.fusion import fuse
    from hybrid_cli.lab import compare, complementarity, over_seeds, save, train
    from hybrid_cli.retrieval import BM25, Dense, Retriever
    from hybrid_cli.retrieval.tuning import tune
    from hybrid_cli.runs.index import Index
else:
    __getattr__, __dir__ = lazy.attach(
        __name__,
        {
            "api": ["open_collection", "open_encoder", "open_index", "open_retriever", "open_run"],
            "collections.collection": ["Collection"],
            "encoders.contract": ["Encoder"],
            "evaluation.measures": ["evaluate"],
            "fusion.frames": ["fuse"],
            "lab": ["compare", "complementarity", "over_seeds", "save", "train"],
            "retrieval": ["BM25", "Dense", "Retriever"],
            "retrieval.tuning": ["tune"],
            "runs.index": ["Index"],
        },
    )

__all__ = [
    "BM25",
    "Collection",
    "Dense",
    "Encoder",
    "HybridError",
    "Index",
    "InputError",
    "Retriever",
    "__version__",
    "compare",
    "complementarity",
    "evaluate",
    "fuse",
    "open_collection",
    "open_encoder",
    "open_index",
    "open_retriever",
    "open_run",
    "over_seeds",
    "save",
    "train",
    "tune",
]
