"""Training: losses, batches, negatives, teachers, the training loop."""

from typing import TYPE_CHECKING

from hybrid_cli import lazy

if TYPE_CHECKING:
    from hybrid_cli.training.loop import Callback
else:
    __getattr__, __dir__ = lazy.attach(__name__, {"loop": ["Callback"]})

__all__ = ["Callback"]
