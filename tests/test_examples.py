"""Run the scripts of examples/ and the Python block of the README."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from command import hybrid
from IPython.core.interactiveshell import InteractiveShell

ROOT = Path(__file__).parent.parent
PROGRAM = """#!/usr/bin/env bash
printf '%s\\0' "$@" > "$CALLS"
{ read -r code; cat; } < "$REPLIES"
exit "$code"
"""


def run(script: str, folder: Path, **variables: str) -> str:
    """Run an example in `folder`; return its output.

    The program `hybrid` of the script passes its arguments to this process, which has imported the package.
    """
    pipes = {name: str(folder / f".{name}") for name in ("CALLS", "REPLIES")}
    for pipe in pipes.values():
        os.mkfifo(pipe)
    program = folder / ".bin" / "hybrid"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    environment = {**os.environ, **pipes, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", **variables}
    bash = subprocess.Popen(
        ["bash", ROOT / "examples" / script], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    printed: list[str] = []

    def read() -> None:
        printed.append(bash.communicate()[0])
        Path(pipes["CALLS"]).write_bytes(b"")  # the end of the calls

    reader = threading.Thread(target=read)
    reader.start()
    messages = ""
    with contextlib.chdir(folder):
        while call := Path(pipes["CALLS"]).read_text():
            done = hybrid(*call.split("\0")[:-1])
            messages += done.err
            Path(pipes["REPLIES"]).write_text(f"{done.code}\n{done.out}")
    reader.join()
    assert bash.returncode == 0, printed[0] + messages
    return printed[0]


def test_each_example_is_run_here() -> None:
    text = Path(__file__).read_text("utf-8")
    assert not [path.name for path in (ROOT / "examples").glob("*.sh") if f'"{path.name}"' not in text]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the quickstart; return its folder and its output."""
    folder = tmp_path_factory.mktemp("quickstart")
    return folder, run("quickstart.sh", folder)


def test_the_quickstart_runs(quickstart: tuple[Path, str]) -> None:
    _, printed = quickstart
    for name in ("bm25", "dense", "hybrid", "MRR@10"):
        assert name in printed
    assert "`fuse`" in printed


def test_clear_by_hand_runs(tmp_path: Path, tiny: Path) -> None:
    printed = run("clear_by_hand.sh", tmp_path, DATA=str(tiny), STEPS="1", DEV="train", OUT="out")
    assert "clear.test" in printed
    assert (tmp_path / "out" / "weights.json").is_file()


def test_own_collection_runs(tmp_path: Path) -> None:
    printed = run("own_collection.sh", tmp_path)
    assert "1.0000" in printed  # both queries find their document first
    assert "salt" in printed.splitlines()[-1] or "Table salt" in printed


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "compare.ipynb").read_text("utf-8"))["cells"]
    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    results = [shell.run_cell("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    for result in results:
        result.raise_error()
    shown = [str(result.result) for result in results if result.result is not None]
    assert any("Control" in text or "control" in text for text in shown[:3])
    assert any("MRR@10" in text for text in shown)


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_the_python_examples_run(name: str, quickstart: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    monkeypatch.chdir(quickstart[0])
    exec(compile("\n".join(blocks), name, "exec"), {})
