"""A kind of encoder, and the command that makes one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch

from hybrid_cli import artifacts
from hybrid_cli.encoders.contract import Encoder, refuse_single_text
from hybrid_cli.settings import Writes
from hybrid_cli.stages import stage
from hybrid_cli.storage import Kind, disk


class Letters(Encoder):
    """Counts the letters of a text."""

    fingerprint = "letters-1"
    truncated = 0
    dim = len(ascii_lowercase)
    device = torch.device("cpu")

    @classmethod
    def load(cls, folder: Path, device: str, dtype: str) -> Encoder:
        """Open a folder; nothing is stored in it."""
        return cls()

    def describe(self) -> dict[str, Any]:
        """Return the contract."""
        return {"kind": "letters"}

    def encode_queries(self, texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return the number of each letter."""
        refuse_single_text(texts)
        counts = [[text.lower().count(letter) for letter in ascii_lowercase] for text in texts]
        return np.array(counts, np.float32).reshape(len(texts), self.dim)

    def encode_documents(self, titles: Sequence[str], texts: Sequence[str], batch_tokens: int = 0) -> np.ndarray:
        """Return the number of each letter in the text."""
        return self.encode_queries(texts)


@dataclass(frozen=True)
class MakeLetters(Writes):
    """Write an encoder that counts letters."""

    command = "make-letters"
    panel = "Example"
    examples = ("hybrid make-letters --output out/letters",)


@stage(MakeLetters)
def make_letters(settings: MakeLetters) -> Path:
    """Write the folder of an encoder."""
    output = artifacts.output_of(settings, Kind.ENCODER, {})
    if not output.up_to_date:
        with output.folder() as (folder, _):
            disk.write_text(folder / "encoder.json", json.dumps({"kind": "letters"}))
    return output.path
