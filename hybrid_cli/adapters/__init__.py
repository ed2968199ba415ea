"""Retrievers for the frameworks of others; each module needs the extra of its name.

Frameworks find repeated documents by their ids and metadata, so scores and ranks, which differ from query to query, are
not in the metadata.
"""

from __future__ import annotations

from typing import Any

from hybrid_cli.collections.collection import values_of

TITLE = "title"


def metadata_of(hit: dict[str, Any]) -> dict[str, Any]:
    """Return title and metadata of the document of a hit, without nulls."""
    return values_of({TITLE: hit.get(TITLE) or None, **hit.get("metadata", {})})
