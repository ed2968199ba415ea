"""Names and defaults of evaluation, which import nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AnswerMatch = Literal["string", "regex"]
SignificanceTest = Literal["t", "permutation"]
Correction = Literal["holm", "bonferroni", "none"]

MEASURES = ("MRR@10", "nDCG@10", "R@100", "R@1000")
LEVEL = 1  # lowest grade that counts as relevant
ANSWER_MATCH: AnswerMatch = "string"


@dataclass(frozen=True, kw_only=True)
class Significance:
    """How runs are compared.

    Attributes:
        test: Student's paired t-test, or the sign-flip permutation test.
        correction: correction over the comparisons of one measure.
        seed: random seed of the bootstrap and of the permutation test.
    """

    test: SignificanceTest = "t"
    correction: Correction = "holm"
    seed: int = 42
