"""`update --model`: another encoder for a retriever, tuned and compared before the switch."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import hybrid

from hybrid_cli import artifacts, open_retriever
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25

QUERY = "salt in sea water"
FUSION = ("indexes", "method", "weights", "missing", "shares", "scales", "tuning")


@pytest.fixture
def folder(tiny: Path, tiny_bert: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny, tmp_path / "tiny")
    index_bm25(tmp_path / "tiny", lucene=False, output=tmp_path / "bm25")
    encode(tmp_path / "tiny", model=str(tiny_bert), dtype="fp32", output=tmp_path / "dense")
    return tmp_path


def stored(retriever: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((retriever / "retriever.json").read_text())
    return content


@pytest.fixture(scope="module")
def other(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of the tests with another pooling: other vectors."""
    made = shutil.copytree(tiny_bert, tmp_path_factory.mktemp("other") / "model")
    (made / "encoder.json").write_text(json.dumps({"kind": "transformer", "pooling": "max"}))
    return made


@pytest.mark.parametrize("tune", [False, True])
def test_a_retriever_gets_another_encoder_and_returns(folder: Path, other: Path, tune: bool) -> None:
    how: dict[str, Any] = {"tune": True, "qrels": folder / "tiny" / "qrels.train.parquet"} if tune else {}
    retriever = compose([folder / "bm25", folder / "dense"], output=folder / "retriever", **how)
    before, hits = stored(retriever), open_retriever(retriever).search(QUERY, 5)
    done = hybrid("update", retriever, "--model", other)
    assert done.code == 0, done.err
    after = stored(retriever)
    assert (after["generation"], [Path(each["path"]).name for each in after["indexes"]]) == (2, ["bm25", "dense.2"])
    assert after["scales"] != before["scales"]
    assert (after["tuning"] is not None) == tune
    fresh = compose([folder / "bm25", folder / "dense.2"], output=folder / "fresh", **how)
    assert {name: stored(fresh)[name] for name in FUSION} == {name: after[name] for name in FUSION}
    columns = "docid", "rank", "score"
    same = open_retriever(fresh).search(QUERY, 5).select(columns)
    assert open_retriever(retriever).search(QUERY, 5).select(columns).equals(same)
    assert hybrid("update", retriever, "--rollback").code == 0
    back = stored(retriever)
    assert {name: back[name] for name in FUSION} == {name: before[name] for name in FUSION}
    assert open_retriever(retriever).search(QUERY, 5).equals(hits)


def test_the_switch_comes_last_and_a_second_call_resumes(
    folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = compose([folder / "bm25", folder / "dense"], output=folder / "retriever")
    before = (retriever / "retriever.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("hybrid_cli.stages.update.encoder.Compose", None)
        assert hybrid("update", retriever, "--model", other).code == 1
    assert (retriever / "retriever.json").read_bytes() == before
    made = artifacts.read_manifest(folder / "dense.2").fingerprint
    assert hybrid("update", retriever, "--model", other).code == 0
    assert artifacts.read_manifest(folder / "dense.2").fingerprint == made
    assert stored(retriever)["generation"] == 2
    assert {path.name for path in folder.iterdir()} == {"tiny", "bm25", "dense", "dense.2", "retriever"}


def test_other_calls_are_refused(folder: Path, other: Path, tiny_bert: Path) -> None:
    retriever = compose([folder / "bm25"], output=folder / "words")
    assert hybrid("update", retriever, "--model", other).is_problem("number-of-values", path=retriever)
    more = encode(folder / "tiny", model=str(tiny_bert), dtype="fp32", output=folder / "more")
    retriever = compose([folder / "dense", more], output=folder / "two")
    assert hybrid("update", retriever, "--model", other).is_problem("number-of-values")
    assert hybrid("update", folder / "dense", "--model", other).is_problem("other-kind", option="model")
    assert hybrid("update", retriever, "--model", folder / "none").code == 2
    done = hybrid("update", compose([folder / "bm25", more], output=folder / "pair"), "--model", other, "--dry-run")
    assert done.code == 0
    assert not (folder / "more.2").exists()
