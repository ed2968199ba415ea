"""The options of every command, declared once: type, default, range, help, and the variants they apply to."""

from hybrid_cli.settings.mining import Label, MineNegatives
from hybrid_cli.settings.options import Settings
from hybrid_cli.settings.retrieval import ConcatRuns, Fuse
from hybrid_cli.settings.stage import stage

COMMANDS: tuple[type[Settings], ...] = (MineNegatives, Label, Fuse, ConcatRuns)  # in the order of a pipeline

__all__ = ["COMMANDS", "ConcatRuns", "Fuse", "Label", "MineNegatives", "Settings", "stage"]
