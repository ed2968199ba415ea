"""Cost of a training step of `distill-lite` relative to a step of DPR32 on the same batches (goal: at most 1.1).

    python benchmarks/distill.py out/train.parquet [--steps 6]

Steps of both trainings alternate. The teacher is MiniLM with all dimensions; its vectors of all texts of the examples
are computed before the first step and timed separately.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path

from hybrid_cli.encoders.models import open_encoder, pick_dtype
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.training import losses
from hybrid_cli.training.batches import Examples
from hybrid_cli.training.dense import BatchSources, DenseLearner
from hybrid_cli.training.loop import Trainer
from hybrid_cli.training.options import Sampling
from hybrid_cli.training.teachers import FrozenEncoder

DIM = 32


def main() -> None:
    """Time alternating steps of both and print the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    examples, plan, precision = Examples(arguments.examples), Sampling(), pick_dtype("auto", "cpu")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as work:
        teacher = FrozenEncoder(open_encoder("minilm", dtype="auto"), examples, Path(work))
    print(f"teacher's vectors: {time.perf_counter() - start:.0f} s, once")
    likelihood = partial(losses.nll, temperature=0.05)
    learners, trainers = {}, {}
    for name in ("dpr32", "lite"):
        encoder = TransformerEncoder.load("minilm", dim=DIM, query_max_len=64, doc_max_len=96)
        objective: losses.Objective = likelihood
        if name == "lite":
            encoder.add_distillation_heads(teacher.dim)
            objective = losses.with_distillation(likelihood, DIM)
        learners[name] = DenseLearner(
            encoder, objective, precision, sources=BatchSources(teacher=teacher if name == "lite" else None)
        )
        trainers[name] = Trainer(learners[name], plan)
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for number, batch in enumerate(islice(examples.batches(plan), arguments.steps + 1)):
        for name, trainer in trainers.items():
            start = time.perf_counter()
            trainer.step(map(learners[name].prepare, [batch]))
            if number:  # the first step is a warm-up
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rates = ", ".join(f"{name} {plan.batch_size / median:.1f} triples/s" for name, median in medians.items())
    print(f"{rates}; lite / dpr32 {medians['lite'] / medians['dpr32']:.3f}")


if __name__ == "__main__":
    main()
