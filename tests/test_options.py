"""Options on the command line and in a config file: checked by the rules of the settings, refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import hybrid
from tiny_collection import write_lines

from hybrid_cli.cli import removed


def test_a_config_file_has_no_negative_flags(tmp_path: Path) -> None:
    config = tmp_path / "fuse.yaml"
    config.write_text("no-tune: true\n", "utf-8")
    done = hybrid("fuse", "a", "b", "--output", tmp_path / "run", "--config", config)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert done.is_problem("no-such-option", option="no_tune")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fuse a b -o f.parquet --weihgts 1,2", "no option --weihgts; did you mean --weights?"),
        ("fuse a b -o f.parquet --frobnicate", "no option --frobnicate; see"),
        ("export run.parquet -o f --fromat trec", "no option --fromat; did you mean --format?"),
    ],
)
def test_an_unknown_option_is_refused_with_a_similar_one(words: str, message: str) -> None:
    done = hybrid(*words.split())
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert message in done.err


def test_removed_commands_options_and_values_name_their_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        "plot": "hybrid report",
        "prepare pdf": "",
        "fuse --rrf-constant": "--rrf-k",
        "fuse --missing worst": "--missing zero",
    }
    monkeypatch.setattr(removed, "REMOVED", table)
    config = write_lines(tmp_path / "options.yaml", "rrf-constant: 3")
    sections = write_lines(tmp_path / "sections.yaml", "plot: {k: 3}", "fuse: {}")
    for line, words in {
        "plot a b": "plot",
        "prepare pdf folder": "prepare pdf",
        "fuse a b -o f --rrf-constant 3": "fuse --rrf-constant",
        "fuse a b -o f --missing worst": "fuse --missing worst",
        f"fuse a b -o f --config {config}": "fuse --rrf-constant",
        f"fuse a b -o f --config {sections}": "plot",
    }.items():
        done = hybrid(*line.split())
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert done.is_problem("removed", words=words, successor=table[words]), done
        assert (table[words] or "leave it out") in done.err


def test_no_removed_word_is_known() -> None:
    for words in removed.REMOVED:
        if len(words.rpartition("--")[2].split()) < 2:  # a removed value needs the rest of a command
            assert hybrid(*words.split()).is_problem("removed", words=words), words


def test_brackets_in_the_usage_mark_arguments_that_may_be_left_out() -> None:
    assert "hybrid prepare beir [OPTIONS] FOLDER " in hybrid("prepare", "beir", "--help").out
    assert "hybrid search [OPTIONS] [COLLECTION] " in hybrid("search", "--help").out
    assert "hybrid evaluate [OPTIONS] [INPUTS...] " in hybrid("evaluate", "--help").out
