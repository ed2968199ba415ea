"""The Python interface returns the same results as the commands, for every kind of index."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Notices, raises
from tiny_collection import TINY_DOCUMENTS

import hybrid_cli
from hybrid_cli import InputError, open_encoder, open_index, open_retriever, open_run, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.collections import collection
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.storage import Kind

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


def test_options_of_the_search_are_those_of_the_command(made: Path) -> None:
    index = open_index(made / "bm25", k1=2.0, b=0.0)
    assert index.search("table salt")["score"][0] != open_index(made / "bm25").search("table salt")["score"][0]
    with raises("option-does-not-apply", option="k1"):
        open_index(made / "dense", k1=2.0)
    for depth in (0, 2.5):
        with pytest.raises(InputError) as caught:
            index.search("salt", k=depth)  # type: ignore[arg-type]
        assert caught.value.code == "invalid-depth"
    assert index.search("salt", k=np.int64(1)).height == 1  # type: ignore[arg-type]
    for wrong, code in (([1], "not-a-text"), ({"a": None}, "no-text"), (7, "not-a-list"), (None, "not-a-list")):
        with pytest.raises(InputError) as caught:
            index.search(wrong)
        assert caught.value.code == code
    with raises("option-does-not-apply", option="weights"):
        open_index(made / "bm25", weights=[1])
    with raises("missing-value", option="paths"):
        open_index()
    with raises("no-such-file"):
        open_index(made / "nothing")


def test_texts_that_no_encoder_takes_are_refused(tiny_bert: Path) -> None:
    encoder = open_encoder(tiny_bert, dtype="fp32")
    with raises("other-type"):
        encoder.encode_queries("table salt")
    with raises("other-type"):
        encoder.encode_documents(["a"], "table salt")
    with raises("number-of-values"):
        encoder.encode_documents(["a"], ["b", "c"])


def test_titles_of_a_changed_corpus_are_warned_about(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    corpus = tmp_path / "corpus.parquet"
    shutil.copy(tiny / "corpus.parquet", corpus)
    index = index_bm25(corpus, output=tmp_path / "bm25", threads=1)
    rows = collection.scan(tiny).drop("corpus_row").collect().with_columns(title=pl.lit("another title"))
    storage.write_parquet(
        corpus, [rows.to_arrow()], storage.SCHEMAS[Kind.CORPUS], Manifest(Kind.CORPUS, "test", {}, {})
    )
    notices.clear()
    open_index(index)
    assert notices.says("corpus-changed", paths=[corpus], missing=[])


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
