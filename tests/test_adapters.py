"""Retrievers of other frameworks return the hits of `open_retriever`: each with the real package."""

from __future__ import annotations

import asyncio
from pathlib import Path

import polars as pl
import pytest

from hybrid_cli import open_retriever
from hybrid_cli.stages.compose import compose

QUERY = "salt in sea water"


@pytest.fixture(scope="module")
def retriever(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compose([made / "bm25", made / "dense"], output=tmp_path_factory.mktemp("adapters") / "retriever")


@pytest.fixture(scope="module")
def hits(retriever: Path) -> pl.DataFrame:
    return open_retriever(retriever).search(QUERY, 3)


def test_langchain(retriever: Path, hits: pl.DataFrame) -> None:
    pytest.importorskip("langchain_core", reason="langchain-core is not installed: pip install 'hybrid_cli[langchain]'")
    from hybrid_cli.adapters.langchain import HybridRetriever

    adapter = HybridRetriever(path=str(retriever), k=3)
    documents = adapter.invoke(QUERY)
    assert [document.id for document in documents] == hits["docid"].to_list()
    assert [document.page_content for document in documents] == hits["text"].to_list()
    assert [document.metadata["score"] for document in documents] == hits["score"].to_list()
    assert documents[0].metadata["bm25_rank"] == hits["bm25_rank"][0]
    assert [each.id for each in asyncio.run(adapter.ainvoke(QUERY))] == hits["docid"].to_list()


@pytest.mark.exhaustive
def test_llama_index(retriever: Path, hits: pl.DataFrame) -> None:
    pytest.importorskip("llama_index.core", reason="not installed: pip install 'hybrid_cli[llama-index]'")
    from hybrid_cli.adapters.llama_index import HybridRetriever

    nodes = HybridRetriever(str(retriever), k=3).retrieve(QUERY)
    assert [node.node.node_id for node in nodes] == hits["docid"].to_list()
    assert [node.score for node in nodes] == hits["score"].to_list()
    assert nodes[0].node.get_content() == hits["text"][0]


@pytest.mark.exhaustive
def test_haystack(retriever: Path, hits: pl.DataFrame) -> None:
    haystack = pytest.importorskip("haystack", reason="not installed: pip install 'hybrid_cli[haystack]'")
    from hybrid_cli.adapters.haystack import HybridRetriever

    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", HybridRetriever(str(retriever)))
    haystack.core.serialization.allow_deserialization_module("hybrid_cli.adapters.haystack")
    pipeline = haystack.Pipeline.from_dict(pipeline.to_dict())
    documents = pipeline.run({"retriever": {"query": QUERY, "top_k": 3}})["retriever"]["documents"]
    assert [document.id for document in documents] == hits["docid"].to_list()
    assert [document.score for document in documents] == hits["score"].to_list()
