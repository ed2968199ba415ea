"""Attacks that move words about: nothing but the words moves."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.perturbations.attack import Given, draw
from hybrid_cli.perturbations.attacks import ATTACKS
from hybrid_cli.perturbations.words import shuffle


def of(text: str, seed: int = 0, qid: str = "q") -> str:
    return shuffle(text, partial(draw, seed, "shuffle", qid))


@given(st.text(st.sampled_from("ab\u00e9.,-'3 \t\n"), max_size=30), st.integers(0, 9))
def test_the_words_are_a_permutation_and_the_white_space_stays(text: str, seed: int):
    found = of(text, seed)
    assert Counter(found.split()) == Counter(text.split())
    assert re.split(r"\S+", found) == re.split(r"\S+", text)


def test_every_order_is_as_likely():
    seen = Counter(of("a b c", qid=str(number)) for number in range(6000))
    assert len(seen) == 6
    assert all(850 < count < 1150 for count in seen.values())  # 1,000 each, five deviations


def test_an_attack_of_words_counts_nothing_of_its_own():
    attacked = ATTACKS["shuffle"].begin(Given(pl.DataFrame()))("q", "one", partial(draw, 0, "shuffle", "q"))
    assert (attacked.text, attacked.counts) == ("one", {})
