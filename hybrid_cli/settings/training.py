"""Settings of pretraining, training and distillation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar

from hybrid_cli.settings.common import (
    OBJECTIVE,
    OPTIMIZATION,
    PROJECTION,
    Architecture,
    Distillation,
    ExampleValidation,
    Likelihood,
    LossOptions,
    OnDevice,
    Optimization,
    Sampling,
    StartModel,
    Taught,
    Training,
    Validation,
)
from hybrid_cli.settings.options import (
    GIVEN,
    POSITIVE,
    REQUIRED,
    By,
    argument,
    inherited,
    option,
    redeclare,
    scope,
    when,
)
from hybrid_cli.training.options import (
    BM25,
    RESIDUALS,
    TAUGHT,
    DynamicRanking,
    Imitation,
    LambdaEncoder,
    LambdaLoss,
    Pretraining,
)

TRAINING = "Training"
TEACHER, STATIC, SPANS = "Teacher", "Static encoder", "Spans"


@dataclass(frozen=True)
class Pretrain(Training, StartModel, Pretraining):
    """Pretrain an encoder on a corpus with masked language modeling.

    The output is a start model for `train-dense --model`. An interrupted run resumes from its last checkpoint and ends
    with the same weights.

    Attributes:
        collection: Collection or corpus; queries and qrels are not read.
        cocondenser: Add the Condenser head, and the contrastive loss between two spans of a document (coCondenser).
        max_length: Maximum tokens of a span.
        mlm_probability: Fraction of the tokens that are masked, in whole words.
        skip_layer: Layer whose token states enter the Condenser head; 0 is the embeddings.
        held_out: Documents held out for validation, at most a tenth of the corpus.
        batch_size: Spans per batch; with `--cocondenser`, documents with two spans each.
    """

    option_panel = SPANS

    command = "pretrain"
    panel = TRAINING
    examples = (
        "hybrid pretrain data/pydocs --model minilm --max-steps 1000 --output out/adapted",
        "hybrid pretrain data/pydocs --cocondenser --max-steps 1000 --output out/cocondenser",
    )

    default_epochs: ClassVar[int] = Pretraining.default_epochs

    collection: Path = argument(REQUIRED)
    _: KW_ONLY
    scopes = scope(when(cocondenser=True), "skip_layer")

    cocondenser: bool = inherited()
    max_length: int = inherited(minimum=4)
    mlm_probability: float = inherited(minimum=0.01, maximum=0.99)
    skip_layer: int | None = option(None, minimum=0, shown="the middle layer")
    held_out: int = inherited(minimum=0, needed=when(eval_steps=GIVEN))
    epochs: int | None = inherited(shown="8, or as many as --max-steps needs")
    batch_size: int = inherited()
    learning_rate: float = inherited()
    weight_decay: float = inherited()
    eval_steps: int | None = redeclare(Validation, "eval_steps", applies=())


_SUMMED = when(dynamic_negatives=POSITIVE, dynamic_ranking="sum")
_SCORED = (when(loss=RESIDUALS), _SUMMED)
_PAIRS = (  # BM25 scores of pairs that the examples do not hold
    when(loss=RESIDUALS, in_batch=True, scorer=BM25),
    when(loss=RESIDUALS, dynamic_negatives=POSITIVE, scorer=BM25),
    when(**_SUMMED.allowed, scorer=BM25),
)


@dataclass(frozen=True)
class TrainDense(Training, ExampleValidation, Sampling, Architecture, Taught, LossOptions):
    """Train a dense encoder on mined examples.

    The two parts of RoC, `--ortho-weight` and `--mask-matches`, combine with every loss, and so does `--distill`; with
    a residual loss, the teacher teaches the sum with the scorer. An interrupted run resumes from its last checkpoint
    and ends with the same weights.

    Attributes:
        training_examples: Training examples, written by `mine-negatives`.
        dynamic_negatives: Additional hard negatives per query, found again at every checkpoint among the documents of
            the examples.
        dynamic_ranking: Ranking whose top hits become dynamic negatives: of the `model`, or of the `sum` with the
            scores of `--scorer`.
        refresh_negatives: Steps between two searches of the whole collection, from whose top hits the dynamic negatives
            are drawn.
        collection: Collection or corpus of `--refresh-negatives`.
    """

    option_panel = OPTIMIZATION

    command = "train-dense"
    panel = TRAINING
    examples = (
        "hybrid train-dense out/train.parquet --loss residual-margin --model minilm --output out/clear",
        "hybrid train-dense out/train.parquet --loss roc --index out/bm25 --dev out/dev.parquet --output out/roc",
        "hybrid train-dense out/train.parquet --distill kl --teacher out/reranker --output out/taught",
    )

    training_examples: Path = argument(REQUIRED, metavar="EXAMPLES")
    _: KW_ONLY
    default_epochs: ClassVar[int] = 2  # studies/recommended.md

    scopes = scope(when(dynamic_negatives=POSITIVE), "dynamic_ranking", "refresh_negatives") + scope(
        when(refresh_negatives=GIVEN), "collection"
    )

    epochs: int | None = inherited(shown="2, or as many as --max-steps needs")
    learning_rate: float = inherited(default=5e-5)
    index: Path | None = inherited(
        applies=(when(ortho_weight=POSITIVE), when(dev=GIVEN), *_PAIRS), needed=(when(ortho_weight=POSITIVE), *_PAIRS)
    )
    scorer: str = inherited(applies=_SCORED)
    scorer_weight: float = inherited(applies=_SCORED)
    dynamic_negatives: int = option(0, minimum=0, excluded=when(loss=TAUGHT))
    dynamic_ranking: DynamicRanking = option(
        By("loss", dict.fromkeys(RESIDUALS, "sum"), "model"),
        shown="`sum` for residual-margin, residual-nll; else `model`",
    )
    refresh_negatives: int | None = option(None, minimum=1)
    collection: Path | None = option(None, shown="the corpus of the examples")

    @property
    def ranks_by_sum(self) -> bool:
        """Dynamic negatives are the top hits of the weighted sum with the scorer."""
        return bool(self.dynamic_negatives) and self.dynamic_ranking == "sum"

    @property
    def scored(self) -> bool:
        """The loss or the dynamic negatives depend on the scorer."""
        return self.loss in RESIDUALS or self.ranks_by_sum

    @property
    def uses_bm25(self) -> bool:
        """The training needs BM25 scores of pairs that the examples do not hold."""
        return any(condition.holds(self.values()) for condition in _PAIRS)


TRANSFORMER = when(encoder="transformer")
_WITHOUT_BASE = when(encoder="transformer", base=None)  # whose vectors determine the form of the sum


@dataclass(frozen=True)
class TrainLambda(Training, Validation, Architecture, Imitation):
    """Train an encoder that imitates the ranking of a lexical teacher (Lambda of SPAR).

    A transformer learns from teacher labels. A static encoder sums one vector per term: it learns from the lexical
    index in a minute, encodes without a transformer, and is independent of word order.

    Attributes:
        collection: Collection: the labeled corpus, and the dev queries.
        encoder: Transformer, or static encoder with one vector per term.
        index: Lexical index: teacher of a static encoder and of the validation; if it made the labels, also of all
            documents of the batch for `--loss listwise`.
        labels: Teacher labels, written by `label`: required for a transformer; optional queries for a static encoder.
        loss: `contrastive`: likelihood of a top-ranked passage in the batch; `listwise`: KL divergence from the scores
            in the labels, or of BM25 with `--index`.
        base: Frozen encoder, such as a static Lambda, to which the transformer is added; the output is the sum of both.
        positives: Top-ranked hits used as positives.
        negatives: Bottom-ranked hits used as hard negatives.
        list_passages: Passages drawn from the hits of each query per step, in addition to one positive.
        dynamic_negatives: Hard negatives per query mined with the student itself, from a pool that is re-encoded at
            every checkpoint.
        temperature: Divisor of the student's and the teacher's scores before the softmax.
        dim: Dimensions of the vectors.
        vocab_size: Number of terms with a vector of their own, the most frequent ones.
        hash_buckets: Vectors shared by all other terms, chosen by a hash.
        text_fraction: Fraction of labeled texts among the queries; the others are random bags of terms.
        candidates: Candidates: top-ranked documents of the teacher for each query, and documents drawn from the
            collection in each step.
        dev: Split with the queries of the validation, on a pool of the teacher's passages; needs `--index`.
        epochs: Passes over the labels.
    """

    command = "train-lambda"
    panel = TRAINING
    examples = (
        "hybrid train-lambda data/pydocs --labels out/labels --index out/bm25 --dev dev --output out/lambda",
        "hybrid train-lambda data/pydocs --encoder static --index out/bm25 --dim 64 --output out/static",
    )
    scopes = (
        scope(
            TRANSFORMER,
            Architecture,
            OnDevice,
            "loss",
            "positives",
            "epochs",
            "chunk_size",
            "schedule",
            "keep_epochs",
            "dtype",
        )
        + scope(
            when(encoder="static"),
            "index",
            "dynamic_negatives",
            "temperature",
            "vocab_size",
            "hash_buckets",
            "candidates",
        )
        + scope(when(loss="listwise"), "index")
        + scope(when(dev=GIVEN), "index")
        + scope(when(encoder="transformer", loss="contrastive"), "base", "negatives")
        + scope(when(encoder="transformer", loss="listwise"), "list_passages", "dynamic_negatives", "temperature")
        + scope(when(base=None), "matryoshka_dims", "dim")
        + scope(when(encoder="static", labels=GIVEN), "text_fraction")
    )

    collection: Path = argument(REQUIRED)
    _: KW_ONLY
    encoder: LambdaEncoder = option("transformer")
    index: Path | None = option(
        None,
        panel=TEACHER,
        needed=(when(encoder="static"), when(loss="listwise", dynamic_negatives=POSITIVE), when(dev=GIVEN)),
    )
    labels: Path | None = option(None, panel=TEACHER, needed=when(encoder="transformer"))
    loss: LambdaLoss = inherited(panel=TEACHER)
    base: str | None = option(None, panel=TEACHER, recorded=False)
    positives: int = inherited(panel=TEACHER, minimum=1)
    negatives: int = inherited(panel=TEACHER, minimum=1)
    list_passages: int = inherited(panel=TEACHER, minimum=1)
    dynamic_negatives: int = inherited(panel=TEACHER, minimum=0)
    temperature: float = option(1.0, panel=TEACHER, above=0)
    matryoshka_dims: Sequence[int] = redeclare(LossOptions, "matryoshka_dims")
    dim: int | None = inherited(default=By("encoder", {"static": 64}), shown="the model's; static: 64")
    normalize: bool | None = inherited(applies=_WITHOUT_BASE)
    projection_norm: bool | None = inherited(
        applies=(when(**_WITHOUT_BASE.allowed, dim=GIVEN), when(**_WITHOUT_BASE.allowed, start=PROJECTION))
    )
    vocab_size: int = option(200_000, panel=STATIC, minimum=1)
    hash_buckets: int = option(4096, panel=STATIC, minimum=1)
    text_fraction: float = inherited(panel=STATIC, minimum=0, maximum=1)
    candidates: tuple[int, int] = inherited(panel=STATIC, minimum=1, metavar="HARD DRAWN")
    dev: str | None = inherited(recorded=True)
    epochs: int | None = inherited()
    max_steps: int | None = inherited(default=By("encoder", {"static": 1200}))
    batch_size: int = inherited(default=By("encoder", {"static": 256}, Optimization.batch_size))
    learning_rate: float = inherited(default=By("encoder", {"static": 3e-3}, Optimization.learning_rate))
    warmup: float = inherited(default=By("encoder", {"static": 0.0}, Optimization.warmup))


STUDENT = when(queries_only=False)


@dataclass(frozen=True)
class DistillLite(Training, ExampleValidation, Sampling, Architecture, Likelihood, Distillation):
    """Distill a teacher's vectors into a small encoder (LITE).

    The student has two heads: a small head for retrieval, and a large head that matches the teacher's vectors and is
    dropped after training; `--distill` adds a loss of the small head on the scores in the examples. With
    `--queries-only`, the output is a query encoder for the teacher's indexes (DrBoost).

    Attributes:
        training_examples: Training examples, written by `mine-negatives`.
        teacher: Encoder to distill: an ensemble or any other.
        queries_only: Train only a query encoder for the teacher's indexes; documents keep the teacher's vectors.
        kd_weight: Weight of the squared distances to the teacher's vectors, relative to the likelihood.
        dim: Dimensions of the student's vectors.
    """

    command = "distill-lite"
    panel = TRAINING
    examples = (
        "hybrid distill-lite out/train.parquet --teacher out/drboost-2 --dim 32 --output out/lite",
        "hybrid distill-lite out/train.parquet --teacher out/drboost-2 --queries-only --output out/drboost-2-queries",
    )
    scopes = scope(
        STUDENT,
        Likelihood,
        Distillation,
        "kd_weight",
        "dim",
        "normalize",
        "projection_norm",
        "tied",
        "doc_prefix",
        "doc_max_len",
        "negatives",
        "title_separator",
    )

    training_examples: Path = argument(REQUIRED, metavar="EXAMPLES")
    _: KW_ONLY
    teacher: str = option(REQUIRED, recorded=False)
    queries_only: bool = option(False)
    kd_weight: float = option(1.0, panel=OBJECTIVE, minimum=0)
    dim: int | None = inherited(default=32, shown="32")
    negatives: int = inherited(default=By("queries_only", {True: 0}, Sampling.negatives), shown="1")
