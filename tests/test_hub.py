"""`export --format hub`: a model card from the manifests, and a folder that others open."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import hybrid, ran, refused
from test_train_dense import write_examples

from hybrid_cli import artifacts
from hybrid_cli.encoders.models import open_encoder
from hybrid_cli.encoders.transformer import TransformerEncoder
from hybrid_cli.storage import Kind

RUN = "".join(f"q{i} Q0 d{rank} {rank} {9 - rank} run\n" for i in range(8) for rank in range(1, 4))
QRELS = "".join(f"q{i}\td{1 + i % 3}\t1\n" for i in range(8))


@pytest.fixture(scope="module")
def encoder(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_examples(folder / "train.parquet")
    common = ("--batch-size", "4", "--query-prefix", "query: ", "--query-max-len", "12", "--keep-epochs")
    start = tiny_bert
    for name, loss in (("first", "margin"), ("encoder", "nll")):
        words = ("--model", start, "--loss", loss, "--epochs", "1", *common, "--output", folder / name)
        ran("train-dense", folder / "train.parquet", *words)
        start = folder / name
    return start


def test_the_folder_has_a_card_and_opens_in_both_libraries(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text(RUN)
    (tmp_path / "qrels.tsv").write_text(QRELS)
    measured = tmp_path / "measured.parquet"
    words = ("evaluate", tmp_path / "run.trec", "--qrels", tmp_path / "qrels.tsv", "--measure", "MRR@10")
    done = ran(*words, "--output", measured, "--format", "json")
    model = tmp_path / "my-model"
    export = ("export", encoder, "--format", "hub", "--license", "mit", "--measurements", measured, "--output", model)
    ran(*export)
    _, front, card = (model / "README.md").read_text("utf-8").split("---\n", 2)
    assert yaml.safe_load(front) == {
        "license": "mit",
        "pipeline_tag": "sentence-similarity",
        "library_name": "sentence-transformers",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "hybrid-retrieval"],
    }
    found = json.loads(done.out)["runs"][0]
    low, high = found["intervals"]["MRR@10"]
    assert f"| run | MRR@10 | {found['means']['MRR@10']:.3f} | {low:.3f} to {high:.3f} |" in card
    assert card.index('| loss | "nll" |') < card.index('| loss | "margin" |')
    assert all(row in card for row in ('| prefix | "query: " | "" |', "| training examples | 18 |", "| steps | 5 |"))
    assert not any(part in card for part in (str(tmp_path), str(encoder.parent), ".."))
    assert {file.suffix for file in model.rglob("*") if file.is_file()} == {".json", ".md", ".safetensors"}
    texts = ["two high tides a day", "salt"]
    ours = open_encoder(model)
    np.testing.assert_array_equal(ours.encode_queries(texts), open_encoder(encoder).encode_queries(texts))
    theirs: Any = pytest.importorskip("sentence_transformers").SentenceTransformer(str(model), device="cpu")
    np.testing.assert_allclose(ours.encode_queries(texts), theirs.encode_query(texts), atol=1e-5)
    np.testing.assert_allclose(ours.encode_documents(["", ""], texts), theirs.encode_document(texts), atol=1e-5)
    assert hybrid(*export).says("up-to-date")


def test_the_base_model_is_that_of_the_first_training(encoder: Path, tmp_path: Path) -> None:
    manifest = json.loads((encoder.parent / "first/manifest.json").read_text())
    named = {"name": "minilm", **{key: manifest["inputs"]["model"][key] for key in ("kind", "fingerprint")}}
    output = artifacts.open_output(tmp_path / "first", Kind.ENCODER, "test", inputs={}, options={})
    with output.folder() as (work, _):
        TransformerEncoder.load(encoder, device="cpu").save(work)
    written = artifacts.read_manifest(tmp_path / "first")
    (tmp_path / "first/manifest.json").write_text(
        type(written)(**{**vars(written), "inputs": {"model": named}}).to_json()
    )
    ran("export", tmp_path / "first", "--format", "hub", "--output", tmp_path / "out")
    front = yaml.safe_load((tmp_path / "out/README.md").read_text("utf-8").split("---\n")[1])
    assert front["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert "license" not in front


def test_encoders_that_are_no_single_model_are_refused(tiny_bert: Path, workdir: Path) -> None:
    output = artifacts.open_output(workdir / "encoder", Kind.ENCODER, "test", inputs={}, options={})
    with output.folder() as (work, _):
        TransformerEncoder.load(tiny_bert, device="cpu", tied=False).save(work)
    refused("export", workdir / "encoder", "--format", "hub", "--output", workdir / "x", problem="two-towers")
    run = workdir / "run.trec"
    run.write_text(RUN)
    refused("export", run, "--format", "hub", "--output", workdir / "x", problem="unknown-choice", option="format")


def test_an_adapter_of_a_model_on_this_machine_is_merged_first(tiny_bert: Path, tmp_path: Path) -> None:
    """Another machine has no such base, and the card would publish the path."""
    write_examples(tmp_path / "train.parquet")
    words = ("--model", tiny_bert, "--lora-r", "2", "--max-steps", "1", "--batch-size", "4")
    adapted, merged = tmp_path / "adapted", tmp_path / "merged"
    ran("train-dense", tmp_path / "train.parquet", *words, "--output", adapted)
    done = hybrid("export", adapted, "--format", "hub", "--output", tmp_path / "hub")
    assert (done.code, done.problem) == (2, "model-adapter")
    ran("convert-checkpoint", adapted, merged, "--merge")
    ran("export", merged, "--format", "hub", "--output", tmp_path / "hub")


def test_a_prefix_of_several_lines_is_one_row_of_the_card(tiny_bert: Path, tmp_path: Path) -> None:
    write_examples(tmp_path / "train.parquet")
    words = ("--query-prefix", "Instruct: {task}\nQuery: ", "--task", "Find code", "--max-steps", 1)
    arguments = (tmp_path / "train.parquet", "--model", tiny_bert, *words)
    ran("train-dense", *arguments, "--output", tmp_path / "encoder")
    ran("export", tmp_path / "encoder", "--format", "hub", "--output", tmp_path / "hub")
    assert '| prefix | "Instruct: Find code\\\\nQuery: " | "" |' in (tmp_path / "hub" / "README.md").read_text("utf-8")
