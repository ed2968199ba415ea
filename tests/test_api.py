"""The Python interface returns the same results as the commands, for every kind of index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import raises
from tiny_collection import TINY_DOCUMENTS

import hybrid_cli
from hybrid_cli import open_encoder, open_index, open_retriever, open_run
from hybrid_cli.collections import collection
from hybrid_cli.stages.compose import compose

COLUMNS = ["qid", "docid", "rank", "score"]


@pytest.fixture(scope="module")
def made(tiny_runs: Path) -> Path:
    return tiny_runs


@pytest.fixture(scope="module")
def queries(tiny: Path) -> dict[str, str]:
    return dict(collection.read_queries(tiny / "queries.test.parquet").select("qid", "text").iter_rows())


@pytest.mark.parametrize("name", ["bm25", "dense"])
def test_an_index_answers_as_the_command_does(made: Path, queries: dict[str, str], name: str) -> None:
    found = open_index(str(made / name)).search(queries, k=4)
    assert found.columns == [*COLUMNS, "title", "text"]
    assert found.select(COLUMNS).equals(open_run(made / f"{name}.parquet"))


def test_weights_of_several_indexes_are_those_of_a_retriever(made: Path, tmp_path: Path) -> None:
    pair = [made / "dense", made / "bm25"]
    composed = open_retriever(compose(pair, weights="1,0.5", output=tmp_path / "retriever")).search("table salt", k=4)
    assert open_index(*pair, weights=[1, 0.5]).search("table salt", k=4).equals(composed)


def test_texts_are_numbered_and_a_mapping_names_them(made: Path) -> None:
    index = open_index(made / "bm25")
    texts = ["table salt", "moon"]
    assert index.search(texts)["qid"].unique(maintain_order=True).to_list() == ["0", "1"]
    assert index.search({"b": texts[0], "a": texts[1]})["qid"].unique(maintain_order=True).to_list() == ["b", "a"]


def test_texts_that_no_encoder_takes_are_refused(tiny_bert: Path) -> None:
    encoder = open_encoder(tiny_bert, dtype="fp32")
    with raises("other-type"):
        encoder.encode_queries("table salt")
    with raises("other-type"):
        encoder.encode_documents(["a"], "table salt")
    with raises("number-of-values"):
        encoder.encode_documents(["a"], ["b", "c"])


def test_an_encoder_returns_vectors_whose_products_are_the_scores(made: Path, tiny_bert: Path) -> None:
    encoder = open_encoder(tiny_bert, dtype="fp32")
    vectors = encoder.encode_queries(["table salt"])
    assert isinstance(vectors, np.ndarray)
    assert vectors.shape == (1, 16)
    hit = open_index(made / "dense").search("table salt", k=1)
    title, text = next((title, text) for docid, title, text in TINY_DOCUMENTS if docid == hit["docid"][0])
    assert (vectors @ encoder.encode_documents([title], [text]).T).item() == pytest.approx(hit["score"][0], abs=1e-4)


def test_the_package_imports_the_interface_only_when_it_is_used() -> None:
    steps = (
        "import sys, hybrid_cli",
        "assert 'polars' not in sys.modules",
        "hybrid_cli.open_run",
        "sys.modules['polars']",
    )
    subprocess.run([sys.executable, "-c", "; ".join(steps)], check=True)
    with pytest.raises(AttributeError, match="open_nothing"):
        _ = hybrid_cli.open_nothing
