"""The training loop: the only one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hybrid_cli import console
from hybrid_cli.config import Optimization
from hybrid_cli.encoders.encoder import Encoder, batches_by_length
from hybrid_cli.encoders.tower import Tower
from hybrid_cli.errors import HybridError
from hybrid_cli.training import checkpoint
from hybrid_cli.training.batches import Examples, Group, allowed, batches, lexical_scores
from hybrid_cli.training.checkpoint import State
from hybrid_cli.training.gradients import backward
from hybrid_cli.training.losses import Objective, Terms, Vectors

LOOKS = 10
_TOKENS_AT_ONCE = 4096

Chunk = tuple[Tower, Tensor, Tensor]
Validate = Callable[[Encoder], dict[str, float]]


def fit(
    encoder: Encoder,
    examples: Examples,
    objective: Objective,
    plan: Optimization,
    work: Path,
    *,
    precision: torch.dtype,
    validate: Validate | None = None,
    criterion: str = "",
) -> State:
    """Train `encoder` in place and leave it at its best, or at its last step where nothing validates.

    Every step seeds its own randomness from (seed, step), so a training that is stopped anywhere and begun again from
    the checkpoint in `work` ends with the same weights.

    Args:
        objective: vectors to loss terms.
        precision: what the forward pass computes in; weights and losses stay float32.
        validate: encoder to values for the learning curve.
        criterion: the name among them that decides which weights are best, higher being better.

    Returns:
        The learning curve, the best value and its step.
    """
    trainer = Trainer(encoder, objective, plan, precision)
    per_epoch = -(-len(examples) // (plan.batch_size * plan.accumulate))
    total = min(plan.max_steps or per_epoch * plan.epochs, per_epoch * plan.epochs)
    state = checkpoint.restore(work, encoder, trainer.optimizer, trainer.scaler)
    look_every = plan.eval_steps or max(1, total // LOOKS)
    stream = batches(
        examples,
        size=plan.batch_size,
        negatives=plan.negatives,
        seed=plan.seed,
        epochs=plan.epochs,
        done=state.step * plan.accumulate,
    )
    if validate and not state.curve:
        _look(encoder, validate, criterion, state, work)
    with console.progress("train", total, "steps") as advance:
        advance(state.step)
        for step in range(state.step, total):
            trainer.set_rate(plan.learning_rate * rate_factor(step, total, plan.warmup))
            torch.manual_seed(plan.seed * 1_000_003 + step)
            terms = trainer.step(islice(stream, plan.accumulate))
            state.step = step + 1
            state.curve += [(state.step, name, value) for name, value in terms.items()]
            if validate and (state.step % look_every == 0 or state.step == total):
                _look(encoder, validate, criterion, state, work)
            if state.step % plan.checkpoint_steps == 0:
                checkpoint.save(work, encoder, trainer.optimizer, trainer.scaler, state)
            advance(1)
    if not checkpoint.load_best(work, encoder):
        state.best_step = state.step
    return state


def rate_factor(step: int, total: int, warmup: float) -> float:
    """Share of the peak learning rate at `step`: linear from 0 up over the warm-up, then linear down to 0."""
    rising = round(total * warmup)
    if step < rising:
        return (step + 1) / (rising + 1)
    return (total - step) / max(1, total - rising)


def _look(encoder: Encoder, validate: Validate, criterion: str, state: State, work: Path) -> None:
    encoder.eval()
    values = validate(encoder)
    encoder.train()
    state.curve += [(state.step, name, value) for name, value in values.items()]
    console.note(f"step {state.step}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    if values[criterion] > state.best:
        state.best, state.best_step = values[criterion], state.step
        checkpoint.save_best(work, encoder)


class Trainer:
    """What one optimiser step needs: model, objective, optimiser, precision."""

    def __init__(self, encoder: Encoder, objective: Objective, plan: Optimization, precision: torch.dtype):
        self.encoder, self.objective, self.plan, self.precision = encoder.train(), objective, plan, precision
        self.optimizer = torch.optim.AdamW(
            encoder.parameters(), lr=plan.learning_rate, eps=1e-8, weight_decay=plan.weight_decay, fused=True
        )
        self.scaler = torch.amp.GradScaler(encoder.device.type, enabled=precision == torch.float16)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self, micro_batches: Iterator[list[Group]]) -> dict[str, float]:
        """One optimiser step; the terms' means over its batches."""
        totals: dict[str, float] = {}
        for groups in micro_batches:
            for name, value in self._backward(groups).items():
                totals[name] = totals.get(name, 0.0) + value.item() / self.plan.accumulate
        if not all(np.isfinite(value) for value in totals.values()):
            raise HybridError(
                f"the loss is no longer a number ({totals}); lower --learning-rate, or use --precision float32"
            )
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.encoder.parameters(), self.plan.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return totals

    def _backward(self, groups: list[Group]) -> Terms:
        device = self.encoder.device
        chunks, order = self._chunks(groups)
        lexical, mask = lexical_scores(groups).to(device), allowed(groups).to(device)

        def loss(vectors: Tensor) -> tuple[Tensor, Terms]:
            queries, documents = vectors[order].split([len(groups), lexical.numel()])
            terms = self.objective(Vectors(queries, documents.view(*lexical.shape, -1), lexical, mask))
            return self.scaler.scale(torch.stack(list(terms.values())).sum() / self.plan.accumulate), terms

        def encode(chunk: Chunk) -> Tensor:
            with self._autocast():
                vectors: Tensor = chunk[0](chunk[1].to(device), chunk[2].to(device))
            return vectors.float()

        cached = self.plan.chunk_size is not None
        # Around all chunks, autocast casts the weights once; under caching the casts of the pass without graph must go.
        with nullcontext() if cached else self._autocast():
            return {name: term.detach() for name, term in backward(encode, chunks, loss, cached=cached).items()}

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.encoder.device.type, self.precision, enabled=self.precision != torch.float32)

    def _chunks(self, groups: list[Group]) -> tuple[list[Chunk], Tensor]:
        """The batch's texts in chunks of similar length, and the place of each (queries, then documents) in them."""
        contract = self.encoder.contract
        queries = [contract.query(group.query) for group in groups]
        documents = [
            contract.document(title, text)
            for group in groups
            for title, text in zip(group.titles, group.texts, strict=True)
        ]
        chunks, rows = self._chunks_of(self.encoder.query_tower, queries, contract.query_max_len)
        more, more_rows = self._chunks_of(self.encoder.document_tower, documents, contract.doc_max_len)
        return chunks + more, torch.argsort(torch.cat([rows, len(queries) + more_rows]))

    def _chunks_of(self, tower: Tower, texts: list[str], max_length: int) -> tuple[list[Chunk], Tensor]:
        tokens = tower.tokenizer(texts, truncation=True, max_length=max_length, return_token_type_ids=False)[
            "input_ids"
        ]
        parts = list(batches_by_length([len(ids) for ids in tokens], _TOKENS_AT_ONCE, self.plan.chunk_size))
        chunks = []
        for rows in parts:
            padded = tower.tokenizer.pad({"input_ids": [tokens[row] for row in rows]}, return_tensors="pt")
            chunks.append((tower, padded["input_ids"], padded["attention_mask"]))
        return chunks, torch.from_numpy(np.concatenate(parts))
