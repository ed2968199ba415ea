"""`index-bm25`: output, reuse of an existing index, and tuning."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from command import Notices, raises

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.errors import HybridError
from hybrid_cli.lexical import lucene
from hybrid_cli.lexical.build import Setting, Tuning, tune
from hybrid_cli.opening.exact import exact_source
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_bm25(tiny, output=tmp_path_factory.mktemp("index") / "bm25")


def first(index: Path, text: str) -> str:
    return str(open_bm25(index).search(pl.DataFrame({"qid": ["q"], "text": [text]}), 1)["docid"][0])


def inodes(index: Path) -> dict[str, int]:
    files = sorted(file for part in ("lucene", "impacts") for file in (index / part).rglob("*"))
    return {file.name: file.stat().st_ino for file in files}


def test_titles_and_texts_are_indexed_and_stemmed(index: Path) -> None:
    assert first(index, "Hamlet") == "hamlet"
    assert first(index, "astronaut's STONE") == "moon landing"
    assert first(index, "pages wordless") == "void"


def test_another_k1_and_b_are_stored_without_reading_the_corpus(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: Notices
) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25")
    before, made = storage.fingerprint(index), inodes(index)
    monkeypatch.setattr("hybrid_cli.stages.index_bm25.build", None)
    index_bm25(tiny, output=index, k1=1.2, b=0.75)
    opened = open_bm25(index)
    assert (opened.k1, opened.b) == (1.2, 0.75)
    assert inodes(index) == made
    assert storage.fingerprint(index) != before
    assert notices.says("written", path=index, k1=1.2, b=0.75, reused=True)
    assert (open_bm25(index, k1=0.5).k1, open_bm25(index, k1=0.5).b) == (0.5, 0.75)


def test_a_duplicate_document_id_is_refused(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        [("a", "", "x"), ("b", "", "y"), ("a", "", "z")], schema=["docid", "title", "text"], orient="row"
    )
    corpus, manifest = tmp_path / "corpus.parquet", Manifest(Kind.CORPUS, "test", {}, {})
    storage.write_parquet(corpus, [rows.to_arrow()], storage.SCHEMAS[Kind.CORPUS], manifest)
    with raises("duplicate-id", path="corpus.parquet", id="a"):
        index_bm25(corpus, output=tmp_path / "bm25")


def test_a_corpus_without_words_can_be_indexed(tmp_path: Path, notices: Notices) -> None:
    rows = pl.DataFrame([("a", "", ""), ("b", "The", "of")], schema=["docid", "title", "text"], orient="row")
    corpus, manifest = tmp_path / "corpus.parquet", Manifest(Kind.CORPUS, "test", {}, {})
    storage.write_parquet(corpus, [rows.to_arrow()], storage.SCHEMAS[Kind.CORPUS], manifest)
    index = index_bm25(corpus, output=tmp_path / "bm25")
    assert notices.says("no-terms", path=index, option="fields")
    queries = pl.DataFrame({"qid": ["q"], "text": ["word"]})
    assert open_bm25(index).search(queries, 5).is_empty()
    assert lucene.search(index, queries, 5).is_empty()


def test_different_counts_of_lucene_and_the_matrix_are_an_error(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybrid_cli.lexical.build.lucene.statistics", lambda folder: lucene.Statistics(12, 12, 1))
    with raises("lucene-differs", HybridError):
        index_bm25(tiny, output=tmp_path / "bm25")
    assert not (tmp_path / "bm25").exists()


def test_tuning_is_recorded(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25", tune=True, measure="nDCG@10", split="test")
    recorded = json.loads((index / "bm25.json").read_text("utf-8"))
    tuning = recorded["tuning"]
    assert (tuning["measure"], tuning["queries"]) == ("nDCG@10", 5)
    best = max(tuning["means"], key=lambda row: row["mean"])["mean"]
    chosen = next(row for row in tuning["means"] if (row["k1"], row["b"]) == (recorded["k1"], recorded["b"]))
    assert chosen["mean"] == pytest.approx(best)
    assert (open_bm25(index).k1, open_bm25(index).b) == (recorded["k1"], recorded["b"])
    assert notices.says("tuned", measure="nDCG@10", queries=5)
    manifest = artifacts.read_manifest(index)
    assert set(manifest.inputs) == {"corpus", "queries", "qrels"}
    assert manifest.options == {
        "fields": ["title", "text"], "language": "en", "lucene": True, "tune": True, "measure": "nDCG@10",
    }  # fmt: skip


def values(table: dict[Setting, list[float]], setting: Setting) -> pl.DataFrame:
    return pl.DataFrame({"qid": [f"q{number}" for number in range(len(table[setting]))], "value": table[setting]})


def test_the_held_out_gain_uses_the_choice_of_the_other_half() -> None:
    table = {(0.9, 0.4): [0.5, 0.5, 0.5, 0.5], (1.2, 0.4): [1.0, 0.4, 1.0, 0.4], (2.0, 0.4): [0.2, 0.9, 0.2, 0.9]}
    tuning = tune(lambda setting: values(table, setting), table, (0.9, 0.4))
    assert tuning.best == (1.2, 0.4)
    assert tuning.means == pytest.approx({(0.9, 0.4): 0.5, (1.2, 0.4): 2.8 / 4, (2.0, 0.4): 2.2 / 4})
    assert tuning.gains == pytest.approx((0.2 - 0.5, 0.4 - 0.5))
    assert tuning.held_out_gain == pytest.approx((2 * (0.2 - 0.5) + 2 * (0.4 - 0.5)) / 4)


@pytest.mark.parametrize("exists", [True, False])
def test_tuning_without_a_held_out_gain_keeps_k1_and_b(
    tiny: Path, tmp_path: Path, notices: Notices, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    start = (1.2, 0.75) if exists else (0.9, 0.4)
    index = tmp_path / "bm25"
    if exists:
        index_bm25(tiny, output=index, k1=1.2, b=0.75)

    def no_gain(evaluate: object, grid: object, baseline: Setting) -> Tuning:
        assert baseline == start
        return Tuning((3.0, 1.0), baseline, {(3.0, 1.0): 0.6, baseline: 0.5}, (-0.1, 0.0), 6)

    monkeypatch.setattr("hybrid_cli.stages.index_bm25.tune", no_gain)
    index_bm25(tiny, output=index, tune=True, split="test")
    opened = open_bm25(index)
    assert (opened.k1, opened.b) == start
    assert notices.says("no-tuning-gain", k1=start[0], b=start[1])


def test_a_run_records_k1_and_b_and_fuse_reports_a_changed_index(tiny: Path, tmp_path: Path) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25")
    found = [
        search(tiny, split="test", index=[index], output=tmp_path / f"{b}.parquet", b=b, threads=1) for b in (None, 1)
    ]
    assert [
        {name: artifacts.read_manifest(run).counts[name] for name in ("k1", "b")} for run in found
    ] == [{"k1": 0.9, "b": 0.4}, {"k1": 0.9, "b": 1}]  # fmt: skip
    index_bm25(tiny, output=index, k1=1.2)
    with raises("index-changed"):
        exact_source(found[0], index)
