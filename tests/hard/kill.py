"""Disturb every stage at its writes, reads, renames, syncs and at random, and check the remaining files.

    python tests/hard/kill.py --kills 1000 --seed 1

Each attempt runs one command in a forked process and disturbs it as a mode of modes.py says: the process is killed, an
operation on the disk fails or does half of its work, the clock goes back, another user has planted files, or an
input is replaced. Then

- the output has its old content, no content, or the new content;
- an error is reported in one line, not as a bug;
- the same command succeeds, writes the bytes of an uninterrupted run, and leaves no other files.

The parent process only imports: no thread runs when it forks.
"""

import argparse
import atexit
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from cases import Case, bytes_of, cases, clear, import_stages, must, prepare  # noqa: E402
from faults import LIBRARY, Ended, compiled  # noqa: E402
from kill_stages import STAGES  # noqa: E402
from modes import CALLS, FULL_DISK, MODES, Attempt, places  # noqa: E402

from hybrid_cli import artifacts, console, storage  # noqa: E402

REFUSED = ("input replaced", "open fails", "read fails")  # libraries name their own reason for these errors
REPORTED = 25  # attempts between two reports
UNHURT, FAILED = "finished", "failed"  # ends of attempts: the command ended as an undisturbed one; a check failed


def attempt(case: Case, mode: str, draw: random.Random, number: int = 0) -> str:
    if case.plain is None:
        case.measure()
    assert case.plain is not None
    clear(case.output)
    given, before = Attempt(case, case.words, case.plain, draw, number), None
    if mode == "input replaced":
        given.choose_input()
    if case.older is not None and case.replaced is not None and draw.random() < 0.5 and not number:
        must(case.older)
        given.words, given.usual, before = [*case.words, "--overwrite"], case.replaced, case.old
    ended = MODES[mode](given)
    check_end(ended, mode)
    left = bytes_of(case.output)
    if case.grows and left is not None:
        assert case.whole[""].startswith(left[""]), "the output is not a part of the whole one"
    elif not case.output.is_dir() or (case.output / storage.MANIFEST).exists() or left is None:
        assert left in (before, case.whole, *given.results), "the output is neither the old one nor the new one"
    check_names(case.output)
    if ended.code == 0 and not case.grows:
        assert left in (case.whole, *given.results), "the output is not the new one"
    if left in given.results:
        clear(case.output)
    must(given.words)
    assert bytes_of(case.output) == case.whole, f"a repeated command writes other bytes: {differing(case)}"
    hidden = [path.name for path in case.output.parent.glob(".*")]
    assert not hidden, f"remaining files: {hidden}"
    return {0: UNHURT, 1: "error", 2: "refused", 143: "SIGTERM"}.get(ended.code, "killed")


def differing(case: Case) -> list[str]:
    """Return the files of an output that differ from those of an uninterrupted run."""
    left = bytes_of(case.output) or {}
    return sorted(name for name in {*left, *case.whole} if left.get(name) != case.whole.get(name))


def check_end(ended: Ended, mode: str) -> None:
    messages = [line for line in ended.lines if line.startswith("hybrid: ")]
    assert "Traceback" not in "".join(ended.lines), ended
    refused = ended.code == 2 and mode in REFUSED
    if ended.code in (1, 143) or refused:
        assert len(messages) == 1, ended
        assert "a bug in hybrid" not in messages[0], ended
        return
    expected = -signal.SIGTERM if mode == "SIGTERM" else -signal.SIGKILL  # SIGTERM before the command has started
    assert ended.code in (0, expected), ended


def check_names(output: Path) -> None:
    if output.is_dir() and (output / storage.MANIFEST).exists():
        manifest = artifacts.read_manifest(output)
        assert list(storage.damage(output, manifest)) == []


Plan = Iterable[tuple[int, str, str, int]]  # number of the attempt, stage, mode, number of the operation


def drawn(numbers: range, seed: int, names: Sequence[str], modes: Sequence[str]) -> Iterator[tuple[int, str, str, int]]:
    """Yield random attempts, of all modes in turn; the draws of an attempt depend only on the seed and its number."""
    for number in numbers:
        draw, mode = random.Random(f"{seed} {number}"), modes[number % len(modes)]
        yield number, draw.choices(names, [STAGES[name][2] or 1 for name in names])[0], mode, 0


def every(known: dict[str, Case], modes: Sequence[str]) -> Iterator[tuple[int, str, str, int]]:
    number = 0
    for name, case in known.items():
        case.measure()
        assert case.plain is not None
        for mode in modes:
            for place in range(1, places(mode, case.plain) + 1):
                yield number, name, mode, place
                number += 1


@dataclass
class Counts:
    """The ends of all attempts, by mode and stage."""

    ends: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)

    def add(self, mode: str, stage: str, end: str) -> None:
        self.ends.setdefault((mode, stage), Counter())[end] += 1

    def sum(self, mode: str = "", stage: str = "") -> Counter[str]:
        return sum(
            (ends for key, ends in self.ends.items() if mode in ("", key[0]) and stage in ("", key[1])), Counter()
        )

    def line(self) -> str:
        ends = self.sum()
        words = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()) if end != FAILED)
        return f"{ends.total()} attempts: {words}; {ends[FAILED]} failed checks"

    def table(self) -> list[str]:
        """Return one line for each mode, stage and pair: attempts, hits (ended by the disturbance), failed checks."""
        modes, stages = ({key[at]: None for key in self.ends} for at in (0, 1))
        parts = [(f"{mode}\tall", self.sum(mode=mode)) for mode in modes]
        parts += [(f"all\t{stage}", self.sum(stage=stage)) for stage in stages]
        parts += [("\t".join(key), ends) for key, ends in self.ends.items()]
        rows = [f"{name}\t{ends.total()}\t{ends.total() - ends[UNHURT]}\t{ends[FAILED]}" for name, ends in parts]
        return ["mode\tstage\tattempts\thits\tfailed checks", *rows]


def attack(
    plan: Plan, seed: int, known: dict[str, Case], say: Callable[[str], None], seconds: float = math.inf
) -> Counts:
    end, counts = time.monotonic() + seconds, Counts()
    for done, (number, name, mode, place) in enumerate(plan):
        if time.monotonic() > end:
            break
        if done and not done % REPORTED:
            say(counts.line())
        try:
            counts.add(mode, name, attempt(known[name], mode, random.Random(f"{seed} {number} {place}"), place))
        except (AssertionError, OSError) as error:
            counts.add(mode, name, FAILED)
            say(f"{number}: {name}, {mode}{f' {place}' if place else ''}: {error}")
            if not place:
                say(f"    --seed {seed} --first {number} --kills {number + 1} --stages {name!r} --modes {mode!r}")
    say(counts.line())
    return counts


def load_calls() -> bool:
    """Start this program again with the library that disturbs system calls; return whether that is possible."""
    if LIBRARY not in os.environ:
        folder = Path(tempfile.mkdtemp())
        library = compiled(folder)
        if library is not None:
            variables = {**os.environ, LIBRARY: str(library), "LD_PRELOAD": str(library)}
            os.execve(sys.executable, [sys.executable, __file__, *sys.argv[1:]], variables)
        folder.rmdir()
        return False
    atexit.register(shutil.rmtree, Path(os.environ[LIBRARY]).parent)
    return True


def cli() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first attempt, to continue a run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after the attempt that exceeds this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stages", default=",".join(name for name in STAGES if STAGES[name][2]))
    parser.add_argument("--modes", default="", help=f"list, or all; without: all but `{FULL_DISK}`")
    parser.add_argument("--every", action="store_true", help="disturb each operation once, in place of random ones")
    parser.add_argument("--folder", type=Path, help="parent of the working directory")
    given = parser.parse_args()
    possible = MODES if load_calls() else [mode for mode in MODES if mode not in CALLS]
    modes = [mode for mode in MODES if mode != FULL_DISK] if not given.modes else given.modes.split(",")
    modes = [mode for mode in (MODES if given.modes == "all" else modes) if mode in possible]
    import_stages()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        names = given.stages.split(",")
        os.chdir(folder)
        prepare(Path(folder), names, versions="input replaced" in modes)
        known = cases(names)
        plan = every(known, modes) if given.every else drawn(range(given.first, given.kills), given.seed, names, modes)
        counts = attack(plan, given.seed, known, console.result, 60 * given.minutes)
        os.chdir("/")
    for line in counts.table():
        console.result(line)
    raise SystemExit(counts.sum()[FAILED] > 0)


if __name__ == "__main__":
    cli()
