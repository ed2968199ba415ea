"""A retriever of LangChain."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

from hybrid_cli.api import OpenIndex, open_retriever


class HybridRetriever(BaseRetriever):
    """Documents of a retriever that `hybrid compose` or `hybrid auto` wrote.

    Attributes:
        path: folder of the retriever or of `auto`, or its URL.
        k: documents per query.
        filter: condition over the metadata of documents, such as `year >= 2020 AND lang = 'de'`.
        min_probability: least probability of a document; of a calibrated retriever.
    """

    path: str
    k: int = 10
    filter: str | None = None
    min_probability: float | None = None
    _index: OpenIndex = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the retriever.

        Raises:
            InputError: see `open_retriever`.
        """
        super().model_post_init(context)
        self._index = open_retriever(self.path)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        hits = self._index.search(query, self.k, self.filter, self.min_probability)
        return [
            Document(
                id=hit["docid"],
                page_content=hit.get("text") or "",
                metadata={name: value for name, value in hit.items() if name not in ("qid", "text")},
            )
            for hit in hits.iter_rows(named=True)
        ]
