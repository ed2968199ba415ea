"""The command line: help, settings, output streams, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command import Done, Refusal, hybrid, refusal

from hybrid_cli import artifacts
from hybrid_cli.cli import run
from hybrid_cli.settings import COMMANDS, Evaluate, Settings
from hybrid_cli.settings.common import Overwrites
from hybrid_cli.storage import Kind

STAGES = [
    "auto", "prepare", "split", "perturb", "index-bm25", "mine-negatives", "label", "pretrain",
    "train-dense", "train-lambda", "distill-lite", "train-sparse", "train-reranker", "convert-checkpoint",
    "presets", "combine", "encode", "search", "judge", "fuse", "compose", "update", "serve", "rerank", "concat-runs",
    "evaluate", "gate", "report", "inspect", "export", "doctor",
]  # fmt: skip
Write = Callable[[str], Path]
ALIASES = "x0: &x0 [a, a]\n" + "".join(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]\n" for n in range(1, 40))  # 2**40 values
EVERYWHERE = ("--config", "--quiet", "--verbose", "--log-file", "--debug")


def shell(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybrid_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def plain(text: str) -> str:
    """Return help text without frames and styles."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text))


@pytest.fixture(scope="module")
def judged(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return arguments of `evaluate`: a collection and a run."""
    run = pl.read_parquet(tiny / "qrels.test.parquet").select("qid", "docid", rank="relevance", score="relevance")
    path = tmp_path_factory.mktemp("runs") / "oracle.parquet"
    output = artifacts.open_output(path, Kind.RUN, "test", inputs={}, options={})
    output.write([run.with_columns(pl.col("rank").rank("ordinal", descending=True).over("qid")).to_arrow()])
    return [tiny, path]


# ----------------------------------------------------------------------------------------------------------------- help


def test_help_lists_every_stage_in_the_order_of_a_pipeline() -> None:
    text = plain(hybrid("--help").out)
    places = [text.index(f" {name} ") for name in STAGES]
    assert places == sorted(places)
    assert list(dict.fromkeys(kind.command.split()[0] for kind in COMMANDS)) == STAGES


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.command)
def test_every_command_has_help_with_an_example(kind: type[Settings]) -> None:
    done = hybrid(*kind.command.split(), "--help")
    text = plain(done.out)
    assert (done.code, done.err) == (0, "")
    assert text.startswith(f" Usage: hybrid {kind.command} ")
    assert not re.search("<(bool|str|list)|default: [(]", done.out)
    assert re.search(rf"Examples?: .*hybrid {kind.command}\b", text)
    writing = ("--overwrite", "--dry-run") if issubclass(kind, Overwrites) else ()
    assert not [option for option in (*EVERYWHERE, *writing) if option not in text]


@pytest.mark.parametrize("command", [[], ["prepare"]])
def test_without_arguments_the_help_is_printed(command: list[str]) -> None:
    done = hybrid(*command)
    assert done.code == 2
    assert "Usage: hybrid" in done.out


def test_the_version_is_one_word() -> None:
    from hybrid_cli import __version__

    assert hybrid("--version")[:3] == (0, __version__ + "\n", "")


# ------------------------------------------------------------------------------------------------------------- settings


@pytest.fixture
def config(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return path

    return write


def measured(done: Done) -> set[str]:
    return {line.split(",")[1] for line in done.out.splitlines()[1:]}


def test_the_command_line_overrides_the_config_file(judged: list[Path], config: Write) -> None:
    path = config("format: csv\nsplit: test\nmeasures: R@3\n")
    assert measured(hybrid("evaluate", *judged, "--config", path)) == {"R@3"}
    assert measured(hybrid("evaluate", *judged, "--config", path, "--measures", "P@1")) == {"P@1"}


def test_a_config_file_may_contain_all_arguments_and_options(judged: list[Path], config: Write) -> None:
    path = config(f"inputs: [{judged[0]}, {judged[1]}]\nsplit: test\nformat: csv\nquiet: true\n")
    done = hybrid("evaluate", "--config", path)
    assert measured(done) == set(Evaluate.measures)
    assert done.err == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("depth: 3\nmeasure: R@3\n", refusal("no-such-option", path="settings.yaml", option="depth")),
        ("form: csv\n", refusal("no-such-option", path="settings.yaml", option="form")),
        ("- csv\n", refusal("not-yaml", path="settings.yaml")),
        ("format: [\n", refusal("not-yaml", path="settings.yaml")),
        (
            "measures: R@3\nformat: csv\nmeasures: R@4\n",
            refusal("repeated-option", path="settings.yaml", line=3, option="measures"),
        ),
        ("measures: R@3\nm: R@4\n", refusal("repeated-option", path="settings.yaml", option="m")),
        ("log-file: a\nlog_file: b\n", refusal("repeated-option", path="settings.yaml", line=2, option="log_file")),
        ("measures: {a: 1, b: 2, a: 3}\n", refusal("repeated-option", path="settings.yaml", line=1, option="a")),
        ("measures: &m [R@3]\nformat: *m\n", refusal("not-yaml", path="settings.yaml", line=2)),
        (ALIASES, refusal("not-yaml", path="settings.yaml", line=2)),
        ("relevance-level: high\n", refusal("not-a-number", option="relevance_level", value="high")),
        ("relevance-level: 0x1\n", refusal("not-a-number", option="relevance_level", value="0x1")),
        ("relevance-level: 1:30\n", refusal("not-a-number", option="relevance_level", value="1:30")),
        ("split: 0012\n", refusal("no-such-split", role="qrels", split="0012")),
        ("split: 2020-01-01 00:00:00\n", refusal("no-such-split", role="qrels", split="2020-01-01 00:00:00")),
        ("split: no\n", refusal("not-a-text", option="split")),
        ("split: [test]\n", refusal("not-a-text", option="split")),
    ],
)
def test_an_invalid_config_file_is_refused_in_one_line(
    judged: list[Path], config: Write, text: str, problem: str | Refusal
) -> None:
    done = hybrid("evaluate", *judged, "--config", config(text))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.is_problem(problem), done.err


def test_a_dry_run_prints_the_settings_and_writes_nothing(judged: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "deep" / "values.parquet"
    done = hybrid("evaluate", *judged, "--split", "test", "--measures", "P@1", "--output", output, "--dry-run")
    settings = dict(line.split(maxsplit=1) for line in done.out.splitlines() if not line.startswith("run "))
    assert (done.code, done.err) == (0, "")
    assert settings["output"] == f"{output} (would be written)"
    assert settings["qrels"] == f"{judged[0] / 'qrels.test.parquet'} (qrels)"
    assert settings["measures"] == "['P@1']"
    assert not list(tmp_path.iterdir())


def test_a_dry_run_reports_an_up_to_date_output_and_checks_the_options(judged: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "values.parquet"
    command = ["evaluate", *judged, "--split", "test", "--measures", "P@1", "--output", output]
    assert hybrid(*command).code == 0
    before = output.read_bytes()
    assert f"{output} (up to date)" in hybrid(*command, "--dry-run").out
    done = hybrid(*command, "--relevance-level", 2, "--dry-run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.is_problem("output-differs", options=["relevance_level"]), done.err
    assert output.read_bytes() == before


# -------------------------------------------------------------------------------------------- output and exit codes


def test_results_are_on_stdout_and_notes_on_stderr(judged: list[Path]) -> None:
    done = hybrid("evaluate", *judged, "--split", "test", "--format", "csv")
    assert done.out.startswith("run,measure,mean")
    assert done.says("short-lists")
    assert all(notice.message in done.err for notice in done.notices.heard)
    quiet = hybrid("evaluate", *judged, "--split", "test", "--format", "csv", "--quiet")
    assert quiet[:3] == (0, done.out, "")


def test_debug_prints_the_traceback_with_the_same_message_and_exit_code(judged: list[Path]) -> None:
    command = ["evaluate", *judged, "--split", "nowhere"]
    brief, long = hybrid(*command), hybrid(*command, "--debug")
    assert brief.code == long.code == 2
    assert long.err.endswith(brief.err)
    assert "Traceback" in long.err
    assert "in qrels_path" in long.err, "the place in the code"
    assert "Traceback" not in brief.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["evaluate", "--no-such-option"], refusal("no-such-option", option="no_such_option")),
        (["evaluate"], refusal("missing-option", option="inputs")),
        (["evaluat"], "usage"),
        (["evaluate", "x", "--format", "xml"], refusal("unknown-choice", option="form", value="xml")),
        (["search", "x", "--index", "y", "--hits", "0"], refusal("out-of-range", option="hits", minimum=1)),
        (["encode", "x", "--output", "--overwrite"], refusal("missing-value", option="output")),
        (
            ["evaluate", "x", "y", "--complement", "y", "--measures", "MRR"],
            refusal("missing-value", option="complement"),
        ),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(arguments: list[str], problem: str | Refusal) -> None:
    done = hybrid(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.is_problem(problem), done


@pytest.mark.parametrize("error", [KeyError("nothing"), EOFError("no data left")])
def test_a_bug_is_reported_in_one_line_and_exits_1(
    judged: list[Path], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from hybrid_cli.reporting import summary

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(summary, "show_tables", fail)
    command = ["evaluate", *judged, "--split", "test", "--quiet"]
    done = hybrid(*command)
    assert (done.code, done.out) == (1, "")
    assert done.err.strip() == f"hybrid: a bug in hybrid: {type(error).__name__}: {error} (--debug shows where)"
    assert "Traceback" in hybrid(*command, "--debug").err


@pytest.mark.parametrize("reader", ["head -n 1", "true"])
def test_a_closed_pipe_is_not_an_error(judged: list[Path], reader: str) -> None:
    command = f"{sys.executable} -m hybrid_cli inspect --format json '{judged[1]}' | {reader}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == ("{\n" if reader.startswith("head") else "")


def test_the_entry_point_runs_one_command() -> None:
    from importlib.metadata import entry_points

    (program,) = entry_points(group="console_scripts", name="hybrid")
    assert program.load() is run


@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_idle_threads_sleep_unless_the_environment_overrides_it(given: dict[str, str], expected: str) -> None:
    """The variable must be set before torch or FAISS loads OpenMP."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    code = (
        "import os, sys, hybrid_cli.cli; print(os.environ['OMP_WAIT_POLICY'], {'torch', 'faiss'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == f"{expected} set()\n"


def test_a_wrong_number_of_threads_does_not_reach_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    monkeypatch.setenv("POLARS_MAX_THREADS", "")  # restored afterwards
    monkeypatch.delenv("POLARS_MAX_THREADS")
    assert hybrid("index-bm25", "missing", "--threads", "1000000", "--output", "out").code != 0
    assert int(os.environ["POLARS_MAX_THREADS"]) <= (os.cpu_count() or 1)


LEAVING = """
import atexit, sys

class Library:
    def __del__(self):
        print("torn down", flush=True)

sys.modules["library"] = Library()
atexit.register(print, "registered")
from hybrid_cli.cli import run
run()
"""


@pytest.mark.parametrize(("word", "code"), [("--version", 0), ("--none", 2)])
def test_a_command_ends_without_the_teardown_of_libraries(word: str, code: int) -> None:
    """The teardown of PyTorch takes a second; functions of `atexit` run."""
    done = subprocess.run([sys.executable, "-c", LEAVING, word], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout.endswith("registered\n")
    assert "torn down" not in done.stdout


def test_windows_is_refused_in_one_line() -> None:
    code = "import sys; sys.platform = 'win32'; import hybrid_cli.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "Windows" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["evaluate", "absent", "run.trec", "-l", "0"],
            {"code": "out-of-range", "option": "relevance_level", "minimum": 1},
        ),
        (
            ["inspect", "x", "--quiet", "--verbose"],
            {"code": "conflicting-options", "option": "quiet", "others": ["verbose"]},
        ),
    ],
)
def test_an_error_is_a_json_object_for_a_command_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = hybrid(*words)
    for form in (["--format", "json"], ["--format=json"]):
        done = hybrid(*words, *form)
        content = json.loads(done.err)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert plain.err == f"hybrid: {content['error']}\n"
        assert {name: content.get(name) for name in expected} == expected
