"""Throughput of `train-dense` (triples/s) compared with sentence-transformers' trainer and a bare PyTorch loop.

All train MiniLM with the likelihood of the positive among the documents of the batch, on the same triples, one step of
each in turn; the trainer draws its batches in another order. A step includes the tokenization of its batch.

python benchmarks/train.py [--steps 6]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import scipy
import torch
from datasets import Dataset
from ratios import Row, ratios
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, TrainerCallback

from hybrid_cli.collections.readers import python_docs
from hybrid_cli.encoders.models import pick_dtype, resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.training.batches import Group
from hybrid_cli.training.dense import DenseLearner
from hybrid_cli.training.loop import Trainer
from hybrid_cli.training.losses import nll
from hybrid_cli.training.options import Optimization

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
    """Train one step in plain PyTorch: three padded encodings, the likelihood, an optimizer step."""

    def encode(texts: list[str], length: int) -> Any:
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        return (states * mask).sum(1) / mask.sum(1)

    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        query = encode([g.query for g in batch], QUERY_LEN)
        positive = encode([f"{g.titles[0]} {g.texts[0]}" for g in batch], DOC_LEN)
        negative = encode([f"{g.titles[1]} {g.texts[1]}" for g in batch], DOC_LEN)
        loss = functional.cross_entropy(query @ torch.cat([positive, negative]).T, torch.arange(len(batch)))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()


def peer(triples: Sequence[Group], precision: torch.dtype, between: Callable[[int], None]) -> list[float]:
    """Train with sentence-transformers; call `between` after each step, and return the seconds of the steps."""
    seconds: list[float] = []

    class InTurn(TrainerCallback):  # type: ignore[misc]
        """Stops the time of a step, which starts when the step before has ended."""

        start = 0.0

        def on_train_begin(self, *arguments: Any, **facts: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *arguments: Any, **facts: Any) -> None:
            seconds.append(time.perf_counter() - self.start)
            between(len(seconds) - 1)
            self.start = time.perf_counter()

    model = SentenceTransformer(str(resolve("minilm")), device="cpu")
    model.max_seq_length = DOC_LEN
    columns = {
        "anchor": [each.query for each in triples],
        "positive": [f"{each.titles[0]} {each.texts[0]}" for each in triples],
        "negative": [f"{each.titles[1]} {each.texts[1]}" for each in triples],
    }
    with tempfile.TemporaryDirectory() as folder:
        plan = SentenceTransformerTrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            max_steps=len(triples) // BATCH,
            use_cpu=True,
            bf16=precision == torch.bfloat16,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        loss = MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(
            model, plan, train_dataset=Dataset.from_dict(columns), loss=loss, callbacks=[InTurn()]
        ).train()
    return seconds


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
    learner = DenseLearner(encoder, nll, precision)
    trainer = Trainer(learner, Optimization(batch_size=BATCH))
    folder = resolve("minilm")
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False).train()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    seconds: dict[str, list[float]] = {"hybrid": [], "bare": [], "sentence-transformers": []}

    def others(number: int) -> None:
        """Train one step of hybrid and of the bare loop."""
        batch = batches[number]
        steps_of: dict[str, Callable[[], Any]] = {
            "hybrid": lambda: trainer.step(map(learner.prepare, [batch])),
            "bare": lambda: bare(model, tokenizer, optimizer, batch, precision),
        }
        for name, step in steps_of.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)

    seconds["sentence-transformers"] += peer([group for batch in batches for group in batch], precision, others)
    seconds = {name: values[1:] for name, values in seconds.items()}  # the first step is a warm-up
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {precision}")
    print(f"MiniLM, batches of {BATCH} triples, {QUERY_LEN}/{DOC_LEN} word pieces, {steps} steps each")
    for name, values in seconds.items():
        print(f"{name:8} {BATCH / statistics.median(values):6.1f} triples/s (median)")
    task = f"train-dense, MiniLM, batches of {BATCH} triples, {precision}"
    rows = [
        Row(task, name, ratios(seconds[key], seconds["hybrid"]), goal, "train.py")
        for name, key, goal in (
            ("sentence-transformers' trainer", "sentence-transformers", "1.2"),
            ("bare PyTorch loop", "bare", "0.95"),
        )
    ]
    print(*rows, sep="\n")
    return rows


if __name__ == "__main__":
    main()
