"""Forecasts of memory and disk space: printed before the work starts, and refusals with the option that helps."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import Notices, raises

from hybrid_cli import console, memory
from hybrid_cli.commands import VectorIndex
from hybrid_cli.errors import HybridError
from hybrid_cli.indexes.construction import build, check_recipe, construction_bytes
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.mine_negatives import mine_negatives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="free memory is known on Linux only")


def test_a_forecast_is_printed_and_work_that_does_not_fit_is_refused_with_an_option(notices: Notices) -> None:
    console.forecast(1 << 20, "little work")
    console.forecast(600 << 20, "some work")
    assert [notice.fields["purpose"] for notice in notices.heard] == ["some work"]
    assert notices.says("forecast", purpose="some work", bytes=600 << 20, resource="memory")
    with raises("no-memory", HybridError):
        console.forecast(1 << 60, "index-bm25", "use --shards")


def test_files_that_do_not_fit_on_the_disk_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free, output = shutil.disk_usage(tmp_path).free, tmp_path / "new" / "index"
    console.forecast(1 << 20, "a small index", path=output)
    with raises("no-space", HybridError):
        console.forecast(2 * free, "a large index", "use --index-type sq8", output)
    assert capsys.readouterr().err == "", "the error names the need"
    output.mkdir(parents=True)
    with (output / "shard").open("wb") as file:
        os.truncate(
            file.fileno(), 2 * free
        )  # a file with a hole, as large as what an interrupted call may have written
    console.forecast(2 * free, "a large index", path=output)


FORECASTS: dict[str, Callable[[Path, Path, Path], Any]] = {
    "memory, disk: index-bm25": lambda tiny, made, out: index_bm25(tiny, output=out),
    "memory, disk: index-bm25 --shards": lambda tiny, made, out: index_bm25(tiny, shards=2, output=out),
    "memory, disk: encode": lambda tiny, made, out: encode(
        tiny, model=str(made / "model"), index_type="sq8", output=out
    ),
    "disk: encode --index-type auto": lambda tiny, made, out: encode(made / "dense", index_type="auto", output=out),
    "memory: mine-negatives": lambda tiny, made, out: mine_negatives(
        tiny, split="train", sources="bm25:2", index=made / "bm25", output=out
    ),
}


@pytest.mark.parametrize("case", FORECASTS)
def test_a_stage_forecasts_what_grows_with_the_collection(
    case: str, tiny: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: Notices
) -> None:
    monkeypatch.setattr(console, "MUCH", 0)
    expected, _, stage = case.partition(": ")
    FORECASTS[case](tiny, made, tmp_path / ("out.parquet" if stage.startswith(("search", "mine")) else "out"))
    resources = [str(notice.fields["resource"]) for notice in notices.heard if notice.code == "forecast"]
    assert ", ".join(resources).replace("disk space", "disk").startswith(expected)


@pytest.mark.parametrize(
    ("factory", "each"),
    [("Flat", 0), ("SQ8", 384), ("Binary", 48), ("HNSW32,Flat", 4 * 384 + 276), ("IVF64,Flat", (4 * 384 + 8) * 3 // 2)],
)
def test_the_memory_of_an_index_grows_by_codes_links_and_ids(factory: str, each: int) -> None:
    millions = [construction_bytes(factory, 384, count * 10**6) for count in (1, 2)]
    assert millions[1] - millions[0] == each * 10**6


def test_an_index_that_does_not_fit_is_refused_before_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("no-memory", HybridError):
        check_recipe(VectorIndex(index_type="hnsw"), 4096, 10**10, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    with raises("no-space", HybridError):
        check_recipe(VectorIndex(index_type="flat"), 4096, 10**4, tmp_path)


def test_an_index_that_no_longer_fits_names_one(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made / "dense", tmp_path / "copy")
    (tmp_path / "copy" / "manifest.json").unlink()
    monkeypatch.setattr(memory, "available", lambda: [(0, "this test", "raise it")])
    with raises("no-memory", HybridError):
        build(tmp_path / "copy", VectorIndex(index_type="sq8"))
