"""`evaluate --complement`: complementarity of two runs."""

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, raises, ran
from evaluated import evaluate, write_run
from hypothesis import given
from hypothesis import strategies as st
from tiny_collection import write_lines

from hybrid_cli.evaluation.complementarity import Sets
from hybrid_cli.reporting.complement import Complement, bar


def compare(inputs: Sequence[str | Path], pair: tuple[str, str] = ("dense", "bm25"), **settings: Any) -> Complement:
    found = evaluate(inputs, complement=pair, **settings).complement
    assert found is not None
    return found


def test_every_judged_query_is_in_one_of_four_parts(tiny: Path, paths: list[Path]) -> None:
    found = compare([tiny, *paths], split="test")
    # bm25 has 001 at rank 2, 002 and 003 at 1; dense has 001 and 002 at 2 (and NA, of grade 1, at 1), 004 at 1
    assert [cut.cutoff for cut in found.sets] == [1, 5, 10, 20, 100]
    assert found.sets[0] == Sets(1, queries=5, dense=2, sparse=2, dense_only=1, sparse_only=1, both=1, fail=2)
    assert found.sets[2] == Sets(10, queries=5, dense=3, sparse=3, dense_only=1, sparse_only=1, both=2, fail=1)
    assert found.sets[2].roc == 1 / 3
    assert found.absent == {"bm25": 2, "dense": 1, "clear": 0}


def test_overlap_is_averaged_over_all_these_queries(tiny: Path, paths: list[Path]) -> None:
    found = compare([tiny, *paths], split="test")
    common = [1 / 2, 1, 0, 0, 0]  # 001: one of two; 002: both; the others: a list is missing
    assert found.overlap[2] == pytest.approx(sum(common) / 5)
    assert found.overlap[0] == 0
    assert 0 < found.rbo < found.overlap[2]


def test_wins_are_counted_against_each_of_the_two(tiny: Path, paths: list[Path]) -> None:
    found = compare([tiny, *paths], split="test")
    counted = {(each.run, each.base): (each.wins, each.ties, each.losses) for each in found.contests}
    assert counted == {("dense", "bm25"): (1, 3, 1), ("clear", "dense"): (3, 2, 0), ("clear", "bm25"): (3, 2, 0)}


def test_changes_are_relative_to_the_better_run_and_have_texts(tiny: Path, tmp_path: Path) -> None:
    hits = {
        "dense": {"001": ["007"], "002": ["void", "salt"]},
        "bm25": {"001": ["void", "007"], "002": ["NA"], "003": ["void", "lungs"]},
        "fused": {"001": ["void", "dense", "007", "bm25"], "002": ["salt"], "003": ["lungs"]},
    }
    files = [write_run(tmp_path / f"{name}.parquet", rows) for name, rows in hits.items()]
    hurt, helped = compare([tiny, *files], split="test").changed
    assert (hurt.run, hurt.qid, hurt.text) == ("fused", "001", "what does the moon do to the oceans")
    assert hurt.change == pytest.approx(1 / 3 - 1)
    assert {name: listed.first for name, listed in hurt.lists.items()} == {"dense": 1, "bm25": 2, "fused": 3}
    expected = [("void", False), ("dense", False), ("007", True)]
    assert [(hit.docid, hit.relevant) for hit in hurt.lists["fused"].hits] == expected
    assert hurt.lists["dense"].hits[0].title == "Tides"
    assert hurt.lists["dense"].hits[0].text.startswith("The pull of the moon")
    assert (helped.qid, helped.change) == ("003", 1 / 2)
    assert helped.lists["dense"].hits == []
    assert helped.lists["dense"].first is None
    assert compare([tiny, *files], split="test", show_queries=0).changed == []


def test_queries_are_grouped_in_four_ways(tiny: Path, paths: list[Path]) -> None:
    found = compare([tiny, *paths], split="test")
    sizes = [dict(means.filter(run="bm25").select("bucket", "queries").iter_rows()) for _, means in found.groups]
    assert sizes == [
        {"Easy": 2, "Hard": 3},
        {"up to 4": 2, "5-8": 3},
        {"up to 40": 5},
        {"(.25, .5]": 1, "1": 3},  # of 001 moon and ocean, not what, doe, do; 005 has only stop words
    ]
    assert found.above == {"dense": 1 / 3, "clear": 1.0}  # 001 at 1, 004 and 005 at all


def test_without_texts_ids_are_shown(tiny: Path, paths: list[Path], notices: Notices) -> None:
    qrels = tiny / "qrels.test.parquet"
    found = compare(paths, qrels=qrels)
    assert notices.says("no-texts")
    assert [group.name for group, _ in found.groups] == ["difficulty for bm25"]
    assert {changed.text for changed in found.changed} == {""}
    named = compare(paths, qrels=qrels, queries=tiny / "queries.test.parquet", corpus=tiny / "corpus.parquet")
    whole = compare([tiny, *paths], split="test")
    assert named.changed == whole.changed
    assert [means.to_dicts() for _, means in named.groups] == [means.to_dicts() for _, means in whole.groups]


def test_queries_of_another_collection_are_refused(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    other.write_text("x1\tmoon\n")
    with raises("other-queries", path="other.tsv"):
        compare(paths, qrels=tiny / "qrels.test.parquet", queries=other, corpus=tiny / "corpus.parquet")


def test_without_qrels_answers_decide_relevance(tmp_path: Path) -> None:
    texts = {"a": "on the Nile.", "b": "the Amazon", "c": "neither"}
    corpus, queries = tmp_path / "corpus.parquet", tmp_path / "queries.parquet"
    pl.DataFrame({"docid": list(texts), "title": "", "text": list(texts.values())}).write_parquet(corpus)
    questions = {"qid": ["1", "2", "3", "4"], "text": "?", "answers": [["Nile"], ["Amazon"], ["Ob"], []]}
    pl.DataFrame(questions).write_parquet(queries)
    one = write_run(tmp_path / "dense.parquet", {"1": ["c", "a"], "2": ["b"], "3": ["a"]})
    two = write_run(tmp_path / "bm25.parquet", {"1": ["a"], "2": ["c"], "4": ["c"]})
    settings: dict[str, Any] = {"queries": queries, "corpus": corpus, "measure": ["acc@1", "acc@2"]}
    found = compare([queries, one, two], **settings)
    assert found.sets[0] == Sets(1, queries=3, dense=1, sparse=1, dense_only=1, sparse_only=1, both=0, fail=1)
    assert found.sets[1] == Sets(5, queries=3, dense=2, sparse=1, dense_only=1, sparse_only=0, both=1, fail=1)
    assert found.absent == {"dense": 0, "bm25": 1}
    assert [group.name for group, _ in found.groups] == ["difficulty for bm25", "words in the query"]


def test_a_path_is_added_to_the_runs(tiny: Path, paths: list[Path]) -> None:
    bm25, dense, clear = paths
    joined = evaluate([tiny, clear], split="test", complement=(str(dense), f"lexical={bm25}"))
    assert joined.runs == ["clear", "dense", "lexical"]
    assert joined.baselines == ["dense", "lexical"]
    assert joined.complement is not None
    assert (joined.complement.dense, joined.complement.sparse) == ("dense", "lexical")
    given = evaluate([tiny, *paths], split="test", complement=("dense", str(bm25)), baseline=["clear"])
    assert given.runs == ["bm25", "dense", "clear"]
    assert given.baselines == ["clear"]
    assert given.complement is not None
    assert given.complement.sets == joined.complement.sets
    assert evaluate([tiny], split="test", complement=(str(dense), str(bm25))).runs == ["dense", "bm25"]


def test_the_first_relevant_rank_is_stored(tiny: Path, paths: list[Path], tmp_path: Path, notices: Notices) -> None:
    output = tmp_path / "measurements.parquet"
    first = evaluate([tiny, *paths], split="test", complement=("dense", "bm25"), measure=["P@1"], output=output)
    assert first.measures == ["P@1"]
    stored = pl.read_parquet(output)
    assert stored["measure"].unique(maintain_order=True).to_list() == ["P@1", "MRR"]
    ranks = {run: stored.filter(run=run, measure="MRR") for run in ("dense", "bm25")}
    found = {run: set(rows.filter(pl.col("value") >= 1 / 10)["qid"]) for run, rows in ranks.items()}
    assert first.complement is not None
    assert len(found["dense"] - found["bm25"]) == first.complement.sets[2].dense_only
    again = evaluate([tiny, *paths], split="test", complement=("dense", "bm25"), measure=["P@1"], output=output)
    assert notices.says("up-to-date")
    assert again.result().text("json") == first.result().text("json")


def test_a_cutoff_deeper_than_a_run_is_noted(tiny: Path, paths: list[Path], notices: Notices) -> None:
    compare([tiny, *paths], split="test", measure=["P@1"])
    deeper = ["RoC@5", "RoC@10", "RoC@20", "RoC@100"]
    assert notices.says("short-lists", run="dense", hits=2, measures=deeper)


def test_an_undefined_ratio_is_explained(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hits = {"dense": {"001": ["void"]}, "bm25": {"001": ["void", "007"]}}
    files = [write_run(tmp_path / f"{name}.parquet", rows) for name, rows in hits.items()]
    summary = evaluate([tiny, *files], split="test", complement=("dense", "bm25"))
    cuts = json.loads(summary.result().text("json"))["complement"]["cutoffs"]
    assert [(cut["roc"], cut["mirror"]) for cut in cuts[:2]] == [(None, None), (None, 1.0)]
    summary.result().show()
    for text in (capsys.readouterr().out, summary.result().text("markdown")):
        assert not re.search(r"\bnan\b", text)
    rows = {row["measure"]: row["mean"] for row in csv.DictReader(io.StringIO(summary.result().text("csv")))}
    assert (rows["RoC@1"], rows["mirror@5"]) == ("", "1.0")


def test_all_formats_have_the_same_figures(tiny: Path, paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    summary = evaluate([tiny, *paths], split="test", complement=("dense", "bm25"))
    content = json.loads(summary.result().text("json"))["complement"]
    assert content["cutoffs"][2]["roc"] == 1 / 3
    assert content["absent"]["bm25"] == 2
    assert content["changed"][0]["lists"]["clear"]["hits"][0]["docid"] == "hamlet"
    rows = list(csv.DictReader(io.StringIO(summary.result().text("csv"))))
    figures = {(row["run"], row["measure"]): row for row in rows}
    assert float(figures["dense vs bm25", "RoC@10"]["mean"]) == 1 / 3
    assert float(figures["dense vs bm25", "fail@10"]["mean"]) == 1 / 5
    ends = [float(figures["dense vs bm25", "fail@10"][end]) for end in ("low", "high")]
    assert ends == content["cutoffs"][2]["intervals"]["fail"]
    assert ends == pytest.approx([0.036, 0.624], abs=5e-4)  # Wilson, 1 of 5
    assert figures["clear", "MRR@10 query by query"]["wins"] == "3"
    assert figures["dense", "MRR@10 | difficulty for bm25 | Hard"]["queries"] == "3"
    assert float(figures["clear", "above bm25 on Hard"]["mean"]) == 1
    summary.result().show()
    for text in (" ".join(capsys.readouterr().out.split()), summary.result().text("markdown")):
        assert all(each in text for each in ("(4% to 62%)", "what does the moon do to the oceans", "● 007", "1.000"))


@given(st.lists(st.integers(0, 5000), min_size=4, max_size=4), st.integers(1, 100))
def test_bars_are_complete_and_rounded_by_at_most_one_cell(parts: list[int], cells: int) -> None:
    dense_only, both, sparse_only, fail = parts
    queries = sum(parts)
    cut = Sets(10, queries, dense_only + both, both + sparse_only, dense_only, sparse_only, both, fail)
    found = bar(cut, cells)
    assert sum(found) == (cells if queries else 0)
    assert all(abs(size - cells * part / max(queries, 1)) <= 1 for size, part in zip(found, parts, strict=True))


def test_the_pair_may_come_from_a_config_file(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    words = ["evaluate", tiny, "--split", "test", *paths, "--format", "json"]
    typed = ran(*words, "--complement", "dense", "bm25", "--show-queries", "1").out
    assert len(json.loads(typed)["complement"]["changed"]) == 1
    settings = write_lines(tmp_path / "settings.yaml", "complement: [dense, bm25]", "show-queries: 1")
    assert ran(*words, "--config", settings).out == typed
