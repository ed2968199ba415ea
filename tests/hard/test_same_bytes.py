"""The same command twice: equal bytes, except the parts that docs/guarantees.md names."""

import time
from pathlib import Path

import pytest
from cases import bytes_of, clear, write_bert, write_inputs
from command import ran
from kill_stages import STAGES, inputs_of

CHOSEN = ("prepare", "split", "index-bm25", "search", "encode", "update (bm25)", "report", "train-dense", "rerank")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        write_bert(Path("bert"), 0)
        write_inputs(folder, inputs_of(CHOSEN), 0, succeeds)
    return folder


def succeeds(words: list[str]) -> None:
    ran(*words)


@pytest.mark.parametrize("stage", CHOSEN)
def test_a_command_writes_the_same_bytes_again(world: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    words, now = STAGES[stage][0].split(), time.time
    output, results = Path(words[-1]), []
    for later in (0, 10**8):
        monkeypatch.setattr(time, "time", lambda later=later: now() + later)
        succeeds(words)
        results.append(bytes_of(output))
        clear(output)
    assert results[0] == results[1]
