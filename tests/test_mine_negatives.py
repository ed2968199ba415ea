"""`mine-negatives` end to end: a real index, real files, and the rows of the training examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, Refusal, hybrid, raises, refusal
from tiny_collection import TINY_DOCUMENTS, TINY_JUDGEMENTS

from hybrid_cli import artifacts, runs, storage
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.settings import MineNegatives
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.storage import Kind
from hybrid_cli.training.options import RANDOM, Source

TEXTS = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}


@pytest.fixture(scope="module")
def bm25(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_bm25(tiny, output=tmp_path_factory.mktemp("bm25") / "index")


@pytest.fixture(scope="module")
def mined(tiny: Path, bm25: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("mined") / "train.parquet"
    return mine_negatives(tiny, split="train", index=bm25, num_negatives=3, output=output)


def negatives_of(path: Path) -> pl.DataFrame:
    """Return one row per negative: qid, positive, and the fields of the negative."""
    frame = pl.read_parquet(path).select("qid", pl.col("docid").alias("positive"), "negatives")
    return frame.explode("negatives", empty_as_null=False).unnest("negatives")


# ------------------------------------------------------------------------------------------------------------- examples


def test_one_row_per_query_and_relevant_document(mined: Path) -> None:
    storage.check_table(mined, Kind.EXAMPLES)
    examples = pl.read_parquet(mined)
    assert set(examples.select("qid", "docid").iter_rows()) == {(qid, d) for qid, d, _ in TINY_JUDGEMENTS["train"]}
    assert examples["negatives"].list.len().to_list() == [3] * 7
    assert examples.filter(qid="t1")["query"].item() == "why are there two high tides a day"


def test_titles_and_texts_come_from_the_corpus(mined: Path) -> None:
    rows = pl.concat(
        [frame.select("docid", "title", "text") for frame in (pl.read_parquet(mined), negatives_of(mined))]
    )
    assert all(TEXTS[docid] == (title, text) for docid, title, text in rows.iter_rows())


def test_no_negative_is_relevant_to_its_query(mined: Path) -> None:
    relevant = {(qid, docid) for qid, docid, _ in TINY_JUDGEMENTS["train"]}
    assert not relevant & set(negatives_of(mined).select("qid", "docid").iter_rows())


def test_lexical_scores_are_exact_also_for_documents_that_bm25_did_not_retrieve(mined: Path, bm25: Path) -> None:
    index = open_bm25(bm25)
    queries = pl.read_parquet(mined).select("qid", text="query").unique("qid")
    for rows in (pl.read_parquet(mined), negatives_of(mined)):
        exact = index.score(rows.select("qid", "docid"), queries)
        assert rows["lexical_score"].to_list() == exact.to_list()
    unmatched = negatives_of(mined).filter(source="random")
    assert unmatched["lexical_score"].null_count() == 0
    assert (unmatched["lexical_score"] == 0).any()


def test_negatives_of_source_bm25_are_hits_of_bm25(mined: Path, bm25: Path) -> None:
    queries = pl.read_parquet(mined).select("qid", text="query").unique("qid")
    hits = open_bm25(bm25).search(queries, 1000)
    negatives = negatives_of(mined).filter(source="bm25")
    assert len(negatives)
    assert not len(negatives.join(hits, on=["qid", "docid"], how="anti"))


def test_depth_and_skip_top_bound_the_ranks(tiny: Path, bm25: Path, tmp_path: Path) -> None:
    output = mine_negatives(tiny, split="train", index=bm25, depth=2, skip_top=1, output=tmp_path / "x.parquet")
    negatives = negatives_of(output).filter(source="bm25")
    queries = pl.read_parquet(output).select("qid", text="query").unique("qid")
    hits = open_bm25(bm25).search(queries, 1000)
    assert set(negatives.join(hits, on=["qid", "docid"])["rank"]) == {2}


@pytest.mark.parametrize(
    ("documents", "options", "depth"),
    [
        (100, {}, 20),
        (3_600, {}, 20),
        (6_035, {}, 26),
        (49_378, {}, 74),
        (8_841_823, {}, 991),
        (10**9, {}, 1000),
        (100, {"num_negatives": 30}, 60),  # at least twice the negatives
        (6_035, {"skip_top": 10}, 36),
        (6_035, {"depth": 50}, 50),
        (6_035, {"depth": "auto"}, 26),
        (6_035, {"sources": "random"}, None),
    ],
)
def test_the_depth_grows_with_the_collection(documents: int, options: dict[str, Any], depth: int | None) -> None:
    settings = MineNegatives(Path("tiny"), index=Path("bm25"), output=Path("x.parquet"), **options)
    assert settings.with_depth(documents).depth == depth


def test_the_depth_of_the_collection_is_recorded_and_printed(
    tiny: Path, bm25: Path, tmp_path: Path, notices: Notices
) -> None:
    output = mine_negatives(tiny, split="train", index=bm25, output=tmp_path / "x.parquet")
    assert notices.says("written", path=output, depths=[20])
    assert artifacts.read_manifest(output).options["depth"] == 20
    same = mine_negatives(tiny, split="train", index=bm25, depth=20, output=tmp_path / "x.parquet")
    assert same == output, "an explicit depth of the same value is up to date"
    random = mine_negatives(tiny, split="train", index=bm25, sources="random", output=tmp_path / "random.parquet")
    assert "depth" not in artifacts.read_manifest(random).options
    assert notices.says("written", path=random, depths=[])


def test_equal_settings_give_equal_bytes_and_another_seed_gives_others(
    tiny: Path, bm25: Path, mined: Path, tmp_path: Path
) -> None:
    again = mine_negatives(tiny, split="train", index=bm25, num_negatives=3, output=tmp_path / "again.parquet")
    other = mine_negatives(tiny, split="train", index=bm25, num_negatives=3, seed=7, output=tmp_path / "other.parquet")
    assert again.read_bytes() == mined.read_bytes()
    assert not pl.read_parquet(other).equals(pl.read_parquet(mined))


def test_the_order_of_the_queries_changes_no_list(tiny: Path, bm25: Path, mined: Path, tmp_path: Path) -> None:
    reversed_ = tmp_path / "queries.parquet"
    pl.read_parquet(tiny / "queries.train.parquet").reverse().write_parquet(reversed_)
    output = mine_negatives(
        tiny, split="train", index=bm25, queries=reversed_, num_negatives=3, output=tmp_path / "x.parquet"
    )
    keys = ["qid", "docid"]
    assert pl.read_parquet(output).sort(keys).equals(pl.read_parquet(mined).sort(keys))


def test_small_batches_give_the_same_examples(
    tiny: Path, bm25: Path, mined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybrid_cli.training.mining.EXAMPLES_AT_ONCE", 2)
    output = mine_negatives(tiny, split="train", index=bm25, num_negatives=3, output=tmp_path / "x.parquet")
    assert pl.read_parquet(output).equals(pl.read_parquet(mined))


# -------------------------------------------------------------------------------------------------- sources and filters


def test_prob_0_gives_random_negatives_only(tiny: Path, bm25: Path, tmp_path: Path) -> None:
    output = mine_negatives(tiny, split="train", index=bm25, prob=0, output=tmp_path / "x.parquet")
    assert set(negatives_of(output)["source"]) == {"random"}


def test_a_run_is_a_source_that_needs_no_index(tiny: Path, tmp_path: Path) -> None:
    hits = [("t1", docid, float(score)) for score, docid in enumerate(["007", "salt", "NA", "moon landing"])]
    run = runs.ranked(pl.DataFrame(hits, schema={"qid": str, "docid": str, "score": pl.Float32}, orient="row"))
    run.write_parquet(tmp_path / "dense.parquet")
    output = mine_negatives(
        tiny,
        split="train",
        sources=[f"run:{tmp_path / 'dense.parquet'}:2", "random:1"],
        depth=3,
        output=tmp_path / "x.parquet",
    )
    found = negatives_of(output).filter(qid="t1")
    assert set(found.filter(source="dense")["docid"]) <= {"moon landing", "NA", "salt"}
    assert found["source"].sort().to_list() == ["dense", "dense", "random"]
    assert found["lexical_score"].null_count() == 3
    assert set(negatives_of(output).filter(qid="t2")["source"]) == {"random"}, "the run has no hits for it"
    options = artifacts.read_manifest(output).options
    assert options["sources"] == {"dense": 2, "random": 1}
    assert "num_negatives" not in options


def copy_of(tiny: Path, folder: Path, **tables: pl.DataFrame) -> Path:
    """Return a copy of the training split of the tiny collection with some tables replaced."""
    folder.mkdir()
    for name in ("corpus", "queries.train", "qrels.train"):
        tables.get(name.split(".")[0], pl.read_parquet(tiny / f"{name}.parquet")).write_parquet(
            folder / f"{name}.parquet"
        )
    return folder


def test_a_copy_of_a_positive_is_dropped_by_default(tiny: Path, tmp_path: Path) -> None:
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
    assert counts == {False: 0, True: 2}, "query t2 has two positives, so two rows"


def test_the_answer_filter_drops_texts_that_contain_an_answer(tiny: Path, tmp_path: Path) -> None:
    queries = pl.read_parquet(tiny / "queries.train.parquet")
    answers = pl.Series("answers", [["Moon"] if qid == "t3" else None for qid in queries["qid"]])
    folder = copy_of(tiny, tmp_path / "answered", queries=queries.with_columns(answers))
    output = mine_negatives(
        folder, split="train", sources="random:11", answer_filter=True, output=tmp_path / "x.parquet"
    )
    found = negatives_of(output)
    assert "007" not in set(found.filter(qid="t3")["docid"]), "the moon raises two bulges"
    assert "007" in set(found.filter(qid="t2")["docid"])
    counts = artifacts.read_manifest(output).counts["tally"]["random"]
    assert counts["contains an answer"] == 1
    assert counts["candidates"] == 7 * 12, "candidates are counted once, before all filters"


def test_an_answer_filter_without_answers_is_refused(tiny: Path, tmp_path: Path) -> None:
    with raises("needs-answers", option="answer_filter"):
        mine_negatives(tiny, split="train", sources="random:2", answer_filter=True, output=tmp_path / "x.parquet")


def test_queries_without_a_positive_and_positives_outside_the_corpus_are_counted(
    tiny: Path, tmp_path: Path, notices: Notices
) -> None:
    qrels = pl.read_parquet(tiny / "qrels.train.parquet").filter(pl.col("qid") != "t1")
    lost = pl.DataFrame({"qid": ["t3"], "docid": ["lost"], "relevance": [1]}, schema=qrels.schema)
    folder = copy_of(tiny, tmp_path / "partial", qrels=pl.concat([qrels, lost]))
    output = mine_negatives(folder, split="train", sources="random:2", output=tmp_path / "x.parquet")
    assert "t1" not in set(pl.read_parquet(output)["qid"])
    assert artifacts.read_manifest(output).counts["queries_without_positive"] == 1
    assert notices.says("documents-outside-corpus", path="partial", count=1, ids=["lost"])
    assert notices.says("queries-skipped", count=1)


def test_a_short_list_is_reported_and_not_padded(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    output = mine_negatives(tiny, split="train", sources="random:50", output=tmp_path / "x.parquet")
    lengths = pl.read_parquet(output).select("qid", pl.col("negatives").list.len())
    assert set(lengths.iter_rows()) == {(qid, 10 if qid == "t2" else 11) for qid in lengths["qid"]}
    assert notices.says("few-negatives", count=7)


# ------------------------------------------------------------------------------------------------------------- settings


def settings_of(**options: Any) -> MineNegatives:
    return MineNegatives(Path("data"), output=Path("out.parquet"), **options)


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({"index": "bm25"}, [Source("bm25", 8)]),
        ({"sources": "random", "num_negatives": 3}, [Source(RANDOM, 3)]),
        ({"sources": "bm25:6, random:2", "index": "bm25"}, [Source("bm25", 6), Source(RANDOM, 2)]),
        ({"sources": ["bm25:6", "random:2"], "index": "bm25"}, [Source("bm25", 6), Source(RANDOM, 2)]),
        ({"sources": "run:out/dense.parquet:4"}, [Source("dense", 4, Path("out/dense.parquet"))]),
        ({"sources": "run:out/bm25.parquet:4"}, [Source("run:bm25", 4, Path("out/bm25.parquet"))]),
    ],
    ids=str,
)
def test_sources_are_parsed(options: dict[str, Any], plan: list[Source]) -> None:
    assert settings_of(**options).plan() == plan


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, refusal("missing-option", option="index")),
        ({"sources": "bm25,random:2"}, refusal("out-of-range", option="sources")),
        ({"sources": "bm25:0"}, refusal("out-of-range", option="sources")),
        ({"sources": "random:x"}, refusal("out-of-range", option="sources")),
        ({"sources": "random:99999999999"}, refusal("out-of-range", option="sources")),
        ({"sources": "bm26:2"}, refusal("unknown-choice", option="sources")),
        ({"sources": "run:"}, refusal("unknown-choice", option="sources")),
        ({"sources": "bm25:1,bm25:2"}, refusal("repeated-value", option="sources", value="bm25")),
        ({"sources": "bm25:6,random:2", "num_negatives": 9}, refusal("conflicting-options", option="sources")),
        ({"sources": ""}, refusal("missing-value", option="sources")),
        ({"sources": "run:a", "skip_top": 9, "depth": 9}, refusal("out-of-range", option="skip_top")),
        ({"sources": "run:a", "prob": 1.5}, refusal("out-of-range", option="prob")),
        ({"sources": "run:a", "relative_margin": 0}, refusal("out-of-range", option="relative_margin")),
        (
            {"sources": "random", "split": "train", "queries": "q", "qrels": "r"},
            refusal("conflicting-options", option="split"),
        ),
        *(
            ({"sources": "random:2", name: 1}, refusal("option-does-not-apply", option=name))
            for name in ("depth", "skip_top", "prob", "relative_margin", "max_score")
        ),
    ],
    ids=str,
)
def test_unusable_options_are_refused(options: dict[str, Any], problem: Refusal) -> None:
    with raises(problem):
        settings_of(**options)


def test_options_of_sources_that_rank_are_not_recorded_for_random_negatives(tiny: Path, tmp_path: Path) -> None:
    output = mine_negatives(tiny, split="train", sources="random:2", output=tmp_path / "x.parquet")
    assert artifacts.read_manifest(output).options == {
        "sources": {"random": 2}, "exclude_same_text": True, "answer_filter": False, "seed": 42, "positives": "all",
    }  # fmt: skip


def test_a_missing_file_is_refused_before_any_work(tiny: Path, tmp_path: Path) -> None:
    with raises("no-such-file", path="nothing"):
        mine_negatives(tiny, split="train", sources="random:1", qrels=Path("nothing"), output=tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())


def test_an_index_of_another_corpus_is_refused(tiny: Path, bm25: Path, tmp_path: Path) -> None:
    corpus = pl.read_parquet(tiny / "corpus.parquet").with_columns(text=pl.col("text") + " more")
    folder = copy_of(tiny, tmp_path / "other", corpus=corpus)
    with raises("other-corpus"):
        mine_negatives(folder, split="train", index=bm25, output=tmp_path / "x.parquet")


def test_the_command_prints_the_counts_of_each_filter(tiny: Path, bm25: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.parquet"
    options = ["--split", "train", "--index", bm25, "--sources", "bm25:2", "--sources", "random:1"]
    done = hybrid("mine-negatives", tiny, *options, "--output", output)
    assert done.code == 0, done.err
    assert all(words in done.out for words in ("candidates", "judged relevant", "text of a positive", "drawn"))
    assert artifacts.read_manifest(output).options["sources"] == {"bm25": 2, "random": 1}
