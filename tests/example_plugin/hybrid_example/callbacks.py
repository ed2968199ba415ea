"""A callback."""

from collections.abc import Mapping

from hybrid_cli.training import Callback


class Counted(Callback):
    """Count the steps of all trainings."""

    steps = 0

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Count a step."""
        Counted.steps += 1
