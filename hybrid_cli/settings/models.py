"""Settings of published models: their presets and their conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from hybrid_cli.settings.common import NameOrPath, Overwrites
from hybrid_cli.settings.options import REQUIRED, Settings, argument, option, when
from hybrid_cli.settings.retrieval import RETRIEVAL


@dataclass(frozen=True)
class Presets(Settings):
    """List the presets: contracts of published models, for `--preset`, and published experiments, for `--config`."""

    command = "presets"
    panel = RETRIEVAL
    examples = ("hybrid presets",)


@dataclass(frozen=True)
class ConvertCheckpoint(Overwrites):
    """Convert a checkpoint to safetensors, or join the towers or learners of a published encoder.

    Pickled weights (`pytorch_model.bin`, `.ckpt`) are read in a separate process, tensors only; a file with other
    objects is refused. Configuration and tokenizer are copied from the folder of the checkpoint.
    """

    command = "convert-checkpoint"
    panel = RETRIEVAL
    examples = (
        "hybrid convert-checkpoint downloads/ance models/ance",
        "hybrid convert-checkpoint dpr-question models/dpr --documents dpr-context",
        "hybrid convert-checkpoint lambda.ckpt models/lambda --base google-bert/bert-base-uncased",
        "hybrid convert-checkpoint one.ckpt models/drboost --learners two.ckpt,three.ckpt "
        "--base google-bert/bert-base-uncased",
    )

    checkpoint: NameOrPath = argument(REQUIRED, "Pickled file, model folder, or Hugging Face id.")
    output: Path = argument(REQUIRED, "Folder of the converted checkpoint.")
    _: KW_ONLY
    documents: NameOrPath | None = option(
        None, "Document encoder, if CHECKPOINT is the query encoder of two published checkpoints.", recorded=False
    )
    learners: Sequence[NameOrPath] = option(
        (),
        "Further learners of an ensemble with CHECKPOINT as its first, each with both towers; their vectors are "
        "concatenated (DrBoost).",
        recorded=False,
        applies=when(documents=None),
    )
    base: NameOrPath | None = option(
        None, "Model with configuration and tokenizer, for a file without config.json next to it.", recorded=False
    )
