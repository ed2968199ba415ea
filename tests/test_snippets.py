"""Snippets of documents."""

from __future__ import annotations

from hybrid_cli.reporting.tables import snippet


def test_a_snippet_starts_near_the_words_of_the_query() -> None:
    text = "Salt. " + "Nothing of interest is here. " * 20 + "Sea water holds salt. " + "The end. " * 20
    shown = snippet(text, "salt in sea water", 100)
    assert "Sea water holds salt." in shown
    assert shown.startswith("... ")
    assert shown.endswith(" ...")
    assert len(shown) <= 110
    assert snippet("short\n text", "absent") == "short text"
    assert snippet("x" * 500, "absent", 100) == "x" * 100 + " ..."
