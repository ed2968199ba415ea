"""Whole-word masking: BERT's fractions, no special tokens, reproducible."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hybrid_cli.encoders.models import resolve
from hybrid_cli.training.pretraining import IGNORED, Pieces, WholeWordMasking, pieces

TEXT = (
    "Compute the eigenvalues and right eigenvectors of a square array. The number w is an eigenvalue of a if there "
    "exists a vector v such that a @ v = w * v, hence unnormalized. [SEP] Broadcasting rules apply, [MASK] or not; "
    "see numpy.linalg.eigvalsh for symmetrically stored arrays, and \u16a0\u16a1\u16a2 for something that is unknown. "
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve("minilm"))


@pytest.fixture(scope="module")
def span(tokenizer: Any) -> Pieces:
    (found,) = pieces(tokenizer, [TEXT * 3])
    return found


def masked(tokenizer: Any, span: Pieces, seed: int, share: float = 0.15) -> tuple[np.ndarray, np.ndarray]:
    return WholeWordMasking(tokenizer, share)(span, np.random.default_rng(seed))


def test_a_span_gets_cls_and_sep_and_keeps_tokens_that_are_not_predicted(tokenizer: Any, span: Pieces) -> None:
    ids, labels = masked(tokenizer, span, 0)
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert (labels[0], labels[-1]) == (IGNORED, IGNORED)
    kept = labels[1:-1] == IGNORED
    np.testing.assert_array_equal(ids[1:-1][kept], span.ids[kept])
    np.testing.assert_array_equal(labels[1:-1][~kept], span.ids[~kept])


@pytest.mark.parametrize("share", [0.05, 0.15, 0.4])
def test_the_fraction_is_reached_and_never_exceeded(tokenizer: Any, span: Pieces, share: float) -> None:
    shares = [(masked(tokenizer, span, seed, share)[1] != IGNORED).sum() / len(span.ids) for seed in range(100)]
    assert max(shares) <= share
    assert np.mean(shares) == pytest.approx(share, abs=0.01)


def test_a_word_is_predicted_as_a_whole(tokenizer: Any, span: Pieces) -> None:
    for seed in range(50):
        predicted = masked(tokenizer, span, seed)[1][1:-1] != IGNORED
        for begin, end in pairwise(span.starts):
            assert predicted[begin:end].all() or not predicted[begin:end].any()


def test_special_tokens_are_neither_predicted_nor_inserted(tokenizer: Any, span: Pieces) -> None:
    special = set(tokenizer.all_special_ids)
    assert special & set(span.ids.tolist()) >= {tokenizer.sep_token_id, tokenizer.mask_token_id, tokenizer.unk_token_id}
    for seed in range(100):
        ids, labels = masked(tokenizer, span, seed, 0.9)
        predicted = labels != IGNORED
        assert not special & set(labels[predicted].tolist())
        assert not (special - {tokenizer.mask_token_id}) & set(ids[predicted].tolist())


def test_eight_of_ten_become_mask_one_a_random_token_and_one_stays(tokenizer: Any, span: Pieces) -> None:
    counts = np.zeros(3)
    for seed in range(200):
        ids, labels = masked(tokenizer, span, seed)
        predicted = labels != IGNORED
        mask, same = ids[predicted] == tokenizer.mask_token_id, ids[predicted] == labels[predicted]
        counts += [mask.sum(), (~mask & ~same).sum(), same.sum()]
    np.testing.assert_allclose(counts / counts.sum(), [0.8, 0.1, 0.1], atol=0.02)


def test_a_span_of_special_tokens_has_no_predictions(tokenizer: Any) -> None:
    (nothing,) = pieces(tokenizer, ["[SEP] [UNK]"])
    assert (masked(tokenizer, nothing, 0)[1] == IGNORED).all()
