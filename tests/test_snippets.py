"""Snippets begin where the words of the query stand."""

from __future__ import annotations

from hybrid_cli.collections.snippets import snippet


def test_a_snippet_shows_where_the_words_stand_together():
    text = "Salt. " + "Nothing of interest stands here. " * 20 + "Sea water holds salt. " + "The end. " * 20
    shown = snippet(text, "salt in sea water", 100)
    assert "Sea water holds salt." in shown
    assert shown.startswith("... ")
    assert shown.endswith(" ...")
    assert len(shown) <= 110
    assert snippet("short\n text", "absent") == "short text"
    assert snippet("x" * 500, "absent", 100) == "x" * 100 + " ..."
