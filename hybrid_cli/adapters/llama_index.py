"""A retriever of LlamaIndex."""

from __future__ import annotations

import asyncio

from hybrid_cli.adapters import hits_of, metadata_of
from hybrid_cli.api import open_retriever
from hybrid_cli.errors import require_packages

with require_packages():
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode


class HybridRetriever(BaseRetriever):  # type: ignore[misc]  # mypy does not see the base class
    """Nodes of a retriever that `hybrid compose` or `hybrid auto` wrote."""

    def __init__(
        self,
        path: str,
        k: int = 10,
        filter: str | None = None,
        min_probability: float | None = None,
        context: int | None = None,
    ) -> None:
        """Open the retriever.

        Args:
            path: folder of the retriever or of `auto`, or its URL.
            k: documents per query.
            filter: condition over the metadata of documents.
            min_probability: least probability of a document; of a calibrated retriever.
            context: tokens of all nodes, which are the parts of hits of `Index.context`; None for whole hits.

        Raises:
            InputError: see `open_retriever`.
        """
        super().__init__()
        self._index = open_retriever(path)
        self._options = k, filter, min_probability, context

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = hits_of(self._index, query_bundle.query_str, *self._options)
        return [
            NodeWithScore(
                node=TextNode(id_=hit["id"], text=hit.get("text") or "", metadata=metadata_of(hit)),
                score=hit["score"],
            )
            for hit in hits
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)
