"""`pretrain`: adapt an encoder to a corpus."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hybrid_cli import console
from hybrid_cli.artifacts.indexes import model_input
from hybrid_cli.collections import collection as collections
from hybrid_cli.commands import Pretrain
from hybrid_cli.encoders.contract import Contract, read_contract, stored_encoder
from hybrid_cli.encoders.models import pick_device, resolve
from hybrid_cli.encoders.transformer import Tower, TransformerEncoder
from hybrid_cli.errors import InputError, option_error
from hybrid_cli.session import Session
from hybrid_cli.stages import stage
from hybrid_cli.training.batches import prefetch
from hybrid_cli.training.loop import Job, Validator
from hybrid_cli.training.pretraining import Corpus, MaskedLanguageModel, PretrainingLearner


@stage(Pretrain)
def pretrain(settings: Pretrain) -> Path:
    """Pretrain a transformer with masked language modeling, and with `cocondenser` its contrastive loss.

    Returns:
        Folder of the encoder, which includes the masked-language-model head.

    Raises:
        InputError: corpus or model are unusable or incompatible.
    """
    start = resolve(settings.model)
    contract = _contract(start, settings)
    corpus_path = collections.corpus_path(settings.collection)
    session = Session(settings, {"corpus": corpus_path, "model": model_input(settings.model)})
    if session.up_to_date:
        return settings.output
    tower = Tower.load(stored_encoder(start).tower("document"), contract)
    positions = getattr(tower.backbone.config, "max_position_embeddings", settings.max_length)
    if settings.max_length > (most := min(tower.tokenizer.model_max_length, positions)):
        raise option_error("max_length", settings.max_length, f"the model has positions for {most} tokens", limit=most)
    bare = replace(contract, doc_prefix="", markers="none")
    corpus = Corpus(corpus_path, tower.tokenizer, bare.document, settings)
    session.seed()  # initializes new heads
    network = MaskedLanguageModel.load(
        start, condenser=settings.cocondenser, skip_layer=settings.skip_layer, start=settings
    ).to(pick_device(settings.device))
    learner = PretrainingLearner(network, tower.tokenizer, session.precision, settings.chunk_size)
    held_out = corpus.held_out()

    def save(folder: Path) -> dict[str, Any]:
        tower.backbone = network.backbone
        TransformerEncoder(contract, tower, tower).save(folder)
        network.save(folder)
        return {"documents": corpus.documents, "held_out": corpus.held, "spans": len(corpus)}

    validator = Validator(partial(learner.measure, held_out), settings.eval_steps) if held_out else None
    steps = session.steps(len(corpus))
    state = session.train(lambda _: Job(learner, lambda done: prefetch(corpus.batches(done)), steps, save, validator))
    losses = [value for _, name, value in state.curve if name == "held_out_mlm"]
    gain = f", held-out loss {losses[0]:.2f} -> {losses[-1]:.2f}" if losses else ""
    text = f"pretrain: {settings.output}: {console.counted(document=corpus.documents, step=state.step)}{gain}"
    console.note(text, code="written", path=settings.output, documents=corpus.documents)
    return settings.output


def _contract(start: Path, settings: Pretrain) -> Contract:
    """Return the contract of the model; coCondenser compares [CLS] vectors by inner product."""
    contract = read_contract(start)
    if not contract.tied:
        raise InputError(f"{start}: has two towers; pretrain one of them: {start / 'document'}", code="two-towers")
    return contract.changed(pooling="cls", normalize=False) if settings.cocondenser else contract
