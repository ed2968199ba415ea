"""Documents per second: `TransformerEncoder.encode_documents` and `SentenceTransformer.encode`.

Model (minilm), passages (docstrings of the standard library) and maximum length (128 word pieces) are the same. Batches
are the defaults of the tools: 32 passages, and the 1,024 tokens of `hybrid encode` on a CPU; sentence-transformers also
runs with 8 passages, about as many tokens. The tools alternate, so that a busy period of the machine affects both; the
ratio is the median over rounds.

    python benchmarks/encode.py --passages 600 --rounds 5
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from ratios import Row, in_turns, ratios
from sentence_transformers import SentenceTransformer

from hybrid_cli.encoders.models import resolve
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.indexes.shards import CPU_BATCH_TOKENS

MAX_LENGTH = 128
BATCH, SMALL_BATCH = 32, 8


def docstrings() -> Iterator[str]:
    """Return the docstrings of modules, classes and functions of the standard library, in the order of the files."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8", errors="replace"))):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text and len(text) > 80:
                yield text


def main(words: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args(words)
    torch.set_num_threads(arguments.threads)
    every = list(docstrings())
    texts = every[:: max(1, len(every) // arguments.passages)][: arguments.passages]
    titles = [""] * len(texts)

    theirs = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        theirs[name] = SentenceTransformer(str(resolve("minilm")), device="cpu", model_kwargs={"dtype": dtype})
        theirs[name].max_seq_length = MAX_LENGTH
    ours = {
        name: TransformerEncoder.load("minilm", device="cpu", dtype=name, doc_max_len=MAX_LENGTH)
        for name in ("fp32", "bf16")
    }
    ways: dict[str, Callable[[], np.ndarray]] = {
        "sentence-transformers fp32": lambda: theirs["fp32"].encode(texts, batch_size=BATCH),
        "sentence-transformers bf16": lambda: theirs["bf16"].encode(texts, batch_size=BATCH),
        "sentence-transformers bf16, batches of 8": lambda: theirs["bf16"].encode(texts, batch_size=SMALL_BATCH),
        "hybrid fp32": lambda: ours["fp32"].encode_documents(titles, texts, CPU_BATCH_TOKENS),
        "hybrid bf16": lambda: ours["bf16"].encode_documents(titles, texts, CPU_BATCH_TOKENS),
    }
    times, vectors = in_turns(ways, arguments.rounds)
    base = "sentence-transformers fp32"
    print(f"{len(texts)} passages, {torch.get_num_threads()} threads, {arguments.rounds} rounds, medians")
    for name in ways:
        ratio = statistics.median(ratios(times[base], times[name]))
        norms = np.linalg.norm(vectors[base], axis=1) * np.linalg.norm(vectors[name], axis=1)
        cosines = (vectors[base] * vectors[name]).sum(1) / norms
        print(
            f"{name:40} {len(texts) / statistics.median(times[name]):7.1f} documents/s {ratio:6.2f} x"
            f"   cosine to {base}: mean {cosines.mean():.5f}, least {cosines.min():.5f}"
        )
    pairs = [
        ("hybrid fp32", base, "1.0"),
        ("hybrid bf16", base, "1.8"),
        ("hybrid bf16", "sentence-transformers bf16", "1.2"),
        ("hybrid bf16", "sentence-transformers bf16, batches of 8", ""),
    ]
    task = f"encode, MiniLM, {len(texts)} passages; "
    return [Row(task + a, b, ratios(times[b], times[a]), goal, "encode.py") for a, b, goal in pairs]


if __name__ == "__main__":
    main()
