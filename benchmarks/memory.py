"""Peak memory of each stage for growing collections of random text, and its growth per document.

python benchmarks/memory.py [--documents 20000,200000] [--csv FILE] [--plot FILE]

Words follow Zipf's law, lengths of documents a lognormal distribution with a median of 50 words. Vectors of documents
are random, with MiniLM's 384 dimensions; the encoder of queries has one layer and reads 8 tokens. Memory is what a
process cannot share or drop: anonymous pages, without memory-mapped files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from hybrid_cli.encoders.models import resolve

WORDS, EXPONENT, SHIFT = 1_000_000, 1.07, 2.7  # of the Zipf-Mandelbrot distribution
MEDIAN_LENGTH, SPREAD, QUERIES = 50, 0.45, 1000
SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
STAGES = {  # name -> arguments; {n} is the folder of a size
    "index-bm25": "index-bm25 {n}/data --threads 1 --output {n}/bm25",
    "encode, flat": ("encode {n}/data --from-vectors {n}/vectors.npy --model {model} --threads 1 --output {n}/flat"),
    "encode, sq8": "encode {n}/flat --index-type sq8 --threads 1 --output {n}/sq8",
    "search, BM25": "search {n}/data --split train --index {n}/bm25 --threads 1 --output {n}/bm25.parquet",
    "search, flat": "search {n}/data --split train --index {n}/flat --threads 1 --output {n}/flat.parquet",
    "search, sq8": "search {n}/data --split train --index {n}/sq8 --threads 1 --output {n}/sq8.parquet",
    "mine-negatives": "mine-negatives {n}/data --split train --index {n}/bm25 --threads 1 --output {n}/train.parquet",
    "label": "label {n}/data --index {n}/bm25 --max-queries 20000 --threads 1 --output {n}/labels",
    "train-dense": (
        "train-dense {n}/train.parquet --model {model} --loss nll --max-steps 3 --threads 1 --output {n}/dense"
    ),
    "train-lambda": (
        "train-lambda {n}/data --labels {n}/labels --index {n}/bm25 --loss listwise --model {model} --max-steps 3 "
        "--threads 1 --output {n}/lambda"
    ),
    "pretrain": "pretrain {n}/data --model {model} --max-steps 3 --max-length 16 --threads 1 --output {n}/pretrained",
}


def word(rank: int) -> str:
    """Return the pseudo-word of a rank; frequent words are shorter."""
    rank, parts = rank + len(SYLLABLES), []
    while rank:
        rank, syllable = divmod(rank, len(SYLLABLES))
        parts.append(SYLLABLES[syllable])
    return "".join(parts)


def texts(count: int, seed: int) -> Iterator[list[str]]:
    """Yield blocks of `count` texts in all."""
    rng = np.random.default_rng(seed)
    words = np.array([word(rank) for rank in range(WORDS)])
    shares = np.cumsum((np.arange(WORDS) + SHIFT) ** -EXPONENT)
    for begin in range(0, count, 10_000):
        size = min(10_000, count - begin)
        lengths = np.maximum(3, rng.lognormal(np.log(MEDIAN_LENGTH), SPREAD, size)).astype(int)
        ranks = np.searchsorted(shares, rng.random(lengths.sum()) * shares[-1])
        yield [" ".join(part) for part in np.split(words[ranks], np.cumsum(lengths)[:-1])]


def write_collection(folder: Path, count: int) -> None:
    """Write a collection whose queries are the first words of documents."""
    folder.mkdir(parents=True)
    schema = pa.schema([(name, pa.string()) for name in ("docid", "title", "text")])
    queries: list[str] = []
    with pq.ParquetWriter(folder / "corpus.parquet", schema) as writer:
        row = 0
        for block in texts(count, 0):
            ids = [f"document-{row + place}" for place in range(len(block))]
            writer.write_table(pa.table({"docid": ids, "title": [""] * len(block), "text": block}, schema=schema))
            queries += [" ".join(text.split()[:6]) for text in block[:QUERIES]]
            row += len(block)
    qids = [f"q{number}" for number in range(QUERIES)]
    pl.DataFrame({"qid": qids, "text": queries[:QUERIES]}).write_parquet(folder / "queries.train.parquet")
    docids = [f"document-{row}" for row in range(QUERIES)]
    pl.DataFrame({"qid": qids, "docid": docids, "relevance": 1}).write_parquet(folder / "qrels.train.parquet")


def write_vectors(file: Path, count: int) -> None:
    """Write random vectors of documents."""
    values = np.lib.format.open_memmap(file, "w+", np.float32, (count, 384))
    rng = np.random.default_rng(0)
    for begin in range(0, count, 10_000):
        part = values[begin : begin + 10_000]
        rng.standard_normal(out=part, dtype=np.float32)


def write_model(folder: Path) -> None:
    """Write an encoder that computes little."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"), model_max_length=16)
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(tokenizer), hidden_size=384, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16
    )
    BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')


def peak(words: Sequence[str]) -> tuple[int, float]:
    """Run hybrid; return the largest anonymous memory of the process in bytes, and the seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    start, largest = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, "-m", "hybrid_cli", *words, "--quiet"], env=environment)
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:
            break
        found = [int(line.split()[1]) for line in status if line.startswith("RssAnon")]
        largest = max([largest, *found])
        time.sleep(0.02)
    if process.wait():
        raise SystemExit(f"hybrid {' '.join(words)}: exit code {process.returncode}")
    return largest * 1024, time.monotonic() - start


def plot(rows: pl.DataFrame, file: Path) -> None:
    """Draw the memory of each stage over the number of documents."""
    chart = alt.Chart(rows.with_columns(mib=pl.col("bytes") / 2**20)).mark_line(point=True)
    drawn = chart.encode(
        alt.X("documents:Q", scale=alt.Scale(type="log"), title="documents"),
        alt.Y("mib:Q", scale=alt.Scale(type="log"), title="peak memory (MiB)"),
        alt.Color("stage:N", sort=None),
    )
    drawn.properties(width=420, height=300).save(str(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", default="20000,200000")
    parser.add_argument("--stages", default=";".join(STAGES), help="names, separated by semicolons")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    sizes, rows = [int(size) for size in arguments.documents.split(",")], []
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "model")
        for size in sizes:
            place = Path(folder) / str(size)
            write_collection(place / "data", size)
            write_vectors(place / "vectors.npy", size)
            for stage in arguments.stages.split(";"):
                command = STAGES[stage]
                found, seconds = peak(command.format(n=place, model=Path(folder) / "model").split())
                rows.append({"stage": stage, "documents": size, "bytes": found, "seconds": round(seconds, 1)})
                print(f"{stage:20} {size:>10,} {found / 2**20:8,.0f} MiB {seconds:6.0f} s", flush=True)
                if arguments.csv:
                    pl.DataFrame(rows).write_csv(arguments.csv)
    table = pl.DataFrame(rows)
    for (stage,), part in table.group_by("stage", maintain_order=True):
        first, last = part.row(0, named=True), part.row(-1, named=True)
        growth = (last["bytes"] - first["bytes"]) / max(1, last["documents"] - first["documents"])
        print(f"{stage:20} {growth:8.1f} bytes per document")
    if arguments.plot:
        plot(table, arguments.plot)


if __name__ == "__main__":
    main()
