"""`evaluate --over-seeds`: means and standard deviations over the seeds of each row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import hybrid, raises
from evaluated import write_run

from hybrid_cli.reporting.over_seeds import OverSeeds
from hybrid_cli.stages.evaluate import evaluate

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


def over_seeds(inputs: list[Path], **options: Any) -> OverSeeds:
    measures = options.pop("measures", ["MRR@10", "Success@10"])
    found = evaluate(inputs, measures=measures, over_seeds=True, **options)
    assert isinstance(found, OverSeeds)
    return found


def test_rows_have_mean_deviation_ratio_and_marks(inputs: list[Path]) -> None:
    arguments = ["--over-seeds", "--roc-against", "bm25", "--baseline", "bm25", "--correction", "bonferroni"]
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


def test_bad_rows_and_missing_measures_are_refused(inputs: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "measurements.parquet"
    with raises("unknown-choice", option="baseline", value="A-1"):
        over_seeds(inputs, baseline=["A-1"], output=output)
    with raises("unknown-choice", option="roc_against", value="B"):
        over_seeds(inputs, roc_against="B", output=output)
    assert not output.exists()
    with raises("missing-measure", option="roc_against"):
        over_seeds(inputs, measures=["MRR@10"], roc_against="bm25")
    with raises("unknown-choice", option="roc_against", value="A"):
        over_seeds(inputs, roc_against="A")


def test_an_undefined_ratio_is_named_in_every_format(inputs: list[Path], tmp_path: Path) -> None:
    """RoC of a run without an answered query; other names of the measure are accepted."""
    empty = write_run(tmp_path / "A-2.parquet", {f"q{query}": ["x"] for query in range(QUERIES)})
    words = ["evaluate", inputs[0], inputs[1], inputs[2], empty, "--over-seeds", "--roc-against", "bm25"]
    words += ["-m", "hit_rate@10"]
    shown = hybrid(*words)
    assert shown.code == 0, shown.err
    assert "undefined" in shown.out
    assert "nan" not in shown.out
    content = hybrid(*words, "--format", "json").out
    assert "NaN" not in content
    row = next(each for each in json.loads(content)["rows"] if (each["row"], each["measure"]) == ("A", "RoC@10"))
    assert (row["mean"], row["deviation"], row["seeds"]) == (None, None, 2)
    assert "nan" not in hybrid(*words, "--format", "csv").out
    assert "undefined" in hybrid(*words, "--format", "latex").out
