"""The library in memory: runs and judgments as data frames, dictionaries and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from hybrid_cli import runs
from hybrid_cli.errors import InputError
from hybrid_cli.evaluation import evaluate
from hybrid_cli.fusion import fuse
from hybrid_cli.fusion.methods import METHODS
from hybrid_cli.stages.fuse import fuse as fuse_stage

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
