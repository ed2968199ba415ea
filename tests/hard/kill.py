"""Kill and fail every stage at its writes, renames and syncs, and check the remaining files.

    python tests/hard/kill.py --kills 1000 --seed 1

Each attempt runs one command in a forked process. The process is killed before, in or after one operation on the disk,
or at a random moment; or the operation fails (no space, input/output error); or the process gets SIGTERM; or the size
of its files is limited (RLIMIT_FSIZE); or with `--modes all` the disk of the working directory is full. Then

- the output has its old content, no content, or the new content;
- an error is reported in one line, not as a bug;
- the same command succeeds, writes the bytes of an uninterrupted run, and leaves no other files.

The parent process only imports: no thread runs when it forks.
"""

from __future__ import annotations

import argparse
import math
import os
import random
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
from command import hybrid
from faults import STDIN, Ended, Faulty, run
from kill_stages import ANSWERS, GROWING, STAGES, inputs_of
from tiny_collection import write_tiny_source
from tiny_tokenizer import tiny_tokenizer

from hybrid_cli import artifacts, console
from hybrid_cli.collections import collection
from hybrid_cli.settings import COMMANDS

MODES = (
    "kill before", "kill inside", "kill after", "no space", "input/output error", "kill at a moment", "SIGTERM",
    "file size limit",
)  # fmt: skip
FULL_DISK = "full disk"  # needs a small disk of its own
SMALLEST = 1024  # bytes of a limited file; the messages must fit
REPORTED = 25  # attempts between two reports


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
    kept = {name for name in files if name.name != artifacts.MANIFEST and "lucene" not in name.parts}
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
    grows: bool = False
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
    if case.grows and left is not None:
        assert case.whole[""].startswith(left[""]), "the output is not a part of the whole one"
    elif not case.output.is_dir() or (case.output / artifacts.MANIFEST).exists() or left is None:
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


def prepare(folder: Path, names: Sequence[str]) -> None:
    """Write the inputs of stages into the working directory."""
    write_tiny_source(folder)
    Path(STDIN).write_text(ANSWERS)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _tiny_bert(Path("bert"))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the model was not written"
    for command in inputs_of(names):
        must(command.split())
    count = artifacts.row_count(collection.corpus_path(Path("tiny")))
    corpus = pq.read_table(collection.corpus_path(Path("tiny")))
    docids = corpus["docid"].to_pylist()
    pq.write_table(corpus.set_column(0, "docid", [[f"new {docid}" for docid in docids]]), "new.parquet")
    Path("gone.txt").write_text("".join(f"{docid}\n" for docid in docids[3:6]))
    np.save("vectors.npy", np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32))


def _tiny_bert(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
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
        found[name].grows = name in GROWING
    return found


def import_stages() -> None:
    """Import every stage and make the parser of the command line, so that a forked process starts at once."""
    from importlib import import_module

    for kind in COMMANDS:
        import_module(f"hybrid_cli.stages.{kind.command.split()[0].replace('-', '_')}")
    hybrid("--version")


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
    parser.add_argument("--modes", default=",".join(MODES), help="list, or all")
    parser.add_argument("--folder", type=Path, help="parent of the working directory")
    given = parser.parse_args()
    import_stages()
    names = given.stages.split(",")
    modes = (*MODES, FULL_DISK) if given.modes == "all" else given.modes.split(",")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        os.chdir(folder)
        prepare(Path(folder), names)
        numbers = range(given.first, given.kills)
        failures = attack(numbers, given.seed, names, console.result, 60 * given.minutes, modes)
        os.chdir("/")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    cli()
