"""A few deterministic inputs of `make fuzz` for every reader."""

from collections.abc import Iterator

import pytest
from fuzz import attack
from fuzz_inputs import COUNTS, TARGETS
from hypothesis import HealthCheck, settings

from hybrid_cli import console


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    console.set_quiet(True)
    yield
    console.set_quiet(False)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_reader_returns_what_was_written_or_refuses_it(name: str) -> None:
    COUNTS.clear()
    attack(name, 0, settings(max_examples=15, database=None, suppress_health_check=list(HealthCheck)))
    assert COUNTS["accepted"] > 0
    assert COUNTS["refused"] > 0
