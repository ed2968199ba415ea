"""Training of static encoders: bags of terms, exact teacher scores of many candidates, and a list-wise loss.

All computation is products of sparse matrices with the two tables. The candidates of a step are the teacher's
top-ranked documents of its queries and documents drawn from the collection; of a small collection, all documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from hybrid_cli import draws
from hybrid_cli.encoders.static import StaticEncoder
from hybrid_cli.lexical.impacts import DocumentImpacts
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.keys import Bags
from hybrid_cli.training import parallel
from hybrid_cli.training.losses import Terms, check_prefixes, divergence
from hybrid_cli.training.options import Imitation

_SVD_DOCUMENTS = 50_000
_QUERY_TERMS = (3, 11)  # minimum and maximum terms of a random bag
STUDENT_POOL = 16_384  # documents re-encoded for mining negatives with the student

Sparse = Any  # scipy CSR, float32
Pool = tuple[np.ndarray, np.ndarray]  # rows of documents, their vectors


@dataclass(frozen=True)
class Batch:
    """Term weights of the queries and the candidates of one step, and the teacher's scores of all pairs.

    Of several processes, each has its share of the queries and all candidates.

    Attributes:
        queries: CSR [B, rows of the tables].
        documents: CSR [C, rows of the tables].
        teacher: [B, C].
        part: fraction of the queries of all processes.
    """

    queries: Sparse
    documents: Sparse
    teacher: Tensor
    part: float = 1.0


class BagsOfTerms:
    """Batches for a static encoder from the impact matrix of a collection.

    Args:
        index: lexical index, the teacher.
        encoder: encoder to train; maps terms to rows of its tables.
        plan: settings of the training.
        texts: sentences or questions used as queries; None for random bags of a document's terms only.
        impacts: impacts of all documents.
    """

    def __init__(
        self,
        index: LexicalIndex,
        encoder: StaticEncoder,
        plan: Imitation,
        texts: pl.Series | None,
        impacts: DocumentImpacts,
    ):
        self._index, self._encoder, self._plan, self._texts = index, encoder, plan, texts
        self._impacts = impacts
        self._rows = encoder.rows_of(index.impacts.postings.terms)
        self._scale = np.sqrt(encoder.idf[self._rows])
        self._width = len(encoder.idf)

    def batches(self, done: int = 0) -> Iterator[Batch]:
        """Yield an endless stream of batches, from the `done`-th on.

        Draws depend only on (seed, step); negatives of the student also on its tables at the last checkpoint.
        """
        step, pool = done, None
        while True:
            rng = draws.rng(self._plan.seed, step)
            if self._plan.dynamic_negatives and (pool is None or step % self._plan.checkpoint_steps == 0):
                pool = self._encoded_pool(draws.rng(self._plan.seed, step, 1))
            yield self._batch(rng, pool)
            step += 1

    def documents(self, rows: np.ndarray) -> Sparse:
        """Return the term weights of documents, as `StaticEncoder` weights them: CSR [n, rows of the tables]."""
        chosen = self._impacts.rows(rows)
        saturated = chosen.data / self._index.idf[chosen.indices]
        return self._in_rows(chosen, saturated * self._scale[chosen.indices])

    def _batch(self, rng: np.random.Generator, pool: Pool | None) -> Batch:
        plan, size = self._plan, len(self._index.docids)
        given = round(plan.text_fraction * plan.batch_size) if self._texts is not None else 0
        bags = self._random_bags(rng, plan.batch_size - given)
        if given and self._texts is not None:
            drawn_texts = self._texts.gather(rng.integers(len(self._texts), size=given))
            bags = _joined(bags, self._index.bags(drawn_texts.to_list()))
        mine = parallel.own_slice(len(bags))
        bags = bags.part(mine.start, mine.stop)
        counts = self._matrix(bags)
        queries = self._in_rows(counts, counts.data * self._scale[counts.indices])
        best, sampled = plan.candidates
        if sampled >= size:
            candidates = np.arange(size)
        else:
            drawn = rng.integers(size, size=sampled)
            own = [self._student_negatives(queries, pool)] if pool else []
            hard = np.concatenate([self._index.hits(bags, best).rows, *own])
            everyone = torch.cat(parallel.gather(torch.from_numpy(hard.astype(np.int64))[:, None])).numpy()
            candidates = np.unique(np.concatenate([drawn, everyone.ravel()]))
        teacher = (counts @ self._impacts.rows(candidates).T).toarray().astype(np.float32)
        part = len(bags) / plan.batch_size
        return Batch(queries, self.documents(candidates), torch.from_numpy(teacher), part)

    def _random_bags(self, rng: np.random.Generator, count: int) -> Bags:
        """Return `count` bags, each of a few distinct terms of a random document."""
        low, high = _QUERY_TERMS
        impacts = self._impacts
        chosen = []
        for row in rng.integers(len(impacts), size=count):
            terms = impacts.terms[impacts.ends[row] : impacts.ends[row + 1]]
            chosen.append(rng.choice(terms, min(len(terms), int(rng.integers(low, high + 1))), replace=False))
        ends = np.concatenate(([0], np.cumsum([len(terms) for terms in chosen])))
        terms = np.concatenate(chosen).astype(np.int32)
        return Bags(ends, terms, np.ones(len(terms), np.float32))

    def _encoded_pool(self, rng: np.random.Generator) -> Pool:
        """Return random documents and the student's vectors of them."""
        size = len(self._index.docids)
        rows = draws.sample(size, STUDENT_POOL, rng)
        return rows, self.documents(rows) @ self._encoder.document_table.detach().numpy()

    def _student_negatives(self, queries: Sparse, pool: Pool) -> np.ndarray:
        """Return the rows of the student's top-ranked documents of the pool for each query."""
        rows, vectors = pool
        scores = (queries @ self._encoder.query_table.detach().numpy()) @ vectors.T
        first = min(self._plan.dynamic_negatives, len(rows) - 1)
        return rows[np.argpartition(-scores, first, axis=1)[:, :first]].ravel()

    def _matrix(self, bags: Bags) -> Sparse:
        from scipy.sparse import csr_matrix

        return csr_matrix((bags.boosts, bags.terms, bags.ends), shape=(len(bags), len(self._index.idf)))

    def _in_rows(self, matrix: Sparse, values: np.ndarray) -> Sparse:
        """Map the columns of a matrix from terms to rows of the tables."""
        from scipy.sparse import csr_matrix

        columns, shape = self._rows[matrix.indices], (matrix.shape[0], self._width)
        return csr_matrix((values.astype(np.float32), columns, matrix.indptr), shape=shape)


class StaticLearner:
    """Computes the gradients of the two tables."""

    precision = torch.float32

    def __init__(self, encoder: StaticEncoder, temperature: float, prefixes: Sequence[int] = ()):
        check_prefixes(prefixes, encoder.dim)
        self.model, self.temperature, self.dims = encoder, temperature, [*prefixes, encoder.dim]

    def backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], step: int = 0) -> Terms:
        """Add the gradients of one batch; return the terms of its loss."""
        if not batch.part:  # more processes than queries
            return {"listwise": parallel.total(torch.zeros(()))}
        queries: Tensor = SparseProduct.apply(batch.queries, self.model.query_table)  # type: ignore[no-untyped-call]
        documents: Tensor = SparseProduct.apply(batch.documents, self.model.document_table)  # type: ignore[no-untyped-call]
        losses = [
            divergence(queries[:, :dim] @ documents[:, :dim].T, batch.teacher, self.temperature) for dim in self.dims
        ]
        loss = torch.stack(losses).mean() * batch.part
        scale(loss).backward()
        return {"listwise": parallel.total(loss.detach())}


class SparseProduct(torch.autograd.Function):
    """Product of a constant sparse matrix [n, rows] and a table [rows, d]."""

    @staticmethod
    def forward(ctx: Any, matrix: Sparse, table: Tensor) -> Tensor:
        """Return the product [n, d]."""
        ctx.matrix = matrix
        return torch.from_numpy(matrix @ table.detach().numpy())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        """Return the gradient of the table."""
        return None, torch.from_numpy(ctx.matrix.T @ gradients[0].numpy())


def initialize(encoder: StaticEncoder, source: BagsOfTerms, documents: int, seed: int) -> None:
    """Initialize both tables with the right singular vectors of the documents' weights, optimal for the raw scores.

    Rows without a document, such as those of unseen terms, get random vectors of length 1, equal in both tables: in
    another collection, such terms match themselves.

    Args:
        encoder: encoder to initialize.
        source: term weights of the documents.
        documents: number of documents; of a large collection, a sample is used.
        seed: random seed.
    """
    from scipy.sparse.linalg import svds

    rng = draws.rng(seed)
    weights = source.documents(draws.sample(documents, _SVD_DOCUMENTS, rng))
    rank = min(encoder.dim, min(weights.shape) - 1)
    table = rng.standard_normal((weights.shape[1], encoder.dim)).astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    used = np.flatnonzero(weights.getnnz(axis=0))
    table[used] *= 0.01  # dimensions beyond the rank
    if rank > 0:
        table[used, :rank] = svds(weights, k=rank, random_state=seed)[2][::-1].T[used]
    for parameter in (encoder.query_table, encoder.document_table):
        parameter.data = torch.from_numpy(table.copy())


def _joined(first: Bags, second: Bags) -> Bags:
    return Bags(
        np.concatenate([first.ends, first.ends[-1] + second.ends[1:]]),
        np.concatenate([first.terms, second.terms]),
        np.concatenate([first.boosts, second.boosts]),
    )
