"""The command `inspect --verify`: intact, damaged and unchecked artifacts, and the state of their inputs."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from command import hybrid, refusal
from small_artifacts import HITS, open_output, write_folder, write_run
from test_damage import flip

from hybrid_cli import artifacts
from hybrid_cli.stages.combine import combine
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.inspect import CHANGED, DAMAGED, INTACT, MISSING, UNCHANGED, UNCHECKED, inspect
from hybrid_cli.stages.search import search
from hybrid_cli.storage import MANIFEST, Kind, layout


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run in the working directory, made from a run, made from a text file."""
    monkeypatch.chdir(tmp_path)
    Path("topics.tsv").write_text("q\twords\n")
    write_run(Path("first.parquet"), inputs={"queries": Path("topics.tsv")})
    return write_run(Path("second.parquet"), HITS[:1], inputs={"run": Path("first.parquet")})


def states(*paths: Path) -> dict[str, str]:
    return {each["path"]: each["state"] for each in inspect(list(paths), verify=True)}


def inputs(path: Path) -> dict[str, str]:
    """Return path -> state of all inputs behind an artifact."""
    return {source["path"]: source["state"] for each in inspect([path], verify=True) for source in each["inputs"]}


def damaged(path: Path) -> list[str]:
    """Run the command on a damaged artifact and return its warnings."""
    done = hybrid("inspect", "--verify", path)
    assert done.code == 1, done
    assert done.is_problem("damaged", count=len(done.warnings)), done
    return [notice.message for notice in done.notices.heard if notice.level == "warning"]


def test_an_intact_artifact_and_its_inputs(chain: Path) -> None:
    done = hybrid("inspect", "--verify", chain)
    assert done.code == 0
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert states(chain) == {"second.parquet": INTACT, "first.parquet": INTACT}
    assert inputs(chain) == {"first.parquet": UNCHANGED, "topics.tsv": UNCHANGED}


def test_changed_and_missing_inputs_are_no_damage(chain: Path) -> None:
    Path("topics.tsv").write_text("q\tother words\n")
    assert inputs(chain) == {"first.parquet": UNCHANGED, "topics.tsv": CHANGED}
    write_run(Path("first.parquet"), HITS[1:], overwrite=True)
    assert inputs(chain) == {"first.parquet": CHANGED}
    Path("first.parquet").unlink()
    assert inputs(chain) == {"first.parquet": MISSING}
    assert hybrid("inspect", "--verify", chain).code == 0


def test_a_damaged_input_is_damage(chain: Path) -> None:
    flip(Path("first.parquet"), 333)
    (warning,) = damaged(chain)
    assert warning.startswith("first.parquet: ")
    assert states(chain) == {"second.parquet": INTACT, "first.parquet": DAMAGED}
    assert inputs(chain)["first.parquet"] == DAMAGED


def test_all_artifacts_in_a_folder_are_verified(chain: Path, tmp_path: Path) -> None:
    write_folder(Path("deep/index"))
    Path("deep/notes.json").write_text("not json")
    Path("deep/notes.parquet.txt").write_text("text")
    assert set(states(Path("deep"))) == {"deep/index"}
    assert set(states(tmp_path)) == {str(tmp_path / name) for name in ("deep/index", "first.parquet", "second.parquet")}
    Path("empty").mkdir()
    for path, words in (
        ("empty", refusal("no-artifact", path="empty")),
        ("topics.tsv", refusal("no-artifact", path="topics.tsv")),
        ("gone", refusal("no-such-file", path="gone")),
    ):
        done = hybrid("inspect", "--verify", path)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.is_problem(words)


def test_json_lists_problems(chain: Path) -> None:
    folder = write_folder(Path("index"))
    (folder / "vectors.bin").unlink()
    done = hybrid("inspect", "--verify", folder, "--format", "json")
    (found,) = json.loads(done.out)
    assert (done.code, found["state"], found["kind"], found["files"]) == (1, DAMAGED, "dense index", 1)
    assert [text.partition(":")[0] for text in found["problems"]] == ["index/vectors.bin"]


def test_every_form_is_checked(tmp_path: Path) -> None:
    open_output(tmp_path / "weights.json", kind=Kind.WEIGHTS).write_json({"weights": [0.3, 0.7]})
    open_output(tmp_path / "page.html", kind=Kind.REPORT).write_html("<html><head></head><body>text</body></html>")
    write_folder(tmp_path / "index")
    write_run(tmp_path / "run.parquet")
    assert set(states(tmp_path).values()) == {INTACT}
    places = {"weights.json": b"0.7", "page.html": b"text", "index/vectors.bin": b"complete", "run.parquet": b"PAR1"}
    for name, part in places.items():
        bit = (tmp_path / name).read_bytes().index(part) * 8
        flip(tmp_path / name, bit)
        (warning,) = damaged(tmp_path / name.split("/")[0])
        assert str(tmp_path / name) in warning
        flip(tmp_path / name, bit)
    assert hybrid("inspect", "--verify", tmp_path).code == 0


def test_artifacts_without_checksums_are_not_called_damaged(tmp_path: Path) -> None:
    """Versions before the checksums wrote neither the key in Parquet files nor the fields of manifests."""
    run = write_run(tmp_path / "run.parquet")
    table = pq.read_table(run)
    text = table.schema.metadata or {}
    footer = json.loads(pq.read_metadata(run).metadata[b"hybrid"])
    del footer["checksum"]
    pq.write_table(table.replace_schema_metadata({**text, b"hybrid": json.dumps(footer).encode()}), run)
    folder = write_folder(tmp_path / "index")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**without(manifest, "checksum"), "checksums": None}))
    (folder / "vectors.bin").write_text("changed")
    assert states(run, folder) == {str(run): UNCHECKED, str(folder): UNCHECKED}
    assert hybrid("inspect", "--verify", run, folder).code == 0


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


@pytest.mark.slow
def test_a_flipped_bit_in_any_file_of_a_dense_index_or_encoder_is_found(
    tiny: Path, tmp_path: Path, tiny_lambda: Path, tiny_bert: Path
) -> None:
    index = encode(tiny, model=str(tiny_lambda), output=tmp_path / "index", threads=1)
    search(tiny, split="test", index=index, output=tmp_path / "run.parquet", threads=1)
    shutil.copy(tmp_path / "run.parquet", tmp_path / "again.parquet")
    fused = fuse([tmp_path / "run.parquet", tmp_path / "again.parquet"], output=tmp_path / "fused.parquet")
    assert set(states(fused).values()) == {INTACT}
    draw = random.Random(3)
    names = [layout.FAISS_INDEX, layout.DOCIDS, MANIFEST, *(artifacts.read_manifest(index).files or ())]
    for name in dict.fromkeys(names):
        bit = draw.randrange((index / name).stat().st_size * 8)
        flip(index / name, bit)
        assert states(index)[str(index)] == DAMAGED, (name, bit)
        flip(index / name, bit)
    model = combine([tiny_bert, tiny_lambda], output=tmp_path / "model")
    assert states(model)[str(model)] == INTACT
    weights = sorted(model.rglob("*.safetensors"))
    assert len(weights) == 2
    for file in weights:
        for _ in range(4):
            bit = draw.randrange(file.stat().st_size * 8)
            flip(file, bit)
            (problem,) = inspect([model], verify=True)[0]["problems"]
            assert str(file) in problem
            flip(file, bit)


def test_paths_in_a_manifest_are_never_written_or_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest may come from anyone, and name any file as an input."""
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "home" / "notes.txt"
    victim.parent.mkdir()
    victim.write_text("mine")
    run = pl.DataFrame({"qid": ["q"], "docid": ["d"], "rank": [1], "score": [1.0]})
    for name in ("a", "b"):
        output = artifacts.open_output(
            Path(f"{name}.parquet"), Kind.RUN, "search", inputs={"index": victim}, options={}
        )
        output.write([run.cast({"rank": pl.Int32, "score": pl.Float32}).to_arrow()])
    victim.write_text("changed")
    for command in (
        "inspect a.parquet",
        "inspect --verify a.parquet",
        "fuse a.parquet b.parquet -o a2.parquet --overwrite",
    ):
        hybrid(*command.split())
    assert Path("a2.parquet").exists()
    assert (victim.read_text(), [*victim.parent.iterdir()]) == ("changed", [victim])
