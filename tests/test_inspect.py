"""What `inspect` says about artifacts, and about files that hybrid did not write."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from hybrid_cli import artifacts
from hybrid_cli.artifacts import Kind
from hybrid_cli.errors import InputError
from hybrid_cli.stages.inspect import inspect


def make_run(path: Path, inputs: dict[str, Path], documents: int = 1) -> Path:
    rows = [("q", f"d{number}", number + 1, 1.0 - number) for number in range(documents)]
    schema = {"qid": pl.String, "docid": pl.String, "rank": pl.Int32, "score": pl.Float32}
    table = pl.DataFrame(rows, schema=schema, orient="row").to_arrow(compat_level=pl.CompatLevel.oldest())
    claim = artifacts.open_output(path, Kind.RUN, "search", inputs=inputs, options={"hits": 10}, overwrite=True)
    claim.write([table], engine="matrix")
    return path


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A run made from a run made from a text file."""
    (tmp_path / "topics.tsv").write_text("q\twords\n")
    first = make_run(tmp_path / "first.parquet", {"queries": tmp_path / "topics.tsv"}, 5)
    return make_run(tmp_path / "second.parquet", {"run": first})


def test_an_artifact_tells_stage_options_counts_and_rows(chain, capsys):
    described = inspect(chain)
    assert described["what"] == "run"
    assert (described["stage"], described["options"]) == ("search", {"hits": 10})
    assert described["counts"] == {"rows": 1, "engine": "matrix"}
    assert described["sample"] == [{"qid": "q", "docid": "d0", "rank": 1, "score": 1.0}]
    assert described["parts"] == {"second.parquet": chain.stat().st_size}
    printed = capsys.readouterr().out
    assert "a run" not in printed.splitlines()[0]
    assert f"{chain}: run, made by `search`" in printed


def test_lineage_goes_back_to_the_first_file(chain):
    (entry,) = inspect(chain)["inputs"]
    assert (entry["role"], entry["kind"], entry["stage"], entry["state"]) == ("run", "run", "search", "unchanged")
    (before,) = entry["inputs"]
    assert (before["role"], before["kind"], before["state"]) == ("queries", "file", "unchanged")


def test_a_changed_and_a_vanished_input_are_marked(chain, capsys):
    (chain.parent / "topics.tsv").unlink()
    make_run(chain.parent / "first.parquet", {}, 2)
    (entry,) = inspect(chain)["inputs"]
    assert entry["state"] == "changed"
    assert "<- changed" in capsys.readouterr().out
    (chain.parent / "first.parquet").unlink()
    assert inspect(chain)["inputs"][0]["state"] == "missing"


def test_a_damaged_input_is_said_not_raised(chain):
    (chain.parent / "first.parquet").write_bytes(b"PAR1 but no more")
    assert inspect(chain)["inputs"][0]["state"].startswith("damaged (")


def test_json_is_json_and_equals_what_is_returned(chain, capsys):
    described = inspect(chain, form="json")
    assert json.loads(capsys.readouterr().out) == described


def test_a_collection_shows_its_tables_and_a_document(tiny):
    described = inspect(tiny)
    assert described["what"] == "collection"
    assert described["tables"]["corpus.parquet"] == 12
    assert described["sample"][0]["docid"] == "007"
    assert set(described["parts"]) >= {"corpus.parquet", "qrels.test.parquet", "manifest.json"}


def test_an_encoder_shows_its_contract_and_the_last_values_of_its_curve(tmp_path):
    claim = artifacts.open_output(tmp_path / "encoder", Kind.ENCODER, "train-dense", inputs={}, options={})
    with claim.folder() as (work, _):
        (work / "encoder.json").write_text('{"pooling": "cls"}')
        rows = {"step": [1, 2, 2], "name": ["loss", "loss", "MRR"], "value": [3.0, 2.0, 0.5]}
        pl.DataFrame(rows).write_parquet(work / "learning_curve.parquet")
    described = inspect(tmp_path / "encoder")
    assert described["contract"] == {"pooling": "cls"}
    assert described["last_values"] == {"loss": [2, 2.0], "MRR": [2, 0.5]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("q1 Q0 d1 1 2.5 tag\n", "a TREC run"),
        ("q1 0 d1 -1\n", "TREC judgements (qrels)"),
        ('{"_id": "1", "text": "a"}\n', "a JSON lines file with the fields _id, text"),
        ("q1\twhat is this\n", "a text file with 2 columns between tabs"),
        ("just words\n", "a text file"),
        ("", "an empty file"),
        ("a\0b", "a binary file"),
    ],
)
def test_text_without_a_manifest_is_recognised(text, words, tmp_path):
    (tmp_path / "file.txt").write_text(text)
    assert inspect(tmp_path / "file.txt")["what"] == words


def test_foreign_parquet_is_named_by_its_columns(tmp_path):
    pl.DataFrame({"qid": ["1"], "docid": ["2"], "relevance": [1]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "b.parquet")
    assert inspect(tmp_path / "a.parquet")["what"] == "a Parquet file with the columns of: qrels"
    assert inspect(tmp_path / "b.parquet")["what"] == "a Parquet file of another form"


def test_folders_are_named_by_what_they_hold(tiny_bert, tmp_path):
    assert inspect(tiny_bert)["what"] == "a Hugging Face checkpoint"
    assert inspect(tmp_path)["what"] == "a folder of other things"


def test_nothing_there_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        inspect(tmp_path / "nothing")
