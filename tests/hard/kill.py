"""Kill and fail every stage at its writes, renames and syncs, and check the remaining files.

    python tests/hard/kill.py --kills 1000 --seed 1

Each attempt runs one command in a forked process. The process is killed before, in or after one operation on the disk,
or at a random moment; or the operation fails (no space, input/output error); or the process gets SIGTERM; or the size
of its files is limited (RLIMIT_FSIZE); or with `--modes "full disk"` the disk of the working directory is full. After
that

- the output has its old content, no content, or the new content;
- an error is reported in one line, not as a bug;
- the same command succeeds, writes the bytes of an uninterrupted run, and leaves no other files.

The parent process only imports: no thread runs when it forks.
"""

from __future__ import annotations

import argparse
import errno
import io
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import pyarrow.parquet as pq
import torch  # imported before the fork
import transformers
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts, console
from hybrid_cli.artifacts import disk
from hybrid_cli.cli import main
from hybrid_cli.collections import collection
from hybrid_cli.settings import COMMANDS

SEARCHED = "search tiny --split test --threads 1 --index"
TUNED = "--tune --qrels tiny --split test"
STEPS = "--batch-size 2 --max-steps 4 --checkpoint-steps 1 --precision fp32 --threads 1"
STUDENT = f"--model bert {STEPS}"
TRAIN = f"--loss nll {STUDENT}"
INPUTS = (
    "prepare trec docs.jsonl --topics train=topics.train.tsv --topics test=topics.test.tsv "
    "--qrels train=qrels.train.txt --qrels test=qrels.test.txt --output tiny",
    "index-bm25 tiny --threads 1 --output bm25",
    f"{SEARCHED} bm25 --output one.parquet",
    f"{SEARCHED} bm25 --k1 2 --output two.parquet",
    "mine-negatives tiny --split train --index bm25 --threads 1 --output train.parquet",
    "encode tiny --model bert --threads 1 --output dense",
    "label tiny --index bm25 --max-queries 6 --threads 1 --output labels",
    f"{SEARCHED} bm25 --hits 1 --output top.parquet",
    "search tiny --split train --threads 1 --index bm25 --output train-run.parquet",
    f"train-reranker train.parquet --negatives 1 --max-length 48 --query-max-len 16 {STUDENT} --output reranker",
)
RERANK = "rerank one.parquet --model reranker --dtype fp32 --threads 1 --shard-size 4"
STAGES = {  # command, and options of an older output that --overwrite replaces; heavy ones are drawn less often
    "prepare": (INPUTS[0].replace("--output tiny", "--output out"), "--sample 11", 4),
    "index-bm25": ("index-bm25 tiny --threads 1 --output out", "--language de", 1),
    "index-bm25 (parameters)": ("index-bm25 tiny --threads 1 --k1 1.5 --output out", "", 1),
    "search": (f"{SEARCHED} bm25 --output out.parquet", "--hits 3", 1),
    "search (dense)": (f"{SEARCHED} dense --output out.parquet", "--hits 3", 2),
    "fuse": ("fuse one.parquet two.parquet --output out.parquet", "--method rrf", 6),
    "fuse --tune": (f"fuse one.parquet two.parquet {TUNED} --output out.json", "--method sum", 2),
    "train-fusion": (
        "train-fusion one.parquet two.parquet --qrels tiny --split test --folds 2 --output out", "--seed 7", 2
    ),
    "fuse --missing exact": (
        "fuse one.parquet two.parquet --missing exact --index bm25,bm25 --threads 1 --output out.parquet", "--hits 3", 2
    ),
    "concat-runs": ("concat-runs train-run.parquet one.parquet --output out.parquet", "", 4),
    "evaluate": ("evaluate tiny --split test one.parquet --output out.parquet", "--measures MRR@10", 4),
    "report": ("report tiny --split test one.parquet two.parquet --output out.html", "--measures MRR@10", 2),
    "split": ("split tiny --split train --folds 2 --output out", "--seed 7", 4),
    "perturb": ("perturb tiny --split test --attack shuffle --output out.parquet", "--seed 7", 4),
    "perturb (several)": ("perturb tiny --split test --attack shuffle,char-swap --output out", "--seed 7", 4),
    "inspect": ("inspect one=one.parquet --memory-table tiny --split test --overwrite --output out.parquet", "", 1),
    "export trec": ("export top.parquet --format trec --output out.trec", "--tag other", 4),
    "export msmarco": ("export one.parquet --format msmarco --output out.tsv", "--hits 1", 4),
    "export dpr": ("export one.parquet --format dpr --collection tiny --split test --output out.json", "--hits 1", 4),
    "export sentence-transformers": ("export bert-2 --format sentence-transformers --output out", "", 2),
    "export pyserini": ("export dense --format pyserini --output out", "", 2),
    "mine-negatives": (INPUTS[4].replace("train.parquet", "out.parquet"), "--seed 7", 1),
    "label": ("label tiny --index bm25 --max-queries 6 --threads 1 --output out", "--seed 7", 1),
    "encode": ("encode tiny --model bert --shard-size 4 --threads 1 --output out", "--vector-dtype float16", 2),
    "encode (queries)": ("encode tiny --split test --model bert --threads 1 --output out", "--dtype bf16", 2),
    "encode (index)": ("encode dense --index-type hnsw --threads 1 --output out", "--M 8", 1),
    "encode (vectors)": ("encode tiny --from-vectors vectors.npy --threads 1 --output out", "--index-type sq8", 1),
    "append": ("append bm25 new.parquet --threads 1 --output out", "--replace", 1),
    "append (dense)": ("append dense new.parquet --threads 1 --output out", "--replace", 2),
    "delete": ("delete dense --ids gone.txt --threads 1 --output out", "", 2),
    "combine": ("combine bert bert-2 --output out", "--weight 2", 2),
    "train-dense": (f"train-dense train.parquet {TRAIN} --output out", "--seed 7", 2),
    "train-lambda": (f"train-lambda tiny --labels labels {STUDENT} --output out", "--seed 7", 1),
    "distill-lite": (f"distill-lite train.parquet --teacher bert-2 --dim 4 {STUDENT} --output out", "--seed 7", 1),
    "pretrain": (f"pretrain tiny {STUDENT} --output out", "--seed 7", 1),
    "train-reranker": (INPUTS[-1].replace("--output reranker", "--output out"), "--seed 7", 1),
    "rerank": (f"{RERANK} --top-k 3 --output out.parquet", "--max-length 40", 2),
    "rerank (depths)": (f"{RERANK} --depths 1,2 --output out", "--max-length 40", 2),
}  # fmt: skip
MODES = (
    "kill before", "kill inside", "kill after", "no space", "input/output error", "kill at a moment", "SIGTERM",
    "file size limit",
)  # fmt: skip
FULL_DISK = "full disk"  # needs a small disk of its own
SMALLEST = 1024  # bytes of a limited file; the messages must fit
REPORTED = 25  # attempts between two reports


class Faulty(disk.Disk):
    """Counts the operations; kills the process or fails at one of them."""

    def __init__(self, mode: str = "", number: int = 0):
        self.mode, self.number, self.count = mode, number, 0

    def _step(self) -> bool:
        """Count an operation; return whether the process dies after it."""
        self.count += 1
        if self.count != self.number:
            return False
        if self.mode == "kill before":
            os.kill(os.getpid(), signal.SIGKILL)
        code = {"no space": errno.ENOSPC, "input/output error": errno.EIO}.get(self.mode)
        if code is not None:
            raise OSError(code, os.strerror(code))
        return True

    def _after(self, chosen: bool) -> None:
        if chosen and self.mode in ("kill inside", "kill after"):
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, file: io.FileIO, data: memoryview) -> int:
        chosen = self._step()
        if chosen and self.mode == "kill inside":
            data = data[: len(data) // 2]
        done = super().write(file, data)
        self._after(chosen)
        return done

    def write_by_library(self, path: Path) -> None:
        self._after(self._step())

    def rename(self, source: Path, target: Path) -> None:
        chosen = self._step()
        super().rename(source, target)
        self._after(chosen)

    def exchange(self, first: Path, second: Path) -> bool:
        chosen = self._step()
        done = super().exchange(first, second)
        self._after(chosen)
        return done

    def sync(self, descriptor: int) -> None:
        chosen = self._step()
        super().sync(descriptor)
        self._after(chosen)

    def link(self, source: Path, target: Path) -> None:
        chosen = self._step()
        super().link(source, target)
        self._after(chosen)


@dataclass
class Ended:
    """The end of a process: exit code (negative: signal), lines on stderr, operations on the disk, seconds."""

    code: int
    lines: list[str]
    operations: int
    seconds: float


def run(words: list[str], device: Faulty, stop: tuple[float, int] | None = None, limit: int | None = None) -> Ended:
    """Run one command in a forked process; `stop` sends a signal after some seconds, `limit` is the size of a file."""
    with tempfile.NamedTemporaryFile() as err, tempfile.NamedTemporaryFile() as count:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            _command(words, device, err.name, count.name)
        if stop is not None:
            time.sleep(stop[0])
            os.kill(child, stop[1])
        _, status = os.waitpid(child, 0)
        lines = Path(err.name).read_text("utf-8", "replace").splitlines()
        operations = int(Path(count.name).read_text() or 0)
        return Ended(os.waitstatus_to_exitcode(status), lines, operations, time.monotonic() - started)


def _command(words: list[str], device: Faulty, err: str, count: str) -> None:
    os.dup2(os.open(err, os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    disk.device = device
    sys.argv = ["hybrid", *words]
    code = 70
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        Path(count).write_text(str(device.count))
        sys.stderr.flush()
        os._exit(code)


def bytes_of(path: Path) -> dict[str, bytes] | None:
    """Return all files of an output except parts that differ between equal runs: durations, Lucene's random ids."""
    if path.is_file() and path.parent.name == "inspect":  # latencies differ; a complete file has its footer
        footer = pq.read_metadata(path)
        return {"": f"{footer.num_rows} rows of {footer.schema.names}".encode()}
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.exists():
        return None
    files = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    kept = {name for name in files if name.name != artifacts.MANIFEST and name.parts[0] != "lucene"}
    return {str(name): files[name].read_bytes() for name in kept}


def clear(path: Path) -> None:
    for each in [path, *path.parent.glob(f".{path.name}.*")]:
        shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)


@dataclass
class Case:
    """A command with the results of uninterrupted runs."""

    words: list[str]
    older: list[str] | None
    output: Path
    whole: dict[str, bytes] = field(default_factory=dict)
    old: dict[str, bytes] | None = None
    plain: Ended | None = None
    replaced: Ended | None = None

    def measure(self) -> None:
        """Run the command without faults, with and without an older output."""
        clear(self.output)
        self.plain = must(self.words)
        self.whole = bytes_of(self.output) or {}
        if self.older is not None:
            clear(self.output)
            must(self.older)
            self.old = bytes_of(self.output)
            self.replaced = must([*self.words, "--overwrite"])
            assert bytes_of(self.output) == self.whole, f"{self.words}: a replacement has other bytes"


def must(words: list[str]) -> Ended:
    """Run a command without faults."""
    done = run(words, Faulty())
    assert done.code == 0, f"{' '.join(words)}: {done}"
    return done


def attempt(case: Case, mode: str, draw: random.Random) -> str:
    """Disturb one run of a command; return its end, or raise AssertionError."""
    clear(case.output)
    words = case.words
    usual = case.plain
    before = None
    if case.older is not None and draw.random() < 0.5:
        must(case.older)
        words, usual, before = [*case.words, "--overwrite"], case.replaced, case.old
    assert usual is not None
    if mode in ("kill at a moment", "SIGTERM"):
        number = signal.SIGKILL if mode == "kill at a moment" else signal.SIGTERM
        ended = run(words, Faulty(), (draw.random() * usual.seconds, number))
    elif mode == "file size limit":
        largest = max(map(len, case.whole.values()), default=0)
        ended = run(words, Faulty(), limit=draw.randint(SMALLEST, max(SMALLEST, largest)))
    elif mode == FULL_DISK:
        with filled(case.output.parent, draw.randint(0, 2 * sum(map(len, case.whole.values())))):
            ended = run(words, Faulty())
    else:
        ended = run(words, Faulty(mode, draw.randint(1, max(1, usual.operations))))
    check_end(ended, mode)
    left = bytes_of(case.output)
    if not case.output.is_dir() or (case.output / artifacts.MANIFEST).exists() or left is None:
        assert left in (before, case.whole), "the output is neither the old one nor the new one"
    check_names(case.output)
    must(words)
    assert bytes_of(case.output) == case.whole, "a repeated command writes other bytes"
    hidden = [path.name for path in case.output.parent.glob(".*")]
    assert not hidden, f"remaining files: {hidden}"
    return {0: "finished", 1: "error", 143: "SIGTERM"}.get(ended.code, "killed")


@contextmanager
def filled(folder: Path, left: int) -> Iterator[None]:
    """Fill the disk of a folder except for some bytes while the block runs."""
    disk_ = os.statvfs(folder)
    filler = folder.parent / "filler"
    try:
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, disk_.f_bavail * disk_.f_frsize - left))
        yield
    finally:
        filler.unlink()


def check_end(ended: Ended, mode: str) -> None:
    """Check exit code and message of a disturbed command."""
    messages = [line for line in ended.lines if line.startswith("hybrid: ")]
    assert "Traceback" not in "".join(ended.lines), ended
    if ended.code in (1, 143):
        assert len(messages) == 1, ended
        assert "a bug in hybrid" not in messages[0], ended
        return
    expected = -signal.SIGTERM if mode == "SIGTERM" else -signal.SIGKILL  # SIGTERM before the command has started
    assert ended.code in (0, expected), ended


def check_names(output: Path) -> None:
    """Check that a folder under its final name is complete."""
    if output.is_dir() and (output / artifacts.MANIFEST).exists():
        manifest = artifacts.read_manifest(output)
        assert list(artifacts.damage(output, manifest)) == []


def prepare(folder: Path) -> None:
    """Write the inputs of all stages into the working directory."""
    write_tiny_source(folder)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _tiny_bert(Path("bert"))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the model was not written"
    for command in INPUTS:
        must(command.split())
    must(f"train-dense train.parquet {TRAIN} --output bert-2".split())
    count = artifacts.row_count(collection.corpus_path(Path("tiny")))
    corpus = pq.read_table(collection.corpus_path(Path("tiny")))
    docids = corpus["docid"].to_pylist()
    pq.write_table(corpus.set_column(0, "docid", [[f"new {docid}" for docid in docids]]), "new.parquet")
    Path("gone.txt").write_text("".join(f"{docid}\n" for docid in docids[3:6]))
    np.save("vectors.npy", np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32))


def _tiny_bert(folder: Path) -> None:
    from hybrid_cli.encoders.models import resolve

    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve("minilm"))
    torch.manual_seed(0)
    shape = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def cases(names: list[str]) -> dict[str, Case]:
    """Return the chosen stages; each writes into its own folder."""
    found = {}
    for name in names:
        command, older, _ = STAGES[name]
        words = command.split()
        place = Path("outputs") / name.replace(" ", "-")
        place.mkdir(parents=True)
        output = place / words[-1]
        words = [*words[:-1], str(output)]
        found[name] = Case(words, [*words[:-2], *older.split(), *words[-2:]] if older else None, output)
        if name == "index-bm25 (parameters)":
            found[name].older = None
    return found


def import_stages() -> None:
    """Import every stage, so that a forked process starts at once."""
    from importlib import import_module

    for kind in COMMANDS:
        import_module(f"hybrid_cli.stages.{kind.command.split()[0].replace('-', '_')}")


def attack(
    numbers: range,
    seed: int,
    names: list[str],
    say: Callable[[str], None],
    seconds: float = math.inf,
    modes: Sequence[str] = MODES,
) -> int:
    """Make the attempts of these numbers, fewer if `seconds` end first; return the number of failed checks.

    The draws of an attempt depend only on the seed and its number.
    """
    end = time.monotonic() + seconds
    known = cases(names)
    weights = [STAGES[name][2] for name in names]
    endings: Counter[str] = Counter()
    failures = 0

    def report() -> None:
        counted = ", ".join(f"{count} {word}" for word, count in sorted(endings.items()))
        say(f"{sum(endings.values()) + failures} attempts: {counted}; {failures} failed checks")

    for number in numbers:
        if time.monotonic() > end:
            break
        if number > numbers[0] and not (number - numbers[0]) % REPORTED:
            report()
        draw = random.Random(f"{seed} {number}")
        name = draw.choices(names, weights)[0]
        mode, case = draw.choice(modes), known[name]
        if case.plain is None:
            case.measure()
        try:
            endings[attempt(case, mode, draw)] += 1
        except AssertionError as error:
            failures += 1
            say(f"{number}: {name}, {mode}: {error}")
    report()
    return failures


def cli() -> None:
    """Parse the arguments and attack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first attempt, to continue a run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after the attempt that exceeds this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stages", default=",".join(name for name in STAGES if STAGES[name][2]))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--folder", type=Path, help="parent of the working directory")
    given = parser.parse_args()
    import_stages()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        os.chdir(folder)
        prepare(Path(folder))
        numbers, modes = range(given.first, given.kills), given.modes.split(",")
        failures = attack(numbers, given.seed, given.stages.split(","), console.result, 60 * given.minutes, modes)
        os.chdir("/")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    cli()
