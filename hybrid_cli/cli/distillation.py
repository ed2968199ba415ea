"""`distill-lite`, of the panel "Training"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybrid_cli import config
from hybrid_cli.cli.common import Device, Output, Seed, Threads, command, option
from hybrid_cli.cli.training import (
    ENCODER,
    OBJECTIVE,
    PANEL,
    BatchSize,
    CheckpointSteps,
    ChunkSize,
    Dev,
    DevQueries,
    DocMaxLen,
    DocPrefix,
    Epochs,
    EvalSteps,
    InBatch,
    Keep,
    LearningRate,
    Markers,
    MaxSteps,
    Model,
    Negatives,
    Normalize,
    Pooling,
    Precision,
    ProjectionNorm,
    QueryMaxLen,
    QueryPrefix,
    Temperature,
    Tied,
    TitleSeparator,
    Warmup,
    settings,
)
from hybrid_cli.config import Distillation, Optimization


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
    command(app, PANEL)(distill_lite)


def distill_lite(
    examples: Annotated[Path, typer.Argument(help="Training examples: what `mine-negatives` wrote.")],
    output: Output,
    *,
    teacher: Annotated[str, typer.Option(help="The encoder to learn from: an ensemble, or any other.")],
    queries_only: Annotated[
        bool,
        typer.Option(
            "--queries-only", help="One query encoder for the teacher's documents, whose indexes it searches."
        ),
    ] = False,
    dim: Annotated[
        int, option(ENCODER, "Length of the student's vectors; the teacher's with --queries-only.", min=1)
    ] = Distillation.dim,
    kd_weight: Annotated[
        float, option(OBJECTIVE, "Of the distances to the teacher's vectors beside the likelihood.", min=0)
    ] = Distillation.kd_weight,
    kd_reduction: Annotated[
        config.Reduction, option(OBJECTIVE, "Of these distances over a batch.")
    ] = Distillation.kd_reduction,
    temperature: Temperature = None,
    in_batch: InBatch = Distillation.in_batch,
    model: Model = "minilm",
    pooling: Pooling = None,
    tied: Tied = None,
    markers: Markers = None,
    query_prefix: QueryPrefix = None,
    doc_prefix: DocPrefix = None,
    title_separator: TitleSeparator = None,
    query_max_len: QueryMaxLen = None,
    doc_max_len: DocMaxLen = None,
    projection_norm: ProjectionNorm = None,
    normalize: Normalize = None,
    epochs: Epochs = Optimization.epochs,
    max_steps: MaxSteps = None,
    batch_size: BatchSize = Optimization.batch_size,
    negatives: Negatives = Optimization.negatives,
    chunk_size: ChunkSize = None,
    learning_rate: LearningRate = Optimization.learning_rate,
    warmup: Warmup = Optimization.warmup,
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
    """Train a small encoder with a teacher's vectors beside the examples (LITE).

    The student has a small head, which retrieves, and while it trains a large one, which is to match the teacher; the
    large one is not kept. With --queries-only it learns to ask in the teacher's own dimensions (DrBoost).

    Examples:

    `hybrid distill-lite out/train.parquet --teacher out/drboost-2 --dim 32 --output out/lite`

    `hybrid distill-lite out/train.parquet --teacher out/drboost-2 --queries-only --output out/drboost-2-light`
    """
    given = locals()
    from hybrid_cli.stages.distill_lite import CONTRACT_OPTIONS, distill_lite

    distill_lite(
        examples,
        output,
        teacher=teacher,
        queries_only=queries_only,
        model=model,
        how=settings(Distillation, given),
        plan=settings(Optimization, given),
        contract={name: given[name] for name in CONTRACT_OPTIONS if name in given},
        dev=dev,
        dev_queries=dev_queries,
        device=device,
        threads=threads,
        overwrite=overwrite,
    )
