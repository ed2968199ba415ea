"""The reader of teacher labels: shard by shard, checked when it is opened."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from small_artifacts import open_output, write_run

from hybrid_cli import artifacts
from hybrid_cli.artifacts import SCHEMAS, Kind
from hybrid_cli.errors import InputError
from hybrid_cli.training.labels import Labels, shard_path, write_shard


def row(qid: str, hits: int) -> dict:
    docids = [f"d{n}" for n in range(hits)]
    return {"qid": qid, "text": f"words of {qid}", "source": None, "docids": docids, "scores": [1.0] * hits}


def write_labels(folder: Path, *shards: list[dict]) -> Path:
    claimed = open_output(folder, kind=Kind.LABELS, depth=50)
    with claimed.folder() as (work, counts):
        for number, rows in enumerate(shards):
            table = pa.Table.from_pylist(rows, SCHEMAS[Kind.LABELS])
            write_shard(shard_path(work, number), table, claimed.manifest, hits=sum(len(row["docids"]) for row in rows))
        counts["shards"] = len(shards)
    return folder


def test_labels_come_shard_by_shard_in_order(tmp_path):
    shards = [[row("a", 3), row("b", 1)], [], [row("c", 50)]]
    labels = Labels(write_labels(tmp_path / "labels", *shards))
    assert (len(labels), labels.shards, labels.depth) == (3, 3, 50)
    assert [table.rows(named=True) for table in labels.tables()] == shards
    assert labels.read(2).rows(named=True) == shards[2]
    assert artifacts.read_manifest(shard_path(labels.folder, 0)).counts == {"rows": 2, "hits": 4}


def test_what_is_not_whole_or_no_labels_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        Labels(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"is a run .*teacher labels are needed here"):
        Labels(write_run(tmp_path / "run.parquet"))
    folder = write_labels(tmp_path / "labels", [row("a", 1)], [row("b", 1)])
    second = shard_path(folder, 1)
    second.write_bytes(second.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"part-00001\.parquet: is not a complete Parquet file"):
        Labels(folder)
    second.unlink()
    with pytest.raises(InputError, match=r"part-00001\.parquet: is missing"):
        Labels(folder)
