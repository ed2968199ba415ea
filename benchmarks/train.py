"""Throughput of `train-dense` (triples/s) compared with a bare PyTorch loop on the same batches.

python benchmarks/train.py [--steps 6]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import scipy
import torch
from ratios import Row, ratios
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from hybrid_cli.collections.readers import python_docs
from hybrid_cli.encoders.devices import pick_dtype
from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.settings.common import Optimization
from hybrid_cli.training.batches import Group
from hybrid_cli.training.dense import DenseLearner
from hybrid_cli.training.loop import Trainer
from hybrid_cli.training.losses import residual_margin

BATCH, QUERY_LEN, DOC_LEN = 28, 64, 128


def groups(count: int) -> list[Group]:
    """Return triples: first paragraph of a docstring, its text, and the text of the next docstring."""
    documents = [d for d in python_docs.read_package("scipy", Path(scipy.__file__).parent) if len(d.rest) > 200]
    return [
        Group(a.summary, [a.name, b.name], [a.name, b.name], [a.rest, b.rest], [3.0, 1.0], frozenset([a.name]))
        for a, b in pairwise(documents[: count + 1])
    ]


def bare(
    model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, batch: Sequence[Group], precision: torch.dtype
) -> None:
    """Train one step in plain PyTorch: three padded encodings, a hinge loss, an optimizer step."""

    def encode(texts: list[str], length: int) -> Any:
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        return (states * mask).sum(1) / mask.sum(1)

    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        query = encode([g.query for g in batch], QUERY_LEN)
        positive = encode([f"{g.titles[0]} {g.texts[0]}" for g in batch], DOC_LEN)
        negative = encode([f"{g.titles[1]} {g.texts[1]}" for g in batch], DOC_LEN)
        margin = 1 - 0.1 * torch.tensor([g.lexical[0] - g.lexical[1] for g in batch])
        loss = functional.relu(margin - (query * positive).sum(1) + (query * negative).sum(1)).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()


def main(words: Sequence[str] | None = None) -> list[Row]:
    """Time alternating steps of both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    steps = parser.parse_args(words).steps
    batches = [groups(BATCH * (steps + 1))[i * BATCH : (i + 1) * BATCH] for i in range(steps + 1)]
    precision = pick_dtype("auto", "cpu")
    encoder = TransformerEncoder.load(
        "minilm", device="cpu", normalize=False, query_max_len=QUERY_LEN, doc_max_len=DOC_LEN
    )
    learner = DenseLearner(encoder, residual_margin, precision)
    trainer = Trainer(learner, Optimization(batch_size=BATCH))
    folder = resolve("minilm")
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False).train()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    seconds: dict[str, list[float]] = {"hybrid": [], "bare": []}
    for number, batch in enumerate(batches):
        for name, step in (
            ("hybrid", lambda batch=batch: trainer.step(map(learner.prepare, [batch]))),
            ("bare", lambda batch=batch: bare(model, tokenizer, optimizer, batch, precision)),
        ):
            start = time.perf_counter()
            step()
            if number:  # the first step is a warm-up
                seconds[name].append(time.perf_counter() - start)
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {precision}")
    print(f"MiniLM, batches of {BATCH} triples, {QUERY_LEN}/{DOC_LEN} word pieces, {steps} steps each")
    for name, values in seconds.items():
        print(f"{name:8} {BATCH / statistics.median(values):6.1f} triples/s (median)")
    row = Row(
        f"train-dense, MiniLM, batches of {BATCH} triples, {precision}",
        "bare PyTorch loop",
        ratios(seconds["bare"], seconds["hybrid"]),
        "0.95",
        "train.py",
    )
    print(row)
    return [row]


if __name__ == "__main__":
    main()
