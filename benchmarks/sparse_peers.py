"""BMP and Seismic as peers of learned sparse search, through the wheels `bmp` and `pyseismic-lsr`: the same integers.

python benchmarks/sparse_peers.py INDEX... --queries FILE [--sample 300] [--terms 128] [--query-terms 32]

Documents and queries keep their largest weights: all three engines then have the same short vectors, and BMP's weights
fit 8 bits. Each engine uses one thread. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from ratios import in_turns
from scipy.sparse import csr_matrix

from hybrid_cli.artifacts.opening import open_lexical
from hybrid_cli.collections import collection as collections
from hybrid_cli.lexical.impacts import Impacts, Postings
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.keys import Bags, positions_of

HITS, RECALL = (10, 100, 1000), 0.95
BLOCKS = (16, 32, 64)  # documents of a block of BMP
CUTS, HEAPS = (2, 3, 4, 6, 8, 12, 16), (1.0, 0.9)  # of Seismic: terms of a query that choose lists; pruning of blocks


class Task(NamedTuple):
    """A search of all queries, and from its result to the documents of each query."""

    search: Callable[[], Any]
    documents: Callable[[Any], Iterator[list[int]]]


@dataclass(frozen=True)
class Vectors:
    """Documents [N, V] and queries [Q, V]: quantized weights."""

    documents: csr_matrix
    queries: csr_matrix

    @cached_property
    def scores(self) -> Any:
        """Exact scores of all pairs, [Q, N]."""
        return (self.queries @ self.documents.T).toarray()

    def recall(self, returned: Iterator[Sequence[int]], hits: int) -> float:
        """Return the mean share of the best hits that are returned; documents with the score of the last hit count."""
        shares = []
        for scores, documents in zip(self.scores, returned, strict=True):
            best = min(hits, int(np.count_nonzero(scores)))
            least = np.partition(scores, len(scores) - best)[len(scores) - best]
            shares.append(np.count_nonzero(scores[documents] >= least) / best)
        return float(np.mean(shares))


def rows_of(matrix: csr_matrix) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for begin, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        yield matrix.indices[begin:end], matrix.data[begin:end]


def largest(matrix: csr_matrix, number: int) -> csr_matrix:
    """Return a matrix with the largest weights of each row, at most 255."""
    kept = matrix.copy()
    for begin, end in zip(kept.indptr[:-1], kept.indptr[1:], strict=True):
        kept.data[begin:end][np.argsort(-kept.data[begin:end], kind="stable")[number:]] = 0
    kept.eliminate_zeros()
    kept.sort_indices()
    kept.data = np.minimum(kept.data, 255)
    return kept


def read(options: argparse.Namespace) -> Vectors:
    """Return the weights of indexes of one encoder, one after the other, and those of queries."""
    opened = [open_lexical(path) for path in options.indexes]
    stored = [index.impacts.postings for index in opened]
    postings = reduce(lambda all_, more: all_.extended(np.ones(len(all_.lengths), np.bool_), more), stored)
    names = pl.Series([str(row) for row in range(len(postings.lengths))])
    index = LexicalIndex(Impacts.learned(postings, 1.0), names)
    queries = collections.read_queries(options.queries).sample(options.sample, seed=0)
    bags = index.bags_of(opened[0].weighted(queries["text"].to_list()), len(queries))
    weights = csr_matrix((bags.boosts, bags.terms, bags.ends), shape=(len(bags), len(index.idf)))
    return Vectors(largest(index.matrix.tocsr(), options.terms), largest(weights, options.query_terms))


# ------------------------------------------------------------------------------------------------------------- engines


def ours(vectors: Vectors, hits: int) -> Task:
    columns, names = vectors.documents.tocsc(), pl.Series([f"{row:09d}" for row in range(vectors.documents.shape[0])])
    columns.sort_indices()
    terms = pl.Series([f"{term:06d}" for term in range(columns.shape[1])])
    lengths = np.asarray(vectors.documents.sum(1)).ravel().astype(np.int32)
    indptr, rows = columns.indptr.astype(np.int64), columns.indices.astype(np.int32)
    postings = Postings.of(terms, indptr, rows, columns.data.astype(np.int32), lengths)
    index, queries = LexicalIndex(Impacts.learned(postings, 1.0), names), vectors.queries
    bags = Bags(queries.indptr.astype(np.int64), queries.indices.astype(np.int32), queries.data.astype(np.float32))

    def documents(found: Any) -> Iterator[list[int]]:
        for count, keys in zip(*found, strict=True):
            yield positions_of(keys[:count]).tolist()

    return Task(partial(index.keys, bags, hits, 1), documents)


def texts(queries: csr_matrix) -> list[dict[str, float]]:
    return [{str(term): float(w) for term, w in zip(*row, strict=True)} for row in rows_of(queries)]


def bmp_index(documents: csr_matrix, block: int, folder: Path) -> Any:
    import bmp

    indexer = bmp.Indexer(str(folder / f"bmp-{block}"), bsize=block, compress_range=False)
    for number, (terms, weights) in enumerate(rows_of(documents)):
        indexer.add_document(str(number), {str(t): int(w) for t, w in zip(terms, weights, strict=True)})
    indexer.finish()
    return bmp.Searcher(str(folder / f"bmp-{block}"))


def bmp_task(searcher: Any, queries: Sequence[dict[str, float]], hits: int) -> Task:
    """Return BMP's safe search: alpha and beta 1."""
    return Task(
        lambda: [searcher.search(query, k=hits, alpha=1.0, beta=1.0) for query in queries],
        lambda found: ([*map(int, docids)] for docids, _ in found),
    )


def seismic_index(documents: csr_matrix) -> Any:
    import seismic

    data = seismic.SeismicDataset()
    ids = [str(number) for number in range(documents.shape[0])]
    offsets, components = documents.indptr.astype(np.int64), documents.indices.astype(np.int64)
    data.add_documents_by_id(ids, components, documents.data.astype(np.float32), offsets)
    return seismic.SeismicIndex.build_from_dataset(data, n_postings=1000, num_threads=1)


def seismic_task(index: Any, queries: csr_matrix, hits: int, cut: int, heap: float) -> Task:
    import seismic

    kind = seismic.get_seismic_string()
    ids = np.array([str(number) for number in range(queries.shape[0])], kind)
    terms = [row.astype(kind) for row, _ in rows_of(queries)]
    weights = [row.astype(np.float32) for _, row in rows_of(queries)]
    return Task(
        lambda: index.batch_search(ids, terms, weights, hits, cut, heap, num_threads=1),
        lambda found: ([int(hit[2]) for hit in hits_of_query] for hits_of_query in found),
    )


# ---------------------------------------------------------------------------------------------------------- comparison


def fastest(tasks: dict[str, Task], vectors: Vectors, hits: int, recall: float) -> dict[str, Task]:
    """Return the fastest of the tasks with a recall, if any."""
    able = {name: task for name, task in tasks.items() if vectors.recall(task.documents(task.search()), hits) >= recall}
    if not able:
        return {}
    times, _ = in_turns({name: task.search for name, task in able.items()}, 1, time.process_time)
    name = min(times, key=lambda name: min(times[name]))
    return {name: able[name]}


def compare(vectors: Vectors, folder: Path, repeat: int) -> None:
    """Print the CPU time of a query."""
    queries, blocks, lists = texts(vectors.queries), {}, None
    if find_spec("bmp"):
        blocks = {size: bmp_index(vectors.documents, size, folder) for size in BLOCKS}
    if find_spec("seismic"):
        lists = seismic_index(vectors.documents)
    for hits in HITS:
        tasks = {"hybrid, exact": ours(vectors, hits)}
        safe = {f"BMP, safe, blocks of {size}": bmp_task(searcher, queries, hits) for size, searcher in blocks.items()}
        tasks |= fastest(safe, vectors, hits, 0)
        some = {
            f"Seismic, query_cut {cut}, heap_factor {heap}": seismic_task(lists, vectors.queries, hits, cut, heap)
            for cut in (CUTS if lists else ())
            for heap in HEAPS
        }
        tasks |= fastest(some, vectors, hits, RECALL)
        times, found = in_turns({name: task.search for name, task in tasks.items()}, repeat, time.process_time)
        for name, task in tasks.items():
            micros = 1e6 * float(np.median(times[name])) / len(queries)
            recall = vectors.recall(task.documents(found[name]), hits)
            print(f"{hits:5,} hits  {name:42} {micros:9,.0f} microseconds per query, recall {recall:.3f}", flush=True)


def main() -> None:
    os.environ["RAYON_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("indexes", type=Path, nargs="+", help="learned sparse indexes of one encoder")
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--sample", type=int, default=300, help="number of queries")
    parser.add_argument("--terms", type=int, default=128, help="weights of a document, at most")
    parser.add_argument("--query-terms", type=int, default=32, help="weights of a query, at most")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    vectors = read(options)
    documents, queries = vectors.documents, vectors.queries
    print(f"{documents.shape[0]:,} documents of {documents.nnz / documents.shape[0]:.0f} terms, "
          f"{queries.shape[0]:,} queries of {queries.nnz / queries.shape[0]:.0f}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        compare(vectors, Path(folder), options.repeat)


if __name__ == "__main__":
    main()
