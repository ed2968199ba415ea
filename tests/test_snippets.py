"""Tables of the terminal, and snippets of documents."""

from __future__ import annotations

import pytest

from hybrid_cli.reporting import tables
from hybrid_cli.reporting.snippets import snippet
from hybrid_cli.reporting.tables import Table


def test_no_cell_is_cut_and_no_line_is_wider_than_80(capsys: pytest.CaptureFixture[str]) -> None:
    for width in range(1, 57):
        tables.show(Table(["a" * width, "b", "c"], [["x" * width, "y" * 20, "z" * 20]]))
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert printed.count("y" * 20) == printed.count("z" * 20) == 56
    assert max(map(len, printed.splitlines())) <= 80


def test_a_snippet_starts_near_the_words_of_the_query() -> None:
    text = "Salt. " + "Nothing of interest is here. " * 20 + "Sea water holds salt. " + "The end. " * 20
    shown = snippet(text, "salt in sea water", 100)
    assert "Sea water holds salt." in shown
    assert shown.startswith("... ")
    assert shown.endswith(" ...")
    assert len(shown) <= 110
    assert snippet("short\n text", "absent") == "short text"
    assert snippet("x" * 500, "absent", 100) == "x" * 100 + " ..."
