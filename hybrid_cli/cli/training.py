"""The commands of the panel "Training"."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from hybrid_cli import config
from hybrid_cli.cli.common import Device, Output, Seed, Threads, command, numbers, option
from hybrid_cli.config import Objective, Optimization, Pretraining

PANEL = "Training"
Settings = TypeVar("Settings")


OBJECTIVE = "Objective"
Loss = Annotated[
    config.Loss, option(OBJECTIVE, "CLEAR's residual margin, its constant margin, DPR's likelihood, RoC's, or BPR's.")
]
Xi = Annotated[float, option(OBJECTIVE, "The margin where BM25 is undecided.")]
LexicalWeight = Annotated[float, option(OBJECTIVE, "Weight of BM25's advantage in the margin (lambda_train).")]
Temperature = Annotated[
    float | None,
    option(OBJECTIVE, "Divides the dense scores; if not given 1, or 0.05 where vectors have length 1."),
]
InBatch = Annotated[
    bool,
    option(
        OBJECTIVE, "Let `nll` see the other queries' documents too.", "--in-batch-negatives/--no-in-batch-negatives"
    ),
]

OrthoWeight = Annotated[
    float | None,
    option(OBJECTIVE, "Weight of RoC's orthogonality to BM25's vectors; if not given 1 for `roc`, else 0.", min=0),
]
OrthoSeed = Annotated[int, option(OBJECTIVE, "Seed of the projection of BM25's vectors.")]
MaskMatches = Annotated[
    float | None,
    option(
        OBJECTIVE,
        "Share of the query's words masked in documents while training (RoC); if not given .15 for `roc`, else 0.",
        min=0,
        max=1,
    ),
]
TrainingIndex = Annotated[
    Path | None,
    option(OBJECTIVE, "Lexical index: BM25's vectors for the orthogonality, and RoC in the learning curve.", "--index"),
]

Nested = Annotated[
    str | None,
    option(OBJECTIVE, "Train these prefixes of the vectors too (Matryoshka): `32,64,128`.", show_default=False),
]
WithFrozen = Annotated[
    str | None,
    option(
        OBJECTIVE,
        "An encoder that stays as it is, such as a Lambda: train what completes it. `nll` learns its weight in the "
        "sum, `residual-margin` takes its scores for BM25's.",
        show_default=False,
    ),
]

BOOSTING = "Boosting (DrBoost)"
Boost = Annotated[
    str | None,
    option(
        BOOSTING,
        "An encoder that gets this one as its next learner: their vectors side by side. Mine the examples with it.",
        show_default=False,
    ),
]
BoostMode = Annotated[
    config.BoostMode,
    option(BOOSTING, "What the learner sees of the ensemble: its errors as negatives, or its scores in the loss too."),
]

ENCODER = "Encoder (what is not given is as the model says)"
Model = Annotated[str, option(ENCODER, "Where to start: `minilm`, a folder, or a Hugging Face id.")]
Pooling = Annotated[config.Pooling | None, option(ENCODER, "Masked mean of all tokens, or [CLS].")]
Tied = Annotated[bool | None, option(ENCODER, "One tower for both sides, or two.", "--tied/--untied")]
Markers = Annotated[config.Markers | None, option(ENCODER, "CLEAR's [QRY] and [DOC]: in place of [CLS], or after it.")]
QueryPrefix = Annotated[str | None, option(ENCODER, "Put before every query.")]
DocPrefix = Annotated[str | None, option(ENCODER, "Put before every document.")]
TitleSeparator = Annotated[str | None, option(ENCODER, "Between title and text; DPR's is ' [SEP] '.")]
QueryMaxLen = Annotated[int | None, option(ENCODER, "Word pieces of a query.")]
DocMaxLen = Annotated[int | None, option(ENCODER, "Word pieces of a document.")]
Dim = Annotated[int | None, option(ENCODER, "Project to so many dimensions.", min=1)]
ProjectionNorm = Annotated[
    bool | None, option(ENCODER, "A LayerNorm after the projection.", "--projection-norm/--no-projection-norm")
]
Normalize = Annotated[bool | None, option(ENCODER, "Vectors of length 1.", "--normalize/--no-normalize")]

OPTIMISATION = "Optimisation"
Epochs = Annotated[int, option(OPTIMISATION, "Passes over the examples.", min=1)]
MaxSteps = Annotated[int | None, option(OPTIMISATION, "Stop there instead.", min=1)]
BatchSize = Annotated[int, option(OPTIMISATION, "Queries in a batch.", min=1)]
Negatives = Annotated[int, option(OPTIMISATION, "Hard negatives drawn for each query.", min=1)]
Accumulate = Annotated[int, option(OPTIMISATION, "Batches to a step.", min=1)]
ChunkSize = Annotated[
    int | None, option(OPTIMISATION, "Texts in memory at once (gradient caching; the same gradient).", min=1)
]
LearningRate = Annotated[float, option(OPTIMISATION, "At its peak.", "--learning-rate", "--lr")]
Warmup = Annotated[float, option(OPTIMISATION, "Share of the steps that warm up.", min=0, max=1)]
WeightDecay = Annotated[float, option(OPTIMISATION, "AdamW's.")]
Clip = Annotated[float, option(OPTIMISATION, "Largest norm of the gradient.")]
Precision = Annotated[config.Precision, option(OPTIMISATION, "`auto` is bf16 where the processor has it.")]
CheckpointSteps = Annotated[int, option(OPTIMISATION, "Steps between two checkpoints.", min=1)]

SPANS = "Spans of the corpus"
Cocondenser = Annotated[
    bool, option(SPANS, "Condenser's head, and two spans of a document found among all of the batch.", "--cocondenser")
]
SpanBatch = Annotated[int, option(OPTIMISATION, "Spans in a batch; with --cocondenser documents.", min=1)]
MaxLength = Annotated[int, option(SPANS, "Word pieces of a span.", min=4)]
MaskShare = Annotated[float, option(SPANS, "Share of them that is hidden, in whole words.", min=0.01, max=0.99)]
SkipFrom = Annotated[
    int | None, option(SPANS, "Layer whose states enter Condenser's head; the middle one if not given.", min=0)
]
HeldOut = Annotated[int, option(SPANS, "Documents kept for validation, a tenth at most.", min=0)]

VALIDATION = "Validation"
Dev = Annotated[Path | None, option(VALIDATION, "Examples of a dev split; the best weights on their pool are kept.")]
DevQueries = Annotated[int, option(VALIDATION, "How many of them.", min=1)]
EvalSteps = Annotated[int | None, option(VALIDATION, "Steps between two looks; ten looks if not given.", min=1)]
Keep = Annotated[config.Keep, option(VALIDATION, "Weights of the best look on dev, or of the last step.")]


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
    command(app, PANEL)(pretrain)
    command(app, PANEL)(train_dense)


def pretrain(
    collection: Annotated[Path, typer.Argument(help="A collection, for its corpus.")],
    output: Output,
    model: Model = "minilm",
    cocondenser: Cocondenser = Pretraining.cocondenser,
    max_length: MaxLength = Pretraining.max_length,
    mask_share: MaskShare = Pretraining.mask_share,
    skip_from: SkipFrom = None,
    held_out: HeldOut = Pretraining.held_out,
    epochs: Epochs = Pretraining.epochs,
    max_steps: MaxSteps = None,
    batch_size: SpanBatch = Pretraining.batch_size,
    chunk_size: ChunkSize = None,
    learning_rate: LearningRate = Pretraining.learning_rate,
    warmup: Warmup = Pretraining.warmup,
    weight_decay: WeightDecay = Pretraining.weight_decay,
    clip: Clip = Pretraining.clip,
    precision: Precision = Pretraining.precision,
    eval_steps: EvalSteps = None,
    checkpoint_steps: CheckpointSteps = Pretraining.checkpoint_steps,
    seed: Seed = Pretraining.seed,
    device: Device = "auto",
    threads: Threads = None,
    overwrite: bool = False,
) -> None:
    """Train an encoder on a corpus alone: to fill in masked words.

    The output is where `train-dense --model` starts. Stopped anywhere, the same command goes on from the last
    checkpoint and ends with the same weights.

    Example: `hybrid pretrain data/pydocs --model minilm --max-steps 1000 --output out/adapted`
    """
    given = locals()
    from hybrid_cli.stages.pretrain import pretrain

    plan = settings(Pretraining, given)
    pretrain(collection, output, model=model, plan=plan, device=device, threads=threads, overwrite=overwrite)


def train_dense(
    examples: Annotated[Path, typer.Argument(help="Training examples: what `mine-negatives` wrote.")],
    output: Output,
    loss: Loss = Objective.loss,
    xi: Xi = Objective.xi,
    lexical_weight: LexicalWeight = Objective.lexical_weight,
    temperature: Temperature = None,
    in_batch: InBatch = Objective.in_batch,
    ortho_weight: OrthoWeight = None,
    ortho_seed: OrthoSeed = Objective.ortho_seed,
    mask_matches: MaskMatches = None,
    index: TrainingIndex = None,
    with_frozen: WithFrozen = None,
    nested: Nested = None,
    boost: Boost = None,
    boost_mode: BoostMode = Objective.boost_mode,
    model: Model = "minilm",
    pooling: Pooling = None,
    tied: Tied = None,
    markers: Markers = None,
    query_prefix: QueryPrefix = None,
    doc_prefix: DocPrefix = None,
    title_separator: TitleSeparator = None,
    query_max_len: QueryMaxLen = None,
    doc_max_len: DocMaxLen = None,
    dim: Dim = None,
    projection_norm: ProjectionNorm = None,
    normalize: Normalize = None,
    epochs: Epochs = Optimization.epochs,
    max_steps: MaxSteps = None,
    batch_size: BatchSize = Optimization.batch_size,
    negatives: Negatives = Optimization.negatives,
    accumulate: Accumulate = Optimization.accumulate,
    chunk_size: ChunkSize = None,
    learning_rate: LearningRate = Optimization.learning_rate,
    warmup: Warmup = Optimization.warmup,
    weight_decay: WeightDecay = Optimization.weight_decay,
    clip: Clip = Optimization.clip,
    precision: Precision = Optimization.precision,
    checkpoint_steps: CheckpointSteps = Optimization.checkpoint_steps,
    dev: Dev = None,
    dev_queries: DevQueries = 200,
    eval_steps: EvalSteps = None,
    keep: Keep = Optimization.keep,
    seed: Seed = Optimization.seed,
    device: Device = "auto",
    threads: Threads = None,
    overwrite: bool = False,
) -> None:
    """Train a dense encoder on mined examples.

    Stopped anywhere, the same command goes on from the last checkpoint and ends with the same weights. The two pieces
    of RoC, --ortho-weight and --mask-matches, go with every loss.

    Example: `hybrid train-dense out/train.parquet --loss residual-margin --model minilm --output out/clear`
    """
    given = {**locals(), "nested": numbers("--nested", nested)}
    from hybrid_cli.stages.train_dense import CONTRACT_OPTIONS, train_dense

    train_dense(
        examples,
        output,
        model=model,
        objective=settings(Objective, given),
        plan=settings(Optimization, given),
        contract={name: given[name] for name in CONTRACT_OPTIONS},
        index=index,
        with_frozen=with_frozen,
        boost=boost,
        dev=dev,
        dev_queries=dev_queries,
        device=device,
        threads=threads,
        overwrite=overwrite,
    )


def settings(kind: type[Settings], given: dict[str, Any]) -> Settings:
    """The settings whose fields are named as the options are; what is no option stays as it is."""
    named = {field.name: given[field.name] for field in fields(kind) if field.name in given}  # type: ignore[arg-type]
    return kind(**named)
