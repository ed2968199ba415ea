"""Settings of pretraining, training and distillation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from hybrid_cli.encoders.options import Precision
from hybrid_cli.errors import InputError
from hybrid_cli.settings.common import (
    OBJECTIVE,
    OPTIMIZATION,
    PROJECTION,
    Architecture,
    ExampleValidation,
    Likelihood,
    LossOptions,
    OnDevice,
    Optimization,
    Sampling,
    StartModel,
    Training,
    Validation,
)
from hybrid_cli.settings.declaration import Condition
from hybrid_cli.settings.options import GIVEN, REQUIRED, By, Settings, argument, option, redeclare, when
from hybrid_cli.training.options import (
    BM25,
    RESIDUALS,
    DynamicRanking,
    Imitation,
    LambdaEncoder,
    LambdaLoss,
    Pretraining,
    Schedule,
)

TRAINING = "Training"
TEACHER, STATIC, SPANS = "Teacher", "Static encoder", "Spans"


@dataclass(frozen=True)
class Pretrain(Training, StartModel, Pretraining):
    """Pretrain an encoder on a corpus with masked language modeling.

    The output is a start model for `train-dense --model`. An interrupted run resumes from its last checkpoint and ends
    with the same weights.
    """

    command = "pretrain"
    panel = TRAINING
    examples = (
        "hybrid pretrain data/pydocs --model minilm --max-steps 1000 --output out/adapted",
        "hybrid pretrain data/pydocs --cocondenser --max-steps 1000 --output out/cocondenser",
    )

    default_epochs: ClassVar[int] = Pretraining.default_epochs

    collection: Path = argument(REQUIRED, "Collection or corpus; queries and qrels are not read.")
    _: KW_ONLY
    cocondenser: bool = option(
        Pretraining.cocondenser,
        "Add the Condenser head, and the contrastive loss between two spans of a document (coCondenser).",
        panel=SPANS,
    )
    max_length: int = option(Pretraining.max_length, "Maximum tokens of a span.", panel=SPANS, minimum=4)
    mlm_probability: float = option(
        Pretraining.mlm_probability,
        "Fraction of the tokens that are masked, in whole words.",
        panel=SPANS,
        minimum=0.01,
        maximum=0.99,
    )
    skip_layer: int | None = option(
        None,
        "Layer whose token states enter the Condenser head; 0 is the embeddings.",
        panel=SPANS,
        minimum=0,
        shown="the middle layer",
        applies=when(cocondenser=True),
    )
    held_out: int = option(
        Pretraining.held_out,
        "Documents held out for validation, at most a tenth of the corpus.",
        panel=SPANS,
        minimum=0,
    )
    epochs: int | None = redeclare(Optimization, "epochs", shown="8, or as many as --max-steps needs")
    batch_size: int = redeclare(
        Optimization,
        "batch_size",
        Pretraining.batch_size,
        help="Spans per batch; with `--cocondenser`, documents with two spans each.",
    )
    learning_rate: float = redeclare(Optimization, "learning_rate", Pretraining.learning_rate)
    weight_decay: float = redeclare(Optimization, "weight_decay", Pretraining.weight_decay)
    eval_steps: int | None = redeclare(Validation, "eval_steps", applies=())

    def check(self) -> None:
        """Refuse validation steps without held-out documents."""
        super().check()
        if "eval_steps" in self.given and not self.held_out:
            raise InputError(
                f"--eval-steps {self.eval_steps}: needs held-out documents; raise --held-out above 0",
                code="missing-option", option="held_out", needed_by="eval_steps",
            )  # fmt: skip


_ORTHOGONAL = "--ortho-weight above 0"  # facts about the loss
_PAIRS = "--scorer bm25 of a residual loss with in-batch or dynamic negatives or of --dynamic-ranking sum"
_DYNAMIC = "--dynamic-negatives above 0"
_SUMMED = "--dynamic-ranking sum and --dynamic-negatives above 0"
_SCORED = (when(loss=RESIDUALS), when(summed=_SUMMED))


@dataclass(frozen=True)
class TrainDense(Training, ExampleValidation, Sampling, Architecture, LossOptions):
    """Train a dense encoder on mined examples.

    The two parts of RoC, `--ortho-weight` and `--mask-matches`, combine with every loss. An interrupted run resumes
    from its last checkpoint and ends with the same weights.
    """

    command = "train-dense"
    panel = TRAINING
    examples = (
        "hybrid train-dense out/train.parquet --loss residual-margin --model minilm --output out/clear",
        "hybrid train-dense out/train.parquet --loss roc --index out/bm25 --dev out/dev.parquet --output out/roc",
    )

    training_examples: Path = argument(REQUIRED, "Training examples, written by `mine-negatives`.", metavar="EXAMPLES")
    _: KW_ONLY
    default_epochs: ClassVar[int] = 2  # studies/recommended.md

    epochs: int | None = redeclare(Optimization, "epochs", shown="2, or as many as --max-steps needs")
    learning_rate: float = redeclare(Optimization, "learning_rate", 5e-5)
    index: Path | None = redeclare(
        LossOptions, "index", applies=(when(orthogonal=_ORTHOGONAL), when(dev=GIVEN), when(pairs=_PAIRS))
    )
    scorer: str = redeclare(LossOptions, "scorer", applies=_SCORED)
    scorer_weight: float = redeclare(LossOptions, "scorer_weight", applies=_SCORED)
    dynamic_negatives: int = option(
        0,
        "Additional hard negatives per query: top hits of the ranking that `--dynamic-ranking` names, among the "
        "documents of the examples (8,192 at most), which are encoded again at every checkpoint.",
        panel=OPTIMIZATION,
        minimum=0,
    )
    dynamic_ranking: DynamicRanking = option(
        By("loss", dict.fromkeys(RESIDUALS, "sum"), "model"),
        "Ranking whose top hits become dynamic negatives: of the `model` in training, or of the `sum` of its scores "
        "divided by the temperature and `--scorer-weight` times those of `--scorer`.",
        panel=OPTIMIZATION,
        shown="`sum` for residual-margin, residual-nll; else `model`",
        applies=when(dynamic=_DYNAMIC),
    )

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
        pairs = self.ranks_by_sum or (self.loss in RESIDUALS and (self.in_batch or self.dynamic_negatives))
        return self.scorer == BM25 and bool(pairs)

    def values(self) -> dict[str, Any]:
        """Return every field by name, and the terms of the loss that read the index."""
        facts = {
            "orthogonal": _ORTHOGONAL if self.ortho_weight else "",
            "pairs": _PAIRS if self.uses_bm25 else "",
            "dynamic": _DYNAMIC if self.dynamic_negatives else "",
            "summed": _SUMMED if self.ranks_by_sum else "",
        }
        return {**super().values(), **facts}

    def check(self) -> None:
        """Refuse options that exclude each other."""
        super().check()
        if self.uses_bm25 and self.index is None:
            what = "--dynamic-negatives" if self.loss in RESIDUALS else "--dynamic-ranking sum"
            if self.loss in RESIDUALS and self.in_batch:
                what = f"--loss {self.loss} with in-batch negatives"
            without = "" if self.dynamic_negatives else ", or --no-in-batch"
            raise InputError(
                f"{what}: needs BM25 scores of further pairs; pass --index{without}",
                code="missing-option", option="index",
                needed_by="dynamic_negatives" if self.loss in RESIDUALS else "dynamic_ranking",
            )  # fmt: skip


TRANSFORMER = when(encoder="transformer")
_WITHOUT_BASE = when(encoder="transformer", base=None)  # whose vectors determine the form of the sum


@dataclass(frozen=True)
class TrainLambda(Training, Validation, Architecture, Imitation):
    """Train an encoder that imitates the ranking of a lexical teacher (Lambda of SPAR).

    A transformer learns from teacher labels. A static encoder sums one vector per term: it learns from the lexical
    index in a minute, encodes without a transformer, and is independent of word order.
    """

    command = "train-lambda"
    panel = TRAINING
    examples = (
        "hybrid train-lambda data/pydocs --labels out/labels --index out/bm25 --dev dev --output out/lambda",
        "hybrid train-lambda data/pydocs --encoder static --index out/bm25 --dim 64 --output out/static",
    )
    restricted: ClassVar[Mapping[type[Settings], Condition]] = {Architecture: TRANSFORMER, OnDevice: TRANSFORMER}

    collection: Path = argument(REQUIRED, "Collection: the labeled corpus, and the dev queries.")
    _: KW_ONLY
    encoder: LambdaEncoder = option("transformer", "Transformer, or static encoder with one vector per term.")
    index: Path | None = option(
        None,
        "Lexical index: the teacher of a static encoder, of `--loss listwise` and of the validation.",
        panel=TEACHER,
        recorded=False,
        applies=(when(encoder="static"), when(loss="listwise"), when(dev=GIVEN)),
    )
    labels: Path | None = option(
        None,
        "Teacher labels, written by `label`: required for a transformer; optional queries for a static encoder.",
        panel=TEACHER,
        recorded=False,
    )
    loss: LambdaLoss = option(
        Imitation.loss,
        "`contrastive`: likelihood of a top-ranked passage in the batch; `listwise`: KL divergence from the teacher's "
        "scores of the batch.",
        panel=TEACHER,
        applies=TRANSFORMER,
    )
    base: str | None = option(
        None,
        "Frozen encoder to add the transformer's vectors to, such as a static Lambda: the transformer starts with zero "
        "vectors, and the output is the sum of both encoders.",
        panel=TEACHER,
        recorded=False,
        applies=when(encoder="transformer", loss="contrastive"),
    )
    positives: int = option(
        Imitation.positives, "Top-ranked hits used as positives.", panel=TEACHER, minimum=1, applies=TRANSFORMER
    )
    negatives: int = option(
        Imitation.negatives,
        "Bottom-ranked hits used as hard negatives.",
        panel=TEACHER,
        minimum=1,
        applies=when(encoder="transformer", loss="contrastive"),
    )
    list_passages: int = option(
        Imitation.list_passages,
        "Passages drawn from the hits of each query per step, in addition to one positive.",
        panel=TEACHER,
        minimum=1,
        applies=when(encoder="transformer", loss="listwise"),
    )
    student_negatives: int = option(
        Imitation.student_negatives,
        "Hard negatives per query mined with the student itself, from a pool that is re-encoded at every checkpoint.",
        panel=TEACHER,
        minimum=0,
        applies=(when(encoder="transformer", loss="listwise"), when(encoder="static")),
    )
    temperature: float = option(
        1.0,
        "Divisor of the student's and the teacher's scores before the softmax.",
        panel=TEACHER,
        above=0,
        applies=(when(encoder="transformer", loss="listwise"), when(encoder="static")),
    )
    matryoshka_dims: Sequence[int] = redeclare(LossOptions, "matryoshka_dims", applies=when(base=None))
    dim: int | None = redeclare(
        Architecture,
        "dim",
        By("encoder", {"static": 64}),
        help="Dimensions of the vectors.",
        shown="the model's; static: 64",
        applies=when(base=None),
    )
    normalize: bool | None = redeclare(Architecture, "normalize", applies=_WITHOUT_BASE)
    projection_norm: bool | None = redeclare(
        Architecture,
        "projection_norm",
        applies=(when(**_WITHOUT_BASE.allowed, dim=GIVEN), when(**_WITHOUT_BASE.allowed, start=PROJECTION)),
    )
    vocab_size: int = option(
        200_000,
        "Number of terms with a vector of their own, the most frequent ones.",
        panel=STATIC,
        minimum=1,
        applies=when(encoder="static"),
    )
    hash_buckets: int = option(
        4096, "Vectors shared by all other terms, chosen by a hash.", panel=STATIC, minimum=1,
        applies=when(encoder="static"),
    )  # fmt: skip
    text_fraction: float = option(
        Imitation.text_fraction,
        "Fraction of labeled texts among the queries; the others are random bags of terms.",
        panel=STATIC,
        minimum=0,
        maximum=1,
        applies=when(encoder="static", labels=GIVEN),
    )
    hard_candidates: int = option(
        Imitation.hard_candidates,
        "Top-ranked documents of the teacher per query among the candidates.",
        panel=STATIC,
        minimum=1,
        applies=when(encoder="static"),
    )
    sampled_candidates: int = option(
        Imitation.sampled_candidates,
        "Documents drawn from the collection as candidates, per step.",
        panel=STATIC,
        minimum=1,
        applies=when(encoder="static"),
    )
    dev: str | None = redeclare(
        Validation,
        "dev",
        help="Split with the queries of the validation, on a pool of the teacher's passages; needs `--index`.",
        recorded=True,
    )
    epochs: int | None = redeclare(Optimization, "epochs", help="Passes over the labels.", applies=TRANSFORMER)
    max_steps: int | None = redeclare(Optimization, "max_steps", By("encoder", {"static": 1200}))
    batch_size: int = redeclare(Optimization, "batch_size", By("encoder", {"static": 256}, Optimization.batch_size))
    chunk_size: int | None = redeclare(Optimization, "chunk_size", applies=TRANSFORMER)
    learning_rate: float = redeclare(
        Optimization, "learning_rate", By("encoder", {"static": 3e-3}, Optimization.learning_rate)
    )
    warmup: float = redeclare(Optimization, "warmup", By("encoder", {"static": 0.0}, Optimization.warmup))
    schedule: Schedule = redeclare(Optimization, "schedule", applies=TRANSFORMER)
    keep_epochs: bool = redeclare(Optimization, "keep_epochs", applies=TRANSFORMER)
    precision: Precision = redeclare(Optimization, "precision", applies=TRANSFORMER)

    def check(self) -> None:
        """Refuse options without the teacher that they require."""
        super().check()
        if self.encoder == "static" and self.index is None:
            raise InputError(
                "--encoder static: needs the lexical index to learn from; pass --index",
                code="missing-option", option="index", needed_by="encoder",
            )  # fmt: skip
        if self.encoder == "transformer" and self.labels is None:
            raise InputError(
                "--encoder transformer: needs the teacher labels that `hybrid label` writes; pass --labels",
                code="missing-option", option="labels", needed_by="encoder",
            )  # fmt: skip
        if self.loss == "listwise" and self.index is None:
            raise InputError(
                "--loss listwise: needs the teacher's scores; pass --index",
                code="missing-option", option="index", needed_by="loss",
            )  # fmt: skip
        if self.dev is not None and self.index is None:
            raise InputError(
                "--dev: validation needs the teacher's scores; pass --index, or remove --dev",
                code="missing-option", option="index", needed_by="dev",
            )  # fmt: skip


STUDENT = when(queries_only=False)


@dataclass(frozen=True)
class DistillLite(Training, ExampleValidation, Sampling, Architecture, Likelihood):
    """Distill a teacher's vectors into a small encoder (LITE).

    The student has two heads: a small head for retrieval, and a large head that matches the teacher's vectors and is
    dropped after training. With `--queries-only`, the output is a query encoder for the teacher's indexes (DrBoost).
    """

    command = "distill-lite"
    panel = TRAINING
    examples = (
        "hybrid distill-lite out/train.parquet --teacher out/drboost-2 --dim 32 --output out/lite",
        "hybrid distill-lite out/train.parquet --teacher out/drboost-2 --queries-only --output out/drboost-2-queries",
    )
    restricted: ClassVar[Mapping[type[Settings], Condition]] = {Likelihood: STUDENT}

    training_examples: Path = argument(REQUIRED, "Training examples, written by `mine-negatives`.", metavar="EXAMPLES")
    _: KW_ONLY
    teacher: str = option(REQUIRED, "Encoder to distill: an ensemble or any other.", recorded=False)
    queries_only: bool = option(
        False, "Train only a query encoder for the teacher's indexes; documents keep the teacher's vectors."
    )
    kd_weight: float = option(
        1.0, "Weight of the squared distances to the teacher's vectors, relative to the likelihood.", panel=OBJECTIVE,
        minimum=0, applies=STUDENT,
    )  # fmt: skip
    dim: int | None = redeclare(
        Architecture, "dim", 32, help="Dimensions of the student's vectors.", shown="32", applies=STUDENT
    )
    normalize: bool | None = redeclare(Architecture, "normalize", applies=STUDENT)
    projection_norm: bool | None = redeclare(Architecture, "projection_norm", applies=STUDENT)
    tied: bool | None = redeclare(Architecture, "tied", applies=STUDENT)
    doc_prefix: str | None = redeclare(Architecture, "doc_prefix", applies=STUDENT)
    doc_max_len: int | None = redeclare(Architecture, "doc_max_len", applies=STUDENT)
    negatives: int = redeclare(
        Sampling, "negatives", By("queries_only", {True: 0}, Sampling.negatives), shown="1", applies=STUDENT
    )
    title_separator: str | None = redeclare(Architecture, "title_separator", applies=STUDENT)
