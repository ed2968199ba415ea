"""Names and defaults of perturbations, which import nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """How queries are perturbed.

    Attributes:
        word_fraction: fraction of the words of a query to change; at least one word is changed.
        translation_prefix: text put before every query for the first translation model, such as `>>es<<`.
        device: device of the translation models.
        seed: random seed.
    """

    word_fraction: float = 0.1
    translation_prefix: str = ""
    device: str = "auto"
    seed: int = 0
