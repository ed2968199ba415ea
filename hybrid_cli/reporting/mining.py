"""Terminal table of `mine-negatives`: candidates, filters and draws of each source."""

from __future__ import annotations

from collections.abc import Mapping

from hybrid_cli import console


def show_tally(tally: Mapping[str, Mapping[str, int]]) -> None:
    """Print counts per source.

    Args:
        tally: source -> name of the count -> number.
    """
    rows = dict.fromkeys(what for counts in tally.values() for what in counts)
    table = [(what, *(f"{counts.get(what, 0):,}" for counts in tally.values())) for what in rows]
    console.table(("", *tally), table)
