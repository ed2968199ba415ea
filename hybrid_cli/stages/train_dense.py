"""`train-dense`: training examples to an encoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from hybrid_cli import artifacts, config, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.encoders import combination
from hybrid_cli.encoders.combination import Combination
from hybrid_cli.encoders.contract import Contract, kind_of, read_contract
from hybrid_cli.encoders.encoder import Encoder, open_encoder
from hybrid_cli.encoders.models import pick_device, pick_dtype, resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.lexical import projection
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.training import checkpoint, losses, parallel
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.bm25_vectors import LexicalSide
from hybrid_cli.training.dense import DenseLearner
from hybrid_cli.training.loop import Validate, fit, steps_of
from hybrid_cli.training.masks import MatchMasking
from hybrid_cli.training.teachers import FrozenEncoder, FrozenWeight
from hybrid_cli.training.validation import DevPool

SUM_WEIGHTS = tuple(round(0.1 * tenths, 1) for tenths in range(1, 10))  # CLEAR's grid for lambda_test (DualRM 4)
LIKELIHOODS = ("nll", "roc")
PROJECTION = "lexical_projection.json"
CONTRACT_OPTIONS = tuple(field.name for field in fields(Contract) if field.name not in ("prefix", "binary"))


def train_dense(
    examples: Path,
    output: Path,
    *,
    model: str = "minilm",
    objective: config.Objective = config.Objective(),  # noqa: B008 - frozen
    plan: config.Optimization = config.Optimization(),  # noqa: B008 - frozen
    contract: Mapping[str, Any] | None = None,
    index: Path | None = None,
    with_frozen: str | None = None,
    boost: str | None = None,
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
        index: the lexical index whose vectors the encoder's are to be orthogonal to; with it, the learning curve on dev
            shows the squared cosines and RoC.
        with_frozen: an encoder, such as a Lambda, that stays as it is while this one learns beside it: the likelihood
            is that of the sum of both, with a weight that is learned; the residual margin is that of its scores.
        boost: an encoder that gets this one as its next learner (DrBoost, methods 5.2): the output is an ensemble, the
            vectors of both side by side. The learner has the contract of the last one.
        dev: training examples of a dev split; the best weights on their pool are kept.
        dev_queries: how many of them.

    Raises:
        InputError: examples, model or index are not usable, or do not fit together.
    """
    if threads:
        torch.set_num_threads(threads)
    precision = pick_dtype(plan.precision, pick_device(device))
    changes = {name: value for name, value in (contract or {}).items() if value is not None}
    changes = _as_last_learner(boost, changes) if boost else changes
    start = read_contract(resolve(model)).changed(**changes)
    if start.binary or objective.loss == "bpr":
        changes["binary"] = objective.loss == "bpr"
    objective = _completed(objective, start.normalize)
    _check(objective, index, with_frozen, boost)
    inputs = {"examples": examples, "model": resolve(model), "index": index, "dev": dev}
    inputs["frozen"] = resolve(with_frozen) if with_frozen else None
    inputs["ensemble"] = resolve(boost) if boost else None
    options = {**asdict(objective), **asdict(plan), **changes, "precision": precision, "dev_queries": dev_queries}
    claim = _claim(output, inputs, options, overwrite)
    if claim.up_to_date:
        return output
    training, validation = Examples(examples), Examples(dev) if dev else None
    if objective.loss == "residual-margin" and with_frozen is None:
        training.check_lexical()
    torch.manual_seed(plan.seed)  # markers and projection start from it
    encoder = TransformerEncoder.load(model, device=device, **changes)
    side = _lexical_side(index, encoder.dim, objective, [training, *([validation] if validation else [])])
    orthogonal = side if objective.ortho_weight else None
    if orthogonal:
        _check_projection(resolve(model), orthogonal.projection)
    finished = with_frozen or boost
    known = open_encoder(finished, device=device, dtype=plan.precision) if finished else None
    beside = FrozenWeight(objective.temperature or 1.0) if with_frozen else None
    encoder.add_module("frozen_weight", beside)  # so that it is trained, checkpointed and put back with the encoder
    residual = boost is not None and objective.boost_mode == "residual"
    loss = _nested(_loss(objective, beside or (_one if residual else None)), objective.nested, encoder)
    masking = _masking(encoder, objective.mask_matches)
    whole = Combination(combination.Recipe(), [known, encoder]) if known and boost else encoder
    with parallel.folder(claim) as (work, counts):
        frozen = FrozenEncoder(known, training, work) if known and (with_frozen or residual) else None
        learner = DenseLearner(encoder, loss, precision, plan.chunk_size, orthogonal, masking, frozen)
        state = fit(
            learner,
            partial(training.batches, plan),
            plan,
            steps_of(plan, len(training)),
            work,
            begin=learner.begin,
            validate=_validate(whole, validation, dev_queries, objective, side),
            criterion="dev_hybrid_MRR@10" if objective.loss == "residual-margin" else "dev_MRR@10",
        )
        _save(encoder, boost, work)
        if orthogonal:
            (work / PROJECTION).write_text(json.dumps(orthogonal.projection.to_dict()) + "\n", "utf-8")
        checkpoint.write_curve(work, state, "train-dense")
        counts.update(examples=len(training), steps=state.step, best_step=state.best_step)
        if beside is not None and objective.loss in LIKELIHOODS:
            counts["frozen_weight"] = beside().item()
            console.note(f"train-dense: learned weight of {with_frozen} in the sum: {counts['frozen_weight']:.3g}")
    console.note(
        f"train-dense: {output}: {len(training):,} examples, {state.step:,} steps, kept step {state.best_step:,}"
    )
    return output


def _check(objective: config.Objective, index: Path | None, with_frozen: str | None, boost: str | None) -> None:
    if with_frozen and boost:
        raise InputError("--boost: an ensemble learns alone; leave --with-frozen out")
    if boost and objective.boost_mode == "residual" and objective.loss not in LIKELIHOODS:
        raise InputError(
            f"--boost-mode residual: adds the ensemble's scores to a likelihood; use --loss nll, not {objective.loss}"
        )
    if with_frozen and objective.loss in ("margin", "bpr"):
        raise InputError(f"--loss {objective.loss}: has no place for --with-frozen; use nll, roc or residual-margin")
    if objective.ortho_weight and index is None:
        raise InputError("orthogonality needs BM25's vectors: give --index, or --ortho-weight 0")
    if objective.ortho_weight and objective.nested:
        raise InputError("--nested: the orthogonality is to whole vectors only; give --ortho-weight 0")


def _as_last_learner(ensemble: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The contract of an ensemble's last learner, as changes to another one; what is given must agree with it."""
    folder = resolve(ensemble)
    while kind_of(folder) == combination.KIND:
        folder = combination.parts(folder)[1]
    theirs = read_contract(folder).to_dict()
    for name, value in given.items():
        if theirs[name] != value:
            raise InputError(
                f"--{name.replace('_', '-')} {value}: the learners of {ensemble} have {theirs[name]}, and those of an "
                "ensemble are alike; leave it out"
            )
    return theirs


def _save(encoder: TransformerEncoder, ensemble: str | None, work: Path) -> None:
    """Write the encoder, or the ensemble that it completes."""
    if ensemble is None:
        encoder.save(work)
        return
    learner = combination.parts(work)[1]
    encoder.save(learner)
    combination.write(work, [resolve(ensemble), learner], combination.Recipe())


def _one() -> torch.Tensor:
    return torch.ones(())


def _claim(
    output: Path, inputs: Mapping[str, Path | None], options: Mapping[str, Any], overwrite: bool
) -> artifacts.Output:
    settled = {
        "precision": str(options["precision"]).removeprefix("torch."),  # what `auto` came to decides the weights
        "projection_version": projection.VERSION,
    }
    given = {role: path for role, path in inputs.items() if path is not None}
    return artifacts.open_output(
        output, Kind.ENCODER, "train-dense", inputs=given, options={**options, **settled}, overwrite=overwrite
    )


def _completed(objective: config.Objective, unit: bool) -> config.Objective:
    """The objective with what was not given: as the loss and the length of the vectors ask for."""
    published = objective.loss == "roc"
    return replace(
        objective,
        temperature=objective.temperature or losses.usual_temperature(unit),
        ortho_weight=(1.0 if published else 0.0) if objective.ortho_weight is None else objective.ortho_weight,
        mask_matches=(0.15 if published else 0.0) if objective.mask_matches is None else objective.mask_matches,
    )


def _loss(objective: config.Objective, beside: Callable[[], torch.Tensor] | None = None) -> losses.Objective:
    temperature, weight = objective.temperature or 1.0, objective.lexical_weight

    def likelihood(vectors: losses.Vectors) -> losses.Terms:
        return losses.nll(vectors, temperature, objective.in_batch, beside() if beside is not None else None)

    relevances: dict[config.Loss, losses.Objective] = {
        "nll": likelihood,
        "roc": likelihood,
        "margin": partial(losses.margin, xi=objective.xi, temperature=temperature),
        "residual-margin": partial(
            losses.residual_margin, xi=objective.xi, lexical_weight=weight, temperature=temperature
        ),
        "bpr": partial(losses.bpr, temperature=temperature),
    }
    relevance = relevances[objective.loss]
    if beside is not None and objective.loss not in LIKELIHOODS:
        relevance = losses.on_other(relevance)
    if not objective.ortho_weight:
        return relevance
    return losses.added(relevance, partial(losses.orthogonality, weight=objective.ortho_weight))


def _nested(loss: losses.Objective, dims: Sequence[int], encoder: TransformerEncoder) -> losses.Objective:
    """The loss of prefixes too, where any are named."""
    losses.check_nested(dims, encoder.dim)
    return losses.nested(loss, [*dims, encoder.dim], encoder.contract.normalize) if dims else loss


def _masking(encoder: TransformerEncoder, share: float | None) -> MatchMasking | None:
    return MatchMasking(encoder.document_tower.tokenizer, encoder.contract, share) if share else None


def _lexical_side(
    index: Path | None, dim: int, objective: config.Objective, sources: Sequence[Examples]
) -> LexicalSide | None:
    if index is None:
        return None
    docids = pl.concat([examples.docids() for examples in sources]).unique()
    return LexicalSide(LexicalIndex.open(index), projection.SignProjection(dim, objective.ortho_seed), docids)


def _check_projection(model: Path, wanted: projection.SignProjection) -> None:
    """Refuse to go on with an encoder that was made orthogonal to another projection."""
    if not (model / PROJECTION).is_file():
        return
    trained = json.loads((model / PROJECTION).read_text("utf-8"))
    if trained != wanted.to_dict():
        was, now = (", ".join(f"{name} {value}" for name, value in d.items()) for d in (trained, wanted.to_dict()))
        raise InputError(
            f"{model}: was trained orthogonal to another projection of BM25 ({was}; now {now}); "
            "give its --ortho-seed and --dim, or start from another model"
        )


def _validate(
    encoder: Encoder, dev: Examples | None, most: int, objective: config.Objective, side: LexicalSide | None
) -> Validate | None:
    if dev is None:
        return None
    weights = [(objective.temperature or 1.0) * weight for weight in SUM_WEIGHTS]
    return partial(DevPool.of(dev.dev_rows(most)).measure, encoder, weights, side)
