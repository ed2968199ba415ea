"""The options of every command, declared once: type, default, range, help, and the variants they apply to."""

from hybrid_cli.settings.analysis import Doctor, Evaluate, Export, Inspect, Report, Verify
from hybrid_cli.settings.auto import Auto
from hybrid_cli.settings.data import (
    PrepareBeir,
    PrepareDpr,
    PrepareFiles,
    PrepareIrds,
    PrepareMsmarco,
    PreparePythonDocs,
    PrepareTevatron,
    PrepareTrec,
)
from hybrid_cli.settings.dense import Combine, Encode, VectorIndex
from hybrid_cli.settings.folds import Split
from hybrid_cli.settings.fusion import ConcatRuns, Fuse
from hybrid_cli.settings.judging import Judge
from hybrid_cli.settings.mining import Label, MineNegatives
from hybrid_cli.settings.models import ConvertCheckpoint, Presets
from hybrid_cli.settings.options import Settings
from hybrid_cli.settings.perturb import Perturb
from hybrid_cli.settings.reranking import Rerank, TrainReranker
from hybrid_cli.settings.retrieval import IndexBm25, Search, SearchOptions
from hybrid_cli.settings.sparse import TrainSparse
from hybrid_cli.settings.training import DistillLite, Pretrain, TrainDense, TrainLambda
from hybrid_cli.settings.updates import Append, Delete

COMMANDS: tuple[type[Settings], ...] = (  # in the order of a pipeline
    Auto,
    PreparePythonDocs,
    PrepareFiles,
    PrepareBeir,
    PrepareMsmarco,
    PrepareDpr,
    PrepareTevatron,
    PrepareTrec,
    PrepareIrds,
    Split,
    Perturb,
    IndexBm25,
    Append,
    Delete,
    MineNegatives,
    Label,
    Pretrain,
    TrainDense,
    TrainLambda,
    DistillLite,
    TrainSparse,
    TrainReranker,
    ConvertCheckpoint,
    Presets,
    Combine,
    Encode,
    Search,
    Judge,
    Fuse,
    Rerank,
    ConcatRuns,
    Evaluate,
    Report,
    Inspect,
    Verify,
    Export,
    Doctor,
)

__all__ = [
    "COMMANDS",
    "Append",
    "Auto",
    "Combine",
    "ConcatRuns",
    "ConvertCheckpoint",
    "Delete",
    "DistillLite",
    "Doctor",
    "Encode",
    "Evaluate",
    "Export",
    "Fuse",
    "IndexBm25",
    "Inspect",
    "Judge",
    "Label",
    "MineNegatives",
    "Perturb",
    "PrepareBeir",
    "PrepareDpr",
    "PrepareFiles",
    "PrepareIrds",
    "PrepareMsmarco",
    "PreparePythonDocs",
    "PrepareTevatron",
    "PrepareTrec",
    "Presets",
    "Pretrain",
    "Report",
    "Rerank",
    "Search",
    "SearchOptions",
    "Settings",
    "Split",
    "TrainDense",
    "TrainLambda",
    "TrainReranker",
    "TrainSparse",
    "VectorIndex",
    "Verify",
]
