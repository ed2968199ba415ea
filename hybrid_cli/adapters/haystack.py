"""A component of Haystack."""

from __future__ import annotations

from typing import Any

from hybrid_cli.adapters import hits_of, metadata_of
from hybrid_cli.api import open_retriever
from hybrid_cli.errors import require_packages
from hybrid_cli.retrieval.retriever import Retriever

with require_packages():
    from haystack import Document, component, default_from_dict, default_to_dict


@component
class HybridRetriever:
    """Documents of a retriever that `hybrid compose` or `hybrid auto` wrote; it is opened at the first run."""

    def __init__(
        self,
        path: str,
        top_k: int = 10,
        filter: str | None = None,
        min_probability: float | None = None,
        context: int | None = None,
    ) -> None:
        """Name the retriever.

        Args:
            path: folder of the retriever or of `auto`, or its URL.
            top_k: documents per query.
            filter: condition over the metadata of documents.
            min_probability: least probability of a document; of a calibrated retriever.
            context: tokens of all documents, which are the parts of hits of `Index.context`; None for whole hits.
        """
        self.path, self.top_k, self.filter, self.min_probability = path, top_k, filter, min_probability
        self.context = context
        self._index: Retriever | None = None

    def warm_up(self) -> None:
        """Open the retriever.

        Raises:
            InputError: see `open_retriever`.
        """
        self._index = self._index or open_retriever(self.path)

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, query: str, top_k: int | None = None, filter: str | None = None) -> dict[str, list[Document]]:
        """Return the documents of a query.

        Args:
            query: text of the query.
            top_k, filter: in place of those of the component.
        """
        self.warm_up()
        assert self._index is not None
        how = top_k or self.top_k, filter or self.filter, self.min_probability, self.context
        return {
            "documents": [
                Document(
                    id=hit["id"],
                    content=hit.get("text") or "",
                    score=hit["score"],
                    meta=metadata_of(hit),
                )
                for hit in hits_of(self._index, query, *how)
            ]
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the component as Haystack stores it in a pipeline."""
        options = {name: getattr(self, name) for name in ("path", "top_k", "filter", "min_probability", "context")}
        stored: dict[str, Any] = default_to_dict(self, **options)
        return stored

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HybridRetriever:
        """Return the component of a stored pipeline."""
        restored: HybridRetriever = default_from_dict(cls, data)
        return restored
