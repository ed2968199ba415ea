"""Pairs per second of training with gradient caching, compared with sentence-transformers' cached ranking loss.

Both train MiniLM with the likelihood of the positive among the documents of the batch, on the same batches of pairs, in
chunks of 32 texts. Each has a process of its own, and they step in turn. A step includes the tokenization of its batch;
its time is that of the processor, which other programs hardly change. Before, loss and gradients of both are compared
without dropout, in fp32.

python benchmarks/cached_losses.py [--batches 64,256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import scipy
import torch
from ratios import Row, ratios

from hybrid_cli.collections.readers import python_docs
from hybrid_cli.encoders.models import autocast, pick_dtype, resolve
from hybrid_cli.training.batches import Group

CHUNK, QUERY_LEN, DOC_LEN, TEMPERATURE = 32, 32, 64, 0.05
HYBRID, PEER = "hybrid", "CachedMultipleNegativesRankingLoss"
Backward = Callable[[Sequence[Group]], float]  # adds the gradients of a batch, and returns its loss


def pairs(count: int) -> list[Group]:
    """Return pairs: first paragraph of a docstring, and its text."""
    documents = {d.rest: d for d in python_docs.read_package("scipy", Path(scipy.__file__).parent) if len(d.rest) > 200}
    chosen = list(documents.values())[:count]
    return [Group(d.summary, [d.name], [""], [d.rest], [0.0], frozenset([d.name])) for d in chosen]


def ours(precision: torch.dtype) -> tuple[torch.nn.Module, Backward]:
    """Return the model and the step of hybrid."""
    from hybrid_cli.encoders.transformer import TransformerEncoder
    from hybrid_cli.training import losses
    from hybrid_cli.training.dense import DenseLearner

    encoder = TransformerEncoder.load(
        "minilm", device="cpu", normalize=True, query_max_len=QUERY_LEN, doc_max_len=DOC_LEN
    )
    learner = DenseLearner(encoder, losses.objective("nll", temperature=TEMPERATURE), precision, CHUNK)

    def backward(batch: Sequence[Group]) -> float:
        return learner.backward(learner.prepare(list(batch)), lambda loss: loss)["nll"].item()

    return encoder, backward


def peers(precision: torch.dtype) -> tuple[torch.nn.Module, Backward]:
    """Return the model and the step of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    model = SentenceTransformer(str(resolve("minilm")), device="cpu")
    cached = CachedMultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE, mini_batch_size=CHUNK)

    def features(texts: list[str], length: int) -> Any:
        model.max_seq_length = length
        return model.preprocess(texts)

    def backward(batch: Sequence[Group]) -> float:
        columns = [
            features([pair.query for pair in batch], QUERY_LEN), features([pair.texts[0] for pair in batch], DOC_LEN)
        ]  # fmt: skip
        context: AbstractContextManager[Any] = autocast(torch.device("cpu"), precision)
        with context:
            loss = cached(columns, None)
            loss.backward()
        return float(loss.item())

    return model, backward


TOOLS = {HYBRID: ours, PEER: peers}


def compare(batch: Sequence[Group]) -> None:
    """Refuse different losses or gradients; print the largest difference."""
    results = []
    for tool in TOOLS.values():
        model, backward = tool(torch.float32)
        model.eval()
        loss = backward(batch)
        results.append((loss, {
            name.partition("backbone.")[2] or name.partition("model.")[2]: parameter.grad
            for name, parameter in model.named_parameters() if parameter.grad is not None
        }))  # fmt: skip
    (loss, own), (other, theirs) = results
    assert own.keys() == theirs.keys(), own.keys() ^ theirs.keys()
    largest = max(gradient.abs().max().item() for gradient in theirs.values())
    difference = max((own[name] - theirs[name]).abs().max().item() for name in own)
    assert abs(loss - other) < 1e-4, (loss, other)
    assert difference < 1e-4 * largest, (difference, largest)
    print(
        f"{len(batch)} pairs: loss {loss:.6f} and {other:.6f}; gradients of {len(own)} weights differ by at most "
        f"{difference:.1e}, the largest is {largest:.2f}"
    )


def work(name: str, threads: int, precision: torch.dtype, connection: Connection) -> None:
    """Train on the batches that arrive; answer with the processor seconds of a step and the growth of memory in MiB."""
    torch.set_num_threads(threads)
    model, backward = TOOLS[name](precision)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while (batch := connection.recv()) is not None:
        start = time.process_time()
        backward(batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.process_time() - start
        connection.send((seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10))


def measured(batches: Sequence[Sequence[Group]], precision: torch.dtype) -> dict[str, list[tuple[float, float]]]:
    """Train on each batch with each tool in turn; return seconds and MiB of the steps after the first."""
    spawn = multiprocessing.get_context("spawn")
    workers = {}
    for name in TOOLS:
        here, there = spawn.Pipe()
        process = spawn.Process(target=work, args=(name, torch.get_num_threads(), precision, there))
        process.start()
        workers[name] = process, here
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in TOOLS}
    for number, batch in enumerate(batches):
        for name, (_, connection) in workers.items():
            connection.send(batch)
            answer = connection.recv()
            if number:  # the first step warms up
                found[name].append(answer)
    for process, connection in workers.values():
        connection.send(None)
        process.join()
    return found


def main(words: Sequence[str] | None = None) -> list[Row]:
    """Compare losses and gradients, time alternating steps of both, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="64,256")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(words)
    compare(pairs(64))
    precision = pick_dtype("auto", "cpu")
    rows = []
    for size in map(int, options.batches.split(",")):
        known = pairs(size * (options.rounds + 1))
        found = measured([known[begin : begin + size] for begin in range(0, len(known), size)], precision)
        for name, steps in found.items():
            seconds, memory = statistics.median(second for second, _ in steps), max(grown for _, grown in steps)
            print(f"batches of {size}: {name}: {size / seconds:.1f} pairs/s of CPU time (median), {memory:,.0f} MiB")
        task = f"train-dense --chunk-size {CHUNK}, MiniLM, batches of {size} pairs, {precision}, CPU time"
        times, memories = ([[step[part] for step in found[name]] for name in (PEER, HYBRID)] for part in (0, 1))
        rows.append(Row(task, PEER, ratios(*times), "1.0", "cached_losses.py"))
        rows.append(
            Row(
                task.replace("CPU time", "memory"),
                PEER,
                ratios(*([max(each)] for each in memories)),
                "",
                "cached_losses.py",
            )
        )
    print(*rows, sep="\n")
    return rows


if __name__ == "__main__":
    main()
