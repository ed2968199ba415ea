"""Fusion of runs: methods, weights tuned on judgments, and the prior of other collections."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_cli.fusion.frames import fuse

__all__ = ["fuse"]


def __getattr__(name: str) -> Any:
    """Import on first use: the defaults in `options` are needed without polars."""
    if name == "fuse":
        from hybrid_cli.fusion import frames

        return frames.fuse
    raise AttributeError(f"module 'hybrid_cli.fusion' has no attribute '{name}'")
