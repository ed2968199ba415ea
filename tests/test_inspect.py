"""The command `inspect`: artifacts, files that hybrid did not write, and the memory table."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import hybrid, raises

from hybrid_cli import artifacts
from hybrid_cli.commands import Inspect
from hybrid_cli.reporting.inspect import show
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.inspect import inspect as stage
from hybrid_cli.stages.search import search
from hybrid_cli.storage import Kind


def inspect(path: Path) -> dict[str, Any]:
    settings = Inspect([str(path)])
    described: dict[str, Any] = stage(settings)
    show(described, settings)
    return described


def make_run(path: Path, inputs: dict[str, Path], documents: int = 1) -> Path:
    rows = [("q", f"d{number}", number + 1, 1.0 - number) for number in range(documents)]
    schema = {"qid": pl.String, "docid": pl.String, "rank": pl.Int32, "score": pl.Float32}
    table = pl.DataFrame(rows, schema=schema, orient="row").to_arrow(compat_level=pl.CompatLevel.oldest())
    claim = artifacts.open_output(path, Kind.RUN, "search", inputs=inputs, options={"hits": 10}, overwrite=True)
    claim.write([table], engine="matrix")
    return path


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    (tmp_path / "topics.tsv").write_text("q\twords\n")
    first = make_run(tmp_path / "first.parquet", {"queries": tmp_path / "topics.tsv"}, 5)
    return make_run(tmp_path / "second.parquet", {"run": first})


def test_an_artifact_has_stage_options_counts_and_rows(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = inspect(chain)
    assert described["what"] == "run"
    assert (described["stage"], described["options"]) == ("search", {"hits": 10})
    assert described["counts"] == {"rows": 1, "engine": "matrix"}
    assert described["sample"] == [{"qid": "q", "docid": "d0", "rank": 1, "score": 1.0}]
    assert described["parts"] == {"second.parquet": chain.stat().st_size}
    printed = capsys.readouterr().out
    assert "a run" not in printed.splitlines()[0]
    assert "`search`" in printed.splitlines()[0]


def test_inputs_are_followed_to_the_first_file(chain: Path) -> None:
    (entry,) = inspect(chain)["inputs"]
    assert (entry["role"], entry["kind"], entry["stage"], entry["state"]) == ("run", "run", "search", "unchanged")
    (before,) = entry["inputs"]
    assert (before["role"], before["kind"], before["state"]) == ("queries", "file", "unchanged")


def test_changed_and_missing_inputs_are_marked(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (chain.parent / "topics.tsv").unlink()
    make_run(chain.parent / "first.parquet", {}, 2)
    (entry,) = inspect(chain)["inputs"]
    assert entry["state"] == "changed"
    assert "<- changed" in capsys.readouterr().out
    (chain.parent / "first.parquet").unlink()
    assert inspect(chain)["inputs"][0]["state"] == "missing"


def test_a_damaged_input_is_marked(chain: Path) -> None:
    (chain.parent / "first.parquet").write_bytes(b"PAR1 but no more")
    assert inspect(chain)["inputs"][0]["state"].startswith("damaged (")


def test_json_equals_the_returned_description(chain: Path) -> None:
    assert json.loads(hybrid("inspect", chain, "--format", "json").out) == stage(chain.as_posix())


def test_a_collection_has_tables_and_a_sample(tiny: Path) -> None:
    described = inspect(tiny)
    assert described["what"] == "collection"
    assert described["tables"]["corpus.parquet"] == 12
    assert described["sample"][0]["docid"] == "007"
    assert set(described["parts"]) >= {"corpus.parquet", "qrels.test.parquet", "manifest.json"}


def test_an_encoder_has_its_contract_and_the_last_values_of_its_curve(tmp_path: Path) -> None:
    claim = artifacts.open_output(tmp_path / "encoder", Kind.ENCODER, "train-dense", inputs={}, options={})
    with claim.folder() as (work, _):
        (work / "encoder.json").write_text('{"pooling": "cls"}')
        rows = {"step": [1, 2, 2], "name": ["loss", "loss", "MRR"], "value": [3.0, 2.0, 0.5]}
        pl.DataFrame(rows).write_parquet(work / "learning_curve.parquet")
    described = inspect(tmp_path / "encoder")
    assert described["contract"] == {"pooling": "cls"}
    assert described["last_values"] == {"loss": [2, 2.0], "MRR": [2, 0.5]}


def test_an_encoder_has_the_validation_of_its_best_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = artifacts.open_output(tmp_path / "encoder", Kind.ENCODER, "train-dense", inputs={}, options={})
    with claim.folder(best_step=2) as (work, _):
        (work / "encoder.json").write_text("{}")
        rows = {"step": [0, 2, 2, 4], "name": ["dev_MRR", "loss", "dev_MRR", "dev_MRR"], "value": [0.1, 9.0, 0.5, 0.25]}
        pl.DataFrame(rows).write_parquet(work / "curve.parquet")
    described = inspect(tmp_path / "encoder")
    assert described["best_values"] == {"dev_MRR": [2, 0.5]}
    assert described["last_values"]["dev_MRR"] == [4, 0.25]
    printed = capsys.readouterr().out
    assert "  dev_MRR  0.5 (step 2)\n" in printed


def test_fusion_weights_have_method_weights_and_evidence(
    searched: list[str], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [searched[0].removeprefix("sparse="), searched[1]]
    tuned = fuse(given, output=tmp_path / "weights.json", tune=True, qrels=tiny, split="test")
    stored = json.loads(tuned.read_text())
    capsys.readouterr()
    found = inspect(tuned)["weights"]
    assert found["runs"] == dict(zip(stored["runs"], stored["weights"], strict=True))
    assert (found["method"], found["score"], found["alone"]) == (stored["method"], stored["score"], stored["alone"])
    printed = capsys.readouterr().out
    for run, weight in found["runs"].items():
        assert re.search(rf"weight of {run} +{weight:g}\n", printed)
    assert "first lines" not in printed


def test_a_static_encoder_has_its_longest_vectors(
    tiny_lambda: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import load_file

    found = inspect(tiny_lambda)["weights"]
    tables = load_file(tiny_lambda / "tables.safetensors")
    terms = pl.read_parquet(tiny_lambda / "terms.parquet")["term"]
    assert set(found) == set(tables) == {"query_table", "document_table"}
    printed = capsys.readouterr().out
    for name, table in tables.items():
        lengths = np.linalg.norm(table[: len(terms)], axis=1)
        assert found[name]["shape"] == list(table.shape)
        assert found[name]["longest"][0] == [terms[int(lengths.argmax())], pytest.approx(float(lengths.max()))]
        assert f"{name.replace('_', ' ')}\n  size" in printed
    shutil.copytree(tiny_lambda, tmp_path / "damaged")
    (tmp_path / "damaged" / "manifest.json").unlink(missing_ok=True)
    (tmp_path / "damaged" / "tables.safetensors").write_bytes(b"not tensors")
    with raises("damaged", path=tmp_path / "damaged" / "tables.safetensors"):
        inspect(tmp_path / "damaged")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("q1 Q0 d1 1 2.5 tag\n", "a TREC run"),
        ("q1 0 d1 -1\n", "TREC qrels"),
        ('{"_id": "1", "text": "a"}\n', "a JSON lines file with the fields _id, text"),
        ("q1\twhat is this\n", "a text file with 2 tab-separated columns"),
        ("just words\n", "a text file"),
        ("", "an empty file"),
        ("a\0b", "a binary file"),
    ],
)
def test_text_without_a_manifest_is_recognized(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text(text)
    assert inspect(tmp_path / "file.txt")["what"] == words


def test_foreign_parquet_is_recognized_by_its_columns(tmp_path: Path) -> None:
    pl.DataFrame({"qid": ["1"], "docid": ["2"], "relevance": [1]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "b.parquet")
    assert inspect(tmp_path / "a.parquet")["what"] == "a Parquet file with the columns of: qrels"
    assert inspect(tmp_path / "b.parquet")["what"] == "a Parquet file with other columns"


def test_folders_are_recognized_by_their_files(tiny_bert: Path, tmp_path: Path) -> None:
    assert inspect(tiny_bert)["what"] == "a Hugging Face checkpoint"
    assert inspect(tmp_path)["what"] == "a folder of unknown content"


@pytest.fixture
def searched(tiny: Path, tiny_lambda: Path, tmp_path: Path) -> list[str]:
    index = encode(tiny, model=str(tiny_lambda), output=tmp_path / "index")
    dense = search(tiny, split="test", index=index, output=tmp_path / "dense.parquet")
    bm25 = search(tiny, split="test", index=tiny_lambda.parent / "bm25", output=tmp_path / "bm25.parquet")
    fused = fuse([bm25, dense], output=tmp_path / "fused.parquet", method="minmax")
    return [f"sparse={bm25}", str(dense), str(fused)]


def test_the_memory_table_has_bytes_measures_and_latency(searched: list[str], tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "table.parquet"
    rows = stage(searched, memory_table=tiny, split="test", output=output)["memory_table"]
    assert [row["run"] for row in rows] == ["sparse", "dense", "fused"]
    sparse, dense, fused = rows
    folder = tmp_path / "index"
    assert dense["bytes"] == sum((folder / name).stat().st_size for name in ("index.faiss", "docids.parquet"))
    assert fused["bytes"] == sparse["bytes"] + dense["bytes"]
    read = {part["part"]: part["read"] for part in dense["parts"]}
    assert read["index.faiss"]
    assert not all(read.values())
    assert 0 <= dense["recall@20"] <= dense["accuracy@20"] <= 1
    assert sparse["encode p50"] == sparse["fuse p50"] == dense["fuse p50"] == 0
    assert 0 < dense["encode p50"] <= dense["encode p95"]
    assert fused["total p50"] >= fused["fuse p50"] > 0
    assert pl.read_parquet(output)["bytes"].to_list() == [row["bytes"] for row in rows]
