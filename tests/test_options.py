"""Options on the command line and in a config file: checked by the rules of the settings, refused in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import Refusal, hybrid, raises, refusal
from tiny_collection import write_lines

from hybrid_cli.cli import removed
from hybrid_cli.settings import COMMANDS, Fuse


def test_a_config_file_fills_options_and_the_command_line_wins(tmp_path: Path) -> None:
    config = tmp_path / "fuse.yaml"
    config.write_text("method: rrf\nrrf-k: 5\nhits: 7\n", "utf-8")
    for name in ("a", "b"):
        (tmp_path / f"{name}.trec").write_text("q Q0 d 1 1.0 tag\n", "utf-8")
    words = ["fuse", tmp_path / "a.trec", tmp_path / "b.trec", "--output", tmp_path / "f.parquet", "--config", config]
    done = hybrid(*words, "--hits", 3, "--dry-run")
    assert done.code == 0, done.err
    assert re.search(r"rrf_k +5", done.out)
    assert re.search(r"hits +3", done.out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rrf-k: 5\n", refusal("option-does-not-apply", option="rrf_k")),
        ("rrf-q: 5\n", refusal("no-such-option", option="rrf_q")),
        ("weights: [1, x]\n", refusal("not-a-number", option="weights")),
        ("weights: 3\n", refusal("number-of-weights", option="weights")),
        ("method: {a: b}\n", refusal("not-a-text", option="method")),
        ("quiet: maybe\n", refusal("not-true-or-false", option="quiet")),
        ("hits: 0\n", refusal("out-of-range", option="hits")),
        ("- hits\n", refusal("not-yaml", path="fuse.yaml")),
        ("hits: [\n", refusal("not-yaml", path="fuse.yaml")),
    ],
)
def test_a_config_file_is_checked_as_the_command_line_is(tmp_path: Path, content: str, message: str | Refusal) -> None:
    config = tmp_path / "fuse.yaml"
    config.write_text(content, "utf-8")
    done = hybrid("fuse", "a", "b", "--output", tmp_path / "f.parquet", "--config", config)
    assert (done.code, done.out) == (2, "")
    assert done.is_problem(message)
    assert len(done.err.splitlines()) == 1


def test_a_config_file_has_no_negative_flags(tmp_path: Path) -> None:
    config = tmp_path / "label.yaml"
    config.write_text("drop-own: true\n", "utf-8")
    done = hybrid("label", "c", "--index", "i", "--output", tmp_path / "labels", "--config", config)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert done.is_problem("no-such-option", option="drop_own")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            "fuse a b -o f.parquet --rrf-k 5",
            refusal("option-does-not-apply", option="rrf_k"),
        ),
        (
            "fuse a b --rrf-k 5",
            refusal("option-does-not-apply", option="rrf_k"),
        ),
        ("fuse a b", refusal("missing-option", option="output")),
        ("fuse", refusal("missing-option", option="runs")),
        ("fuse a b -o f.parquet --measure R@10", refusal("option-does-not-apply", option="measure")),
        ("fuse a b -o f.parquet --split dev", refusal("option-does-not-apply", option="split")),
        (
            "fuse a b -o f.parquet --queries c",
            refusal("option-does-not-apply", option="queries"),
        ),
        (
            "fuse a b -o f.parquet --device cpu",
            refusal("option-does-not-apply", option="device"),
        ),
        ("fuse a b -o f.parquet --weights 1", refusal("number-of-weights", option="weights")),
        ("search --index a --query text --overwrite", refusal("option-does-not-apply", option="overwrite")),
        (
            "evaluate c r --over-seeds --test permutation",
            refusal("option-does-not-apply", option="test"),
        ),
        ("evaluate r --aggregate --keep-query", refusal("option-does-not-apply", option="remove_query")),
        (
            "evaluate r --aggregate --test t",
            refusal("option-does-not-apply", option="test"),
        ),
        ("evaluate r --aggregate --memory 1G", refusal("option-does-not-apply", option="memory")),
        ("evaluate r --aggregate --corpus c", refusal("option-does-not-apply", option="corpus")),
        ("evaluate r --aggregate --over-seeds", refusal("option-does-not-apply", option="over_seeds")),
        (
            "fuse a b -o w.json --tune --qrels q --method sum --methods rrf",
            refusal("option-does-not-apply", option="methods"),
        ),
        (
            "train-lambda c -o f --labels l --base b --projection-norm",
            refusal("option-does-not-apply", option="projection_norm"),
        ),
        (
            "train-lambda c -o f --labels l --base b --matryoshka-dims 8",
            refusal("option-does-not-apply", option="matryoshka_dims"),
        ),
        ("evaluate c r -m MRR@10,nDCGG@10", refusal("invalid-value", option="measures")),
        ("evaluate c r -m bad", refusal("invalid-value", option="measures")),
        ("index-bm25 c -o f --tune --tune-measure MRP@10", refusal("invalid-value", option="tune_measure")),
        ("label c -o f --index i --split dev --drop-own", refusal("option-does-not-apply", option="keep_own")),
        ("pretrain c -o f --held-out 0 --eval-steps 3", refusal("missing-option", option="held_out")),
        ("encode c -o f --queries q", refusal("option-does-not-apply", option="queries")),
        ("perturb c -o f --attack lite,shufle", refusal("unknown-choice", option="attacks")),
        ("fuse a b -o f.parquet --method rff", refusal("unknown-choice", option="method")),
        (
            "train-lambda c -o f --encoder static --model does/notexist --pooling cls --loss listwise --positives 3",
            refusal("option-does-not-apply", option="loss"),
        ),
        ("train-dense x.parquet -o f --loss nll --xi 3", refusal("option-does-not-apply", option="xi")),
        ("encode c -o f --index-type flat --M 3", refusal("option-does-not-apply", option="m")),
        ("encode c -o f --index-type hsnw", refusal("unknown-choice", option="index_type")),
        (
            "prepare files d.tsv -o f --query-columns id=1,text=2",
            refusal("option-does-not-apply", option="query_columns"),
        ),
        (
            "prepare files d.tsv -o f --qrels-columns qid=1,docid=2",
            refusal("option-does-not-apply", option="qrels_columns"),
        ),
        ("prepare files d.tsv -o f --on-dangling keep", refusal("option-does-not-apply", option="on_dangling")),
        (
            "prepare msmarco d.tsv -o f --on-dangling keep",
            refusal("option-does-not-apply", option="on_dangling"),
        ),
        ("prepare dpr d.tsv -o f --on-dangling drop", refusal("option-does-not-apply", option="on_dangling")),
        ("prepare trec d.txt -o f --on-dangling drop", refusal("option-does-not-apply", option="on_dangling")),
        (
            "prepare beir d -o f --pseudo-queries title --on-dangling drop",
            refusal("option-does-not-apply", option="on_dangling"),
        ),
        ("prepare trec d.txt -o f --topic-fields desc", refusal("option-does-not-apply", option="topic_fields")),
        ("index-bm25 c -o f --tune --split dev --queries q --qrels r", refusal("conflicting-options", option="split")),
        (
            "search c -o f --queries q --index i",
            refusal("option-does-not-apply", option="queries"),
        ),
        (
            "search c -o f --queries q --qrels r --rm3 --tune --index i",
            refusal("option-does-not-apply", option="queries"),
        ),
        (
            "evaluate c r s --complement r s --format csv --show-queries 1",
            refusal("option-does-not-apply", option="show_queries"),
        ),
        ("evaluate c r --baseline r --test permutation", refusal("option-does-not-apply", option="test")),
        ("evaluate --qrels q r --correction bonferroni", refusal("option-does-not-apply", option="correction")),
        ("report c r -o f --test permutation", refusal("option-does-not-apply", option="test")),
        ("judge c r -o f --measure MAP", refusal("option-does-not-apply", option="measure")),
        (
            "train-sparse x -o f --architecture splade --query-flops 0 --doc-flops 0 --flops-warmup 0.1",
            refusal("option-does-not-apply", option="flops_warmup"),
        ),
        ("perturb c -o f --attack back-translation --seed 3", refusal("option-does-not-apply", option="seed")),
        (
            "perturb c -o f --attack char-swap --attacked-queries char-swap=q --seed 3",
            refusal("option-does-not-apply", option="seed"),
        ),
    ],
)
def test_options_that_do_not_apply_are_refused_in_one_line(words: str, problem: Refusal) -> None:
    done = hybrid(*words.split())
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert done.is_problem(problem), (done.problem, done.fields)


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


@pytest.mark.parametrize("command", ["", "prepare", *(kind.command for kind in COMMANDS)])
def test_help_shows_no_types_and_defaults_without_parentheses(command: str) -> None:
    shown = hybrid(*command.split(), "--help").out
    assert not re.search("<(bool|str|list)", shown)
    assert "default: (" not in shown


def test_brackets_in_the_usage_mark_arguments_that_may_be_left_out() -> None:
    assert "hybrid prepare beir [OPTIONS] FOLDER " in hybrid("prepare", "beir", "--help").out
    assert "hybrid search [OPTIONS] [COLLECTION] " in hybrid("search", "--help").out
    assert "hybrid evaluate [OPTIONS] [INPUTS...] " in hybrid("evaluate", "--help").out


def test_settings_in_python_obey_the_rules_of_the_command_line() -> None:
    with raises("out-of-range", option="hits", value=0, minimum=1):
        Fuse(["a", "b"], output=Path("f.parquet"), hits=0)
