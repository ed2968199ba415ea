"""Training: losses, batches, negatives, teachers, the training loop."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_cli.training.in_memory import train
    from hybrid_cli.training.loop import Callback

__all__ = ["Callback", "train"]


def __getattr__(name: str) -> Any:
    """Import on first use: PyTorch takes seconds."""
    if name in __all__:
        from hybrid_cli.training import in_memory, loop

        return in_memory.train if name == "train" else loop.Callback
    raise AttributeError(f"module 'hybrid_cli.training' has no attribute '{name}'")
