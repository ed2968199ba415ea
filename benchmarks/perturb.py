"""Speed of `hybrid perturb` with the five attacks of LITE that need no model, on questions of random words.

The time of one process covers the start of Python and all work; the best of `--repeat` calls counts.

    python benchmarks/perturb.py [--queries 10000] [--words 9] [--repeat 3]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from ratios import measured

HYBRID = "from hybrid_cli.cli import main; main()"
ATTACKS = "char-swap,word-deletion,synonym-replacement,word-order-swap,synonym-insertion"
SMALL_WORDS = ("the", "of", "in", "is", "a", "what", "who", "how")


def write_questions(path: Path, count: int, length: int) -> None:
    """Write questions: a third of the words are function words, the others have synonyms."""
    from hybrid_cli.perturbations.synonyms import OWN

    words = sorted({word for word in OWN.read_text("utf-8").replace("\t", "\n").splitlines() if word.isalpha()})
    chance = random.Random(42)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            size = chance.randint(length - 3, length + 3)
            text = " ".join(chance.choice(SMALL_WORDS if chance.random() < 1 / 3 else words) for _ in range(size))
            file.write(f"q{number}\t{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--words", type=int, default=9)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        questions, output = Path(scratch, "questions.tsv"), Path(scratch, "attacked")
        write_questions(questions, options.queries, options.words)
        arguments = ["perturb", str(questions), "--attack", ATTACKS, "--output", str(output), "--overwrite"]
        wall, processor, memory, _ = min(
            measured([sys.executable, "-c", HYBRID, *arguments]) for _ in range(options.repeat)
        )
        print(
            f"{options.queries:,} questions, five attacks: {wall:.1f} s, {processor:.1f} s processor, {memory:.2f} GB"
        )


if __name__ == "__main__":
    main()
