"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hybrid_cli.settings.options import GENERAL, GIVEN, REQUIRED, Settings, option, parsed_by, redeclare, when

MEASURE = parsed_by("hybrid_cli.evaluation.measures", "measure_name")
Pooling = Literal["mean", "cls"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
CombineMode = Literal["concat", "sum"]
NameOrPath = str | Path  # the name of a model, `name=path`, or a path; settings hold it as text


def as_names(given: Sequence[NameOrPath] | NameOrPath) -> tuple[str, ...]:
    """Return one or several names as texts."""
    return tuple(map(str, (given,) if isinstance(given, str | Path) else given))


@dataclass(frozen=True, kw_only=True)
class Overwrites(Settings):
    """A command that can write an artifact."""

    overwrite: bool = option(False, "Replace an existing output.", panel=GENERAL, recorded=False)


@dataclass(frozen=True, kw_only=True)
class Writes(Overwrites):
    """A command that always writes an artifact."""

    output: Path = option(REQUIRED, "Output path.", "--output", "-o", recorded=False)


@dataclass(frozen=True, kw_only=True)
class MayWrite(Overwrites):
    """A command that prints its result, and writes it with `--output`."""

    output: Path | None = option(None, "Output path.", "--output", "-o", recorded=False)
    overwrite: bool = redeclare(Overwrites, "overwrite", False, applies=(when(output=GIVEN),))


@dataclass(frozen=True, kw_only=True)
class Seeded(Settings):
    """A command that draws random numbers."""

    seed: int = option(42, "Random seed.", panel=GENERAL, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Threaded(Settings):
    """A command that computes on several CPU threads."""

    threads: int | None = option(None, "CPU threads.", panel=GENERAL, minimum=1, shown="all cores", recorded=False)


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class OnDevice(Settings):
    """A command that runs a model."""

    device: str = option("auto", "Device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.", panel=GENERAL, recorded=False)


ENCODER = "Encoder"


@dataclass(frozen=True, kw_only=True)
class EncoderContract(Settings):
    """How an encoder reads texts and forms vectors; what is not set comes from the model."""

    pooling: Pooling | None = option(
        None, "Pooling: masked mean of all tokens, or [CLS].", panel=ENCODER, shown="the model's"
    )
    normalize: bool | None = option(None, "Normalize vectors to length 1.", panel=ENCODER, shown="the model's")
    query_prefix: str | None = option(None, "Text put before every query.", panel=ENCODER, shown="the model's")
    doc_prefix: str | None = option(None, "Text put before every document.", panel=ENCODER, shown="the model's")
    title_separator: str | None = option(
        None, "Text between title and body; DPR uses ' [SEP] '.", panel=ENCODER, shown="the model's"
    )
    query_max_len: int | None = option(
        None, "Maximum tokens of a query.", panel=ENCODER, minimum=1, shown="the model's"
    )
    doc_max_len: int | None = option(
        None, "Maximum tokens of a document.", panel=ENCODER, minimum=1, shown="the model's"
    )
