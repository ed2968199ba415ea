"""One device and several: equal results, throughput and memory of training, encoding and FAISS (`make gpu-test`).

python benchmarks/devices.py [--devices 0,1] [--parts training] [--steps 40] [--rounds 3] [--texts 20000]

`--devices cpu,cpu` compares one process with two, in training each on a core of its own. Training runs on one device
and on all in turn; its time is that from the end of the first step to the end of the last. The exit code is 1 if
results differ.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import torch
from ratios import Row, ratios

from hybrid_cli import artifacts
from hybrid_cli.commands import PreparePythonDocs
from hybrid_cli.encoders.models import open_encoder, resolve
from hybrid_cli.indexes.faiss import load_faiss
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.storage import Kind

TOLERANCE = 1e-3  # of vectors after training in fp32: gradients are summed in another order
# A process of torchrun; on a CPU it runs on the core with its number, so that one and two processes are comparable. The
# first process writes the time of the end of each step.
RUN = """
import os
import time
rank, times = int(os.environ.get("LOCAL_RANK", "0")), os.environ.pop("STEP_TIMES", "")
if os.environ.pop("PINNED", ""):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
if times and rank == 0:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    file = open(times, "w", buffering=1)
    register_optimizer_step_post_hook(lambda *step: file.write(f"{time.perf_counter()}\\n"))
from hybrid_cli.cli import main
main()
"""


@dataclass
class Measured:
    """Wall clock and processor seconds of a command, and the memory of each GPU or of its largest process, in MiB.

    The wall clock of a training begins at the end of its first step, its processor seconds at its start.
    """

    seconds: float = 0.0
    processor: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)


class Commands:
    """Runs commands of hybrid on some devices, in a folder.

    Args:
        folder: folder of the outputs.
        devices: `cpu`, or numbers of GPUs.
    """

    def __init__(self, folder: Path, devices: Sequence[str]):
        self.folder, self.devices, self.failed = folder, devices, False
        self.rows: list[Row] = []
        self.script = folder / "run.py"
        self.script.write_text(RUN)
        self.on_cpu = devices[0] == "cpu"

    def run(self, words: Sequence[object], processes: int = 0) -> Measured:
        """Run a command of hybrid, which trains on the first `processes` devices if the number is not 0."""
        times = self.folder / "times.txt"
        launcher = [sys.executable, str(self.script)]
        if processes > 1:
            torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
            launcher = [sys.executable, *torchrun, str(self.script)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        if processes:
            environment["STEP_TIMES"] = str(times)
        if not self.on_cpu:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices)
        elif processes:
            environment["PINNED"] = "1"
        start = time.perf_counter()
        with self._gpu_memory() as memory, tempfile.TemporaryFile("w+") as printed:
            process = subprocess.Popen([*launcher, *map(str, words)], env=environment, stdout=printed, stderr=printed)
            _, status, used = os.wait4(process.pid, 0)  # with the processes that it started
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                printed.seek(0)
                raise SystemExit(f"{' '.join(map(str, words))}: {printed.read()[-2000:]}")
        seconds = time.perf_counter() - start
        if processes:
            ends = [float(line) for line in times.read_text().split()]
            seconds = ends[-1] - ends[0]
        largest = memory or {"largest process": used.ru_maxrss // 1024}
        return Measured(seconds, used.ru_utime + used.ru_stime, largest)

    @contextmanager
    def _gpu_memory(self) -> Iterator[dict[str, int]]:
        """Record the largest memory of each GPU that nvidia-smi reports within this context."""
        found: dict[str, int] = {}
        ended = threading.Event()

        def watch() -> None:
            command = ("nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
            while not self.on_cpu and not ended.wait(0.2):
                for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
                    number, used = line.split(", ")
                    if number in self.devices:
                        found[number] = max(found.get(number, 0), int(used))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield found
        finally:
            ended.set()
            watcher.join()

    def check(self, name: str, same: bool, detail: str) -> None:
        """Print whether results are equal."""
        self.failed |= not same
        print(f"{'equal' if same else 'DIFFERENT':>9}  {name}: {detail}", flush=True)

    def compare(self, name: str, unit: str, count: float, one: Sequence[Measured], several: Sequence[Measured]) -> None:
        """Print throughput (medians of the rounds), and memory in the first round; add the ratios to the rows."""
        number = len(self.devices)
        seconds = [[each.seconds for each in side] for side in (one, several)]
        found, middle = ratios(*seconds), [statistics.median(side) for side in seconds]
        kind = "processes" if self.on_cpu else "GPUs"
        goal = "1.6" if self.on_cpu and name == "train-dense" else ""
        self.rows.append(Row(f"{name}, {number} {kind}", "one", found, goal, "devices.py"))
        print(
            f"{'':>9}  {name}: {count / middle[0]:,.0f} {unit}/s on 1 device, {count / middle[1]:,.0f} on "
            f"{number} ({statistics.median(found):.2f} times, {min(found):.2f} to {max(found):.2f}); processor seconds "
            f"{one[0].processor:.1f} and {several[0].processor:.1f}; memory (MiB) {one[0].memory} and "
            f"{several[0].memory}",
            flush=True,
        )


def without_dropout(folder: Path) -> Path:
    """Return MiniLM without dropout, whose random numbers differ between processes."""
    model = Path(shutil.copytree(resolve("minilm"), folder / "model"))
    config = json.loads((model / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (model / "config.json").write_text(json.dumps(config))
    return model


def training(commands: Commands, collection: Path, steps: int, rounds: int, batch: int) -> None:
    """Compare training on one device with training on all."""
    folder, model = commands.folder, without_dropout(commands.folder)
    examples = mine_negatives(collection, split="train", sources="random:2", output=folder / "train.parquet")
    words = ["train-dense", examples, "--model", model, "--loss", "nll", "--batch-size", batch, "--dtype", "fp32"]
    words += ["--query-max-len", 32, "--doc-max-len", 96, "--device", "cpu" if commands.on_cpu else "cuda"]
    words += ["--max-steps", steps, "--epochs", 99]
    measured: dict[int, list[Measured]] = {1: [], len(commands.devices): []}
    for number in range(rounds):
        for processes, found in measured.items():
            found.append(commands.run([*words, "--output", folder / f"{processes}-{number}"], processes))
    texts = pl.read_parquet(examples, columns=["query"])["query"].head(64).to_list()
    vectors = [open_encoder(folder / f"{processes}-0", device="cpu").encode_queries(texts) for processes in measured]
    apart = float(np.abs(vectors[0] - vectors[1]).max())
    commands.check("train-dense", apart < TOLERANCE, f"vectors differ by at most {apart:.1e}")
    commands.compare("train-dense", "triples", batch * (steps - 1), *measured.values())


def encoding(commands: Commands, corpus: Path, texts: int) -> None:
    """Compare encoding on one device with encoding on all."""
    folder, names = commands.folder, commands.devices if commands.on_cpu else range(len(commands.devices))
    measured = {}
    for name, devices in (("one", list(names)[:1]), ("all", names)):
        words = ["encode", corpus, "--devices", ",".join(map(str, devices)), "--threads", 1, "--shard-size", 1024]
        short, long = (
            commands.run([*words, "--output", folder / f"{name}-{part}", *more])
            for part, more in (("warm", ["--doc-max-len", 4]), ("whole", []))
        )
        measured[name] = [Measured(long.seconds - short.seconds, long.processor - short.processor, long.memory)]
    one, several = (
        [path.read_bytes() for path in sorted((folder / f"{name}-whole" / "vectors").iterdir())] for name in measured
    )
    commands.check("encode", one == several, f"bytes of {len(one)} shards")
    commands.compare("encode", "documents", texts, *measured.values())


def searching(commands: Commands, queries: Path) -> None:
    """Compare FAISS on the CPU with FAISS on the GPUs."""
    faiss = load_faiss()
    second = "gpu" if faiss.get_num_gpus() and not commands.on_cpu else "cpu"
    if second == "cpu":
        print(f"{'':>9}  FAISS {faiss.__version__} has no GPU, and is compared with itself; install the extra `gpu`")
    folder = commands.folder
    words = ["search", "--queries", queries, "--index", folder / "one-whole", "--hits", 100]
    measured = [
        [commands.run([*words, "--faiss-device", device, "--output", folder / f"{number}.parquet"])]
        for number, device in enumerate(("cpu", second))
    ]
    runs = [pl.read_parquet(folder / f"{number}.parquet") for number in range(2)]
    commands.check("flat search", runs[0].equals(runs[1]), f"{len(runs[0]):,} hits with their scores")
    commands.compare("flat search", "hits", len(runs[0]), *measured)
    recalls = []
    for number, device in enumerate(("cpu", second)):
        output = folder / f"ivf-{number}"
        words = ["encode", folder / "one-whole", "--index-type", "IVF64,Flat", "--nprobe", 8, "--recall-check"]
        commands.run([*words, "--faiss-device", device, "--output", output])
        recalls.append(artifacts.read_manifest(output, Kind.DENSE_INDEX).counts["recall@100"])
    commands.check("inverted lists", abs(recalls[0] - recalls[1]) < 0.01, f"recall@100 {recalls[0]} and {recalls[1]}")


def main(words: Sequence[str] | None = None) -> list[Row]:
    everything = ",".join(map(str, range(torch.cuda.device_count()))) or "cpu,cpu"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default=everything)
    parser.add_argument("--parts", default="training,encoding,searching", help="the last needs the second")
    parser.add_argument("--steps", type=int, default=40, help="of a training, at least 2")
    parser.add_argument("--rounds", type=int, default=3, help="of training")
    parser.add_argument("--batch", type=int, default=64, help="triples of a training step")
    parser.add_argument("--texts", type=int, default=20_000)
    arguments = parser.parse_args(words)
    if arguments.steps < 2:
        parser.error("--steps: needs 2, since the first step is not timed")
    devices = arguments.devices.split(",")
    names = [platform.processor() if name == "cpu" else torch.cuda.get_device_name(int(name)) for name in devices]
    print(f"devices {names}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(Path(folder), devices)
        collection = prepare(PreparePythonDocs(package=["scipy"], output=commands.folder / "docs"))
        if "training" in arguments.parts:
            training(commands, collection, arguments.steps, arguments.rounds, arguments.batch)
        rows = pl.read_parquet(collection / "corpus.parquet")
        corpus = rows[[number % len(rows) for number in range(arguments.texts)]]
        corpus = corpus.with_columns(docid=pl.format("d{}", pl.int_range(len(corpus))))
        corpus.write_parquet(commands.folder / "corpus.parquet")
        if "encoding" in arguments.parts:
            encoding(commands, commands.folder / "corpus.parquet", arguments.texts)
        if "searching" in arguments.parts:
            searching(commands, collection / "queries.train.parquet")
    if commands.failed:
        raise SystemExit(1)
    return commands.rows


if __name__ == "__main__":
    main()
