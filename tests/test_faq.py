"""Run every command of docs/faq.md, in order, on the docstrings of a package."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import polars as pl
import pytest
from command import hybrid
from sparse_models import write_checkpoint
from test_docs import shell_lines

from hybrid_cli.commands import PrepareFiles, PreparePythonDocs
from hybrid_cli.stages.compose import compose
from hybrid_cli.stages.encode import encode
from hybrid_cli.stages.index_bm25 import index_bm25
from hybrid_cli.stages.prepare import prepare
from hybrid_cli.stages.search import search

PAGE = Path(__file__).parent.parent / "docs" / "faq.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in shell_lines(block)]
QUESTIONS = (
    "Which weight", "worse than vectors", "BM25 and cosines", "How many judged", "without judgments", "SPLADE or BM25",
    "the score 0", "each kind of query", "Chinese, Japanese", "int8, binary", "recall low", "Which chunk size",
)  # fmt: skip
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
    prepare(PrepareFiles([Path("articles.tsv")], document_columns={"id": "1", "title": "2", "text": "3"},
                         output=Path("data/articles")))  # fmt: skip


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
