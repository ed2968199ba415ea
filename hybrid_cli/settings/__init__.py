"""The options of every command, declared once: type, default, range, help, and the variants they apply to."""

from hybrid_cli.settings.analysis import Doctor, Evaluate, Export, Inspect, Report
from hybrid_cli.settings.data import (
    Perturb,
    PrepareBeir,
    PrepareDpr,
    PrepareIrds,
    PrepareMsmarco,
    PreparePythonDocs,
    PrepareTrec,
    Split,
)
from hybrid_cli.settings.mining import Label, MineNegatives
from hybrid_cli.settings.options import Settings
from hybrid_cli.settings.retrieval import ConcatRuns, Fuse, IndexBm25, Search, SearchOptions
from hybrid_cli.settings.stage import stage

COMMANDS: tuple[type[Settings], ...] = (  # in the order of a pipeline
    PreparePythonDocs,
    PrepareBeir,
    PrepareMsmarco,
    PrepareDpr,
    PrepareTrec,
    PrepareIrds,
    Split,
    Perturb,
    IndexBm25,
    MineNegatives,
    Label,
    Search,
    Fuse,
    ConcatRuns,
    Evaluate,
    Report,
    Inspect,
    Export,
    Doctor,
)

__all__ = [
    "COMMANDS",
    "ConcatRuns",
    "Doctor",
    "Evaluate",
    "Export",
    "Fuse",
    "IndexBm25",
    "Inspect",
    "Label",
    "MineNegatives",
    "Perturb",
    "PrepareBeir",
    "PrepareDpr",
    "PrepareIrds",
    "PrepareMsmarco",
    "PreparePythonDocs",
    "PrepareTrec",
    "Report",
    "Search",
    "SearchOptions",
    "Settings",
    "Split",
    "stage",
]
