"""The options of every command, declared once: type, default, range, help, and the variants they apply to."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hybrid_cli.commands.analysis import Doctor, Evaluate, Export, Gate, Inspect, Judge, Report, Sweep
from hybrid_cli.commands.auto import Auto
from hybrid_cli.commands.data import (
    READERS,
    Perturb,
    PrepareBeir,
    PrepareDpr,
    PrepareFiles,
    PrepareIrds,
    PrepareMsmarco,
    PreparePythonDocs,
    PrepareTevatron,
    PrepareTrec,
    Split,
)
from hybrid_cli.commands.fusion import Compose, ConcatRuns, Fuse, Rerank, Serve, Update
from hybrid_cli.commands.retrieval import (
    Combine,
    ConvertCheckpoint,
    Encode,
    IndexBm25,
    Search,
    SearchOptions,
    VectorIndex,
)
from hybrid_cli.commands.training import (
    DistillLite,
    Label,
    MineNegatives,
    Pretrain,
    TrainDense,
    TrainLambda,
    TrainReranker,
    TrainSparse,
)
from hybrid_cli.plugins import Registry
from hybrid_cli.settings import Settings

__all__ = ["READERS", "Auto", "Combine", "Compose", "ConcatRuns", "ConvertCheckpoint", "DistillLite", "Doctor"]
__all__ += ["Encode", "Evaluate", "Export", "Fuse", "Gate", "IndexBm25", "Inspect", "Judge", "Label", "MineNegatives"]
__all__ += ["Perturb", "PrepareBeir", "PrepareDpr", "PrepareFiles", "PrepareIrds", "PrepareMsmarco"]
__all__ += ["PreparePythonDocs", "PrepareTevatron", "PrepareTrec", "Pretrain", "Report", "Rerank", "Search"]
__all__ += [
    "SearchOptions",
    "Serve",
    "Split",
    "Sweep",
    "TrainDense",
    "TrainLambda",
    "TrainReranker",
    "TrainSparse",
    "Update",
]
__all__ += ["VectorIndex"]
_Steps = tuple[type[Settings], ...]
_DATA: _Steps = (Auto, *(READERS[name] for name in READERS.built_in()), Split, Perturb, IndexBm25)
_TRAINING: _Steps = (MineNegatives, Label, Pretrain, TrainDense, TrainLambda, DistillLite, TrainSparse, TrainReranker)
_ENCODING: _Steps = (ConvertCheckpoint, Combine, Encode)
_SEARCH: _Steps = (Search, Judge, Fuse, Compose, Update, Serve, Rerank, ConcatRuns)
_RESULTS: _Steps = (Evaluate, Sweep, Gate, Report, Inspect, Export, Doctor)
# in the order of a pipeline
COMMANDS: _Steps = (*_DATA, *_TRAINING, *_ENCODING, *_SEARCH, *_RESULTS)


class Command(NamedTuple):
    """A command: its settings class, and the function that runs it; None for ours, which are in `stages`."""

    settings: type[Settings]
    function: Callable[[Any], Any] | None = None

    @property
    def documented(self) -> type[Settings]:
        """The class whose docstring is the help."""
        return self.settings


def as_command(name: str, added: Any) -> Command:
    """Return the command of a plugin: a function with the decorator `stage`.

    Raises:
        ValueError: another object.
    """
    kind = getattr(added, "settings", None)
    if not isinstance(kind, type) or not issubclass(kind, Settings):
        raise ValueError("it is no function with the decorator `hybrid_cli.stages.stage`")
    if kind.command != name or not kind.panel:
        raise ValueError(f"{kind.__name__} needs `command = {name!r}` and a `panel`")
    return Command(kind, added)


ALL_COMMANDS: Registry[Command] = Registry(
    "commands", {kind.command: Command(kind) for kind in COMMANDS}, as_command, ("prepare",)
)


def command_names() -> list[str]:
    """Return the names of all commands, of plugins too."""
    return [*ALL_COMMANDS, *(f"prepare {entry.name}" for entry in READERS.others())]
