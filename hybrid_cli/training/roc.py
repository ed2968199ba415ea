"""Orthogonality to BM25 (RoC, sections 3.3 and 3.4): BM25's vectors for the loss, masks for the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from hybrid_cli import draws
from hybrid_cli.encoders.contract import Contract
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.analysis import STOP_WORDS
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.projection import SignProjection

Floats = npt.NDArray[np.float32]

_WORD_STARTS = "Ġ▁"  # the space before a word in byte-level and in SentencePiece vocabularies


class BM25Vectors:
    """Vectors of BM25, projected to the dimension of an encoder: the constants of RoC's orthogonality loss.

    BM25 is an inner product (RoC, section 3.2): q[t] = IDF(t) and d[t] = tf / (tf + k1 (1 - b + b |d| / avgdl)). The
    factor (k1 + 1) of the printed formula is left out, since no cosine depends on it. A repeated query term counts
    once.

    Args:
        index: lexical index; its impact matrix gives the weights.
        projection: to the dimension of the encoder.
        docids: all documents that will be looked up; their rows are in memory.

    Raises:
        InputError: a document is not in the index.
    """

    def __init__(self, index: LexicalIndex, projection: SignProjection, docids: pl.Series):
        self.index, self.projection = index, projection
        self._terms = index.impacts.postings.terms
        try:
            self.impacts = index.rows(docids)
        except InputError as error:
            raise InputError(f"{error}; pass the --index that the examples were mined with") from None
        self._rows = dict(zip(docids.to_list(), range(len(docids)), strict=True))

    def queries(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of queries, [N, dim]."""
        matrix = self.index.query_matrix(texts)
        matrix.data = self.index.idf[matrix.indices]
        return self.projection.project(matrix, self._terms)

    def documents(self, docids: Sequence[str]) -> Floats:
        """Return the vectors of documents, [N, dim]."""
        matrix = self.impacts[[self._rows[docid] for docid in docids]]
        matrix.data = matrix.data / self.index.idf[matrix.indices]
        return self.projection.project(matrix, self._terms)

    def scores(self, texts: Sequence[str], docids: Sequence[str]) -> Floats:
        """Return the BM25 score, not projected, of every text with every document, [N, M]."""
        rows = self.impacts[[self._rows[docid] for docid in docids]]
        scores: Floats = (self.index.query_matrix(texts) @ rows.T).toarray().astype(np.float32)
        return scores


class MatchMasking:
    """Masks some of a document's tokens that the query has too, so that the encoder learns what BM25 does not match.

    Used in training only (RoC, section 3.4, eq. 10). Our choice: special tokens, markers, prefixes, punctuation and
    Lucene's stop words are never masked, since BM25 does not match them either, and each occurrence is drawn on its
    own, since queries share too few tokens with a document to round a fraction of them.

    Args:
        tokenizer: tokenizer of the encoder, for queries and documents.
        contract: prefixes and markers.
        share: probability of each matched occurrence.

    Raises:
        InputError: the tokenizer has no mask token.
    """

    def __init__(self, tokenizer: Any, contract: Contract, share: float):
        if tokenizer.mask_token_id is None:
            raise InputError("the model has no mask token; pass --mask-matches 0")
        self.share = share
        self._mask: int = tokenizer.mask_token_id
        special = set(tokenizer.all_special_ids)
        self._words = {
            number for piece, number in tokenizer.get_vocab().items() if number not in special and _is_word(piece)
        }
        self._query_start = _prefix_length(tokenizer, contract.query_head)
        self._document_start = _prefix_length(tokenizer, contract.document_head)

    def __call__(self, document: Sequence[int], query: Sequence[int], seed: Sequence[int]) -> list[int]:
        """Return the token ids of a document with some matches masked.

        Args:
            document: token ids.
            query: token ids.
            seed: equal seeds give equal masks.
        """
        wanted = self._words.intersection(query[self._query_start :])
        matches = [place for place in range(self._document_start, len(document)) if document[place] in wanted]
        masked = list(document)
        if matches:
            drawn = draws.rng(*seed).random(len(matches)) < self.share
            for place in np.asarray(matches)[drawn].tolist():
                masked[place] = self._mask
        return masked


def _prefix_length(tokenizer: Any, head: str) -> int:
    """Return the number of ids before the text: [CLS] unless a marker replaces it, markers, prefix."""
    return len(tokenizer(head)["input_ids"]) - 1  # without the final [SEP]


def _is_word(piece: str) -> bool:
    bare = piece.lstrip(_WORD_STARTS).lower()
    return bare not in STOP_WORDS and any(character.isalnum() for character in bare)
