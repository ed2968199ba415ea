"""The attack `shuffle`: only the words move."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.draws import draw
from hybrid_cli.perturbations.attack import Inputs
from hybrid_cli.perturbations.attacks import ATTACKS
from hybrid_cli.perturbations.edits import shuffle
from hybrid_cli.settings import Perturb


def of(text: str, seed: int = 0, qid: str = "q") -> str:
    return shuffle(text, partial(draw, seed, "shuffle", qid))


@given(st.text(st.sampled_from("ab\u00e9.,-'3 \t\n"), max_size=30), st.integers(0, 9))
def test_the_words_are_permuted_and_the_white_space_is_kept(text: str, seed: int) -> None:
    found = of(text, seed)
    assert Counter(found.split()) == Counter(text.split())
    assert re.split(r"\S+", found) == re.split(r"\S+", text)


def test_all_orders_are_equally_likely() -> None:
    seen = Counter(of("a b c", qid=str(number)) for number in range(6000))
    assert len(seen) == 6
    assert all(850 < count < 1150 for count in seen.values())  # expected 1,000, within five standard deviations


def test_the_shuffle_has_no_counts() -> None:
    inputs = Inputs(pl.DataFrame(), {}, Perturb(Path("queries.tsv"), attacks=["shuffle"], output=Path("out")))
    attacked = ATTACKS["shuffle"].start(inputs)("q", "one", partial(draw, 0, "shuffle", "q"))
    assert (attacked.text, attacked.counts) == ("one", {})
