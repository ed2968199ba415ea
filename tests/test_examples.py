"""The examples and the answers of the documentation run."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import hybrid
from IPython.core.interactiveshell import InteractiveShell
from sparse_models import write_checkpoint
from test_architecture import shell_lines

from hybrid_cli import plugins
from hybrid_cli.commands import PrepareFiles, PreparePythonDocs
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search
from hybrid_cli.training.options import LOSSES

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


def test_the_notebook_runs(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((ROOT / "examples" / "compare.ipynb").read_text("utf-8"))["cells"]
    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    results = [shell.run_cell("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    LOSSES.remove(plugins.Origin("__main__"))
    for result in results:
        result.raise_error()
    shown = [result.result for result in results if result.result is not None]
    shows = [shell.display_formatter.format(value)[0] for value in shown]
    texts = [show.get("text/plain", "") for show in shows]
    searches = [value for value in shown if isinstance(value, pl.DataFrame) and "docid" in value.columns]
    assert len(searches) == 4  # by text, with a filter, by vector, of the retriever
    assert sum("rich.control.strip_control_codes" in hits["docid"] for hits in searches) >= 3
    assert sum("<table>" in show["text/html"] for show in shows if "caption" in show.get("text/html", "")) == 4
    assert sum(any("vegalite" in kind for kind in show) for show in shows) == 2
    (tuned,) = [text for text in texts if text.startswith("Retriever(")]
    assert "20 judged queries" in tuned
    assert "\n" not in tuned
    printed = capsys.readouterr().out
    assert printed.count(r"\begin{table}") == printed.count(r"\label{tab:own-loss}") == 1


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_the_python_examples_run(name: str, quickstart: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    monkeypatch.chdir(quickstart[0])
    exec(compile("\n".join(blocks), name, "exec"), {})


PAGE = Path(__file__).parent.parent / "docs" / "faq.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in shell_lines(block)]
QUESTIONS = ["Which weight", "worse than vectors", "BM25 and cosines", "How many judged", "without judgments"]
QUESTIONS += ["SPLADE or BM25", "the score 0", "each kind of query", "Chinese, Japanese", "int8, binary", "recall low"]
QUESTIONS += ["Which chunk size"]
PUBLISHED = "intfloat/multilingual-e5-small"  # a tiny model takes its place


def prepare_all(tiny_bert: Path) -> None:
    """Write what the commands of the page read: collections, indexes, a retriever, runs, and answers of a person."""
    few = {"train": 1, "dev": 30, "test": 30}
    data = prepare(PreparePythonDocs(package=["rich"], sample=150, sample_queries=few, output=Path("data/mine")))
    sides = [index_bm25(data, output=Path("out/bm25")), encode(data, model=str(tiny_bert), output=Path("out/dense"))]
    splade = write_checkpoint(Path("splade"), "splade")
    sparse = encode(data, model=str(splade), architecture="splade", output=Path("out/splade"))
    for index in (*sides, sparse):
        for folder, split in (("out", "test"), ("dev", "dev")):
            search(data, split=split, index=index, output=Path(folder) / f"{index.name}.parquet")
    compose(sides, output=Path("out/retriever"))
    Path("queries.txt").write_text("print text in a table\nshow a progress bar\n")
    Path("answers.txt").write_text("1\n" * 100)
    Path("docs").mkdir()
    for number, text in enumerate(pl.read_parquet(data / "corpus.parquet")["text"].head(5)):
        Path(f"docs/{number}.txt").write_text(text, "utf-8")
    rows = [
        ("1", "潮の満ち引き", "月の引力が海の水を引き寄せる。"),
        ("2", "食塩", "食塩はナトリウムと塩素からできている。"),
    ]
    Path("articles.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    columns = {"id": "1", "title": "2", "text": "3"}
    prepare(PrepareFiles([Path("articles.tsv")], document_columns=columns, output=Path("data/articles")))


INSTEAD = {"2G": "32G"}  # the process of the tests may hold more than 2 GB


def test_every_question_has_a_command() -> None:
    answers = re.split(r"\n(?=\*\*)", PAGE.read_text("utf-8"))
    for question in QUESTIONS:
        (answer,) = [text for text in answers if question in text.partition("**")[2].partition("**")[0]]
        assert "```sh\nhybrid " in answer, question


def test_every_command_runs(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_all(tiny_bert)
    for line in COMMANDS:
        words = [INSTEAD.get(word, str(tiny_bert) if word == PUBLISHED else word) for word in shlex.split(line)[1:]]
        output = Path(words[words.index("--output") + 1]) if "--output" in words else None
        if output is not None and output.exists():
            shutil.rmtree(output)
        with open("answers.txt") as answers:
            monkeypatch.setattr("sys.stdin", answers)
            done = hybrid(*words)
        assert done.code == 0, (line, done.err)
        assert output is None or output.exists(), line
