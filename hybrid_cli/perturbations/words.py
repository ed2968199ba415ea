"""Attacks that move words about."""

from __future__ import annotations

import re

from hybrid_cli.perturbations.attack import Draw


def shuffle(text: str, draw: Draw) -> str:
    """The words between white space in a random order, the white space where it was (SPAR 6.2, methods 7.3).

    Every order is as likely as any other, the present one included. A bag of words stays what it is.
    """
    words = re.findall(r"\S+", text)
    order = iter(sorted(range(len(words)), key=lambda place: draw(str(place))))
    return re.sub(r"\S+", lambda _: words[next(order)], text)
