"""mine-negatives: candidates, filters and draws; rows of the examples; several training sets; negatives of a file."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Notices, raises
from hypothesis import given
from hypothesis import strategies as st
from tiny_collection import TINY_DOCUMENTS, TINY_JUDGEMENTS

from hybrid_cli import artifacts, runs, storage
from hybrid_cli.artifacts.opening import open_bm25
from hybrid_cli.collections.readers.tevatron import given_negatives
from hybrid_cli.commands import MineNegatives
from hybrid_cli.stages.mine_negatives import mine_negatives
from hybrid_cli.storage import Kind
from hybrid_cli.training import mining
from hybrid_cli.training.mining import REPLACEMENTS, SHORT, Tally
from hybrid_cli.training.options import RANDOM, NegativeSource


@pytest.fixture(scope="module")
def mined(tiny: Path, tiny_bm25: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("mined") / "train.parquet"
    return mine_negatives(tiny, split="train", index=tiny_bm25, negatives=3, output=output)


def negatives_of(path: Path) -> pl.DataFrame:
    frame = pl.read_parquet(path).select("qid", pl.col("docid").alias("positive"), "negatives")
    return frame.explode("negatives", empty_as_null=False).unnest("negatives")


def test_one_row_per_query_and_relevant_document(mined: Path) -> None:
    storage.check_table(mined, Kind.EXAMPLES)
    examples = pl.read_parquet(mined)
    assert set(examples.select("qid", "docid").iter_rows()) == {(qid, d) for qid, d, _ in TINY_JUDGEMENTS["train"]}
    assert examples["negatives"].list.len().to_list() == [3] * 7
    assert examples.filter(qid="t1")["query"].item() == "why are there two high tides a day"
    texts = {docid: (title, text) for docid, title, text in TINY_DOCUMENTS}
    for rows in (examples, negatives_of(mined)):
        assert all(texts[row[0]] == row[1:] for row in rows.select("docid", "title", "text").iter_rows())
    relevant = set(examples.select("qid", "docid").iter_rows())
    assert not relevant & set(negatives_of(mined).select("qid", "docid").iter_rows())


def test_lexical_scores_are_exact_also_for_documents_that_bm25_did_not_retrieve(mined: Path, tiny_bm25: Path) -> None:
    index = open_bm25(tiny_bm25)
    queries = pl.read_parquet(mined).select("qid", text="query").unique("qid")
    for rows in (pl.read_parquet(mined), negatives_of(mined)):
        exact = index.score(rows.select("qid", "docid"), queries)
        assert rows["lexical_score"].to_list() == exact.to_list()
    unmatched = negatives_of(mined).filter(source="random")
    assert unmatched["lexical_score"].null_count() == 0
    assert (unmatched["lexical_score"] == 0).any()


DEPTH_GROWS_WITH: list[Any] = [(100, {}, 20), (6_035, {}, 26), (8_841_823, {}, 991), (10**9, {}, 1000)]
DEPTH_GROWS_WITH += [(100, {"negatives": 30}, 60), (6_035, {"skip_top": 10}, 36), (6_035, {"depth": "auto"}, 26)]
DEPTH_GROWS_WITH += [(6_035, {"sources": "random"}, None)]


@pytest.mark.parametrize(("documents", "options", "depth"), DEPTH_GROWS_WITH)
def test_the_depth_grows_with_the_collection(documents: int, options: dict[str, Any], depth: int | None) -> None:
    settings = MineNegatives(Path("tiny"), index=Path("bm25"), output=Path("x.parquet"), **options)
    assert settings.with_depth(documents).depth == depth


def test_equal_settings_give_equal_bytes(tiny: Path, tiny_bm25: Path, mined: Path, tmp_path: Path) -> None:
    again = mine_negatives(tiny, split="train", index=tiny_bm25, negatives=3, output=tmp_path / "again.parquet")
    other = mine_negatives(tiny, split="train", index=tiny_bm25, negatives=3, seed=7, output=tmp_path / "other.parquet")
    pl.read_parquet(tiny / "queries.train.parquet").reverse().write_parquet(tmp_path / "queries.parquet")
    moved: dict[str, Any] = {"split": "train", "queries": tmp_path / "queries.parquet", "negatives": 3}
    turned = mine_negatives(tiny, index=tiny_bm25, **moved, output=tmp_path / "turned.parquet")
    keys = ["qid", "docid"]
    assert pl.read_parquet(turned).sort(keys).equals(pl.read_parquet(mined).sort(keys)), "another order of the queries"
    assert again.read_bytes() == mined.read_bytes()
    assert not pl.read_parquet(other).equals(pl.read_parquet(mined))


def test_a_run_is_a_source_that_needs_no_index(tiny: Path, tmp_path: Path) -> None:
    hits = [("t1", docid, float(score)) for score, docid in enumerate(["007", "salt", "NA", "moon landing"])]
    run = runs.ranked(pl.DataFrame(hits, schema={"qid": str, "docid": str, "score": pl.Float32}, orient="row"))
    run.write_parquet(tmp_path / "dense.parquet")
    sources = [f"run:{tmp_path / 'dense.parquet'}:2", "random:1"]
    output = mine_negatives(tiny, split="train", sources=sources, depth=3, output=tmp_path / "x.parquet")
    found = negatives_of(output).filter(qid="t1")
    assert set(found.filter(source="dense")["docid"]) <= {"moon landing", "NA", "salt"}
    assert found["source"].sort().to_list() == ["dense", "dense", "random"]
    assert found["lexical_score"].null_count() == 3
    assert set(negatives_of(output).filter(qid="t2")["source"]) == {"random"}, "the run has no hits for it"
    options = artifacts.read_manifest(output).options
    assert options["sources"] == {"dense": 2, "random": 1}
    assert "negatives" not in options


def test_depth_and_skip_top_bound_the_ranks(tiny: Path, tiny_bm25: Path, tmp_path: Path) -> None:
    output = mine_negatives(tiny, split="train", index=tiny_bm25, depth=2, skip_top=1, output=tmp_path / "x.parquet")
    found = negatives_of(output).filter(source="bm25")
    hits = open_bm25(tiny_bm25).search(pl.read_parquet(output).select("qid", text="query").unique("qid"), 1000)
    assert set(found.join(hits, on=["qid", "docid"], how="left")["rank"]) == {2}


def copy_of(tiny: Path, folder: Path, **tables: pl.DataFrame) -> Path:
    folder.mkdir()
    for name in ("corpus", "queries.train", "qrels.train"):
        tables.get(name.split(".")[0], pl.read_parquet(tiny / f"{name}.parquet")).write_parquet(
            folder / f"{name}.parquet"
        )
    return folder


def test_a_copy_of_a_positive_is_dropped(tiny: Path, tmp_path: Path) -> None:
    corpus = pl.read_parquet(tiny / "corpus.parquet")
    copy = corpus.filter(docid="salt").with_columns(docid=pl.lit("salt again"), text=pl.col("text") + " \n ")
    folder = copy_of(tiny, tmp_path / "copied", corpus=pl.concat([corpus, copy]))
    output = mine_negatives(folder, split="train", sources="random:12", output=tmp_path / "out.parquet")
    assert len(negatives_of(output).filter(qid="t2"))
    assert not len(negatives_of(output).filter(qid="t2", docid="salt again"))


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


def test_queries_and_positives_that_are_left_out_are_counted(tiny: Path, tmp_path: Path, notices: Notices) -> None:
    qrels = pl.read_parquet(tiny / "qrels.train.parquet").filter(pl.col("qid") != "t1")
    lost = pl.DataFrame({"qid": ["t3"], "docid": ["lost"], "relevance": [1]}, schema=qrels.schema)
    corpus = pl.read_parquet(tiny / "corpus.parquet")
    blank, empty = qrels["docid"][-1], pl.col("docid") == qrels["docid"][-1]
    corpus = corpus.with_columns(pl.when(empty).then(pl.lit(" \n")).otherwise(n).alias(n) for n in ("title", "text"))
    folder = copy_of(tiny, tmp_path / "partial", corpus=corpus, qrels=pl.concat([qrels, lost]))
    output = mine_negatives(folder, split="train", sources="random:2", output=tmp_path / "x.parquet")
    assert "t1" not in set(pl.read_parquet(output)["qid"])
    assert artifacts.read_manifest(output).counts["queries_without_positive"] == 1
    assert notices.says("documents-outside-corpus", path="partial", count=1, ids=["lost"])
    assert notices.says("documents-without-text", path="partial", count=1, ids=[blank])
    assert blank not in set(pl.read_parquet(output)["docid"])
    assert notices.says("queries-skipped", count=1)


def settings_of(**options: Any) -> MineNegatives:
    return MineNegatives(Path("data"), output=Path("out.parquet"), **options)


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({"index": "bm25"}, [NegativeSource("bm25", 8)]),
        ({"sources": "random", "negatives": 3}, [NegativeSource(RANDOM, 3)]),
        ({"sources": "bm25:6, random:2", "index": "bm25"}, [NegativeSource("bm25", 6), NegativeSource(RANDOM, 2)]),
        ({"sources": ["bm25:6", "random:2"], "index": "bm25"}, [NegativeSource("bm25", 6), NegativeSource(RANDOM, 2)]),
        ({"sources": "run:out/dense.parquet:4"}, [NegativeSource("dense", 4, Path("out/dense.parquet"))]),
        ({"sources": "run:out/bm25.parquet:4"}, [NegativeSource("run:bm25", 4, Path("out/bm25.parquet"))]),
    ],
    ids=str,
)
def test_sources_are_parsed(options: dict[str, Any], plan: list[NegativeSource]) -> None:
    assert settings_of(**options).plan() == plan


DEPTH = 20
CORPUS = pl.Series("docid", [f"d{number}" for number in range(200)])


def examples_of(*pairs: tuple[str, str]) -> pl.DataFrame:
    return pl.DataFrame(pairs, schema=["qid", "docid"], orient="row").with_row_index("example")


def run_of(examples: pl.DataFrame, depth: int = DEPTH) -> pl.DataFrame:
    """Return, for every query, the hits d0, d1, ... with scores depth, depth - 1, ..."""
    rows = [
        (qid, f"d{rank - 1}", rank, float(depth + 1 - rank))
        for qid in examples["qid"].unique(maintain_order=True)
        for rank in range(1, depth + 1)
    ]
    return pl.DataFrame(rows, schema={"qid": str, "docid": str, "rank": pl.Int32, "score": pl.Float32}, orient="row")


def drawn(
    examples: pl.DataFrame,
    sources: list[NegativeSource],
    *,
    prob: float = 1.0,
    seed: int = 1,
    depth: int = DEPTH,
    skip_top: int = 0,
    corpus: pl.Series = CORPUS,
    **limits: float,
) -> tuple[pl.DataFrame, Tally]:
    """Mine without a collection: all sources but `random` share one run; `limits` are those of `score_filters`."""
    tally, judged = Tally(), mining.pair_filters({"judged relevant": examples.select("qid", "docid")})
    wanted = mining.quotas(sources, examples, prob, seed)
    pools = {}
    for source in wanted:
        seeds = mining.seeds_of(examples, seed, source)
        scores = examples.select("example", score=pl.lit(None, dtype=pl.Float32))
        if source == RANDOM:
            found = mining.from_corpus(corpus, examples, seeds, 64)
        else:
            run = run_of(examples, depth)
            found = mining.hits_of_examples(run, examples, skip_top, depth)
            scores = examples.join(run, on=["qid", "docid"], how="left").select("example", "score")
        filters = {**judged, **mining.score_filters(scores, **limits)}
        left = mining.admissible(found, filters, source, tally)
        pools[source] = mining.in_drawing_order(left, seeds, 64)
    return mining.draw(pools, wanted, tally), tally


def as_sets(chosen: pl.DataFrame, examples: pl.DataFrame) -> dict[tuple[str, str], list[tuple[str, str]]]:
    joined = chosen.join(examples.select("example", positive="docid"), on="example", maintain_order="left")
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in joined.iter_rows(named=True):
        found.setdefault((row["qid"], row["positive"]), []).append((row["docid"], row["source"]))
    return found


@given(
    st.lists(st.tuples(st.sampled_from(["1", "01", "NA", "q q"]), st.integers(0, 40)), min_size=1, unique=True),
    st.integers(1, 12),
    st.integers(0, 5),
    st.integers(0, 2**40),
)
def test_a_judged_relevant_document_is_never_drawn_and_none_is_drawn_twice(
    pairs: list[tuple[str, int]], count: int, random: int, seed: int
) -> None:
    examples = examples_of(*((qid, f"d{number}") for qid, number in pairs))
    sources = [NegativeSource("bm25", count), *([NegativeSource(RANDOM, random)] if random else [])]
    chosen, _ = drawn(examples, sources, seed=seed)
    relevant = set(examples.select("qid", "docid").iter_rows())
    assert not relevant & set(chosen.select("qid", "docid").iter_rows())
    assert not chosen.select("example", "docid").is_duplicated().any()
    assert (chosen.group_by("example").len()["len"] == count + random).all()


def test_a_draw_depends_on_its_own_query_and_the_seed_only() -> None:
    pairs = [(f"q{number}", f"d{number % 7}") for number in range(30)]
    sources = [NegativeSource("bm25", 4), NegativeSource(RANDOM, 2)]
    whole = as_sets(drawn(examples_of(*pairs), sources, prob=0.7)[0], examples_of(*pairs))
    turned = as_sets(drawn(examples_of(*pairs[::-1]), sources, prob=0.7)[0], examples_of(*pairs[::-1]))
    alone = as_sets(drawn(examples_of(pairs[5]), sources, prob=0.7)[0], examples_of(pairs[5]))
    other = as_sets(drawn(examples_of(*pairs), sources, prob=0.7, seed=2)[0], examples_of(*pairs))
    assert whole == turned
    assert alone[pairs[5]] == whole[pairs[5]]
    assert other != whole


def test_two_positives_of_a_query_get_different_draws() -> None:
    examples = examples_of(("q", "d50"), ("q", "d51"))
    found = as_sets(drawn(examples, [NegativeSource("bm25", 8)])[0], examples)
    assert set(found[("q", "d50")]) != set(found[("q", "d51")])


def test_a_filter_changes_no_other_draw() -> None:
    examples = examples_of(*((f"q{number}", "d0") for number in range(50)))
    free, filtered = (drawn(examples, [NegativeSource("bm25", 3)], max_score=bound)[0] for bound in (99, 18))
    kept = free.join(run_of(examples), on=["qid", "docid"]).filter(pl.col("score") <= 18)
    assert len(kept)
    assert len(kept.join(filtered, on=["example", "docid"], how="anti")) == 0


def test_random_documents_are_drawn_uniformly_from_the_corpus() -> None:
    large = pl.Series("docid", [f"d{number}" for number in range(1000)])
    examples = examples_of(*((f"q{number}", "d0") for number in range(5000)))
    chosen, _ = drawn(examples, [NegativeSource(RANDOM, 4)], corpus=large)
    counts = np.bincount(chosen["docid"].str.slice(1).cast(pl.Int64).to_numpy(), minlength=1000)
    expected = 4 * 5000 / 999
    assert counts[0] == 0
    assert np.mean((counts[1:] - expected) ** 2 / expected) == pytest.approx(1, abs=0.2)  # chi-square per cell


@pytest.mark.parametrize("prob", [0, 0.3])
def test_prob_is_the_fraction_of_negatives_from_the_source(prob: float) -> None:
    examples = examples_of(*((f"q{number}", "d0") for number in range(2000)))
    chosen, tally = drawn(examples, [NegativeSource("bm25", 5)], prob=prob)
    assert (chosen["source"] == "bm25").mean() == pytest.approx(prob, abs=5 * (prob * (1 - prob) / 10_000) ** 0.5)
    assert (chosen.group_by("example").len()["len"] == 5).all()
    assert tally.counts[RANDOM][REPLACEMENTS] == 0, "requested, not a replacement"


def test_every_rank_between_skip_top_and_depth_is_drawn_equally_often() -> None:
    examples = examples_of(*((f"q{number}", "d199") for number in range(3000)))
    chosen, _ = drawn(examples, [NegativeSource("bm25", 3)], skip_top=5)
    counts = chosen.group_by("docid").len()
    expected = 3 * 3000 / (DEPTH - 5)
    assert set(counts["docid"]) == {f"d{rank - 1}" for rank in range(6, DEPTH + 1)}
    assert (counts["len"] - expected).abs().max() < 5 * expected**0.5


def test_quotas_are_exact_and_sources_are_mixed_within_a_list() -> None:
    examples = examples_of(*((f"q{number}", "d0") for number in range(100)))
    chosen, _ = drawn(examples, [NegativeSource("bm25", 6), NegativeSource("dense", 3), NegativeSource(RANDOM, 2)])
    per_list = chosen.group_by("example", "source").len().pivot("source", index="example", values="len")
    assert set(per_list.select("bm25", "dense", RANDOM).iter_rows()) == {(6, 3, 2)}
    assert set(chosen.group_by("example", maintain_order=True).first()["source"]) == {"bm25", "dense", RANDOM}


def test_a_short_pool_is_filled_from_the_corpus_and_counted() -> None:
    examples = examples_of(("q", "d0"))
    chosen, tally = drawn(examples, [NegativeSource("bm25", 5)], depth=4)
    assert sorted(chosen.filter(source="bm25")["docid"]) == ["d1", "d2", "d3"]
    assert len(chosen.filter(source=RANDOM)) == 2
    assert tally.counts["bm25"][SHORT] == 1
    assert tally.counts[RANDOM][REPLACEMENTS] == 2
    assert tally.counts[RANDOM][SHORT] == 0
    chosen, tally = drawn(examples, [NegativeSource("bm25", 5)], depth=2, corpus=CORPUS.head(4))
    assert sorted(chosen["docid"]) == ["d1", "d2", "d3"], "the corpus is too small"
    assert tally.counts[RANDOM][SHORT] == 1
    assert tally.counts[RANDOM][REPLACEMENTS] == len(chosen.filter(source=RANDOM)) == 2, "drawn, not wanted"


def test_each_filter_counts_what_it_drops() -> None:
    examples = examples_of(("q", "d3"))
    _, tally = drawn(examples, [NegativeSource("bm25", 2)], relative_margin=0.5, max_score=15)
    # Scores 20 to 1; the positive d3 has 17. Maximum score 15 drops 20, 19, 18, 16; margin 0.5 (8.5) drops 15 to 9.
    counts = tally.counts["bm25"]
    assert [counts[name] for name in ("judged relevant", "max score", "relative margin")] == [1, 4, 7]
    _, tally = drawn(examples_of(("q", "d150")), [NegativeSource("bm25", 2)], relative_margin=0.95)
    assert tally.counts["bm25"]["relative margin"] == DEPTH, "a positive that was not retrieved"


def test_a_relative_margin_is_below_a_negative_score_too() -> None:
    candidates = pl.DataFrame(
        {"example": [0] * 3, "qid": ["q"] * 3, "docid": ["a", "b", "c"], "score": [-9.0, -11, -13]}
    )
    scores = pl.DataFrame({"example": [0], "score": [-10.0]})
    filters = mining.score_filters(scores, relative_margin=0.8)
    left = mining.admissible(candidates, filters, "dense", Tally())
    assert left["docid"].to_list() == ["c"], "the bound is -10 - 0.2 * 10 = -12"


def test_same_text_finds_copies_of_any_positive_of_the_query() -> None:
    corpus = pl.DataFrame(
        {
            "docid": ["p", "copy", "moved", "other"],
            "title": ["A title", "A  title ", "A", "A title"],
            "text": ["and\ttext", "and text", "title and text", "and texts"],
        }
    )
    texts = corpus.select("docid", mining.fold_columns("title", "text").hash().alias("hash"))
    found = mining.same_text(texts, pl.DataFrame({"qid": ["q1"], "docid": ["p"]}))
    assert set(found.iter_rows()) == {("q1", "p"), ("q1", "copy"), ("q1", "moved")}


def test_sets_over_one_corpus_keep_their_queries_apart_and_share_documents(
    tiny: Path, tiny_bm25: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny, tmp_path / "nq")
    shutil.copytree(tiny, tmp_path / "web")
    options: dict[str, Any] = {"split": "train", "index": tiny_bm25, "negatives": 3}
    alone = pl.read_parquet(mine_negatives(tiny, output=tmp_path / "alone.parquet", **options))
    both = pl.read_parquet(
        mine_negatives([tmp_path / "nq", tmp_path / "web"], output=tmp_path / "b.parquet", **options)
    )
    assert both["qid"].to_list() == [f"{name}:{qid}" for name in ("nq", "web") for qid in alone["qid"]]
    for part in (both.head(len(alone)), both.tail(len(alone))):
        assert part.drop("qid").equals(alone.drop("qid"))
    assert artifacts.read_manifest(tmp_path / "b.parquet").counts["queries"] == 2 * alone["qid"].n_unique()


def test_sets_over_other_corpora_keep_their_documents_apart(tiny: Path, tiny_bm25: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "nq")
    changed = pl.read_parquet(tiny / "corpus.parquet").with_columns(text=pl.col("text") + " more")
    other = copy_of(tiny, tmp_path / "web", corpus=changed)
    output = mine_negatives([tmp_path / "nq", other], split="train", sources="random:2", output=tmp_path / "x.parquet")
    rows = pl.read_parquet(output)
    for name in ("nq", "web"):
        part = rows.filter(pl.col("qid").str.starts_with(f"{name}:"))
        documents = pl.concat([part["docid"], part["negatives"].explode().struct.field("docid")])
        assert len(documents)
        assert documents.str.starts_with(f"{name}:").all()
    with raises("other-corpus"):
        mine_negatives(other, split="train", index=tiny_bm25, output=tmp_path / "no.parquet")


def test_each_of_several_sets_has_the_negatives_of_its_own_file(tiny: Path, tmp_path: Path) -> None:
    """As DPR-multi: the query ids of the files are those of their sets."""
    items, wanted = [], {"nq": ["lungs", "salt"], "web": ["dense", "salt"]}
    for name, docids in wanted.items():
        shutil.copytree(tiny, tmp_path / name)
        lines = [f"t1\t007\t{docid}" for docid in docids]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        items.append(f"given:{tmp_path / name}.tsv")
    sets, sources = [tmp_path / name for name in wanted], [f"{item}:2" for item in items]
    rows = pl.read_parquet(mine_negatives(sets, split="train", sources=sources, output=tmp_path / "x.parquet"))
    for name, docids in wanted.items():
        drawn = rows.filter(qid=f"{name}:t1")["negatives"][0].struct.field("docid")
        assert sorted(drawn) == docids


def dpr(**contexts: list[dict[str, str]]) -> dict[str, Any]:
    return {"question": "a", "positive_ctxs": [], "hard_negative_ctxs": [], **contexts}


D01, D03, D05 = ({"passage_id": name} for name in ("d01", "d03", "d05"))
GIVEN: dict[str, str] = {
    "dpr.json": json.dumps([dpr(hard_negative_ctxs=[D03, {"psg_id": "d01"}], negative_ctxs=[D05]), dpr()]),
    "others.json": json.dumps([dpr(negative_ctxs=[D03, D01]), dpr()]),  # a question without hard negatives
    "tevatron.jsonl": json.dumps(
        {
            "query_id": "0",
            "query": "a",
            "positive_passages": [],
            "negative_passages": [{"docid": "d03"}, {"docid": "d01"}],
        }
    ),
    "triples.tsv": "0\td09\td03\n0\td08\td03\n0\td09\td01\n",
}


@pytest.mark.parametrize("name", GIVEN)
def test_negatives_of_a_training_file_are_read_in_its_order(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(GIVEN[name])
    assert given_negatives(tmp_path / name).select("qid", "docid", "rank").rows() == [("0", "d03", 1), ("0", "d01", 2)]


def test_given_negatives_are_the_only_ones_of_a_query_that_has_enough(tiny: Path, tmp_path: Path) -> None:
    qrels = pl.read_parquet(tiny / "qrels.train.parquet").filter(pl.col("relevance") > 0)
    qid = qrels["qid"][0]
    positives = qrels.filter(qid=qid)["docid"].to_list()
    others = [docid for docid in pl.read_parquet(tiny / "corpus.parquet")["docid"] if docid not in positives][:3]
    lines = [f"{qid}\t{positives[0]}\t{docid}" for docid in [*others, positives[0], "unknown"]]
    (tmp_path / "triples.tsv").write_text("\n".join(lines) + "\n")
    output = mine_negatives(
        tiny, split="train", sources=f"given:{tmp_path / 'triples.tsv'}:3", output=tmp_path / "x.parquet"
    )
    row = pl.read_parquet(output).filter(qid=qid)["negatives"][0]
    assert set(row.struct.field("docid")) == set(others)
    assert set(row.struct.field("source")) == {"given"}


def test_the_first_positive_is_judged_and_others_are_no_negatives(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("101\tsodium\n")
    docids = pl.read_parquet(tiny / "corpus.parquet")["docid"].sort().to_list()
    (tmp_path / "qrels.txt").write_text(f"101 0 {docids[2]} 1\n101 0 {docids[0]} 1\n101 0 {docids[1]} 0\n")
    files = {"queries": tmp_path / "queries.tsv", "qrels": tmp_path / "qrels.txt"}
    options: dict[str, Any] = {"sources": "random:11", "positives": "first", **files}
    rows = pl.read_parquet(mine_negatives(tiny, output=tmp_path / "x.parquet", **options))
    assert rows["docid"].to_list() == [docids[2]]
    assert docids[0] not in rows["negatives"][0].struct.field("docid").to_list()
