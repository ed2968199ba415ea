"""Pairs per second of training with gradient caching, compared with sentence-transformers' cached ranking loss.

Both train MiniLM with the likelihood of the positive among the documents of the batch, on the same batches of pairs, in
chunks of 32 texts; sentence-transformers also in chunks of as many tokens as 32 of the longest documents have. Each has
a process of its own, and they step in turn. A step includes the tokenization of its batch; its time is that of the
processor, which other programs hardly change. Before, loss and gradients are compared without dropout, in fp32.

python benchmarks/cached_losses.py [--batches 64,256] [--doc-len 64] [--rounds 3]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import scipy
import torch
from ratios import Row, ratios

from hybrid_cli.collections.readers import python_docs
from hybrid_cli.encoders.models import autocast, pick_dtype, resolve
from hybrid_cli.training.batches import Group

CHUNK, QUERY_LEN, TEMPERATURE = 32, 32, 0.05
HYBRID, PEER, TOKENS = "hybrid", "CachedMultipleNegativesRankingLoss", "the same with token batches"
Backward = Callable[[Sequence[Group]], float]  # adds the gradients of a batch, and returns its loss


def pairs(count: int) -> list[Group]:
    """Return pairs: first paragraph of a docstring, and its text."""
    documents = {d.rest: d for d in python_docs.read_package("scipy", Path(scipy.__file__).parent) if len(d.rest) > 200}
    chosen = list(documents.values())[:count]
    return [Group(d.summary, [d.name], [""], [d.rest], [0.0], frozenset([d.name])) for d in chosen]


def ours(precision: torch.dtype, doc_len: int) -> tuple[torch.nn.Module, Backward]:
    """Return the model and the step of hybrid."""
    from hybrid_cli.encoders.transformer import TransformerEncoder
    from hybrid_cli.training import losses
    from hybrid_cli.training.dense import DenseLearner
    from hybrid_cli.training.gradients import FastDropout

    encoder = TransformerEncoder.load(
        "minilm", device="cpu", normalize=True, query_max_len=QUERY_LEN, doc_max_len=doc_len
    )
    learner = DenseLearner(encoder, losses.objective("nll", temperature=TEMPERATURE), precision, CHUNK)

    def backward(batch: Sequence[Group]) -> float:
        with FastDropout():  # as in the training loop
            return learner.backward(learner.prepare(list(batch)), lambda loss: loss)["nll"].item()

    return encoder, backward


def peers(precision: torch.dtype, doc_len: int, by_tokens: bool = False) -> tuple[torch.nn.Module, Backward]:
    """Return the model and the step of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    model = SentenceTransformer(str(resolve("minilm")), device="cpu")
    tokens = CHUNK * doc_len if by_tokens else None
    cached = CachedMultipleNegativesRankingLoss(
        model, scale=1 / TEMPERATURE, mini_batch_size=CHUNK, mini_batch_num_tokens=tokens
    )

    def features(texts: list[str], length: int) -> Any:
        model.max_seq_length = length
        return model.preprocess(texts)

    def backward(batch: Sequence[Group]) -> float:
        columns = [
            features([pair.query for pair in batch], QUERY_LEN), features([pair.texts[0] for pair in batch], doc_len)
        ]  # fmt: skip
        context: AbstractContextManager[Any] = autocast(torch.device("cpu"), precision)
        with context:
            loss = cached(columns, None)
            loss.backward()
        return float(loss.item())

    return model, backward


TOOLS: dict[str, Callable[[torch.dtype, int], tuple[torch.nn.Module, Backward]]]
TOOLS = {HYBRID: ours, PEER: peers, TOKENS: partial(peers, by_tokens=True)}


def compare(batch: Sequence[Group], doc_len: int) -> None:
    """Refuse different losses or gradients; print the largest difference."""
    results = []
    for tool in TOOLS.values():
        model, backward = tool(torch.float32, doc_len)
        model.eval()
        loss = backward(batch)
        results.append((loss, {
            name.partition("backbone.")[2] or name.partition("model.")[2]: parameter.grad
            for name, parameter in model.named_parameters() if parameter.grad is not None
        }))  # fmt: skip
    loss, own = results[0]
    for other, theirs in results[1:]:
        assert own.keys() == theirs.keys(), own.keys() ^ theirs.keys()
        largest = max(gradient.abs().max().item() for gradient in theirs.values())
        difference = max((own[name] - theirs[name]).abs().max().item() for name in own)
        assert abs(loss - other) < 1e-4, (loss, other)
        assert difference < 1e-4 * largest, (difference, largest)
        print(
            f"{len(batch)} pairs: loss {loss:.6f} and {other:.6f}; gradients of {len(own)} weights differ by at most "
            f"{difference:.1e}, the largest is {largest:.2f}"
        )


def peak() -> float:
    """Return the peak of the memory in MiB; `ru_maxrss` of a child process starts at the memory of its parent."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10


def work(name: str, threads: int, precision: torch.dtype, doc_len: int, connection: Connection) -> None:
    """Train on the batches that arrive; answer with the processor seconds of a step and the growth of memory in MiB."""
    torch.set_num_threads(threads)
    model, backward = TOOLS[name](precision, doc_len)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    before = peak()
    while (batch := connection.recv()) is not None:
        start = time.process_time()
        backward(batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.process_time() - start
        connection.send((seconds, peak() - before))


def measured(
    batches: Sequence[Sequence[Group]], precision: torch.dtype, doc_len: int
) -> dict[str, list[tuple[float, float]]]:
    """Train on each batch with each tool in turn; return seconds and MiB of the steps after the first."""
    spawn = multiprocessing.get_context("spawn")
    workers = {}
    for name in TOOLS:
        here, there = spawn.Pipe()
        process = spawn.Process(target=work, args=(name, torch.get_num_threads(), precision, doc_len, there))
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
    parser.add_argument("--doc-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(words)
    compare(pairs(64), options.doc_len)
    precision = pick_dtype("auto", "cpu")
    rows = []
    for size in map(int, options.batches.split(",")):
        known = pairs(size * (options.rounds + 1))
        found = measured(
            [known[begin : begin + size] for begin in range(0, len(known), size)], precision, options.doc_len
        )
        for name, steps in found.items():
            seconds, memory = statistics.median(second for second, _ in steps), max(grown for _, grown in steps)
            print(f"batches of {size}: {name}: {size / seconds:.1f} pairs/s of CPU time (median), {memory:,.0f} MiB")
        task = f"train-dense --chunk-size {CHUNK}, MiniLM, {size} pairs of {options.doc_len} tokens, {precision}"
        own, *others = ([[step[part] for step in steps] for part in (0, 1)] for steps in found.values())
        for peer, (seconds_of, grown_of) in zip((PEER, TOKENS), others, strict=True):
            memories = ratios([max(grown_of)], [max(own[1])])
            rows.append(Row(f"{task}, CPU time", peer, ratios(seconds_of, own[0]), "1.3", "cached_losses.py"))
            rows.append(Row(f"{task}, memory", peer, memories, "", "cached_losses.py"))
    print(*rows, sep="\n")
    return rows


if __name__ == "__main__":
    main()
