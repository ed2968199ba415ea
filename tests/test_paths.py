"""Artifacts that moved, or that other versions of hybrid wrote."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command import hybrid, raises, ran, refused
from small_artifacts import open_output, write_folder, write_run
from tiny_collection import write_tiny_source

from hybrid_cli import artifacts, storage
from hybrid_cli.artifacts import Manifest, Named
from hybrid_cli.artifacts.indexes import model_input, recorded_model
from hybrid_cli.commands import COMMANDS, IndexBm25, TrainDense
from hybrid_cli.encoders.models import resolve
from hybrid_cli.storage import MANIFEST, SCHEMAS, Kind


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
    words = ["fuse", opened / "out/bm25.parquet", opened / "out/dense.parquet", "--method", "weighted-sum"]
    words += ["--missing", "exact", "--index", f"{opened}/out/bm25,{opened}/out/dense", "--output", "fused.parquet"]
    assert hybrid(*words).code == 0
    lineage = hybrid("inspect", "fused.parquet").out
    for state in ("<- missing", "<- changed"):
        assert state not in lineage
    for source in ("docs.jsonl", "models/bert", "corpus.parquet"):
        assert source in lineage


STAGES: dict[str, tuple[object, ...]] = {  # output -> the command that made it
    "bm25": ("index-bm25", "collection", "--threads", "1"),
    "dense": ("encode", "collection", "--model", "model", "--dtype", "fp32"),
    "bm25.parquet": ("search", "collection", "--split", "test", "--index", "bm25"),
    "dense.parquet": ("search", "collection", "--split", "test", "--index", "dense"),
    "train.parquet": ("mine-negatives", "collection", "--split", "train", "--sources", "random:2"),
    "rrf.parquet": ("fuse", "bm25.parquet", "dense.parquet", "--method", "rrf"),
    "encoder": ("train-dense", "train.parquet", "--model", "model", "--loss", "nll", "--max-steps", "1"),
}


@pytest.fixture
def fused(here: Path) -> Path:
    return made("rrf.parquet")


def made(name: str) -> Path:
    """Run the command of an output, as a copy that may be changed."""
    path = Path(name)
    if path.is_symlink():
        target = path.resolve()
        path.unlink()
        shutil.copytree(target, path) if target.is_dir() else shutil.copy(target, path)
    ran(*STAGES[name], "--output", name)
    return path


def change_manifest(path: Path, **changes: Any) -> None:
    """Replace fields of the manifest of an artifact, as another version would have written it."""
    manifest = replace(artifacts.read_manifest(path), **changes)
    if path.is_dir():
        (path / MANIFEST).write_text(manifest.to_json())
    else:
        storage.write_parquet(path, [pq.read_table(path)], SCHEMAS[manifest.kind], manifest)


def without(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in options.items() if other != name}


def defaults(manifest: Manifest) -> set[str]:
    """Return the options of a manifest that have their defaults."""
    others = {name: without(manifest.options, name) for name in manifest.options}
    completed = {name: artifacts.options_of(replace(manifest, options=rest), [name]) for name, rest in others.items()}
    return {name for name, value in manifest.options.items() if completed[name].get(name) == value}


@pytest.mark.parametrize("name", STAGES)
def test_an_option_that_a_manifest_lacks_had_its_default(here: Path, name: str) -> None:
    """Each option in turn was unknown to the version that made the output."""
    path = made(name)
    manifest = artifacts.read_manifest(path)
    kind = next(each for each in COMMANDS if each.command == manifest.stage)
    tried = 0
    for option, declared in kind.declared().items():
        if option not in defaults(manifest):
            continue
        assert declared.recorded
        change_manifest(path, options=without(manifest.options, option))
        done = hybrid(*STAGES[name], "--output", name)
        assert (done.code, done.says("up-to-date", stage=manifest.stage, path=name)) == (0, True), option
        tried += 1
    assert tried >= 2


def test_an_absent_option_with_another_value_is_another_call(fused: Path) -> None:
    manifest = artifacts.read_manifest(fused)
    change_manifest(fused, options=without(manifest.options, "rrf_k"))
    done = refused(*STAGES["rrf.parquet"], "--rrf-k", 7, "--output", fused, problem="output-differs")
    assert done.fields["options"] == ["rrf_k"]


def test_a_default_by_another_option_is_that_of_the_recorded_one() -> None:
    recorded = Manifest(Kind.ENCODER, "train-dense", {"loss": "roc"}, {}, versions={"hybrid": "0.2.0"})
    wanted = TrainDense(Path("x"), output=Path("y"), loss="roc", index=Path("z")).recorded()
    assert artifacts.options_of(recorded, ["ortho_weight"])["ortho_weight"] == wanted["ortho_weight"]


@pytest.mark.parametrize(
    "words",
    [
        ("search", "--index", "bm25", "--query", "salt"),
        ("search", "collection", "--split", "test", "--index", "bm25", "--output", "new.parquet"),
        ("inspect", "bm25"),
        ("update", "bm25", "--add", "collection", "--output", "new"),
        ("update", "bm25", "--remove", "ids.txt", "--output", "new"),
        ("compose", "bm25", "dense", "--output", "new"),
    ],
    ids=lambda words: words[0],
)
def test_a_lexical_index_of_an_earlier_form_is_refused_with_its_command(here: Path, words: tuple[str, ...]) -> None:
    """Its kind has a format of its own: other artifacts of that version are read."""
    Path("ids.txt").write_text("007\n")
    change_manifest(made("bm25"), format=storage.FORMAT, versions={"hybrid": "0.2.0"})
    command = "hybrid index-bm25 --overwrite"
    refused(*words, problem="older-format", path=Path("bm25"), command=command, version="0.2.0")
    refused(*STAGES["bm25"], "--output", "bm25", problem="older-format")
    ran(*STAGES["bm25"], "--output", "bm25", "--overwrite")
    assert artifacts.read_manifest("dense").format == storage.FORMAT


def test_an_option_of_a_newer_hybrid_is_named_with_its_version(fused: Path) -> None:
    manifest = artifacts.read_manifest(fused)
    change_manifest(fused, options=manifest.options | {"sharpness": 1}, versions={"hybrid": "9.1"})
    done = refused(*STAGES["rrf.parquet"], "--output", fused, problem="output-of-a-newer-version")
    assert done.fields == {"path": fused, "version": "9.1", "options": ["sharpness"]}
    ran(*STAGES["rrf.parquet"], "--output", fused, "--overwrite")


@pytest.mark.parametrize("change", [{"mood": "good"}, {"kind": "hologram"}])
def test_a_manifest_of_a_newer_hybrid_is_not_called_damaged(here: Path, change: dict[str, Any]) -> None:
    fields = json.loads((made("bm25") / MANIFEST).read_text()) | change
    fields["versions"]["hybrid"] = "9.1"
    Path("bm25", MANIFEST).write_text(json.dumps(fields))
    assert refused("inspect", "bm25", problem="newer-version").fields == {"path": Path("bm25"), "version": "9.1"}
    fields["versions"]["hybrid"] = "no version"
    Path("bm25", MANIFEST).write_text(json.dumps(fields))
    assert refused("inspect", "bm25", code=1).problem.startswith("damaged")


def test_shards_of_two_versions_are_one_index(here: Path) -> None:
    ran("index-bm25", "collection", "--shards", 2, "--output", "sharded")
    shards = sorted(Path("sharded").glob("*"))
    shards = [each for each in shards if (each / MANIFEST).is_file()]
    search = ("search", "collection", "--split", "test", "--index", "sharded/*")
    ran(*search, "--output", "a.parquet")
    manifest = artifacts.read_manifest(shards[0])
    name = next(each for each in IndexBm25.declared() if each in manifest.options and each != "fields")
    change_manifest(shards[0], options=without(manifest.options, name))
    ran(*search, "--output", "b.parquet")
