"""Option types of `encode`, until its settings class replaces them."""

from __future__ import annotations

from typing import Annotated

from hybrid_cli import config
from hybrid_cli.cli.common import option

ENCODER = "Encoder"
Pooling = Annotated[config.Pooling | None, option(ENCODER, "Masked mean of all tokens, or [CLS].")]
QueryPrefix = Annotated[str | None, option(ENCODER, "Text put before every query.")]
DocPrefix = Annotated[str | None, option(ENCODER, "Text put before every document.")]
TitleSeparator = Annotated[str | None, option(ENCODER, "Text between title and body; DPR uses ' [SEP] '.")]
QueryMaxLen = Annotated[int | None, option(ENCODER, "Maximum tokens of a query.")]
DocMaxLen = Annotated[int | None, option(ENCODER, "Maximum tokens of a document.")]
Normalize = Annotated[bool | None, option(ENCODER, "Normalize vectors to length 1.", "--normalize/--no-normalize")]
