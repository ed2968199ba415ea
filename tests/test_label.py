"""`label` as it is run: sentences or questions in, shards of labels out; killed, begun again, refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from command import hybrid
from small_artifacts import write_corpus, write_run
from tiny_collection import TINY_DOCUMENTS, TINY_QUERIES, write_lines

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.collections import collection as collections
from hybrid_cli.collections.sentences import Sentences, word_counts
from hybrid_cli.config import Labelling
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.runs import read_run
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.label import label
from hybrid_cli.training.labels import Labels, shard_path

SMALL = 3  # queries in a shard


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_bm25(tiny, output=tmp_path_factory.mktemp("label") / "bm25", threads=1)


def labels_of(tiny: Path, output: Path, **settings) -> pl.DataFrame:
    names = {name: settings.pop(name) for name in list(settings) if name in Labelling.__dataclass_fields__}
    label(tiny, output=output, how=Labelling(**names), threads=1, **settings)
    return pl.concat(Labels(output).tables())


def counts_of(path: Path) -> dict:
    return artifacts.read_manifest(path, Kind.LABELS).counts


def test_every_sentence_gets_what_search_finds_for_it(tiny, index, tmp_path, capsys):
    found = labels_of(tiny, tmp_path / "labels", index=index, queries_from="all", depth=4)
    sentences = pl.concat(Sentences(tiny, "all", 0).blocks())
    run = LexicalIndex.open(index).search(sentences, 4)
    assert found["qid"].to_list() == run["qid"].unique(maintain_order=True).to_list()
    lists = found.explode("docids", "scores").select("qid", docid="docids", score="scores")
    assert lists.equals(run.select("qid", "docid", "score"))
    assert (found["docids"].list.first() == found["source"]).all(), "a sentence is nearest to where it is from"
    assert counts_of(tmp_path / "labels") == {
        "documents": 12, "empty_documents": 1, "sentences": 15, "short_sentences": 0, "available": 15,
        "queries": 15, "labelled": 15, "without_hits": 0, "hits": len(run), "shards": 1,
    }  # fmt: skip
    assert f"15 queries with {len(run)} hits; 0 without a hit dropped" in capsys.readouterr().err
    label(tiny, output=tmp_path / "labels", index=index, how=Labelling("all", depth=4))
    assert "is up to date" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{}, {"max_queries": 7}, {"queries_from": "cropped"}], ids=str)
def test_the_size_of_a_shard_changes_nothing(tiny, index, tmp_path, settings):
    """And so memory, which holds one shard, does not grow with the queries."""
    whole = labels_of(tiny, tmp_path / "whole", index=index, **settings)
    parts = labels_of(tiny, tmp_path / "parts", index=index, shard_size=SMALL, **settings)
    assert whole.equals(parts)
    sizes = [len(table) for table in Labels(tmp_path / "parts").tables()]
    assert max(sizes) == SMALL
    assert len(sizes) == -(-counts_of(tmp_path / "parts")["queries"] // SMALL) > 1


def test_deep_lists_make_smaller_shards(tiny, index, tmp_path):
    labels_of(tiny, tmp_path / "labels", index=index, depth=1 << 21, queries_from="all")
    assert [len(table) for table in Labels(tmp_path / "labels").tables()] == [2] * 7 + [1]


def test_given_questions_keep_their_ids_and_those_without_a_hit_are_dropped(tiny, index, tmp_path, capsys):
    """005 is made of stop words, 006 of words that no document has."""
    found = labels_of(tiny, tmp_path / "labels", index=index, split="test")
    assert found["qid"].to_list() == ["001", "002", "003", "004"]
    assert found["text"].to_list() == [text for _, text in TINY_QUERIES["test"][:4]]
    assert found["source"].null_count() == 4
    assert "4 queries with 9 hits; 2 without a hit dropped" in capsys.readouterr().err
    assert counts_of(tmp_path / "labels")["without_hits"] == 2


def test_a_part_of_the_queries_is_drawn_from_all_of_them(tiny, index, tmp_path):
    whole = labels_of(tiny, tmp_path / "whole", index=index, queries_from="all")
    parts = [
        labels_of(tiny, tmp_path / f"part{seed}", index=index, queries_from="all", max_queries=5, seed=seed)
        for seed in (1, 2)
    ]
    assert all(len(part) == 5 and len(part.join(whole, on=whole.columns)) == 5 for part in parts)
    assert not parts[0].equals(parts[1])
    assert not any(part.equals(whole.head(5)) for part in parts)


def test_a_run_teaches_as_the_index_that_made_it(tiny, index, tmp_path):
    run = tmp_path / "run.parquet"
    queries = collections.read_queries(collections.queries_path(tiny, "test"))
    hits = LexicalIndex.open(index).search(queries, 10)
    write_run(run, hits.rows())
    by_run = labels_of(tiny, tmp_path / "by-run", run=run, split="test", depth=2)
    assert by_run.equals(labels_of(tiny, tmp_path / "by-index", index=index, split="test", depth=2))
    assert by_run["docids"].list.len().max() == 2
    assert read_run(run)["rank"].max() > 2, "the run was deeper"


def test_crops_have_the_lengths_of_the_training_questions(tiny, index, tmp_path):
    found = labels_of(tiny, tmp_path / "labels", index=index, queries_from="cropped")
    lengths = set(word_counts(pl.Series([text for _, text in TINY_QUERIES["train"]])))
    whole = pl.concat(Sentences(tiny, "all", 0).blocks()).select("qid", whole="text")
    cut = found.join(whole, on="qid").filter(pl.col("text") != pl.col("whole"))
    assert len(cut) > len(found) / 2
    assert set(word_counts(cut["text"])) <= lengths
    assert set(artifacts.read_manifest(tmp_path / "labels").inputs) == {"corpus", "index", "questions"}


def test_a_corpus_of_one_sentence_is_enough(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.parquet", ["", "Only one sentence here", ""])
    index = index_bm25(corpus, output=tmp_path / "bm25", threads=1)
    found = labels_of(corpus, tmp_path / "labels", index=index)
    assert found.select("qid", "source", "docids").rows() == [("d1#1", "d1", ["d1"])]
    with pytest.raises(InputError, match="the teacher finds nothing for any of 1 queries"):
        labels_of(corpus, tmp_path / "none", index=index, keep_own=False)
    assert not (tmp_path / ".none.partial").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from hybrid_cli.config import Labelling
from hybrid_cli.stages.label import label
from hybrid_cli.training import labels
whole = labels.artifacts.write_parquet
def dies_in_the_third(path, *rest):
    if path.name.endswith("00002.parquet"):
        path.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(path, *rest)
labels.artifacts.write_parquet = dies_in_the_third
label(Path(sys.argv[1]), output=Path(sys.argv[3]), index=Path(sys.argv[2]), how=Labelling(shard_size=3), threads=1)
"""


def test_a_killed_labelling_goes_on_with_the_first_missing_shard(tiny, index, tmp_path):
    plain, output = tmp_path / "plain", tmp_path / "labels"
    labels_of(tiny, plain, index=index, shard_size=SMALL)
    killed = subprocess.run([sys.executable, "-c", KILLED, tiny, index, output], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not output.exists()
    partial = tmp_path / ".labels.partial"
    done = [shard_path(partial, number) for number in range(2)]
    assert [path for path in sorted(partial.rglob("part-*.parquet")) if not path.name.startswith(".")] == done
    written = [path.stat().st_mtime_ns for path in done]
    labels_of(tiny, output, index=index, shard_size=SMALL)
    assert [shard_path(output, number).stat().st_mtime_ns for number in range(2)] == written
    assert artifacts.fingerprint(output) == artifacts.fingerprint(plain)
    assert counts_of(output) == counts_of(plain)
    names = {str(path.relative_to(plain)) for path in plain.rglob("*")}
    assert {str(path.relative_to(output)) for path in output.rglob("*")} == names


def test_the_command_and_what_inspect_says_of_its_output(tiny, index, tmp_path):
    output = tmp_path / "labels"
    done = hybrid("label", tiny, "--index", index, "--max-queries", 9, "--depth", 5, "--drop-own", "--output", output)
    assert done.code == 0, done.err
    assert artifacts.read_manifest(output).options == {
        "queries_from": "sampled", "max_queries": 9, "depth": 5, "keep_own": False, "keep_same_text": True,
        "shard_size": Labelling.shard_size, "seed": Labelling.seed,
    }  # fmt: skip
    table = pl.concat(Labels(output).tables())
    assert not table.filter(pl.col("docids").list.contains(pl.col("source"))).height
    told = hybrid("inspect", output).out
    assert "teacher labels, made by `label`" in told
    assert "without_hits" in told
    assert f"{len(table)} rows" in told


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "a teacher is needed, one: --index (BM25) or --run"),
        ("--index {index} --run run.tsv --split test", "a teacher is needed, one"),
        ("--index {index} --depth 0", "depth"),
        ("--index {index} --max-queries 0", "max-queries"),
        ("--run run.tsv", "--run ranks given questions, not sentences; name them with --split or --queries"),
        ("--index {index} --split test --drop-own", "--drop-own: given questions are of no passage"),
        ("--index {index} --split nowhere", "has no queries of split 'nowhere'; there are: test, train"),
        ("--index {tiny}", "is a collection (made by `prepare trec`); a lexical index is needed here"),
        ("--run run.tsv --split test", "1 of its documents are not in"),
        ("--run run.tsv --split train", "answers none of the 6 queries"),
        ("--index {index} --queries none.tsv", "holds no queries"),
        ("--index {index} --queries-from some", "queries-from"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tiny, index, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    write_lines(Path("run.tsv"), "001 Q0 007 1 2.0 x", "001 Q0 elsewhere 2 1.0 x")
    write_lines(Path("none.tsv"))
    before = sorted(Path().iterdir())
    done = hybrid("label", tiny, *words.format(index=index, tiny=tiny).split(), "--output", "labels")
    assert done.code == 2
    assert complaint in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert sorted(Path().iterdir()) == before


def test_depth_below_one_is_refused_by_the_function_too(tiny, index, tmp_path):
    with pytest.raises(InputError, match="--depth 0: at least one hit is needed"):
        labels_of(tiny, tmp_path / "labels", index=index, depth=0)
    with pytest.raises(InputError, match="--max-queries 0: at least one query is needed"):
        labels_of(tiny, tmp_path / "labels", index=index, max_queries=0)


def test_an_index_of_another_corpus_and_a_corpus_without_sentences_are_refused(tiny, index, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.parquet", [text for *_, text in TINY_DOCUMENTS])
    with pytest.raises(InputError, match="was made from another corpus"):
        labels_of(corpus, tmp_path / "labels", index=index)
    short = write_corpus(tmp_path / "short.parquet", ["", "Too short."])
    bm25 = index_bm25(short, output=tmp_path / "bm25", threads=1)
    with pytest.raises(InputError, match="holds no sentence of 3 words or more"):
        labels_of(short, tmp_path / "labels", index=bm25)
    assert not (tmp_path / "labels").exists()
