"""`evaluate --robustness`: systems under attacks on the queries (LITE, table 4)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from command import raises, refused
from evaluated import write_run

from hybrid_cli.reporting.evaluate import text
from hybrid_cli.reporting.robustness import Robustness, systems_and_attacks
from hybrid_cli.stages.evaluate import evaluate

# 40 questions whose only relevant document is `d`; how many of them a run answers, the first ones first.
QUESTIONS = 40
ANSWERED = {
    "bm25": 32, "bm25@char-swap": 16, "bm25@word-order-swap": 32, "bm25@mine": 24,
    "both": 36, "both@mine": 35, "both@word-order-swap": 36, "both@char-swap": 34,
}  # fmt: skip


def robustness(inputs: list[Path], **options: Any) -> Robustness:
    found = evaluate(inputs, robustness=True, **options)
    assert isinstance(found, Robustness)
    return found


@pytest.fixture(scope="module")
def qrels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qrels") / "qrels.tsv"
    path.write_text("".join(f"q{number:02}\td\t1\n" for number in range(QUESTIONS)), "utf-8")
    return path


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        write_run(folder / f"{name}.parquet", {f"q{n:02}": ["d" if n < right else "x"] for n in range(QUESTIONS)})
        for name, right in ANSWERED.items()
    ]


def test_a_drop_is_the_original_minus_the_mean_over_attacks(qrels: Path, paths: list[Path]) -> None:
    found = robustness(paths, qrels=qrels, measures=["R@1", "MRR@10"])
    assert found.systems == ["bm25", "both"]
    assert found.attacks == ["char-swap", "word-order-swap", "mine"]  # attacks of `perturb` first
    assert found.means["bm25@char-swap", "R@1"] == 16 / 40
    assert found.drops.means["bm25", "R@1"] == pytest.approx((32 - (16 + 32 + 24) / 3) / 40)
    assert found.drops.means["both", "MRR@10"] == pytest.approx((36 - (34 + 36 + 35) / 3) / 40)


def test_drops_are_computed_per_query_and_have_an_interval(qrels: Path, paths: list[Path]) -> None:
    drops = robustness(paths, qrels=qrels, measures=["R@1"]).drops
    values = dict(drops.values.filter(run="bm25").select("qid", "value").iter_rows())
    assert values == pytest.approx(
        {f"q{n:02}": 0 if n < 16 else 1 / 3 if n < 24 else 2 / 3 if n < 32 else 0 for n in range(QUESTIONS)}
    )
    low, high = drops.ends["bm25", "R@1"]
    assert 0 < low < drops.means["bm25", "R@1"] < high < 0.4


def test_attacks_are_tested_against_the_original_and_drops_against_the_baselines(
    qrels: Path, paths: list[Path]
) -> None:
    found = robustness(paths, qrels=qrels, measures=["R@1"])
    pairs = found.comparisons.select("run", "baseline", "wins", "losses").rows()
    assert pairs[0] == ("bm25@char-swap", "bm25", 0, 16)
    assert ("both@mine", "both", 0, 1) in pairs
    assert len(pairs) == 6
    (drop,) = found.drops.comparisons.select("run", "baseline", "difference").rows()
    assert drop == ("both", "bm25", pytest.approx((36 - 35 - (32 - 24)) / 40))
    other = robustness(paths, qrels=qrels, measures=["R@1"], baseline=["both"])
    assert other.drops.comparisons["run"].to_list() == ["bm25"]


def test_json_csv_and_markdown_have_the_same_figures(qrels: Path, paths: list[Path]) -> None:
    found = robustness(paths, qrels=qrels, measures=["R@1", "MRR@10"])
    content = json.loads(text(found, "json"))
    ours = content["systems"][0]["measures"]["R@1"]
    assert (ours["original"], ours["char-swap"], ours["mean_drop"]) == (0.8, 0.4, pytest.approx(0.2))
    assert content["queries"] == {"R@1": 40, "MRR@10": 40}
    rows = list(csv.DictReader(io.StringIO(text(found, "csv"))))
    assert len(rows) == 2 * 2 * 5  # systems, measures; original, three attacks, mean drop
    (row,) = [each for each in rows if (each["system"], each["measure"], each["attack"]) == ("bm25", "R@1", "mine")]
    assert float(row["mean"]) == 0.6
    assert float(row["difference"]) == pytest.approx(-0.2)
    assert "| bm25 (a) | .8000" in text(found, "markdown")
    assert text(found, "markdown").count("| system |") == 2


def test_incomplete_runs_are_refused_before_any_work(
    qrels: Path, paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises("no-such-run"):
        systems_and_attacks(["bm25", "dense"])
    with raises("no-such-run", run="dense"):
        systems_and_attacks(["bm25", "bm25@x", "dense@x"])
    with raises("no-such-run", run="dense@y"):
        systems_and_attacks(["bm25", "bm25@x", "bm25@y", "dense", "dense@x"])
    with raises("unknown-choice", option="baseline", value="bm25@mine"):
        robustness(paths, qrels=qrels, measures=["R@1"], baseline=["bm25@mine"], output=tmp_path / "v.parquet")
    assert not (tmp_path / "v.parquet").exists()
    command = ["evaluate", *paths, "--qrels", qrels, "--robustness", "--complement", "bm25", "both"]
    refused(*command, problem="option-does-not-apply", option="complement")
