"""Settings of learned sparse encoders and indexes."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from hybrid_cli.encoders.options import SparseArchitecture
from hybrid_cli.settings.base import Settings
from hybrid_cli.settings.common import (
    OBJECTIVE,
    ONE_MODEL,
    TEXTS,
    AdaptedModel,
    EncoderContract,
    ExampleValidation,
    Likelihood,
    LossOptions,
    Sampling,
    Taught,
    Training,
)
from hybrid_cli.settings.options import GIVEN, REQUIRED, By, argument, option, redeclare, scope, when
from hybrid_cli.settings.training import TRAINING
from hybrid_cli.training.options import Flops, SparseLoss

SPARSE = "Learned sparse index"
OF_SPARSE = "a learned sparse encoder"  # fact about the encoder
_DOCUMENTS = when(input=TEXTS, models=ONE_MODEL, queries=None, split=None, from_vectors=None)
_WEIGHTS = when(**_DOCUMENTS.allowed, encoder=OF_SPARSE)


@dataclass(frozen=True, kw_only=True)
class SparseIndex(Settings):
    """Options of `encode` with a sparse encoder.

    Attributes:
        quantization: Steps between the learned weights 0 and 1: a power of two. With `deepct`, any number: a word of
            weight 1 is counted that many times.
        expansion: File of docid and text, such as queries of docT5query; the text is added to the document.
        architecture: Read a plain checkpoint as a sparse encoder: `splade`: the whole vocabulary; `unicoil`: word
            pieces of the text; `deepct`: its words; `sparterm`: gated.
    """

    option_panel = SPARSE

    scopes = scope(_DOCUMENTS, "architecture") + scope(_WEIGHTS, "quantization", "expansion")

    architecture: SparseArchitecture | None = option(None, shown="the model's", recorded=False)
    quantization: int | None = option(None, minimum=1, maximum=1 << 12, shown="128; 100 for `deepct`", recorded=False)
    expansion: Path | None = option(None)


_CONTRASTIVE = when(architecture=("splade", "unicoil", "sparterm"))


@dataclass(frozen=True)
class TrainSparse(Flops, Training, ExampleValidation, Sampling, AdaptedModel, Taught):
    """Train a learned sparse encoder on mined examples.

    `deepct` learns the share of a passage's training queries that contain each of its words, and needs no negatives.
    The others learn to rank, with the FLOPS regularization; `sparterm` also learns a gate. An interrupted run resumes
    from its last checkpoint and ends with the same weights.

    Attributes:
        training_examples: Training examples, written by `mine-negatives`.
        loss: Likelihood of the positive, or a loss on a teacher's scores.
        query_flops: Weight of the FLOPS of queries.
        doc_flops: Weight of the FLOPS of documents.
        temperature: Divisor of the scores.
        architecture: Weights of words: `splade`: the whole vocabulary; `unicoil`: word pieces of the text; `deepct`:
            its words; `sparterm`: gated.
    """

    command = "train-sparse"
    panel = TRAINING
    examples = (
        "hybrid train-sparse out/train.parquet --architecture deepct --output out/deepct",
        "hybrid train-sparse out/train.parquet --architecture splade --lr 5e-5 --output out/splade",
    )

    training_examples: Path = argument(REQUIRED, metavar="EXAMPLES")
    _: KW_ONLY
    scopes = (
        scope(
            _CONTRASTIVE,
            "loss",
            "distill",
            "query_flops",
            "doc_flops",
            "temperature",
            "mask_matches",
            "negatives",
            "query_prefix",
            "query_max_len",
            "dev",
        )
        + scope(when(**_CONTRASTIVE.allowed, loss="nll"), "in_batch")
        + scope(when(dev=GIVEN), "keep")
    )

    architecture: SparseArchitecture = option(REQUIRED)
    loss: SparseLoss = option("nll", panel=OBJECTIVE)
    query_flops: float = option(By("architecture", {"sparterm": 0.0}, Flops.query_flops), panel=OBJECTIVE, minimum=0)
    doc_flops: float = option(By("architecture", {"sparterm": 0.0}, Flops.doc_flops), panel=OBJECTIVE, minimum=0)
    temperature: float = option(1.0, panel=OBJECTIVE, above=0)
    in_batch: bool = redeclare(Likelihood, "in_batch")
    mask_matches: float = redeclare(LossOptions, "mask_matches", default=0.0)
    query_prefix: str | None = redeclare(EncoderContract, "query_prefix")
    doc_prefix: str | None = redeclare(EncoderContract, "doc_prefix")
    title_separator: str | None = redeclare(EncoderContract, "title_separator")
    query_max_len: int | None = redeclare(EncoderContract, "query_max_len")
    doc_max_len: int | None = redeclare(EncoderContract, "doc_max_len")
