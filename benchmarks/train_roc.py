"""Seconds per step of NLL with both parts of RoC and of plain NLL, alternating on the same batches.

python benchmarks/train_roc.py [--steps 6]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.commands import PreparePythonDocs
from hybrid_cli.encoders.models import pick_dtype
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import BatchSources, DenseLearner
from hybrid_cli.training.loop import Trainer
from hybrid_cli.training.losses import nll, orthogonality, sum_objectives
from hybrid_cli.training.options import Sampling
from hybrid_cli.training.roc import Bm25Vectors, MatchMasking, SignProjection

QUERY_LEN, DOC_LEN = 64, 128


def main() -> None:
    """Time alternating steps of both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    steps = parser.parse_args().steps
    plan, relevance = Sampling(), partial(nll, temperature=0.05)
    with tempfile.TemporaryDirectory() as folder:
        collection = prepare(PreparePythonDocs(package=["scipy"], output=Path(folder) / "docs"))
        index = index_bm25(collection, output=Path(folder) / "bm25")
        mined = mine_negatives(collection, split="train", index=index, output=Path(folder) / "train.parquet")
        examples, lexical = Examples(mined), open_bm25(index)
        learners = {}
        for name in ("nll", "nll + E + I"):
            encoder = TransformerEncoder.load("minilm", device="cpu", query_max_len=QUERY_LEN, doc_max_len=DOC_LEN)
            precision = pick_dtype("auto", "cpu")
            side = Bm25Vectors(lexical, SignProjection(encoder.dim), examples.docids())
            masking = MatchMasking(encoder.document_tower.tokenizer, encoder.contract, 0.15)
            learners[name] = (
                DenseLearner(encoder, relevance, precision)
                if name == "nll"
                else DenseLearner(
                    encoder,
                    sum_objectives(relevance, orthogonality),
                    precision,
                    None,
                    BatchSources(side, masking=masking),
                )
            )
        trainers = {name: Trainer(learner, plan) for name, learner in learners.items()}
        seconds: dict[str, list[float]] = {name: [] for name in trainers}
        for number, batch in zip(range(steps + 1), examples.batches(plan), strict=False):
            for name, trainer in trainers.items():
                start = time.perf_counter()
                trainer.step(map(learners[name].prepare, [batch]))
                if number:  # the first step is a warm-up
                    seconds[name].append(time.perf_counter() - start)
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {precision}")
    print(f"MiniLM, batches of {plan.batch_size} triples, {QUERY_LEN}/{DOC_LEN} word pieces, {steps} steps each")
    for name, values in seconds.items():
        print(f"{name:12} {plan.batch_size / statistics.median(values):6.1f} triples/s (median)")
    ratios = [both / plain for plain, both in zip(*seconds.values(), strict=True)]
    print(f"(nll + E + I) / nll: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); goal 1.15")


if __name__ == "__main__":
    main()
