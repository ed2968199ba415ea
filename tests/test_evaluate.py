"""`evaluate`: tables, drops, incomplete runs; `--study aggregate`."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, hybrid, raises, refusal
from evaluated import RUNS, evaluate, write_run
from tiny_collection import write_lines

from hybrid_cli import artifacts
from hybrid_cli.commands import PrepareBeir, PrepareFiles
from hybrid_cli.reporting.studies import drops_of, systems_and_attacks
from hybrid_cli.reporting.tables import Table, latex_table
from hybrid_cli.stages.evaluate import evaluate as evaluate_stage
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


def test_means_are_over_all_judged_queries(tiny: Path, paths: list[Path]) -> None:
    summary = evaluate([tiny, *paths], split="test", measure=["MRR@10", "R@2"])
    # 001: second; 002: first; 003: first; 004, 005 missing; 006 not judged
    assert summary.means["bm25", "MRR@10"] == pytest.approx((1 / 2 + 1 + 1 + 0 + 0) / 5)
    assert summary.means["bm25", "R@2"] == pytest.approx((1 + 1 + 1 / 2 + 0 + 0) / 5)
    expected = {"judged": 5, "answered": 3, "missing": 2, "unjudged": 1, "Judged@10": (1 + 2 + 1) / 10 / 5}
    assert summary.counts["bm25"] == pytest.approx(expected)
    assert summary.settings["nothing_relevant"] == 0


def test_qrels_may_be_a_file_and_a_run_a_trec_file(tiny: Path, tmp_path: Path, paths: list[Path]) -> None:
    trec = tmp_path / "clear.trec"
    lines = (f"{q} Q0 {d} {r} {9 - r} x\n" for q, ds in RUNS["clear"].items() for r, d in enumerate(ds, 1))
    trec.write_text("".join(line for line in lines if "moon" not in line), "utf-8")
    qrels = tiny / "qrels.test.parquet"
    by_option = evaluate([paths[2], f"foreign={trec}"], qrels=qrels, measure=["ndcg_cut_10"])
    by_place = evaluate([qrels, paths[2], f"foreign={trec}"], measure=["ndcg_cut_10"])
    assert by_option.values.equals(by_place.values)
    assert by_option.means["clear", "ndcg_cut_10"] == by_option.means["foreign", "ndcg_cut_10"]


def test_remove_query_removes_hits_with_the_id_of_their_query(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", {"1": ["1", "2"], "2": ["3"]})
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("1\t2\t1\n2\t3\t1\n", "utf-8")
    kept = evaluate([run], qrels=qrels, measure=["MRR@10"])
    removed = evaluate([run], qrels=qrels, measure=["MRR@10"], remove_query=True)
    assert kept.means["run", "MRR@10"] == (1 / 2 + 1) / 2
    assert removed.means["run", "MRR@10"] == 1
    assert removed.counts["run"]["removed"] == 1
    assert "removed" not in kept.counts["run"]


@pytest.mark.parametrize(("text", "expected"), [("Two high  tides a day.", 1.0), ("another text", 0.5)])
def test_queries_that_are_documents_are_removed_from_their_lists(tmp_path: Path, text: str, expected: float) -> None:
    write_lines(
        tmp_path / "corpus.jsonl",
        {"_id": "1", "title": "Tides", "text": "Two high tides a day."},
        {"_id": "2", "title": "", "text": "The moon pulls the oceans."},
    )
    write_lines(tmp_path / "queries.jsonl", {"_id": "1", "text": text})
    write_lines(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "1\t2\t1")
    data = prepare(PrepareBeir(tmp_path, output=tmp_path / "data"))
    run = write_run(tmp_path / "run.parquet", {"1": ["1", "2"]})
    assert evaluate([data, run], measure=["MRR@10"]).means["run", "MRR@10"] == expected
    assert evaluate([data, run], measure=["MRR@10"], remove_query=False).means["run", "MRR@10"] == 0.5
    assert evaluate([data, run], measure=["MRR@10"], remove_query=True).means["run", "MRR@10"] == 1


def test_runs_and_files_of_another_collection_are_refused_or_named(tmp_path: Path, notices: Notices) -> None:
    run = write_run(tmp_path / "run.parquet", {"1": ["a"], "9": ["b"]})
    qrels, earlier, queries, corpus = (
        tmp_path / name for name in ("qrels.tsv", "earlier.tsv", "q.parquet", "c.parquet")
    )

    def warnings(judgments: str, **options: Any) -> list[str]:
        qrels.write_text(judgments, "utf-8")
        notices.clear()
        evaluate([run], qrels=qrels, measure=["MRR@10"], **options)
        return notices.warnings

    with raises("other-queries", id="1"):
        warnings("3\ta\t1\n4\ta\t1\n")
    assert warnings("1\ta\t1\n3\ta\t1\n") == []
    assert warnings("1\ta\t1\n3\ta\t1\n4\ta\t1\n") == ["unanswered-queries"]
    assert warnings("1\tz\t1\n") == ["no-judged-hit"]
    earlier.write_text("1\tx\t1\n")
    assert warnings("1\ta\t1\n", residual_qrels=earlier) == ["nothing-removed"]
    pl.DataFrame({"qid": ["1"], "text": ["?"], "answers": [["Nile"]]}).write_parquet(queries)
    pl.DataFrame({"docid": ["x"], "title": [""], "text": ["the Nile"]}).write_parquet(corpus)
    other = write_run(tmp_path / "other.parquet", {"1": ["b"]})
    with raises("other-corpus", path="c.parquet", id="a"):
        warnings("1\ta\t1\n", complement=(str(run), str(other)), queries=queries, corpus=corpus)
    with raises("other-corpus", path="c.parquet"):
        evaluate([queries, run], queries=queries, corpus=corpus, measure=["acc@1"])


def test_documents_judged_earlier_leave_runs_and_judgments(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", {"1": ["a", "b", "c"], "2": ["d", "e"], "3": ["f"]})
    qrels, earlier = tmp_path / "qrels.tsv", tmp_path / "earlier.tsv"
    qrels.write_text("1\ta\t1\n1\tb\t0\n1\tc\t1\n2\te\t1\n3\tf\t1\n", "utf-8")
    earlier.write_text("1\ta\t1\n1\tb\t0\n2\td\t0\n3\tf\t0\n", "utf-8")
    found = evaluate([run], qrels=qrels, measure=["MRR@10", "R@1", "Rprec"], residual_qrels=earlier)
    values = found.values.filter(measure="MRR@10").select("qid", "value").rows()
    assert sorted(values) == [("1", 1.0), ("2", 1.0)]
    assert [found.means["run", name] for name in ("R@1", "Rprec")] == [1, 1]
    assert found.counts["run"]["removed"] == 4
    with raises("other-queries"):
        evaluate([run], qrels=qrels, measure=["MRR@10"], residual_qrels=qrels)
    others = refusal("other-queries", option="residual_qrels")
    for content, message in {"": refusal("no-judgments", path="earlier.tsv"), "4\ta\t1\n": others}.items():
        earlier.write_text(content)
        with raises(message):
            evaluate([run], qrels=qrels, measure=["MRR@10"], residual_qrels=earlier)


def test_accuracy_needs_answers_and_texts_but_no_qrels(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.parquet", {"1": ["a", "b"], "2": ["a"], "3": ["a"]})
    queries, corpus = tmp_path / "queries.parquet", tmp_path / "corpus.parquet"
    pl.DataFrame({"qid": ["1", "2", "3"], "text": ["?"] * 3, "answers": [["Nile"], ["Amazon"], []]}).write_parquet(
        queries
    )
    pl.DataFrame({"docid": ["a", "b"], "title": ["The Nile", ""], "text": ["no river", "on the nile."]}).write_parquet(
        corpus
    )
    summary = evaluate([queries, run], queries=queries, corpus=corpus, measure=["acc@1", "acc@2"])
    assert summary.means == {("run", "acc@1"): 0, ("run", "acc@2"): 1 / 2}
    assert summary.counts["run"] == {"judged": 2, "answered": 2, "missing": 0, "unjudged": 1}


def test_overlap_with_adds_a_measure(tiny: Path, paths: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "values.parquet"
    settings: dict[str, Any] = {"split": "test", "measure": ["MRR@10", "R@2"], "overlap_with": "bm25"}
    summary = evaluate([tiny, *paths], output=output, **settings)
    assert summary.measures == ["MRR@10", "R@2", "RBO"]
    assert summary.means["bm25", "RBO"] == pytest.approx(3 / 5)  # bm25 has no hits for 004 and 005; 006 is not judged
    # 001 and 003: one list has only the second document of the other: .1/.9 * .5 * .81 + .5 * .81
    values = summary.values.filter(run="clear", measure="RBO").select("qid", "value").rows()
    assert [qid for qid, _ in values] == ["001", "002", "003", "004", "005"]
    assert [value for _, value in values] == pytest.approx([0.45, 1, 0.45, 0, 0])
    low, high = summary.ends["clear", "RBO"]
    assert low < summary.means["clear", "RBO"] < high
    assert pl.read_parquet(output).equals(summary.values)
    assert "RBO: " in summary.result().text("markdown")
    assert json.loads(summary.result().text("json"))["overlap_with"] == "bm25"
    by_path = evaluate([tiny, *paths[1:]], **{**settings, "overlap_with": str(paths[0])})
    assert by_path.runs == ["dense", "clear"]
    assert by_path.means["clear", "RBO"] == summary.means["clear", "RBO"]
    compared = evaluate([tiny, *paths], **settings, complement=("dense", "bm25"))
    assert compared.means["clear", "RBO"] == summary.means["clear", "RBO"]


def test_overlap_is_that_of_the_measured_lists(tmp_path: Path) -> None:
    run, other = (
        write_run(tmp_path / f"{n}.parquet", {"q": [*docids]}) for n, docids in (("run", "qa"), ("other", "a"))
    )
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q 0 a 1\n")
    for remove in (False, True):
        found = evaluate([qrels, run], measure=["MRR@10"], overlap_with=str(other), remove_query=remove)
        assert (found.means["run", "RBO"] == pytest.approx(1)) is remove


def test_short_lists_and_scores_that_rise_are_named(tmp_path: Path, notices: Notices) -> None:
    """A list of all documents is not short."""
    docs = write_lines(tmp_path / "docs.csv", "id,text", "a,salt", "b,salt water")
    queries, qrels = write_lines(tmp_path / "q.csv", "id,text", "1,salt"), write_lines(tmp_path / "q.tsv", "1\ta\t1")
    prepared = PrepareFiles([docs], queries=[f"test={queries}"], qrels=[f"test={qrels}"], output=tmp_path / "data")
    data, run = prepare(prepared), write_lines(tmp_path / "distances.trec", "1 Q0 a 1 1 x", "1 Q0 b 2 2 x")
    index = index_bm25(data, lucene=False, output=tmp_path / "bm25")
    for hits in (1, 10):
        found = search(data, split="test", index=index, hits=hits, output=tmp_path / f"{hits}.parquet")
        evaluate([data, found], split="test", measure=["R@1", "R@100"])
        assert notices.says("short-lists", run=str(hits), measures=["R@100"]) is (hits == 1)
    evaluate([data, run], split="test", measure=["MRR"])
    assert notices.says("scores-rise", run="distances")


def big(tmp_path: Path) -> list[Path | str]:
    """Return qrels and runs over 40 queries: `good` is always right, `bad` for a quarter, `none` never."""
    qids = [f"q{number}" for number in range(40)]
    (tmp_path / "qrels.tsv").write_text("".join(f"{qid}\tright\t1\n" for qid in qids), "utf-8")
    right = {"good|best": qids, "bad": qids[:10], "[none]": []}
    return [tmp_path / "qrels.tsv"] + [
        f"{name}={write_run(tmp_path / f'{at}.parquet', {q: ['right' if q in hits else 'wrong'] for q in qids})}"
        for at, (name, hits) in enumerate(right.items())
    ]


def test_json_csv_and_markdown_have_the_same_figures(tmp_path: Path) -> None:
    summary = evaluate(big(tmp_path), measure=["P@1", "Success@5"], baseline=["bad"])
    content = json.loads(summary.result().text("json"))
    assert content["runs"][0]["means"] == {"P@1": 1.0, "Success@5": 1.0}
    assert content["queries"] == {"P@1": 40, "Success@5": 40}
    compared = next(row for row in content["comparisons"] if row["run"] == "[none]")
    assert (compared["wins"], compared["losses"], compared["ties"]) == (0, 10, 30)
    rows = list(csv.DictReader(io.StringIO(summary.result().text("csv"))))
    assert len(rows) == 3 * 2
    flat = next(row for row in rows if row["run"] == "[none]" and row["measure"] == "P@1")
    assert float(flat["p_t_corrected"]) == compared["p_t_corrected"]
    assert (flat["missing"], flat["correction"], flat["baseline"]) == ("0", "holm", "bad")
    assert next(row for row in rows if row["run"] == "bad")["baseline"] == ""
    markdown = summary.result().text("markdown")
    low, high = content["runs"][1]["intervals"]["P@1"]
    assert low < content["runs"][1]["means"]["P@1"] == 1 / 4 < high
    assert (float(flat["low"]), float(flat["high"])) == tuple(content["runs"][2]["intervals"]["P@1"])
    half = f"±{(high - low) / 2:.3f}".replace("0.", ".")
    assert "| good\\|best | **1.0000ᵃ** ±.000 | **1.0000ᵃ** ±.000 |" in markdown
    assert f"| bad (a) | .2500ᵇ {half} | .2500ᵇ {half} |" in markdown  # significantly better than [none]
    assert (
        "± half the width of the 95% bootstrap interval of the mean (1,000 samples of the queries, seed 42)."
        in markdown
    )


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_a_mark_is_on_the_better_run(tmp_path: Path, form: str) -> None:
    """A run that is significantly below a baseline gets a letter, and the baseline the mark."""
    words = ["evaluate", *big(tmp_path), f"same={tmp_path}/1.parquet", "-m", "P@1", "--format", form]
    done = hybrid(*words, "--baseline", "good|best", "--baseline", "bad")
    text = done.out.replace("$^{", "").replace("}$", "") if form == "latex" else done.out
    marks = {"ᵃ": "a", "ᵇ": "b", "ᶜ": "c", "ᵈ": "d"} if form == "latex" else {}
    for row in ("1.0000ᵇᶜᵈ", ".2500ᶜ", ".0000", ".2500"):
        assert "".join(marks.get(letter, letter) for letter in row) in text.replace("textbf{", "")
    assert all(name in text.replace("\\", "") for name in ("bad (b)", "(c)", "same (d)"))
    assert "↓" not in text
    assert "downarrow" not in text


def test_p_values_of_each_baseline_are_columns_on_request(tmp_path: Path) -> None:
    inputs = [*big(tmp_path), "-m", "P@1", "--baseline", "bad", "--baseline", "good|best"]
    rows = json.loads(hybrid("evaluate", *inputs, "--format", "json").out)["comparisons"]
    p = next(row["p_t_corrected"] for row in rows if (row["run"], row["baseline"]) == ("[none]", "bad"))
    done = hybrid("evaluate", *inputs, "--p-values", "--format", "markdown").out
    assert "| run | P@1 | p (a) | p (b) |" in done
    assert re.search(r"none.*\| \.0000 ±\.000 \| <\.001 \| <\.001 \|", done.replace("\\", ""))
    assert p < 0.001
    assert "p (a)" not in hybrid("evaluate", *inputs, "--format", "markdown").out
    for others in (["--format", "json"], ["--study", "over-seeds"]):
        assert hybrid("evaluate", *inputs, "--p-values", *others).is_problem("option-does-not-apply", option="p_values")


def test_latex_has_captions_and_columns_of_counts_and_shares() -> None:
    cells = [["a\nb", "10\n25.0% (10% to 40%)", ".5\u1d43 ±.1"], ["c", "7", ".4 ±.1"]]
    table = Table(["run", "D_only", "m"], cells, "Title", ["note"], bold={(0, 1), (0, 2)})
    plain, captioned = latex_table(table), latex_table(table, r"On \emph{mine}", "tab:mine")
    assert r"run & \multicolumn{2}{r}{D\_only} & m \\" in plain
    assert r"a b & \textbf{10} & 25.0\% (10\% to 40\%) & \textbf{.5$^{a}$} $\pm$.1 \\" in plain
    assert r"c & 7 &  & .4 $\pm$.1 \\" in plain
    assert r"\begin{tabular}{lrrr}" in plain
    assert plain.startswith("Title\n")
    begin = [r"\begin{table}", r"\centering", r"\caption{On \emph{mine}}", r"\label{tab:mine}"]
    assert captioned.splitlines() == [*begin, *plain.splitlines()[2:], r"\end{table}"]


QUERIES = 20
ANSWERED = {  # of 20 queries; A finds 5-14 with one seed and 5-18 with the other, the fused runs all of both
    "bm25": range(10),
    "A-1": range(5, 15),
    "bm25+A-1": range(15),
    "A-2": range(5, 19),
    "bm25+A-2": range(19),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("seeds")
    qrels = folder / "qrels.tsv"
    qrels.write_text("".join(f"q{query}\td\t1\n" for query in range(QUERIES)), "utf-8")
    runs = [
        write_run(folder / f"{name}.parquet", {f"q{q}": ["d" if q in found else "x"] for q in range(QUERIES)})
        for name, found in ANSWERED.items()
    ]
    return [qrels, *runs]


def test_rows_have_mean_deviation_ratio_and_marks(inputs: list[Path]) -> None:
    arguments = ["--study", "over-seeds", "--roc-against", "bm25", "--baseline", "bm25", "--correction", "bonferroni"]
    measures = ["-m", "MRR@10", "-m", "Success@10"]
    printed = hybrid("evaluate", *inputs, *arguments, *measures, "--format", "markdown").out
    table = {
        cells[0]: cells[1:]
        for cells in (re.split(r" *\| *", line.strip("| ")) for line in printed.splitlines() if line.startswith("|"))
    }
    assert table["row"] == ["seeds", "RoC@10", "D only@10", "S only@10", "Fail@10", "MRR@10", "Success@10"]
    assert table["bm25 (a)"] == ["1", "", "", "", "", ".5000", ".5000"]
    assert table["A"][:2] == ["2", ".5714 ± .1010"]  # 5/10 and 9/14
    assert table["A"][5:] == [".6000 ± .1414", ".6000 ± .1414"]
    assert table["bm25+A"] == ["2", *table["A"][1:5], ".8500ᵃ ± .1414", ".8500ᵃ ± .1414"]
    assert "Bonferroni" in printed
    for shown, mean in zip(table["A"][2:5], (0.35, 0.25, 0.15), strict=True):  # 5 and 9, 5 and 5, 5 and 1 of 20
        found = re.fullmatch(r"(\.\d+) \((\.\d+) to (\.\d+)\)", shown)
        assert found is not None
        middle, low, high = map(float, found.groups())
        assert middle == mean
        assert low < mean < high


def test_the_ratio_of_a_run_without_an_answered_query_is_undefined(inputs: list[Path], tmp_path: Path) -> None:
    empty = write_run(tmp_path / "A-2.parquet", {f"q{query}": ["x"] for query in range(QUERIES)})
    words = ["evaluate", *inputs[:3], empty, "--study", "over-seeds", "--roc-against", "bm25", "-m", "hit_rate@10"]
    rows = json.loads(hybrid(*words, "--format", "json").out)["rows"]
    row = next(each for each in rows if (each["row"], each["measure"]) == ("A", "RoC@10"))
    assert (row["mean"], row["deviation"], row["seeds"]) == (None, None, 2)
    assert all("nan" not in hybrid(*words, "--format", form).out.lower() for form in ("markdown", "csv", "latex"))


# 40 questions whose only relevant document is `d`; how many of them a run answers, the first ones first.
QUESTIONS = 40
ATTACKED = {"bm25": 32, "bm25@char-swap": 16, "bm25@word-order-swap": 32, "bm25@mine": 24, "both": 36, "both@mine": 35}
ATTACKED |= {"both@word-order-swap": 36, "both@char-swap": 34}


def robustness(inputs: list[Path], **options: Any) -> dict[str, Any]:
    found = evaluate_stage(inputs, study="robustness", **options)
    return {**found.content, "systems": {row["system"]: row["measures"] for row in found.content["systems"]}}


@pytest.fixture(scope="module")
def qrels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qrels") / "qrels.tsv"
    path.write_text("".join(f"q{number:02}\td\t1\n" for number in range(QUESTIONS)), "utf-8")
    return path


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        write_run(folder / f"{name}.parquet", {f"q{n:02}": ["d" if n < right else "x"] for n in range(QUESTIONS)})
        for name, right in ATTACKED.items()
    ]


def test_a_drop_is_the_original_minus_the_mean_over_attacks(qrels: Path, attacked: list[Path]) -> None:
    found = robustness(attacked, qrels=qrels, measure=["R@1", "MRR@10"])
    bm25, both = (found["systems"][system] for system in ("bm25", "both"))
    assert found["attacks"] == ["char-swap", "word-order-swap", "mine"]  # attacks of `perturb` first
    assert bm25["R@1"]["char-swap"] == 16 / 40
    assert bm25["R@1"]["mean_drop"] == pytest.approx((32 - (16 + 32 + 24) / 3) / 40)
    short = write_run(attacked[0].parent / "bm25@few.parquet", {"q00": ["d"]})
    assert robustness([attacked[0], short], qrels=qrels, measure=["R@1"])["missing"] == {"bm25@few": 39}
    assert both["MRR@10"]["mean_drop"] == pytest.approx((36 - (34 + 36 + 35) / 3) / 40)


def test_drops_are_computed_per_query_and_have_an_interval(qrels: Path, attacked: list[Path]) -> None:
    runs = evaluate(attacked[:4], qrels=qrels, measure=["R@1"])
    values = dict(drops_of(runs.values, "bm25").select("qid", "value").iter_rows())
    assert values == pytest.approx(
        {f"q{n:02}": 0 if n < 16 else 1 / 3 if n < 24 else 2 / 3 if n < 32 else 0 for n in range(QUESTIONS)}
    )
    drop = robustness(attacked, qrels=qrels, measure=["R@1"])["systems"]["bm25"]["R@1"]
    low, high = drop["interval"]
    assert 0 < low < drop["mean_drop"] < high < 0.4


def test_attacks_are_tested_against_the_original_and_drops_against_baselines(qrels: Path, attacked: list[Path]) -> None:
    found = robustness(attacked, qrels=qrels, measure=["R@1"])
    tests = found["against_original"]
    pairs = [tuple(test[name] for name in ("run", "baseline", "wins", "losses")) for test in tests]
    assert pairs[0] == ("bm25@char-swap", "bm25", 0, 16)
    assert ("both@mine", "both", 0, 1) in pairs
    assert len(pairs) == 6
    (drop,) = found["drops"]
    assert (drop["run"], drop["baseline"]) == ("both", "bm25")
    assert drop["difference"] == pytest.approx((36 - 35 - (32 - 24)) / 40)
    other = robustness(attacked, qrels=qrels, measure=["R@1"], baseline=["both"])
    assert [test["run"] for test in other["drops"]] == ["bm25"]


def test_incomplete_runs_are_refused() -> None:
    with raises("no-such-run"):
        systems_and_attacks(["bm25", "dense"])
    with raises("no-such-run", run="dense"):
        systems_and_attacks(["bm25", "bm25@x", "dense@x"])
    with raises("no-such-run", run="dense@y"):
        systems_and_attacks(["bm25", "bm25@x", "bm25@y", "dense", "dense@x"])


VALUES = {  # collection -> run -> values of its queries
    "a": {"bm25": [1.0, 0.0], "dense": [0.5, 0.5]},
    "c/x": {"bm25": [0.2], "dense": [1.0]},
    "c/y": {"bm25": [0.4, 0.4, 0.4], "dense": [0.0, 0.0, 0.6]},
}


def write(folder: Path, name: str, measure: str = "MRR@10", **options: Any) -> Path:
    rows = [
        (run, measure, f"q{number}", value)
        for run, values in VALUES[name].items()
        for number, value in enumerate(values)
    ]
    path = folder / f"{name.replace('/', '-')}.parquet"
    table = pl.DataFrame(rows, schema=["run", "measure", "qid", "value"], orient="row").to_arrow()
    artifacts.open_output(path, Kind.MEASUREMENTS, "evaluate", inputs={}, options=options).write([table])
    return path


@pytest.fixture
def seeds(tmp_path: Path) -> list[str]:
    return [f"{name}={write(tmp_path, name)}" for name in VALUES]


def test_parts_collections_and_queries_are_averaged(seeds: list[str]) -> None:
    found = evaluate_stage(seeds, study="aggregate")
    means = {(row["collection"], row["run"]): row["mean"] for row in found.content["means"]}
    assert means["a", "bm25"] == 0.5
    assert means["c", "bm25"] == pytest.approx((0.2 + 0.4) / 2)
    assert means["c", "dense"] == pytest.approx((1 + 0.2) / 2)
    assert means["macro", "bm25"] == pytest.approx((0.5 + 0.3) / 2)
    assert means["micro", "dense"] == pytest.approx((0.5 + 0.5 + 1 + 0.6) / 6)
    assert (found.content["queries"], found.content["parts"]) == ({"a": 2, "c": 4}, {"a": 1, "c": 2})


def test_every_format_has_the_same_means(seeds: list[str]) -> None:
    shown = hybrid("evaluate", "--study", "aggregate", *seeds).out
    assert {"c", "macro", "micro"} <= set(re.findall(r"\w+", shown))
    repeated = hybrid("evaluate", "--study", "aggregate", *seeds, "--measure", "MRR@10,MRR@10")
    assert (repeated.code, repeated.out) == (0, shown)
    for form in ("markdown", "latex", "csv"):
        text = hybrid("evaluate", "--study", "aggregate", *seeds, "--format", form).out
        assert ".4333" in text or "0.4333" in text
    content = json.loads(hybrid("evaluate", "--study", "aggregate", *seeds, "--format", "json").out)
    assert len(content["means"]) == 2 * 4


def test_measurements_with_other_settings_are_named(tmp_path: Path, notices: Notices) -> None:
    files = [write(tmp_path, "a", relevance_level=1), write(tmp_path, "c/x", relevance_level=1, condensed=True)]
    evaluate_stage(files, study="aggregate")
    assert notices.says("other-settings", path="c-x.parquet", expected="a.parquet", options=["condensed"])
    notices.clear()
    evaluate_stage([files[0], write(tmp_path, "c/y", relevance_level=1)], study="aggregate")
    assert not notices.warnings
