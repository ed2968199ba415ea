"""Throughput of `pretrain` (word pieces/s) compared with a bare transformers loop on the same spans.

python benchmarks/pretrain.py [--steps 6] [--length 128] [--batch 16] [--cocondenser]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
import torch
from ratios import Row, ratios
from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling

from hybrid_cli import artifacts, storage
from hybrid_cli.collections.readers import python_docs
from hybrid_cli.commands import Pretrain
from hybrid_cli.encoders.contract import Contract
from hybrid_cli.encoders.models import pick_dtype, resolve
from hybrid_cli.storage import Kind
from hybrid_cli.training.loop import Trainer
from hybrid_cli.training.pretraining import IGNORED, Corpus, MaskedLanguageModel, PretrainingLearner


def corpus_of_docstrings(folder: Path) -> Path:
    """Write a corpus of docstrings of scipy."""
    found = list(python_docs.read_package("scipy", Path(scipy.__file__).parent))[:1000]
    columns = [[d.name for d in found], [d.name for d in found], [f"{d.summary} {d.rest}" for d in found]]
    table = pa.table(columns, schema=storage.SCHEMAS[Kind.CORPUS])
    artifacts.open_output(folder / "corpus.parquet", Kind.CORPUS, "benchmark", inputs={}, options={}).write([table])
    return folder / "corpus.parquet"


def bare(
    model: Any, collator: Any, optimizer: torch.optim.Optimizer, spans: list[list[int]], precision: torch.dtype
) -> None:
    """Train one step with the collator, model and loss of transformers; the loss computes all logits."""
    batch = collator([{"input_ids": ids} for ids in spans])
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()


def main(words: Sequence[str] | None = None) -> list[Row]:
    """Time alternating steps of both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--cocondenser", action="store_true", help="spans in pairs, both heads, the contrastive loss")
    given = parser.parse_args(words)
    folder, precision = resolve("minilm"), pick_dtype("auto", "cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    documents = given.batch // 2 if given.cocondenser else given.batch
    with tempfile.TemporaryDirectory() as scratch:
        corpus = corpus_of_docstrings(Path(scratch))
        options = {"batch_size": documents, "max_length": given.length, "cocondenser": given.cocondenser}
        plan = Pretrain(corpus, output=Path(scratch) / "out", held_out=0, **options)
        stream = Corpus(corpus, tokenizer, Contract().document, plan).batches()
        batches = list(islice(stream, given.steps + 1))
    ours = MaskedLanguageModel.load(folder, condenser=given.cocondenser)
    trainer = Trainer(PretrainingLearner(ours, tokenizer, precision), plan)
    model = AutoModelForMaskedLM.from_pretrained(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    seconds: dict[str, list[float]] = {"hybrid": [], "bare": []}
    pieces = [sum(map(len, batch.ids)) for batch in batches]
    for number, batch in enumerate(batches):
        spans = [
            np.where(labels == IGNORED, ids, labels).tolist()
            for ids, labels in zip(batch.ids, batch.labels, strict=True)
        ]
        for name, step in (
            ("hybrid", lambda batch=batch: trainer.step(iter([batch]))),
            ("bare", lambda spans=spans: bare(model, collator, optimizer, spans, precision)),
        ):
            start = time.perf_counter()
            step()
            if number:  # the first step is a warm-up
                seconds[name].append(time.perf_counter() - start)
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {precision}")
    print(f"MiniLM, {given.batch} spans of at most {given.length} word pieces, {given.steps} steps each")
    for name, values in seconds.items():
        rates = [count / value for count, value in zip(pieces[1:], values, strict=True)]
        print(f"{name:8} {statistics.median(rates):8,.0f} word pieces/s (median)")
    row = Row(
        f"pretrain, MiniLM, {given.batch} spans of {given.length} word pieces, {precision}",
        "bare transformers loop",
        ratios(seconds["bare"], seconds["hybrid"]),
        "",
        "pretrain.py",
    )
    print(row)
    return [row]


if __name__ == "__main__":
    main()
