"""`pretrain`: a collection's own text to an encoder that knows it better."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.config import Pretraining
from hybrid_cli.encoders.contract import Contract, read_contract
from hybrid_cli.encoders.models import model_input, pick_device, pick_dtype, resolve
from hybrid_cli.encoders.tower import Tower
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.errors import InputError
from hybrid_cli.training import checkpoint
from hybrid_cli.training.checkpoint import State
from hybrid_cli.training.condenser import MaskedLanguageModel
from hybrid_cli.training.corpus import Corpus
from hybrid_cli.training.loop import fit, steps_of
from hybrid_cli.training.pretraining import PretrainingLearner

_NOT_OURS = {"negatives", "accumulate", "keep"}  # of the options of training


def pretrain(
    collection: Path,
    output: Path,
    *,
    model: str = "minilm",
    plan: Pretraining = Pretraining(),  # noqa: B008 - frozen
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Train a transformer to fill in masked words of a corpus, with coCondenser to tell its documents apart too.

    Args:
        collection: a collection or a corpus; queries and judgements are not read.
        output: folder of the encoder, its head that names words included; a killed training goes on from its last
            checkpoint.
        model: where to start: `minilm`, a folder, or a Hugging Face id.

    Raises:
        InputError: corpus or model are not usable, or do not go with the plan.
    """
    if threads:
        torch.set_num_threads(threads)
    device = pick_device(device)
    precision = pick_dtype(plan.precision, device)
    start = resolve(model)
    contract = _contract(start, plan)
    claim = artifacts.open_output(
        output,
        Kind.ENCODER,
        "pretrain",
        inputs={"corpus": collections.corpus_path(collection), "model": model_input(model)},
        options={
            **{name: value for name, value in asdict(plan).items() if name not in _NOT_OURS},
            "precision": str(precision).removeprefix("torch."),  # what `auto` came to decides the weights
        },
        overwrite=overwrite,
    )
    if claim.up_to_date:
        return output
    tower = Tower.load(start, contract)
    _check_length(plan.max_length, tower)
    bare = replace(contract, doc_prefix="", markers="none")
    corpus = Corpus(collections.corpus_path(collection), tower.tokenizer, bare.document, plan)
    torch.manual_seed(plan.seed)  # new heads start from it
    network = MaskedLanguageModel.load(start, condenser=plan.cocondenser, skip_from=plan.skip_from).to(device)
    learner = PretrainingLearner(network, tower.tokenizer, precision, plan.chunk_size)
    held_out = corpus.held_out()
    with claim.folder() as (work, counts):
        state = fit(
            learner,
            corpus.batches,
            plan,
            steps_of(plan, len(corpus)),
            work,
            validate=partial(learner.measure, held_out) if held_out else None,
        )
        tower.backbone = network.backbone
        TransformerEncoder(contract, tower, tower).save(work)
        network.save(work)
        checkpoint.write_curve(work, state, "pretrain")
        counts.update(documents=corpus.documents, held_out=corpus.held, spans=len(corpus), steps=state.step)
    console.note(f"pretrain: {output}: {corpus.documents:,} documents, {state.step:,} steps{_gain(state)}")
    return output


def _contract(start: Path, plan: Pretraining) -> Contract:
    """The model's own; coCondenser compares [CLS] by inner product."""
    contract = read_contract(start)
    if not contract.tied:
        raise InputError(f"{start}: has two towers; pretrain one of them: {start / 'document'} or {start / 'query'}")
    return contract.changed(pooling="cls", normalize=False) if plan.cocondenser else contract


def _check_length(length: int, tower: Tower) -> None:
    config = tower.backbone.config
    most = min(tower.tokenizer.model_max_length, getattr(config, "max_position_embeddings", length))
    if length > most:
        raise InputError(f"--max-length {length}: the model has positions for {most} word pieces")


def _gain(state: State) -> str:
    values = [value for _, name, value in state.curve if name == "held_out_mlm"]
    return f", loss of held-out words {values[0]:.2f} -> {values[-1]:.2f}" if values else ""
