"""Artifacts opened from another folder, and trees of artifacts that moved."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command import hybrid, raises, ran
from small_artifacts import open_output, write_folder, write_run
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Named
from hybrid_cli.artifacts.indexes import model_input, recorded_model
from hybrid_cli.encoders.models import resolve
from hybrid_cli.storage import MANIFEST, Kind


def input_of(artifact: Path, role: str) -> Path | None:
    return artifacts.read_manifest(artifact).input_path(role)


@pytest.mark.parametrize("place", ["run.parquet", "runs/bm25/run.parquet"])
def test_paths_are_stored_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    index = write_folder(Path("indexes/bm25"))
    run = write_run(Path(place), inputs={"index": index})
    up = "../" * place.count("/")
    assert artifacts.read_manifest(run).inputs["index"]["path"] == f"{up}indexes/bm25"
    for folder in (tmp_path / "indexes", Path("/")):
        monkeypatch.chdir(folder)
        assert input_of(tmp_path / place, "index") == tmp_path / "indexes/bm25"


def test_the_working_directory_does_not_change_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, path = write_folder(tmp_path / "index"), tmp_path / "run.parquet"
    monkeypatch.chdir(tmp_path)
    first = write_run(Path("run.parquet"), inputs={"index": Path("index")}).read_bytes()
    monkeypatch.chdir("/")
    assert open_output(path, inputs={"index": index}).up_to_date
    assert write_run(path, inputs={"index": index}, overwrite=True).read_bytes() == first


def test_artifacts_behind_a_link_find_their_inputs(tmp_path: Path) -> None:
    """The link is to the artifact, or to the folder that contains it."""
    write_run(tmp_path / "project/run.parquet", inputs={"index": write_folder(tmp_path / "project/index")})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/run.parquet").symlink_to(tmp_path / "project/run.parquet")
    (tmp_path / "elsewhere/linked").symlink_to(tmp_path / "project")
    for name in ("elsewhere/run.parquet", "elsewhere/linked/run.parquet"):
        assert input_of(tmp_path / name, "index") == tmp_path / "project/index"
    (tmp_path / "scratch/deep/runs").mkdir(parents=True)
    (tmp_path / "project/runs").symlink_to(tmp_path / "scratch/deep/runs")
    run = write_run(tmp_path / "project/runs/run.parquet", inputs={"index": tmp_path / "project/index"})
    for path in (run, tmp_path / "scratch/deep/runs/run.parquet"):
        assert input_of(path, "index") == tmp_path / "project/index"


def test_a_hard_link_finds_its_inputs_and_a_table_its_folder(tmp_path: Path) -> None:
    examples = write_run(tmp_path / "examples.parquet")
    encoder = write_folder(tmp_path / "encoder", inputs={"examples": examples})
    artifacts.hard_link(encoder, tmp_path / "deep/ensemble/part-1")
    assert input_of(tmp_path / "deep/ensemble/part-1", "examples") == examples
    assert storage.hash_folder(encoder) == storage.hash_folder(tmp_path / "deep/ensemble/part-1")
    (encoder / "corpus").mkdir()
    shutil.copy(examples, encoder / "corpus/part-0.parquet")
    assert artifacts.enclosing_artifact(encoder / "corpus/part-0.parquet") == encoder
    assert artifacts.enclosing_artifact(examples) == examples


def test_a_linked_input_inside_the_tree_moves_with_it(tmp_path: Path) -> None:
    write_folder(tmp_path / "disk/index")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/data").symlink_to(tmp_path / "disk")
    write_run(tmp_path / "old/run.parquet", inputs={"index": tmp_path / "old/data/index"})
    (tmp_path / "deep").mkdir()
    shutil.move(tmp_path / "old", tmp_path / "deep/new")
    found = input_of(tmp_path / "deep/new/run.parquet", "index")
    assert found is not None
    assert found.samefile(tmp_path / "disk/index")


def test_models_of_the_environment_are_recorded_by_name(tmp_path: Path, tiny_bert: Path) -> None:
    folder, packaged = model_input(str(tiny_bert)), model_input("minilm")
    assert folder == tiny_bert
    assert packaged == Named("minilm", resolve("minilm"))
    run = write_run(tmp_path / "run.parquet", inputs={"model": packaged, "second": folder})
    manifest = artifacts.read_manifest(run)
    assert manifest.inputs["model"].keys() == {"name", "kind", "fingerprint"}
    assert (recorded_model(run, manifest), manifest.input_path("model")) == (resolve("minilm"), None)
    assert manifest.input_path("second") == Path(os.path.abspath(tiny_bert))
    assert recorded_model(run, replace(manifest, inputs={})) is None


def to_format_1(folder: Path) -> Path:
    """Rewrite the manifest of a folder as an older hybrid wrote it."""
    fields = json.loads((folder / MANIFEST).read_text())
    del fields["checksum"]  # format 1 had none
    fields |= {"format": 1, "inputs": {"corpus": {"path": "data/corpus.parquet", "kind": "corpus", "fingerprint": "0"}}}
    (folder / MANIFEST).write_text(json.dumps(fields))
    return folder


def test_an_older_artifact_is_refused_with_the_command_that_rebuilds_it(tmp_path: Path) -> None:
    index = to_format_1(write_folder(tmp_path / "index"))
    with raises("older-format", path="index", format=1):
        artifacts.read_manifest(index)
    done = hybrid("inspect", index)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.is_problem("older-format", path="index")
    with raises("output-of-an-older-format", path="index"):
        open_output(index, kind=Kind.DENSE_INDEX)
    write_folder(index, overwrite=True)
    assert artifacts.read_manifest(index).format == 2


@pytest.fixture(scope="module")
def project(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sources, a collection, an encoder, indexes and runs, made with paths relative to it."""
    folder = tmp_path_factory.mktemp("project")
    write_tiny_source(folder)
    shutil.copytree(tiny_bert, folder / "models/bert")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for command in (
            "prepare trec docs.jsonl --topics test=topics.test.tsv --qrels test=qrels.test.txt --output data/tiny",
            "index-bm25 data/tiny --output out/bm25 --threads 1",
            "encode data/tiny --model models/bert --output out/dense --index-type flat",
            "encode out/dense --output out/hnsw --index-type hnsw",
            "search data/tiny --split test --index out/bm25 --output out/bm25.parquet",
            "search data/tiny --split test --index out/dense --model models/bert --output out/dense.parquet",
        ):
            ran(*command.split())
    return folder


@pytest.fixture(params=["original", "moved", "linked"])
def opened(project: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    if request.param == "original":
        yield project
    elif request.param == "linked":
        (tmp_path / "link").symlink_to(project)
        yield tmp_path / "link"
    else:
        (tmp_path / "deep").mkdir()
        moved = project.rename(tmp_path / "deep/moved")
        yield moved
        moved.rename(project)


def test_commands_work_from_another_folder(opened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense index needs its encoder, the printed hits their corpus, exact fusion the queries of the runs."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for index in ("dense", "hnsw"):
        done = hybrid("search", "--index", opened / "out" / index, "--query", "apple", "--hits", 2)
        assert (done.code, done.warnings) == (0, []), done.err
        assert "\n    " in done.out, "the hits have texts"
    done = hybrid(
        "fuse", opened / "out/bm25.parquet", opened / "out/dense.parquet", "--method", "weighted-sum",
        "--missing", "exact", "--index", f"{opened}/out/bm25,{opened}/out/dense", "--output", "fused.parquet",
    )  # fmt: skip
    assert done.code == 0, done.err
    lineage = hybrid("inspect", "fused.parquet").out
    for state in ("<- missing", "<- changed"):
        assert state not in lineage
    for source in ("docs.jsonl", "models/bert", "corpus.parquet"):
        assert source in lineage
