"""Fields of documents besides title and text, and their weights in one index of BM25."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Refusal, hybrid, refusal

from hybrid_cli.lexical import lucene
from hybrid_cli.lexical.analysis import Analyzer
from hybrid_cli.lexical.feedback import Rm3
from hybrid_cli.lexical.impacts import quantize_lengths
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.search import search
from hybrid_cli.stages.train_lambda import train_lambda
from hybrid_cli.stages.update import update

WEIGHTS = {"title": 3, "text": 1, "body": 2}
FIELDS = ["title=3", "text", "body=2"]
WORDS = ["virus", "vaccine", "mask", "trial", "children", "hospital", "dose", "spread", "school", "test"]
QUERIES = pl.DataFrame({"qid": ["a", "b", "c"], "text": ["virus vaccine", "school test test", "the dose of a mask"]})


def articles(path: Path, numbers: range) -> Path:
    """Write articles with titles, abstracts and bodies of random words; some fields are empty or missing."""
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
        done = hybrid("prepare", "files", *files, *columns, "--output", folder / name)
        assert done.code == 0, done.err
        columns_read = {"id": "id", "title": "title", "text": "abstract", "body": "body"}
        assert done.says("columns", columns=columns_read)
    return folder


@pytest.fixture(scope="module")
def index(collection: Path) -> Path:
    return index_bm25(collection / "whole", fields=FIELDS, output=collection / "bm25", threads=1)


def test_passages_keep_the_other_fields(collection: Path, tmp_path: Path) -> None:
    columns = ["--document-columns", "text=abstract,body=body", "--split-passages", "4"]
    done = hybrid("prepare", "files", collection / "first.jsonl", *columns, "--output", tmp_path / "passages")
    assert done.code == 0, done.err
    passages = pl.read_parquet(tmp_path / "passages" / "corpus.parquet")
    whole = pl.read_parquet(collection / "first" / "corpus.parquet")
    assert len(passages) > len(whole)
    found = passages.with_columns(pl.col("docid").str.split("#").list.first()).join(whole, on="docid", suffix="_whole")
    assert len(found) == len(passages)
    assert found["body"].equals(found["body_whole"])
    assert found["title"].equals(found["title_whole"])


def test_scores_are_bm25_of_weighted_term_frequencies_and_lengths(collection: Path, index: Path) -> None:
    """The formula, computed from the counts of each field alone."""
    rows = pl.read_parquet(collection / "whole" / "corpus.parquet")
    analyzer = Analyzer()
    counted = {name: analyzer.analyze(rows[name].to_list()) for name in WEIGHTS}
    lengths = np.sum([[w * len(words) for words in counted[name]] for name, w in WEIGHTS.items()], axis=0)
    assert len(set(lengths.tolist())) > 20
    stored, average, k1, b = quantize_lengths(lengths), lengths.mean(), 0.9, 0.4
    run = open_bm25(index).search(QUERIES, 100)
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


def test_an_index_of_repeated_texts_is_the_same(collection: Path, index: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(collection / "whole" / "corpus.parquet")
    names = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
    repeated = rows.select("docid", title=pl.lit(""), text=pl.concat_str(names, separator=" . "))
    repeated.write_parquet(tmp_path / "repeated.parquet")
    other = index_bm25(tmp_path / "repeated.parquet", output=tmp_path / "bm25", threads=1)
    assert open_bm25(other).search(QUERIES, 100).equals(open_bm25(index).search(QUERIES, 100))


def test_lucene_and_rm3_use_the_weights(index: Path) -> None:
    for rm3 in (None, Rm3(fb_terms=5, fb_docs=3, original_query_weight=0.5)):
        mine = open_bm25(index).search(QUERIES, 100, rm3=rm3)
        other = lucene.search(index, QUERIES, 100, rm3=rm3)
        both = mine.join(other, on=["qid", "docid"], suffix="_lucene")
        assert len(both) == len(mine) == len(other)
        assert ((both["score"] - both["score_lucene"]).abs() <= 1e-4).all()


def test_append_and_shards_read_the_same_fields(collection: Path, index: Path, tmp_path: Path) -> None:
    first = index_bm25(collection / "first", fields=FIELDS, output=tmp_path / "first", threads=1)
    appended = update(first, add=collection / "rest", output=tmp_path / "appended", threads=1)
    expected = open_bm25(index).search(QUERIES, 100)
    assert open_bm25(appended).search(QUERIES, 100).equals(expected)
    index_bm25(collection / "whole", fields=FIELDS, shards=3, output=tmp_path / "shards")
    QUERIES.write_ndjson(tmp_path / "queries.jsonl")
    search(index=tmp_path / "shards" / "shard-*", queries=tmp_path / "queries.jsonl", output=tmp_path / "run.parquet")
    assert pl.read_parquet(tmp_path / "run.parquet").equals(expected.cast({"rank": pl.Int32}))


def test_a_static_encoder_reads_the_weights(collection: Path, index: Path, tmp_path: Path) -> None:
    weighted = index_bm25(collection / "whole", fields="title=2,text", output=tmp_path / "bm25", threads=1)
    plan: dict[str, Any] = {"encoder": "static", "dim": 4, "max_steps": 1, "batch_size": 4}
    folder = train_lambda(collection / "whole", index=weighted, output=tmp_path / "lambda", **plan)
    assert '"fields": [\n    "title",\n    "title",\n    "text"\n  ]' in (folder / "encoder.json").read_text("utf-8")
    done = hybrid("train-lambda", collection / "whole", "--index", index, "--encoder", "static",
                  "--dim", 4, "--output", tmp_path / "no")  # fmt: skip
    assert (done.problem, done.fields["path"], done.fields["field"]) == ("other-fields", index, "body")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("title,plot", refusal("no-such-field", path="corpus.parquet")),
        ("title=0,text", refusal("invalid-value", option="fields")),
        ("title=2,title", refusal("repeated-value", option="fields")),
    ],
)
def test_unusable_fields_are_refused(collection: Path, tmp_path: Path, fields: str, message: str | Refusal) -> None:
    done = hybrid("index-bm25", collection / "whole", "--fields", fields, "--output", tmp_path / "bm25")
    assert done.code == 2
    assert done.is_problem(message)
    assert not (tmp_path / "bm25").exists()
