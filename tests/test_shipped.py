"""`export --format folder`: a retriever that opens where nothing else of it is left, with the same hits and texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
import torch
from command import hybrid, raises
from sparse_models import write_checkpoint
from tiny_collection import write_lines

from hybrid_cli import artifacts, open_retriever
from hybrid_cli.commands import PrepareFiles
from hybrid_cli.encoders.cross_encoder import CrossEncoder
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.export import export
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.inspect import INTACT, UNCHANGED, inspect
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.update import update
from hybrid_cli.storage import Kind

QUERIES = ["salt water", "oxygen in the blood", "parsing"]


@pytest.fixture
def home(tiny: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a collection and a model, which the tests remove."""
    folder = tmp_path / "home"
    shutil.copytree(tiny, folder / "collection")
    shutil.copytree(tiny_bert, folder / "model")
    monkeypatch.chdir(tmp_path)
    return folder


def shipped(retriever: Path, home: Path) -> pl.DataFrame:
    """Ship a retriever, remove everything else, and compare hits, scores and texts; return the hits."""
    before = open_retriever(retriever).search(QUERIES, 5)
    Path("out").mkdir()
    assert hybrid("export", retriever, "--format", "folder", "--output", "out/shipped").says("written")
    assert hybrid("export", retriever, "--format", "folder", "--output", "out/shipped").says("up-to-date")
    Path("elsewhere").mkdir()
    shutil.copytree("out/shipped", "elsewhere/retriever")
    shutil.rmtree(home)
    shutil.rmtree("out")
    after = open_retriever("elsewhere/retriever").search(QUERIES, 5)
    assert after.equals(before)
    assert after["text"].null_count() == 0
    done = hybrid("search", "--index", "elsewhere/retriever", "--query", QUERIES[0], "--format", "json")
    assert (done.code, done.warnings) == (0, []), done.err
    assert {each["state"] for each in inspect([Path("elsewhere/retriever")], verify=True)} == {INTACT}
    return after


def test_a_retriever_leaves_as_one_folder(home: Path) -> None:
    index_bm25(home / "collection", output=home / "bm25")
    encode(home / "collection", model=str(home / "model"), output=home / "dense")
    retriever = compose([home / "bm25", home / "dense"], output=home / "hybrid")
    shipped(retriever, home)
    files = {path.relative_to("elsewhere/retriever").as_posix() for path in Path("elsewhere/retriever").glob("*/*")}
    assert files == {"indexes/bm25", "indexes/dense", "models/model", "texts/corpus.parquet"}
    inputs = [source for each in inspect([Path("elsewhere/retriever")], verify=True) for source in each["inputs"]]
    needed = [source for source in inputs if source["role"] in ("model", "corpus", "index 1", "index 2")]
    assert {source["state"] for source in needed} == {UNCHANGED}
    assert {source["path"].split("/", 2)[2] for source in needed} == files


def test_passages_shards_appended_documents_and_a_reranker_leave_too(home: Path) -> None:
    rows = [{"id": f"d{n}", "title": f"T{n}", "text": f"salt water parser number {n} " * (n + 1)} for n in range(9)]
    write_lines(home / "docs.jsonl", rows)
    write_lines(home / "more.jsonl", [{"id": "new", "title": "New", "text": "oxygen and blood " * 12}])
    for name in ("docs", "more"):
        prepare(PrepareFiles([home / f"{name}.jsonl"], split_passages=20, output=home / name))
    index_bm25(home / "docs", shards=2, output=home / "first")
    update(home / "first", add=home / "more", output=home / "bm25")
    encode(home / "docs", model=str(home / "model"), output=home / "vectors")
    update(home / "vectors", add=home / "more", output=home / "dense")
    torch.manual_seed(3)
    model = CrossEncoder.load(home / "model", device="cpu", train=True, max_length=64, query_max_len=24)
    with artifacts.open_output(home / "reranker", Kind.RERANKER, "test", inputs={}, options={}).folder() as (work, _):
        model.save(work)
    retriever = compose(
        [home / "bm25", home / "dense"], method="rrf", reranker=str(home / "reranker"), rerank_depth=3,
        output=home / "hybrid",
    )  # fmt: skip
    hits = shipped(retriever, home)
    assert "new" in hits["docid"].to_list()
    assert hits["passage"].null_count() == 0


def test_learned_weights_and_a_model_of_the_hugging_face_cache_leave_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))
    place = home / "hub/models--owner--small"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("a" * 40)
    (place / "snapshots" / ("a" * 40)).mkdir(parents=True)
    shutil.move(home / "model", place / "blobs")
    for file in (place / "blobs").iterdir():
        (place / "snapshots" / ("a" * 40) / file.name).symlink_to(Path("../../blobs", file.name))
    splade = write_checkpoint(home / "splade", "splade")
    encode(home / "collection", model=str(splade), architecture="splade", output=home / "sparse")
    encode(home / "collection", model="owner/small", output=home / "dense")
    shipped(compose([home / "sparse", home / "dense"], method="minmax", output=home / "hybrid"), home)
    models = Path("elsewhere/retriever/models")
    assert not any(file.is_symlink() for file in models.rglob("*"))
    assert len(list(models.iterdir())) == 2


def test_a_retriever_without_its_texts_or_encoder_does_not_leave(home: Path) -> None:
    index_bm25(home / "collection", output=home / "bm25")
    encode(home / "collection", model=str(home / "model"), output=home / "dense")
    retriever = compose([home / "bm25", home / "dense"], method="rrf", output=home / "hybrid")
    shutil.move(home / "model", home / "moved")
    with raises("recorded-model-missing", path=home / "dense"):
        export(retriever, form="folder", output=Path("shipped"))
    shutil.move(home / "moved", home / "model")
    shutil.rmtree(home / "collection")
    with raises("corpus-missing", corpus="corpus.parquet"):
        export(retriever, form="folder", output=Path("shipped"))
    with raises("unknown-choice", option="format"):
        export(home / "bm25", form="folder", output=Path("shipped"))
    assert not Path("shipped").exists()
