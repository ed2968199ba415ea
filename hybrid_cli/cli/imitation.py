"""`train-lambda`, of the panel "Training"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid_cli import config
from hybrid_cli.cli.common import Device, Output, Seed, Threads, command, numbers, option
from hybrid_cli.cli.training import (
    ENCODER,
    OPTIMISATION,
    PANEL,
    VALIDATION,
    CheckpointSteps,
    ChunkSize,
    DocMaxLen,
    DocPrefix,
    EvalSteps,
    Model,
    Nested,
    Normalize,
    Pooling,
    Precision,
    ProjectionNorm,
    QueryMaxLen,
    QueryPrefix,
    Tied,
    TitleSeparator,
    settings,
)
from hybrid_cli.config import Imitation, Optimization, StaticTraining

TEACHER, STATIC = "Teacher", "Static encoder"


def register(app: typer.Typer) -> None:
    """Add this panel's commands to the application."""
    command(app, PANEL)(train_lambda)


def train_lambda(
    collection: Annotated[Path, typer.Argument(help="A collection: the corpus that was labelled, and dev queries.")],
    output: Output,
    *,
    encoder: Annotated[
        config.LambdaEncoder, typer.Option(help="A transformer, or a table of vectors for terms.")
    ] = "transformer",
    index: Annotated[
        Path | None,
        option(TEACHER, "Lexical index: teaches a static encoder, scores list-wise, validates.", show_default=False),
    ] = None,
    labels: Annotated[
        Path | None,
        option(TEACHER, "What `label` wrote: a transformer needs it, a static encoder may.", show_default=False),
    ] = None,
    loss: Annotated[
        config.ImitationLoss,
        option(TEACHER, "One of the teacher's best passages found in the batch, or all its scores of the batch."),
    ] = Imitation.loss,
    positives: Annotated[int, option(TEACHER, "First hits that are a query's best.", min=1)] = Imitation.positives,
    negatives: Annotated[int, option(TEACHER, "Last hits that are its worst.", min=1)] = Imitation.negatives,
    passages: Annotated[
        int, option(TEACHER, "`listwise`: passages of a list beside one of the best.", min=1)
    ] = Imitation.passages,
    errors: Annotated[
        int,
        option(
            TEACHER,
            "`listwise` and static: its own best documents for each query, of some that are encoded anew at every "
            "checkpoint.",
            min=0,
        ),
    ] = Imitation.errors,
    temperature: Annotated[float, option(TEACHER, "`listwise`: of both soft-maxes.")] = Imitation.temperature,
    nested: Nested = None,
    model: Model = "minilm",
    pooling: Pooling = None,
    tied: Tied = None,
    query_prefix: QueryPrefix = None,
    doc_prefix: DocPrefix = None,
    title_separator: TitleSeparator = None,
    query_max_len: QueryMaxLen = None,
    doc_max_len: DocMaxLen = None,
    projection_norm: ProjectionNorm = None,
    normalize: Normalize = None,
    dim: Annotated[
        int | None,
        option(ENCODER, "Length of the vectors; 64 if static.", min=1),
    ] = None,
    most_terms: Annotated[
        int, option(STATIC, "Terms with a vector of their own, the most frequent ones.", min=1)
    ] = StaticTraining.most_terms,
    shared_rows: Annotated[
        int, option(STATIC, "Vectors that all other terms share, chosen by a hash.", min=1)
    ] = StaticTraining.shared_rows,
    text_share: Annotated[
        float, option(STATIC, "Share of labelled texts among the queries; others are random bags.", min=0, max=1)
    ] = StaticTraining.text_share,
    hard: Annotated[
        int, option(STATIC, "The teacher's best documents for each query that are candidates.", min=1)
    ] = StaticTraining.hard,
    sampled: Annotated[
        int, option(STATIC, "Candidates drawn from the collection for each step.", min=1)
    ] = StaticTraining.sampled,
    epochs: Annotated[int, option(OPTIMISATION, "Passes over the labels.", min=1)] = Optimization.epochs,
    max_steps: Annotated[
        int | None, option(OPTIMISATION, "Stop there instead; 1200 if static.", min=1, show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, option(OPTIMISATION, "Queries in a batch.", min=1, show_default="28; static: 256")
    ] = None,
    chunk_size: ChunkSize = None,
    learning_rate: Annotated[
        float | None, option(OPTIMISATION, "At its peak.", "--learning-rate", "--lr", show_default="2e-5; static: 3e-3")
    ] = None,
    precision: Precision = Optimization.precision,
    checkpoint_steps: CheckpointSteps = Optimization.checkpoint_steps,
    dev: Annotated[
        str | None,
        option(VALIDATION, "Split whose queries validate, on a pool of the teacher's passages.", show_default=False),
    ] = None,
    dev_queries: Annotated[int, option(VALIDATION, "How many of them.", min=1)] = 200,
    eval_steps: EvalSteps = None,
    keep: Annotated[
        config.Keep, option(VALIDATION, "Weights of the best look on dev, or of the last step.")
    ] = Optimization.keep,
    seed: Seed = Optimization.seed,
    device: Device = "auto",
    threads: Threads = None,
    overwrite: bool = False,
) -> None:
    """Train an encoder that ranks as a lexical teacher does (SPAR's Lambda).

    A transformer learns from labels. A static encoder adds up vectors of terms: it learns from the impact matrix in a
    minute, needs no transformer to encode, and word order cannot move it.

    Examples:

    `hybrid train-lambda data/pydocs --labels out/labels --index out/bm25 --dev dev --output out/lambda`

    `hybrid train-lambda data/pydocs --encoder static --index out/bm25 --dim 64 --output out/light`
    """
    given = {name: value for name, value in locals().items() if value is not None}
    given["nested"] = numbers("--nested", nested)
    from hybrid_cli.stages import train_lambda as stage

    sources = stage.Sources(collection, index, labels, dev, dev_queries)
    common: dict[str, Any] = {"threads": threads, "overwrite": overwrite}
    if encoder == "static":
        stage.train_static_lambda(sources, output, plan=settings(StaticTraining, given), **common)
        return
    how = settings(Imitation, given)
    plan = replace(settings(Optimization, given), negatives=1)
    contract = {name: given[name] for name in stage.CONTRACT_OPTIONS if name in given}
    stage.train_lambda(sources, output, model=model, how=how, plan=plan, contract=contract, device=device, **common)
