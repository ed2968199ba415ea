"""Bit rot: one flipped bit in any byte of an artifact is found; `inspect --verify`."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command import Done, hybrid, ran, refusal, refused
from small_artifacts import HITS, open_output, write_folder, write_run

from hybrid_cli import artifacts, runs
from hybrid_cli.errors import DamageError, InputError
from hybrid_cli.stages.combine import combine
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.fuse import fuse
from hybrid_cli.stages.inspect import CHANGED, DAMAGED, INTACT, MISSING, UNCHANGED, UNCHECKED, inspect
from hybrid_cli.stages.search import search
from hybrid_cli.storage import MANIFEST, Kind, integrity, layout, records


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
    assert records.CHECKSUM_KEY in path.read_bytes()
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
    ran("index-bm25", tiny, "--output", tmp_path / "bm25", "--threads", 1)
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
    ran(*command)


@pytest.mark.parametrize("name", ["corpus.parquet", "queries.test.parquet", "qrels.test.parquet"])
def test_a_flipped_bit_in_a_collection_is_one_line(tiny: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny, copy)
    run = write_run(tmp_path / "run.parquet", [("001", "007", 1, 1.0)])
    attack = ("--split", "test", "--attack", "shuffle")
    calls: dict[str, Callable[[], Done]] = {
        "corpus.parquet": lambda: hybrid("index-bm25", copy, "--output", tmp_path / "bm25", "--threads", 1),
        "queries.test.parquet": lambda: hybrid("perturb", copy, *attack, "--output", tmp_path / "q.parquet"),
        "qrels.test.parquet": lambda: hybrid("evaluate", copy, "--split", "test", run),
    }
    draw = random.Random(5)
    for _ in range(5):
        bit = draw.randrange((copy / name).stat().st_size * 8)
        flip(copy / name, bit)
        integrity.checked.clear()
        one_line_of_damage(calls[name](), copy / name)
        flip(copy / name, bit)


@pytest.fixture
def chain(workdir: Path) -> Path:
    Path("topics.tsv").write_text("q\twords\n")
    write_run(Path("first.parquet"), inputs={"queries": Path("topics.tsv")})
    return write_run(Path("second.parquet"), HITS[:1], inputs={"run": Path("first.parquet")})


def states(*paths: Path) -> dict[str, str]:
    return {each["path"]: each["state"] for each in inspect(list(paths), verify=True)["artifacts"]}


def inputs(path: Path) -> dict[str, str]:
    return {
        source["path"]: source["state"]
        for each in inspect([path], verify=True)["artifacts"]
        for source in each["inputs"]
    }


def damaged(path: Path) -> list[str]:
    done = hybrid("inspect", "--verify", path)
    assert done.code == 1, done
    assert done.is_problem("damaged", count=len(done.warnings)), done
    return [notice.message for notice in done.notices.heard if notice.level == "warning"]


def test_an_intact_artifact_and_its_inputs(chain: Path) -> None:
    assert all(len(line) <= 80 for line in ran("inspect", "--verify", chain).out.splitlines())
    assert states(chain) == {"second.parquet": INTACT, "first.parquet": INTACT}
    assert inputs(chain) == {"first.parquet": UNCHANGED, "topics.tsv": UNCHANGED}


def test_changed_and_missing_inputs_are_no_damage(chain: Path) -> None:
    Path("topics.tsv").write_text("q\tother words\n")
    assert inputs(chain) == {"first.parquet": UNCHANGED, "topics.tsv": CHANGED}
    write_run(Path("first.parquet"), HITS[1:], overwrite=True)
    assert inputs(chain) == {"first.parquet": CHANGED}
    Path("first.parquet").unlink()
    assert inputs(chain) == {"first.parquet": MISSING}
    ran("inspect", "--verify", chain)


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
        refused("inspect", "--verify", path, problem=words)


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
    ran("inspect", "--verify", tmp_path)


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
    ran("inspect", "--verify", run, folder)


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
    copies = [shutil.copytree(path, tmp_path / f"own-{path.name}") for path in (tiny_bert, tiny_lambda)]  # hard links
    model = combine(copies, output=tmp_path / "model")
    assert states(model)[str(model)] == INTACT
    weights = sorted(model.rglob("*.safetensors"))
    assert len(weights) == 2
    for file in weights:
        for _ in range(4):
            bit = draw.randrange(file.stat().st_size * 8)
            flip(file, bit)
            (problem,) = inspect([model], verify=True)["artifacts"][0]["problems"]
            assert str(file) in problem
            flip(file, bit)


def test_paths_in_a_manifest_are_never_written_or_removed(workdir: Path) -> None:
    """A manifest may come from anyone, and name any file as an input."""
    victim = workdir / "home" / "notes.txt"
    victim.parent.mkdir()
    victim.write_text("mine")
    for name in ("a", "b"):
        write_run(Path(f"{name}.parquet"), inputs={"index": victim})
    victim.write_text("changed")
    for command in ("inspect", "inspect --verify", "fuse b.parquet -o a2.parquet --overwrite"):
        hybrid(*command.split(), "a.parquet")
    assert Path("a2.parquet").exists()
    assert (victim.read_text(), [*victim.parent.iterdir()]) == ("changed", [victim])
