"""The command `fuse`: exact scores from indexes, warnings, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from command import Notices, Refusal, raises, refusal
from tiny_collection import TINY_DOCUMENTS

from hybrid_cli import artifacts, runs
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.opening import exact
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


@pytest.fixture(scope="module")
def made(tiny_runs: Path) -> Path:
    return tiny_runs


def both(made: Path) -> list[Path]:
    return [made / "bm25.parquet", made / "dense.parquet"]


def indexes(made: Path) -> list[Path]:
    return [made / "bm25", made / "dense"]


def trec_file(path: Path, *rows: tuple[str, str, int, float]) -> Path:
    lines = [f"{qid} Q0 {docid} {rank} {score} tag\n" for qid, docid, rank, score in rows]
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.mark.slow
def test_exact_scores_follow_the_formula_for_all_candidates(
    made: Path, tiny: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    output = fuse(
        both(made), output=tmp_path / "f.parquet", method="weighted-sum", weights="0.5,1", index=indexes(made)
    )
    found = runs.read_run(output)
    queries = pl.read_parquet(tiny / "queries.test.parquet")
    encoder = TransformerEncoder.load(tiny_bert)
    vectors = dict(zip(queries["qid"], encoder.encode_queries(queries["text"].to_list()), strict=True))
    texts = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}
    pairs = pl.concat([runs.read_run(path).select("qid", "docid") for path in both(made)]).unique()
    lexical = open_bm25(made / "bm25").score(pairs, queries)
    titles, bodies = zip(*(texts[docid] for docid in pairs["docid"]), strict=True)
    passages = encoder.encode_documents(titles, bodies)
    dense = [float(vectors[qid] @ passage) for qid, passage in zip(pairs["qid"], passages, strict=True)]
    expected = dict(zip(pairs.iter_rows(), (0.5 * lexical + pl.Series(dense)).to_list(), strict=True))
    assert len(found) == len(expected) > len(runs.read_run(both(made)[0]))
    assert {(qid, docid): score for qid, docid, _, score in found.iter_rows()} == pytest.approx(expected, abs=1e-4)


def test_exact_scores_do_not_depend_on_the_depth(made: Path, tmp_path: Path) -> None:
    shallow = fuse(both(made), output=tmp_path / "a.parquet", method="weighted-sum", depth=1, index=indexes(made))
    deep = fuse(both(made), output=tmp_path / "b.parquet", method="weighted-sum", index=indexes(made))
    scores = {(qid, docid): score for qid, docid, _, score in runs.read_run(deep).iter_rows()}
    assert all(
        scores[qid, docid] == pytest.approx(score, abs=1e-5)
        for qid, docid, _, score in runs.read_run(shallow).iter_rows()
    )


def test_the_manifest_has_the_options_and_an_equal_output_is_kept(made: Path, tmp_path: Path, notices: Notices) -> None:
    output = fuse(both(made), output=tmp_path / "f.parquet", hits=3)
    manifest = artifacts.read_manifest(output, Kind.RUN)
    assert manifest.options == {
        "method": "minmax", "missing": "zero", "normalize": None, "depth": 1000, "weights": [1.0, 1.0], "hits": 3,
    }  # fmt: skip
    assert {role: str(manifest.input_path(role)) for role in manifest.inputs} == {
        "run 1": str(both(made)[0]), "run 2": str(both(made)[1]),
    }  # fmt: skip
    assert manifest.counts["queries"] == 6
    assert notices.says("written", path="f.parquet", queries=6)
    assert runs.read_run(output)["rank"].max() == 3
    fuse(both(made), output=output, hits=3)
    assert notices.says("up-to-date")
    with raises("output-differs", path="f.parquet"):
        fuse(both(made), output=output, hits=4)


def test_raw_scores_of_unequal_scales_warn(tmp_path: Path, notices: Notices) -> None:
    wide = trec_file(tmp_path / "wide.trec", ("q", "a", 1, 90.0), ("q", "b", 2, 10.0))
    narrow = trec_file(tmp_path / "narrow.trec", ("q", "a", 1, 0.9), ("q", "b", 2, 0.8))
    fuse([wide, narrow], output=tmp_path / "a.parquet", method="sum")
    assert notices.says("unequal-spread", run="wide", other="narrow")
    notices.clear()
    fuse([wide, narrow], output=tmp_path / "b.parquet", method="sum", weights=[0.01, 1])
    fuse([wide, narrow], output=tmp_path / "c.parquet", method="minmax")
    equal = trec_file(tmp_path / "equal.trec", ("q", "a", 1, 3.5))
    fuse([wide, equal], output=tmp_path / "d.parquet", method="sum")
    assert not notices.warnings, "no deviation to compare with"


def test_scores_beyond_32_bits_and_one_run_under_two_names_are_refused(tmp_path: Path) -> None:
    large = trec_file(tmp_path / "large.trec", ("q", "a", 1, 3e38))
    other = trec_file(tmp_path / "other.trec", ("q", "a", 1, 3e38))
    for options, message in (
        ({"runs": [large, other]}, refusal("score-not-finite")),
        ({"runs": [large, other], "weights": "1e308,1e308"}, refusal("out-of-range", option="weights")),
        ({"runs": [large, f"again={large}"]}, refusal("repeated-input", path="large.trec")),
    ):
        with raises(message):
            fuse(output=tmp_path / "f.parquet", method="combsum", normalize="none", **options)
        assert not (tmp_path / "f.parquet").exists()


def test_foreign_runs_with_odd_ids_and_several_lists(tmp_path: Path) -> None:
    first = trec_file(tmp_path / "a.trec", ("007", "NA", 1, 3.0), ("007", "1e5", 2, 2.0))
    second = trec_file(tmp_path / "b.trec", ("007", "null", 1, 3.0), ("7", "NA", 1, 2.0))
    third = trec_file(tmp_path / "c.trec", ("007", "1e5", 1, 0.5))
    found = runs.read_run(fuse([first, second, third], output=tmp_path / "f.parquet", method="rrf"))
    assert found.select("qid", "docid").rows() == [("007", "1e5"), ("007", "NA"), ("007", "null"), ("7", "NA")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "weighted-sum", "index": ["bm25"]}, refusal("number-of-values", option="index")),
        ({"method": "weighted-sum", "index": ["dense", "bm25"]}, refusal("other-index", path="bm25.parquet")),
        ({"weights": "1"}, refusal("number-of-weights", option="weights")),
        ({"tune": True}, refusal("other-suffix", expected=".json")),
    ],
)
def test_bad_input_is_refused_before_any_work(
    made: Path, tmp_path: Path, options: dict[str, Any], message: str | Refusal
) -> None:
    options = {**options, "output": tmp_path / options.get("output", "f.parquet")}
    if "index" in options:
        options["index"] = [made / name for name in options["index"]]
    with raises(message):
        fuse(both(made), **options)
    assert not list(tmp_path.iterdir())


def test_exact_scores_refuse_queries_that_have_changed(made: Path, tiny: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("001\twhat does the moon do to the oceans\n")
    run = search(None, queries=queries, index=made / "bm25", hits=1, output=tmp_path / "one.parquet")
    other = search(None, queries=queries, index=made / "dense", hits=1, output=tmp_path / "two.parquet")
    queries.write_text("001\tanother text\n")
    settings: dict[str, Any] = {"output": tmp_path / "f.parquet", "method": "weighted-sum", "index": indexes(made)}
    with raises("input-changed"):
        fuse([run, other], **settings)
    assert len(runs.read_run(fuse([run, other], **settings, queries=tiny, split="test")))


def test_exact_scores_of_a_foreign_run_need_its_queries(made: Path, tiny: Path, tmp_path: Path) -> None:
    foreign = trec_file(tmp_path / "x.trec", ("001", "007", 1, 1.0), ("003", "lungs", 1, 1.0))
    settings: dict[str, Any] = {"output": tmp_path / "f.parquet", "method": "weighted-sum", "index": indexes(made)}
    with raises("queries-missing"):
        fuse([both(made)[0], foreign], **settings)
    assert len(runs.read_run(fuse([both(made)[0], foreign], **settings, queries=tiny, split="test")))


def test_the_encoder_is_opened_once_for_all_blocks(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = Mock(wraps=exact.query_encoder)
    monkeypatch.setattr(exact, "query_encoder", opener)
    run = runs.read_run(made / "dense.parquet")
    scorer = exact.exact_scorer(exact.exact_source(made / "dense.parquet", made / "dense"), run["qid"])
    for part in (run.head(2), run.tail(2)):
        np.testing.assert_allclose(scorer(part.select("qid", "docid")), part["score"], atol=1e-5)
    assert opener.call_count == 1
