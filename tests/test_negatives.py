"""Candidates, filters and draws of hard negatives."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_cli.training import negatives
from hybrid_cli.training.negatives import REPLACEMENTS, SHORT, Tally
from hybrid_cli.training.options import RANDOM, Source

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


def mined(
    examples: pl.DataFrame,
    sources: list[Source],
    *,
    prob: float = 1.0,
    seed: int = 1,
    depth: int = DEPTH,
    skip_top: int = 0,
    corpus: pl.Series = CORPUS,
    **limits: float,
) -> tuple[pl.DataFrame, Tally]:
    """Mine without a collection: all sources but `random` share one run; `limits` are those of `score_filters`."""
    tally, judged = Tally(), negatives.pair_filters({"judged relevant": examples.select("qid", "docid")})
    wanted = negatives.quotas(sources, examples, prob, seed)
    pools = {}
    for source in wanted:
        seeds = negatives.seeds(examples, seed, source)
        scores = examples.select("example", score=pl.lit(None, dtype=pl.Float32))
        if source == RANDOM:
            found = negatives.from_corpus(corpus, examples, seeds, 64)
        else:
            run = run_of(examples, depth)
            found = negatives.hits_of_examples(run, examples, skip_top, depth)
            scores = examples.join(run, on=["qid", "docid"], how="left").select("example", "score")
        filters = {**judged, **negatives.score_filters(scores, **limits)}
        left = negatives.admissible(found, filters, source, tally)
        pools[source] = negatives.in_drawing_order(left, seeds, 64)
    return negatives.draw(pools, wanted, tally), tally


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
    sources = [Source("bm25", count), *([Source(RANDOM, random)] if random else [])]
    chosen, _ = mined(examples, sources, seed=seed)
    relevant = set(examples.select("qid", "docid").iter_rows())
    assert not relevant & set(chosen.select("qid", "docid").iter_rows())
    assert not chosen.select("example", "docid").is_duplicated().any()
    assert (chosen.group_by("example").len()["len"] == count + random).all()


def test_a_draw_depends_on_its_own_query_and_the_seed_only() -> None:
    pairs = [(f"q{number}", f"d{number % 7}") for number in range(30)]
    sources = [Source("bm25", 4), Source(RANDOM, 2)]
    whole = as_sets(mined(examples_of(*pairs), sources, prob=0.7)[0], examples_of(*pairs))
    turned = as_sets(mined(examples_of(*pairs[::-1]), sources, prob=0.7)[0], examples_of(*pairs[::-1]))
    alone = as_sets(mined(examples_of(pairs[5]), sources, prob=0.7)[0], examples_of(pairs[5]))
    other = as_sets(mined(examples_of(*pairs), sources, prob=0.7, seed=2)[0], examples_of(*pairs))
    assert whole == turned
    assert alone[pairs[5]] == whole[pairs[5]]
    assert other != whole


def test_every_rank_between_skip_top_and_depth_is_drawn_equally_often() -> None:
    examples = examples_of(*((f"q{number}", "d199") for number in range(3000)))
    chosen, _ = mined(examples, [Source("bm25", 3)], skip_top=5)
    counts = chosen.group_by("docid").len()
    expected = 3 * 3000 / (DEPTH - 5)
    assert set(counts["docid"]) == {f"d{rank - 1}" for rank in range(6, DEPTH + 1)}
    assert (counts["len"] - expected).abs().max() < 5 * expected**0.5


def test_random_documents_are_drawn_uniformly_from_the_corpus() -> None:
    large = pl.Series("docid", [f"d{number}" for number in range(1000)])
    examples = examples_of(*((f"q{number}", "d0") for number in range(5000)))
    chosen, _ = mined(examples, [Source(RANDOM, 4)], corpus=large)
    counts = np.bincount(chosen["docid"].str.slice(1).cast(pl.Int64).to_numpy(), minlength=1000)
    expected = 4 * 5000 / 999
    assert counts[0] == 0
    assert np.mean((counts[1:] - expected) ** 2 / expected) == pytest.approx(1, abs=0.2)  # chi-square per cell


def test_prob_is_the_fraction_of_negatives_from_the_source() -> None:
    examples = examples_of(*((f"q{number}", "d0") for number in range(2000)))
    chosen, _ = mined(examples, [Source("bm25", 5)], prob=0.3)
    assert (chosen["source"] == "bm25").mean() == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / 10_000) ** 0.5)
    assert (chosen.group_by("example").len()["len"] == 5).all()


def test_quotas_are_exact_and_sources_are_mixed_within_a_list() -> None:
    examples = examples_of(*((f"q{number}", "d0") for number in range(100)))
    chosen, _ = mined(examples, [Source("bm25", 6), Source("dense", 3), Source(RANDOM, 2)])
    per_list = chosen.group_by("example", "source").len().pivot("source", index="example", values="len")
    assert set(per_list.select("bm25", "dense", RANDOM).iter_rows()) == {(6, 3, 2)}
    assert set(chosen.group_by("example", maintain_order=True).first()["source"]) == {"bm25", "dense", RANDOM}


def test_a_short_pool_is_filled_from_the_corpus_and_counted() -> None:
    examples = examples_of(("q", "d0"))
    chosen, tally = mined(examples, [Source("bm25", 5)], depth=4)
    assert sorted(chosen.filter(source="bm25")["docid"]) == ["d1", "d2", "d3"]
    assert len(chosen.filter(source=RANDOM)) == 2
    assert tally.counts["bm25"][SHORT] == 1
    assert tally.counts[RANDOM][REPLACEMENTS] == 2
    assert tally.counts[RANDOM][SHORT] == 0


def test_each_filter_counts_what_it_drops() -> None:
    examples = examples_of(("q", "d3"))
    _, tally = mined(examples, [Source("bm25", 2)], relative_margin=0.5, max_score=15)
    # Scores 20 to 1; the positive d3 has 17. Maximum score 15 drops 20, 19, 18, 16; margin 0.5 (8.5) drops 15 to 9.
    counts = tally.counts["bm25"]
    assert [counts[name] for name in ("judged relevant", "max score", "relative margin")] == [1, 4, 7]


def test_a_relative_margin_is_below_a_negative_score_too() -> None:
    candidates = pl.DataFrame(
        {"example": [0] * 3, "qid": ["q"] * 3, "docid": ["a", "b", "c"], "score": [-9.0, -11, -13]}
    )
    scores = pl.DataFrame({"example": [0], "score": [-10.0]})
    filters = negatives.score_filters(scores, relative_margin=0.8)
    left = negatives.admissible(candidates, filters, "dense", Tally())
    assert left["docid"].to_list() == ["c"], "the bound is -10 - 0.2 * 10 = -12"


def test_a_filter_changes_no_other_draw() -> None:
    examples = examples_of(*((f"q{number}", "d0") for number in range(50)))
    free, filtered = (mined(examples, [Source("bm25", 3)], max_score=bound)[0] for bound in (99, 18))
    kept = free.join(run_of(examples), on=["qid", "docid"]).filter(pl.col("score") <= 18)
    assert len(kept.join(filtered, on=["example", "docid"], how="anti")) == 0


def test_same_text_finds_copies_of_any_positive_of_the_query() -> None:
    corpus = pl.DataFrame(
        {
            "docid": ["p", "copy", "moved", "other"],
            "title": ["A title", "A  title ", "A", "A title"],
            "text": ["and\ttext", "and text", "title and text", "and texts"],
        }
    )
    texts = corpus.select("docid", negatives.fold_columns("title", "text").hash().alias("hash"))
    found = negatives.same_text(texts, pl.DataFrame({"qid": ["q1"], "docid": ["p"]}))
    assert set(found.iter_rows()) == {("q1", "p"), ("q1", "copy"), ("q1", "moved")}
