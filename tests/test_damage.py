"""Bit rot: one flipped bit in any byte of an artifact is found and reported in one line with exit code 1."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command import Done, hybrid
from small_artifacts import HITS, open_output, write_run

from hybrid_cli import artifacts, runs
from hybrid_cli.errors import DamageError, InputError
from hybrid_cli.storage import Kind, integrity, records


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file; inode, size and time stay the same."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check files again, as a new process does."""
    monkeypatch.setattr(integrity, "checked", set())


def test_every_flipped_bit_of_a_run_is_found(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.parquet")
    bits = path.stat().st_size * 8
    for bit in [*range(0, bits, 37), *range(bits - 64, bits)]:
        flip(path, bit)
        integrity.checked.clear()
        with pytest.raises(DamageError) as stopped:
            runs.read_run(path)
        assert str(stopped.value).startswith(f"{path}: ")
        assert "\n" not in str(stopped.value)
        flip(path, bit)
    assert runs.read_run(path).height == len(HITS)


def test_pages_have_checksums_and_other_tools_read_the_file(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.parquet")
    assert pq.read_table(path, page_checksum_verification=True).num_rows == len(HITS)
    assert records.has_own_checksum(path)
    data = path.read_bytes()
    place = data.index(b"\x28\xb5\x2f\xfd") + 6  # inside the first compressed page
    flip(path, place * 8)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, page_checksum_verification=True)


def test_a_run_of_an_older_version_has_no_checksum_and_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.parquet")
    table = pq.read_table(path)
    pq.write_table(table, tmp_path / "old.parquet")
    assert runs.read_run(tmp_path / "old.parquet").equals(runs.read_run(path))


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    assert write_run(tmp_path / "a.parquet").read_bytes() == write_run(tmp_path / "b.parquet").read_bytes()


def test_every_flipped_bit_of_weights_is_found(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    open_output(path, kind=Kind.WEIGHTS).write_json({"weights": [0.3, 0.7]})
    text = path.read_text()
    for place in range(0, len(text), 3):
        flip(path, place * 8)
        changed = path.read_bytes()
        try:
            found = artifacts.find_manifest(path)
        except InputError:
            pass
        else:
            assert found is None or not text[place].strip(), changed[max(0, place - 20) : place + 20]
        flip(path, place * 8)


@pytest.fixture
def index(tiny: Path, tmp_path: Path) -> Path:
    assert hybrid("index-bm25", tiny, "--output", tmp_path / "bm25", "--threads", 1).code == 0
    return tmp_path / "bm25"


def one_line_of_damage(done: Done, path: Path) -> None:
    code, err = done.code, done.err
    lines = [line for line in err.splitlines() if line.startswith("hybrid: ")]
    assert (code, len(lines)) == (1, 1), err
    assert str(path) in lines[0]
    assert "a bug" not in lines[0]


def test_a_flipped_bit_anywhere_in_a_lexical_index_stops_a_search(index: Path, tiny: Path, tmp_path: Path) -> None:
    draw = random.Random(4)
    for file in sorted(index.rglob("*")):
        if not file.is_file() or file.parent.name == "lucene":
            continue
        bit = draw.randrange(file.stat().st_size * 8)
        flip(file, bit)
        integrity.checked.clear()
        done = hybrid("search", tiny, "--split", "test", "--index", index, "--output", tmp_path / "out.parquet")
        one_line_of_damage(done, index)
        flip(file, bit)
    assert not (tmp_path / "out.parquet").exists()


def test_a_damaged_index_gets_no_other_parameters(index: Path, tiny: Path) -> None:
    """The files of a new manifest are those of the old one; it would call the damage its content."""
    command = ("index-bm25", tiny, "--output", index, "--threads", 1, "--k1", 1.2, "--b", 0.5)
    for name in ("lengths.npy", "lows.npy"):
        flip(index / "impacts" / name, 8 * 130)
        integrity.checked.clear()
        one_line_of_damage(hybrid(*command), index)
        flip(index / "impacts" / name, 8 * 130)
    integrity.checked.clear()
    assert hybrid(*command).code == 0


@pytest.mark.parametrize("name", ["corpus.parquet", "queries.test.parquet", "qrels.test.parquet"])
def test_a_flipped_bit_in_a_collection_is_one_line(tiny: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny, copy)
    run = write_run(tmp_path / "run.parquet", [("001", "007", 1, 1.0)])
    calls: dict[str, Callable[[], object]] = {
        "corpus.parquet": lambda: hybrid("index-bm25", copy, "--output", tmp_path / "bm25", "--threads", 1),
        "queries.test.parquet": lambda: hybrid("perturb", copy, "--split", "test", "--attack", "shuffle",
                                               "--output", tmp_path / "q.parquet"),
        "qrels.test.parquet": lambda: hybrid("evaluate", copy, "--split", "test", run),
    }  # fmt: skip
    draw = random.Random(5)
    for _ in range(5):
        bit = draw.randrange((copy / name).stat().st_size * 8)
        flip(copy / name, bit)
        integrity.checked.clear()
        one_line_of_damage(calls[name](), copy / name)  # type: ignore[arg-type]
        flip(copy / name, bit)
