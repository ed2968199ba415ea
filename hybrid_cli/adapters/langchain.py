"""A retriever of LangChain."""

from __future__ import annotations

import asyncio
from typing import Any

from hybrid_cli.adapters import hits_of, metadata_of
from hybrid_cli.api import open_retriever
from hybrid_cli.errors import require_packages
from hybrid_cli.retrieval.retriever import Retriever

with require_packages():
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import Field, PrivateAttr

_OF_DOCUMENTS = ("id", "qid", "docid", "title", "text", "metadata", "place")


class Hit(Document):
    """A document that a query returned; documents are equal whatever their scores.

    Attributes:
        hit: rank, score, and rank and score in each index.
    """

    hit: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)

    def __eq__(self, other: object) -> bool:
        """Compare the documents."""
        if not isinstance(other, Document):
            return NotImplemented
        return (self.id, self.page_content, self.metadata) == (other.id, other.page_content, other.metadata)

    __hash__ = None  # type: ignore[assignment]  # as of every `Document`


class HybridRetriever(BaseRetriever):
    """Documents of a retriever that `hybrid compose` or `hybrid auto` wrote.

    Attributes:
        path: folder of the retriever or of `auto`, or its URL.
        k: documents per query.
        filter: condition over the metadata of documents, such as `year >= 2020 AND lang = 'de'`.
        min_probability: least probability of a document; of a calibrated retriever.
        context: tokens of all documents, which are the parts of hits of `Index.context`; None for whole hits.
    """

    path: str
    k: int = 10
    filter: str | None = None
    min_probability: float | None = None
    context: int | None = None
    _index: Retriever = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the retriever.

        Raises:
            InputError: see `open_retriever`.
        """
        super().model_post_init(context)
        self._index = open_retriever(self.path)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun | None = None,
        k: int | None = None,
        filter: str | None = None,
        min_probability: float | None = None,
    ) -> list[Document]:
        """Return the hits of a query; `k`, `filter` and `min_probability` replace those of the retriever."""
        least = self.min_probability if min_probability is None else min_probability
        hits = hits_of(self._index, query, k or self.k, filter or self.filter, least, self.context)
        return [
            Hit(
                id=hit["id"],
                page_content=hit.get("text") or "",
                metadata=metadata_of(hit),
                hit={name: value for name, value in hit.items() if name not in _OF_DOCUMENTS},
            )
            for hit in hits
        ]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return await asyncio.to_thread(self._get_relevant_documents, query, **options)
