"""Regular expressions over kinds of characters, compiled to a table of states.

A state is what is left to match. The state after a character is the derivative of a rule (Brzozowski).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Nothing:
    """The empty text."""


@dataclass(frozen=True)
class One:
    """One character of any of the kinds, a letter each; no text at all without kinds."""

    kinds: str


@dataclass(frozen=True)
class Seq:
    """A text of `first`, then one of `rest`."""

    first: Rule
    rest: Rule


@dataclass(frozen=True)
class Either:
    """A text of any of the options."""

    options: frozenset[Rule]


@dataclass(frozen=True)
class Star:
    """Any number of texts of `rule`."""

    rule: Rule


Rule: TypeAlias = Nothing | One | Seq | Either | Star
_NOTHING, _NEVER = Nothing(), One("")


def seq(*rules: Rule) -> Rule:
    """Return the rule of a text of each rule in turn; equal rules are equal values."""
    first, *others = rules
    if not others:
        return first
    rest = seq(*others)
    if _NEVER in (first, rest):
        return _NEVER
    if isinstance(first, Seq):
        return Seq(first.first, seq(first.rest, rest))
    if _NOTHING in (first, rest):
        return first if rest == _NOTHING else rest
    return Seq(first, rest)


def either(*rules: Rule) -> Rule:
    """Return the rule of a text of any of the rules."""
    options: set[Rule] = set()
    for rule in rules:
        options |= rule.options if isinstance(rule, Either) else {rule}
    options.discard(_NEVER)
    if not options:
        return _NEVER
    return options.pop() if len(options) == 1 else Either(frozenset(options))


def optional(rule: Rule) -> Rule:
    """Return the rule of one text of a rule, or none."""
    return either(_NOTHING, rule)


def plus(rule: Rule) -> Rule:
    """Return the rule of one or more texts of a rule."""
    return seq(rule, Star(rule))


def compile_rule(rule: Rule, kinds: str) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """Compile a rule.

    Args:
        rule: rule of a text.
        kinds: all kinds of characters.

    Returns:
        Next state by state and position in `kinds`, -1 where no text continues; whether a text can end in each state.
        The first state is 0.
    """
    states, rows = [rule], []
    numbers = {rule: 0, _NEVER: -1}
    for state in states:  # grows
        row = [_after(state, kind) for kind in kinds]
        for other in row:
            if other not in numbers:
                numbers[other] = len(states)
                states.append(other)
        rows.append([numbers[other] for other in row])
    return np.array(rows, np.int16), np.array([_can_end(state) for state in states])


@cache
def _can_end(rule: Rule) -> bool:
    match rule:
        case Nothing() | Star():
            return True
        case One():
            return False
        case Seq(first, rest):
            return _can_end(first) and _can_end(rest)
        case Either(options):
            return any(map(_can_end, options))


@cache
def _after(rule: Rule, kind: str) -> Rule:
    """Return what is left of a rule after a character."""
    match rule:
        case Nothing():
            return _NEVER
        case One(kinds):
            return _NOTHING if kind in kinds else _NEVER
        case Star(repeated):
            return seq(_after(repeated, kind), rule)
        case Either(options):
            return either(*(_after(option, kind) for option in options))
        case Seq(first, rest):
            after = seq(_after(first, kind), rest)
            return either(after, _after(rest, kind)) if _can_end(first) else after
