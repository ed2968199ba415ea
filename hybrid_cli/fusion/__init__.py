"""Fusion of runs: methods, weights tuned on judgments, and the prior of other collections."""

from typing import TYPE_CHECKING

from hybrid_cli import lazy

if TYPE_CHECKING:
    from hybrid_cli.fusion.frames import fuse
else:
    __getattr__, __dir__ = lazy.attach(__name__, {"frames": ["fuse"]})  # `options` is needed without polars

__all__ = ["fuse"]
