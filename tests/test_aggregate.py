"""`evaluate --study aggregate`: means over collections, parts and queries."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Notices, hybrid

from hybrid_cli import artifacts
from hybrid_cli.reporting.tables import Result
from hybrid_cli.stages.evaluate import evaluate
from hybrid_cli.storage import Kind

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
def inputs(tmp_path: Path) -> list[str]:
    return [f"{name}={write(tmp_path, name)}" for name in VALUES]


def test_parts_collections_and_queries_are_averaged(inputs: list[str]) -> None:
    found = evaluate(inputs, study="aggregate")
    assert isinstance(found, Result)
    means = {(row["collection"], row["run"]): row["mean"] for row in found.content["means"]}
    assert means["a", "bm25"] == 0.5
    assert means["c", "bm25"] == pytest.approx((0.2 + 0.4) / 2)
    assert means["c", "dense"] == pytest.approx((1 + 0.2) / 2)
    assert means["macro", "bm25"] == pytest.approx((0.5 + 0.3) / 2)
    assert means["micro", "dense"] == pytest.approx((0.5 + 0.5 + 1 + 0.6) / 6)
    assert (found.content["queries"], found.content["parts"]) == ({"a": 2, "c": 4}, {"a": 1, "c": 2})


def test_every_format_has_the_same_means(inputs: list[str]) -> None:
    shown = hybrid("evaluate", "--study", "aggregate", *inputs).out
    assert "c (2 parts)" in shown
    assert {"macro", "micro"} <= set(re.findall(r"\w+", shown))
    for form in ("markdown", "latex", "csv"):
        text = hybrid("evaluate", "--study", "aggregate", *inputs, "--format", form).out
        assert ".4333" in text or "0.4333" in text
    content = json.loads(hybrid("evaluate", "--study", "aggregate", *inputs, "--format", "json").out)
    assert len(content["means"]) == 2 * 4


def test_measurements_with_other_settings_are_named(tmp_path: Path, notices: Notices) -> None:
    files = [write(tmp_path, "a", relevance_level=1), write(tmp_path, "c/x", relevance_level=1, condensed=True)]
    evaluate(files, study="aggregate")
    assert notices.says("other-settings", path="c-x.parquet", expected="a.parquet", options=["condensed"])
    notices.clear()
    evaluate([files[0], write(tmp_path, "c/y", relevance_level=1)], study="aggregate")
    assert not notices.warnings
