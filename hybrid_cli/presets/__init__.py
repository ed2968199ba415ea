"""Published settings of experiments, one YAML file per paper and collection, with the options of each command.

`--config NAME` reads them. Presets of released encoders, for `--preset`, are in `encoders/presets.py`.
"""

from __future__ import annotations

from pathlib import Path


def experiments() -> dict[str, Path]:
    """Return the files of the experiments by name."""
    return {file.stem: file for file in sorted(Path(__file__).parent.glob("*.yaml"))}
