"""Two circles whose areas and whose overlap are true to three counts."""

from __future__ import annotations

from dataclasses import dataclass
from math import acos, pi, sqrt

from scipy.optimize import brentq


@dataclass(frozen=True)
class Circle:
    """A circle with its centre on the line y = 0; an area of 1 is one query."""

    x: float
    radius: float

    @property
    def left(self) -> float:
        """Where it begins on the line of the centres."""
        return self.x - self.radius

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.x + self.radius

    def drawn(self, scale: float, shift: float) -> Circle:
        """The same at another scale, moved to the right."""
        return Circle(self.x * scale + shift, self.radius * scale)


def radius(count: float) -> float:
    """Of the circle with that area."""
    return sqrt(count / pi)


def lens(one: float, other: float, distance: float) -> float:
    """The area that two circles have in common.

    Args:
        one, other: their radii.
        distance: of their centres.
    """
    small, large = sorted((one, other))
    if distance >= small + large:
        return 0.0
    if distance <= large - small:
        return pi * small**2
    # Two segments, cut off by the common chord at `near` from the small centre (below 0 where it lies behind it).
    near = (distance**2 + small**2 - large**2) / (2 * distance)
    return _segment(small, near) + _segment(large, distance - near)


def _segment(size: float, at: float) -> float:
    """The part of a circle of radius `size` beyond a chord at the distance `at` from its centre."""
    at = max(-size, min(size, at))
    return size**2 * acos(at / size) - at * sqrt(size**2 - at**2)


def circles(one: int, other: int, both: int) -> tuple[Circle, Circle]:
    """The circle of the first set, which begins at 0, and that of the second, to its right.

    Sets without a common member touch from outside; one that holds the other touches it from inside.

    Args:
        one, other: members of each set.
        both: how many they have in common, at most the smaller of the two.
    """
    first, second = radius(one), radius(other)
    nearest, farthest = abs(first - second), first + second
    if both == 0 or both == min(one, other):
        distance = nearest if both else farthest
    else:
        distance = float(brentq(lambda d: lens(first, second, d) - both, nearest, farthest, xtol=1e-12 * farthest))
    left = min(0.0, first + distance - second)  # a second circle around the first begins before it
    return Circle(first - left, first), Circle(first + distance - left, second)
