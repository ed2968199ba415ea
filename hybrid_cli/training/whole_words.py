"""Masked-language-model training: words to fill in, masked with all their pieces or not at all (methods 3.5).

transformers' own collator takes whatever stands between two spaces as a word, brackets included, and leaves out BERT's
random and unchanged pieces; so this is ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid_cli.errors import InputError
from hybrid_cli.training.spans import Pieces

IGNORED = -100  # the label of a piece that is not asked for, as PyTorch has it
_MASKED, _RANDOM = 0.8, 0.1  # BERT's: of the pieces asked for; the others stay as they are


class WholeWordMasking:
    """Chooses words, hides their pieces, and asks for them. Special tokens are never chosen, nor put in.

    Args:
        share: of the pieces of a span; at least one word, and no word that would go beyond it.

    Raises:
        InputError: the tokenizer lacks the tokens that this needs.
    """

    def __init__(self, tokenizer: Any, share: float):
        tokens = {"mask": tokenizer.mask_token_id, "[CLS]": tokenizer.cls_token_id, "[SEP]": tokenizer.sep_token_id}
        if lacking := [name for name, number in tokens.items() if number is None]:
            raise InputError(f"the model has no {' and no '.join(lacking)} token; pretraining needs a BERT or its kin")
        self._mask, self._first, self._last = tokens.values()
        self._special = np.asarray(sorted(tokenizer.all_special_ids))
        self._ordinary = np.setdiff1d(np.arange(len(tokenizer)), self._special)
        self._share = share

    def __call__(self, span: Pieces, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels [n + 2] of a span, [CLS] and [SEP] around it."""
        asked = self._asked(span, rng)
        draws = rng.random(len(span.ids))
        ids = span.ids.copy()
        ids[asked & (draws < _MASKED)] = self._mask
        random = asked & (draws >= _MASKED) & (draws < _MASKED + _RANDOM)
        ids[random] = rng.choice(self._ordinary, random.sum())
        labels = np.where(asked, span.ids, IGNORED)
        return np.concatenate([[self._first], ids, [self._last]]), np.pad(labels, 1, constant_values=IGNORED)

    def _asked(self, span: Pieces, rng: np.random.Generator) -> np.ndarray:
        """[n] which pieces belong to the chosen words."""
        sizes = np.diff(span.starts)
        order = rng.permutation(np.flatnonzero(~np.isin(span.ids[span.starts[:-1]], self._special)))
        chosen = np.zeros(span.words, bool)
        chosen[order[np.cumsum(sizes[order]) <= self._share * len(span.ids)]] = True
        chosen[order[:1]] = True
        return np.repeat(chosen, sizes)
