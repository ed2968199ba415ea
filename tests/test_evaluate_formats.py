"""The result of `evaluate` as a table, JSON, CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import polars as pl
import pytest
from evaluated import RUNS, evaluate, write_run

from hybrid_cli.reporting.evaluate import show_tables
from hybrid_cli.reporting.evaluate import text as in_format


def big(tmp_path: Path) -> list[Path | str]:
    """Return qrels and runs over 40 queries: `good` is always right, `bad` for a quarter, `none` never."""
    qids = [f"q{number}" for number in range(40)]
    (tmp_path / "qrels.tsv").write_text("".join(f"{qid}\tright\t1\n" for qid in qids), "utf-8")
    right = {"good|best": qids, "bad": qids[:10], "[none]": []}
    return [tmp_path / "qrels.tsv"] + [
        f"{name}={write_run(tmp_path / f'{at}.parquet', {q: ['right' if q in hits else 'wrong'] for q in qids})}"
        for at, (name, hits) in enumerate(right.items())
    ]


def test_marks_and_legend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_tables(evaluate(big(tmp_path), measures=["P@1"], baseline=["bad"], correction="bonferroni"))
    lines = capsys.readouterr().out.splitlines()
    figures = {words[0]: words[1] for words in (line.split() for line in lines) if len(words) > 1}
    table = " ".join(" ".join(lines).split())
    assert "1.0000ᵃ" in table
    assert ".0000↓ᵃ" in table
    assert "bad (a)" in table
    assert "[none]" in figures  # not parsed as markup
    assert (
        "ᵃ better than bad (↓ᵃ worse): p < 0.05, two-sided paired t-test, Bonferroni over 2 comparisons per measure"
        in table
    )
    assert "n = 40." in table


def test_json_csv_and_markdown_have_the_same_figures(tmp_path: Path) -> None:
    summary = evaluate(big(tmp_path), measures=["P@1", "Success@5"], baseline=["bad"])
    content = json.loads(in_format(summary, "json"))
    assert content["runs"][0]["means"] == {"P@1": 1.0, "Success@5": 1.0}
    assert content["queries"] == {"P@1": 40, "Success@5": 40}
    compared = next(row for row in content["comparisons"] if row["run"] == "[none]")
    assert (compared["wins"], compared["losses"], compared["ties"]) == (0, 10, 30)
    rows = list(csv.DictReader(io.StringIO(in_format(summary, "csv"))))
    assert len(rows) == 3 * 2
    flat = next(row for row in rows if row["run"] == "[none]" and row["measure"] == "P@1")
    assert float(flat["p_t_corrected"]) == compared["p_t_corrected"]
    assert (flat["missing"], flat["correction"], flat["baseline"]) == ("0", "holm", "bad")
    assert next(row for row in rows if row["run"] == "bad")["baseline"] == ""
    markdown = in_format(summary, "markdown")
    low, high = content["runs"][1]["intervals"]["P@1"]
    assert low < content["runs"][1]["means"]["P@1"] == 1 / 4 < high
    assert (float(flat["low"]), float(flat["high"])) == tuple(content["runs"][2]["intervals"]["P@1"])
    half = f"±{(high - low) / 2:.3f}".replace("0.", ".")
    assert "| good\\|best | **1.0000ᵃ** ±.000 | **1.0000ᵃ** ±.000 |" in markdown
    assert f"| bad (a) | .2500 {half} | .2500 {half} |" in markdown
    assert (
        "± half the width of the 95% bootstrap interval of the mean (1,000 samples of the queries, seed 42)."
        in markdown
    )


def test_latex_has_the_marks_of_the_table_and_no_special_characters(tmp_path: Path) -> None:
    judged = pl.DataFrame({"qid": [f"q{n}" for n in range(12)], "docid": "right", "relevance": 1})
    judged.write_parquet(tmp_path / "qrels.parquet")
    for name, place in (("good_1", 0), ("bad", 1)):
        hits = {f"q{n}": ["wrong", "other"] for n in range(12)}
        for n, docids in enumerate(hits.values()):
            docids.insert(place if n else 0, "right")
        write_run(tmp_path / f"{name}.parquet", hits)
    runs = [tmp_path / "bad.parquet", tmp_path / "good_1.parquet"]
    printed = in_format(evaluate(runs, qrels=tmp_path / "qrels.parquet", measures=["MRR@10"]), "latex")
    assert "\nrun & MRR@10 \\\\\n\\midrule\nbad (a) & .5417 $\\pm$" in printed
    assert "good\\_1 & \\textbf{1.0000$^{a}$ $\\pm$.000} \\\\" in printed
    assert "95\\%" in printed
    assert printed.isascii()
    last = [*reversed(runs)]
    lower = in_format(evaluate(last, qrels=tmp_path / "qrels.parquet", measures=["MRR@10"]), "latex")
    assert "\nbad & .5417$^{\\downarrow a}$ $\\pm$" in lower


DEMO = [
    "bm25", "dense-before-train", "dense-clear-margin", "rrf", "minmax", "bm25+dense-before", "bm25+clear-margin",
    "weighted-sum-tuned",
]  # fmt: skip


@pytest.mark.parametrize("pair", [None, ("dense-clear-margin", "bm25")])
def test_tables_fit_80_columns(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: tuple[str, str] | None
) -> None:
    """Eight runs with names of up to 18 characters and four measures, as in the demo."""
    files = [write_run(tmp_path / f"{name}.parquet", RUNS[list(RUNS)[n % 3]]) for n, name in enumerate(DEMO)]
    show_tables(evaluate([tiny, *files], split="test", complement=pair))
    lines = capsys.readouterr().out.splitlines()
    assert any("weighted-sum-tuned" in line for line in lines)
    assert max(len(line) for line in lines) <= 80
