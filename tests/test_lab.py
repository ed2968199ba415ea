"""`compare`, `complementarity` and `over_seeds`: the figures of the command, their forms, bad input."""

import json
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import altair as alt
import pandas as pd
import polars as pl
import pytest
from command import Notices, hybrid, raises, refusal
from IPython.core.interactiveshell import InteractiveShell

from hybrid_cli import (
    BM25,
    Dense,
    InputError,
    Retriever,
    compare,
    complementarity,
    evaluate,
    fuse,
    open_collection,
    open_encoder,
    open_index,
    open_run,
    over_seeds,
    tune,
)
from hybrid_cli.lab import Complementarity
from hybrid_cli.reporting.summary import Summary

DOCUMENTS = {"a": "salt in sea water", "b": "oxygen in the blood", "c": "salt and pepper", "d": "the moon and oceans"}
QUERIES = {"1": "salt sea", "2": "blood oxygen", "3": "pepper", "4": "tides moon"}
QRELS = {"1": {"a": 1}, "2": {"b": 1}, "3": {"c": 1}, "4": {"d": 1}}
DATA = (QUERIES, QRELS)
OTHER = {"1": {"c": 1.0}, "2": {"b": 1.0}, "3": {"a": 2.0, "c": 1.0}, "4": {"d": 3.0}}
MRR: dict[str, Any] = {"measures": ["MRR@10"]}


@pytest.fixture(scope="module")
def bm25() -> Any:
    return BM25().index(DOCUMENTS)


def seed(number: int) -> dict[str, dict[str, float]]:
    """Return a run with a relevant document in front for the first queries."""
    return {qid: {docid if int(qid) <= number else "x": 1.0 for docid in docs} for qid, docs in QRELS.items()}


def test_all_figures_are_those_of_the_command(tiny: Path, tiny_runs: Path) -> None:
    """For open indexes, paths of indexes, and runs; a collection may be open or a path."""
    measures = ["nDCG@10", "MRR@10", "R@2"]
    inputs = [f"bm25={tiny_runs / 'bm25'}", f"dense={tiny_runs / 'dense.parquet'}"]
    words = ["--split", "test", "--measure", ",".join(measures), "--baseline", "dense", "--correction", "bonferroni"]
    expected = json.loads(hybrid("evaluate", tiny, *inputs, *words, "--format", "json").out)
    data = open_collection(tiny)
    options: dict[str, Any] = {"baseline": "dense", "correction": "bonferroni"}
    for lexical in (open_index(tiny_runs / "bm25"), tiny_runs / "bm25"):
        systems = {"bm25": lexical, "dense": str(tiny_runs / "dense.parquet")}
        found = compare(systems, data, "test", measures, **options)
        assert json.loads(found.result().text("json")) == expected
        assert repr(found) == hybrid("evaluate", tiny, *inputs, *words).out.strip("\n")
    run = pl.read_parquet(tiny_runs / "dense.parquet", glob=False)
    again = compare({"bm25": BM25().index(data), "dense": run}, str(tiny), "test", measures, **options)
    assert json.loads(again.result().text("json")) == expected


def test_the_frame_has_means_intervals_and_tests(bm25: Any) -> None:
    found = compare({"bm25": bm25, "other": OTHER}, DATA, measures=["MRR@10", "R@1"])
    row = found.frame.row(by_predicate=(pl.col("run") == "other") & (pl.col("measure") == "MRR@10"), named=True)
    assert (row["mean"], row["queries"], row["baseline"]) == (0.625, 4, "bm25")
    assert row["low"] <= row["mean"] <= row["high"]
    assert (row["wins"], row["losses"], row["ties"]) == (0, 2, 2)
    assert 0 < row["p_t"] <= row["p_t_corrected"] <= 1
    assert found.frame.filter(run="bm25")["p_t"].to_list() == [None, None]
    assert "p_t" not in compare({"bm25": bm25}, DATA, **MRR).frame.columns


def test_a_baseline_may_be_better_than_any_number_of_runs() -> None:
    """Each run below it has a letter, as long as there are some; names are never cut."""
    qrels = {str(number): {"d": 1} for number in range(30)}
    wrong = {f"run {number}": {qid: {"x": 1.0} for qid in qrels} for number in range(50)}
    found = compare({"best": {qid: {"d": 1.0} for qid in qrels}, **wrong}, ({}, qrels), **MRR)
    text = found.to_markdown()
    assert "| best (a) | **1.0000ᵇᶜ" in text
    assert "ᴿᵀᵁᵂ" in text
    assert "| run 49 | .0000 ±.000 |" in text
    assert r"$^{bcdefg" in found.to_latex()


@pytest.mark.parametrize("judged", ["polars", "pandas"])
def test_data_are_a_pair_of_tables_or_an_object_with_splits(bm25: Any, judged: str) -> None:
    class Mine:
        def queries(self, split: str) -> pl.DataFrame:
            return pl.DataFrame({"qid": [*QUERIES], "text": [*QUERIES.values()]})

        def qrels(self, split: str) -> Any:
            assert split == "dev"
            columns = {"qid": [*QRELS], "docid": [*DOCUMENTS], "relevance": [1] * 4}
            return pl.DataFrame(columns) if judged == "polars" else pd.DataFrame(columns)

    found = compare({"bm25": bm25, "other": OTHER}, Mine(), "dev", **MRR)
    assert found.means == compare({"bm25": bm25, "other": OTHER}, DATA, **MRR).means


def test_results_show_themselves(bm25: Any) -> None:
    """In the terminal, a notebook, a paper, and as a chart; ids of anyone are no HTML."""
    name = "<b>x</b>"
    found = compare({"bm25": bm25, name: OTHER}, DATA, **MRR)
    shown = InteractiveShell().display_formatter.format(found)[0]  # type: ignore[no-untyped-call, union-attr]
    assert "<td" in shown["text/html"]
    assert "±" in shown["text/html"]
    assert "&lt;b&gt;x" in shown["text/html"]
    assert name not in shown["text/html"]
    latex = found.to_latex(caption="Mine.", label="tab:mine", p_values=True)
    assert r"\caption{Mine.}" in latex
    assert r"\label{tab:mine}" in latex
    assert "& p (a)" in latex
    assert "p (a)" not in found.to_latex()
    assert found.to_markdown() == found.result().text("markdown")
    (rows,) = found.plot().to_dict()["datasets"].values()
    assert [row["mean"] for row in rows] == [1.0, 0.625]
    assert isinstance(complementarity(bm25, OTHER, DATA).plot(), alt.LayerChart)


def test_cells_and_ratios_are_those_of_the_command(tiny: Path, tiny_runs: Path) -> None:
    pair = [f"{name}={tiny_runs / name}.parquet" for name in ("dense", "bm25")]
    words = ["evaluate", tiny, "--split", "test", *pair, "--complement", "dense", "bm25", "--format", "json"]
    expected = json.loads(hybrid(*words).out)["complement"]["cutoffs"]
    for cut in expected:
        k = cut["cutoff"]
        found = complementarity(
            tiny_runs / "dense.parquet", tiny_runs / "bm25.parquet", tiny, "test", k=k, names=("dense", "bm25")
        )
        rows = {row["measure"]: row for row in found.frame.iter_rows(named=True)}
        names = {"both": "both", "only dense": "dense_only", "only bm25": "sparse_only", "neither": "fail"}
        assert {name: rows[name]["count"] for name in names} == {name: cut[key] for name, key in names.items()}
        assert [rows["only dense"][end] for end in ("low", "high")] == cut["intervals"]["dense_only"]
        assert rows["RoC(dense;bm25)"]["mean"] == cut["roc"]
        assert rows["RoC(bm25;dense)"]["mean"] == cut["mirror"]
        assert rows["oracle"]["mean"] == pytest.approx(cut["oracle"])
        counted = found.cells.group_by("cell").len()
        assert dict(counted.iter_rows()) == {name: cut[key] for name, key in names.items() if cut[key]}


def test_a_query_is_in_one_cell(bm25: Any) -> None:
    found = complementarity(bm25, {**OTHER, "4": {"x": 1.0}}, (QUERIES, {**QRELS, "5": {"d": 0}}), k=1)
    assert found.cells.rows() == [("1", "only first"), ("2", "both"), ("3", "only first"), ("4", "only first")]
    assert complementarity(bm25, OTHER, DATA, names=("one", "two"), k=1).cells["cell"][0] == "only one"


def test_seeds_are_combined_as_the_command_does(tmp_path: Path) -> None:
    """BM25, equal in all results, is one seed; another has the deviation over its seeds."""
    qrels, words = tmp_path / "qrels.tsv", []
    qrels.write_text("".join(f"{qid}\t{docid}\t1\n" for qid, docs in QRELS.items() for docid in docs))
    for name, run in {"bm25": seed(2), "clear-1": seed(1), "clear-2": seed(3)}.items():
        lines = (f"{qid} Q0 {docid} 1 {score} x\n" for qid, hits in run.items() for docid, score in hits.items())
        (tmp_path / f"{name}.trec").write_text("".join(lines))
        words.append(f"{name}={tmp_path / name}.trec")
    options = ["--study", "over-seeds", "--roc-against", "bm25", "--baseline", "bm25", "--measure", "MRR@10"]
    done = hybrid("evaluate", "--qrels", qrels, *words, *options, "--format", "json")
    expected = json.loads(done.out)
    measures = ["MRR@10", "Success@10"]
    results = [compare({"bm25": seed(2), "clear": seed(number)}, DATA, measures=measures) for number in (1, 3)]
    found = over_seeds(results, baseline="bm25", roc_against="bm25")
    assert json.loads(found.result().text("json")) == expected
    rows = {(row["row"], row["measure"]): row for row in expected["rows"]}
    assert (rows["bm25", "MRR@10"]["seeds"], rows["bm25", "MRR@10"]["deviation"]) == (1, None)
    assert rows["clear", "MRR@10"]["mean"] == 0.5
    assert rows["clear", "RoC@10"]["seeds"] == 2
    assert found.frame.filter(row="clear", measure="MRR@10")["deviation"][0] == pytest.approx(0.3536, abs=1e-4)
    assert found.plot().to_dict()
    assert r"$\pm$" in found.to_latex("Seeds")


def test_complementarity_is_combined_over_seeds() -> None:
    results = [complementarity(seed(2), seed(number), DATA, k=1, names=("bm25", "clear")) for number in (1, 3)]
    rows = {(row["row"], row["measure"]): row for row in over_seeds(results).frame.iter_rows(named=True)}
    assert rows["bm25", "RoC@1"]["mean"] == (1 / 2 + 0) / 2
    assert rows["clear", "RoC@1"]["mean"] == pytest.approx((0 + 1 / 3) / 2)
    only = rows["clear", "D only@1"]
    assert (only["mean"], only["seeds"]) == (1 / 8, 2)
    assert only["low"] <= only["mean"] <= only["high"]


SYSTEMS: list[tuple[Any, Any]] = [
    ({"mine": {"x": {"a": 1.0}}}, refusal("other-queries", id="x")),
    ({"mine": {}}, refusal("other-queries")),
    ({"mine": pl.DataFrame({"docid": ["a"], "score": [1.0]})}, refusal("no-such-column")),
    ({"mine": pd.DataFrame({"qid": ["1", "1"], "docno": ["a", "a"], "score": [1, 2]})}, refusal("duplicate-id")),
    ({"mine": pl.DataFrame({"qid": ["1", None], "docid": ["a", "b"], "score": [1, 2]})}, refusal("missing-value")),
    ({"mine": BM25()}, refusal("not-a-table")),
    ({"mine": "mine.trec"}, refusal("no-such-file")),
    ({"mine=x": OTHER}, refusal("invalid-name")),
    ({}, refusal("invalid-name")),
    (OTHER, refusal("not-a-table")),
]


@pytest.mark.parametrize(("systems", "expected"), SYSTEMS)
def test_a_system_is_refused_by_its_name(systems: Any, expected: Any) -> None:
    with raises(expected) as error:
        compare(systems, DATA, **MRR)
    fields = error.value.fields
    assert not any(str(value).startswith(gettempdir()) for value in fields.values())
    assert {*map(str, systems), "systems"} & set(map(str, fields.values()))


def test_other_bad_input_is_refused(bm25: Any, tiny: Path) -> None:
    with raises("invalid-value", value="nDGC@10"):
        compare({"bm25": bm25}, DATA, measures=["nDGC@10"])
    with raises("no-such-split"):
        compare({"bm25": bm25}, tiny, "nosuch", **MRR)
    for data in (QRELS, (QUERIES, QRELS, 1), 3):
        with raises("other-type", option="data"):
            compare({"bm25": bm25}, data, **MRR)
    with raises("other-type", option="data"):
        compare({"bm25": bm25}, DATA, "test", **MRR)
    with raises("no-such-option"):
        over_seeds([compare({"bm25": bm25}, DATA, **MRR)], baselin="bm25")
    with raises("invalid-depth"):
        compare({"bm25": bm25}, DATA, k=0, **MRR)
    with raises("invalid-name", option="names"):
        complementarity(bm25, OTHER, DATA, names=("a", "a"))
    with raises("nothing-relevant"):
        complementarity(bm25, OTHER, (QUERIES, {"1": {"a": 0}}))


@pytest.mark.parametrize(
    ("call", "keyword", "similar"),
    [
        (lambda _, **more: BM25(**more), "k", "k1"),
        (lambda _, **more: Dense(**more), "encode", "encoder"),
        (lambda index, **more: Retriever([index], **more), "recipes", "recipe"),
        (lambda index, **more: Retriever.of({"a": index, "b": index}, **more), "wights", "weights"),
        (lambda index, **more: Retriever([index, index]).tune(QRELS, **more), "query", "queries"),
        (lambda index, **more: index.search("salt", **more), "filters", "filter"),
        (lambda index, **more: index.context("salt", **more), "token", "tokens"),
        (lambda index, **more: index.expanded(**more), "fbdocs", "fb_docs"),
        (lambda index, **more: index.explain("salt", "a", **more), "queries", "query"),
        (lambda index, **more: index.score([], [], **more), "pair", "pairs"),
        (lambda _, **more: BM25().index(DOCUMENTS, **more), "document", "documents"),
        (lambda _, **more: open_run("a", **more), "paths", "path"),
        (lambda _, **more: tune({"a": OTHER, "b": OTHER}, QRELS, **more), "mesure", "measure"),
        (lambda _, **more: fuse({"a": OTHER, "b": OTHER}, **more), "rrfk", "rrf_k"),
        (lambda _, **more: evaluate(OTHER, QRELS, ["MRR"], **more), "levels", "level"),
        (lambda _, **more: open_encoder("minilm", **more), "devise", "device"),
        (lambda index, **more: complementarity(index, OTHER, DATA, **more), "relevance", "relevance_level"),
        (lambda index, **more: compare({"a": index}, DATA, **more), "base_line", "baseline"),
        (lambda index, **more: compare({"a": index}, DATA).to_latex(**more), "captions", "caption"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest_name(bm25: Any, call: Any, keyword: str, similar: str) -> None:
    with pytest.raises(InputError) as caught:
        call(bm25, **{keyword: 1})
    assert (caught.value.fields["option"], caught.value.fields["similar"]) == (keyword, similar)


def test_results_of_other_systems_or_queries_are_not_combined(bm25: Any) -> None:
    one = compare({"bm25": bm25}, DATA, **MRR)
    others: list[Any] = [
        [],
        one,
        [one, 1],
        [one, complementarity(bm25, OTHER, DATA)],
        [one, compare({"other": bm25}, DATA, **MRR)],
        [one, compare({"bm25": bm25}, DATA, measures=["R@1"])],
        [one, compare({"bm25": bm25}, (QUERIES, {"1": {"a": 1}}), **MRR)],
        [over_seeds([one])],
    ]
    for results in others:
        with raises("other-results"):
            over_seeds(results)
    with raises("unknown-choice", option="baseline"):
        over_seeds([one], baseline="bm26")
    with raises("missing-measure", option="roc_against"):
        over_seeds([one, one], roc_against="bm25")


def test_results_have_types(bm25: Any, notices: Notices) -> None:
    assert type(compare({"bm25": bm25}, DATA, **MRR)) is Summary
    assert type(complementarity(bm25, OTHER, DATA)) is Complementarity
    assert not notices.warnings
