"""`mine-negatives` end to end: a real index, real files, and the rows of the training examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, Refusal, raises, refusal
from tiny_collection import TINY_JUDGEMENTS

from hybrid_cli import artifacts, runs, storage
from hybrid_cli.opening.lexical import open_bm25
from hybrid_cli.settings import MineNegatives
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.storage import Kind
from hybrid_cli.training.options import RANDOM, Source


@pytest.fixture(scope="module")
def bm25(tiny_bm25: Path) -> Path:
    return tiny_bm25


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


@pytest.mark.parametrize(
    ("documents", "options", "depth"),
    [
        (100, {}, 20),
        (6_035, {}, 26),
        (8_841_823, {}, 991),
        (10**9, {}, 1000),
        (100, {"num_negatives": 30}, 60),
        (6_035, {"skip_top": 10}, 36),
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
        ({"sources": "bm25,random:2"}, refusal("out-of-range", option="sources")),
        ({"sources": "random:99999999999"}, refusal("out-of-range", option="sources")),
        ({"sources": "bm26:2"}, refusal("unknown-choice", option="sources")),
        ({"sources": "bm25:1,bm25:2"}, refusal("repeated-value", option="sources", value="bm25")),
        ({"sources": "bm25:6,random:2", "num_negatives": 9}, refusal("conflicting-options", option="sources")),
        ({"sources": "run:a", "skip_top": 9, "depth": 9}, refusal("out-of-range", option="skip_top")),
    ],
    ids=str,
)
def test_unusable_options_are_refused(options: dict[str, Any], problem: Refusal) -> None:
    with raises(problem):
        settings_of(**options)


def test_an_index_of_another_corpus_is_refused(tiny: Path, bm25: Path, tmp_path: Path) -> None:
    corpus = pl.read_parquet(tiny / "corpus.parquet").with_columns(text=pl.col("text") + " more")
    folder = copy_of(tiny, tmp_path / "other", corpus=corpus)
    with raises("other-corpus"):
        mine_negatives(folder, split="train", index=bm25, output=tmp_path / "x.parquet")
