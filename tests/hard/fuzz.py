"""Feed arbitrary and damaged input to every reader.

    python tests/hard/fuzz.py --seconds 600 --seed 1

An input is a valid file, or a valid file after a few random edits. A reader

- returns the values that were written, if the file is valid;
- or returns values that are equal after writing and reading again;
- or refuses the file with a message in one line (`HybridError`).

Any other exception is a failure; hypothesis then prints the smallest input.
"""

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fuzz_readers  # noqa: F401  registers the readers
from fuzz_inputs import COUNTS, TARGETS
from hypothesis import HealthCheck, Phase, given, seed, settings

from hybrid_cli import console


def attack(name: str, number: int, rules: settings) -> None:
    strategy, check = TARGETS[name]

    @seed(number)
    @rules
    @given(strategy)
    def run(drawn: tuple[Any, ...]) -> None:
        check(*drawn)

    run()


def rules_of(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--examples", type=int, default=100, help="examples of each reader in a round")
    parser.add_argument("--readers", help="names, separated by commas; all by default")
    options = parser.parse_args()
    console.set_quiet(True)
    left = list(TARGETS) if options.readers is None else options.readers.split(",")
    end, number, failed = time.monotonic() + options.seconds, options.seed, []
    totals: dict[str, Counter[str]] = {name: Counter() for name in left}
    while left and time.monotonic() < end:
        for name in list(left):
            COUNTS.clear()
            try:
                attack(name, number, rules_of(options.examples))
            except Exception:
                traceback.print_exc()
                print(f"{name}: failed; repeat with --readers {name} --seed {number}", flush=True)
                failed.append(name)
                left.remove(name)
            totals[name] += COUNTS
            if time.monotonic() >= end:
                break
        number += 1
    for name, count in totals.items():
        print(f"{name:24} {count['accepted']:9,} accepted {count['refused']:9,} refused")
    total = sum(map(Counter.total, totals.values()))
    print(f"{total:,} inputs; seeds {options.seed} to {number}; failed: {', '.join(failed) or 'none'}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
