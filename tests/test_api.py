"""The Python interface and the library in memory return the results of the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import pytrec_eval
from command import raises
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tiny_collection import TINY_DOCUMENTS

import hybrid_cli
from hybrid_cli import open_encoder, open_index, open_retriever, open_run, runs
from hybrid_cli.collections import collection
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import evaluate
from hybrid_cli.fusion import fuse
from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.fuse import fuse as fuse_stage

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
    assert open_index(made / name).search([]).columns == found.columns


def test_weights_of_several_indexes_are_those_of_a_retriever(made: Path, tmp_path: Path) -> None:
    pair = [made / "dense", made / "bm25"]
    composed = open_retriever(compose(pair, weights="1,0.5", output=tmp_path / "retriever")).search("table salt", k=4)
    assert open_index(*pair, weights=[1, 0.5]).search("table salt", k=4).equals(composed)


def test_options_of_an_index_are_used_or_refused(made: Path) -> None:
    opened = [open_index(made / "bm25"), open_index(made / "bm25", k1=2.0, b=0.0)]
    scores = [index.search("table salt")["score"][0] for index in opened]
    assert scores[0] != scores[1]
    for name, option, value in (("dense", "k1", 2.0), ("bm25", "weights", [1])):
        given: dict[str, Any] = {option: value}
        with raises("option-does-not-apply", option=option):
            open_index(made / name, **given)


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


BM25 = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"a": 1.5}}
DENSE = {"q1": {"b": 0.9, "d": 0.8}, "q2": {"c": 0.7, "a": 0.1}}
QRELS = {"q1": {"b": 2, "d": 1, "x": 0}, "q2": {"c": 1}}


def as_frame(run: dict[str, dict[str, float]], **names: str) -> pl.DataFrame:
    rows = [(qid, docid, score) for qid, hits in run.items() for docid, score in hits.items()]
    frame = pl.DataFrame(rows, schema=["qid", "docid", "score"], orient="row")
    return frame.rename(names)


def forms(run: dict[str, dict[str, float]], folder: Path) -> dict[str, Any]:
    """Return a run in every form that the library takes."""
    frame = as_frame(run)
    (folder / "run.tsv").write_text(frame.write_csv(separator="\t"))
    return {
        "dictionary": run,
        "polars": frame,
        "pandas": pd.DataFrame(frame.to_dict(as_series=False)),
        "ranx": as_frame(run, qid="q_id", docid="doc_id"),
        "path": folder / "run.tsv",
        "text": str(folder / "run.tsv"),
        "hits": runs.ranked(frame),
    }


def test_every_form_of_a_run_is_the_same_run(tmp_path: Path) -> None:
    wanted = fuse({"bm25": BM25, "dense": DENSE}, weights=[0.4, 0.6])
    for form in forms(BM25, tmp_path).values():
        assert_frame_equal(fuse({"bm25": form, "dense": DENSE}, weights=[0.4, 0.6]), wanted)
        assert evaluate(form, QRELS, ["nDCG@10"]) == evaluate(BM25, QRELS, ["nDCG@10"])


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.missing != "exact"])
def test_the_library_fuses_as_the_command_does(tmp_path: Path, method: str) -> None:
    paths = []
    for name, run in (("bm25", BM25), ("dense", DENSE)):
        paths.append(tmp_path / f"{name}.tsv")
        paths[-1].write_text(as_frame(run).write_csv(separator="\t"))
    wanted = runs.read_run(fuse_stage(paths, method=method, weights=[1, 3], output=tmp_path / "fused.parquet"))
    found = fuse({"bm25": BM25, "dense": DENSE}, method=method, weights={"dense": 3, "bm25": 1})
    assert_frame_equal(found, wanted)


RUNS = st.dictionaries(
    st.sampled_from(["q1", "q2", "3"]),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(-50, 50).map(float), min_size=1),
    min_size=1,
)
JUDGMENTS = st.dictionaries(
    st.sampled_from(["q1", "q2", "3"]),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), min_size=1),
    min_size=1,
)


@given(RUNS, JUDGMENTS)
def test_the_values_are_those_of_trec_eval(run: dict[str, dict[str, float]], qrels: dict[str, dict[str, int]]) -> None:
    common = [qid for qid in run if qid in qrels]
    if not common:
        with pytest.raises(InputError):
            evaluate(run, qrels, ["AP"])
        return
    distinct = {qid: {d: s + ord(d) / 1000 for d, s in hits.items()} for qid, hits in run.items()}
    values = pytrec_eval.RelevanceEvaluator(qrels, {"map", "P_5"}).evaluate(distinct)
    means = {name: sum(each[name] for each in values.values()) / len(qrels) for name in ("map", "P_5")}
    assert evaluate(distinct, qrels, ["AP", "P@5"]) == pytest.approx({"AP": means["map"], "P@5": means["P_5"]})


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: fuse({"a": BM25}), "too-few-runs"),
        (lambda: fuse({"a": BM25, "b": DENSE}, weights=[1]), "number-of-weights"),
        (lambda: fuse({"a": BM25, "b": 7}), "not-a-table"),
        (lambda: fuse({"a": BM25, "b": {"q": 3}}), "not-a-table"),
        (lambda: fuse({"a": BM25, "b": pl.DataFrame({"x": [1]})}), "no-such-column"),
        (lambda: evaluate(BM25, QRELS, "AP"), "not-a-list"),
        (lambda: evaluate(BM25, {"q1": {"a": 1 << 40}}, ["AP"]), "grade-not-a-number"),
        (lambda: evaluate(BM25, {}, ["AP"]), "no-judgments"),
    ],
)
def test_other_values_are_one_clear_error(call: Any, code: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.code == code
