"""Retrievers for the frameworks of others; each module needs the extra of its name.

Frameworks find repeated documents by their ids and metadata, so scores and ranks, which differ from query to query, are
not in the metadata.
"""

from __future__ import annotations

from typing import Any

TITLE = "title"


def metadata_of(hit: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of the document of a hit."""
    return {TITLE: hit[TITLE]} if hit.get(TITLE) else {}
