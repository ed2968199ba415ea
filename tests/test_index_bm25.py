"""`index-bm25`: output, reuse, tuning, weights of fields; RM3 computed by hand."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from command import Notices, hybrid, raises, ran
from small_artifacts import lucene_run

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest
from hybrid_cli.artifacts.exact import exact_source
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.errors import HybridError
from hybrid_cli.evaluation.measures import evaluate_run
from hybrid_cli.lexical import lucene
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.lexical.build import Setting, Tuning, tune
from hybrid_cli.lexical.feedback import Rm3, expands, interpolate, relevance_model
from hybrid_cli.lexical.impacts import quantize_lengths
from hybrid_cli.lexical.index import ExpandedQueries
from hybrid_cli.runs import read_run
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_lambda import train_lambda
from hybrid_cli.stages.update import update
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


def test_other_fields_are_not_indexed(tiny: Path, tmp_path: Path) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25", fields=["text"])
    assert artifacts.read_manifest(index).counts["empty documents"] == 1
    assert open_bm25(index).search(pl.DataFrame({"qid": ["q"], "text": ["Okapi"]}), 5).is_empty()


def test_an_interrupted_call_keeps_its_parts_and_threads_change_no_byte(
    tiny: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after both parts are built: the next call builds neither of them."""
    with monkeypatch.context() as interrupted:
        interrupted.setattr("hybrid_cli.lexical.build.lucene.statistics", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index_bm25(tiny, output=tmp_path / "bm25", threads=1)
    monkeypatch.setattr("hybrid_cli.lexical.build.lucene.Writer", None)
    monkeypatch.setattr("hybrid_cli.lexical.build.PostingsBuilder", None)
    made = index_bm25(tiny, output=tmp_path / "bm25", threads=1)
    assert storage.fingerprint(made) == storage.fingerprint(index)
    assert not list(tmp_path.glob(".*"))


def test_a_query_on_the_command_line_imports_only_what_it_uses(index: Path) -> None:
    unused = {"numba", "pandas", "pyarrow.compute", "pydantic", "scipy", "torch"}
    code = f"import atexit, sys\natexit.register(lambda: print({unused} & sys.modules.keys()))\n"
    words = [sys.executable, "-c", f"{code}from hybrid_cli.cli import run\nrun()", "search", "--index", str(index)]
    done = subprocess.run([*words, "--query", "salt water"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


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
    with raises("output-differs", path="bm25"):
        index_bm25(tiny, output=index)
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
    assert lucene_run(index, queries, 5).is_empty()


def test_other_counts_of_lucene_are_an_error(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_cli.lexical.build.lucene.statistics", lambda folder: lucene.Statistics(12, 12, 1))
    with raises("lucene-differs", HybridError):
        index_bm25(tiny, output=tmp_path / "bm25")
    assert not (tmp_path / "bm25").exists()


def values(table: dict[Setting, list[float]], setting: Setting) -> pl.DataFrame:
    return pl.DataFrame({"qid": [f"q{number}" for number in range(len(table[setting]))], "value": table[setting]})


def test_the_held_out_gain_uses_the_choice_of_the_other_half() -> None:
    table = {(0.9, 0.4): [0.5, 0.5, 0.5, 0.5], (1.2, 0.4): [1.0, 0.4, 1.0, 0.4], (2.0, 0.4): [0.2, 0.9, 0.2, 0.9]}
    tuning = tune(lambda setting: values(table, setting), table, (0.9, 0.4))
    assert tuning.best == (1.2, 0.4)
    assert tuning.means == pytest.approx({(0.9, 0.4): 0.5, (1.2, 0.4): 2.8 / 4, (2.0, 0.4): 2.2 / 4})
    assert tuning.gains == pytest.approx((0.2 - 0.5, 0.4 - 0.5))
    assert tuning.held_out_gain == pytest.approx((2 * (0.2 - 0.5) + 2 * (0.4 - 0.5)) / 4)
    tied = {(0.9, 0.4): [0.1, 0.1], (4.0, 1.0): [0.7, 0.7], (1.0, 0.4): [0.7, 0.7]}
    assert tune(lambda setting: values(tied, setting), tied, (0.9, 0.4)).best == (1.0, 0.4)  # the nearest one


def test_tuning_is_recorded(tiny: Path, tmp_path: Path) -> None:
    index = index_bm25(tiny, output=tmp_path / "bm25", tune=True, measure="nDCG@10", split="test")
    recorded = json.loads((index / "bm25.json").read_text("utf-8"))
    means = {(row["k1"], row["b"]): row["mean"] for row in recorded["tuning"]["means"]}
    chosen = (recorded["k1"], recorded["b"])
    assert (recorded["tuning"]["measure"], recorded["tuning"]["queries"]) == ("nDCG@10", 5)
    assert means[chosen] == max(means.values())
    assert (open_bm25(index).k1, open_bm25(index).b) == chosen
    run = search(tiny, split="test", index=[index], output=tmp_path / "run.parquet", threads=1)
    qrels = pl.read_parquet(tiny / "qrels.test.parquet")
    assert evaluate_run(read_run(run), qrels, ["nDCG@10"])["value"].mean() == pytest.approx(means[chosen])
    assert set(artifacts.read_manifest(index).inputs) == {"corpus", "queries", "qrels"}


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
    assert [{name: artifacts.read_manifest(run).counts[name] for name in ("k1", "b")} for run in found] == [
        {"k1": 0.9, "b": 0.4},
        {"k1": 0.9, "b": 1},
    ]
    index_bm25(tiny, output=index, k1=1.2)
    with raises("index-changed"):
        exact_source(found[0], index)


RM3 = Rm3(fb_terms=10, fb_docs=10, original_query_weight=0.5)


def expanded(
    query: Mapping[str, float], documents: Sequence[tuple[Mapping[str, float], float]], settings: Rm3
) -> dict[str, float]:
    ordered = [(sorted(terms.items(), key=lambda item: (-item[1], item[0])), score) for terms, score in documents]
    return interpolate(query, relevance_model(ordered, settings.fb_terms), settings.original_query_weight)


def test_the_expanded_query_is_the_mean_of_the_query_and_its_feedback_documents() -> None:
    documents = [({"a": 3.0, "b": 1.0}, 2.0), ({"b": 1.0}, 1.0)]
    a, b = 3 / 4 * 2, 1 / 4 * 2 + 1
    assert expanded({"q": 1.0, "a": 1.0}, documents, RM3) == pytest.approx(
        {"q": 0.5 / 2, "a": 0.5 / 2 + 0.5 * a / (a + b), "b": 0.5 * b / (a + b)}
    )
    assert expanded({"q": 2.0, "p": 2.0}, [], RM3) == {"p": 0.25, "q": 0.25}
    assert expanded({"q": 2.0}, [({"a": 1.0}, 1.0)], Rm3(10, 10, 1.0)) == {"a": 0.0, "q": 1.0}


def test_a_document_adds_only_its_most_frequent_terms() -> None:
    documents = [({"c": 1.0, "b": 1.0, "a": 2.0}, 1.0)]
    assert set(expanded({"q": 1.0}, documents, Rm3(2, 10, 0.5))) == {"q", "a", "b"}


@pytest.mark.parametrize(
    ("term", "df", "may"),
    [("ab", 10, True), ("a", 1, False), ("a" * 21, 1, False), ("don't", 1, False), ("é2", 1, False), ("ab", 11, False)],
)
def test_only_short_plain_and_uncommon_terms_expand_a_query(term: str, df: int, may: bool) -> None:
    assert expands(term, df, 100) is may


WEIGHTS = {"title": 3, "text": 1, "body": 2}
FIELDS = ["title=3", "text", "body=2"]
WORDS = ["virus", "vaccine", "mask", "trial", "children", "hospital", "dose", "spread", "school", "test"]
QUERIES = pl.DataFrame({"qid": ["a", "b", "c"], "text": ["virus vaccine", "school test test", "the dose of a mask"]})


def articles(path: Path, numbers: range) -> Path:
    draw = random.Random(numbers.start)
    rows = [
        {
            "id": f"d{number}",
            "title": " ".join(draw.choices(WORDS, k=draw.randint(1, 3))),
            "abstract": " ".join(draw.choices(WORDS, k=draw.randint(2, 12))),
            "body": " ".join(draw.choices(WORDS, k=draw.randint(0, 60))) if number % 7 else None,
        }
        for number in numbers
    ]
    pl.DataFrame(rows).write_ndjson(path)
    return path


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("articles")
    for name, numbers in (("first", range(30)), ("rest", range(30, 40)), ("whole", range(0))):
        files = (
            [articles(folder / f"{name}.jsonl", numbers)]
            if numbers
            else [folder / "first.jsonl", folder / "rest.jsonl"]
        )
        columns = ["--document-columns", "text=abstract,body=body"]
        done = ran("prepare", "files", *files, *columns, "--output", folder / name)
        columns_read = {"id": "id", "title": "title", "text": "abstract", "body": "body"}
        assert done.says("columns", columns=columns_read)
    return folder


@pytest.fixture(scope="module")
def index_fields(collection: Path) -> Path:
    return index_bm25(collection / "whole", fields=FIELDS, output=collection / "bm25", threads=1)


def test_passages_keep_the_other_fields(collection: Path, tmp_path: Path) -> None:
    columns = ["--document-columns", "text=abstract,body=body", "--split-passages", "4"]
    ran("prepare", "files", collection / "first.jsonl", *columns, "--output", tmp_path / "passages")
    passages = pl.read_parquet(tmp_path / "passages" / "corpus.parquet")
    whole = pl.read_parquet(collection / "first" / "corpus.parquet")
    assert len(passages) > len(whole)
    found = passages.with_columns(pl.col("docid").str.split("#").list.first()).join(whole, on="docid", suffix="_whole")
    assert len(found) == len(passages)
    assert found["body"].equals(found["body_whole"])
    assert found["title"].equals(found["title_whole"])


def test_scores_are_bm25_of_weighted_term_frequencies_and_lengths(collection: Path, index_fields: Path) -> None:
    """The formula, computed from the counts of each field alone."""
    rows = pl.read_parquet(collection / "whole" / "corpus.parquet")
    analyzer = Analyzer()
    counted = {name: analyzer.analyze(rows[name].to_list()) for name in WEIGHTS}
    lengths = np.sum([[w * len(words) for words in counted[name]] for name, w in WEIGHTS.items()], axis=0)
    assert len(set(lengths.tolist())) > 20
    stored, average, k1, b = quantize_lengths(lengths), lengths.mean(), 0.9, 0.4
    run = open_bm25(index_fields).search(QUERIES, 100)
    for qid, text in QUERIES.rows():
        scores = np.zeros(len(rows))
        for term in analyzer.analyze([text])[0]:
            tf = np.sum([[w * words.count(term) for words in counted[name]] for name, w in WEIGHTS.items()], axis=0)
            df = np.count_nonzero(tf)
            idf = math.log(1 + (len(rows) - df + 0.5) / (df + 0.5))
            scores += idf * tf / (tf + k1 * (1 - b + b * stored / average))
        expected = {docid: score for docid, score in zip(rows["docid"], scores, strict=True) if score > 0}
        found = dict(run.filter(pl.col("qid") == qid).select("docid", "score").iter_rows())
        assert found == pytest.approx(expected, abs=1e-5)


def test_an_index_of_repeated_texts_is_the_same(collection: Path, index_fields: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(collection / "whole" / "corpus.parquet")
    names = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
    repeated = rows.select("docid", title=pl.lit(""), text=pl.concat_str(names, separator=" . "))
    repeated.write_parquet(tmp_path / "repeated.parquet")
    other = index_bm25(tmp_path / "repeated.parquet", output=tmp_path / "bm25", threads=1)
    assert open_bm25(other).search(QUERIES, 100).equals(open_bm25(index_fields).search(QUERIES, 100))


def test_a_common_factor_of_all_weights_is_a_factor_of_k1(collection: Path, tmp_path: Path) -> None:
    """Lengths up to 40 tokens are stored exactly, so that the scores are equal."""
    plain = index_bm25(collection / "whole", output=tmp_path / "plain", k1=0.9, threads=1)
    twice = index_bm25(collection / "whole", fields="title=2,text=2", output=tmp_path / "twice", k1=1.8, threads=1)
    one, two = (open_bm25(each).search(QUERIES, 100).sort("qid", "docid") for each in (plain, twice))
    assert one.select("qid", "docid").equals(two.select("qid", "docid"))
    np.testing.assert_allclose(one["score"], two["score"], atol=1e-6)


def test_lucene_and_rm3_use_the_weights(index_fields: Path) -> None:
    for rm3 in (None, Rm3(fb_terms=5, fb_docs=3, original_query_weight=0.5)):
        mine = (ExpandedQueries(open_bm25(index_fields), rm3) if rm3 else open_bm25(index_fields)).search(QUERIES, 100)
        other = lucene_run(index_fields, QUERIES, 100, rm3=rm3)
        both = mine.join(other, on=["qid", "docid"], suffix="_lucene")
        assert len(both) == len(mine) == len(other)
        assert ((both["score"] - both["score_lucene"]).abs() <= 1e-4).all()


def test_append_and_shards_read_the_same_fields(collection: Path, index_fields: Path, tmp_path: Path) -> None:
    first = index_bm25(collection / "first", fields=FIELDS, output=tmp_path / "first", threads=1)
    appended = update(first, add=collection / "rest", output=tmp_path / "appended", threads=1)
    expected = open_bm25(index_fields).search(QUERIES, 100)
    assert open_bm25(appended).search(QUERIES, 100).equals(expected)
    index_bm25(collection / "whole", fields=FIELDS, shards=3, output=tmp_path / "shards")
    QUERIES.write_ndjson(tmp_path / "queries.jsonl")
    search(index=tmp_path / "shards" / "shard-*", queries=tmp_path / "queries.jsonl", output=tmp_path / "run.parquet")
    assert pl.read_parquet(tmp_path / "run.parquet").equals(expected.cast({"rank": pl.Int32}))


def test_a_static_encoder_reads_the_weights(collection: Path, index_fields: Path, tmp_path: Path) -> None:
    weighted = index_bm25(collection / "whole", fields="title=2,text", output=tmp_path / "bm25", threads=1)
    plan: dict[str, Any] = {"encoder": "static", "dim": 4, "max_steps": 1, "batch_size": 4}
    folder = train_lambda(collection / "whole", index=weighted, output=tmp_path / "lambda", **plan)
    assert '"fields": [\n    "title",\n    "title",\n    "text"\n  ]' in (folder / "encoder.json").read_text("utf-8")
    words = ("train-lambda", collection / "whole", "--index", index_fields, "--encoder", "static", "--dim", 4)
    done = hybrid(*words, "--output", tmp_path / "no")
    assert (done.problem, done.fields["path"], done.fields["field"]) == ("other-fields", index_fields, "body")
