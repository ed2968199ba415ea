"""Headings in texts: Markdown, reStructuredText and MediaWiki."""

from __future__ import annotations

import re

HEADING = re.compile(
    r"^[ ]{0,3}\#{1,6}[ \t]+(?P<hashes>\S.*?)[ \t]*\#*[ \t]*$"  # Markdown
    r"|^(?P<equals>={2,6})[ \t]*(?P<wiki>[^\s=].*?)[ \t]*(?P=equals)[ \t]*$"  # MediaWiki
    r"|^[ \t]*(?P<lined>\S.*?)[ \t]*\n[ \t]*(?P<line>[=~^-])(?P=line){2,}[ \t]*$",  # Markdown, reStructuredText
    re.MULTILINE,
)


def heading(match: re.Match[str]) -> str:
    """Return the text of a heading that `HEADING` has found."""
    return str(match["hashes"] or match["wiki"] or match["lined"])
