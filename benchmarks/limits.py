"""The time of stages next to the least time that this machine needs for their bytes or products, on one thread.

    python benchmarks/limits.py [--vectors 50000] [--queries 256] [--rounds 5] [--parts kernels,runs]

The limits are measured in the same turns: the rate at which the memory is read (the sum of a large array), the rate at
which it is copied, and the rate of a product of fp32 matrices. A ratio of .5 means that the stage takes twice the time
of its limit. All times are CPU times, which depend less on other programs than wall times. The part `runs` has the
whole commands that read large runs, two of 7,000 queries and 1,000 hits over 200,000 documents; the limit is a copy of
the texts of their ids, ranks and scores, of all rows that a command reads and writes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from encode import MAX_LENGTH, docstrings
from joint import dense_index
from ratios import Row, in_turns

from hybrid_cli import storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.indexes.faiss import set_threads
from hybrid_cli.indexes.hybrid_search import HybridIndex
from hybrid_cli.indexes.shards import CPU_BATCH_TOKENS
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.keys import Bags
from hybrid_cli.storage import SCHEMAS, Kind

READ_BYTES, SIDE, DIM, HITS = 1 << 28, 1536, 384, 1000
MEMORY, COPY, PRODUCT = "reading the memory", "copying the memory", "matrix product in fp32"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
RUN_QUERIES, DOCUMENTS = 7000, 200_000
INDEXED, TERMS, LENGTH = 1_000_000, 20_000, 4  # of BM25, and terms of a query
COMMANDS = {  # command -> arguments, and rows read and written, in rows of a run
    "fuse --method minmax": (
        "fuse {0}/a.parquet {0}/b.parquet --method minmax --overwrite --output {0}/fused.parquet",
        3,
    ),
    "evaluate, four measures, two runs": (
        "evaluate --qrels {0}/data/qrels.train.parquet {0}/a.parquet {0}/b.parquet -m MRR@10,nDCG@10,R@100,R@1000",
        2,
    ),
    "mine-negatives, two runs": (
        "mine-negatives {0}/data --split train --sources run:{0}/a.parquet:4,run:{0}/b.parquet:4 --overwrite "
        "--output {0}/mined.parquet",
        4,
    ),
    "label --run --depth 1000": (
        "label {0}/data --split train --run {0}/a.parquet --depth 1000 --overwrite --output {0}/labels",
        3,
    ),
}


def main(words: Sequence[str] | None = None) -> list[Row]:
    """Print one line per stage, and return its distance to the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--passages", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="kernels,runs")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    set_threads(1)
    array, square = np.ones(READ_BYTES // 8), torch.randn(SIDE, SIDE)
    other = np.zeros_like(array)
    tasks: dict[str, Callable[[], Any]] = {
        MEMORY: array.sum,
        COPY: partial(np.copyto, other, array),
        PRODUCT: lambda: square @ square,
    }
    work: dict[str, tuple[str, float]] = {
        MEMORY: (MEMORY, READ_BYTES),
        COPY: (COPY, 2 * READ_BYTES),
        PRODUCT: (PRODUCT, 2 * SIDE**3),
    }

    def measured(name: str, limit: str, amount: float, task: Callable[[], Any]) -> None:
        tasks[name], work[name] = task, (limit, amount)

    with tempfile.TemporaryDirectory() as scratch:
        if "kernels" in options.parts.split(","):
            _kernels(Path(scratch), options, measured)
        if "runs" in options.parts.split(","):
            size = _write_runs(Path(scratch))
            for name, (words, times_rows) in COMMANDS.items():
                command = [sys.executable, "-m", "hybrid_cli", *words.format(scratch).split(), "--quiet"]
                task = partial(subprocess.run, command, check=True, env=ONE_THREAD, stdout=subprocess.DEVNULL)
                measured(name, COPY, times_rows * size, task)
        times, _ = in_turns(tasks, options.rounds, _cpu)
    rows = []
    for name, seconds in times.items():
        limit, amount = work[name]
        if name == limit:
            print(f"{name}: {amount / statistics.median(seconds) / 1e9:.1f} G{'FLOP' if limit == PRODUCT else 'B'}/s")
            continue
        least = [amount * rate / work[limit][1] for rate in times[limit]]
        shares = [a / b for a, b in zip(least, seconds, strict=True)]
        rows.append(Row(name, limit, shares, "", "limits.py"))
        print(rows[-1])
    return rows


def _kernels(folder: Path, options: argparse.Namespace, measured: Callable[..., None]) -> None:
    """Add the stages that search and encode."""
    docids = pl.Series("docid", [f"d{row:07}" for row in range(options.vectors)])
    index = dense_index(folder / "dense", docids, DIM)
    vectors = np.random.default_rng(1).standard_normal((options.queries, DIM)).astype(np.float32)
    size = f"{options.vectors:,} vectors of {DIM}"
    products, stored = 2.0 * options.queries * options.vectors * DIM, 4.0 * options.vectors * DIM
    measured(f"flat search, {size}, {options.queries} queries, {HITS:,} hits", PRODUCT, products,
             partial(index.hits, vectors, HITS))  # fmt: skip
    measured(f"flat search, {size}, 1 query", MEMORY, stored, partial(index.hits, vectors[:1], HITS))
    joint = HybridIndex((index,), (1.0,), threads=1)
    measured(f"search --exact, {size}, {options.queries} queries, {HITS:,} hits", PRODUCT, products,
             lambda: joint.hits(([vectors], None), HITS))  # fmt: skip
    for hits in (10, HITS):
        name, read, task = _bm25(options.queries, hits)
        measured(name, MEMORY, read, task)
    encoder, passages = (
        TransformerEncoder.load("minilm", device="cpu", dtype="fp32", doc_max_len=MAX_LENGTH),
        list(docstrings()),
    )
    passages = passages[:: max(1, len(passages) // options.passages)][: options.passages]
    measured(f"encode, MiniLM fp32, {len(passages)} passages", PRODUCT, _products(encoder, passages),
             lambda: encoder.encode_documents([""] * len(passages), passages, CPU_BATCH_TOKENS))  # fmt: skip


def _cpu() -> float:
    """Return the CPU seconds of this process and its children."""
    usage = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in usage)


def _write_runs(folder: Path) -> float:
    """Write two runs that share a third of their documents, and their collection; return the bytes of a run."""
    draws, place = np.random.default_rng(0), np.arange(HITS)
    starts = draws.integers(0, DOCUMENTS, (2, RUN_QUERIES, 1))
    even, odd = 2 * ((starts + 197 * place) % (DOCUMENTS // 2)) + np.array([0, 1])[:, None, None]
    ids = pl.Series([f"d{number}" for number in range(DOCUMENTS)])
    qids = pl.Series([f"{number}" for number in range(10**6, 10**6 + RUN_QUERIES)])
    queries = qids.gather(np.repeat(np.arange(RUN_QUERIES), HITS))
    tables = {}
    for name, documents in (("a", even), ("b", np.where(place % 3, odd, even))):
        scores = -np.sort(-draws.gamma(20.0, 1.0, documents.shape).astype(np.float32), axis=1)
        rank = pl.Series(np.tile(place + 1, RUN_QUERIES), dtype=pl.Int32)
        columns = {"qid": queries, "docid": ids.gather(documents.ravel()), "rank": rank, "score": scores.ravel()}
        tables[folder / f"{name}.parquet"] = Kind.RUN, pl.DataFrame(columns)
    judged = ids.gather(even[:, :: HITS // 3][:, :3].ravel())
    qrels = {"qid": qids.gather(np.repeat(np.arange(RUN_QUERIES), 3)), "docid": judged, "relevance": 1}
    (data := folder / "data").mkdir()
    tables[data / "qrels.train.parquet"] = Kind.QRELS, pl.DataFrame(qrels).cast({"relevance": pl.Int32})
    for path, (kind, table) in tables.items():
        storage.write_parquet(path, [table.to_arrow()], SCHEMAS[kind], Manifest(kind, "benchmark", {}, {}))
    pl.DataFrame({"qid": qids, "text": "question " + qids}).write_parquet(data / "queries.train.parquet")
    pl.DataFrame({"docid": ids, "title": "", "text": "text of " + ids}).write_parquet(data / "corpus.parquet")
    run = tables[folder / "a.parquet"][1]
    return float(run.select(pl.col("qid", "docid").str.len_bytes().sum()).sum_horizontal().item() + 8 * len(run))


def _bm25(queries: int, hits: int) -> tuple[str, float, Callable[[], object]]:
    """Return name, bytes of the postings of all terms, and search of random queries over random postings."""
    draws = np.random.default_rng(0)
    index = random_index(draws)
    terms = np.sort(draws.integers(20, 2000, (queries, LENGTH)), 1).ravel().astype(np.int32)
    bags = Bags(np.arange(0, len(terms) + 1, LENGTH), terms, np.ones(len(terms), np.float32))
    postings = index.impacts.postings
    read = postings.lows.itemsize + postings.tfs.itemsize
    name = f"BM25 search, {len(postings):,} postings, {queries} queries, {hits:,} hits"
    return name, float(read * postings.df[terms].sum()), partial(index.keys, bags, hits, 1)


def random_index(draws: np.random.Generator) -> LexicalIndex:
    """Return an index of random postings; the frequencies of its terms are Zipfian."""
    df = np.minimum(INDEXED // 3, 2 * INDEXED // (np.arange(TERMS) + 3)) + 5
    lists = [np.unique(draws.integers(0, INDEXED, count)).astype(np.int32) for count in df]
    rows, indptr = np.concatenate(lists), np.concatenate(([0], np.cumsum([len(each) for each in lists])))
    tfs = draws.geometric(0.7, len(rows)).astype(np.int32)
    lengths = np.bincount(rows, tfs, INDEXED).astype(np.int32)
    terms = pl.Series([f"{term:05d}" for term in range(TERMS)])
    docids = pl.Series("docid", [f"{row:07d}" for row in range(INDEXED)])
    return LexicalIndex(Impacts.of(Postings.of(terms, indptr, rows, tfs, lengths), 0.9, 0.4), docids)


def _products(encoder: TransformerEncoder, passages: Sequence[str]) -> float:
    """Return the operations of the matrix products for the tokens of texts, without padding."""
    tower = encoder.document_tower
    layers = [weight for name, weight in tower.backbone.named_parameters() if ".layer." in name and weight.ndim == 2]
    per_token = 2 * sum(weight.numel() for weight in layers)
    config: Any = tower.backbone.config
    width = config.hidden_size * config.num_hidden_layers
    lengths = map(len, tower.tokenize(list(passages), "document")[0])
    return float(sum(length * (per_token + 4 * length * width) for length in lengths))


if __name__ == "__main__":
    main()
