"""The table over seeds that `make ablations` and `make roc` print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import polars as pl

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "over_seeds.py"


def test_rows_are_variants_with_deviation_ratio_and_marks(tmp_path):
    """Of 20 queries BM25 finds 0-9; A finds 5-14 with one seed and 5-18 with the other, the sum all of both."""
    found = {
        "bm25": range(10),
        "A-1": range(5, 15),
        "bm25+A-1": range(15),
        "A-2": range(5, 19),
        "bm25+A-2": range(19),
    }
    rows = [
        (run, measure, f"q{query}", float(query in queries))
        for run, queries in found.items()
        for measure in ("MRR@10", "Success@10")
        for query in range(20)
    ]
    file = tmp_path / "measurements.parquet"
    pl.DataFrame(rows, schema=["run", "measure", "qid", "value"], orient="row").write_parquet(file)
    command = [sys.executable, str(SCRIPT), str(file), "--sparse", "bm25", "--baseline", "bm25"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    table = {
        cells[0]: cells[1:]
        for cells in (re.split(r" *\| *", line.strip("| ")) for line in printed.splitlines() if line.startswith("|"))
    }
    assert table["bm25"] == ["1", "", "0.5000", "0.5000"]
    assert table["A"] == ["2", "0.5714 ± 0.1010", "0.6000 ± 0.1414", "0.6000 ± 0.1414"]  # 5/10 and 9/14
    assert table["bm25+A"] == ["2", "0.5714 ± 0.1010", "0.8500 ± 0.1414 a", "0.8500 ± 0.1414 a"]
    assert "a: better than bm25" in printed
