"""Input-level orthogonality (RoC, section 3.4): mask words of documents that BM25 matches.

Each token of a document that also occurs in the query is replaced by [MASK] with some probability, in training only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid_cli import draws
from hybrid_cli.encoders.contract import Contract
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.analysis import STOP_WORDS

_WORD_STARTS = "Ġ▁"  # the space before a word in byte-level and SentencePiece vocabularies


class MatchMasking:
    """Masks tokens of documents that occur in the query.

    Special tokens, markers, prefixes, punctuation and Lucene's stop words, which BM25 ignores, are never masked (our
    choice: otherwise "the" would use up most masks). Each occurrence is masked independently (our choice: queries are
    short, and a rounded number of masks would mostly be 0).

    Args:
        tokenizer: tokenizer of queries and documents.
        contract: contract of the encoder, with its prefixes and markers.
        share: probability of masking a matched token.

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
        """Return the token ids of the document with masked matches; equal seeds give equal masks."""
        wanted = self._words.intersection(query[self._query_start :])
        matches = [place for place in range(self._document_start, len(document)) if document[place] in wanted]
        masked = list(document)
        if matches:
            drawn = draws.rng(*seed).random(len(matches)) < self.share
            for place in np.asarray(matches)[drawn].tolist():
                masked[place] = self._mask
        return masked


def _prefix_length(tokenizer: Any, head: str) -> int:
    """Return the number of tokens before the text: [CLS] or a marker, and the prefix."""
    return len(tokenizer(head)["input_ids"]) - 1  # without the [SEP] at its end


def _is_word(piece: str) -> bool:
    bare = piece.lstrip(_WORD_STARTS).lower()
    return bare not in STOP_WORDS and any(character.isalnum() for character in bare)
