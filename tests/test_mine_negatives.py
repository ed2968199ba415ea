"""Mining as it is run: a real index, real files, what stands in the training examples."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tiny_collection import TINY_DOCUMENTS, TINY_JUDGEMENTS
from typer.testing import CliRunner

from hybrid_cli import artifacts, runs
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError
from hybrid_cli.lexical.index import LexicalIndex
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives

TEXTS = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}


@pytest.fixture(scope="module")
def bm25(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_bm25(tiny, output=tmp_path_factory.mktemp("bm25") / "index")


@pytest.fixture(scope="module")
def mined(tiny: Path, bm25: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("mined") / "train.parquet"
    return mine_negatives(tiny, split="train", index=bm25, num_negatives=3, output=output)


def negatives_of(path: Path) -> pl.DataFrame:
    """One row a negative: qid, positive, and the fields of the negative."""
    frame = pl.read_parquet(path).select("qid", pl.col("docid").alias("positive"), "negatives")
    return frame.explode("negatives", empty_as_null=False).unnest("negatives")


def test_one_row_for_each_query_and_document_judged_relevant(mined):
    artifacts.check_table(mined, Kind.EXAMPLES)
    examples = pl.read_parquet(mined)
    assert set(examples.select("qid", "docid").iter_rows()) == {(qid, d) for qid, d, _ in TINY_JUDGEMENTS["train"]}
    assert examples["negatives"].list.len().to_list() == [3] * 7
    assert examples.filter(qid="t1")["query"].item() == "why are there two high tides a day"


def test_texts_and_titles_are_those_of_the_corpus(mined):
    rows = pl.concat(
        [frame.select("docid", "title", "text") for frame in (pl.read_parquet(mined), negatives_of(mined))]
    )
    assert all(TEXTS[docid] == (title, text) for docid, title, text in rows.iter_rows())


def test_no_negative_is_judged_relevant_for_its_query(mined):
    relevant = {(qid, docid) for qid, docid, _ in TINY_JUDGEMENTS["train"]}
    assert not relevant & set(negatives_of(mined).select("qid", "docid").iter_rows())


def test_lexical_scores_are_the_indexs_also_where_bm25_retrieved_nothing(mined, bm25):
    index = LexicalIndex.open(bm25)
    queries = pl.read_parquet(mined).select("qid", text="query").unique("qid")
    for rows in (pl.read_parquet(mined), negatives_of(mined)):
        exact = index.score(rows.select("qid", "docid"), queries)
        assert rows["lexical_score"].to_list() == exact.to_list()
    unmatched = negatives_of(mined).filter(source="random")
    assert unmatched["lexical_score"].null_count() == 0
    assert (unmatched["lexical_score"] == 0).any()


def test_negatives_called_bm25_are_among_its_hits(mined, bm25):
    queries = pl.read_parquet(mined).select("qid", text="query").unique("qid")
    hits = LexicalIndex.open(bm25).search(queries, 1000)
    negatives = negatives_of(mined).filter(source="bm25")
    assert len(negatives)
    assert not len(negatives.join(hits, on=["qid", "docid"], how="anti"))


def test_depth_and_skip_top_bound_the_ranks(tiny, bm25, tmp_path):
    output = mine_negatives(tiny, split="train", index=bm25, depth=2, skip_top=1, output=tmp_path / "x.parquet")
    negatives = negatives_of(output).filter(source="bm25")
    queries = pl.read_parquet(output).select("qid", text="query").unique("qid")
    hits = LexicalIndex.open(bm25).search(queries, 1000)
    assert set(negatives.join(hits, on=["qid", "docid"])["rank"]) == {2}


def test_the_same_call_gives_the_same_bytes_and_another_seed_others(tiny, bm25, mined, tmp_path):
    again = mine_negatives(tiny, split="train", index=bm25, num_negatives=3, output=tmp_path / "again.parquet")
    other = mine_negatives(tiny, split="train", index=bm25, num_negatives=3, seed=7, output=tmp_path / "other.parquet")
    assert again.read_bytes() == mined.read_bytes()
    assert not pl.read_parquet(other).equals(pl.read_parquet(mined))


def test_the_order_of_the_queries_changes_no_list(tiny, bm25, mined, tmp_path):
    turned = tmp_path / "queries.parquet"
    pl.read_parquet(tiny / "queries.train.parquet").reverse().write_parquet(turned)
    output = mine_negatives(
        tiny, split="train", index=bm25, queries=turned, num_negatives=3, output=tmp_path / "x.parquet"
    )
    keys = ["qid", "docid"]
    assert pl.read_parquet(output).sort(keys).equals(pl.read_parquet(mined).sort(keys))


def test_small_batches_give_the_same_examples(tiny, bm25, mined, tmp_path, monkeypatch):
    monkeypatch.setattr("hybrid_cli.stages.mine_negatives.EXAMPLES_AT_ONCE", 2)
    output = mine_negatives(tiny, split="train", index=bm25, num_negatives=3, output=tmp_path / "x.parquet")
    assert pl.read_parquet(output).equals(pl.read_parquet(mined))


def test_with_prob_0_every_negative_is_random(tiny, bm25, tmp_path):
    output = mine_negatives(tiny, split="train", index=bm25, prob=0, output=tmp_path / "x.parquet")
    assert set(negatives_of(output)["source"]) == {"random"}


def test_a_run_is_a_source_and_needs_no_index(tiny, tmp_path):
    hits = [("t1", docid, float(score)) for score, docid in enumerate(["007", "salt", "NA", "moon landing"])]
    run = runs.ranked(pl.DataFrame(hits, schema={"qid": str, "docid": str, "score": pl.Float32}, orient="row"))
    run.write_parquet(tmp_path / "dense.parquet")
    output = mine_negatives(
        tiny,
        split="train",
        sources=f"run:{tmp_path / 'dense.parquet'}:2,random:1",
        depth=3,
        output=tmp_path / "x.parquet",
    )
    found = negatives_of(output).filter(qid="t1")
    assert set(found.filter(source="dense")["docid"]) <= {"moon landing", "NA", "salt"}
    assert found["source"].sort().to_list() == ["dense", "dense", "random"]
    assert found["lexical_score"].null_count() == 3
    assert set(negatives_of(output).filter(qid="t2")["source"]) == {"random"}  # the run has no hits for it


def copy_of(tiny: Path, folder: Path, **tables: pl.DataFrame) -> Path:
    """The training split of the tiny collection with some of its tables replaced."""
    folder.mkdir()
    for name in ("corpus", "queries.train", "qrels.train"):
        tables.get(name.split(".")[0], pl.read_parquet(tiny / f"{name}.parquet")).write_parquet(
            folder / f"{name}.parquet"
        )
    return folder


def test_a_copy_of_a_positive_is_dropped_unless_asked_for(tiny, tmp_path):
    corpus = pl.read_parquet(tiny / "corpus.parquet")
    copy = corpus.filter(docid="salt").with_columns(docid=pl.lit("salt again"), text=pl.col("text") + " \n ")
    folder = copy_of(tiny, tmp_path / "copied", corpus=pl.concat([corpus, copy]))
    counts = {}
    for keep in (False, True):
        output = mine_negatives(
            folder,
            split="train",
            sources="random:12",
            exclude_same_text=not keep,
            output=tmp_path / f"{keep}.parquet",
        )
        counts[keep] = len(negatives_of(output).filter(qid="t2", docid="salt again"))
    assert counts == {False: 0, True: 2}  # query t2 has two positives, so two rows


def test_the_answer_filter_drops_texts_that_hold_an_answer(tiny, tmp_path):
    queries = pl.read_parquet(tiny / "queries.train.parquet")
    answers = pl.Series("answers", [["Moon"] if qid == "t3" else None for qid in queries["qid"]])
    folder = copy_of(tiny, tmp_path / "answered", queries=queries.with_columns(answers))
    output = mine_negatives(
        folder, split="train", sources="random:11", answer_filter=True, output=tmp_path / "x.parquet"
    )
    found = negatives_of(output)
    assert "007" not in set(found.filter(qid="t3")["docid"])  # "the moon raises two bulges"
    assert "007" in set(found.filter(qid="t2")["docid"])
    tally = artifacts.read_manifest(output).counts["tally"]
    assert tally["random"]["holds an answer"] == 1


def test_an_answer_filter_without_answers_is_refused(tiny, tmp_path):
    with pytest.raises(InputError, match="no question has answers"):
        mine_negatives(tiny, split="train", sources="random:2", answer_filter=True, output=tmp_path / "x.parquet")


def test_queries_without_a_positive_and_positives_without_a_text_are_counted(tiny, tmp_path, capsys):
    qrels = pl.read_parquet(tiny / "qrels.train.parquet").filter(pl.col("qid") != "t1")
    lost = pl.DataFrame({"qid": ["t3"], "docid": ["lost"], "relevance": [1]}, schema=qrels.schema)
    folder = copy_of(tiny, tmp_path / "partial", qrels=pl.concat([qrels, lost]))
    output = mine_negatives(folder, split="train", sources="random:2", output=tmp_path / "x.parquet")
    assert "t1" not in set(pl.read_parquet(output)["qid"])
    assert artifacts.read_manifest(output).counts["queries_without_positive"] == 1
    said = capsys.readouterr().err
    assert "1 documents judged relevant are not in the corpus (lost); left out" in said
    assert "1 queries have no relevant document" in said


def test_a_shortage_is_said_and_never_padded(tiny, tmp_path, capsys):
    output = mine_negatives(tiny, split="train", sources="random:50", output=tmp_path / "x.parquet")
    lengths = pl.read_parquet(output).select("qid", pl.col("negatives").list.len())
    assert set(lengths.iter_rows()) == {(qid, 10 if qid == "t2" else 11) for qid in lengths["qid"]}
    assert "7 examples have fewer negatives than asked for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "bm25 needs --index"),
        ({"sources": "random:1", "skip_top": 9, "depth": 9}, "leaves nothing"),
        ({"sources": "random:1", "prob": 1.5}, "between 0 and 1"),
        ({"sources": "random:1", "qrels": Path("nothing")}, "no such file"),
    ],
)
def test_unusable_options_are_refused_before_any_work(options, words, tiny, tmp_path):
    with pytest.raises(InputError, match=words):
        mine_negatives(tiny, split="train", output=tmp_path / "x.parquet", **options)
    assert not list(tmp_path.iterdir())


def test_an_index_of_another_corpus_is_refused(tiny, bm25, tmp_path):
    corpus = pl.read_parquet(tiny / "corpus.parquet").with_columns(text=pl.col("text") + " more")
    folder = copy_of(tiny, tmp_path / "other", corpus=corpus)
    with pytest.raises(InputError, match="was made from another corpus"):
        mine_negatives(folder, split="train", index=bm25, output=tmp_path / "x.parquet")


def test_the_command_prints_what_each_filter_dropped(tiny, bm25, tmp_path):
    from hybrid_cli.cli import app

    output = tmp_path / "x.parquet"
    command = ["mine-negatives", str(tiny), "--split", "train", "--index", str(bm25), "--output", str(output)]
    done = CliRunner().invoke(app, [*command, "--sources", "bm25:2,random:1"])
    assert done.exit_code == 0, done.output
    assert all(words in done.stdout for words in ("candidates", "judged relevant", "text of a positive", "drawn"))
    assert output.is_file()
