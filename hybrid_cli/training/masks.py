"""Input-level orthogonality (RoC 3.4): hide from the encoder some of what BM25 sees already.

Of a document's word pieces that the query has too, a share is replaced by [MASK], each on its own. Training only:
nothing outside of it calls this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid_cli.encoders.contract import Contract
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.analysis import STOP_WORDS

_WORD_STARTS = "Ġ▁"  # how byte-level and SentencePiece vocabularies write the space before a word


class MatchMasking:
    """Masks matched word pieces of documents.

    Never masked: special tokens and markers, stop words (Lucene's, which BM25 does not see either), punctuation, and
    prefixes.

    Args:
        tokenizer: of the encoder; queries and documents share it.
        contract: what stands before the texts.
        share: probability of each matched occurrence.

    Raises:
        InputError: the tokenizer has no mask token.
    """

    def __init__(self, tokenizer: Any, contract: Contract, share: float):
        if tokenizer.mask_token_id is None:
            raise InputError("the model has no mask token, so its input cannot be masked; use --mask-matches 0")
        self.share = share
        self._mask: int = tokenizer.mask_token_id
        special = set(tokenizer.all_special_ids)
        self._words = {
            number for piece, number in tokenizer.get_vocab().items() if number not in special and _is_word(piece)
        }
        self._query_start = _prefix_length(tokenizer, contract.query_head)
        self._document_start = _prefix_length(tokenizer, contract.document_head)

    def __call__(self, document: Sequence[int], query: Sequence[int], seed: Sequence[int]) -> list[int]:
        """The document's ids with some of those that the query has too replaced; equal seeds mask alike."""
        wanted = self._words.intersection(query[self._query_start :])
        matches = [place for place in range(self._document_start, len(document)) if document[place] in wanted]
        masked = list(document)
        if matches:
            drawn = np.random.default_rng(seed).random(len(matches)) < self.share
            for place in np.asarray(matches)[drawn].tolist():
                masked[place] = self._mask
        return masked


def _prefix_length(tokenizer: Any, head: str) -> int:
    """How many ids stand before the text: [CLS], unless a marker replaces it, markers and prefix."""
    return len(tokenizer(head)["input_ids"]) - 1  # without the [SEP] at its end


def _is_word(piece: str) -> bool:
    bare = piece.lstrip(_WORD_STARTS).lower()
    return bare not in STOP_WORDS and any(character.isalnum() for character in bare)
