"""`presets`: list the contracts of published models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_cli.commands import Presets
from hybrid_cli.encoders.contract import PRESETS
from hybrid_cli.stages import stage


@stage(Presets)
def presets(settings: Presets) -> Mapping[str, Any]:
    """Return the presets by name."""
    return PRESETS
