"""The parts of RoC's training: projected BM25 vectors (section 3.2), and masks of matched words (section 3.4).

The random signs (Rademacher) of a term's projection are a hash of (seed, term). They are independent of the order and
size of the vocabulary, and are computed for the terms of a batch only, so that no matrix is stored. Masking replaces
each token of a document that also occurs in the query by [MASK] with a fixed probability, in training only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import shake_256
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import draws
from hybrid_cli.encoders.contract import Contract
from hybrid_cli.errors import option_error
from hybrid_cli.lexical.english import STOP_WORDS
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.training.teachers import Bm25Scorer

PROJECTION_VERSION = 1  # of the hash: encoders trained with other signs cannot be continued


@dataclass(frozen=True)
class SignProjection:
    """Matrix A in R^(dim x V) with entries +1/sqrt(dim) or -1/sqrt(dim), as a function of the term (RoC, eq. 3).

    Inner products are preserved in expectation: the error of `<Ax, Ay>` has mean 0 and standard deviation of about
    `|x||y|/sqrt(dim)`. This suffices for a loss but not for retrieval.

    Attributes:
        dim: length of the projected vectors.
        seed: random seed of the signs.
        version: version of the hash.
    """

    dim: int
    seed: int = 0
    version: int = PROJECTION_VERSION

    def signs(self, terms: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the column of each term times sqrt(dim): [n, dim] of +1 and -1."""
        size = -(-self.dim // 8)
        digests = b"".join(shake_256(f"{self.seed}\0{term}".encode()).digest(size) for term in terms)
        bits = np.unpackbits(np.frombuffer(digests, np.uint8).reshape(len(terms), size), axis=1, count=self.dim)
        return np.where(bits, np.float32(1), np.float32(-1))

    def project(self, matrix: Any, terms: pl.Series) -> npt.NDArray[np.float32]:
        """Project each row of a scipy CSR matrix [n, V] to [n, dim]; rows without terms become zeros."""
        used, columns = np.unique(matrix.indices, return_inverse=True)
        signs = self.signs(terms.gather(used).to_list())
        narrow = type(matrix)((matrix.data, columns, matrix.indptr), shape=(matrix.shape[0], len(used)))
        projected: npt.NDArray[np.float32] = (narrow @ signs).astype(np.float32) / np.float32(np.sqrt(self.dim))
        return projected


Floats = npt.NDArray[np.float32]


class Bm25Vectors(Bm25Scorer):
    """BM25 vectors of queries and documents: q[t] = IDF(t), d[t] = tf / (tf + k1 (1 - b + b |d| / avgdl)); and scores.

    The factor (k1 + 1) of the published formula is omitted, since cosines do not depend on it. A repeated query word
    counts once.

    Args:
        index: lexical index.
        projection: random projection to the encoder's dimensions.
        docids: all documents that will be requested; memory holds only their rows.

    Raises:
        InputError: a document is not in the index.
    """

    def __init__(self, index: LexicalIndex, projection: SignProjection, docids: pl.Series):
        super().__init__(index, docids)
        self.projection = projection
        self._terms = index.impacts.postings.terms

    def queries(self, texts: Sequence[str]) -> Floats:
        """Return vectors [n, dim] of queries."""
        matrix = self.index.query_matrix(texts)
        matrix.data = self.index.idf[matrix.indices]
        return self.projection.project(matrix, self._terms)

    def documents(self, docids: Sequence[str]) -> Floats:
        """Return vectors [n, dim] of documents."""
        matrix = self.rows(docids)
        matrix.data = matrix.data / self.index.idf[matrix.indices]
        return self.projection.project(matrix, self._terms)


class VectorsOfOthers:
    """BM25 vectors of other texts, for a control experiment.

    Each query has the vector of one other query in all steps, each document that of one other document. They are as
    easy to learn as the vectors of the texts themselves, and say nothing about them.

    Args:
        vectors: vectors of the texts.
        queries: texts of all queries, each once.
        docids: all documents, each once.
        seed: seed of the permutations.
    """

    def __init__(self, vectors: Bm25Vectors, queries: pl.Series, docids: pl.Series, seed: int):
        self._vectors = vectors
        self._queries, self._docids = _others(queries, seed), _others(docids, seed)

    def queries(self, texts: Sequence[str]) -> Floats:
        """Return vectors [n, dim] for queries."""
        return self._vectors.queries([self._queries[text] for text in texts])

    def documents(self, docids: Sequence[str]) -> Floats:
        """Return vectors [n, dim] for documents."""
        return self._vectors.documents([self._docids[docid] for docid in docids])


def _others(texts: pl.Series, seed: int) -> dict[str, str]:
    """Return another text for each, in a cycle of random order; a single text has itself."""
    drawn = texts.gather(draws.rng(seed).permutation(len(texts))).to_list()
    return dict(zip(drawn, [*drawn[1:], *drawn[:1]], strict=True))


_WORD_STARTS = "Ġ▁"  # word-initial space in byte-level and SentencePiece vocabularies


class MatchMasking:
    """Masks tokens of documents that occur in the query.

    Special tokens, markers, prefixes, punctuation and Lucene's stop words, which BM25 ignores, are never masked (our
    choice: otherwise most masked tokens would be stop words). Each occurrence is masked independently (our choice:
    queries are short, and a rounded number of masks would mostly be 0).

    Args:
        tokenizer: tokenizer of queries and documents.
        contract: contract of the encoder, with its prefixes and markers.
        share: probability of masking a matched token.

    Raises:
        InputError: the tokenizer has no mask token.
    """

    def __init__(self, tokenizer: Any, contract: Contract, share: float):
        if tokenizer.mask_token_id is None:
            raise option_error("mask_matches", None, "the model has no mask token; pass 0", code="no-mask-token")
        self.share = share
        self._mask: int = tokenizer.mask_token_id
        special = set(tokenizer.all_special_ids)
        self._words = {number for piece, number in tokenizer.get_vocab().items() if _is_word(piece)} - special
        self._query_start = _prefix_length(tokenizer, contract, contract.query_head)
        self._document_start = _prefix_length(tokenizer, contract, contract.document_head)

    def __call__(self, document: Sequence[int], query: Sequence[int], seed: Sequence[int]) -> list[int]:
        """Return the token ids of the document with masked matches; equal seeds give equal masks."""
        wanted = self._words.intersection(query[self._query_start :])
        matches = [position for position in range(self._document_start, len(document)) if document[position] in wanted]
        masked = list(document)
        if matches:
            drawn = draws.rng(*seed).random(len(matches)) < self.share
            for position in np.asarray(matches)[drawn].tolist():
                masked[position] = self._mask
        return masked


def _prefix_length(tokenizer: Any, contract: Contract, head: str) -> int:
    """Return the number of tokens before the text: [CLS] or a marker, and the prefix."""
    length = len(tokenizer(head, add_special_tokens=contract.special_tokens)["input_ids"])
    return length - 1 if contract.special_tokens else length  # without the [SEP] at its end


def _is_word(piece: str) -> bool:
    bare = piece.lstrip(_WORD_STARTS).lower()
    return bare not in STOP_WORDS and any(character.isalnum() for character in bare)
