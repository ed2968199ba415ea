"""Run the scripts of examples/ and the Python block of the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent


def run(script: str, folder: Path, **variables: str) -> str:
    """Run an example in `folder` with the `hybrid` of this Python; return its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(ROOT / "examples" / script)],
        cwd=folder,
        env={**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    assert "written by `fuse`" in printed


def test_the_python_of_the_readme_runs(quickstart: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    block = (ROOT / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(quickstart[0])
    exec(compile(block.replace("data/pydocs", "data/rich"), "README.md", "exec"), {})
    assert Path("out/rrf.parquet").is_file()


def test_clear_by_hand_runs(tmp_path: Path, tiny: Path) -> None:
    printed = run("clear_by_hand.sh", tmp_path, DATA=str(tiny), STEPS="1", DEV="train", OUT="out")
    assert "clear.test" in printed
    assert (tmp_path / "out" / "weights.json").is_file()


def test_own_collection_runs(tmp_path: Path) -> None:
    printed = run("own_collection.sh", tmp_path)
    assert "1.0000" in printed  # both queries find their document first
    assert "salt" in printed.splitlines()[-1] or "Table salt" in printed


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "compare.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    with client.setup_kernel(env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}):
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output["data"]["text/plain"] for output in outputs if "data" in output]
    assert any("Control" in text or "control" in text for text in shown[:3])
    assert any("MRR@10" in text for text in shown)


def test_the_examples_of_the_python_page_run(quickstart: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(quickstart[0])
    exec(compile("\n".join(blocks), "python.md", "exec"), {})
    assert Path("out/product.parquet").is_file()
