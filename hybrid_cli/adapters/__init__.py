"""Retrievers for the frameworks of others; each module needs the extra of its name.

Frameworks find repeated documents by their ids and metadata, so scores and ranks, which differ from query to query, are
not in the metadata.
"""

from __future__ import annotations

from typing import Any

from hybrid_cli.collections.collection import values_of
from hybrid_cli.retrieval.retriever import Retriever

TITLE = "title"


def metadata_of(hit: dict[str, Any]) -> dict[str, Any]:
    """Return title and metadata of the document of a hit, without nulls; of a part of a context also its place."""
    place = {"docid": hit["docid"], "place": hit["place"]} if "place" in hit else {}
    return values_of({TITLE: hit.get(TITLE) or None, **place, **(hit.get("metadata") or {})})


def hits_of(
    index: Retriever, query: str, k: int, filter: str | None, least: float | None, context: int | None
) -> list[dict[str, Any]]:
    """Return the hits of a query as dictionaries with an `id`; with `context`, the parts of `Index.context`."""
    if context is None:
        return [{"id": hit["docid"], **hit} for hit in index.search(query, k, filter, least).iter_rows(named=True)]
    parts = index.context(query, context, k, filter).iter_rows(named=True)
    return [{"id": f"{part['docid']}, {part['place']}", "score": None, **part} for part in parts]
