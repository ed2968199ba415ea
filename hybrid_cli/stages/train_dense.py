"""`train-dense`: training examples to an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from hybrid_cli import artifacts, config, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.encoders.contract import Contract, read_contract
from hybrid_cli.encoders.encoder import Encoder, pick_device, pick_dtype, resolve
from hybrid_cli.training import losses
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.checkpoint import State
from hybrid_cli.training.dense import DenseLearner
from hybrid_cli.training.loop import fit, steps_of
from hybrid_cli.training.validation import DevPool

SUM_WEIGHTS = tuple(round(0.1 * tenths, 1) for tenths in range(1, 10))  # CLEAR's grid for lambda_test (DualRM 4)
UNIT_TEMPERATURE = 0.05  # as sentence-transformers trains vectors of length 1
CONTRACT_OPTIONS = tuple(field.name for field in fields(Contract))


def train_dense(
    examples: Path,
    output: Path,
    *,
    model: str = "minilm",
    objective: config.Objective = config.Objective(),  # noqa: B008 - frozen
    plan: config.Optimization = config.Optimization(),  # noqa: B008 - frozen
    contract: Mapping[str, Any] | None = None,
    dev: Path | None = None,
    dev_queries: int = 200,
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Train a dense encoder.

    Args:
        examples: what `mine-negatives` wrote.
        output: folder of the encoder; a killed training goes on from its last checkpoint.
        model: where to start: `minilm`, a folder, or a Hugging Face id.
        contract: fields of the encoder's contract to set (pooling, markers, lengths, ...).
        dev: training examples of a dev split; the best weights on their pool are kept.
        dev_queries: how many of them.

    Raises:
        InputError: examples or model are not usable.
    """
    if threads:
        torch.set_num_threads(threads)
    precision = pick_dtype(plan.precision, pick_device(device))
    changes = {name: value for name, value in (contract or {}).items() if value is not None}
    unit = read_contract(resolve(model)).changed(**changes).normalize
    temperature = objective.temperature or (UNIT_TEMPERATURE if unit else 1.0)
    claim = artifacts.claim(
        output,
        Kind.ENCODER,
        "train-dense",
        inputs={"examples": examples, "model": resolve(model), **({"dev": dev} if dev else {})},
        options={
            **asdict(objective),
            **asdict(plan),
            **changes,
            "temperature": temperature,
            "precision": str(precision).removeprefix("torch."),  # what `auto` came to decides the weights
            "dev_queries": dev_queries,
        },
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return output
    training = Examples(examples)
    if objective.loss == "residual-margin":
        training.check_lexical()
    torch.manual_seed(plan.seed)  # markers and projection start from it
    encoder = Encoder.load(model, device=device, **changes)
    pool = DevPool.of(Examples(dev).dev_rows(dev_queries)) if dev else None
    learner = DenseLearner(encoder, _objective(objective, temperature), precision, plan.chunk_size)
    weights = [temperature * weight for weight in SUM_WEIGHTS]
    with claim.folder() as (work, counts):
        state = fit(
            learner,
            partial(training.batches, plan),
            plan,
            steps_of(plan, len(training)),
            work,
            validate=partial(pool.measure, encoder, lexical_weights=weights) if pool else None,
            criterion="dev_hybrid_MRR@10" if objective.loss == "residual-margin" else "dev_MRR@10",
        )
        encoder.save(work)
        _write_curve(work / "curve.parquet", state)
        counts.update(examples=len(training), steps=state.step, best_step=state.best_step)
    console.note(
        f"train-dense: {output}: {len(training):,} examples, {state.step:,} steps, kept step {state.best_step:,}"
    )
    return output


def _objective(settings: config.Objective, temperature: float) -> losses.Objective:
    if settings.loss == "nll":
        return partial(losses.nll, temperature=temperature, in_batch=settings.in_batch)
    if settings.loss == "margin":
        return partial(losses.margin, xi=settings.xi, temperature=temperature)
    return partial(
        losses.residual_margin, xi=settings.xi, lexical_weight=settings.lexical_weight, temperature=temperature
    )


def _write_curve(path: Path, state: State) -> None:
    steps, names, values = zip(*state.curve, strict=True)
    table = pa.table({"step": steps, "name": names, "value": values})
    manifest = artifacts.Manifest(Kind.LEARNING_CURVE, "train-dense", {}, {})
    artifacts.write_parquet(path, [table], artifacts.SCHEMAS[Kind.LEARNING_CURVE], manifest)
