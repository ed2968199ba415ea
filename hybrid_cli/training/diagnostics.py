"""Signs of a training that learns nothing: the share of the loss that is left, margins and similarities.

`active_share` is the share of triples with hinge loss, or the mean probability of the likelihood that is not on the
positive: in both, the mean derivative of the loss with respect to the positive's score. Triples that already fulfil the
margin have no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_cli import console

FIRST_STEPS = 10
RECENT_STEPS = 10
FEW = 0.1
HARDER = "mine harder negatives (a lower --depth, or --sources run:PATH of a dense run)"
NAMES = {  # name in the learning curve -> name and format in the progress line
    "active_share": ("active", ".0%"),
    "mean_margin": ("margin", ".2f"),
    "positive_similarity": ("positives", ".2f"),
    "negative_similarity": ("negatives", ".2f"),
    "positive_score": ("positives", ".2f"),  # of rerankers
    "negative_score": ("negatives", ".2f"),
}

Curve = Sequence[tuple[int, str, float]]


def line(curve: Curve) -> str:
    """Return the means of the last steps in one line: `active 34%, margin 0.97, positives 0.61, negatives 0.31`."""
    values: dict[str, list[float]] = {name: [] for name in NAMES}
    for step, name, value in reversed(curve):
        if step <= curve[-1][0] - RECENT_STEPS:
            break
        if name in values:
            values[name].append(value)
    means = {name: sum(recent) / len(recent) for name, recent in values.items() if recent}
    return ", ".join(f"{NAMES[name][0]} {mean:{NAMES[name][1]}}" for name, mean in means.items())


def check(curve: Curve, remedy: str = "") -> None:
    """Warn if the first steps have hardly any loss.

    Args:
        curve: step, name, value of all steps so far.
        remedy: advice, in the imperative.
    """
    shares = [value for _, name, value in curve if name == "active_share"]
    if shares and (mean := sum(shares) / len(shares)) < FEW:
        console.warn(
            f"active share {mean:.1%} in the first {len(shares)} steps: hardly any loss is left to learn from"
            + (f"; {remedy}" if remedy else ""),
            code="hardly-any-loss",
            active_share=mean,
            steps=len(shares),
            remedy=remedy,
        )
