"""`index-bm25`: what it writes, what it leaves alone, and how it is tuned."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from command import hybrid

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind, Manifest
from hybrid_cli.errors import HybridError, InputError
from hybrid_cli.lexical import build, lucene
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.lexical.tuning import Setting, tune
from hybrid_cli.stages.index_bm25 import index_bm25


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_bm25(tiny, output=tmp_path_factory.mktemp("index") / "bm25")


def first(index: Path, text: str) -> str:
    return str(LexicalIndex.open(index).search(pl.DataFrame({"qid": ["q"], "text": [text]}), 1)["docid"][0])


def inodes(index: Path) -> dict[str, int]:
    files = sorted(file for part in ("lucene", "impacts") for file in (index / part).rglob("*"))
    return {file.name: file.stat().st_ino for file in files}


def test_the_index_holds_these_files_and_nothing_else(index: Path):
    assert sorted(path.name for path in index.iterdir()) == [
        "bm25.json", "docids.parquet", "impacts", "lucene", "manifest.json",
    ]  # fmt: skip
    assert sorted(path.name for path in (index / "impacts").iterdir()) == [
        "indptr.npy", "lengths.npy", "rows.npy", "terms.parquet", "tfs.npy",
    ]  # fmt: skip
    assert [path.name for path in index.parent.iterdir()] == ["bm25"]


def test_the_manifest_says_what_was_read_and_counted(index: Path):
    manifest = artifacts.read_manifest(index, Kind.LEXICAL_INDEX)
    assert manifest.options == {"fields": ["title", "text"], "language": "en", "k1": 0.9, "b": 0.4, "tune": None}
    assert list(manifest.inputs) == ["corpus"]
    counts = lucene.statistics(index / "lucene")
    assert (manifest.counts["documents"], manifest.counts["empty documents"]) == (12, 12 - counts.counted)
    assert manifest.counts["tokens"] == counts.tokens


def test_title_and_text_are_both_found_and_words_are_stemmed(index: Path):
    assert first(index, "Hamlet") == "hamlet"
    assert first(index, "astronaut's STONE") == "moon landing"
    assert first(index, "pages wordless") == "void"


def test_fields_leave_the_title_out(tiny: Path, tmp_path: Path):
    index = index_bm25(tiny, output=tmp_path / "bm25", fields=["text"])
    manifest = artifacts.read_manifest(index, Kind.LEXICAL_INDEX)
    assert manifest.counts["empty documents"] == 1
    assert LexicalIndex.open(index).search(pl.DataFrame({"qid": ["q"], "text": ["Okapi"]}), 5).is_empty()


def test_the_same_call_again_changes_nothing(tiny: Path, index: Path, capsys: pytest.CaptureFixture[str]):
    before = (index / "manifest.json").read_bytes()
    index_bm25(tiny, output=index)
    assert (index / "manifest.json").read_bytes() == before
    assert "up to date" in capsys.readouterr().err


def test_two_indexes_of_one_corpus_are_equal(tiny: Path, index: Path, tmp_path: Path):
    again = index_bm25(tiny, output=tmp_path / "again", threads=1)
    assert artifacts.fingerprint(again) == artifacts.fingerprint(index)


def test_k1_and_b_are_recorded_without_reading_the_corpus(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    index = index_bm25(tiny, output=tmp_path / "bm25")
    before, made = artifacts.fingerprint(index), inodes(index)
    monkeypatch.setattr("hybrid_cli.stages.index_bm25.build", None)
    index_bm25(tiny, output=index, k1=1.2, b=0.75)
    opened = LexicalIndex.open(index)
    assert (opened.k1, opened.b) == (1.2, 0.75)
    assert inodes(index) == made
    assert artifacts.fingerprint(index) != before
    assert "only k1 and b" in capsys.readouterr().err
    assert (LexicalIndex.open(index, k1=0.5).k1, LexicalIndex.open(index, k1=0.5).b) == (0.5, 0.75)


def test_other_fields_need_overwrite(tiny: Path, index: Path):
    with pytest.raises(InputError, match="fields"):
        index_bm25(tiny, output=index, fields=["text"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k1", "-1"], "--k1"),
        (["--b", "1.5"], "--b"),
        (["--fields", "body"], "--fields body: is title,text or one of the two"),
        (["--tune", "--k1", "1"], "--tune chooses k1 and b"),
        (["--split", "dev"], "add --tune"),
        (["--tune"], "no queries of split 'dev'"),
        (["--tune", "--split", "train", "--tune-measure", "MRP@10"], "did you mean"),
        (["--language", "tlh"], "Anserini has no analyzer"),
        (["--java-heap", "much"], "--java-heap much"),
    ],
)
def test_unusable_options_are_named(tiny: Path, tmp_path: Path, arguments: list[str], message: str):
    done = hybrid("index-bm25", tiny, "--output", tmp_path / "bm25", *arguments)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "bm25").exists()


def test_a_document_id_that_comes_twice_is_named(tmp_path: Path):
    rows = pl.DataFrame(
        [("a", "", "x"), ("b", "", "y"), ("a", "", "z")], schema=["docid", "title", "text"], orient="row"
    )
    corpus, manifest = tmp_path / "corpus.parquet", Manifest(Kind.CORPUS, "test", {}, {})
    artifacts.write_parquet(corpus, [rows.to_arrow()], artifacts.SCHEMAS[Kind.CORPUS], manifest)
    with pytest.raises(InputError, match="docid a stands there a second time"):
        index_bm25(corpus, output=tmp_path / "bm25")


def test_a_corpus_without_a_word_can_be_indexed(tmp_path: Path):
    rows = pl.DataFrame([("a", "", ""), ("b", "The", "of")], schema=["docid", "title", "text"], orient="row")
    corpus, manifest = tmp_path / "corpus.parquet", Manifest(Kind.CORPUS, "test", {}, {})
    artifacts.write_parquet(corpus, [rows.to_arrow()], artifacts.SCHEMAS[Kind.CORPUS], manifest)
    index = index_bm25(corpus, output=tmp_path / "bm25")
    queries = pl.DataFrame({"qid": ["q"], "text": ["word"]})
    assert LexicalIndex.open(index).search(queries, 5).is_empty()
    assert lucene.search(index, queries, 5).is_empty()


def test_an_index_that_lucene_counts_otherwise_is_refused(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build.lucene, "statistics", lambda folder: lucene.Statistics(12, 12, 1))
    with pytest.raises(HybridError, match="Lucene counts 12 documents with 1 tokens"):
        index_bm25(tiny, output=tmp_path / "bm25")
    assert not (tmp_path / "bm25").exists()


def test_what_a_killed_run_finished_is_kept(tiny: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as killed:
        killed.setattr(
            build._Lucene, "finish", lambda thread: (thread.join(), (_ for _ in ()).throw(KeyboardInterrupt))
        )
        with pytest.raises(KeyboardInterrupt):
            index_bm25(tiny, output=tmp_path / "bm25")
    monkeypatch.setattr(build, "_count", None)
    assert artifacts.fingerprint(index_bm25(tiny, output=tmp_path / "bm25")) == artifacts.fingerprint(index)


def test_tuning_records_what_it_chose(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    index = index_bm25(tiny, output=tmp_path / "bm25", tune_measure="nDCG@10", split="test")
    recorded = json.loads((index / "bm25.json").read_text("utf-8"))
    tuning = recorded["tuning"]
    assert (tuning["measure"], tuning["queries"]) == ("nDCG@10", 5)
    best = max(tuning["means"], key=lambda row: row["mean"])["mean"]
    chosen = next(row for row in tuning["means"] if (row["k1"], row["b"]) == (recorded["k1"], recorded["b"]))
    assert chosen["mean"] == pytest.approx(best)
    assert (LexicalIndex.open(index).k1, LexicalIndex.open(index).b) == (recorded["k1"], recorded["b"])
    assert "held-out gain" in capsys.readouterr().err
    assert set(artifacts.read_manifest(index).inputs) == {"corpus", "queries", "qrels"}


def values(table: dict[Setting, list[float]], setting: Setting) -> pl.DataFrame:
    return pl.DataFrame({"qid": [f"q{number}" for number in range(len(table[setting]))], "value": table[setting]})


def test_the_held_out_gain_is_that_of_the_other_halfs_choice():
    table = {(0.9, 0.4): [0.5, 0.5, 0.5, 0.5], (1.2, 0.4): [1.0, 0.4, 1.0, 0.4], (2.0, 0.4): [0.2, 0.9, 0.2, 0.9]}
    tuning = tune(lambda setting: values(table, setting), table, (0.9, 0.4))
    assert tuning.best == (1.2, 0.4)
    assert tuning.means == pytest.approx({(0.9, 0.4): 0.5, (1.2, 0.4): 2.8 / 4, (2.0, 0.4): 2.2 / 4})
    assert tuning.gains == pytest.approx((0.2 - 0.5, 0.4 - 0.5))
    assert tuning.held_out_gain == pytest.approx((2 * (0.2 - 0.5) + 2 * (0.4 - 0.5)) / 4)


def test_of_equal_settings_the_nearest_to_the_baseline_is_chosen():
    table = {(0.9, 0.4): [0.1, 0.1], (4.0, 1.0): [0.7, 0.7], (1.0, 0.4): [0.7, 0.7]}
    assert tune(lambda setting: values(table, setting), table, (0.9, 0.4)).best == (1.0, 0.4)


def test_one_query_cannot_tune():
    with pytest.raises(InputError, match="two judged queries"):
        tune(lambda setting: values({setting: [1.0]}, setting), [(1.0, 0.5)], (0.9, 0.4))
