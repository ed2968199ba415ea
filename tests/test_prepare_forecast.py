"""The forecast of `prepare`: number of documents, memory and disk space before a source is read."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from command import raises

from hybrid_cli import console
from hybrid_cli.collections import forecast
from hybrid_cli.errors import HybridError
from hybrid_cli.settings import PrepareFiles
from hybrid_cli.stages.prepare import prepare

COUNT = 3000


def rows() -> list[dict[str, str]]:
    """Return documents of 5 to 40 words."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghij", k=6)) for _ in range(500)]
    return [{"docid": f"d{n}", "text": " ".join(draw.choices(words, k=draw.randint(5, 40)))} for n in range(COUNT)]


def json_lines(folder: Path) -> list[Path]:
    (folder / "docs.jsonl").write_text("".join(f"{json.dumps(row | {'more': 'x' * 500})}\n" for row in rows()), "utf-8")
    return [folder / "docs.jsonl"]


def compressed(folder: Path) -> list[Path]:
    with gzip.open(folder / "docs.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{row['docid']}\t{row['text']}\n" for row in rows())
    return [folder / "docs.tsv.gz"]


def parquet(folder: Path) -> list[Path]:
    pl.DataFrame(rows()).write_parquet(folder / "docs.parquet")
    return [folder / "docs.parquet"]


def several(folder: Path) -> list[Path]:
    """Make the first file shorter than the documents that are read."""
    found = rows()
    parts = {"a.jsonl": found[:100], "b.jsonl": found[100:2000], "c.jsonl": found[2000:]}
    for name, part in parts.items():
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in part), "utf-8")
    return [folder / name for name in parts]


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read 1,500 documents for the forecast, and print it also where little is needed."""
    monkeypatch.setattr(forecast, "FIRST", 1500)
    monkeypatch.setattr(console, "MUCH", 1)


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("write", [json_lines, compressed, parquet, several])
def test_the_forecast_has_the_number_of_documents_and_their_size(
    write: Callable[[Path], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs: list[tuple[int, str, Path | None]] = []
    monkeypatch.setattr(console, "forecast", lambda *given: needs.append((given[0], given[1], (*given, None)[3])))
    made = prepare(PrepareFiles(write(tmp_path), output=tmp_path / "made"))
    (memory, purpose, _), (space, _, place) = needs
    documents = int(re.sub(r"[^0-9]", "", purpose))
    # The position in a compressed file is that of a block that was read: 128 KiB of a file of 300.
    assert documents == pytest.approx(COUNT, rel=0.5 if write is compressed else 0.05)
    assert memory == pytest.approx(130 * documents, rel=0.01)
    assert space / documents == pytest.approx((made / "corpus.parquet").stat().st_size / COUNT, rel=0.1)
    assert place is not None


def test_a_source_of_few_documents_has_no_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "forecast", pytest.fail)
    prepare(PrepareFiles(json_lines(tmp_path), output=tmp_path / "made"))


@pytest.mark.usefixtures("first")
def test_a_collection_that_does_not_fit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "ID_BYTES", 1 << 50)
    files = json_lines(tmp_path)
    with raises("no-memory", HybridError):
        prepare(PrepareFiles(files, output=tmp_path / "made"))
    with raises("no-memory", HybridError):
        prepare(PrepareFiles(files, split_passages=10, output=tmp_path / "made"))
    assert [path.name for path in tmp_path.iterdir()] == ["docs.jsonl"]
