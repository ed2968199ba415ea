"""Options on the command line and in a config file: checked by the rules of the settings, refused in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import hybrid, raises

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
        ("rrf-k: 5\n", "--rrf-k: only with --method rrf, or with --tune and the method rrf; --method is minmax"),
        ("rrf-q: 5\n", "`hybrid fuse` has no option rrf-q; did you mean rrf-k?"),
        ("weights: [1, x]\n", "--weights x: needs a number"),
        ("weights: 3\n", "--weights 3: pass one weight for each of a, b"),
        ("method: {a: b}\n", "--method {'a': 'b'}: needs a text"),
        ("quiet: maybe\n", "--quiet maybe: needs true or false"),
        ("hits: 0\n", "--hits 0: needs a number >= 1"),
        ("- hits\n", "needs lines of 'option: value'"),
        ("hits: [\n", "not a readable YAML file"),
    ],
)
def test_a_config_file_is_checked_as_the_command_line_is(tmp_path: Path, content: str, message: str) -> None:
    config = tmp_path / "fuse.yaml"
    config.write_text(content, "utf-8")
    done = hybrid("fuse", "a", "b", "--output", tmp_path / "f.parquet", "--config", config)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_a_config_file_has_no_negative_flags(tmp_path: Path) -> None:
    config = tmp_path / "label.yaml"
    config.write_text("drop-own: true\n", "utf-8")
    done = hybrid("label", "c", "--index", "i", "--output", tmp_path / "labels", "--config", config)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "`hybrid label` has no option drop-own; write `keep-own: false`" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "fuse a b -o f.parquet --rrf-k 5",
            "--rrf-k: only with --method rrf, or with --tune and the method rrf; --method is minmax",
        ),
        (
            "fuse a b --rrf-k 5",
            "--rrf-k: only with --method rrf, or with --tune and the method rrf; --method is minmax",
        ),
        ("fuse a b", "missing option --output; see `hybrid fuse --help`"),
        ("fuse", "missing argument RUNS and option --output; see `hybrid fuse --help`"),
        ("fuse a b -o f.parquet --measure R@10", "--measure: only with --qrels"),
        ("fuse a b -o f.parquet --split dev", "--split: only with --qrels, or with --queries"),
        (
            "fuse a b -o f.parquet --queries c",
            "--queries: only with --missing exact; --missing is zero",
        ),
        (
            "fuse a b -o f.parquet --device cpu",
            "--device: only with --missing exact; --missing is zero",
        ),
        ("fuse a b -o f.parquet --weights 1", "--weights 1: pass one weight for each of a, b, in this order; got 1"),
        ("search --index a --query text --overwrite", "--overwrite: not with --query"),
        (
            "evaluate c r --over-seeds --test permutation",
            "--test: only with two or more runs, not with --over-seeds or --aggregate, or with --baseline",
        ),
        ("evaluate r --aggregate --keep-query", "--keep-query: not with --aggregate"),
        (
            "evaluate r --aggregate --test t",
            "--test: only with two or more runs, not with --over-seeds or --aggregate, or",
        ),
        ("evaluate r --aggregate --memory 1G", "--memory: not with --aggregate"),
        ("evaluate r --aggregate --corpus c", "--corpus: only with acc@k, not with --aggregate, or with --complement"),
        ("evaluate r --aggregate --over-seeds", "--over-seeds: not with --robustness, --complement or --aggregate"),
        (
            "fuse a b -o w.json --tune --qrels q --method sum --methods rrf",
            "--methods: only with --tune and no --method",
        ),
        ("train-lambda c -o f --labels l --base b --projection-norm", "--projection-norm: only with --encoder trans"),
        ("train-lambda c -o f --labels l --base b --matryoshka-dims 8", "--matryoshka-dims: not with --base"),
        ("evaluate c r -m MRR@10,nDCGG@10", "--measures nDCGG@10: unknown; did you mean nDCG@10?"),
        ("evaluate c r -m bad", "--measures bad: unknown. Known: "),
        ("index-bm25 c -o f --tune --tune-measure MRP@10", "--tune-measure MRP@10: unknown; did you mean"),
        ("label c -o f --index i --split dev --drop-own", "--drop-own: not with --split or --queries; --split is dev"),
        ("pretrain c -o f --held-out 0 --eval-steps 3", "--eval-steps 3: needs held-out documents"),
        ("encode c -o f --queries q", "--queries: not with COLLECTION"),
        ("perturb c -o f --attack lite,shufle", "--attack shufle: unknown; did you mean shuffle?"),
        ("fuse a b -o f.parquet --method rff", "--method rff: unknown; did you mean rrf?"),
        ("fuse a b -o f.parquet --weihgts 1,2", "no option --weihgts; did you mean --weights?"),
        ("fuse a b -o f.parquet --frobnicate", "no option --frobnicate; see"),
        (
            "train-lambda c -o f --encoder static --model does/notexist --pooling cls --loss listwise --positives 3",
            "only with",
        ),
        ("train-dense x.parquet -o f --loss nll --xi 3", "--xi: only with --loss"),
        ("encode c -o f --index-type flat --M 3", "--M: only with --index-type"),
        ("encode c -o f --index-type hsnw", "--index-type hsnw: unknown; did you mean hnsw?"),
        ("export run.parquet -o f --fromat trec", "no option --fromat; did you mean --format?"),
        ("prepare files d.tsv -o f --query-columns id=1,text=2", "--query-columns: only with --queries"),
        ("prepare files d.tsv -o f --qrels-columns qid=1,docid=2", "--qrels-columns: only with --qrels"),
        ("prepare files d.tsv -o f --on-dangling keep", "--on-dangling: only with --qrels"),
        (
            "prepare msmarco d.tsv -o f --on-dangling keep",
            "--on-dangling: only with --qrels, not with --pseudo-queries, or with --triples",
        ),
        ("prepare dpr d.tsv -o f --on-dangling drop", "--on-dangling: only with --training"),
        ("prepare trec d.txt -o f --on-dangling drop", "--on-dangling: only with --qrels"),
        ("prepare beir d -o f --pseudo-queries title --on-dangling drop", "--on-dangling: not with --pseudo-queries"),
        ("prepare trec d.txt -o f --topic-fields desc", "--topic-fields: only with --topics"),
        ("index-bm25 c -o f --tune --split dev --queries q --qrels r", "--split: not with both --queries and --qrels"),
        (
            "search c -o f --queries q --index i",
            "--queries: not with COLLECTION, --query or --interactive, except with --tune, not with --qrels",
        ),
        ("search c -o f --queries q --qrels r --rm3 --tune --index i", "--queries: not with COLLECTION"),
        (
            "evaluate c r s --complement r s --format csv --show-queries 1",
            "--show-queries: only with --complement and --format table, json or markdown; --complement",
        ),
        ("evaluate c r --baseline r --test permutation", "--test: only with two or more runs"),
        ("evaluate --qrels q r --correction bonferroni", "--correction: only with two or more runs"),
        ("report c r -o f --test permutation", "--test: only with two or more runs"),
        ("judge c r -o f --measure MAP", "--measure: only with two runs"),
        (
            "train-sparse x -o f --architecture splade --query-flops 0 --doc-flops 0 --flops-warmup 0.1",
            "--flops-warmup: only with --architecture splade, unicoil or sparterm and --query-flops or --doc-flops abo",
        ),
        ("perturb c -o f --attack back-translation --seed 3", "--seed: only with --attack shuffle, synonym-adversary"),
        (
            "perturb c -o f --attack char-swap --attacked-queries char-swap=q --seed 3",
            "; the attack is read from --attacked-queries",
        ),
    ],
)
def test_options_that_do_not_apply_are_refused_in_one_line(words: str, message: str) -> None:
    done = hybrid(*words.split())
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["", "prepare", *(kind.command for kind in COMMANDS)])
def test_help_shows_no_types_and_defaults_without_parentheses(command: str) -> None:
    shown = hybrid(*command.split(), "--help").out
    assert not re.search("<(bool|str|list)", shown)
    assert "default: (" not in shown


def test_brackets_in_the_usage_mark_arguments_that_may_be_left_out() -> None:
    assert "hybrid prepare beir [OPTIONS] FOLDER " in hybrid("prepare", "beir", "--help").out
    assert "hybrid search [OPTIONS] [COLLECTION] " in hybrid("search", "--help").out
    assert "hybrid evaluate [OPTIONS] INPUTS... " in hybrid("evaluate", "--help").out


def test_settings_in_python_obey_the_rules_of_the_command_line() -> None:
    with raises("out-of-range", option="hits", value=0, minimum=1):
        Fuse(["a", "b"], output=Path("f.parquet"), hits=0)
